"""The ``bwrap`` backend: jails made by bubblewrap from the files of the running interpreter."""

import base64
import contextlib
import functools
import importlib.util
import json
import shutil
import socket
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from agentenv.errors import ConfigurationError
from agentenv.sandbox import launch, seccomp
from agentenv.sandbox.executor import JailExecutor
from agentenv.sandbox.jail_source import BOOT, boot_message
from agentenv.sandbox.jails import Jail, SocketLink, spawn
from agentenv.sandbox.labels import label
from agentenv.sandbox.types import ExecutorInfo

HUGE_PAGES = "/sys/kernel/mm/transparent_hugepage"
PYTHON, SITE = "/py", "/site"
SYSTEM = ("/usr/bin", "/usr/lib", "/usr/lib64", "/usr/lib32", "/usr/share/zoneinfo")
ENVIRONMENT = {
    "PATH": f"{PYTHON}/bin:/usr/bin",
    "HOME": "/box/work",
    "TMPDIR": "/box/tmp",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",  # so that a replay in another jail iterates over sets in the same order
    "PYTHONDONTWRITEBYTECODE": "1",
    "OPENBLAS_NUM_THREADS": "1",  # a fork server must not have threads
    "OMP_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "2",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",  # huge pages for large objects make forks cheap
}
FLAGS = [
    *(
        "--unshare-user",
        "--unshare-all",
        "--die-with-parent",
        "--new-session",
        "--as-pid-1",
    ),
    *("--clearenv", "--cap-drop", "ALL", "--cap-add", "CAP_SYS_ADMIN", "--cap-add", "CAP_SETPCAP"),
    *("--cap-add", "CAP_NET_ADMIN"),
]
"""The three capabilities are for the jail itself; every program loses them before its first line. Each program enters a user
namespace of its own, so that its processes are counted separately, and can create no further one. ``--disable-userns`` would
forbid the first one too."""


@functools.cache
def packages() -> dict[str, str]:
    """Returns folders of installed packages that programs may import, by their path in the jail: numpy, if installed."""
    found = importlib.util.find_spec("numpy")
    if found is None or found.origin is None:
        return {}
    home = Path(found.origin).parent
    libraries = home.parent / "numpy.libs"
    return {str(path): f"{SITE}/{path.name}" for path in (home, libraries) if path.is_dir()}


def binds() -> list[tuple[str, str]]:
    """Returns folders of the host with their paths in the jail."""
    system = [(path, path) for path in SYSTEM if Path(path).is_dir()]
    for name in ("/bin", "/lib", "/lib64"):
        if Path(name).is_dir() and not Path(name).is_symlink():
            system.append((name, name))
    prefix = [] if sys.base_prefix == "/usr" else [(sys.base_prefix, PYTHON)]
    return [*system, *prefix, *packages().items()]


def library_path() -> dict[str, str]:
    """Returns the variable with which the jail's loader finds the interpreter's shared library, if it has one.

    Outside of ``/usr`` the loader knows that library by the path in the build or by the host's library cache, and the jail
    has neither. It would load the system's library of the same version, or none.
    """
    name = sysconfig.get_config_var("INSTSONAME") if sysconfig.get_config_var("Py_ENABLE_SHARED") else None
    if not name or sys.base_prefix == "/usr":
        return {}
    folders = [folder for folder in ("lib", "lib64") if Path(sys.base_prefix, folder, name).is_file()]
    return {"LD_LIBRARY_PATH": ":".join(f"{PYTHON}/{folder}" for folder in folders)} if folders else {}


def plan(name: str) -> dict[str, object]:
    """Returns the plan from which ``launch`` starts the jail."""
    program = shutil.which("bwrap")
    if program is None:
        raise ConfigurationError("bubblewrap is not installed; install the package bubblewrap of your system")
    arguments = [
        *FLAGS,
        "--hostname",
        "box",
        "--proc",
        "/proc",
        "--dev",
        "/dev",
        "--tmpfs",
        "/new",
        "--ro-bind-try",  # the C library reads the settings of huge pages here; the zygote drops the mount
        HUGE_PAGES,
        HUGE_PAGES,
        "--chdir",
        "/",
    ]
    for key, value in (ENVIRONMENT | library_path()).items():
        arguments += ["--setenv", key, value]
    for link in ("/bin", "/lib", "/lib64", "/lib32"):
        if Path(link).is_symlink():
            arguments += ["--symlink", str(Path(link).readlink()), link]
    prefix = "/usr" if sys.base_prefix == "/usr" else PYTHON
    executable = f"{prefix}/bin/python{sysconfig.get_python_version()}"
    command = [executable, "-s", "-S", "-P", "-c", BOOT]
    return {"bwrap": program, "arguments": arguments, "binds": binds(), "command": command, "label": name}


def setup(imports: tuple[str, ...]) -> dict[str, object]:
    """Returns the settings for the zygote."""
    return {
        "isolated": True,
        "own_uids": False,  # its user namespace maps a single uid
        "root": "/box",
        "kept": [target for _, target in binds()],
        "path": [SITE] if packages() else [],
        "imports": imports,
        "filters": {name: base64.b64encode(code).decode() for name, code in seccomp.filters().items()},
    }


def start(imports: tuple[str, ...]) -> Jail:
    """Starts a new jail. ``Jail.await_ready`` waits until it is ready."""
    message = boot_message(setup(imports))
    with contextlib.ExitStack() as undo, tempfile.TemporaryFile() as given:
        # Passed in a file, because every user of the machine can read command-line arguments.
        given.write(json.dumps(plan(label())).encode())
        given.seek(0)
        errors = undo.enter_context(tempfile.TemporaryFile())
        ours, theirs = socket.socketpair()
        undo.callback(ours.close)
        undo.callback(theirs.close)
        process = spawn(
            [sys.executable, "-I", "-S", launch.__file__, str(given.fileno())],
            stdin=theirs,
            stdout=theirs,
            stderr=errors,
            pass_fds=(given.fileno(),),
            start_new_session=True,  # signals of a terminal are for the owner only
        )
        undo.pop_all()
    theirs.close()
    return Jail(process, SocketLink(ours), errors, message)


def executor(*, imports: tuple[str, ...] = ("numpy",), **options: Any) -> JailExecutor:
    """Makes an executor with bubblewrap jails.

    Args:
        imports: Modules that are imported in advance for every program.
        options: Arguments of ``JailExecutor``.

    Raises:
        ConfigurationError: bubblewrap is not installed.
        MissingExtra: pyseccomp is not installed.
    """
    plan("")
    seccomp.filters()
    return JailExecutor(ExecutorInfo("bwrap", isolated=True), lambda: start(imports), **options)
