"""Back to an earlier turn: by snapshot, by replay, never into a state that the record did not have."""

import asyncio
import itertools
import time
from dataclasses import dataclass
from typing import Any

import pytest

from agentenv.core.env import Env
from agentenv.core.rollout import Start
from agentenv.core.snapshot import Snapshot
from agentenv.core.trajectory import Turn
from agentenv.core.types import Info, Message, Observation, Part, StateCapability, Step, Task
from agentenv.errors import ConfigurationError, EnvFault, ReplayDivergence, SnapshotError
from agentenv.trainers.rewind import Rewinder, observation_hash

ACTIONS = ("a", "b", "c")


@dataclass
class Heard:
    text: str = ""


class Listener(Env[Heard]):
    """Says back everything that it has heard; counts its steps outside its state."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0
        self.opening = "Hi"

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        super().reset(seed=seed)
        self.state = Heard()
        return (Message("user", self.opening),), {}

    def step(self, action: str) -> Step:
        self.check_running()
        self.steps += 1
        self.state.text += action
        return self.result((Message("tool", self.state.text),))


class Replayed(Listener):
    """Memory that cannot be copied; ``noise`` is part of what it says."""

    capability = StateCapability.REPLAY
    noise = ""

    def step(self, action: str) -> Step:
        return super().step(action + self.noise)

    def snapshot(self) -> Snapshot:
        raise AssertionError("an environment of the level replay is never captured")


class Reluctant(Listener):
    """Refuses its second snapshot, as an interpreter with a running thread does."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = itertools.count()

    def snapshot(self) -> Snapshot:
        if next(self.asked) == 1:
            raise SnapshotError("a thread runs")
        return super().snapshot()


class Slow(Listener):
    def snapshot(self) -> Snapshot:
        time.sleep(0.2)
        return super().snapshot()


async def play(env: Listener, deadline_s: float = 5.0) -> tuple[Rewinder, Observation, list[Turn]]:
    """Three marked turns."""
    rewinder = Rewinder(Start(env, Task("t", "q"), 0), deadline_s)
    opening, _ = await env.areset(seed=0)
    turns = []
    for action in ACTIONS:
        await rewinder.mark()
        turns.append(Turn(action, (await env.astep(action)).observation))
    return rewinder, opening, turns


@pytest.mark.parametrize("env", [Listener(), Replayed(), Reluctant()], ids=lambda env: type(env).__name__)
def test_the_environment_goes_back_to_the_beginning_of_any_turn(env: Listener) -> None:
    async def scenario() -> None:
        rewinder, opening, turns = await play(env)
        for turn in (2, 0, 1, 1):
            await rewinder.back_to(turn, opening, turns)
            assert env.state.text == "abc"[:turn]
            assert env.step("x").info["turn"] == turn + 1
        await rewinder.release()

    asyncio.run(scenario())


def test_a_snapshot_repeats_no_turn_and_a_replay_repeats_those_before() -> None:
    async def steps(env: Listener) -> int:
        rewinder, opening, turns = await play(env)
        await rewinder.back_to(2, opening, turns)
        return env.steps - 3

    assert asyncio.run(steps(Listener())) == 0
    assert asyncio.run(steps(Replayed())) == 2


def test_a_replay_that_shows_something_else_is_a_fault() -> None:
    async def scenario(change: str) -> None:
        env = Replayed()
        rewinder, opening, turns = await play(env)
        setattr(env, change, "?")
        await rewinder.back_to(2, opening, turns)

    with pytest.raises(
        ReplayDivergence, match=r"turn 0 of the replay shows [0-9a-f]{12} and the record [0-9a-f]{12}"
    ):
        asyncio.run(scenario("noise"))
    with pytest.raises(ReplayDivergence, match="the opening of the replay"):
        asyncio.run(scenario("opening"))


def test_what_can_neither_be_captured_nor_replayed_is_refused() -> None:
    class Nothing(Listener):
        capability = StateCapability.NONE

    with pytest.raises(ConfigurationError, match="Nothing can neither be captured nor replayed"):
        Rewinder(Start(Nothing(), Task("t", "q"), 0), 1.0)


def test_a_snapshot_past_the_deadline_is_a_fault() -> None:
    with pytest.raises(EnvFault, match=r"the environment's snapshot took longer than 0\.01 s"):
        asyncio.run(play(Slow(), deadline_s=0.01))


def test_released_snapshots_are_gone() -> None:
    async def scenario() -> None:
        rewinder, _, _ = await play(Listener())
        taken = [*rewinder._snapshots]
        await rewinder.release()
        assert [snapshot is not None and snapshot.released for snapshot in taken] == [True] * 3

    asyncio.run(scenario())


def test_hashes_tell_roles_texts_and_images_apart() -> None:
    seen = [
        (Message("tool", "a"),),
        (Message("user", "a"),),
        (Message("tool", "a"), Message("tool", "a")),
        (Message("tool", (Part("image", image=b"1"),)),),
        (Message("tool", (Part("image", image=b"2"),)),),
        (),
    ]
    assert len({observation_hash(observation) for observation in seen}) == len(seen)
