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
from agentenv.sandbox.jail.once import run_once

VAULT_COPIES = 40


def serve(link: socket.socket, setup: dict[str, Any]) -> NoReturn:
    """Answers the orders on ``link``; the first says whether it is a run or a session."""
    try:
        first = json.loads(frames.receive(link))
        session = first["op"] == "open"
        try:
            if not setup["isolated"]:
                setup["root"] = tempfile.mkdtemp(dir=setup["root"])
            else:
                disk = first["limits"]["disk_mb"]
                confine.furnish(disk, disk * VAULT_COPIES if session else 0)
            if session:
                from agentenv.sandbox.jail.session import Warden

                Warden(link, first, setup).serve()
            else:
                frames.send(link, frames.encode(run_once(first, setup)))
        except trees.Refused as reason:
            frames.send(link, frames.encode({"refused_input": str(reason)}))
        except Exception as error:
            frames.send(link, frames.encode({"fault": f"{type(error).__name__}: {error}"}))
    except frames.Closed:
        pass
    finally:
        if not setup["isolated"]:
            shutil.rmtree(setup["root"], ignore_errors=True)
        os._exit(0)


def immune() -> None:
    """Every signal at its default, so that the init of a namespace cannot be reached by one from inside."""
    for number in (signal.SIGINT, signal.SIGCHLD, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
