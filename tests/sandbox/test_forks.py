"""What the forks of one session may use: each the limits of the session for itself, and none at the cost of another."""

import contextlib
import platform
from collections.abc import Iterator
from dataclasses import replace

import pytest

from agentenv.sandbox.executor import JailExecutor
from agentenv.sandbox.jail_session import JailSession
from agentenv.sandbox.types import ExecResult, ExecStatus, ExecutionLimits
from tests.sandbox.conftest import eventually

LIMITS = ExecutionLimits(wall_s=20.0, memory_mb=128, processes=8, snapshots=4)
HELD_BYTES = "held = b'x' * (100 << 20); len(held) >> 20"
HOLD_PROCESSES = """
import os, time
made = 0
while True:
    try:
        if os.fork() == 0:
            time.sleep(600); os._exit(0)
    except OSError:
        break
    made += 1
made
"""
HOLD_THREADS = """
import threading, time; threading.stack_size(1 << 16)
made = 0
while True:
    try:
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    except RuntimeError:
        break
    made += 1
made
"""
DETACHED = "if os.fork() == 0:\n os.setsid()\n if os.fork() == 0:\n  held = b'x' * (90 << 20); time.sleep(600)\n os._exit(0)"


@pytest.fixture(name="box")
def _box(box_of_module: JailExecutor) -> JailExecutor:
    return box_of_module


@pytest.fixture
def forks(box: JailExecutor) -> Iterator[list[JailSession]]:
    """A session and three forks of it."""
    with contextlib.ExitStack() as stack:
        session = stack.enter_context(box.open(limits=LIMITS))
        session.run("import os, subprocess, threading, time\nx = [1]")
        yield [session, *map(stack.enter_context, session.fork(3))]


def holds_its_share(fork: JailSession, hold: str = HOLD_PROCESSES) -> bool:
    """A fork can fork as often as its limit says; once more where a snapshot that was released is still dying."""
    return int(ok(fork.run(hold)) or 0) - LIMITS.processes in (-1, 0, 1)


def ok(result: ExecResult) -> str | None:
    assert result.status is ExecStatus.OK, result
    return result.value


def test_forks_that_hold_memory_leave_each_other_the_whole_limit(forks: list[JailSession]) -> None:
    for fork in forks:
        assert ok(fork.run(HELD_BYTES)) == "100"
    for fork in forks:
        assert ok(fork.run("len(held) >> 20, x")) == "(100, [1])"
        found = fork.run("x")
        assert found.memory_mb < LIMITS.memory_mb, found


def test_memory_that_a_fork_leaves_in_a_child_is_its_own(forks: list[JailSession]) -> None:
    """A child that stays, and one that has detached itself, whose end is not waited for."""
    left, right, *_ = forks
    child = "if os.fork() == 0:\n held = b'x' * (90 << 20); time.sleep(600)\ntime.sleep(1)"
    ok(left.run(child))
    for _ in range(3):
        ok(right.run(DETACHED + "\ntime.sleep(1)"))
        assert ok(left.run("x")) == "[1]"
    assert ok(right.run(HELD_BYTES)) == "100"
    assert left.run("held = b'x' * (90 << 20)\ntime.sleep(0.5)").status is ExecStatus.OOM
    assert ok(right.run("len(held) >> 20")) == "100"


INHERITED = {
    "in three children": "for _ in range(3):\n if os.fork() == 0: hold(30)",
    "in six children": "for _ in range(6):\n if os.fork() == 0: hold(17)",
    "in small pieces": "for _ in range(3):\n if os.fork() == 0: more = [bytes(1000) for _ in range(32_000)]; hold(0)",
    "in children of children": "for _ in range(3):\n if os.fork(): hold(30)\nhold(30)",
    "in what it changes": "for _ in range(3):\n if os.fork() == 0: held[: 30 << 20 : 4096] = b'z' * (30 << 8); hold(0)",
}
HOLD = "def hold(mb):\n more = b'y' * (mb << 20); time.sleep(600)"


@pytest.mark.parametrize("form", INHERITED)
def test_what_a_fork_inherited_counts_in_full_whoever_else_has_it(box: JailExecutor, form: str) -> None:
    """By its share alone, each of many forks could hold much more beside it, in processes that each have little."""
    with contextlib.ExitStack() as stack:
        session = stack.enter_context(box.open(limits=LIMITS))
        ok(
            session.run(
                f"import os, time\nheld = bytearray(90 << 20)\nheld[::4096] = b'x' * (90 << 8)\n{HOLD}"
            )
        )
        point = session.snapshot()
        forks = [*map(stack.enter_context, session.fork(7)), session]
        for fork in forks[-3:]:
            assert ok(fork.run("if os.fork() == 0: hold(20)\ntime.sleep(0.1)\nlen(held) >> 20")) == "90"
            assert fork.run(f"{INHERITED[form]}\ntime.sleep(15)").status is ExecStatus.OOM
        session.restore(point)
        assert ok(session.run("len(held) >> 20")) == "90"


@pytest.mark.parametrize("hold", [HOLD_PROCESSES, HOLD_THREADS], ids=["processes", "threads"])
def test_forks_that_hold_all_processes_leave_each_other_theirs(forks: list[JailSession], hold: str) -> None:
    *holders, last = forks
    for fork in holders:
        assert holds_its_share(fork, hold)
    assert ok(last.run("subprocess.run(['true']).returncode")) == "0"
    point = last.snapshot()
    with last.fork() as child:
        assert holds_its_share(child, hold)
        assert ok(last.run("[subprocess.run(['true']).returncode for _ in range(5)]")) == str([0] * 5)

    def restored_holds_its_share() -> bool:
        """Processes of the fork that was closed count for as long as they are dying, so the share is larger until then."""
        last.restore(point)
        return holds_its_share(last, hold)

    assert eventually(restored_holds_its_share, True)
    assert ok(holders[0].run("x")) == "[1]"


def test_a_fork_of_a_session_of_one_process_can_be_snapshot(box: JailExecutor) -> None:
    with box.open(limits=replace(LIMITS, processes=1)) as session:
        session.run("x = 1")
        point = session.snapshot()
        assert ok(session.run(HOLD_PROCESSES)) == "0"
        session.restore(point)
        assert ok(session.run("x")) == "1"


@pytest.mark.parametrize(
    "raised",
    [
        "resource.setrlimit(resource.RLIMIT_NPROC, (1000, resource.getrlimit(resource.RLIMIT_NPROC)[1]))",
        "resource.prlimit(0, resource.RLIMIT_NPROC, (1000, resource.getrlimit(resource.RLIMIT_NPROC)[1]))",
        "libc.prlimit(0, ctypes.c_ulong(6 | 1 << 32), struct.pack('QQ', 1000, 2 ** 64 - 1), None)",
    ],
)
def test_no_session_gives_itself_more_processes(forks: list[JailSession], raised: str) -> None:
    code = "import ctypes, resource, struct\nlibc = ctypes.CDLL(None)\ntry: "
    ok(forks[0].run(f"{code}{raised}\nexcept (OSError, ValueError): pass"))
    assert holds_its_share(forks[0])
    assert ok(forks[1].run("subprocess.run(['true']).returncode")) == "0"


def test_a_session_can_be_forked_as_soon_as_it_is_open(box: JailExecutor) -> None:
    for _ in range(20):
        with box.open(limits=LIMITS) as session, session.fork() as fork:
            assert ok(fork.run("1 + 1")) == "2"


OTHERS = """
import ctypes, os, time
libc, found = ctypes.CDLL(None, use_errno=True), []
at, size = ctypes.c_void_p(), ctypes.c_size_t()
for pid in range(2, 40):
    for kind in (2, 6):  # of all its threads, of one
        try: found.append((pid, time.clock_gettime((~pid << 3) | kind)))
        except OSError as error: assert error.errno == 1, error
    if libc.syscall({list}, pid, ctypes.byref(at), ctypes.byref(size)) == 0: found.append((pid, at.value))
own = time.clock_gettime(-6), time.clock_gettime(-2), time.process_time(), time.thread_time()
print(found, min(own) > 0, libc.syscall({list}, 0, ctypes.byref(at), ctypes.byref(size)))
"""


def test_no_fork_sees_the_clocks_and_the_lists_of_another(box: JailExecutor) -> None:
    """A process sets the list of its locks itself, and how long it computes, by which one could tell another something."""
    number = {"x86_64": 274, "aarch64": 100}[platform.machine()]
    with box.open(limits=LIMITS) as session:
        session.run("x = 1")
        left, right = session.fork(2)
        with left, right:
            left.run("x = 2")
            result = right.run(OTHERS.format(list=number))
    assert result.stdout == "[] True 0\n", result
