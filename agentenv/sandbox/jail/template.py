"""The fork template: the process that forks every supervisor of a jail, and through which no message ever passes.

A fork inherits everything in its parent's memory, including freed blocks. The template receives a request as one byte and
answers with descriptors, so no run or session can find anything of an earlier one in the memory that it inherits.
"""

import os
import signal
import socket
from typing import Any, NoReturn

from agentenv.sandbox.jail import confine, frames, kernel
from agentenv.sandbox.jail.supervisor import serve

RUN, SESSION = b"r", b"s"
"""The requests of the router."""
MADE, FAILED = b".", b"!"
"""The answers to the router: the first comes with the supervisor's link and handle, the second with the reason."""


def serve_requests(control: socket.socket, setup: dict[str, Any]) -> NoReturn:
    """Forks a supervisor for each byte on ``control``, until the router has ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps them; the router watches their handles
    while kind := control.recv(1):
        try:
            link, handle = _fork_supervisor(setup, session=kind == SESSION)
        except OSError as error:
            control.sendall(FAILED)
            frames.send(control, f"no process can be started in the jail: {error.strerror}".encode())
            continue
        socket.send_fds(control, [MADE], [link.fileno(), handle])
        link.close()
        os.close(handle)
    os._exit(0)


def _fork_supervisor(setup: dict[str, Any], *, session: bool) -> tuple[socket.socket, int]:
    """Forks a supervisor in its own PID namespace; returns its link and its handle."""
    ours, theirs = socket.socketpair()
    own = setup | {"uid": confine.draw_uid(setup)}
    pid = kernel.fork_into(kernel.CLONE_NEWPID) if setup["isolated"] else os.fork()
    if pid == 0:
        # The router's socket must not stay open in the child.
        keep = theirs.detach()
        os.closerange(3, keep)
        os.closerange(keep + 1, 1 << 20)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        serve(socket.socket(fileno=keep), own, session=session)
    theirs.close()
    return ours, os.pidfd_open(pid)
