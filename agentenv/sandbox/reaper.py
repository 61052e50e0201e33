"""Removes the containers of an ended owner. It runs as a script, with the owner's pid and its containers' labels.

A container usually ends with its owner, because its input does. The reaper handles containers that were created but not
started, zygotes that no longer read, and engines that were unreachable at that moment.
"""

import os
import select
import sys
import time

EVERY_S = 0.5
QUIET = 6
"""Number of consecutive sweeps that must find nothing, because a request of the owner may still be in progress."""
GIVE_UP_S = 120.0


def await_death(pid: int) -> None:
    """Returns when ``pid``, the parent of this process, has ended."""
    # A handle instead of the pid, which may be reused.
    handle = os.pidfd_open(pid)
    if os.getppid() == pid:  # otherwise it ended before, and the pid may be reused
        select.select([handle], [], [])
    os.close(handle)


def sweep(labels: list[str]) -> None:
    """Removes all containers with all of ``labels`` repeatedly until none is left."""
    import docker

    end, quiet = time.monotonic() + GIVE_UP_S, 0
    while quiet < QUIET and time.monotonic() < end:
        try:
            engine = docker.from_env(timeout=10).api
            found = engine.containers(all=True, filters={"label": labels})
            quiet = 0 if found else quiet + 1
            for one in found:
                engine.remove_container(one["Id"], force=True, v=True)
            engine.close()
        except Exception:
            # Errors are ignored: the engine may be unreachable for a while, or a container may already be in removal.
            quiet = 0
        time.sleep(EVERY_S)


if __name__ == "__main__":
    try:
        await_death(int(sys.argv[1]))
    except ProcessLookupError:
        pass
    sweep(sys.argv[2:])
