"""Rolled-back episodes of a policy that samples: equal in every run, and no ratio reads the log-prob of a spliced token.

The policy is a random Qwen2 over bytes; the environment takes actions of an even number of characters only.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from agentenv.core.chat import InlineFormat
from agentenv.core.env import AsyncEnv
from agentenv.core.rollout import EpisodeSpec, RolloutConfig
from agentenv.core.trajectory import Segment, SegmentKind, Trajectory
from agentenv.core.types import EndReason, Info, Message, Observation, Step, Task, ToolResult, ToolStatus
from agentenv.errors import ConfigurationError
from agentenv.policies.fakes import ByteTokenizer, random_model
from agentenv.policies.hf import HFPolicy
from agentenv.trainers.learner.learner import Learner, Objective, rows_of
from agentenv.trainers.learner.settings import CorrectionSettings
from agentenv.trainers.strategies.rollback import RollbackStrategy
from agentenv.trainers.strategies.rollout_context import RolloutContext
from agentenv.trainers.strategies.splicing import rescore_logprobs
from agentenv.trainers.strategies.strategies import play_groups

TOKENIZER = ByteTokenizer()
TEMPERATURE = 0.8


@dataclass
class EvenState:
    good: int = 0
    acted: int = 0


class Even(AsyncEnv[EvenState]):
    """An action of an odd number of characters fails; the third good one or the fifth at all ends the episode."""

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        await super().areset(seed=seed)
        self.state = EvenState()
        return (Message("user", f"Number {seed}"),), {"task_id": options["task"].id} if options else {}

    async def astep(self, action: str) -> Step:
        self.check_running()
        even = len(action) % 2 == 0
        self.state.good += even
        self.state.acted += 1
        result = ToolResult("even", ToolStatus.OK if even else ToolStatus.ERROR)
        over = self.state.good == 3 or self.state.acted == 5
        return self.result(
            (Message("tool", "yes" if even else "no!"),),
            reward=float(even),
            end=EndReason.ANSWERED if over else None,
            tool_results=(result,),
        )


def play(policy: HFPolicy) -> list[Trajectory]:
    """Two groups of four."""
    config = RolloutConfig(context_tokens=120, turn_tokens=6, temperature=TEMPERATURE)
    context = RolloutContext(policy, InlineFormat(TOKENIZER), config, TOKENIZER.decode)
    groups = [[EpisodeSpec(Even(), Task("t", "q"), 7 * g + i, str(g)) for i in range(4)] for g in range(2)]
    played = asyncio.run(play_groups(groups, RollbackStrategy(retries=2), context))
    return [trajectory for group in played for trajectory in group]


@pytest.fixture(scope="module")
def policy() -> HFPolicy:
    torch.set_num_threads(1)
    return HFPolicy(random_model(context=512), TOKENIZER)


@pytest.fixture(scope="module")
def played(policy: HFPolicy) -> list[Trajectory]:
    return play(policy)


def test_episodes_were_rolled_back(played: list[Trajectory]) -> None:
    """Without this the tests below would say nothing."""
    assert all(t.valid for t in played)
    assert sum(t.info["strategy"]["rollback_recovered"] for t in played) >= 2
    assert any(t.context_mismatch.any() for t in played)
    assert any(not t.context_mismatch[t.loss_mask].all() for t in played)


def test_equal_seeds_give_equal_records(policy: HFPolicy, played: list[Trajectory]) -> None:
    again = play(policy)
    assert [t.segments for t in again] == [t.segments for t in played]
    assert [t.info for t in again] == [t.info for t in played]


def test_only_marked_tokens_were_sampled_in_another_context(
    policy: HFPolicy, played: list[Trajectory]
) -> None:
    """A forward pass over the record repeats every log-prob but those of spliced tokens."""
    apart = []
    for trajectory in played:
        scores = np.asarray(asyncio.run(policy.score(trajectory.ids.tolist(), temperature=TEMPERATURE)))
        away = np.abs(scores - trajectory.logprobs)
        own = trajectory.loss_mask & ~trajectory.context_mismatch
        assert away[own].max(initial=0) < 1e-4
        apart += away[trajectory.context_mismatch].tolist()
    assert np.mean(np.asarray(apart) > 0.01) > 0.9


def test_scored_again_every_token_counts_as_any_other(policy: HFPolicy, played: list[Trajectory]) -> None:
    for trajectory in played:
        again = asyncio.run(rescore_logprobs(trajectory, policy, TEMPERATURE))
        scores = np.asarray(asyncio.run(policy.score(trajectory.ids.tolist(), temperature=TEMPERATURE)))
        assert np.abs(scores - again.logprobs)[again.loss_mask].max() < 1e-4
        assert not again.context_mismatch.any()
        assert (again.ids == trajectory.ids).all()
        assert (again.id, again.info) == (trajectory.id, trajectory.info)
        if not trajectory.context_mismatch.any():
            assert again is trajectory


Change = Callable[[Segment], Segment]


def gradient(
    policy: HFPolicy, played: list[Trajectory], objective: Objective, change: Change = lambda s: s
) -> torch.Tensor:
    """Of the loss of the episodes, after ``change`` of their spliced segments."""
    changed = [
        replace(t, segments=tuple(change(s) if s.context_mismatch else s for s in t.segments)) for t in played
    ]
    credit = [np.full(len(t.ids), 1.0 if t.reward > 2 else -0.5) for t in changed]
    learner = Learner(policy.model, objective, learning_rate=1e-3)
    policy.model.zero_grad()
    rows = rows_of(changed, credit)
    learner.accumulate(learner.with_proximal(rows) if objective.proximal == "recompute" else rows)
    return torch.cat([p.grad.flatten() for p in policy.model.parameters() if p.grad is not None])


def shifted(segment: Segment) -> Segment:
    return replace(segment, logprobs=tuple(p + 1.0 for p in segment.logprobs))


def unmarked(segment: Segment) -> Segment:
    return replace(segment, context_mismatch=False)


PLAIN = Objective(temperature=TEMPERATURE)
CORRECTED = Objective(
    temperature=TEMPERATURE,
    proximal="recompute",
    correction=CorrectionSettings(mode="truncate", off_context="recompute"),
)


def test_no_ratio_reads_what_was_recorded_for_a_spliced_token(
    policy: HFPolicy, played: list[Trajectory]
) -> None:
    """The gradient is the same whatever stands there; once the mark is lost it is not, so a lost mark is noticed."""
    straight = gradient(policy, played, PLAIN)
    assert torch.equal(gradient(policy, played, PLAIN, shifted), straight)
    lost = gradient(policy, played, PLAIN, unmarked)
    assert (lost - straight).norm() > 0.01 * straight.norm()


def test_a_correction_refuses_spliced_tokens_until_they_are_scored_again(
    policy: HFPolicy, played: list[Trajectory]
) -> None:
    with pytest.raises(ConfigurationError, match=r"correction\.off_context.*'rescore'.*'weight'"):
        gradient(policy, played, CORRECTED)
    again = [asyncio.run(rescore_logprobs(t, policy, TEMPERATURE)) for t in played]
    found, straight = gradient(policy, again, CORRECTED), gradient(policy, played, PLAIN)
    assert (found - straight).norm() < 1e-3 * straight.norm()  # sampler and learner are one model


def test_a_spliced_token_may_be_weighed_by_itself(policy: HFPolicy, played: list[Trajectory]) -> None:
    """min(p(now) / p(sampled), cap): with a cap far below every ratio, the weight of each spliced token is the cap."""
    weighed = CORRECTED.model_copy(update={"correction": CorrectionSettings(off_context="weight", high=1e-6)})
    without = [
        replace(t, segments=tuple(replace(s, trained=not s.context_mismatch) for s in t.segments))
        for t in played
    ]
    tokens = sum(int(t.loss_mask.sum()) for t in played)
    kept = sum(int(t.loss_mask.sum()) for t in without)
    found = gradient(policy, played, weighed) * tokens
    assert (found - gradient(policy, without, PLAIN) * kept).norm() < 1e-3 * found.norm()
    assert any(s.kind is SegmentKind.POLICY and not s.trained for t in without for s in t.segments)
