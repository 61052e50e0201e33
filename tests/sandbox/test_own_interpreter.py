"""What a program does to its interpreter itself, by the kernel or by Python: its own result, and no fork pays.

Each form is tried in a fork that has a sibling and a snapshot, then used, frozen and rewound as any other.
"""

import contextlib

import pytest

from agentenv.errors import SnapshotRefused, StateLost
from agentenv.sandbox.executor import JailExecutor
from agentenv.sandbox.jail_session import JailSession
from agentenv.sandbox.types import ExecResult, ExecStatus, ExecutionLimits

LIMITS = ExecutionLimits(wall_s=3.0, memory_mb=128, processes=16)
FORM_S = 0.7
"""Seconds for a cell of the fork, of which many wait until they are stopped; what must be unharmed has all of its own."""
LINK = """
import json, os, stat, struct, time
link = -1
for fd in range(3, 60):
    try:
        if stat.S_ISSOCK(os.fstat(fd).st_mode): link = fd
    except OSError: pass
def say(**fields):
    text = json.dumps({'ok': True, 'value': '1', 'error': None, 'folder': '/', 'digest': '', **fields}).encode()
    left = struct.pack('>I', len(text)) + text
    while left: left = left[os.write(link, left):]
"""
FILTER = """
import ctypes, struct
libc, program = ctypes.CDLL(None), b''.join(struct.pack('HBBI', *line) for line in {lines})
class Program(ctypes.Structure): _fields_ = [('count', ctypes.c_ushort), ('lines', ctypes.c_void_p)]
text = ctypes.create_string_buffer(program, len(program))
libc.prctl(22, 2, ctypes.byref(Program(len(program) // 8, ctypes.addressof(text))))
"""
KILL, DENY, PRETEND, ALLOW = 0x80000000, 0x00050000 | 11, 0x00050000, 0x7FFF0000


def filter_of(number: int, action: int) -> str:
    """A filter of its own that takes ``action`` at one system call."""
    return FILTER.format(lines=[(0x20, 0, 0, 0), (0x15, 0, 1, number), (6, 0, 0, action), (6, 0, 0, ALLOW)])


FORMS = {
    "all limits at zero": (
        "import resource\nfor kind in range(16):\n try: resource.setrlimit(kind, (0, 0))\n"
        " except (OSError, ValueError): pass"
    ),
    "no descriptors": "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))",
    "no stack": "import resource\nresource.setrlimit(resource.RLIMIT_STACK, (4096, 4096))",
    "a filter that kills at every call": FILTER.format(lines=[(6, 0, 0, KILL)]),
    "a filter that kills when it forks": filter_of(56, KILL),
    "a filter that denies forks": filter_of(56, DENY),
    "a filter that pretends to be the fork": filter_of(56, PRETEND),
    "a filter that pretends to have read": filter_of(0, PRETEND),
    "a filter that pretends to have written": filter_of(44, PRETEND),
    "files forbidden by landlock": (
        "import ctypes, os, struct\nlibc = ctypes.CDLL(None)\n"
        "fd = libc.syscall(444, struct.pack('Q', (1 << 13) - 1), 8, 0)\n"
        "if fd >= 0: libc.syscall(446, fd, 0); os.close(fd)"
    ),
    "a closed link": f"{LINK}os.close(link)",
    "a file for a link": f"{LINK}os.dup2(os.open('z', os.O_RDWR | os.O_CREAT), link)",
    "its output for a link": f"{LINK}os.dup2(1, link)",
    "the link for its output": f"{LINK}os.dup2(link, 1); os.dup2(link, 2)\nprint('x' * 100)",
    "a link that a child keeps": f"{LINK}if os.fork() == 0: time.sleep(600)\nos._exit(0)",
    "a link that another program keeps": (
        f"{LINK}os.set_inheritable(link, True)\nos.execv('/usr/bin/sleep', ['sleep', '600'])"
    ),
    "an answer and death": f"{LINK}say()\nos._exit(0)",
    "two thousand answers": f"{LINK}for _ in range(2000): say()",
    "an answer of almost all that fits": f"{LINK}say(folder='/' + 'x' * 900_000, digest='d' * 90_000)\ntime.sleep(0.3)",
    "a folder of no name": f"{LINK}say(folder='\\0')",
    "a folder of half a letter": f"{LINK}say(folder='\\ud800', digest='\\udc00')",
    "what a new interpreter says first": f"{LINK}os.write(link, struct.pack('>I', 2) + b'{{}}')",
    "stopped by itself": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    "a child for which it waits in the kernel": "import ctypes, time\nctypes.CDLL(None).syscall(58)\ntime.sleep(600)",
    "an audit hook that raises": "import sys\ndef hook(*a): raise RuntimeError\nsys.addaudithook(hook)",
    "a trace that raises": "import sys\ndef trace(*a): raise KeyboardInterrupt\nsys.settrace(trace)\nsys.setprofile(trace)",
    "hardly any recursion": (
        "import sys\nframe, depth = sys._getframe(), 0\nwhile frame: frame, depth = frame.f_back, depth + 1\n"
        "sys.setrecursionlimit(depth + 6)"
    ),
    "a collector that ends it": "import gc, os\ngc.callbacks.append(lambda *a: os._exit(3)); gc.set_threshold(1)",
    "a timer that raises": (
        "import signal\ndef ring(*a): raise SystemExit\nsignal.signal(signal.SIGALRM, ring)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)"
    ),
    "no interrupt": (
        "import signal\nsignal.signal = lambda *a: None\nwhile True:\n try:\n  while True: pass\n except BaseException: pass"
    ),
    "the lowest priority": "import os\nos.sched_setscheduler(0, 5, os.sched_param(0))\nos.nice(19)",
    "signals that wait": (
        "import ctypes, os, signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(34, 64))\n"
        "for _ in range(5000): ctypes.CDLL(None).sigqueue(os.getpid(), 40, 0)"
    ),
    "another working folder": "import os\nos.rename('/box/work', '/box/shm/w'); os.rename('/box/shm', '/box/work')",
    "no temporary folders": "import os\nos.rmdir('/box/tmp'); os.rmdir('/box/shm'); os.symlink('/nowhere', '/box/tmp')",
    "attributes without number": (
        "import os\nopen('a', 'w').close()\n"
        "try:\n for number in range(10_000): os.setxattr('a', f'user.{number}', bytes(60_000))\nexcept OSError: pass"
    ),
    "a list of who may enter": (
        "import os\nlist_ = '0200000001000000ffffffff04000000ffffffff20000000ffffffff'\n"
        "try: os.setxattr('.', 'system.posix_acl_access', bytes.fromhex(list_))\nexcept OSError: pass"
    ),
}


@pytest.fixture(name="box")
def _box(box_of_module: JailExecutor) -> JailExecutor:
    return box_of_module


def own(result: ExecResult) -> None:
    assert result.status is not ExecStatus.SANDBOX_ERROR, result


def unharmed(session: JailSession) -> None:
    result = session.run("(x, open('f').read())")
    assert (result.status, result.value) == (ExecStatus.OK, "([1], 'kept')"), result


@pytest.mark.parametrize("form", FORMS)
def test_what_a_program_does_to_its_interpreter_is_its_own_result(box: JailExecutor, form: str) -> None:
    with box.open(limits=LIMITS) as session:
        session.run("x = [1]\nopen('f', 'w').write('kept')")
        point = session.snapshot()
        with session.fork() as fork:
            own(fork.run(FORMS[form], wall_s=FORM_S))
            unharmed(session)
            frozen = None
            with contextlib.suppress(SnapshotRefused):
                frozen = fork.snapshot()
            own(fork.run("1", wall_s=FORM_S))
            own(fork.run("1", files={"g": b"1"}, wall_s=FORM_S))
            if frozen is not None:
                with contextlib.suppress(StateLost):
                    fork.restore(frozen)
                own(fork.run("1", wall_s=FORM_S))
            unharmed(session)
        session.restore(point)
        unharmed(session)
