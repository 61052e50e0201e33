"""When a call over the network is made again, and when it is given up: one rule for every client."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from agentenv.core.concurrency.backoff import backoff

T = TypeVar("T")

_spread = random.Random()  # of its own: the global generator belongs to experiments


class TryAgain(Exception):
    """A try failed, and another one may not.

    Args:
        reason: what happened.
        after_s: seconds that the server asks to be left alone, if it does.
    """

    def __init__(self, reason: str, after_s: float | None = None) -> None:
        super().__init__(reason)
        self.after_s = after_s


class NotReached(TryAgain):
    """A try in which no connection came about, so that nothing was sent."""


class GaveUp(Exception):
    """Raised when no try succeeded; says how the last one ended.

    Args:
        reason: of the last try.
        tries: that were made.
        seconds: that they took, pauses included.
        late: whether the time was up before the tries were.
        reached: whether a connection came about in any of them.
    """

    def __init__(self, reason: str, tries: int, seconds: float, *, late: bool, reached: bool = True) -> None:
        super().__init__(reason)
        self.reason, self.tries, self.seconds, self.late, self.reached = reason, tries, seconds, late, reached


@dataclass(frozen=True)
class RetryPolicy:
    """How long a call is waited for, how often it is made, and how much it may answer."""

    timeout_s: float | None = 60.0
    """For the call as a whole, every try and pause included; None leaves deadlines to the caller."""
    connect_s: float | None = 5.0
    """For opening a connection."""
    tries: int = 8
    """At least 1."""
    pause_s: float = 0.2
    """Before the second try; doubles from try to try, each time spread by half either way."""
    longest_pause_s: float = 5.0
    """Bounds the pauses; a server's Retry-After may ask for a longer one."""
    hedge_after_s: float | None = None
    """Without an answer after so long, the same try is made a second time beside the first; None never does."""
    connections: int | None = 64
    """Open at once to one host, in each event loop; None is any number."""
    statuses: frozenset[int] = frozenset({429, 502, 503, 504})
    """Refusals that may pass."""
    most_bytes: int = 1 << 28
    """Of one answer; a longer one is a failure and is not read to its end."""

    async def run(self, attempt: Callable[[int], Awaitable[T]]) -> T:
        """The first result of ``attempt``, which is given the number of the try from 1 and raises `TryAgain`.

        Raises:
            GaveUp: there was none in time, or in so many tries.
        """
        began = time.monotonic()
        reason, tries, late, reached = "", 0, False, False
        try:
            async with asyncio.timeout(self.timeout_s):
                for tries in range(1, self.tries + 1):
                    try:
                        return await attempt(tries)
                    except TryAgain as again:
                        reason, after_s = str(again), again.after_s
                        reached |= not isinstance(again, NotReached)
                    if tries < self.tries:
                        await asyncio.sleep(self.pause(tries, after_s))
        except TimeoutError:
            reached |= not reason
            reason, late = reason or "no answer yet", True
        raise GaveUp(reason, tries, time.monotonic() - began, late=late, reached=reached)

    def pause(self, tries: int, after_s: float | None = None) -> float:
        """Seconds to wait after ``tries`` failures, where the server asks for ``after_s``: never less than that."""
        if after_s == 0:
            return 0.0
        # The larger of both: to come back before the server wants it only costs a try.
        own = backoff(tries, first_s=self.pause_s, longest_s=self.longest_pause_s, rng=_spread)
        return max(own, after_s or 0.0)
