"""What a forked process does first, where the system forks processes at all."""

import os
from collections.abc import Callable


def in_forked_processes(call: Callable[[], object]) -> None:
    """Has every process that is forked from this one begin with ``call``. Windows forks none, and so never calls it."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=call)


__all__ = ["in_forked_processes"]
