"""The ``unsafe-local`` backend: the same fork server without isolation. For trusted code, and never used by default."""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from agentenv.core.io.temporary import temporary_folder
from agentenv.sandbox.bwrap import ENVIRONMENT, packages
from agentenv.sandbox.executor import JailExecutor
from agentenv.sandbox.jail import trees
from agentenv.sandbox.jail_source import BOOT, boot_message
from agentenv.sandbox.jails import Jail, SocketLink, spawn
from agentenv.sandbox.labels import label
from agentenv.sandbox.types import ExecutorInfo


def start(root: str, imports: tuple[str, ...]) -> Jail:
    """Starts a fork server below ``root``, which ends with its stream."""
    home = str(Path(next(iter(packages()), "")).parent)
    setup = {
        "isolated": False,
        "root": root,
        "kept": [],  # all folders of the host can change
        "path": [home] if packages() else [],
        "imports": imports,
    }
    ours, theirs = socket.socketpair()
    errors = tempfile.TemporaryFile()  # noqa: SIM115  # the jail closes it
    environment = {
        **ENVIRONMENT,
        "PATH": os.defpath,
        "HOME": root,
        "TMPDIR": root,
        "PYTHONHOME": sys.base_prefix,
    }
    process: subprocess.Popen[bytes] = spawn(
        [label(), "-s", "-S", "-P", "-c", BOOT],
        executable=sys.executable,
        stdin=theirs,
        stdout=theirs,
        stderr=errors,
        env=environment,
        start_new_session=True,
    )
    theirs.close()
    return Jail(process, SocketLink(ours), errors, boot_message(setup))


def executor(*, imports: tuple[str, ...] = ("numpy",), **options: Any) -> JailExecutor:
    """Makes an executor without isolation: only the limits of time, memory and output apply.

    Args:
        imports: Modules that are imported in advance for every program.
        options: Arguments of ``JailExecutor``.
    """
    info = ExecutorInfo("unsafe-local", isolated=False)
    end = contextlib.ExitStack()
    root = str(end.enter_context(temporary_folder("unsafe", discard=lambda left: trees.remove(str(left)))))
    try:
        return JailExecutor(info, lambda: start(root, imports), on_close=end.close, **options)
    except BaseException:
        end.close()
        raise
