"""Ends what a Ray cluster of this machine leaves running when the process that started it has gone, however it went.

Ray's own agents look for their dead server for a minute. This program waits beside the run, on the other end of a pipe that
closes with it, and then ends every process that still has a file of the cluster's session open. It is run by its path and
imports nothing but the standard library.
"""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

PATIENCE_S = 5.0
"""Seconds in which the processes of a session may end by themselves."""
_GLANCE_S = 0.1


def users_of(folder: Path, *, but: int) -> list[int]:
    """The processes with an open file below ``folder``, this one and the process ``but`` left out."""
    numbers = [int(process.name) for process in Path("/proc").glob("[0-9]*")]
    return [number for number in numbers if number not in (os.getpid(), but) and _uses(number, folder)]


def _uses(number: int, folder: Path) -> bool:
    try:
        # By its open files and not by its name or parent, which do not say to which cluster it belongs.
        places = list(Path(f"/proc/{number}/fd").iterdir())
    except OSError:  # it has just ended, or is somebody else's
        return False
    for place in places:
        with contextlib.suppress(OSError):  # it has just been closed
            if place.readlink().is_relative_to(folder):
                return True
    return False


def end_session(folder: Path, *, but: int, patience_s: float = PATIENCE_S) -> list[int]:
    """Waits for the processes of a session to end, and kills those that have not after ``patience_s`` seconds.

    Returns:
        The processes that were killed.
    """
    end = time.monotonic() + patience_s
    while (left := users_of(folder, but=but)) and time.monotonic() < end:
        time.sleep(_GLANCE_S)
    for number in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
    return left


if __name__ == "__main__":
    while os.read(0, 1):  # until the run closes the pipe, or is gone
        pass
    end_session(Path(sys.argv[1]), but=int(sys.argv[2]))
