"""Gives back the memory of large requests: the C library keeps what was freed in the middle of its heap until it is told."""

import ctypes
import threading

LARGE_BYTES = 4 * 2**20
"""A reply of so many bytes, which took several times that to make, is worth a look at the whole heap."""
_DELAY_S = 0.5  # until what was sent is freed; a burst of large requests costs one look

_planned = threading.Lock()


def trim_soon() -> None:
    """Returns freed memory to the system in a moment, in a thread; does nothing where the C library is not glibc."""
    if _planned.acquire(blocking=False):
        timer = threading.Timer(_DELAY_S, _trim)
        timer.daemon = True
        timer.start()


def _trim() -> None:
    # Released first: what is sent from now on may need a look of its own.
    _planned.release()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
