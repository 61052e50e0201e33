"""A session whose caller goes while an environment is forked or captured: what comes late is closed."""

import asyncio
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import pytest

from agentenv.core.concurrency.deadlines import Deadline, ends_within
from agentenv.core.env import Env
from agentenv.core.snapshot import Snapshot
from agentenv.serving.env_session import EnvSession
from agentenv.serving.limits import ServerLimits
from agentenv.serving.wire import ExtensionData

T = TypeVar("T")
WAIT_S = 30.0


class Meter:
    """Counts nothing."""

    def episode(self, end_reason: str) -> None:
        """Nothing."""

    def fault(self, kind: str) -> None:
        """Nothing."""

    def request(self, route: str, status: int | str, seconds: float) -> None:
        """Nothing."""


class Host:
    """Has a slot for everybody, and waits for a call that was given up, or else cancels it at once."""

    name, expert, limits = "test/House-v0", False, ServerLimits()

    def __init__(self, *, patient: bool) -> None:
        self.patient, self.meter = patient, Meter()
        self.kept: list[EnvSession] = []
        self.slot: asyncio.Future[None] | None = None
        """Where there is one, it is waited for before an environment is kept."""

    def options(self, given: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """As they are."""
        return dict(given or {})

    async def wrap(self, env: Env[Any], client: str) -> EnvSession:
        """Keeps it."""
        if self.slot is not None:
            await self.slot
        self.kept.append(EnvSession(self, env, client))
        return self.kept[-1]

    async def await_call(self, call: asyncio.Future[T], what: str, deadline: Deadline) -> T:
        """As the service does."""
        await ends_within(deadline, call)
        return call.result()

    def close_later(
        self, close: Callable[[], None], call: asyncio.Future[Any] | None, client: str
    ) -> asyncio.Task[None]:
        """As the service does, without its patience where there is none."""

        async def closing() -> None:
            if call is not None:
                if not self.patient:
                    call.cancel()
                await asyncio.gather(call, return_exceptions=True)
            await asyncio.to_thread(close)

        return asyncio.get_running_loop().create_task(closing())


async def until(condition: Callable[[], bool]) -> bool:
    """Whether it comes true."""
    for _ in range(int(WAIT_S / 0.01)):
        if condition():
            return True
        await asyncio.sleep(0.01)
    return False


class Held:
    """Makes what a method of an environment makes, but not before it is let go."""

    def __init__(self, method: Callable[[], Any]) -> None:
        self._method = method
        self.begun, self.let_go = threading.Event(), threading.Event()
        self.made: Any = None

    def __call__(self) -> Any:
        self.begun.set()
        assert self.let_go.wait(WAIT_S)
        self.made = self._method()
        return self.made


@pytest.mark.parametrize("patient", [True, False])
@pytest.mark.parametrize("verb", ["fork", "snapshot"])
def test_what_is_made_after_the_caller_has_gone_is_closed(house: Any, verb: Any, patient: bool) -> None:
    async def play() -> tuple[Host, Held]:
        house.reset(seed=0)
        held, host = Held(getattr(house, verb)), Host(patient=patient)
        setattr(house, verb, held)
        caller = asyncio.ensure_future(EnvSession(host, house).extension(ExtensionData(verb=verb)))
        assert await until(held.begun.is_set)
        caller.cancel()
        await asyncio.gather(caller, return_exceptions=True)
        held.let_go.set()
        closes = 2 if verb == "fork" else 1
        assert await until(lambda: house.shared.closes == closes)
        if verb == "snapshot":
            snapshot: Snapshot = held.made
            assert await until(lambda: snapshot.released)
        return host, held

    host, _ = asyncio.run(play())
    assert host.kept == []


def test_a_fork_whose_caller_goes_while_it_waits_for_a_slot_is_closed(house: Any) -> None:
    async def play() -> None:
        house.reset(seed=0)
        host = Host(patient=True)
        host.slot = asyncio.get_running_loop().create_future()
        fork = house.fork = Held(house.fork)
        fork.let_go.set()
        caller = asyncio.ensure_future(EnvSession(host, house).extension(ExtensionData(verb="fork")))
        assert await until(lambda: fork.made is not None)
        # The call is at the slot then; were it not, the fork would be closed as above.
        await asyncio.sleep(0.05)
        caller.cancel()
        await asyncio.gather(caller, return_exceptions=True)
        host.slot.set_result(None)
        assert await until(lambda: house.shared.closes == 2)

    asyncio.run(play())
