"""Decides when to give up a service that takes requests and answers none of them."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from agentenv.web.retries import GaveUp

_FIRST = 4  # requests of which one at least must be answered


@dataclass
class SentRequest:
    """One request, with all its tries."""

    unanswered: bool = False
    """Whether its last try was sent and not answered: one that waits for its turn says nothing of the service."""
    began: float = field(default_factory=time.monotonic)


@dataclass
class Silence:
    """Counts the requests in a row that a service did not answer.

    An answer of any kind, be it a refusal, ends the count, so that what is slow or fails sometimes is not given up.
    """

    patience_s: float
    """Seconds for which a service that has answered before may be silent, as it is while it is started again."""
    heard: bool = False
    """Whether it has ever answered."""
    count: int = 0
    _answered: float = 0.0
    """When the last answer came."""
    _began: float = 0.0
    """When the first of those that are counted began, or the last answer before their end came."""
    _given_up: float = 0.0
    """When the last of them was given up."""
    _last: GaveUp | None = None
    """How the last of them ended."""
    _under_way: int = 0

    @property
    def lasting(self) -> bool:
        """Whether too many requests were not answered; of a service that has answered before, also for too long."""
        patience = self.patience_s if self.heard else 0.0
        return self.count >= _FIRST and time.monotonic() - self._began >= patience

    def hopeless(self, since: float) -> GaveUp | None:
        """How the last request ended, where one that waits ``since`` then is not worth its time; None where it is.

        In the silence one is tried after the other. Those that wait meanwhile would wait for as many deadlines as there are
        requests.
        """
        return self._last if self.lasting and (self._under_way > 0 or since < self._given_up) else None

    def end(self) -> None:
        """Notes an answer."""
        self.heard, self.count, self._answered = True, 0, time.monotonic()

    @contextmanager
    def request(self) -> Iterator[SentRequest]:
        """Within the block a request is under way; that no answer came is counted where it is given up."""
        request = SentRequest()
        self._under_way += 1
        try:
            yield request
        except GaveUp as error:
            if request.unanswered:
                began = max(request.began, self._answered)
                self._began = min(self._began, began) if self.count else began
                self._given_up, self._last = time.monotonic(), error
                self.count += 1
            raise
        finally:
            self._under_way -= 1
