"""A small policy is driven into each known collapse of search agents, and the monitors say so before it is lost.

The policy is a softmax over eight one-token answers whose logits are a trained vector times fixed features: answers with
like features rise and fall together, as those of a language model do. It is trained by the trainer's own estimators,
learner and figures; only the episodes are made up.
"""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from agentenv.core.trajectory import Segment, SegmentKind, Trajectory, Turn
from agentenv.core.types import EndReason, Task
from agentenv.trainers.credit.outcome import group_relative
from agentenv.trainers.credit.shaping import shape_rewards
from agentenv.trainers.learner.learner import Learner, Objective, rows_of
from agentenv.trainers.loop.metrics import rollout_metrics
from agentenv.trainers.loop.monitors import COLLAPSES, guarded, warnings_of

RIGHT, ALIKE, SILENT, FORM = 0, 1, 2, 3
ANSWERS = 8


class FeaturePolicy(nn.Module):
    """Answers whose log-odds are ``features @ state``; only the state is trained."""

    def __init__(self, features: Tensor, state: Sequence[float]) -> None:
        super().__init__()
        self.state = nn.Parameter(torch.tensor(state, dtype=torch.float64))
        self.features = features.double()

    def forward(self, input_ids: Tensor, use_cache: bool) -> Any:
        return SimpleNamespace(logits=self.state.expand(*input_ids.shape, -1) @ self.features.T)

    def get_output_embeddings(self) -> nn.Module:
        return nn.Identity()

    def logprobs(self) -> Tensor:
        return torch.log_softmax(self.features @ self.state, 0).detach()


def independent(state: Sequence[float]) -> FeaturePolicy:
    """A policy whose answers share nothing."""
    return FeaturePolicy(torch.eye(ANSWERS), state)


def play(
    policy: FeaturePolicy, reward: Callable[[int], float], rng: np.random.Generator, *, breaks: bool = False
) -> list[Trajectory]:
    """A group of eight episodes of one answer each; ``SILENT`` ends without one, and some may break the environment."""
    logprobs, group = policy.logprobs(), []
    for answer in rng.choice(ANSWERS, p=logprobs.exp().numpy(), size=8).tolist():
        parts = (
            Segment(SegmentKind.PROMPT, (0,), 0),
            Segment(SegmentKind.POLICY, (answer,), 0, logprobs=(logprobs[answer].item(),)),
        )
        paid = reward(answer)
        end = EndReason.TURN_LIMIT if answer == SILENT else EndReason.ANSWERED
        sound = not breaks or answer in (RIGHT, ALIKE)
        group.append(Trajectory(Task("t", "q"), parts, (Turn("a", reward=paid),), paid, end, valid=sound))
    return group


def drive(
    policy: FeaturePolicy,
    reward: Callable[[int], float],
    *,
    steps: int = 60,
    rate: float = 0.1,
    failures_only: bool = False,
    answer_penalty: float = 0.0,
    guard: float = 1.0,
) -> list[dict[str, Any]]:
    """Trains as the trainer's loop does and returns the figures of each step; ``guard`` below 1 lowers the rate."""
    rng = np.random.default_rng(0)
    learner = Learner(policy, Objective(), learning_rate=rate)
    history: list[dict[str, Any]] = []
    for step in range(1, steps + 1):
        groups = [play(policy, reward, rng, breaks=failures_only) for _ in range(8)]
        valid = [[trajectory for trajectory in group if trajectory.valid] for group in groups]
        paid = [shape_rewards(group, limit=100, answer_penalty=answer_penalty) for group in valid]
        rows = [row for group in paid for row in rows_of(group, group_relative(group))]
        kept = [row for row in rows if not failures_only or row.advantages[-1] < 0]
        learner.set_learning_rate(rate * guarded(history, guard))
        learner.step(kept, tokens=64)
        metrics: dict[str, Any] = {"step": step} | rollout_metrics(groups)
        metrics["probability"] = policy.logprobs()[RIGHT].exp().item()
        if step % 5 == 0:  # the score on held-out questions: only the right answer counts
            metrics["dev_score"] = metrics["probability"]
        metrics["signs"] = [s for s in warnings_of([*history, metrics]) if s in COLLAPSES]
        history.append(metrics)
    return history


def first(history: Sequence[dict[str, Any]], sign: str) -> int:
    """The step in which ``sign`` was first seen."""
    seen = [metrics["step"] for metrics in history if sign in metrics["signs"]]
    assert seen, f"{sign} was never seen"
    return int(seen[0])


def right_only(answer: int) -> float:
    return float(answer == RIGHT)


def test_a_healthy_run_raises_no_sign() -> None:
    history = drive(independent([0.0] * ANSWERS), right_only)
    assert history[-1]["probability"] > 0.8
    assert all(metrics["signs"] == [] for metrics in history)


def silence_pays(answer: int) -> float:
    """A wrong answer costs; silence is free."""
    return {RIGHT: 0.5, SILENT: 0.0}.get(answer, -0.5)


START = [-5.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]  # the right answer is very rare


def test_answer_avoidance_is_seen_and_a_penalty_prevents_it() -> None:
    history = drive(independent(START), silence_pays, rate=0.05)
    assert history[-1]["answer_rate"] < 0.1
    step = first(history, "answer_rate")
    assert history[step - 1]["answer_rate"] > 0.3  # in time
    cured = drive(independent(START), silence_pays, rate=0.05, answer_penalty=1.0)
    assert cured[-1]["answer_rate"] > 0.9
    assert all("answer_rate" not in metrics["signs"] for metrics in cured)


def test_a_reward_for_form_is_seen() -> None:
    """Anything in the right form is paid: the reward rises, the score does not."""

    def form(answer: int) -> float:
        return 1.0 if answer == FORM else 0.5 * (answer == RIGHT)

    history = drive(independent([0.0] * ANSWERS), form, steps=40)
    assert history[-1]["reward_mean"] > 0.8
    assert history[-1]["probability"] < 0.1
    step = first(history, "dev_score")
    assert history[step - 1]["probability"] > history[-1]["probability"]
    assert "dev_score" in warnings_of(history)


def alike() -> FeaturePolicy:
    """The right answer and a wrong one have nearly the same features; the others break the environment."""
    features = torch.zeros(ANSWERS, 2)
    features[RIGHT] = torch.tensor([1.0, 0.1])
    features[ALIKE] = torch.tensor([1.0, -0.1])
    return FeaturePolicy(features, [2.5, 0.0])


DISPLACING: dict[str, Any] = {"failures_only": True}


def test_likelihood_displacement_is_seen() -> None:
    """Only failures are trained: they take the right answer along, and nothing valid is left in its place."""
    history = drive(alike(), right_only, steps=40, **DISPLACING)
    start, end = history[0]["probability"], history[-1]["probability"]
    assert end < start / 4
    step = first(history, "rewarded_logprob")
    assert history[step - 1]["probability"] > 1.5 * end  # in time
    assert "rewarded_logprob" in warnings_of(history[:step])


@pytest.mark.parametrize(
    ("policy", "reward", "settings", "figure"),
    [
        (alike, right_only, DISPLACING, "probability"),
        (lambda: independent(START), silence_pays, {"rate": 0.05}, "answer_rate"),
    ],
)
def test_the_guard_slows_a_collapse_down(
    policy: Callable[[], FeaturePolicy], reward: Callable[[int], float], settings: dict[str, Any], figure: str
) -> None:
    """The step size falls a hundredfold at each new sign, and most of what was left is kept."""
    lost = drive(policy(), reward, steps=40, **settings)
    kept = drive(policy(), reward, steps=40, guard=0.01, **settings)
    step = next(metrics["step"] for metrics in kept if metrics["signs"])
    assert [m[figure] for m in kept[:step]] == [m[figure] for m in lost[:step]]
    assert kept[-1][figure] > 0.6 * kept[step - 1][figure]
    assert kept[-1][figure] > 1.5 * lost[-1][figure]


def test_the_guard_counts_each_kind_of_sign_once() -> None:
    assert guarded([], 0.1) == 1.0
    assert guarded([{"signs": ["entropy"]}, {}, {"signs": ["entropy"]}], 0.1) == 0.1
    assert guarded([{"signs": ["entropy"]}, {"signs": ["dev_score", "entropy"]}], 0.1) == pytest.approx(0.01)
