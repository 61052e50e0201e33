"""Back to an earlier turn: by snapshot, by replay, never into a state that the record did not have."""

import asyncio
import itertools
import re
import time
from dataclasses import dataclass
from typing import Any

import pytest

from agentenv.core.chat import InlineFormat
from agentenv.core.env import Env
from agentenv.core.rollout import EpisodeSpec, RolloutConfig, open_episode, take_turn
from agentenv.core.snapshot import Snapshot
from agentenv.core.trajectory import Trajectory
from agentenv.core.types import (
    EndReason,
    Info,
    Message,
    MessagePart,
    Observation,
    StateCapability,
    Step,
    Task,
)
from agentenv.errors import ConfigurationError, SnapshotRefused
from agentenv.policies.fakes import ByteTokenizer
from agentenv.policies.scripted import ScriptedPolicy
from agentenv.trainers.strategies.rewind import Rewinder, observation_hash

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
        return (Message("user", self.opening),), {"task_id": options["task"].id} if options else {}

    def step(self, action: str) -> Step:
        self.check_running()
        self.steps += 1
        self.state.text += action
        return self.result((Message("tool", self.state.text),))


class Replayed(Listener):
    """Memory that cannot be copied; ``noise`` is part of what it says, and it ends when it has heard ``end_at``."""

    capability = StateCapability.REPLAY
    noise = ""
    end_at = "never"

    def step(self, action: str) -> Step:
        step = super().step(action + self.noise)
        over = self.state.text == self.end_at
        return step._replace(
            terminated=over, info=step.info | ({"end_reason": EndReason.ANSWERED} if over else {})
        )

    def snapshot(self) -> Snapshot:
        raise AssertionError("an environment of the level replay is never captured")


class Reluctant(Listener):
    """Refuses its second snapshot, as an interpreter with a running thread does."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = itertools.count()

    def snapshot(self) -> Snapshot:
        if next(self.asked) == 1:
            raise SnapshotRefused("a thread runs")
        return super().snapshot()


class Slow(Listener):
    def snapshot(self) -> Snapshot:
        time.sleep(0.2)
        return super().snapshot()


CHAT = InlineFormat(ByteTokenizer())


class Slot:
    """Three marked turns, and the way back."""

    def __init__(self, env: Listener, deadline_s: float = 5.0) -> None:
        self.env = env
        self.start = EpisodeSpec(env, Task("t", "q"), 0)
        self.config = RolloutConfig(deadline_s=deadline_s)
        self.rewinder = Rewinder(self.start, self.config)

    async def play(self) -> None:
        policy = ScriptedPolicy({"e": ACTIONS})
        self.record = await open_episode(self.start, policy, CHAT, self.config, episode="e")
        for _ in ACTIONS:
            await self.rewinder.mark(self.record)
            if self.record.ended is None:
                await take_turn(self.record, policy, CHAT, self.config)

    async def back_to(self, turn: int) -> Trajectory | None:
        """The fault that the way back ended in, if any."""
        again = self.record.copy()
        del again.turns[turn:]
        await self.rewinder.back_to(again)
        return again.ended


@pytest.mark.parametrize("env", [Listener(), Replayed(), Reluctant()], ids=lambda env: type(env).__name__)
def test_the_environment_goes_back_to_the_beginning_of_any_turn(env: Listener) -> None:
    async def scenario() -> None:
        slot = Slot(env)
        await slot.play()
        for turn in (2, 0, 1, 1):
            assert await slot.back_to(turn) is None
            assert env.state.text == "abc"[:turn]
            assert env.step("x").info["turn"] == turn + 1
        await slot.rewinder.release()

    asyncio.run(scenario())


@pytest.mark.parametrize(("env", "repeated"), [(Listener(), 0), (Replayed(), 2)])
def test_a_snapshot_repeats_no_turn_and_a_replay_those_before(env: Listener, repeated: int) -> None:
    async def scenario() -> None:
        slot = Slot(env)
        await slot.play()
        await slot.back_to(2)

    asyncio.run(scenario())
    assert env.steps == len(ACTIONS) + repeated


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("noise", r"ReplayDivergence: turn 0 of the replay shows [0-9a-f]{12} and the record [0-9a-f]{12}"),
        ("opening", "ReplayDivergence: the opening of the replay"),
        ("end_at", "ReplayDivergence: the replay ended with turn 1, and the recorded episode went on"),
    ],
)
def test_a_replay_that_diverges_is_a_fault(change: str, words: str) -> None:
    async def scenario() -> Trajectory | None:
        slot = Slot(env := Replayed())
        await slot.play()
        setattr(env, change, "ab" if change == "end_at" else "?")
        return await slot.back_to(2)

    ended = asyncio.run(scenario())
    assert ended is not None
    assert (ended.valid, ended.end_reason, ended.reward) == (False, EndReason.ENV_FAULT, 0.0)
    assert re.match(words, ended.error)


def test_what_can_neither_be_captured_nor_replayed_is_refused() -> None:
    class Nothing(Listener):
        capability = StateCapability.NONE

    with pytest.raises(ConfigurationError, match="Nothing"):
        Slot(Nothing())


def test_a_snapshot_past_the_deadline_ends_the_episode_as_a_fault() -> None:
    slot = Slot(Slow(), deadline_s=0.01)
    asyncio.run(slot.play())
    assert slot.record.ended is not None
    assert re.match(r"EnvFault: .*\bsnapshot\b.*\b0\.01\b", slot.record.ended.error)


def test_released_snapshots_are_gone() -> None:
    slot = Slot(Listener())
    asyncio.run(slot.play())
    taken = [*slot.rewinder._snapshots]
    asyncio.run(slot.rewinder.release())
    assert [snapshot is not None and snapshot.released for snapshot in taken] == [True] * 3


def test_hashes_tell_roles_texts_and_images_apart() -> None:
    seen = [
        (Message("tool", "a"),),
        (Message("user", "a"),),
        (Message("tool", "a"), Message("tool", "a")),
        (Message("tool", (MessagePart("image", image=b"1"),)),),
        (Message("tool", (MessagePart("image", image=b"2"),)),),
        (),
    ]
    assert len({observation_hash(observation) for observation in seen}) == len(seen)
