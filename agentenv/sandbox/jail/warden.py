"""The supervisor of one run or one session: init of its PID namespace, immune to every signal from inside.

It holds the one capability that mounting needs, is not dumpable, and runs none of the program's code.
"""

import json
import os
import shutil
import signal
import socket
import tempfile
from typing import Any, NoReturn

from agentenv.sandbox.jail import confine, frames, trees
from agentenv.sandbox.jail.once import Waiting, await_program, dismiss, rehearse, run_once
from agentenv.sandbox.jail.session import Warden

VAULT_COPIES = 40


def serve(link: socket.socket, setup: dict[str, Any]) -> NoReturn:
    """Answers the orders on ``link``; the first says whether it is a run or a session."""
    ready: Waiting | OSError
    try:  # before there is an order: a warden waits ready, and in it the process of a run
        if setup["isolated"]:
            confine.part()
            confine.furnish(setup["uid"])
        else:
            setup["root"] = tempfile.mkdtemp(dir=setup["root"])
        ready = await_program(setup)
        rehearse()
    except OSError as trouble:
        ready = trouble
    try:
        first = json.loads(frames.receive(link))
        try:
            if isinstance(ready, OSError):
                raise ready
            if first["serial"] != 1:
                raise RuntimeError("the warden that this order was for is gone")
            _obey(link, first, setup, ready)
        except trees.Refused as reason:
            frames.reply(link, first, {"refused_input": str(reason)})
        except Exception as error:
            frames.reply(link, first, {"fault": f"{type(error).__name__}: {error}"})
    except frames.Closed:
        pass
    finally:
        if not setup["isolated"]:
            shutil.rmtree(setup["root"], ignore_errors=True)
        os._exit(0)


def _obey(link: socket.socket, first: dict[str, Any], setup: dict[str, Any], process: Waiting) -> None:
    session = first["op"] == "open"
    if session:
        dismiss(process)
    if setup["isolated"]:
        disk = first["limits"]["disk_mb"]
        confine.enlarge(setup["uid"], disk, disk * VAULT_COPIES if session else 0)
        confine.act_as(setup["uid"])
    if session:
        Warden(link, first, setup).serve()
    else:
        frames.reply(link, first, run_once(first, setup, process))


def immune() -> None:
    """Every signal at its default, so that the init of a namespace cannot be reached by one from inside."""
    for number in (signal.SIGINT, signal.SIGCHLD, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
