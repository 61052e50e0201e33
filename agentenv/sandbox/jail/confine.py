"""What a process gives up before it runs untrusted code, and what a run's own corner of the jail is made of."""

import contextlib
import errno
import os
import resource
import signal
from collections.abc import Collection
from typing import Any

from agentenv.sandbox.jail import kernel

MIB = 1 << 20
PAGE = os.sysconf("SC_PAGE_SIZE")
DEVICES = ("null", "zero", "full", "random", "urandom")
DEVICE_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "shm": "/box/shm",
}
FIRST_UID, UIDS = 0x70000000, 0x08000000
"""Uids that no distribution gives away; a program takes one at random, so that two never share one."""
NICE = 5
"""A program waits for its supervisor where both want a processor: it cannot make the one late that watches it."""
OOM_FIRST = b"1000"
"""Where the kernel itself runs out of memory, the program goes before its supervisor."""
FOLDER = kernel.MS_NOSUID | kernel.MS_NODEV
KEPT_FLAGS = os.ST_NOSUID | os.ST_NOEXEC | os.ST_NOATIME | os.ST_NODIRATIME
INODES_PER_MB = 256
PENDING_SIGNALS = 1024
"""Signals that wait and timers of all processes of a run: the kernel bounds those of all programs of a user together."""
NO_NETWORK = {
    errno.EPERM: "this system forbids network namespaces",
    errno.ENOSPC: "the limit on network namespaces (sysctl user.max_net_namespaces) is reached",
}


def hide_host(kept: list[str]) -> None:
    """Rebuilds the root from overlays of ``kept``: mount tables then name the jail's own folders, not the host's.

    The zygote's process does it once. What is not kept cannot be reached afterwards; links of the root are.
    """
    new = "/new"
    kept = [folder for folder in kept if os.path.isdir(folder) and not os.path.islink(folder)]
    kernel.unshare(kernel.CLONE_NEWNS)
    # Private first, so that nothing of what follows is seen outside of this namespace.
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("tmpfs", new, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=1m,mode=755")
    os.makedirs(f"{new}/empty")
    flags = kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV
    for folder in kept:
        os.makedirs(new + folder)
        kernel.mount("overlay", new + folder, "overlay", flags, f"lowerdir={folder}:{new}/empty")
    with os.scandir("/") as entries:
        links = {entry.name: os.readlink(entry.path) for entry in entries if entry.is_symlink()}
    for name, goal in {**links, "tmp": "/box/tmp"}.items():
        os.symlink(goal, f"{new}/{name}")
    os.makedirs(f"{new}/proc")
    kernel.mount("/proc", f"{new}/proc", None, kernel.MS_BIND | kernel.MS_REC)
    os.makedirs(f"{new}/dev")
    for name in DEVICES:
        os.close(os.open(f"{new}/dev/{name}", os.O_CREAT))
        _bind_read_only(f"/dev/{name}", f"{new}/dev/{name}")
    for name, goal in DEVICE_LINKS.items():
        os.symlink(goal, f"{new}/dev/{name}")
    for folder in ("/box", "/snapshots"):
        os.makedirs(new + folder)
    kernel.pivot_root(new)
    kernel.mount("none", "/", None, kernel.MS_BIND | kernel.MS_REMOUNT | flags)


def _bind_read_only(device: str, target: str) -> None:
    """Shows a device that other jails have too: it can be written to, and its times, which all of them see, cannot be set.

    A mount in a user namespace keeps the restrictions that it came with, which bear the same numbers in both calls.
    """
    kernel.mount(device, target, None, kernel.MS_BIND)
    kept = os.statvfs(target).f_flag & KEPT_FLAGS
    kernel.mount("none", target, None, kernel.MS_BIND | kernel.MS_REMOUNT | kernel.MS_RDONLY | kept)


def part(*, network: bool) -> None:
    """Moves this process into a mount namespace of its own, whose ``/proc`` shows the processes of its PID namespace alone.

    With ``network`` it gets a network of its own too. This is made here and not by the fork template, for which other
    supervisors would have to wait.

    Raises:
        OSError: the system gives no such namespace.
    """
    kernel.unshare(kernel.CLONE_NEWNS)
    if network:
        try:
            kernel.unshare(kernel.CLONE_NEWNET)
        except OSError as error:
            why = NO_NETWORK.get(error.errno or 0, str(error.strerror))
            raise OSError(f"a run cannot have a network of its own: {why}") from error
    # A new `/proc` and not the one that was there, which shows the processes of the namespace that mounted it.
    flags = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
    kernel.mount("proc", "/proc", "proc", flags, "subset=pid")


def draw_uid(setup: dict[str, Any]) -> int:
    """A uid for the program of a new supervisor where the jail has many; 0 where it has one."""
    if not setup["isolated"] or not setup["own_uids"]:
        return 0
    with open("/proc/self/uid_map") as stream:
        mapped = max(int(start) + int(count) for start, _, count in map(str.split, stream))
    first = min(FIRST_UID, mapped // 2)
    return first + int.from_bytes(os.urandom(4)) % min(UIDS, mapped - first)


def mount_root(uid: int) -> None:
    """A run's own folder, an empty box; it belongs to ``uid`` where that is not 0."""
    kernel.mount("tmpfs", "/box", "tmpfs", FOLDER, f"size=1m,mode=755{_owned_by(uid)}")


def enlarge(uid: int, disk_mb: int, snapshot_dir_mb: int) -> None:
    """Gives the box its size, and a session a snapshot folder for copies."""
    resize_box(disk_mb)
    if snapshot_dir_mb:
        inodes = snapshot_dir_mb * INODES_PER_MB
        options = f"size={snapshot_dir_mb}m,nr_inodes={inodes},mode=700{_owned_by(uid)}"
        kernel.mount("tmpfs", "/snapshots", "tmpfs", FOLDER, options)


def resize_box(disk_mb: int, held: int = 0, inodes: int = 0) -> None:
    """Gives the box room for ``disk_mb``, beside ``held`` bytes and ``inodes`` that are in use already."""
    size, count = disk_mb * MIB + held, disk_mb * INODES_PER_MB + inodes
    kernel.mount("tmpfs", "/box", None, FOLDER | kernel.MS_REMOUNT, f"size={size},nr_inodes={count}")


def resize_box_later(uid: int, disk_mb: int, held: int, inodes: int) -> None:
    """``resize_box`` for a supervisor that acts as ``uid``: it takes its own rights back for as long as that takes."""
    if uid:
        os.seteuid(0)
    try:
        resize_box(disk_mb, held, inodes)
    finally:
        if uid:
            os.seteuid(uid)


def _owned_by(uid: int) -> str:
    return f",uid={uid},gid={uid}" if uid else ""


def act_as(uid: int) -> None:
    """Lets a supervisor write and signal as its program's uid, which has no such right over it; 0 leaves it as it is.

    Its real uid stays that of the jail's first process.
    """
    if uid:
        # The group first: with the new effective uid it could not be changed any more.
        os.setegid(uid)
        os.seteuid(uid)


def address_space() -> int:
    """Bytes of address space that this process has taken."""
    with open("/proc/self/statm") as stream:
        return int(stream.read().split()[0]) * PAGE


def limit(limits: dict[str, Any], size: int, *, isolated: bool, session: bool) -> None:
    """Sets the limits of this process and all that it starts; a session's processor time has no end.

    Args:
        limits: Those of the order.
        size: What ``address_space`` gave before there was a program.
        isolated: Whether no process outside the run counts against its number of processes.
        session: Whether there is a cell after the next. Its supervisor bounds the processes (``bound_processes``).
    """
    bounds = {
        resource.RLIMIT_AS: size + limits["memory_mb"] * MIB,
        resource.RLIMIT_FSIZE: limits["file_mb"] * MIB,
        resource.RLIMIT_NOFILE: limits["open_files"],
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_SIGPENDING: PENDING_SIGNALS,
    }
    if isolated and not session:
        bounds[resource.RLIMIT_NPROC] = limits["processes"]
    # Soft and hard limit alike, or the program could raise the soft one again.
    for kind, value in bounds.items():
        _set_limit(kind, value, value)
    os.nice(NICE)
    if not session:
        seconds = max(1, round(limits["cpu_s"]))
        # A second apart: SIGXCPU comes first and tells a timeout from a kill, and SIGKILL ends a program that ignores
        # it.
        _set_limit(resource.RLIMIT_CPU, seconds, seconds + 1)


def _set_limit(kind: int, soft: int, hard: int) -> None:
    """Sets a limit, which may only be lowered.

    A program that got less than it was promised would fail for reasons that are not its own, so less is not taken.
    """
    most = resource.getrlimit(kind)[1]
    if most != resource.RLIM_INFINITY and most < hard:
        name = next(
            name for name, value in vars(resource).items() if name.startswith("RLIMIT_") and value == kind
        )
        raise ValueError(
            f"{name} of the process that starts programs is {most}, and a program gets {hard}: raise it (ulimit)"
        )
    resource.setrlimit(kind, (soft, hard))


def bound_processes(uid: int, pids: Collection[int], count: int) -> None:
    """Lets ``pids`` and what they start have at most ``count`` processes, all others of their user included.

    The kernel lets a process set this for others only if its real ids are theirs, so a supervisor that acts as ``uid`` takes
    them for that long. The programs are stopped meanwhile.
    """
    if uid:
        os.setresgid(uid, uid, 0)
        os.setresuid(uid, uid, 0)
    try:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                hard = resource.prlimit(pid, resource.RLIMIT_NPROC)[1]
                soft = count if hard == resource.RLIM_INFINITY else min(count, hard)
                resource.prlimit(pid, resource.RLIMIT_NPROC, (soft, hard))
    finally:
        if uid:
            os.setresuid(0, uid, 0)
            os.setresgid(0, uid, 0)


def end_first(process: int | str) -> None:
    """Lets the kernel end a program before its supervisor, and before a session's template, where memory runs out."""
    score = os.open(f"/proc/{process}/oom_score_adj", os.O_WRONLY)
    try:
        os.write(score, OOM_FIRST)
    finally:
        os.close(score)


def renounce(setup: dict[str, Any], *, session: bool = False) -> None:
    """Gives up identity and capabilities; a session's process loses sight of every other one too.

    The bounding set is empty since the jail began: nothing that is executed brings a capability back.
    """
    if not setup["isolated"]:
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        return
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # or else its own files in /proc are not its own
    if not session:
        end_first("self")
    # Opened before `/proc` is left: the uid map below is written through it.
    own = os.open("/proc/self", os.O_PATH | os.O_DIRECTORY)
    if session:
        _leave_proc()
    if uid := setup["uid"]:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    else:
        _enter_user_namespace(own)
    os.close(own)
    kernel.drop_capabilities()
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # a change of uid took it away


def _leave_proc() -> None:
    """A mount namespace without ``/proc``: there a process could reach the memory of others of the same uid.

    Raises:
        OSError: it cannot be left.
    """
    kernel.unshare(kernel.CLONE_NEWNS)
    while os.path.ismount("/proc"):  # one lies over the other
        kernel.call("umount2", b"/proc", kernel.MNT_DETACH)


def _enter_user_namespace(own: int) -> None:
    """Moves this process into a user namespace with its own uid: the kernel counts the processes of each namespace apart.

    ``own`` is this process's folder in ``/proc``, which may not be mounted any more.
    """
    uid, gid = os.getuid(), os.getgid()
    kernel.unshare(kernel.CLONE_NEWUSER)
    for name, text in {"setgroups": "deny", "uid_map": f"{uid} {uid} 1", "gid_map": f"{gid} {gid} 1"}.items():
        fd = os.open(name, os.O_WRONLY, dir_fd=own)
        os.write(fd, text.encode())
        os.close(fd)
    kernel.drop_bounding_set()  # a new namespace begins with all of it


def forbid_calls(setup: dict[str, Any], *, session: bool = False) -> int:
    """Gives up dangerous calls; returns a session's descriptor of those that wait for the supervisor's word, or -1."""
    if not setup["isolated"]:
        return -1
    descriptor = kernel.install_filter(setup["filters"]["session" if session else "run"], listener=session)
    return descriptor if session else -1
