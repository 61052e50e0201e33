"""Critical steps by script: where an episode was lost, which pairs come of it, and what faults do."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from agentenv.core.chat import InlineFormat
from agentenv.core.env import Env
from agentenv.core.rollout import EpisodeSpec, RolloutConfig
from agentenv.core.trajectory import Origin, SegmentKind, Trajectory
from agentenv.core.types import Completion, EndReason, Info, Message, Observation, Sampling, Step, Task
from agentenv.errors import ConfigurationError, PolicyFault, PolicyRefusal
from agentenv.policies.fakes import ByteTokenizer
from agentenv.policies.scripted import complete
from agentenv.trainers.credit.preference_pairs import PAIR
from agentenv.trainers.strategies.critical_step import REFLECT
from agentenv.trainers.strategies.rollout_context import RolloutContext
from agentenv.trainers.strategies.strategies import get_strategy, play_groups

TOKENIZER = ByteTokenizer()
TASK = Task("t", "Write three times a.")


@dataclass
class WayState:
    done: int = 0
    lost: bool = False
    turns: int = 0


class Way(Env[WayState]):
    """Three times ``a`` succeed; after a ``b`` nothing does, until ``undo``; six turns."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        super().reset(seed=seed, options=options)
        self.state = WayState()
        return (Message("user", "Go"),), {"task_id": TASK.id}

    def step(self, action: str) -> Step:
        state = self.state
        state.turns += 1
        state.lost = action == "b" or (state.lost and action != "undo")
        state.done += action == "a" and not state.lost
        over = state.done == 3 or state.turns == 6
        end = None if not over else EndReason.SUBMITTED if state.done == 3 else EndReason.TURN_LIMIT
        return self.result(
            (Message("tool", "."),),
            reward=float(state.done == 3),
            end=end,
            truncated=end is EndReason.TURN_LIMIT,
        )


class Scripted:
    """The episode of seed 0 by script, every try by rule: ``undo`` under the hint, else ``a``; never right if ``lame``."""

    version, tokenizer = 0, TOKENIZER

    def __init__(self, script: Sequence[str], *, lame: bool = False, fails: bool = False) -> None:
        self.script, self.lame, self.fails = script, lame, fails

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
    ) -> Completion:
        seed, turn = divmod(sampling.seed, 1_000_003)
        if seed == 0:
            return complete(self.script[turn], TOKENIZER, sampling)
        if self.fails:
            raise PolicyFault("gone")
        shown = TOKENIZER.decode(prompt_ids)
        text = "b" if self.lame else "undo" if shown.rstrip().endswith(REFLECT) else "a"
        return complete(text, TOKENIZER, sampling)

    def release(self, episode: str) -> None: ...


def played(policy: Scripted, env: Env[Any] | None = None, **options: Any) -> list[Trajectory]:
    settings = RolloutConfig(context_tokens=4000, turn_tokens=50)
    context = RolloutContext(policy, InlineFormat(TOKENIZER), settings, TOKENIZER.decode)  # type: ignore[arg-type]
    (group,) = asyncio.run(
        play_groups(
            [[EpisodeSpec(env or Way(), TASK, 0, "g")]], get_strategy("critical_step", options), context
        )
    )
    return group


def pairs(group: Sequence[Trajectory]) -> dict[str, tuple[bool, int, list[str]]]:
    found = {}
    for t in group[1:]:
        about = t.info[PAIR]
        found[t.id.rpartition("-pair-")[2]] = (
            about["better"],
            about["turn"],
            [turn.action for turn in t.turns],
        )
    return found


def test_the_step_that_lost_the_episode_and_the_one_after_it() -> None:
    group = played(Scripted(["a", "b", "a", "a", "a", "a"]))
    assert pairs(group) == {
        "1-better": (True, 1, ["a", "a"]),
        "1-worse": (False, 1, ["a", "b"]),
        "2-better": (True, 2, ["a", "b", "undo"]),
        "2-worse": (False, 2, ["a", "b", "a"]),
    }
    base, *others = group
    assert base.reward == 0.0
    assert {t.origin for t in others} == {Origin.DEMONSTRATION}
    assert len({t.group_id for t in group}) == 5
    figures = base.info["strategy"]
    assert figures["critical_pairs"] == 2
    assert figures["sampled_tokens"] > base.response_tokens
    (recovery,) = [t for t in others if t.id.endswith("2-better")]
    assert not any(s.kind is SegmentKind.INJECTED for s in recovery.segments)
    assert REFLECT not in TOKENIZER.decode(recovery.ids.tolist())


class Windowed(Way):
    """Shows the whole context anew after every turn, as environments with a window of screens do."""

    def step(self, action: str) -> Step:
        step = super().step(action)
        return step._replace(observation=(Message("system", "Go"), Message("user", f"{self.state.turns}.")))


def test_a_recovery_is_found_where_every_turn_writes_the_context_anew() -> None:
    group = played(Scripted(["a", "b", "a", "a", "a", "a"]), Windowed())
    assert pairs(group)["2-better"] == (True, 2, ["a", "b", "undo"])
    assert not any(s.kind is SegmentKind.INJECTED for t in group for s in t.segments)


def test_a_late_mistake_is_found_late() -> None:
    found = pairs(played(Scripted(["c", "a", "a", "c", "b", "c"]), recover=False))
    # after the b of turn 4 an a does not count any more; before it a single one is enough
    assert found == {
        "1-better": (True, 4, ["c", "a", "a", "c", "a"]),
        "1-worse": (False, 4, ["c", "a", "a", "c", "b"]),
    }


def test_a_success_and_a_task_that_no_try_solves_give_no_pair() -> None:
    assert [t.reward for t in played(Scripted(["a", "a", "a"]))] == [1.0]
    (lost,) = played(Scripted(["b"] * 6, lame=True), tries=3)
    assert lost.info["strategy"]["critical_tries"] == 3
    assert lost.info["strategy"]["critical_pairs"] == 0


def test_a_fault_of_a_try_is_no_failure_of_the_state_and_no_pair() -> None:
    (base,) = played(Scripted(["b"] * 6, fails=True))
    assert (base.valid, base.reward) == (True, 0.0)


class Refusing(Scripted):
    """The content filter of its service refuses what ``refused`` holds: pairs of "base" or "try" and a turn."""

    refused: frozenset[tuple[str, int]] = frozenset()

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
    ) -> Completion:
        seed, turn = divmod(sampling.seed, 1_000_003)
        if ("try" if seed else "base", turn) in self.refused:
            raise PolicyRefusal("filtered")
        return await super().generate(prompt_ids, sampling, episode=episode)


def test_an_episode_that_was_refused_before_its_first_turn_has_no_critical_step() -> None:
    policy = Refusing([])
    policy.refused = frozenset({("base", 0)})
    (base,) = played(policy)
    assert (base.valid, base.end_reason, base.turns) == (True, EndReason.REFUSED, ())
    assert base.info["strategy"] == {"critical_tries": 0, "critical_pairs": 0, "sampled_tokens": 0}


class Paid(Way):
    """The whole reward stands in the first turn, and a ``b`` later takes it away."""

    def step(self, action: str) -> Step:
        self.state.turns += 1
        over = self.state.turns == 2
        reward = 1.0 if self.state.turns == 1 else -float(action == "b")
        return self.result((Message("tool", "."),), reward=reward, end=EndReason.SUBMITTED if over else None)


def test_a_try_that_acted_no_more_is_no_better_action() -> None:
    """The last try is refused in its first turn; the reward that it has already is that of the turns before."""
    policy = Refusing(["a", "b"])
    policy.refused = frozenset({("try", 1)})
    (base,) = played(policy, env=Paid(), recover=False)
    assert base.reward == 0.0


def test_options_out_of_range_are_refused() -> None:
    with pytest.raises(ConfigurationError):
        get_strategy("critical_step", {"tries": 0})
