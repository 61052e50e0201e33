"""How many groups a step may begin that stops the groups it leaves.

APRIL, Zhou et al. 2025, arXiv:2509.18521, begins N' groups for the N of a step, N' above N, and stops the others once N are
complete. A group that ends does not make room for another one within the step: what it began would be stopped with
hardly anything done, and more of what is trained would be of several versions.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class StartLimit:
    """The groups of one step, which begin in the order in which they ask. Belongs to the loop that runs them."""

    def __init__(self, groups: int) -> None:
        """Lets as many as ``groups`` groups begin."""
        self._left = asyncio.Semaphore(groups)
        self._allowed, self._begun, self._ended = groups, 0, 0

    @property
    def is_spent(self) -> bool:
        """Whether as many groups have begun as may, and all of them have ended."""
        return self._begun == self._ended == self._allowed

    def raise_to(self, groups: int) -> None:
        """Lets ``groups`` begin in all, if fewer might so far."""
        for _ in range(groups - self._allowed):
            self._left.release()
        self._allowed = max(self._allowed, groups)

    def extend(self, groups: int) -> None:
        """Lets ``groups`` more begin."""
        self.raise_to(self._allowed + groups)

    @asynccontextmanager
    async def group(self) -> AsyncIterator[None]:
        """One group from its beginning to its end, once it may begin."""
        await self._left.acquire()
        self._begun += 1
        try:
            yield
        finally:
            self._ended += 1
