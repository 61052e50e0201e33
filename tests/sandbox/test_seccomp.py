"""The filter of system calls compares what the kernel reads, not what a program has put into the register around it."""

import platform

import pytest

from agentenv.sandbox.executor import JailExecutor
from agentenv.sandbox.types import ExecutionLimits

LIMITS = ExecutionLimits(wall_s=20.0)
NUMBERS = {
    "x86_64": {
        **{"socket": 41, "fcntl": 72, "ioctl": 16, "prctl": 157},
        **{"setsockopt": 54, "close_range": 436, "ioprio_set": 251},
    },
    "aarch64": {
        **{"socket": 198, "fcntl": 25, "ioctl": 29, "prctl": 167},
        **{"setsockopt": 208, "close_range": 436, "ioprio_set": 30},
    },
}
CALLS = {
    "a netlink socket": ("socket", "16, 3, 0"),
    "a packet socket": ("socket", "17, 3, 0"),
    "a larger pipe": ("fcntl", "os.pipe()[1], 1031, 1 << 20"),
    "news of a folder": ("fcntl", "os.open('/usr', os.O_RDONLY), 1026, 1"),
    "a lease": ("fcntl", "os.open(os.__file__, os.O_RDONLY), 1024, 0"),
    "a signal for another": ("fcntl", "os.pipe()[0], 8, 1"),
    "input for a terminal": ("ioctl", "0, 0x5412, 0"),
    "a memory map of its own making": ("prctl", "35, 1, 0"),
    "a larger queue to send": ("setsockopt", "0, 1, 7, 0, 4"),
    "a larger queue to receive": ("setsockopt", "0, 1, 8, 0, 4"),
    "a larger queue to send, by force": ("setsockopt", "0, 1, 32, 0, 4"),
    "a larger queue to receive, by force": ("setsockopt", "0, 1, 33, 0, 4"),
    "descriptors of a thread's own": ("close_range", "9000, 9001, 2"),
    "the disk priority of all its user's": ("ioprio_set", "3, 0, 0x4005"),
}
WHICH = {"socket": 0, "prctl": 0, "fcntl": 1, "ioctl": 1, "setsockopt": 2, "close_range": 2, "ioprio_set": 0}
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


NO_FILE = "os.pipe()[0]"
WRITTEN_BACK = {
    "x86_64": {"fsync": 74, "fdatasync": 75, "syncfs": 306, "sync_file_range": 277, "msync": 26, "sync": 162},
    "aarch64": {"fsync": 82, "fdatasync": 83, "syncfs": 267, "sync_file_range": 84, "msync": 227, "sync": 81},
}


@pytest.mark.parametrize("session", [False, True], ids=["run", "session"])
def test_no_program_waits_for_the_disks_of_the_host(box: JailExecutor, session: bool) -> None:
    """Who waits for a disk cannot be ended. What would be an error for the kernel shows that no call reaches it."""
    numbers = WRITTEN_BACK[platform.machine()]
    code = (
        "import ctypes, os\nlibc = ctypes.CDLL(None)\n"
        f"print([libc.syscall(number, *map(ctypes.c_ulong, ({NO_FILE}, 1, 1, 64))) for number in {[*numbers.values()]}])"
    )
    with box.open(limits=LIMITS) as opened:
        result = opened.run(code) if session else box.run(code, limits=LIMITS)
    assert result.stdout == f"{[0] * len(numbers)}\n", result
    written = "import mmap, os\nf = open('f', 'wb+')\nf.write(bytes(4096)); f.flush(); os.fsync(f.fileno())\n"
    shown = box.run(
        f"{written}m = mmap.mmap(f.fileno(), 0); m[0] = 7; m.flush()\nprint(open('f', 'rb').read()[0])"
    )
    assert shown.stdout == "7\n", shown


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


ANSWERS = {
    "x86_64": {
        "vmsplice": (278, 38),
        "splice": (275, 38),
        "tee": (276, 38),
        "sendfile": (40, 22),
        "io_setup": (206, 1),
    },
    "aarch64": {
        "vmsplice": (75, 38),
        "splice": (76, 38),
        "tee": (77, 38),
        "sendfile": (71, 22),
        "io_setup": (0, 1),
    },
}
NEW = {"quotactl_fd": (443, 1), "statmount": (457, 1), "listmount": (458, 1), "open_tree_attr": (467, 1)}
"""Numbers of calls, and the error that a program is told."""


@pytest.mark.parametrize("session", [False, True], ids=["run", "session"])
def test_calls_that_hide_pages_or_show_mounts_do_not_exist(box: JailExecutor, session: bool) -> None:
    calls = {**ANSWERS[platform.machine()], **NEW}
    code = (
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "def ask(number):\n ctypes.set_errno(0); libc.syscall(number, *map(ctypes.c_long, [-1] * 6))\n"
        f" return ctypes.get_errno()\nprint([ask(number) for number, _ in {[*calls.values()]}])"
    )
    with box.open(limits=LIMITS) as opened:
        result = opened.run(code) if session else box.run(code, limits=LIMITS)
    assert result.stdout == f"{[error for _, error in calls.values()]}\n", result
