"""What a process gives up before it runs a stranger's code, and what a run's own corner of the jail is made of."""

import base64
import os
import resource
import signal
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


def hide_host(kept: list[str]) -> None:
    """Rebuilds the root from overlays of ``kept``: mount tables then name the jail's own folders, not the host's.

    The zygote's process does it once. What is not kept cannot be reached afterwards.
    """
    new = "/new"
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("tmpfs", new, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=1m,mode=755")
    os.makedirs(f"{new}/empty")
    flags = kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV
    for folder in kept:
        os.makedirs(new + folder)
        kernel.mount("overlay", new + folder, "overlay", flags, f"lowerdir={folder}:{new}/empty")
    with os.scandir("/") as entries:
        links = [(entry.name, os.readlink(entry.path)) for entry in entries if entry.is_symlink()]
    for name, goal in links:
        os.symlink(goal, f"{new}/{name}")
    os.makedirs(f"{new}/proc")
    kernel.mount("/proc", f"{new}/proc", None, kernel.MS_BIND | kernel.MS_REC)
    os.makedirs(f"{new}/dev")
    for name in DEVICES:
        os.close(os.open(f"{new}/dev/{name}", os.O_CREAT))
        kernel.mount(f"/dev/{name}", f"{new}/dev/{name}", None, kernel.MS_BIND)
    for name, goal in DEVICE_LINKS.items():
        os.symlink(goal, f"{new}/dev/{name}")
    for folder in ("/box", "/vault"):
        os.makedirs(new + folder)
    kernel.pivot_root(new)
    kernel.mount("none", "/", None, kernel.MS_BIND | kernel.MS_REMOUNT | flags)


def part() -> None:
    """A mount namespace of one's own, with the processes of one's own PID namespace and no other part of ``/proc``."""
    kernel.unshare(kernel.CLONE_NEWNS)
    flags = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
    kernel.mount("proc", "/proc", "proc", flags, "subset=pid")


def furnish(disk_mb: int, vault_mb: int = 0) -> None:
    """A run's own folders: an empty box, and for sessions a vault for copies."""
    flags = kernel.MS_NOSUID | kernel.MS_NODEV
    inodes = disk_mb * 256
    kernel.mount("tmpfs", "/box", "tmpfs", flags, f"size={disk_mb}m,nr_inodes={inodes},mode=755")
    if vault_mb:
        kernel.mount("tmpfs", "/vault", "tmpfs", flags, f"size={vault_mb}m,nr_inodes={inodes * 40},mode=700")


def close_vault() -> None:
    """Leaves a session's process in a mount namespace that has no vault."""
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.call("umount2", b"/vault", kernel.MNT_DETACH)


def limit(limits: dict[str, Any], neighbours: int | None, *, session: bool) -> None:
    """Sets the limits of this process and all that it starts; a session's processor time has no end.

    ``neighbours`` are the processes of this user that do not count against the run, None where nobody knows.
    """
    with open("/proc/self/statm") as stream:
        size = int(stream.read().split()[0]) * PAGE
    bounds = {
        resource.RLIMIT_AS: size + limits["memory_mb"] * MIB,
        resource.RLIMIT_FSIZE: limits["file_mb"] * MIB,
        resource.RLIMIT_NOFILE: limits["open_files"],
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    if neighbours is not None:
        bounds[resource.RLIMIT_NPROC] = limits["processes"] + neighbours
    for kind, value in bounds.items():
        resource.setrlimit(kind, (value, value))
    if not session:
        seconds = max(1, round(limits["cpu_s"]))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))


def renounce(setup: dict[str, Any], *, listener: bool = False) -> int:
    """Gives up identity, capabilities and dangerous calls; returns the listener's descriptor, or -1."""
    if not setup["isolated"]:
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        return -1
    if uid := setup.get("uid"):
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    kernel.drop_capabilities()
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
    program = base64.b64decode(setup["filters"]["session" if listener else "run"])
    descriptor = kernel.install_filter(program, listener=listener)
    return descriptor if listener else -1
