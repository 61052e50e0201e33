"""The supervisor of one run or session: the init of its PID namespace, which no signal from inside can reach.

It has the one capability that mounting requires, is not dumpable, and runs none of the program's code.
"""

import json
import os
import signal
import socket
import tempfile
from typing import Any, NoReturn

from agentenv.sandbox.jail import confine, frames, kernel, session_template, trees
from agentenv.sandbox.jail.once import Waiting, await_program, rehearse, replace_killed, run_once
from agentenv.sandbox.jail.session_supervisor import SessionSupervisor
from agentenv.sandbox.jail.session_template import SessionTemplate

SNAPSHOT_COPIES = 40


def serve(link: socket.socket, setup: dict[str, Any], *, session: bool) -> NoReturn:
    """Answers the orders on ``link``, which are those of a session or a single run.

    Processes for programs are forked before the first order is read, so that they inherit nothing of any order.
    """
    ready: Waiting | SessionTemplate | OSError
    try:
        if setup["isolated"]:
            # A network keeps traces of a run, such as counters and port numbers, so every run gets a new one. Sessions need
            # none.
            confine.part(network=not session)
            confine.mount_root(setup["uid"])
        else:
            setup["root"] = tempfile.mkdtemp(dir=setup["root"])
        if session:
            ready = session_template.start(setup)
        else:
            if setup["isolated"]:
                kernel.raise_loopback()
            ready = await_program(setup)
            rehearse()
    except OSError as trouble:
        ready = trouble
    try:
        if isinstance(ready, Waiting):
            ready = replace_killed(ready, setup, link.fileno())
        first = json.loads(frames.receive(link))
        try:
            if isinstance(ready, OSError):
                raise ready
            if first["serial"] != 1:
                raise RuntimeError("the supervisor that this order was for is gone")
            _obey(link, first, setup, ready)
        except trees.PathRefused as reason:
            frames.reply(link, first, {"refused_input": str(reason)})
        except Exception as error:
            frames.reply(link, first, {"fault": f"{type(error).__name__}: {error}"})
    except frames.Closed:
        pass
    finally:
        if not setup["isolated"]:
            trees.remove_quietly(setup["root"])
        os._exit(0)


def _obey(
    link: socket.socket, first: dict[str, Any], setup: dict[str, Any], ready: Waiting | SessionTemplate
) -> None:
    if setup["isolated"]:
        disk = first["limits"]["disk_mb"]
        snapshot_dir = disk * SNAPSHOT_COPIES if isinstance(ready, SessionTemplate) else 0
        confine.enlarge(setup["uid"], disk, snapshot_dir)
        confine.act_as(setup["uid"])
    if isinstance(ready, SessionTemplate):
        SessionSupervisor(link, first, setup, ready).serve()
    else:
        frames.reply(link, first, run_once(first, setup, ready))


def reset_signals() -> None:
    """Resets every signal to its default, so that no signal from inside reaches the init of a namespace."""
    for number in (signal.SIGINT, signal.SIGCHLD, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
