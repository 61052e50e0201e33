"""System calls that Python's standard library lacks. Errors are raised as ``OSError``.

Runs inside the jail, where only the standard library is available.
"""

import ctypes
import errno
import os
import platform
import signal
import struct
from typing import NamedTuple

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x00020000, 0x10000000, 0x20000000, 0x40000000
CLONE_PARENT = 0x00008000
AF_INET, SOCK_DGRAM = 2, 2
SIOCSIFFLAGS, IFF_UP, IFF_RUNNING = 0x8914, 1, 64
RAISE = struct.pack("=16sh22x", b"lo", IFF_UP | IFF_RUNNING)
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 1, 4, 24, 38, 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER = 1, 8
NOTIF_RECV, NOTIF_SEND = 0xC0502100, 0xC0182101
NOTIF_CONTINUE = 1
CAPABILITY_VERSION_3 = 0x20080522
LAST_CAPABILITY = 63

# Numbers of system calls for which glibc has no function, by machine.
SECCOMP = {"x86_64": 317, "aarch64": 277}
CLONE = {"x86_64": 56, "aarch64": 220}

_libc = ctypes.CDLL(None, use_errno=True)
for _name in ("capset", "ioctl", "mount", "prctl", "socket", "syscall", "umount2", "unshare"):
    # Resolved once here, because a lookup searches every library, and a fork would touch all of them.
    getattr(_libc, _name)
_under_lock = ctypes.PyDLL(None, use_errno=True)
"""The same library, for calls during which no other Python thread may run."""


def call(name: str, *arguments: object) -> int:
    """Calls the function ``name`` of the C library; a result of -1 raises ``OSError``."""
    result: int = getattr(_libc, name)(*arguments)
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def unshare(flags: int) -> None:
    """Moves this process from the namespaces in ``flags`` into new ones."""
    call("unshare", flags)


def fork_into(flags: int) -> int:
    """Forks a process with a single thread, with the ``flags`` of ``clone(2)``; returns 0 in the child.

    ``unshare`` cannot replace it, because this process could not return to its own namespace for the next child. Unlike
    ``os.fork``, it does not notify Python of the fork: apart from its id the child is the same, and may itself use
    ``os.fork``.
    """
    pid: int = _under_lock.syscall(CLONE[platform.machine()], flags | signal.SIGCHLD, 0, 0, 0, 0)
    if pid < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"clone: {os.strerror(number)}")
    return pid


def mount(source: str, target: str, kind: str | None, flags: int = 0, data: str = "") -> None:
    """``mount(2)``."""
    call(
        "mount",
        source.encode(),
        target.encode(),
        kind.encode() if kind else None,
        ctypes.c_ulong(flags),
        data.encode() or None,
    )


def pivot_root(new: str) -> None:
    """Makes ``new`` the root. The old tree is detached and cannot be reached any more."""
    os.chdir(new)
    os.makedirs(".old", exist_ok=True)
    call("pivot_root", b".", b".old")
    os.chdir("/")
    call("umount2", b"/.old", MNT_DETACH)
    os.rmdir("/.old")


def raise_loopback() -> None:
    """Activates the loopback device of a new network, its only device."""
    # Python's socket module would touch ten times as much memory
    any_socket = call("socket", AF_INET, SOCK_DGRAM, 0)
    call("ioctl", any_socket, ctypes.c_ulong(SIOCSIFFLAGS), RAISE)
    os.close(any_socket)


def prctl(option: int, value: int) -> None:
    """``prctl(2)``."""
    call("prctl", option, *map(ctypes.c_ulong, (value, 0, 0, 0)))


def drop_bounding_set() -> None:
    """Permanently drops every capability that a program on the disk could bring back."""
    drop = _libc.prctl
    zero = ctypes.c_ulong(0)
    for capability in range(LAST_CAPABILITY + 1):
        # EINVAL: the kernel has no further capabilities. EPERM: without CAP_SETPCAP the bounding set stays, but with
        # no_new_privs nothing in it can ever be regained.
        if (
            drop(PR_CAPBSET_DROP, ctypes.c_ulong(capability), zero, zero, zero)
            and ctypes.get_errno() == errno.EINVAL
        ):
            break


def drop_capabilities() -> None:
    """Drops every capability of this process, and every way to regain one."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    call("capset", struct.pack("=Ii", CAPABILITY_VERSION_3, 0), bytes(24))


def install_filter(program: bytes, *, listener: bool = False) -> int:
    """Installs a compiled seccomp filter for this thread; with ``listener``, returns the notification descriptor."""
    text = ctypes.create_string_buffer(program, len(program))
    head = struct.pack("@HP", len(program) // 8, ctypes.addressof(text))
    flags = SECCOMP_FILTER_FLAG_NEW_LISTENER if listener else 0
    number = SECCOMP[platform.machine()]
    return call("syscall", number, SECCOMP_SET_MODE_FILTER, ctypes.c_ulong(flags), head)


class Notification(NamedTuple):
    """A system call that waits for the supervisor's decision."""

    id: int
    pid: int
    number: int
    arguments: tuple[int, ...]


def receive_notification(listener: int) -> Notification | None:
    """Returns the next waiting call, or None if its caller has ended."""
    buffer = ctypes.create_string_buffer(80)
    try:
        call("ioctl", listener, ctypes.c_ulong(NOTIF_RECV), buffer)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EINTR):
            return None
        raise
    id, pid, _, number, _, _, *arguments = struct.unpack("=QIIiIQ6Q", buffer.raw)
    return Notification(id, pid, number, tuple(arguments))


def answer_notification(listener: int, notification: Notification, *, allow: bool) -> None:
    """Lets the call continue, or makes it fail with EPERM."""
    response = struct.pack(
        "=QqiI", notification.id, 0, 0 if allow else -errno.EPERM, NOTIF_CONTINUE if allow else 0
    )
    try:
        call("ioctl", listener, ctypes.c_ulong(NOTIF_SEND), response)
    except OSError as error:
        if error.errno != errno.ENOENT:  # the caller has ended meanwhile
            raise
