"""Places of a service: one client waits for itself, holds no more than its share, and nothing of who left is kept."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from agentenv.serving.client_slots import ClientSlots
from agentenv.serving.limits import ServerLimits
from agentenv.web.gate import Refusal

QUICK_S = 0.05


def slots(**bounds: Any) -> tuple[ClientSlots, list[str | None]]:
    """Places, and a list of whom they asked to make room."""
    asked: list[str | None] = []
    return ClientSlots(ServerLimits(**({"wait_s": QUICK_S} | bounds)), asked.append), asked


def played(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(coroutine, 20.0))


@pytest.mark.parametrize(
    ("sessions", "share", "mcp", "mcp_share"),
    [(1, 1, 1, 1), (2, 2, 1, 1), (3, 2, 1, 1), (5, 2, 2, 2), (8, 4, 4, 2), (128, 64, 64, 32)],
)
def test_one_client_may_have_half_and_at_least_two(
    sessions: int, share: int, mcp: int, mcp_share: int
) -> None:
    limits = ServerLimits(sessions=sessions)
    assert (limits.share, limits.mcp_sessions, limits.mcp_share) == (share, mcp, mcp_share)
    assert ServerLimits(sessions=sessions, per_client=sessions).share == sessions
    assert ServerLimits(sessions=sessions, per_client=1).mcp_share == 1


@pytest.mark.parametrize(("sessions", "share"), [(4, 2), (8, 4), (9, 4)])
def test_a_client_beyond_its_share_is_refused_and_another_is_not(sessions: int, share: int) -> None:
    async def play() -> None:
        given, asked = slots(sessions=sessions)
        for _ in range(share):
            await given.take("a")
        with pytest.raises(Refusal, match=f"holds {share} slots"):
            await given.take("a")
        assert asked == ["a"]  # only its own unused sessions give way for it
        for number in range(sessions - share):
            await given.take(f"other {number // share}")
        with pytest.raises(Refusal, match=f"All {sessions} slots"):
            await given.take("c")

    played(play())


def test_who_waits_for_its_own_share_is_served_when_it_gives_a_place_back() -> None:
    async def play() -> None:
        given, _ = slots(sessions=4, wait_s=10.0)
        for _ in range(2):
            await given.take("a")
        waiting = asyncio.ensure_future(given.take("a"))
        await asyncio.sleep(0)
        assert given.waiting == 1
        await given.take("b")  # it passes those who wait for themselves
        given.give("b")
        assert not waiting.done()
        given.give("a")
        await waiting
        assert given.waiting == 0

    played(play())


def test_one_client_fills_no_more_than_half_of_the_queue() -> None:
    async def play() -> None:
        given, _ = slots(sessions=2, per_client=1, waiting=6, wait_s=10.0)
        await given.take("a")
        await given.take("b")
        queue = [asyncio.ensure_future(given.take("a")) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(Refusal, match="3 callers wait"):
            await given.take("a")
        other = asyncio.ensure_future(given.take("c"))
        await asyncio.sleep(0)
        assert given.waiting == 4
        given.give("b")
        await other
        for one in queue:
            one.cancel()
        await asyncio.gather(*queue, return_exceptions=True)

    played(play())


def test_nothing_is_kept_of_clients_that_left_or_gave_up() -> None:
    async def play() -> None:
        given, _ = slots(sessions=2)
        for number in range(100):
            await given.take(str(number))
            given.give(str(number))
        await given.take("a")
        await given.take("b")
        with pytest.raises(Refusal):
            await given.take("c")
        late = asyncio.ensure_future(given.take("d"))
        await asyncio.sleep(0)
        late.cancel()
        with pytest.raises(asyncio.CancelledError):
            await late
        given.give("a")
        given.give("b")
        assert (len(given._shares), len(given._held), len(given._waiting)) == (0, 0, 0)
        for client in "ef":  # and no place was lost
            await given.take(client)

    played(play())


def test_nothing_is_kept_of_clients_that_are_refused_at_once() -> None:
    async def play() -> None:
        given, _ = slots(sessions=1, waiting=0)
        await given.take("a")
        for number in range(3):
            with pytest.raises(Refusal):
                await given.take(f"other {number}")
        assert list(given._shares) == ["a"]

    played(play())
