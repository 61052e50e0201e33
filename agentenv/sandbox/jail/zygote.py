"""Turns a jail's first process into a fork server: it loads modules, then splits into router and fork template.

The host communicates with the router in frames on the descriptors 0 and 1, which no forked process ever sees.
"""

import base64
import gc
import importlib.util
import os
import resource
import socket
import sys
from typing import Any, NoReturn

from agentenv.sandbox.jail import confine, frames, kernel, worker
from agentenv.sandbox.jail.router import Router
from agentenv.sandbox.jail.supervisor import reset_signals
from agentenv.sandbox.jail.template import serve_requests


def boot(setup: dict[str, Any]) -> NoReturn:
    """Takes over the process with which the jail was started."""
    source, sink = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1):
        os.dup2(null, fd)
    os.close(null)
    reset_signals()
    if setup["isolated"]:
        os.makedirs("/new", exist_ok=True)
        confine.hide_host(setup["kept"])
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
        kernel.drop_bounding_set()
        setup["filters"] = {name: base64.b64decode(text) for name, text in setup["filters"].items()}
    sys.path.extend(folder for folder in setup["path"] if os.path.isdir(folder))
    for name in setup["imports"]:
        # numpy is requested by default, but not always installed
        if name != "numpy" or importlib.util.find_spec(name):
            importlib.import_module(name)
    # The kernel refuses to send descriptors while their user has more in transit than they may have open.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    worker.name_own_modules()
    # Collected, then frozen: a garbage collection in a fork would write to every object and so copy the shared memory.
    gc.collect()
    gc.freeze()
    control, other = socket.socketpair()
    # Split before the first message, because the template, from which everything is forked, must never contain any.
    if os.fork() == 0:
        for end in (source, sink):
            os.close(end)
        control.close()
        serve_requests(other, setup)
    other.close()
    if setup["isolated"]:
        kernel.drop_capabilities()
    try:
        frames.write_all(sink, frames.frame(0, frames.encode({"ready": os.getpid()})))
        Router(source, sink, control, isolated=setup["isolated"]).serve()
    except frames.Closed:
        os._exit(0)
