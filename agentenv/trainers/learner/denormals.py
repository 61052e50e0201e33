"""Floating-point numbers below 1e-38 cost a processor many times as much as others; training does without them."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Inside, denormal numbers are zeros: Adam's tiny second moments would slow every multiplication down.

    The setting belongs to the thread, not to torch: left on, ``5e-324`` would be 0 in the caller's own code.
    """
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
