"""What one run, session, fork or snapshot could learn of another or leave for it: memory, processes, sockets, descriptors.

Each attack is tried in several forms; none may find what it looks for, and the program that looks must itself have worked.
"""

import secrets
from dataclasses import replace

import pytest

from agentenv.sandbox.executor import JailExecutor
from agentenv.sandbox.types import Call, ExecStatus, Limits

LIMITS = Limits(wall_s=20.0, cpu_s=10.0)

SCAN = """
import base64, ctypes, os
def pages():
    '''Every page that this process can read; the kernel says which those are.'''
    try:
        with open('/proc/self/maps') as maps, open('/proc/self/mem', 'rb', 0) as memory:
            for line in maps:
                low, high = (int(end, 16) for end in line.split()[0].split('-'))
                if ' rw' in line:
                    memory.seek(low)
                    yield memory.read(high - low)
        return
    except FileNotFoundError:
        libc = ctypes.CDLL(None)
        libc.sbrk.restype = ctypes.c_void_p
    end, near, window = libc.sbrk(0), id(object()) & ~0xfff, 1 << 16
    copy = os.open('/tmp/copy', os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    for at in (*range(end - (32 << 20), end, window), *range(near - (64 << 20), near + (64 << 20), window)):
        os.lseek(copy, 0, 0)
        size = libc.write(copy, ctypes.c_void_p(at), window)
        if size > 0:
            yield os.pread(copy, size, 0)
def scan(left, right):
    found = seen = 0
    coded = base64.b64encode(left[::-1]), base64.b64encode(right[::-1])
    for data in pages():
        seen += len(data)
        for first, second in ((left[::-1], right[::-1]), coded):
            at = data.find(first)
            while at >= 0:
                found += data[at + len(first): at + len(first) + len(second)] == second
                at = data.find(first, at + 1)
    return found, seen
"""


def halves() -> tuple[str, str, str]:
    """A fresh mark, and two texts that are not in it but say what it is."""
    mark = secrets.token_hex(12)
    return mark, mark[:12][::-1], mark[12:][::-1]


def look(left: str, right: str) -> str:
    return f"{SCAN}\nprint(*scan({left!r}.encode(), {right!r}.encode()))"


def found_in(box: JailExecutor, left: str, right: str) -> int:
    """How often later runs found the mark."""
    total = 0
    for _ in range(2):
        result = box.run(look(left, right), limits=LIMITS)
        assert result.status is ExecStatus.OK, result
        found, seen = map(int, result.stdout.split())
        assert seen > 1 << 20
        total += found
    return total


@pytest.mark.parametrize("size", [24, 4000, 300_000])
@pytest.mark.parametrize("way", ["code", "stdin", "arguments", "files", "output", "returned"])
def test_no_later_run_finds_an_earlier_one_in_its_memory(box: JailExecutor, way: str, size: int) -> None:
    mark, left, right = halves()
    text = mark * (size // 24)
    printing = f"m = bytes.fromhex({text.encode().hex()!r}).decode()\n"
    for _ in range(3):
        result = {
            "code": lambda: box.run(f"x = {text!r}"),
            "stdin": lambda: box.run("input()", stdin=text),
            "arguments": lambda: box.run("def f(x): pass", calls=[Call("f", (text,))]),
            "files": lambda: box.run("open('f').read()", files={"f": text.encode()}),
            "output": lambda: box.run(f"{printing}print(m)"),
            "returned": lambda: box.run(f"{printing}def f(): return m", calls=[Call("f")]),
        }[way]()
        assert result.status is ExecStatus.OK, result
    assert found_in(box, left, right) == 0


@pytest.mark.parametrize("size", [24, 4000, 300_000])
def test_nothing_of_a_session_is_found_by_later_runs_sessions_and_interpreters(
    box: JailExecutor, size: int
) -> None:
    mark, left, right = halves()
    text = mark * (size // 24)
    with box.open(limits=LIMITS, files={"f": text.encode()}) as session:
        for _ in range(3):
            assert session.run(f"x = {text!r}\nprint(x)").ok
        assert found_in(box, left, right) == 0
        with box.open(limits=LIMITS) as other:
            result = other.run(look(left, right))
            assert int(result.stdout.split()[0]) == 0, result
        assert session.run("import os; os._exit(0)").state_lost
        result = session.run(look(left, right))
        found, seen = map(int, result.stdout.split())
        assert (found, seen > 1 << 20) == (0, True)


def test_a_fork_that_starts_anew_finds_nothing_of_its_sibling(box: JailExecutor) -> None:
    mark, left, right = halves()
    with box.open(limits=LIMITS) as session:
        session.run("x = 1")
        sibling, other = session.fork(2)
        for size in (1, 200, 9000):
            sibling.run(f"solution = {mark * size!r}\nprint(solution)")
        assert other.run("import os; os.kill(os.getpid(), 9)").state_lost
        result = other.run(look(left, right), wall_s=20.0)
        assert int(result.stdout.split()[0]) == 0, result
        sibling.close()
        other.close()


def test_a_fork_bomb_leaves_no_trace_of_the_wardens_that_were_ready(box: JailExecutor) -> None:
    """What stands ready was forked before the run that came first, and what is forked later must be as clean."""
    mark, left, right = halves()
    for limit in (8, 64):
        box.run(
            f"x = {mark!r}\nimport os\nwhile 1: os.fork()", limits=replace(LIMITS, processes=limit, cpu_s=1.0)
        )
        assert found_in(box, left, right) == 0
