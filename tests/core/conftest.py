"""A deadline for every test of this folder: one that waits for ever fails, and the rest is run."""

import signal
from collections.abc import Iterator
from typing import Any

import pytest

DEADLINE_S = 240.0


@pytest.fixture(autouse=True)
def _deadline() -> Iterator[None]:
    """Fails the test once the time is over, and again each 30 seconds if its clean-up waits as well."""

    def late(*_: Any) -> None:
        pytest.fail(f"The test took longer than {DEADLINE_S:g} seconds.")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, DEADLINE_S, 30.0)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    signal.signal(signal.SIGALRM, before)
