"""Demonstrations in the native form of a model: what the expert writes in tags becomes calls, and is scored as calls."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from agentenv.core.chat import ends_of_turn
from agentenv.core.native_format import NativeFormat
from agentenv.core.rollout import EpisodeSpec, RolloutConfig
from agentenv.core.trajectory import Origin
from agentenv.core.types import EndReason
from agentenv.envs.search.local_search import LocalSearch
from agentenv.policies.scripted import ScriptedPolicy
from agentenv.retrievers.fakes import InMemoryRetriever
from agentenv.trainers.strategies.demonstrations import expert_actions, spell
from agentenv.trainers.strategies.expert_progress import expert_progress, expert_script
from agentenv.trainers.strategies.rollout_context import RolloutContext
from agentenv.trainers.strategies.strategies import get_strategy, play_groups
from agentenv.trainers.warmstart.expert_pool import ExpertAttempt, why_none_is_shown
from tests.core.test_native_episodes import CHATML, tokenizer_of
from tests.trainers.strategies.test_guided_strategies import DOCUMENTS, TASK

CALLS = [
    '<tool_call>{"name": "search", "arguments": {"query": "Iria built"}}</tool_call><|im_end|>',
    '<tool_call>{"name": "search", "arguments": {"query": "Tomas Vell born"}}</tool_call><|im_end|>',
    '<tool_call>{"name": "answer", "arguments": {"answer": "Orun"}}</tool_call><|im_end|>',
]
WRONG = CALLS[2].replace("Orun", "Iria").removesuffix("<|im_end|>")


class Scored(ScriptedPolicy):
    """Remembers what it was asked to score."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__({"e-0": [WRONG], "e-1": [WRONG]}, tokenizer)
        self.scored: list[Sequence[int]] = []

    async def score(self, ids: Sequence[int], *, temperature: float = 1.0) -> Sequence[float]:
        self.scored.append(ids)
        return [-1.0] * len(ids)


def context_of(policy: ScriptedPolicy, template: str = CHATML, turn_tokens: int = 200) -> RolloutContext:
    tokenizer = policy.tokenizer
    chat = NativeFormat(tokenizer, ends=ends_of_turn(tokenizer))
    config = RolloutConfig(context_tokens=4000, turn_tokens=turn_tokens)
    return RolloutContext(policy, chat, config, tokenizer.decode)


def specs(count: int) -> list[EpisodeSpec]:
    def env() -> LocalSearch:
        return LocalSearch(tasks=[TASK], retriever=InMemoryRetriever(DOCUMENTS), k=1, max_turns=3)

    return [EpisodeSpec(env(), TASK, seed, "g") for seed in range(count)]


def test_the_strategy_demonstrate_shows_the_calls_of_the_model() -> None:
    policy = Scored(tokenizer_of())
    context = context_of(policy)
    (group,) = asyncio.run(play_groups([specs(2)], get_strategy("demonstrate"), context))
    shown = group[2]
    assert (shown.origin, shown.reward, len(shown.turns)) == (Origin.DEMONSTRATION, 1.0, 3)
    assert policy.tokenizer.decode(shown.ids[shown.loss_mask].tolist()) == "".join(CALLS)
    assert shown.context_mismatch.tolist() == shown.loss_mask.tolist()


def test_a_turn_beyond_its_budget_is_cut() -> None:
    context = context_of(Scored(tokenizer_of()), turn_tokens=20)
    shown = asyncio.run(spell(specs(1)[0], context, expert_actions))
    assert len(shown.ids[shown.loss_mask]) == 20 * len(shown.turns)
    assert shown.reward == 0


def test_a_demonstration_that_does_not_fit_into_the_budget_of_a_turn_is_none() -> None:
    """It is no failure of the infrastructure: the script has no further action after one that was cut."""
    policy = Scored(tokenizer_of())
    (group,) = asyncio.run(
        play_groups([specs(2)], get_strategy("demonstrate"), context_of(policy, turn_tokens=78))
    )
    assert [(one.origin, one.valid) for one in group] == [(Origin.BASE, True)] * 2


def test_a_start_whose_expert_does_not_fit_into_the_budget_of_a_turn_says_so() -> None:
    cut = asyncio.run(spell(specs(1)[0], context_of(Scored(tokenizer_of()), turn_tokens=60), expert_actions))
    assert "turn_tokens = 60" in why_none_is_shown([ExpertAttempt(cut, 1.0)] * 2, 60)


def test_what_the_model_cannot_write_ends_the_episode_and_says_why() -> None:
    """A template that writes the name of every tool in capitals, so that no call is read as it was meant."""
    policy = Scored(
        tokenizer_of(CHATML.replace("'name': c.function.name", "'name': c.function.name | lower"))
    )

    def shouted(spec: EpisodeSpec) -> Sequence[str]:
        return ["Search! <|im_end|> now"]

    shown = asyncio.run(spell(specs(1)[0], context_of(policy), shouted))
    assert (shown.end_reason, shown.valid, len(shown.turns)) == (EndReason.PARSE_ERROR, True, 0)
    assert "has no way to write the turn 'Search! <|im_end|> now'" in shown.error


@pytest.mark.parametrize("turn", [0, 3])
def test_progress_is_measured_on_the_calls_of_the_model(turn: int) -> None:
    policy = Scored(tokenizer_of())
    context = context_of(policy)

    async def measured() -> float | None:
        state = await context.open(specs(1)[0], "e-0")
        script = await expert_script(state, context)
        return await expert_progress(state, script[turn:] or script[:0], context)

    progress = asyncio.run(measured())
    if turn == 3:
        assert progress is None
        return
    assert progress == -1.0
    assert policy.tokenizer.decode(list(policy.scored[0])).endswith("assistant\n" + CALLS[0])
