"""The system calls that programs in a jail may not make, compiled once per process."""

import errno
import functools
import importlib
import tempfile
from collections.abc import Callable
from typing import Any

from agentenv.errors import MissingExtra

DENIED = """
    unshare setns mount umount umount2 pivot_root chroot move_mount open_tree fsopen fsconfig fsmount fspick mount_setattr
    ptrace process_vm_readv process_vm_writev process_madvise kcmp pidfd_getfd migrate_pages move_pages
    add_key request_key keyctl bpf perf_event_open userfaultfd io_uring_setup io_uring_enter io_uring_register
    kexec_load kexec_file_load init_module finit_module delete_module reboot swapon swapoff acct quotactl io_setup
    syslog iopl ioperm modify_ldt personality vhangup lookup_dcookie
    clock_settime clock_adjtime settimeofday adjtimex open_by_handle_at name_to_handle_at fanotify_init
    memfd_secret shmget shmat shmctl semget semop semctl semtimedop msgget msgsnd msgrcv msgctl mq_open mq_unlink
"""
"""One group per line: namespaces, mounts and roots; other processes; the kernel itself; clocks, handles, and everything by
which a run could leave data for another."""
DENIED_NUMBERS = {"quotactl_fd": 443, "statmount": 457, "listmount": 458, "open_tree_attr": 467}
"""Calls that libseccomp may not know yet; their numbers are the same on every machine."""
NAMESPACE_FLAGS = 0x7E020080  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET, NEWTIME
SELF_ONLY = ["prlimit64", "sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr"]
SIGNALS = ["kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo"]
FCNTL_OWNER = (8, 10, 15)  # F_SETOWN, F_SETSIG, F_SETOWN_EX: signals by a back door
IOCTL_OWNER = (0x8901, 0x8902, 0x5412)  # FIOSETOWN, SIOCSPGRP, TIOCSTI
OTHER_FAMILIES = {0: 1, 3: 1, 4: 4, 8: 2, 11: 1, 12: 4}
"""Socket families below 16 except AF_UNIX, AF_INET and AF_INET6, in ranges: the first of each, and the number of them.

The network namespace is empty. Ranges are used because the kernel spends time on every rule of a filter.
"""
BINARY_TREE = 2
"""libseccomp's name for a filter layout in which few rules are checked for each call."""
PR_SET_MM = 35
RLIMIT_NPROC = 6  # the number on Linux, the only system with this filter
MADV_PAGEOUT = 21
"""With swap, a program could move its memory there, where the memory watch would not see it."""
MADV_DONTFORK, MADV_WIPEONFORK = 10, 18
MAP_TYPE, MAP_DROPPABLE = 0xF, 8
"""Memory that a snapshot would lose. Programs and libraries work without it, as on older kernels."""
LOW_32 = 0xFFFFFFFF
ZYGOTE_CLONE, ZYGOTE_UNSHARE = 0x20000000, 0x40020000
"""The namespace flags that the zygote uses: a PID namespace for a child; a mount namespace and a network for itself."""
CLONE_PARENT = 0x00008000
ABSENT = ("memfd_create", "inotify_init", "inotify_init1")
"""Answered as if the kernel lacked them: memory that no process maps would not be counted (libraries fall back to files),
and watching a system file would reveal when another program opens it."""
CLONE_THREAD, CLONE_FILES = 0x00010000, 0x00000400
"""A thread must share its descriptors with its process, because the memory watch would not see others."""
PAGES_MOVED = {
    "vmsplice": errno.ENOSYS,
    "splice": errno.ENOSYS,
    "tee": errno.ENOSYS,
    "sendfile": errno.EINVAL,
}
"""Calls that put whole pages into a queue for a single byte of each, so that it holds far more than it counts. Python's
library uses only ``sendfile``, and falls back to read and write."""
CLOSE_RANGE_UNSHARE = 2
"""It would give a thread its own descriptors."""
SOL_SOCKET, BUFFER_SIZES = 1, (7, 8, 32, 33)
"""SO_SNDBUF, SO_RCVBUF and their privileged variants: the memory watch assumes the kernel's default size of sockets."""
IOPRIO_WHO_PROCESS = 1
CLOCKS = ("clock_gettime", "clock_getres", "clock_nanosleep", "timer_create")
CLOCK_OF_PROCESS, CLOCK_PID_BITS = 1 << 31, range(3, 25)
"""The clock id of a process is negative and contains the complement of the pid in these bits; 0 is the caller."""
F_SETPIPE_SZ, F_NOTIFY, F_SETLEASE = 1031, 1026, 1024
WRITTEN_BACK = ("sync", "syncfs", "fsync", "fdatasync", "sync_file_range", "msync")
"""Calls that do nothing and succeed: there is no disk behind a program's files, and on a system file they would wait for the
host's disks in a state in which nothing can end the process."""
FCNTL_LOCK = (6, 7, 37, 38)  # F_SETLK, F_SETLKW, F_OFD_SETLK, F_OFD_SETLKW
"""Locks always succeed and lock nothing: programs could communicate by locks on a shared file or device. Libraries that lock
their own files keep working."""
ADDRESSED = ("socket", "bind", "connect", "listen")
"""Forks of a session share a network, so a socket with an address could pass messages between them."""
QUERIES = (
    "sched_getaffinity",
    "sched_getscheduler",
    "sched_getparam",
    "sched_getattr",
    "sched_rr_get_interval",
    "get_robust_list",
)
"""Calls that a session's process may make only about itself; about others, they would reveal what these choose to show."""

ALLOWED = """
    access chdir chmod chown close close_range copy_file_range creat dup dup2 dup3 faccessat faccessat2 fadvise64
    fallocate fchdir fchmod fchmodat fchmodat2 fchown fchownat fcntl fdatasync fgetxattr flistxattr flock fremovexattr
    fsetxattr fstat fstatfs fsync ftruncate futimesat getcwd getdents getdents64 getxattr inotify_add_watch
    inotify_init inotify_init1 inotify_rm_watch ioctl lchown lgetxattr link linkat listxattr llistxattr lremovexattr
    lseek lsetxattr lstat mkdir mkdirat mknod mknodat newfstatat open openat openat2 pread64 preadv preadv2 pwrite64
    pwritev pwritev2 read readahead readlink readlinkat readv removexattr rename renameat renameat2 rmdir sendfile
    setxattr stat statfs statx symlink symlinkat sync sync_file_range syncfs truncate umask unlink unlinkat
    utime utimensat utimes write writev

    brk madvise membarrier memfd_create mincore mlock mlock2 mlockall mmap mprotect mremap msync munlock munlockall
    munmap pkey_alloc pkey_free pkey_mprotect rseq get_mempolicy mbind set_mempolicy

    arch_prctl capget capset execve execveat exit exit_group fork get_robust_list getegid geteuid getgid getgroups
    getpgid getpgrp getpid getppid getpriority getresgid getresuid getrlimit getrusage getsid gettid getuid ioprio_get
    prctl prlimit64 sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr sched_getparam
    sched_getscheduler sched_rr_get_interval sched_setaffinity sched_setattr sched_setparam sched_setscheduler
    sched_yield seccomp set_robust_list set_tid_address setfsgid setfsuid setgid setgroups setpgid setpriority
    setregid setresgid setresuid setreuid setrlimit setsid setuid sysinfo times uname vfork wait4 waitid getcpu
    ioprio_set

    alarm clock_getres clock_gettime clock_nanosleep getitimer gettimeofday nanosleep setitimer time timer_create
    timer_delete timer_getoverrun timer_gettime timer_settime timerfd_create timerfd_gettime timerfd_settime

    futex futex_waitv kill pause pidfd_open pidfd_send_signal restart_syscall rt_sigaction rt_sigpending
    rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo sigaltstack signalfd
    signalfd4 tgkill tkill

    epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait eventfd eventfd2 pipe pipe2 poll ppoll
    pselect6 select

    accept accept4 bind connect getpeername getrandom getsockname getsockopt listen recvfrom recvmmsg recvmsg sendmmsg
    sendmsg sendto setsockopt shutdown socket socketpair

    landlock_add_rule landlock_create_ruleset landlock_restrict_self
    mount umount2 pivot_root chroot
"""
"""One block each: files, memory, processes, clocks, signals, waiting, sockets; the last block is for the zygote only,
because its own filter denies it to programs."""


@functools.cache
def filters() -> dict[str, bytes]:
    """Returns the compiled filters for a run and for a session, in the kernel's form.

    Raises:
        MissingExtra: pyseccomp is not installed.
    """
    try:
        library = importlib.import_module("pyseccomp")
    except (ImportError, RuntimeError) as error:  # RuntimeError: libseccomp is missing
        raise MissingExtra.of("pyseccomp", "sandbox") from error
    return {"run": _compile(library, session=False), "session": _compile(library, session=True)}


def container_profile() -> dict[str, Any]:
    """Returns the profile of a whole container for a Docker engine: calls that it does not name are denied.

    It also restricts the zygote. Programs have ``filters`` in addition, which deny more.
    """
    flags = {"clone": NAMESPACE_FLAGS & ~ZYGOTE_CLONE, "unshare": NAMESPACE_FLAGS & ~ZYGOTE_UNSHARE}
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "syscalls": [
            {"names": ALLOWED.split(), "action": "SCMP_ACT_ALLOW"},
            {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": errno.ENOSYS},
            *(
                {
                    "names": [name],
                    "action": "SCMP_ACT_ALLOW",
                    "args": [{"index": 0, "value": mask, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}],
                }
                for name, mask in flags.items()
            ),
        ],
    }


def _equals(lib: Any, index: int, value: int) -> Any:
    """Matches an argument of which the kernel reads only the lower 32 bits, regardless of the upper ones."""
    return lib.Arg(index, lib.MASKED_EQ, LOW_32, value)


def _compile(lib: Any, *, session: bool) -> bytes:
    denied, made = lib.ERRNO(errno.EPERM), lib.SyscallFilter(lib.ALLOW)
    made.set_attr(lib.Attr.CTL_OPTIMIZE, BINARY_TREE)

    def deny(name: str, *arguments: Any) -> None:
        try:
            made.add_rule(denied, name, *arguments)
        except (OSError, ValueError, RuntimeError):
            if lib.resolve_syscall(lib.system_arch(), name) >= 0:  # this machine has the call
                raise

    for name in DENIED.split():
        deny(name)
    for number in DENIED_NUMBERS.values():
        made.add_rule(denied, number)
    for bit in (1 << shift for shift in range(32) if NAMESPACE_FLAGS >> shift & 1):
        deny("clone", lib.Arg(0, lib.MASKED_EQ, bit, bit))
    # its flags are in memory, where a filter cannot read them; glibc falls back to clone
    made.add_rule(lib.ERRNO(errno.ENOSYS), "clone3")
    for name in ABSENT:
        made.add_rule(lib.ERRNO(errno.ENOSYS), name)
    deny("clone", lib.Arg(0, lib.MASKED_EQ, CLONE_THREAD | CLONE_FILES, CLONE_THREAD))
    deny("close_range", lib.Arg(2, lib.MASKED_EQ, CLOSE_RANGE_UNSHARE, CLOSE_RANGE_UNSHARE))
    for name, number in PAGES_MOVED.items():
        made.add_rule(lib.ERRNO(number), name)
    for option in BUFFER_SIZES:
        deny("setsockopt", _equals(lib, 1, SOL_SOCKET), _equals(lib, 2, option))
    for name in WRITTEN_BACK:
        made.add_rule(lib.ERRNO(0), name)
    for value in (F_SETPIPE_SZ, F_NOTIFY, F_SETLEASE):
        deny("fcntl", _equals(lib, 1, value))
    made.add_rule(lib.ERRNO(0), "flock")
    for value in FCNTL_LOCK:
        made.add_rule(lib.ERRNO(0), "fcntl", _equals(lib, 1, value))
    for name in SELF_ONLY:
        deny(name, lib.Arg(0, lib.NE, 0))
    for name in ("setpriority", "ioprio_set"):
        deny(name, lib.Arg(1, lib.NE, 0))
    deny("setpriority", lib.Arg(0, lib.NE, 0))  # denies the change for a whole group or user
    deny("ioprio_set", lib.Arg(0, lib.NE, IOPRIO_WHO_PROCESS))
    for value in FCNTL_OWNER:
        deny("fcntl", _equals(lib, 1, value))
    for value in IOCTL_OWNER:
        deny("ioctl", _equals(lib, 1, value))
    deny("prctl", _equals(lib, 0, PR_SET_MM))
    # answered as if it were unknown
    made.add_rule(lib.ERRNO(errno.EINVAL), "madvise", _equals(lib, 2, MADV_PAGEOUT))
    for family, width in OTHER_FAMILIES.items():
        deny("socket", lib.Arg(0, lib.MASKED_EQ, LOW_32 & ~(width - 1), family))
    for bit in (16, 32):
        deny("socket", lib.Arg(0, lib.MASKED_EQ, bit, bit))
    beside = lib.Arg(0, lib.MASKED_EQ, CLONE_PARENT, CLONE_PARENT)
    if session:
        _add_session_rules(lib, made, deny, beside)
    else:
        deny("clone", beside)
    with tempfile.TemporaryFile() as stream:
        made.export_bpf(stream)
        stream.seek(0)
        return stream.read()


def _add_session_rules(lib: Any, made: Any, deny: Callable[..., None], beside: Any) -> None:
    """Adds the rules of a session: its forks live side by side under one supervisor."""
    # The supervisor decides about such a fork, and allows it if it has ordered the fork itself.
    made.add_rule(lib.NOTIFY, "clone", beside)
    for name in SIGNALS:
        made.add_rule(lib.NOTIFY, name)
    for name in ADDRESSED:
        deny(name)
    # SOCK_DGRAM and SOCK_RAW sockets can receive by a name, and get one by sending.
    for kind in (2, 3):
        deny("socketpair", lib.Arg(1, lib.MASKED_EQ, 0xF, kind))
    for name in QUERIES:
        deny(name, lib.Arg(0, lib.NE, 0))
    for name, own in {"getpriority": 0, "ioprio_get": IOPRIO_WHO_PROCESS}.items():
        deny(name, lib.Arg(1, lib.NE, 0))
        deny(name, lib.Arg(0, lib.NE, own))
    for name in CLOCKS:
        for bit in (1 << shift for shift in CLOCK_PID_BITS):
            deny(name, lib.Arg(0, lib.MASKED_EQ, CLOCK_OF_PROCESS | bit, CLOCK_OF_PROCESS))
    for name in ("pidfd_open", "pidfd_send_signal"):
        made.add_rule(lib.ERRNO(errno.ENOSYS), name)
    for advice in (MADV_DONTFORK, MADV_WIPEONFORK):
        made.add_rule(lib.ERRNO(errno.EINVAL), "madvise", _equals(lib, 2, advice))
    made.add_rule(lib.ERRNO(errno.EINVAL), "mmap", lib.Arg(3, lib.MASKED_EQ, MAP_TYPE, MAP_DROPPABLE))
    deny("setrlimit", _equals(lib, 0, RLIMIT_NPROC))  # the supervisor sets it before every cell
    deny("prlimit64", _equals(lib, 1, RLIMIT_NPROC), lib.Arg(2, lib.NE, 0))
