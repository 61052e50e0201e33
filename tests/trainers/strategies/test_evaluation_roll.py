"""Evaluations with a strategy: which strategies may play, in which format, and that each start gives one trajectory."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from agentenv.core.chat import InlineFormat
from agentenv.core.rollout import EpisodeSpec, RolloutConfig, rollout
from agentenv.core.types import Message, Task
from agentenv.envs.calculator import Calculator
from agentenv.errors import ConfigurationError, UnknownName
from agentenv.policies.scripted import ScriptedPolicy
from agentenv.trainers.strategies.evaluation_roll import strategy_roll
from agentenv.trainers.strategies.strategies import ONE_EACH, STRATEGIES, PlainStrategy

TASKS = [Task("a", "1 + 1", ("2",)), Task("b", "2 + 2", ("4",))]
CONFIG = RolloutConfig(context_tokens=4096, turn_tokens=512, stop=Calculator.stop)


class Conversations:
    """A chat format that makes each prompt of the whole conversation; nothing is played in it."""

    def open(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Any:
        raise AssertionError("nothing may be played")

    def go_on(self, ids: Sequence[int], conversation: Any, new: Sequence[Message]) -> Any:
        raise AssertionError("nothing may be played")


@dataclass(frozen=True, kw_only=True)
class Twice:
    """A strategy of somebody's own that plays every start twice."""

    async def play(self, specs: Any, context: Any) -> Any:
        plain = PlainStrategy()
        return [*await plain.play(specs, context), *await plain.play(specs, context)]


def played(name: str, chat: Any = None, **options: Any) -> list[Any]:
    policy = ScriptedPolicy({f"e-{place}": [task.answers[0]] for place, task in enumerate(TASKS)})
    specs = [EpisodeSpec(Calculator(), task, seed) for seed, task in enumerate(TASKS)]
    roll = strategy_roll(name, options)
    return asyncio.run(
        _awaited(roll(specs, policy, chat or InlineFormat(policy.tokenizer), CONFIG, name="e"))
    )


async def _awaited(rolling: Any) -> Any:
    return await rolling


def test_plain_is_the_loop_itself() -> None:
    assert strategy_roll("plain", {}) is rollout


def test_what_chooses_by_rewards_is_refused() -> None:
    """An evaluation must not look at them."""
    with pytest.raises(ConfigurationError, match="keeps an episode by its reward"):
        strategy_roll("vm_mcts", {"value": "verifier"})


@pytest.mark.parametrize("name", ["plain", "judge", "self_search", "rollback"])
def test_each_start_gives_one_trajectory_in_its_place(name: str) -> None:
    assert [(one.task.id, one.reward, one.id) for one in played(name)] == [
        ("a", 1.0, "e-0"),
        ("b", 1.0, "e-1"),
    ]


@pytest.mark.parametrize("name", sorted(STRATEGIES.keys() - set(ONE_EACH)))
def test_strategies_that_make_groups_are_refused_before_anything_is_played(name: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        strategy_roll(name, {})


def test_wrong_names_and_options_are_refused() -> None:
    with pytest.raises(UnknownName, match="judge"):
        strategy_roll("juge", {})
    with pytest.raises(UnknownName, match="drop"):
        strategy_roll("judge", {"drops": "mark"})


def test_the_native_format_has_no_room_for_texts_between_turns() -> None:
    with pytest.raises(ConfigurationError, match="native"):
        played("judge", Conversations())


def test_a_strategy_of_ones_own_gives_one_trajectory_for_each_start(monkeypatch: pytest.MonkeyPatch) -> None:
    from agentenv.trainers.strategies import evaluation_roll

    monkeypatch.setattr(evaluation_roll, "get_strategy", lambda name, options: Twice())
    with pytest.raises(ConfigurationError, match="own:Twice"):
        played("own:Twice")
