"""What one run, session, fork or snapshot could learn of another or leave for it: memory, processes, sockets, descriptors.

Each attack is tried in several forms; none may find what it looks for, and the program that looks must itself have worked.
"""

import secrets
import threading
import time
from dataclasses import replace

import pytest

from agentenv.errors import SnapshotRefused
from agentenv.sandbox.executor import JailExecutor
from agentenv.sandbox.types import ExecResult, ExecStatus, ExecutionLimits, FunctionCall


@pytest.fixture(name="box")
def _box(box_of_module: JailExecutor) -> JailExecutor:
    return box_of_module


LIMITS = ExecutionLimits(wall_s=20.0, cpu_s=10.0)

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
    """How often a later run finds the mark."""
    result = box.run(look(left, right), limits=LIMITS)
    assert result.status is ExecStatus.OK, result
    found, seen = map(int, result.stdout.split())
    assert seen > 1 << 20
    return found


SIZES = (24, 4000, 300_000)
"""Of the same mark: in an arena, in a bin of its own, and mapped."""


WAYS = {
    **dict.fromkeys(
        ("code", "stdin", "arguments", "files", "output", "returned", "collected", "a failure"), ExecStatus.OK
    ),
    "a death": ExecStatus.KILLED,
    "a limit": ExecStatus.OOM,
}
"""How a text comes into a run or out of it, and how that run ends."""


def passed(box: JailExecutor, way: str, text: str) -> ExecResult:
    """A run that gets or gives ``text`` in the given way."""
    printing = f"m = bytes.fromhex({text.encode().hex()!r}).decode()\n"
    match way:
        case "code":
            return box.run(f"x = {text!r}")
        case "stdin":
            return box.run("input()", stdin=text)
        case "arguments":
            return box.run("def f(x): pass", calls=[FunctionCall("f", (text,))])
        case "files":
            return box.run("open('f').read()", files={"f": text.encode()})
        case "output":
            return box.run(f"{printing}print(m)")
        case "collected":
            return box.run(f"{printing}open('f', 'w').write(m)", collect=["f", "g"])
        case "a failure":
            code = f"{printing}def f(x): raise ValueError(m + x)"
            return box.run(code, calls=[FunctionCall("f", (text,))], variables=True)
        case "a death":
            return box.run(f"{printing}print(m, flush=True)\nimport os; os.kill(os.getpid(), 9)", stdin=text)
        case "a limit":
            code = f"{printing}print(m, flush=True)\nheld = [m] * (1 << 30)"
            return box.run(code, stdin=text, files={"f": text.encode()})
        case _:
            return box.run(f"{printing}def f(): return m", calls=[FunctionCall("f")])


@pytest.mark.parametrize("way", WAYS)
def test_no_later_run_finds_an_earlier_one_in_its_memory(box: JailExecutor, way: str) -> None:
    mark, left, right = halves()
    for size in SIZES * 2:
        result = passed(box, way, mark * (size // 24))
        assert result.status is WAYS[way], result
        assert found_in(box, left, right) == 0


def test_nothing_of_a_session_is_found_by_later_runs_sessions_and_interpreters(box: JailExecutor) -> None:
    mark, left, right = halves()
    with box.open(limits=LIMITS, files={"f": mark.encode() * 4000}) as session:
        for size in SIZES:
            assert session.run(f"x = {mark * (size // 24)!r}\nprint(x)").ok
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


PARENT = "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
CLONES = {
    "CLONE_PARENT": "libc.syscall(56, 0x8000 | 17, 0, 0, 0, 0)",
    "with shared memory": "libc.syscall(56, 0x8000 | 0x100 | 17, 0, 0, 0, 0)",
    "with shared files": "libc.syscall(56, 0x8000 | 0x400 | 0x200 | 17, 0, 0, 0, 0)",
    "without a signal": "libc.syscall(56, 0x8000, 0, 0, 0, 0)",
    "with high bits": "libc.syscall(56, ctypes.c_long(0x7_0000_8011), 0, 0, 0, 0)",
}


@pytest.mark.parametrize("clone", CLONES)
def test_no_process_makes_a_sibling_of_itself(box: JailExecutor, clone: str) -> None:
    code = f"{PARENT}print({CLONES[clone]}, ctypes.get_errno(), libc.syscall(435, 0, 0), ctypes.get_errno())"
    assert box.run(code, limits=LIMITS).stdout.split() == ["-1", "1", "-1", "38"]
    with box.open(limits=LIMITS) as session:
        for _ in range(2):
            assert session.run(code).stdout.split() == ["-1", "1", "-1", "38"]
            session.snapshot()


UNREWINDABLE = {
    "anonymous shared memory": ("import mmap\nm = mmap.mmap(-1, 4096)", "anonymous shared"),
    "large shared memory": ("import mmap\nm = mmap.mmap(-1, 9 << 20)", "anonymous shared"),
    "shared zeros": (
        "import mmap\nwith open('/dev/zero', 'r+b') as f: m = mmap.mmap(f.fileno(), 4096)",
        "anonymous shared",
    ),
    "a file that is mapped": (
        "import mmap\nopen('f', 'wb').write(bytes(4096))\nwith open('f', 'r+b') as f: m = mmap.mmap(f.fileno(), 0)",
        "'f'",
    ),
    "a file that is mapped for itself": (
        "import mmap\nopen('f', 'wb').write(bytes(4096))\n"
        "with open('f', 'rb') as f: m = mmap.mmap(f.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)",
        "'f'",
    ),
    "a deleted file that is mapped": (
        "import mmap, os\nopen('f', 'wb').write(bytes(4096))\n"
        "with open('f', 'r+b') as f: m = mmap.mmap(f.fileno(), 0)\nos.unlink('f')",
        "'f'",
    ),
    "a pipe": ("import os\nends = os.pipe()", "a pipe"),
    "a socket pair": ("import socket\nends = socket.socketpair()", "a socket"),
    "a deleted file": (
        "import os\nf = open('gone', 'w+')\nos.unlink('gone')",
        "deleted file 'gone'",
    ),
    "a temporary file": ("import tempfile\nf = tempfile.TemporaryFile()", "deleted file"),
    "a file of the system": ("f = open('/usr/lib/os-release')\nf.read(3)", "os-release"),
    "a folder": ("import os\nf = os.open('.', os.O_RDONLY)", "'work'"),
    "its own output once more": ("import os\nf = os.dup(1)", "a copy"),
    "an event": ("import os\nf = os.eventfd(3)", "eventfd"),
    "an epoll": ("import select\nf = select.epoll()", "eventpoll"),
    "an alarm": ("import signal\nsignal.signal(14, lambda *a: 0)\nsignal.alarm(60)", "timer"),
    "a timer that repeats": ("import signal\nsignal.setitimer(signal.ITIMER_PROF, 60, 60)", "timer"),
    "a timer of the kernel": (
        "import ctypes\ntimer = ctypes.c_void_p()\nctypes.CDLL(None).timer_create(1, None, ctypes.byref(timer))",
        "timer",
    ),
    "a signal that waits": (
        "import os, signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, {10})\nos.kill(os.getpid(), 10)",
        "signal waits",
    ),
}


def test_no_memory_is_left_out_of_a_snapshot(box: JailExecutor) -> None:
    """Marked as MADV_DONTFORK (10) or MADV_WIPEONFORK (18), it would be missing in the fork that goes on, or empty.

    So would be a mapping that is MAP_DROPPABLE (8) from the first, as Linux 6.11 and later have it.
    """
    droppable = "ctypes.CDLL(None).mmap(None, ctypes.c_size_t(4096), 3, 0x28, -1, ctypes.c_long(0))"
    code = (
        "import mmap\nparts = [mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) for _ in range(2)]\n"
        "for part, advice in zip(parts, (10, 18)):\n part[:3] = b'abc'\n try: part.madvise(advice)\n except OSError: pass"
    )
    with box.open(limits=LIMITS) as session:
        assert session.run(code).ok
        point = session.snapshot()
        assert session.run("[part[:3] for part in parts]").value == "[b'abc', b'abc']"
        session.restore(point)
        assert session.run("[part[:3] for part in parts]").value == "[b'abc', b'abc']"
        assert session.run(f"import ctypes\n{droppable}").value == "-1"


def test_a_timer_that_was_taken_back_refuses_no_snapshot(box: JailExecutor) -> None:
    with box.open(limits=LIMITS) as session:
        assert session.run("import signal\nsignal.alarm(60)\nleft = signal.alarm(0)").ok
        point = session.snapshot()
        session.run("left = 0")
        session.restore(point)
        assert session.run("left > 50").value == "True"


@pytest.mark.parametrize("held", UNREWINDABLE)
def test_what_cannot_be_rewound_refuses_a_snapshot_by_name(box: JailExecutor, held: str) -> None:
    code, name = UNREWINDABLE[held]
    with box.open(limits=LIMITS) as session:
        assert (
            session.run("x = 1\nopen('/usr/lib/os-release').close()").status is not ExecStatus.SANDBOX_ERROR
        )
        assert session.snapshot()
        result = session.run(code)
        if "os-release" in name and not result.ok:
            pytest.skip("this jail has no such file")
        assert result.ok, result
        with pytest.raises(SnapshotRefused, match=name):
            session.snapshot()
        assert session.run("x").value == "1"


def test_no_session_has_memory_files_sockets_or_sight_of_other_processes(box: JailExecutor) -> None:
    code = (
        "import os, socket\nshown = []\n"
        "for act in (lambda: os.memfd_create('x'), lambda: socket.socket(), lambda: socket.socket(socket.AF_UNIX),\n"
        "  lambda: socket.socketpair(type=socket.SOCK_DGRAM), lambda: socket.socketpair(type=socket.SOCK_DGRAM | 0x80000),\n"
        "  lambda: os.sched_getaffinity(1), lambda: os.getpriority(os.PRIO_PROCESS, 1),\n"
        "  lambda: open('/proc/1/stat'), lambda: open('/proc/self/mem'), lambda: os.listdir('/proc')[0]):\n"
        " try: shown.append(act())\n except (OSError, IndexError): pass\nshown"
    )
    with box.open(limits=LIMITS) as session:
        assert session.run(code).value == "[]"


PATCHES = {
    "setsid": "os.setsid = lambda: None",
    "dup2": "os.dup2 = lambda *a: None",
    "close": "os.close = lambda fd: None",
    "one process more": "old = os.setsid\ndef setsid():\n old()\n os.fork()\nos.setsid = setsid",
    "another process greets": "def setsid():\n if os.fork(): os._exit(0)\nos.setsid = setsid",
    "shared memory": (
        "import mmap\nold = os.setsid\ndef setsid():\n old()\n global m\n m = mmap.mmap(-1, 4096)\nos.setsid = setsid"
    ),
    "a thread": (
        "import threading, time\nold = os.setsid\n"
        "def setsid():\n old()\n threading.Thread(target=time.sleep, args=(60,)).start()\nos.setsid = setsid"
    ),
    "everything": "for name in ('setsid', 'dup2', 'close', 'fork', 'kill', 'getpid'): setattr(os, name, lambda *a: 0)",
}


@pytest.mark.parametrize("patch", PATCHES)
def test_a_patched_fork_is_refused_or_harmless(box: JailExecutor, patch: str) -> None:
    with box.open(limits=LIMITS) as session:
        session.run("import os, posix, time\nx = [1]")
        first = session.snapshot()
        session.run(PATCHES[patch])
        try:
            left, right = session.fork(2)
        except SnapshotRefused:
            left, right = (None, None)
        if left is not None and right is not None:
            left.run("posix.kill(0, 9)")
            assert right.run("x").value == "[1]"
            left.close()
            right.close()
        session.restore(first)
        assert session.run("x").value == "[1]"


NETWORK = {
    "closed connections": (
        "s = socket.socket(); s.bind(('127.0.0.1', 23456)); s.listen(9)\nfor _ in range({count}):\n"
        " c = socket.create_connection(('127.0.0.1', 23456)); d, _ = s.accept(); d.close(); c.recv(1); c.close()"
    ),
    "closed connections of the other family": (
        "s = socket.socket(socket.AF_INET6); s.bind(('::', 23456)); s.listen(9)\nfor _ in range({count}):\n"
        " c = socket.create_connection(('127.0.0.1', 23456)); d, _ = s.accept(); d.close(); c.recv(1); c.close()"
    ),
    "datagrams": (
        "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('127.0.0.1', 0))\n"
        "for _ in range({count}): s.sendto(b'x', s.getsockname()); s.recv(1)"
    ),
    "datagrams to nobody": (
        "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "for _ in range({count}): s.sendto(b'x', ('127.0.0.1', 9))"
    ),
}
LEFT = """
import socket
for name in ("snmp", "netstat", "dev", "tcp", "tcp6", "udp"):
    try:
        with open(f"/proc/self/net/{name}") as shown: print(name, shown.read())
    except FileNotFoundError: pass
s = socket.socket()
s.bind(("127.0.0.1", 23456))
"""


@pytest.mark.parametrize("form", NETWORK)
def test_no_run_finds_what_an_earlier_one_did_with_the_network(box: JailExecutor, form: str) -> None:
    """Its counters, and the ports of connections that the kernel remembers for a minute."""
    clean = box.run(LEFT, limits=LIMITS)
    assert clean.status is ExecStatus.OK, clean
    for count in (3, 200):
        for domain in ("", "first"):
            used = box.run(
                f"import socket\n{NETWORK[form].format(count=count)}", limits=LIMITS, domain=domain
            )
            assert used.status is ExecStatus.OK, used
            for later in (domain, "second"):
                assert box.run(LEFT, limits=LIMITS, domain=later).stdout == clean.stdout


MEETS = {
    "by a port": "s = socket.socket(); s.bind(('127.0.0.1', 23456)); s.listen(9)",
    "by a name": "s = socket.socket(socket.AF_UNIX); s.bind('\\0meet'); s.listen(9)",
    "by datagrams": "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('127.0.0.1', 23456))",
}
REACHES = {
    "by a port": "socket.create_connection(('127.0.0.1', 23456), 1)",
    "by a name": "socket.socket(socket.AF_UNIX).connect('\\0meet')",
    "by datagrams": "t = socket.socket(2, 2); t.connect(('127.0.0.1', 23456)); t.send(b'x'); t.send(b'x'); t.send(b'x')",
}


@pytest.mark.parametrize("way", MEETS)
def test_two_runs_at_the_same_time_do_not_meet_even_in_one_domain(box: JailExecutor, way: str) -> None:
    waits = f"import socket, time\n{MEETS[way]}\ntime.sleep(1.2)"
    waiting = threading.Thread(target=box.run, args=(waits,), kwargs={"limits": LIMITS, "domain": "one"})
    waiting.start()
    time.sleep(0.6)
    code = f"import socket\ntry: {REACHES[way]}; print('met')\nexcept OSError: print('alone')"
    assert box.run(code, limits=LIMITS, domain="one").stdout == "alone\n"
    alone = f"import socket\n{MEETS[way]}\n{REACHES[way]}\nprint('met')"
    assert box.run(alone, limits=LIMITS, domain="one").stdout == "met\n"
    waiting.join()


STAYS = {
    "chdir does nothing": "os.chdir = lambda *a: None",
    "chdir raises": "def chdir(*a): raise OSError\nos.chdir = chdir",
    "chdir comes back": "real = os.chdir\ndef chdir(*a):\n real('/')\n real('/box/work')\nos.chdir = chdir",
    "another folder": "os.mkdir('d'); os.chdir('d'); os.chdir = lambda *a: None",
    "a folder for temporary files": "os.chdir('/box/tmp'); os.chdir = lambda *a: None",
}


@pytest.mark.parametrize("form", STAYS)
def test_no_two_forks_stand_in_the_same_folder(box: JailExecutor, form: str) -> None:
    """Once its files are exchanged it has no name any more, but still a mode and times that both can read and set."""
    look = "(oct(os.stat('.').st_mode), os.stat('.').st_mtime_ns)"
    with box.open(limits=LIMITS) as session:
        session.run(f"import os\n{STAYS[form]}")
        try:
            point = session.snapshot()
            left, right = session.fork(2)
        except SnapshotRefused:
            return
        before = right.run(look).value
        left.run("os.chmod('.', 0o711); os.utime('.', (1, 1))")
        assert right.run(look).value == before
        session.restore(point)
        assert "0o40711" not in str(session.run(look).value)
        left.close()
        right.close()


def test_a_process_that_left_its_program_runs_no_more_after_a_restore(box: JailExecutor) -> None:
    leave = (
        "import ctypes, os, time\nctypes.CDLL(None).prctl({option}, 1, 0, 0, 0)\n"
        "if os.fork() == 0:\n os.setsid()\n if os.fork() == 0:\n"
        "  while True:\n   open('ghost', 'a').write('x')\n   time.sleep(0.002)\n os._exit(0)\nos.wait(); None"
    )
    for option in (36, 0):  # PR_SET_CHILD_SUBREAPER, and a call that fails
        with box.open(limits=LIMITS) as session:
            session.run("import ctypes\nctypes.CDLL(None).prctl(36, 1, 0, 0, 0)\nimport os, time; None")
            point = session.snapshot()
            fork = session.fork()
            session.run(leave.format(option=option))
            session.restore(point)
            for one in (fork, session):
                assert one.run("time.sleep(0.1); os.path.exists('ghost')").value == "False"
            fork.close()


def test_a_snapshot_does_not_see_what_came_later(box: JailExecutor) -> None:
    """The program's own Python runs while a frozen interpreter forks; it remembers all that it can find."""
    spy = (
        "import os, time\nfound, old = [], os.close\ndef close(fd):\n"
        " found.append((os.listdir('/box/work'), os.listdir('/tmp')))\n"
        " try: found.append(os.wait4(-1, os.WNOHANG))\n except OSError: pass\n old(fd)\nos.close = close"
    )
    with box.open(limits=LIMITS) as session:
        session.run(spy)
        point = session.snapshot()
        for code in (7, 9):
            session.run("open('later', 'w').write('x'); open('/tmp/later', 'w').write('x')")
            session.run(f"import posix; posix._exit({code})")
            session.restore(point)
        shown = session.run("'later' in repr(found), [one for one in found if not isinstance(one[0], list)]")
        assert shown.value == "(False, [])", shown


SHARED_FILES = "PATHS = (os.__file__, '/usr/bin/env', '/dev/null', '/dev/zero', '/dev/urandom')\n"
LOOK_AROUND = f"""
import ctypes, fcntl, os, struct
{SHARED_FILES}
def look():
    seen = []
    for path in filter(os.path.exists, PATHS):
        times = os.stat(path)
        with open(path, 'rb') as f:
            for kind in (fcntl.F_WRLCK, fcntl.F_RDLCK):
                found = fcntl.fcntl(f, fcntl.F_GETLK, struct.pack('hhqqi', kind, 0, 0, 0, 0))
                seen.append(struct.unpack('hhqqi', found[:28])[:1] + (kind,))
            for act in (lambda: fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB), lambda: fcntl.flock(f, fcntl.LOCK_UN)):
                try: seen.append(act())
                except OSError as error: seen.append(error.errno)
        seen.append((times.st_mtime_ns, times.st_ctime_ns, times.st_mode))
    return seen
"""
TELL = f"""
import fcntl, os, struct, sys, time
{SHARED_FILES}
held = []
for path in filter(os.path.exists, PATHS):
    held.append(open(path, 'r+b' if '/dev/' in path and 'random' not in path else 'rb'))
    for act in (lambda f: fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB), lambda f: fcntl.lockf(f, fcntl.LOCK_EX, 3, 1),
      lambda f: fcntl.lockf(f, fcntl.LOCK_SH, 5, 2), lambda f: os.utime(path), lambda f: os.utime(path, (1, 1)),
      lambda f: fcntl.fcntl(f, 37, struct.pack('hhqqi4x', fcntl.F_RDLCK, 0, 9, 9, 0)), lambda f: os.chmod(path, 0o600),
      lambda f: fcntl.fcntl(f, 1024, fcntl.F_RDLCK), lambda f: os.setxattr(path, 'user.x', b'1')):
        try: act(held[-1])
        except OSError: pass
'told'
"""


def test_sessions_of_one_jail_and_runs_of_others_tell_each_other_nothing_by_what_they_share(
    box: JailExecutor,
) -> None:
    """What they have in common are files of the system and devices, which none may mark, lock or watch."""
    with box.open(limits=LIMITS) as teller, box.open(limits=LIMITS) as listener:
        listener.run(LOOK_AROUND)
        before = listener.run("look()").value
        elsewhere = box.run(f"{LOOK_AROUND}\nprint(look())", domain="elsewhere").stdout.strip()
        assert teller.run(TELL).value == "'told'"
        assert listener.run("look()").value == before
        assert box.run(f"{LOOK_AROUND}\nprint(look())", domain="elsewhere").stdout.strip() == elsewhere
        assert "2" in elsewhere  # F_UNLCK: it could look


def test_nobody_learns_which_files_others_open(box: JailExecutor) -> None:
    watch = (
        "import ctypes, fcntl, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "shown = [libc.inotify_init(), libc.inotify_init1(0o4000), libc.fanotify_init(0, 0)]\n"
        "fd = os.open(os.path.dirname(os.__file__), os.O_RDONLY)\n"
        "try: shown.append(fcntl.fcntl(fd, 1026, 1))\nexcept OSError: shown.append(-1)\nos.close(fd)\nprint(shown)"
    )
    assert box.run(watch).stdout == "[-1, -1, -1, -1]\n"
    with box.open(limits=LIMITS) as session:
        assert session.run(watch).stdout == "[-1, -1, -1, -1]\n"


def test_a_library_that_locks_its_own_file_works(box: JailExecutor) -> None:
    code = (
        "import fcntl, sqlite3\nfor value in (1, 2):\n with sqlite3.connect('d') as db:\n"
        "  db.execute('create table if not exists t (a)'); db.execute('insert into t values (?)', (value,))\n"
        "with open('f', 'w') as f: fcntl.flock(f, fcntl.LOCK_EX); fcntl.lockf(f, fcntl.LOCK_UN)\n"
        "print(db.execute('select a from t').fetchall())"
    )
    assert box.run(code).stdout == "[(1,), (2,)]\n"
    with box.open(limits=LIMITS) as session:
        assert session.run(code).stdout == "[(1,), (2,)]\n"


def test_a_fork_bomb_takes_no_process_from_its_neighbour(box: JailExecutor) -> None:
    innocent = (
        "import os, threading, time\nfor _ in range(8):\n children = []\n for _ in range(6):\n  pid = os.fork()\n"
        "  if pid == 0: os._exit(0)\n  children.append(pid)\n for pid in children: os.waitpid(pid, 0)\n"
        " threads = [threading.Thread(target=time.sleep, args=(0.001,)) for _ in range(6)]\n"
        " for thread in threads: thread.start()\n for thread in threads: thread.join()\nprint('done')"
    )
    for bomb in (
        "import os, time\nwhile 1:\n try: os.fork()\n except OSError: time.sleep(0.01)",
        "import threading, time\nwhile 1:\n try: threading.Thread(target=time.sleep, args=(9,)).start()\n"
        " except RuntimeError: time.sleep(0.01)",
    ):
        limits = replace(LIMITS, wall_s=1.5, processes=40)
        thread = threading.Thread(target=box.run, args=(bomb,), kwargs={"limits": limits})
        thread.start()
        try:
            for _ in range(3):
                result = box.run(innocent, limits=replace(LIMITS, processes=20))
                assert result.stdout == "done\n", result
        finally:
            thread.join()


SMALL = replace(LIMITS, memory_mb=96)
HOLD = "import ctypes, mmap, os, time\ndef fill(m):\n for at in range(0, len(m), 4096): m[at] = 1\n"
HOARDS = {
    "dropped by many": (
        f"{HOLD}for _ in range(5):\n if os.fork() == 0:\n"
        "  m = mmap.mmap(-1, 60 << 20); fill(m); m.madvise(mmap.MADV_DONTNEED); time.sleep(60)\ntime.sleep(60)"
    ),
    "filled by others": (
        f"{HOLD}kept = []\nfor _ in range(2):\n m = mmap.mmap(-1, 30 << 20); kept.append(m)\n if os.fork() == 0:\n"
        "  fill(m); os._exit(0)\n os.wait()\nfor _ in range(3):\n if os.fork() == 0:\n"
        "  m = mmap.mmap(-1, 30 << 20); fill(m); m.madvise(4); time.sleep(60)\ntime.sleep(60)"
    ),
    "zeros": (
        f"{HOLD}for _ in range(4):\n if os.fork() == 0:\n  f = open('/dev/zero', 'r+b')\n"
        "  m = mmap.mmap(f.fileno(), 60 << 20); fill(m); m.madvise(mmap.MADV_DONTNEED); time.sleep(60)\ntime.sleep(60)"
    ),
    "in small parts": (
        f"{HOLD}for _ in range(8):\n if os.fork() == 0:\n  for _ in range(20):\n"
        "   m = mmap.mmap(-1, 1 << 20); fill(m); m.madvise(4); globals().setdefault('k', []).append(m)\n"
        "  time.sleep(60)\ntime.sleep(60)"
    ),
}


QUEUES = """
import os, socket, time
for _ in range(30):
    if os.fork() == 0:
        held = []
        while len(held) < 40:
            for end in socket.socketpair():
                end.setblocking(False)
                held.append(end)
        for end in held:
            try:
                while True: end.send(bytes(65536))
            except BlockingIOError: pass
        time.sleep(60)
time.sleep(60)
"""


def test_memory_in_the_queues_of_sockets_counts(box: JailExecutor) -> None:
    assert box.run(QUEUES, limits=SMALL).status is ExecStatus.OOM
    few = "import socket\nheld = [socket.socketpair() for _ in range(10)]\nheld[0][0].send(bytes(9000))\nprint('ok')"
    assert box.run(few, limits=SMALL).stdout == "ok\n"


@pytest.mark.parametrize("hoard", HOARDS)
def test_shared_memory_that_no_process_has_resident_counts(box: JailExecutor, hoard: str) -> None:
    result = box.run(HOARDS[hoard], limits=SMALL)
    assert result.status is ExecStatus.OOM, result


REGIONS = """
import ctypes, os, time
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
for _ in range({processes} - 1):
    if os.fork() == 0: break
size = {regions} * 8192
at = libc.mmap(None, ctypes.c_size_t(size), 0, 0x22, -1, 0)
for step in range(0, size, 8192):
    libc.mprotect(ctypes.c_void_p(at + step), 4096, {access})
time.sleep(60)
"""


@pytest.mark.parametrize("access", [1, 3])
@pytest.mark.parametrize(("processes", "regions"), [(56, 5_000), (24, 9_000)])
def test_regions_without_pages_count_with_what_the_kernel_needs_for_them(
    box: JailExecutor, processes: int, regions: int, access: int
) -> None:
    code = REGIONS.format(processes=processes, regions=regions, access=access)
    result = box.run(code, limits=replace(LIMITS, memory_mb=80))
    assert result.status is ExecStatus.OOM, result
    with box.open(limits=replace(LIMITS, memory_mb=80)) as session:
        assert session.run(code).status is ExecStatus.OOM
        assert session.run("6 * 7").value == "42"


def test_no_memory_can_be_held_without_being_mapped(box: JailExecutor) -> None:
    code = (
        "import ctypes, fcntl, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "for number in (319, 447): print(libc.syscall(number, b'x', 0), end=' ')\n"
        "try: os.pwrite(0, b'x' * 4096, 1 << 20); print('wrote')\nexcept OSError: pass\n"
        "try: os.ftruncate(0, 1 << 22); print('grew')\nexcept OSError: pass\n"
        "try: fcntl.fcntl(os.pipe()[1], 1031, 1 << 20); print('larger')\nexcept OSError: pass"
    )
    assert box.run(code, stdin="abc", limits=LIMITS).stdout.split() == ["-1", "-1"]


def test_shared_memory_of_libraries_works(box: JailExecutor) -> None:
    code = (
        "import mmap, multiprocessing, numpy, tempfile\n"
        "def double(x): return 2 * x\n"
        "m = mmap.mmap(-1, 1 << 20); m[5] = 7\n"
        "a = numpy.ndarray((100,), dtype=numpy.int64, buffer=m, offset=4096); a[:] = 3\n"
        "array, value = multiprocessing.Array('i', 10), multiprocessing.Value('d', 0.5)\n"
        "with multiprocessing.Pool(2) as pool: print(pool.map(double, [1, 2, 3]))\n"
        "q = multiprocessing.Queue(); q.put(5); print(q.get(), m[5], int(a.sum()), array[0], value.value)\n"
        "f = numpy.memmap('f', dtype='uint8', mode='w+', shape=(1000,)); f[:] = 1; print(int(f.sum()))\n"
        "del a, f"
    )
    assert box.run(code, limits=LIMITS).stdout == "[2, 4, 6]\n5 7 300 0 0.5\n1000\n"
