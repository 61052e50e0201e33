"""Removes the containers of a dead owner: run as a script beside it, with its pid and the labels of its containers.

A container ends with its owner anyway, because its input does. This one is for what was created and not yet started, for a
zygote that no longer listens, and for an engine that was away at that moment.
"""

import os
import select
import sys
import time

EVERY_S = 0.5
QUIET = 6
"""Sweeps in a row that must find nothing: an order of the dead owner may still be on its way."""
GIVE_UP_S = 120.0


def await_death(pid: int) -> None:
    """Returns once ``pid``, the parent of this process, has ended."""
    # A handle and not the number, which the system may give to another process.
    handle = os.pidfd_open(pid)
    if os.getppid() == pid:  # or else it ended before, and the number may be another's
        select.select([handle], [], [])
    os.close(handle)


def sweep(labels: list[str]) -> None:
    """Removes every container with all of ``labels``, again and again until there is none any more."""
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
            # An engine that is away comes back, and what is being removed already is as good as gone.
            quiet = 0
        time.sleep(EVERY_S)


if __name__ == "__main__":
    try:
        await_death(int(sys.argv[1]))
    except ProcessLookupError:
        pass
    sweep(sys.argv[2:])
