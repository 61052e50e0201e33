"""The slots of a service: how many environments there are at a time, and how many of them one client may have.

Callers wait for a slot of their own client's share first and then for one of all slots, each in the order in which they
came. So a client that asks without end waits for itself, and leaves the other slots and half of the queue to others.
"""

import asyncio
from collections import Counter
from collections.abc import Callable

from agentenv.serving.limits import ServerLimits
from agentenv.web.gate import Refusal


class ClientSlots:
    """Hands out slots.

    Args:
        limits: bounds.
        make_room: closes an environment that keeps nobody from a slot, of the named client or of any.
    """

    def __init__(self, limits: ServerLimits, make_room: Callable[[str | None], object]) -> None:
        self._limits, self._make_room = limits, make_room
        self._free = asyncio.Semaphore(limits.sessions)
        self._shares: dict[str, asyncio.Semaphore] = {}
        self._held: Counter[str] = Counter()
        self._waiting: Counter[str] = Counter()

    @property
    def waiting(self) -> int:
        """Callers that wait for a slot."""
        return self._waiting.total()

    async def take(self, client: str) -> None:
        """Waits for a slot.

        Raises:
            Refusal: none came free in time, or too many callers wait already.
        """
        # The client's own share first: while waiting for it, a request keeps no slot from others.
        share = self._shares.get(client) or asyncio.Semaphore(self._limits.share)
        if share.locked() or self._free.locked():
            self._check_queue(client)
        self._shares[client] = share  # of who is refused nothing is kept
        self._waiting[client] += 1
        try:
            async with asyncio.timeout(self._limits.wait_s):
                await self._acquire(share, client)
                try:
                    await self._acquire(self._free, None)
                except BaseException:
                    # Given back where no slot of all came free, or the client would lose a part of its share for
                    # good.
                    share.release()
                    raise
            self._held[client] += 1
        except TimeoutError as error:
            raise self._full(client, f"none came free within {self._limits.wait_s:g} s") from error
        finally:
            self._waiting[client] -= 1
            self._forget(client)

    def give(self, client: str) -> None:
        """Gives a slot back."""
        self._held[client] -= 1
        self._free.release()
        self._shares[client].release()
        self._forget(client)

    def wanted(self, client: str) -> bool:
        """Whether a caller waits whom a slot of this client would serve."""
        own = bool(self._waiting[client]) and self._shares[client].locked()
        return own or (self.waiting > 0 and self._free.locked())

    def ask_again(self) -> None:
        """Makes room for those who wait, where something has come up since that keeps nobody from a slot."""
        for client in [client for client, count in self._waiting.items() if count]:
            self._make_room(client if self._shares[client].locked() else None)

    async def _acquire(self, slots: asyncio.Semaphore, whose: str | None) -> None:
        if slots.locked():
            self._make_room(whose)
        await slots.acquire()

    def _check_queue(self, client: str) -> None:
        """Refuses a caller where too many wait already: in all, or of its own client."""
        if self.waiting >= self._limits.waiting or self._waiting[client] >= max(1, self._limits.waiting // 2):
            raise self._full(client, f"{self.waiting} callers wait already")

    def _full(self, client: str, why: str) -> Refusal:
        if self._limits.sessions > self._limits.share <= self._held[client]:
            return Refusal(
                503,
                f"This client holds {self._held[client]} slots, which is all that one client may have (--per-client), and "
                f"{why}.",
                "Full",
            )
        return Refusal(503, f"All {self._limits.sessions} slots are taken and {why}.", "Full")

    def _forget(self, client: str) -> None:
        """Keeps nothing of a client that neither holds a slot nor waits for one."""
        if not self._held[client] and not self._waiting[client]:
            del self._held[client], self._waiting[client], self._shares[client]
