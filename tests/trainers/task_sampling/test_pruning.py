"""Pruning of episodes under way: the rule by hand, what leaves the group, what the head learns, the bias that is logged."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from agentenv.core.chat import InlineFormat
from agentenv.core.rollout import EpisodeSpec, EpisodeState, RolloutConfig, run_episode
from agentenv.core.trajectory import SegmentKind, Trajectory, Turn
from agentenv.core.types import EndReason, Task, ToolResult, ToolStatus
from agentenv.envs.calculator import Calculator
from agentenv.policies.fakes import ByteTokenizer
from agentenv.policies.scripted import ScriptedPolicy
from agentenv.trainers.loop.metrics import rollout_metrics
from agentenv.trainers.task_sampling.pruning import OnlinePruning, features_of, keep_chance, weighted_mean
from agentenv.trainers.task_sampling.step_budget import Batch, Group, StepBudget, TaskDraw, collect

TASKS = [Task(f"t{i}", f"q{i}", ("x",)) for i in range(4)]


@pytest.mark.parametrize(
    ("quality", "rate", "chance"),
    [
        # One in five succeeds: successes are kept, of failures one in four (.2 / (.2 + .8 / 4) = 1/2).
        (1.0, 0.2, 1.0),
        (0.0, 0.2, 0.25),
        (0.5, 0.2, 0.625),
        (0.0, 0.8, 1.0),  # and the other way round
        (1.0, 0.8, 0.25),
        (0.3, 0.5, 1.0),  # as wanted already
        (0.0, 0.01, 0.2),  # bounded
    ],
)
def test_the_rarer_kind_is_kept_whole(quality: float, rate: float, chance: float) -> None:
    assert keep_chance(quality, rate) == pytest.approx(chance)


def test_the_weighted_mean_undoes_the_pruning() -> None:
    # of 4 failures and 4 successes one failure was kept by 1/4: (4 x 1 + 1 x 0 x 4) / (4 + 4)
    assert weighted_mean([1, 1, 1, 1, 0], [1, 1, 1, 1, 0.25]) == 0.5


def record(seed: int, *, wrong: bool, turns: int = 1) -> EpisodeState:
    status = ToolStatus.ERROR if wrong else ToolStatus.OK
    found = EpisodeState(EpisodeSpec(Calculator(), TASKS[0], seed), f"e-{seed}")
    found.add(SegmentKind.POLICY, (1, 2), 0, logprobs=(-1.0, -3.0))
    found.turns = [Turn("a", tool_results=(ToolResult("t", status),))] * turns
    return found


def test_features_by_hand() -> None:
    assert features_of(record(0, wrong=True)).tolist() == pytest.approx([1, -2, -0.3, 0.02, 1])
    assert features_of(record(0, wrong=False)).tolist()[-1] == 0


def steps(sampler: OnlinePruning, count: int, *, size: int = 32) -> list[Batch]:
    """Steps in which an episode succeeds unless its first call fails, as three in four do."""

    def play(
        draws: Sequence[TaskDraw], groups: Sequence[Group], step_budget: StepBudget
    ) -> list[list[Trajectory]]:
        return [
            [
                episode(sampler, int(step_budget.rng.integers(1 << 31)), step_budget)
                for _ in range(draw.rollouts)
            ]
            for draw in draws
        ]

    return [
        collect(sampler, StepBudget(s, TASKS, np.random.default_rng(s), 1, size), play) for s in range(count)
    ]


def episode(sampler: OnlinePruning, seed: int, step_budget: StepBudget) -> Trajectory:
    wrong = bool(step_budget.rng.random() < 0.75)
    under_way = record(seed, wrong=wrong)
    goes_on = sampler.gate(under_way)
    end = EndReason.ANSWERED if goes_on else EndReason.ABORTED
    under_way.close(float(not wrong), end, {})
    assert under_way.ended is not None
    return replace(under_way.ended, id=under_way.episode)


def test_survivors_come_to_succeed_half_the_time_and_the_bias_is_logged() -> None:
    batches = steps(OnlinePruning(memory=32), 40)
    early, late = batches[0], batches[30:]
    assert early.metrics["pruned"] == 0
    assert early.metrics["pruning_bias"] == 0
    kept = [t for batch in late for group in batch.trained for t in group]
    assert 0.4 < np.mean([t.reward for t in kept]) < 0.6  # unpruned it is .25
    assert all(t.end_reason is EndReason.ANSWERED for t in kept)
    assert np.mean([batch.metrics["pruning_bias"] for batch in late]) == pytest.approx(0.25, abs=0.07)
    for batch in late:
        assert batch.metrics["pruned"] + batch.metrics["rollouts"] == 32
        assert batch.metrics["pruned_tokens"] == 2 * batch.metrics["pruned"]
        # 32 episodes of two tokens each were begun, and so many tokens were sampled.
        assert rollout_metrics(batch.played, batch.given_up)["sampled_tokens"] == 64


def test_only_the_turn_of_the_probe_is_judged() -> None:
    sampler = OnlinePruning(probe=2, memory=1)
    assert all(sampler.gate(record(seed, wrong=True)) for seed in range(20))
    assert sampler._judged == {}


def test_an_episode_played_again_is_judged_as_it_was() -> None:
    sampler, again = OnlinePruning(memory=32), OnlinePruning(memory=32)
    steps(sampler, 20)
    chosen = [sampler.gate(record(seed, wrong=True)) for seed in range(20)]
    assert 0 < sum(chosen) < 20
    again.load_state_dict(json.loads(json.dumps(sampler.state_dict())))
    again.load_state_dict(again.state_dict() | {"head": [0.0] * 5})  # what it has learned since
    assert [again.gate(record(seed, wrong=True)) for seed in range(20)] == chosen


def test_an_episode_that_does_not_go_on_ends_as_aborted() -> None:
    tokenizer, seen = ByteTokenizer(), list[int]()

    def gate(under_way: EpisodeState) -> bool:
        seen.append(len(under_way.turns))
        return len(under_way.turns) < 2

    call = '<tool_call>{"name": "calculate", "arguments": {"expression": "1+1"}}</tool_call>'
    spec = EpisodeSpec(Calculator(), Task("2+2", "2+2", ("4",)), 0, gate=gate)
    policy: Any = ScriptedPolicy({"e": [call, call, "4"]})
    played = asyncio.run(
        run_episode(
            spec,
            policy,
            InlineFormat(tokenizer),
            RolloutConfig(context_tokens=4096, turn_tokens=500),
            episode="e",
        )
    )
    assert (played.end_reason, played.valid, len(played.turns), seen) == (EndReason.ABORTED, False, 2, [1, 2])
