"""The system calls that no program in a jail may make, compiled once a process."""

import errno
import functools
import importlib
import tempfile
from typing import Any

from agentenv.errors import MissingExtra

DENIED = """
    unshare setns mount umount umount2 pivot_root chroot move_mount open_tree fsopen fsconfig fsmount fspick mount_setattr
    ptrace process_vm_readv process_vm_writev process_madvise kcmp pidfd_getfd migrate_pages move_pages
    add_key request_key keyctl bpf perf_event_open userfaultfd io_uring_setup io_uring_enter io_uring_register
    kexec_load kexec_file_load init_module finit_module delete_module reboot swapon swapoff acct quotactl
    syslog iopl ioperm modify_ldt personality vhangup lookup_dcookie
    clock_settime clock_adjtime settimeofday adjtimex open_by_handle_at name_to_handle_at fanotify_init
    shmget shmat shmctl semget semop semctl semtimedop msgget msgsnd msgrcv msgctl mq_open mq_unlink
"""
"""By line: namespaces, mounts and roots; other processes; the kernel itself; clocks, handles, and what one run could leave
for another."""
NAMESPACE_FLAGS = 0x7E020080  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET, NEWTIME
SELF_ONLY = ["prlimit64", "sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr"]
SIGNALS = ["kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo"]
FCNTL_OWNER = (8, 10, 15)  # F_SETOWN, F_SETSIG, F_SETOWN_EX: signals by a back door
IOCTL_OWNER = (0x8901, 0x8902, 0x5412)  # FIOSETOWN, SIOCSPGRP, TIOCSTI
FAMILIES = (1, 2, 10)  # AF_UNIX, AF_INET, AF_INET6; the network namespace is empty
PR_SET_MM = 35


@functools.cache
def filters() -> dict[str, bytes]:
    """The programs for a run and for a session, as the kernel takes them.

    Raises:
        MissingExtra: pyseccomp is not installed.
    """
    try:
        library = importlib.import_module("pyseccomp")
    except (ImportError, RuntimeError) as error:  # it raises RuntimeError without libseccomp
        raise MissingExtra.of("pyseccomp", "sandbox") from error
    return {"run": _compile(library, session=False), "session": _compile(library, session=True)}


def _compile(lib: Any, *, session: bool) -> bytes:
    denied, made = lib.ERRNO(errno.EPERM), lib.SyscallFilter(lib.ALLOW)

    def deny(name: str, *arguments: Any) -> None:
        try:
            made.add_rule(denied, name, *arguments)
        except (OSError, ValueError, RuntimeError):
            if lib.resolve_syscall(lib.system_arch(), name) >= 0:  # a call that this machine does have
                raise

    for name in DENIED.split():
        deny(name)
    for bit in (1 << shift for shift in range(32) if NAMESPACE_FLAGS >> shift & 1):
        deny("clone", lib.Arg(0, lib.MASKED_EQ, bit, bit))
    made.add_rule(lib.ERRNO(errno.ENOSYS), "clone3")  # its flags are in memory; glibc falls back to clone
    for name in SELF_ONLY:
        deny(name, lib.Arg(0, lib.NE, 0))
    for name in ("setpriority", "ioprio_set"):
        deny(name, lib.Arg(1, lib.NE, 0))
    deny("setpriority", lib.Arg(0, lib.NE, 0))  # a whole group or user
    for value in FCNTL_OWNER:
        deny("fcntl", lib.Arg(1, lib.EQ, value))
    for value in IOCTL_OWNER:
        deny("ioctl", lib.Arg(1, lib.EQ, value))
    deny("prctl", lib.Arg(0, lib.EQ, PR_SET_MM))
    for family in set(range(64)) - set(FAMILIES):
        deny("socket", lib.Arg(0, lib.EQ, family))
    if session:
        for name in SIGNALS:
            made.add_rule(lib.NOTIFY, name)
        for name in ("pidfd_open", "pidfd_send_signal"):
            made.add_rule(lib.ERRNO(errno.ENOSYS), name)
    with tempfile.TemporaryFile() as stream:
        made.export_bpf(stream)
        stream.seek(0)
        return stream.read()
