"""What the learner makes of retries: no log-prob of another context enters a ratio, no guidance enters a row."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from agentenv.core.chat import InlineFormat
from agentenv.core.rollout import EpisodeSpec, RolloutConfig
from agentenv.core.trajectory import SegmentKind, Trajectory
from agentenv.core.types import Task
from agentenv.envs.calculator import Calculator
from agentenv.errors import ConfigurationError
from agentenv.policies.fakes import ByteTokenizer
from agentenv.policies.hf import HFPolicy
from agentenv.policies.scripted import ScriptedPolicy
from agentenv.trainers.credit.estimators import get_estimator
from agentenv.trainers.learner.imitation import imitate
from agentenv.trainers.learner.learner import Learner, Objective, rows_of
from agentenv.trainers.learner.optimizers import SecondMoments
from agentenv.trainers.learner.settings import CorrectionSettings
from agentenv.trainers.strategies.rollout_context import RolloutContext
from agentenv.trainers.strategies.strategies import by_group, get_strategy, play_groups

TOKENIZER = ByteTokenizer()
RIGHT_CALL, WRONG_CALL = (
    f'<tool_call>{{"name": "calculate", "arguments": {{"expression": "{e}"}}}}</tool_call>'
    for e in ("1", "a")
)


class Sum(Calculator):
    """A calculator that says little."""

    def tool_prompt(self) -> str:
        return ""


@pytest.fixture
def explore() -> list[Trajectory]:
    """A base that fails after a call that failed, and its retry from that call, which answers."""
    specs = [EpisodeSpec(Sum(), Task("s", "2 + 3", ("5",)), seed, "g") for seed in (0, 1)]
    context = RolloutContext(
        ScriptedPolicy({"e-0": (RIGHT_CALL, WRONG_CALL, "7", "5")}),
        InlineFormat(TOKENIZER),
        RolloutConfig(turn_tokens=500, context_tokens=1000),
        TOKENIZER.decode,
    )
    (played,) = asyncio.run(
        play_groups([specs], get_strategy("reflect_retry", {"reflector": "rule"}), context)
    )
    group = by_group(played)[0]
    assert [t.reward for t in group] == [0.0, 1.0]
    return group


def relogged(trajectory: Trajectory, logprobs_T: Sequence[float]) -> Trajectory:
    """The trajectory with other recorded log-probs; those of its policy tokens are taken from ``logprobs_T``."""
    segments, begin = [], 0
    for s in trajectory.segments:
        end = begin + len(s.ids)
        mine = tuple(logprobs_T[begin:end]) if s.kind is SegmentKind.POLICY else ()
        segments.append(replace(s, logprobs=mine))
        begin = end
    return replace(trajectory, segments=tuple(segments))


def gradient(model: Any, group: Sequence[Trajectory], objective: Objective) -> torch.Tensor:
    """Of the loss of the group, all parameters in one vector."""
    learner = Learner(model, objective, learning_rate=1e-3)
    learner.optimizer.zero_grad()
    learner.accumulate(rows_of(group, get_estimator("pivotal")(group)))
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).clone()


@pytest.mark.parametrize("surrogate", ["ppo_clip", "gspo", "cispo", "probability_mask"])
def test_no_ratio_sees_what_was_recorded_under_guidance(
    explore: list[Trajectory], qwen: Callable[..., Any], surrogate: str
) -> None:
    model, objective = qwen(context=1024), Objective(objective=surrogate)
    score = HFPolicy(model, TOKENIZER, context_tokens=1024).score
    recorded = [asyncio.run(score(t.ids.tolist())) for t in explore]
    base, retry = (relogged(t, logs) for t, logs in zip(explore, recorded, strict=True))
    other_base, other_retry = (
        relogged(t, [p - 0.1 for p in logs]) for t, logs in zip(explore, recorded, strict=True)
    )
    honest = gradient(model, [base, retry], objective)
    assert torch.equal(gradient(model, [base, other_retry], objective), honest)
    assert not torch.equal(gradient(model, [other_base, retry], objective), honest)


def test_a_ratio_has_the_hinted_denominator_where_that_is_asked_for(
    explore: list[Trajectory], qwen: Callable[..., Any]
) -> None:
    """Guide: -A p(y | clean) / p(y | hinted); where both are the same the ratio is 1, where it is doubled the loss is."""
    model = qwen(context=1024)
    score = HFPolicy(model, TOKENIZER, context_tokens=1024).score
    retry = explore[1]
    logprobs = asyncio.run(score(retry.ids.tolist()))
    for proximal in ("sampler", "recompute"):
        objective = Objective(
            objective_options={"clip_high": 9.0},
            proximal=proximal,
            correction=CorrectionSettings(off_context="ratio"),
        )
        for factor in (1.0, 2.0):
            hinted = relogged(retry, [p - float(np.log(factor)) for p in logprobs])
            learner = Learner(model, objective, learning_rate=1e-3)
            rows = rows_of([hinted], [np.ones(len(hinted.ids))])
            assert learner.accumulate(rows)["loss"] == pytest.approx(-factor, abs=1e-4)


def test_a_supervised_step_follows_demonstrations_with_moments_of_its_own(
    explore: list[Trajectory], qwen: Callable[..., Any]
) -> None:
    model = qwen(context=1024)
    learner = Learner(model, Objective(), learning_rate=1e-3)
    score = HFPolicy(model, TOKENIZER, context_tokens=1024).score

    def likelihood() -> float:
        logprobs = asyncio.run(score(explore[1].ids.tolist()))
        return float(np.mean(np.asarray(logprobs)[explore[1].loss_mask]))

    before = likelihood()
    moments = SecondMoments()
    assert imitate(learner, [], 1e-2, moments) == {}
    assert moments.state_dict() == {}
    loss = imitate(learner, explore[1:], 1e-2, moments)["supervised_loss"]
    assert loss == pytest.approx(-before, abs=1e-5)
    assert likelihood() > before
    assert moments.state_dict()["state"]
    assert not learner.optimizer.state_dict()["state"]
    assert learner.optimizer.param_groups[0]["lr"] == 1e-3


def test_a_correction_refuses_retries_or_weighs_them_one_by_one(
    explore: list[Trajectory], qwen: Callable[..., Any]
) -> None:
    model = qwen(context=1024)
    for correction in (
        CorrectionSettings(mode="truncate", off_context="recompute"),
        CorrectionSettings(mode="mask", level="sequence", off_context="recompute"),
    ):
        with pytest.raises(ConfigurationError, match=r"correction\.off_context"):
            gradient(model, explore, Objective(proximal="recompute", correction=correction))
    weighed = Objective(
        proximal="recompute", correction=CorrectionSettings(mode="truncate", off_context="weight")
    )
    assert gradient(model, explore, weighed).isfinite().all()


def test_the_loss_sees_the_retry_from_the_pivot_on_in_its_clean_context(
    explore: list[Trajectory], qwen: Callable[..., Any]
) -> None:
    """OPMD of the clean row by hand: -A log p / 2 over the trained tokens of base and retry, A = -.5 and 1.5."""
    model = qwen(context=1024)
    scored = HFPolicy(model, TOKENIZER, context_tokens=1024)
    total, count = 0.0, 0
    for t, advantage in zip(explore, (-0.5, 1.5), strict=True):
        logprobs = asyncio.run(scored.score(t.ids.tolist()))
        for place in t.loss_mask.nonzero()[0].tolist():
            total -= advantage * logprobs[place] / 2
            count += 1
    assert count == len(WRONG_CALL) + 1 + len("7") + 1 + len("5") + 1
    learner = Learner(model, Objective(objective="opmd"), learning_rate=1e-3)
    figures = learner.accumulate(rows_of(explore, get_estimator("pivotal")(explore)))
    assert figures["loss"] == pytest.approx(total / count, abs=1e-5)
