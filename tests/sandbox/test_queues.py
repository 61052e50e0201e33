"""What a program holds in queues of the kernel counts: connections that nobody accepts, pipes with names, signals.

Each is far more than the limit of its program, and the same in small works.
"""

from dataclasses import replace

import pytest

from agentenv.sandbox.executor import JailExecutor
from agentenv.sandbox.types import ExecStatus, ExecutionLimits

LIMITS = ExecutionLimits(wall_s=15.0, cpu_s=10.0, memory_mb=64)
FILL = """
import ctypes, os, platform, socket, threading, time
libc = ctypes.CDLL(None, use_errno=True)
libc.timer_create.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
def fill(end):
    end.setblocking(False)
    try:
        while True: end.send(bytes(65536))
    except BlockingIOError: pass
"""
BACKLOG = f"""{FILL}
server = socket.socket(socket.AF_UNIX)
server.bind("\\0x")
server.listen(500)
for _ in range({{count}}):
    with socket.socket(socket.AF_UNIX) as client:
        client.connect("\\0x")
        fill(client)
time.sleep({{seconds}})
print("held")
"""
ON_THEIR_WAY = f"""{FILL}
held = []
for _ in range({{count}}):
    first, second = socket.socketpair()
    ends = [end for _ in range(26) for end in socket.socketpair()]
    for end in ends: fill(end)
    socket.send_fds(first, [b"x"], [end.fileno() for end in ends])
    for end in ends: end.close()
    held += [first, second]
time.sleep({{seconds}})
print("held")
"""
NAMED = """
import os, time
for process in range({processes}):
    if os.fork(): continue
    for number in range({count}):
        os.mkfifo(f"f{count}_{{process}}_{{number}}")
        os.write(os.open(f"f{count}_{{process}}_{{number}}", os.O_RDWR | os.O_NONBLOCK), bytes(65536))
    time.sleep({seconds})
    os._exit(0)
time.sleep({seconds})
print("held")
"""


@pytest.fixture(name="box")
def _box(box_of_module: JailExecutor) -> JailExecutor:
    return box_of_module


def test_connections_that_nobody_accepts_count(box: JailExecutor) -> None:
    held = box.run(BACKLOG.format(count=400, seconds=5), limits=LIMITS)
    assert held.status is ExecStatus.OOM, held
    little = box.run(BACKLOG.format(count=3, seconds=0.2), limits=LIMITS)
    assert (little.status, little.stdout) == (ExecStatus.OK, "held\n"), little


def test_sockets_that_were_sent_and_not_received_count(box: JailExecutor) -> None:
    """104 are on their way, more than which the kernel lets no user have whose processes may have 64 descriptors."""
    held = box.run(ON_THEIR_WAY.format(count=2, seconds=5), limits=replace(LIMITS, memory_mb=32))
    assert held.status is ExecStatus.OOM, held


@pytest.mark.parametrize("session", [False, True], ids=["run", "session"])
def test_pipes_with_a_name_count(box: JailExecutor, session: bool) -> None:
    code, little = (
        NAMED.format(processes=20, count=55, seconds=5),
        NAMED.format(processes=2, count=5, seconds=0.2),
    )
    with box.open(limits=LIMITS) as opened:
        run = opened.run if session else lambda code: box.run(code, limits=LIMITS)
        assert run(little).stdout == "held\n"
        held = run(code)
    assert held.status is ExecStatus.OOM, held


@pytest.mark.parametrize("session", [False, True], ids=["run", "session"])
def test_no_program_takes_the_signals_and_timers_of_its_user(box: JailExecutor, session: bool) -> None:
    """The kernel bounds for each user how many signals may wait, and a timer is a signal that waits."""
    code = (
        f"{FILL}\ntimers, timer = 0, ctypes.c_void_p()\n"
        "while timers < 3000 and libc.timer_create(1, None, ctypes.byref(timer)) == 0: timers += 1\nprint(timers)"
    )
    with box.open(limits=LIMITS) as opened:
        result = opened.run(code) if session else box.run(code, limits=LIMITS)
    assert 100 < int(result.stdout) <= 1024, result


def test_libraries_that_move_files_and_serve_sockets_work(box: JailExecutor) -> None:
    """They use other ways where a call does not exist."""
    code = (
        "import multiprocessing, asyncio, shutil, socket, subprocess, sys, time\n"
        "open('a', 'wb').write(bytes(300_000)); shutil.copyfile('a', 'b')\n"
        "left, right = socket.socketpair(); left.settimeout(5)\n"
        "subprocess.run(['/bin/sh', '-c', 'exit 0'], check=True, close_fds=True)\n"
        "with open('a', 'rb') as f: print(left.sendfile(f, count=20_000), len(right.recv(20_000, socket.MSG_WAITALL)))\n"
        "async def serve():\n server = await asyncio.start_server(lambda r, w: w.close(), '127.0.0.1', 0)\n"
        " reader, _ = await asyncio.open_connection(*server.sockets[0].getsockname()); print(await reader.read())\n"
        "asyncio.run(serve())\n"
        "pair, pipe = multiprocessing.Pipe(), multiprocessing.Pipe(duplex=False)\npair[0].send(1)\n"
        "print(len(open('b', 'rb').read()), pair[1].recv(), time.process_time() > 0, time.thread_time() > 0)"
    )
    result = box.run(code, limits=ExecutionLimits(wall_s=15.0))
    assert result.stdout == "20000 20000\nb''\n300000 1 True True\n", result
