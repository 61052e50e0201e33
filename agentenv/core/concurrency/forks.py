"""Registers functions that every forked process calls first."""

import os
from collections.abc import Callable


def in_forked_processes(call: Callable[[], object]) -> None:
    """Makes every process that is forked from this one call ``call`` first. Does nothing on Windows, which has no fork."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=call)


__all__ = ["in_forked_processes"]
