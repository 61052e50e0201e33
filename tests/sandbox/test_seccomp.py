"""The filter of system calls compares what the kernel reads, not what a program has put into the register around it."""

import platform

import pytest

from agentenv.sandbox.executor import JailExecutor
from agentenv.sandbox.types import ExecutionLimits

LIMITS = ExecutionLimits(wall_s=20.0)
NUMBERS = {
    "x86_64": {"socket": 41, "fcntl": 72, "ioctl": 16, "prctl": 157},
    "aarch64": {"socket": 198, "fcntl": 25, "ioctl": 29, "prctl": 167},
}
CALLS = {
    "a netlink socket": ("socket", "16, 3, 0"),
    "a packet socket": ("socket", "17, 3, 0"),
    "a larger pipe": ("fcntl", "os.pipe()[1], 1031, 1 << 20"),
    "news of a folder": ("fcntl", "os.open('/usr', os.O_RDONLY), 1026, 1"),
    "a signal for another": ("fcntl", "os.pipe()[0], 8, 1"),
    "input for a terminal": ("ioctl", "0, 0x5412, 0"),
    "a memory map of its own making": ("prctl", "35, 1, 0"),
}
WHICH = {"socket": 0, "prctl": 0, "fcntl": 1, "ioctl": 1}
"""Which argument of a call decides; the kernel reads it as 32 bits."""


@pytest.fixture(name="box")
def _box(box_of_module: JailExecutor) -> JailExecutor:
    return box_of_module


@pytest.mark.parametrize("session", [False, True], ids=["run", "session"])
def test_no_memory_can_be_sent_to_where_the_watch_does_not_see_it(box: JailExecutor, session: bool) -> None:
    code = (
        "import ctypes, mmap\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "held = mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE)\n"
        "held[:] = b'x' * (1 << 20)\nat = ctypes.addressof(ctypes.c_char.from_buffer(held))\n"
        "def ask(advice): return libc.madvise(*map(ctypes.c_ulong, (at, 1 << 20, advice))), ctypes.get_errno()\n"
        "print([ask(21 | high) for high in (0, 1 << 32)], held[0])"
    )
    with box.open(limits=LIMITS) as opened:
        result = opened.run(code) if session else box.run(code, limits=LIMITS)
    assert result.stdout == "[(-1, 22), (-1, 22)] 120\n", result


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("session", [False, True], ids=["run", "session"])
def test_bits_that_the_kernel_does_not_read_open_no_denied_call(
    box: JailExecutor, call: str, session: bool
) -> None:
    name, arguments = CALLS[call]
    code = (
        "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\nfound = []\n"
        f"for high in (0, 1 << 32, 1 << 63):\n plain = [{arguments}]\n plain[{WHICH[name]}] |= high\n"
        f" found.append((libc.syscall({NUMBERS[platform.machine()][name]}, *map(ctypes.c_ulong, plain)), "
        "ctypes.get_errno()))\nprint(found)"
    )
    if session:
        with box.open(limits=LIMITS) as opened:
            result = opened.run(code)
    else:
        result = box.run(code, limits=LIMITS)
    assert result.stdout == f"{[(-1, 1)] * 3}\n", result
