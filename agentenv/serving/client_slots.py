"""Limits how many environments a service runs at a time, and how many of them belong to one client.

Callers first wait for a slot of their client's share, then for one of all slots, each in order of arrival. So a client with
too many requests waits for itself, and leaves the other slots and half of the queue to others.
"""

import asyncio
from collections import Counter
from collections.abc import Callable

from agentenv.serving.limits import ServerLimits
from agentenv.web.gate import Refusal


class ClientSlots:
    """Hands out the slots of a service.

    Args:
        limits: The limits on slots, queue and waiting time.
        make_room: Closes an environment that may be evicted: one of the named client, or of any client for None.
    """

    def __init__(self, limits: ServerLimits, make_room: Callable[[str | None], object]) -> None:
        self._limits, self._make_room = limits, make_room
        self._free = asyncio.Semaphore(limits.sessions)
        self._shares: dict[str, asyncio.Semaphore] = {}
        self._held: Counter[str] = Counter()
        self._waiting: Counter[str] = Counter()

    @property
    def waiting(self) -> int:
        """Number of callers that wait for a slot."""
        return self._waiting.total()

    async def take(self, client: str) -> None:
        """Waits for a slot.

        Raises:
            Refusal: no slot became free in time, or too many callers wait already.
        """
        # The client's share comes first, so that a request which waits for it does not keep a slot from others.
        share = self._shares.get(client) or asyncio.Semaphore(self._limits.share)
        if share.locked() or self._free.locked():
            self._check_queue(client)
        self._shares[client] = share  # set only here, so that nothing is stored for a refused client
        self._waiting[client] += 1
        try:
            async with asyncio.timeout(self._limits.wait_s):
                await self._acquire(share, client)
                try:
                    await self._acquire(self._free, None)
                except BaseException:
                    # Without a free slot, the share is given back; the client would otherwise lose a part of it for good.
                    share.release()
                    raise
            self._held[client] += 1
        except TimeoutError as error:
            raise self._full_refusal(client, f"none came free within {self._limits.wait_s:g} s") from error
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
        """Tells whether a caller is waiting who could use a slot of this client."""
        own = bool(self._waiting[client]) and self._shares[client].locked()
        return own or (self.waiting > 0 and self._free.locked())

    def ask_again(self) -> None:
        """Calls ``make_room`` again for all waiting callers, since more environments may be evicted now."""
        for client in [client for client, count in self._waiting.items() if count]:
            self._make_room(client if self._shares[client].locked() else None)

    async def _acquire(self, slots: asyncio.Semaphore, whose: str | None) -> None:
        if slots.locked():
            self._make_room(whose)
        await slots.acquire()

    def _check_queue(self, client: str) -> None:
        """Refuses a caller if too many already wait, in total or of the same client."""
        if self.waiting >= self._limits.waiting or self._waiting[client] >= max(1, self._limits.waiting // 2):
            raise self._full_refusal(client, f"{self.waiting} callers wait already")

    def _full_refusal(self, client: str, why: str) -> Refusal:
        if self._limits.sessions > self._limits.share <= self._held[client]:
            return Refusal(
                503,
                f"This client holds {self._held[client]} slots, which is all that one client may have (--per-client), and "
                f"{why}.",
                "Full",
            )
        return Refusal(503, f"All {self._limits.sessions} slots are taken and {why}.", "Full")

    def _forget(self, client: str) -> None:
        """Deletes the counters of a client that neither holds a slot nor waits for one."""
        if not self._held[client] and not self._waiting[client]:
            del self._held[client], self._waiting[client], self._shares[client]
