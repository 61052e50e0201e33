"""Memory that a program holds where nobody looks: behind a first thread that has ended, in descriptors that are not shown.

Each is tried in several sizes; an innocent program of the same form runs as any other.
"""

import platform
from dataclasses import replace

import pytest

from agentenv.sandbox.executor import JailExecutor
from agentenv.sandbox.types import ExecStatus, ExecutionLimits


@pytest.fixture(name="box")
def _box(box_of_module: JailExecutor) -> JailExecutor:
    return box_of_module


LIMITS = ExecutionLimits(wall_s=20.0, cpu_s=10.0, memory_mb=128)
LEADERS = """
import ctypes, os, threading, time
libc = ctypes.CDLL(None)
def hold(number):
    time.sleep(0.3 + 0.1 * number)  # the first thread has ended by then
    held = bytearray({mb} << 20)
    held[::4096] = b"x" * ({mb} << 8)
    time.sleep({seconds})
    os._exit(0)
for number in range({count}):
    if os.fork() == 0:
        threading.Thread(target=hold, args=(number,)).start()
        libc.syscall({exit}, 0)
time.sleep({seconds} / 2)
print("held", flush=True)
os._exit(0)
"""
EXIT = {"x86_64": 60, "aarch64": 93}
SIZES = [(4, 45), (8, 40), (20, 20)]
"""How many hold how many MiB each, within the address space that a program may take beside what it begins with.

A thread takes 8 MiB of it for its stack, and 64 for its heap wherever the layout happens to let the C library have them.
"""


def leaders(count: int, mb: int, seconds: float) -> str:
    return LEADERS.format(count=count, mb=mb, seconds=seconds, exit=EXIT[platform.machine()])


@pytest.mark.parametrize("session", [False, True], ids=["run", "session"])
@pytest.mark.parametrize(("count", "mb"), SIZES)
def test_memory_behind_a_first_thread_that_has_ended_counts(
    box: JailExecutor, session: bool, count: int, mb: int
) -> None:
    code = leaders(count, mb, 15)
    with box.open(limits=LIMITS) as opened:
        result = opened.run(code) if session else box.run(code, limits=LIMITS)
    assert result.status is ExecStatus.OOM, result


def test_a_program_whose_first_thread_ends_is_not_punished_for_it(box: JailExecutor) -> None:
    result = box.run(leaders(1, 30, 1), limits=LIMITS)
    assert (result.status, result.stdout) == (ExecStatus.OK, "held\n"), result


FILLED = """
import os, socket
def filled(count):
    ends = [end for _ in range(count) for end in socket.socketpair()]
    for end in ends:
        end.setblocking(False)
        try:
            while True: end.send(bytes(65536))
        except BlockingIOError: pass
    return ends
"""
COPIES = (
    FILLED
    + """
import ctypes, time
libc = ctypes.CDLL(None, use_errno=True)
pause = ctypes.cast(libc.pause, ctypes.c_void_p)
libc.clone.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
flags, stacks, made = 0x100 | 0x200 | 0x800 | 0x10000 | 0x40000, [], 0
for _ in range(12):  # a thread that has a copy of all descriptors, which are closed here afterwards
    ends = filled({count})
    stacks.append(ctypes.create_string_buffer(1 << 14))
    made += libc.clone(pause, (ctypes.addressof(stacks[-1]) + (1 << 14)) & ~15, flags, None) > 0
    for end in ends: end.close()
print(made, flush=True)
time.sleep(1)
os._exit(0)
"""
)


@pytest.mark.parametrize("count", [12, 28])
def test_no_thread_has_descriptors_of_its_own(box: JailExecutor, count: int) -> None:
    result = box.run(COPIES.format(count=count), limits=replace(LIMITS, memory_mb=96))
    assert result.stdout == "0\n", result


HIDDEN = (
    FILLED
    + """
import shutil, time
shutil.copy("/usr/bin/sleep", "sleep")
os.chmod("sleep", 0o111)  # the kernel lets nobody look into a process of a program that nobody may read
for _ in range({count}):
    if os.fork() == 0:
        for end in filled({pairs}): os.set_inheritable(end.fileno(), True)
        os.execv("sleep", ["sleep", "15"])
time.sleep(15)
"""
)


@pytest.mark.parametrize(("count", "pairs"), [(10, 25), (40, 8)])
def test_sockets_of_a_process_that_nobody_may_look_into_count(
    box: JailExecutor, count: int, pairs: int
) -> None:
    result = box.run(HIDDEN.format(count=count, pairs=pairs), limits=replace(LIMITS, memory_mb=64))
    assert result.status is ExecStatus.OOM, result
    one = HIDDEN.format(count=1, pairs=0).replace("sleep(15)", "sleep(0.3)").replace('"15"', '"0.1"')
    assert box.run(one, limits=LIMITS).status is ExecStatus.OK


HIDES = """
import ctypes, mmap, os, time
for _ in range({count}):
    if os.fork() == 0:
        held = mmap.mmap(-1, {mb} << 20)
        for at in range(0, {mb} << 20, 4096): held[at] = 1
        held.madvise(mmap.MADV_DONTNEED)
        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
        break
time.sleep(15)
"""


@pytest.mark.parametrize(("count", "mb"), [(8, 40), (40, 8)])
def test_all_of_the_address_space_of_a_process_that_hides_counts(
    box: JailExecutor, count: int, mb: int
) -> None:
    """It has let go of every page of its shared memory, which then stands in no count of its own."""
    code = HIDES.format(count=count, mb=mb)
    assert box.run(code, limits=replace(LIMITS, memory_mb=128)).status is ExecStatus.OOM
    with box.open(limits=replace(LIMITS, memory_mb=128)) as session:
        assert session.run(code).status is ExecStatus.OOM


NEW_PROGRAM = """
import glob, os, shutil, sys
program = os.path.realpath("/proc/self/exe")  # a session's /proc shows the processes of another namespace
if not os.path.exists(program): program = sorted(glob.glob(sys.base_prefix + "/bin/python3*"))[0]
shutil.copy(program, "program")
os.chmod("program", {mode})
holds = (
    "import mmap, time; held = mmap.mmap(-1, {mb} << 20)\\n"
    "for at in range(0, {mb} << 20, 1 << 20):\\n for page in range(at, at + (1 << 20), 4096): held[page] = 1\\n"
    " held.madvise(mmap.MADV_DONTNEED, at, 1 << 20)\\n"
    "time.sleep({seconds})"
)
if {two}: os.fork()
os.execve("program", ["python", "-S", "-c", holds], {{"PYTHONHOME": sys.base_prefix}})
"""


@pytest.mark.parametrize("mode", [0o111, 0o755], ids=["unreadable", "readable"])
def test_shared_memory_of_a_new_program_counts(box: JailExecutor, mode: int) -> None:
    """It begins with less address space than a fork. Two whose descriptors are hidden too count 208 MiB for these."""
    limits = replace(LIMITS, memory_mb=256)
    held = box.run(NEW_PROGRAM.format(mode=mode, two=True, mb=190, seconds=10), limits=limits)
    assert held.status is ExecStatus.OOM, held
    with box.open(limits=limits) as session:
        held = session.run(NEW_PROGRAM.format(mode=mode, two=True, mb=190, seconds=10))
        assert held.status is ExecStatus.OOM, held
    little = box.run(NEW_PROGRAM.format(mode=mode, two=True, mb=1, seconds=0.2), limits=limits)
    assert little.status is ExecStatus.OK, little
