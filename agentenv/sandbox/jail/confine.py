"""What a process gives up before it runs untrusted code, and the private folders and mounts of a run."""

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
"""Uids that no distribution assigns. A program gets a random one, so that no two programs share a uid."""
NICE = 5
"""A program has a lower priority than its supervisor, so that it cannot delay the process that watches it."""
OOM_FIRST = b"1000"
"""If the kernel runs out of memory, it kills the program before its supervisor."""
FOLDER = kernel.MS_NOSUID | kernel.MS_NODEV
KEPT_FLAGS = os.ST_NOSUID | os.ST_NOEXEC | os.ST_NOATIME | os.ST_NODIRATIME
INODES_PER_MB = 256
PENDING_SIGNALS = 1024
"""Limit of pending signals and timers of all processes of a run; the kernel's own limit is per user."""
NO_NETWORK = {
    errno.EPERM: "this system forbids network namespaces",
    errno.ENOSPC: "the limit on network namespaces (sysctl user.max_net_namespaces) is reached",
}


def hide_host(kept: list[str]) -> None:
    """Rebuilds the root from overlays of ``kept``, so that mount tables show the jail's own folders and not the host's.

    The zygote does it once. Other folders cannot be reached afterwards; links in the root can.
    """
    new = "/new"
    kept = [folder for folder in kept if os.path.isdir(folder) and not os.path.islink(folder)]
    kernel.unshare(kernel.CLONE_NEWNS)
    # Made private first, so that the following mounts are not visible outside of this namespace.
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
    """Mounts a device that other jails share: it can be written to, but its times, which all jails see, cannot be set.

    A mount in a user namespace keeps the restrictions of its source. Their flags have the same values in both calls.
    """
    kernel.mount(device, target, None, kernel.MS_BIND)
    kept = os.statvfs(target).f_flag & KEPT_FLAGS
    kernel.mount("none", target, None, kernel.MS_BIND | kernel.MS_REMOUNT | kernel.MS_RDONLY | kept)


def part(*, network: bool) -> None:
    """Moves this process into its own mount namespace, whose ``/proc`` shows only the processes of its PID namespace.

    With ``network`` it also gets its own network. This is done here and not by the fork template, because other supervisors
    would have to wait for that.

    Raises:
        OSError: the system cannot create such a namespace.
    """
    kernel.unshare(kernel.CLONE_NEWNS)
    if network:
        try:
            kernel.unshare(kernel.CLONE_NEWNET)
        except OSError as error:
            why = NO_NETWORK.get(error.errno or 0, str(error.strerror))
            raise OSError(f"a run cannot have a network of its own: {why}") from error
    # A new `/proc`, because the existing one shows the processes of the namespace that mounted it.
    flags = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
    kernel.mount("proc", "/proc", "proc", flags, "subset=pid")


def draw_uid(setup: dict[str, Any]) -> int:
    """Draws a uid for the program of a new supervisor, if the jail has many; 0 if it has only one."""
    if not setup["isolated"] or not setup["own_uids"]:
        return 0
    with open("/proc/self/uid_map") as stream:
        mapped = max(int(start) + int(count) for start, _, count in map(str.split, stream))
    first = min(FIRST_UID, mapped // 2)
    return first + int.from_bytes(os.urandom(4)) % min(UIDS, mapped - first)


def mount_root(uid: int) -> None:
    """Mounts the folder of a run, an empty box, which belongs to ``uid`` unless that is 0."""
    kernel.mount("tmpfs", "/box", "tmpfs", FOLDER, f"size=1m,mode=755{_owned_by(uid)}")


def enlarge(uid: int, disk_mb: int, snapshot_dir_mb: int) -> None:
    """Sets the size of the box, and mounts a folder for copies of a session's files."""
    resize_box(disk_mb)
    if snapshot_dir_mb:
        inodes = snapshot_dir_mb * INODES_PER_MB
        options = f"size={snapshot_dir_mb}m,nr_inodes={inodes},mode=700{_owned_by(uid)}"
        kernel.mount("tmpfs", "/snapshots", "tmpfs", FOLDER, options)


def resize_box(disk_mb: int, held: int = 0, inodes: int = 0) -> None:
    """Sets the size of the box to ``disk_mb``, plus ``held`` bytes and ``inodes`` that are already in use."""
    size, count = disk_mb * MIB + held, disk_mb * INODES_PER_MB + inodes
    kernel.mount("tmpfs", "/box", None, FOLDER | kernel.MS_REMOUNT, f"size={size},nr_inodes={count}")


def resize_box_later(uid: int, disk_mb: int, held: int, inodes: int) -> None:
    """Does what ``resize_box`` does for a supervisor that acts as ``uid``: it takes its own rights back meanwhile."""
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
    """Makes a supervisor write and send signals as its program's uid, for which it has no other right; 0 changes nothing.

    Its real uid stays that of the jail's first process.
    """
    if uid:
        # The group is set first, because it could not be changed with the new effective uid.
        os.setegid(uid)
        os.seteuid(uid)


def address_space() -> int:
    """Returns the size of this process's address space in bytes."""
    with open("/proc/self/statm") as stream:
        return int(stream.read().split()[0]) * PAGE


def limit(limits: dict[str, Any], size: int, *, isolated: bool, session: bool) -> None:
    """Sets the resource limits of this process and its children. A session has no limit of processor time.

    Args:
        limits: The limits in the order.
        size: The result of ``address_space`` before the program started.
        isolated: Whether only processes of the run count towards its number of processes.
        session: Whether more than one cell may follow. The supervisor then limits the processes (``bound_processes``).
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
    # The hard limit equals the soft one, so that the program cannot raise it again.
    for kind, value in bounds.items():
        _set_limit(kind, value, value)
    os.nice(NICE)
    if not session:
        seconds = max(1, round(limits["cpu_s"]))
        # One second apart: SIGXCPU comes first and distinguishes a timeout from a kill; SIGKILL ends a program that ignores
        # it.
        _set_limit(resource.RLIMIT_CPU, seconds, seconds + 1)


def _set_limit(kind: int, soft: int, hard: int) -> None:
    """Sets a limit, which can only be lowered.

    A lower existing limit is an error, because a program with less than promised would fail through no fault of its own.
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
    """Limits the number of processes of ``pids`` and their children to ``count``, including all others of their user.

    The kernel allows this only if the caller's real ids equal those of the target. So a supervisor that acts as ``uid``
    takes these ids meanwhile, while the programs are stopped.
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
    """Makes the kernel kill a program before its supervisor and a session's template if memory runs out."""
    score = os.open(f"/proc/{process}/oom_score_adj", os.O_WRONLY)
    try:
        os.write(score, OOM_FIRST)
    finally:
        os.close(score)


def renounce(setup: dict[str, Any], *, session: bool = False) -> None:
    """Gives up identity and capabilities; a session's process also loses access to all other processes.

    The bounding set has been empty since the jail started, so executing a program never brings a capability back.
    """
    if not setup["isolated"]:
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        return
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # otherwise it could not access its own files in /proc
    if not session:
        end_first("self")
    # Opened before `/proc` is unmounted, because the uid map below is written through it.
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
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # a change of uid resets this flag


def _leave_proc() -> None:
    """Enters a mount namespace without ``/proc``, by which a process could access the memory of others with its uid.

    Raises:
        OSError: ``/proc`` cannot be unmounted.
    """
    kernel.unshare(kernel.CLONE_NEWNS)
    while os.path.ismount("/proc"):  # several may be mounted over each other
        kernel.call("umount2", b"/proc", kernel.MNT_DETACH)


def _enter_user_namespace(own: int) -> None:
    """Moves this process into its own user namespace with the same uid: the kernel counts processes per namespace.

    ``own`` is this process's folder in ``/proc``, which may already be unmounted.
    """
    uid, gid = os.getuid(), os.getgid()
    kernel.unshare(kernel.CLONE_NEWUSER)
    for name, text in {"setgroups": "deny", "uid_map": f"{uid} {uid} 1", "gid_map": f"{gid} {gid} 1"}.items():
        fd = os.open(name, os.O_WRONLY, dir_fd=own)
        os.write(fd, text.encode())
        os.close(fd)
    kernel.drop_bounding_set()  # a new namespace starts with the full set


def forbid_calls(setup: dict[str, Any], *, session: bool = False) -> int:
    """Installs the seccomp filter; returns the descriptor of calls that a session's supervisor has to decide, or -1."""
    if not setup["isolated"]:
        return -1
    descriptor = kernel.install_filter(setup["filters"]["session" if session else "run"], listener=session)
    return descriptor if session else -1
