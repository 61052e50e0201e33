"""Episodes that are given up while they are played: online rollout pruning by a light quality head (after ARRoL).

The published head, its place and its rule for keeping are not known to us; these are ours. Shapes: F features.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentenv.core.rollout import EpisodeState
from agentenv.core.trajectory import SegmentKind
from agentenv.core.types import EndReason, ToolStatus
from agentenv.trainers.task_sampling.step_budget import Selection, StepBudget, TaskDraw, require, whole_groups

Features = NDArray[np.float64]
_FEATURES = 5
_DRAW = 0xA220  # keeps the draw that gives an episode up apart from other uses of its seed


def features_of(state: EpisodeState) -> Features:
    """float64[F]: 1, mean and least log-prob of what was sampled so far, its length in 100 tokens, share of failed turns."""
    sampled = [s for s in state.segments if s.kind is SegmentKind.POLICY]
    logprobs = [p for segment in sampled for p in segment.logprobs] or [0.0]
    wrong = [not t.valid or any(r.status is not ToolStatus.OK for r in t.tool_results) for t in state.turns]
    return np.array(
        [1.0, fmean(logprobs), max(min(logprobs), -10.0) / 10, len(logprobs) / 100, fmean(wrong or [0])]
    )


def keep_chance(quality: float, rate: float, *, target: float = 0.5, min_probability: float = 0.2) -> float:
    """Chance to play an episode on, so that a share ``target`` of those that are succeeds.

    With successes kept by a and failures by b the share of successes is rate a / (rate a + (1 - rate) b); the rarer kind is
    kept whole. An episode that succeeds with probability ``quality`` is kept by quality a + (1 - quality) b.

    Args:
        quality: What the head predicts of the episode.
        rate: What it predicts on average.
        target: Share aimed at.
        min_probability: Bound from below: the weight of an episode that was kept is at most its inverse.
    """
    # Odds of 0 or without an end would give up whole groups before the head has seen an episode of the other kind.
    rate = min(max(rate, 1e-3), 1 - 1e-3)
    odds = rate * (1 - target) / ((1 - rate) * target)
    successes, failures = min(1.0, 1 / odds), min(1.0, odds)
    return max(min_probability, quality * successes + (1 - quality) * failures)


def weighted_mean(values: Sequence[float], chances: Sequence[float]) -> float:
    """The mean over all, of those that were kept with their chances: sum v / k over sum 1 / k (Hajek 1971)."""
    return sum(v / k for v, k in zip(values, chances, strict=True)) / sum(1 / k for k in chances)


@dataclass(kw_only=True)
class OnlinePruning:
    """Gives up episodes that are unlikely to balance their group, after their first ``probe`` turns.

    ARRoL, Xu et al. 2026, arXiv:2603.24840. Tasks are drawn uniformly. A logistic regression predicts the outcome of an
    episode, and the episode continues with a probability that depends on the prediction. After each step the regression
    learns from the outcomes of the episodes that continued, each weighed by the inverse of its probability to continue.
    Episodes that are given up count neither in the loss nor in the metrics, except ``sampled_tokens``, ``pruned``,
    ``pruned_tokens`` (which are among the sampled ones) and ``pruning_bias``: the mean outcome of those that continued
    minus their mean with these weights, which is how far pruning shifts the baseline. This sampler needs the strategy
    ``plain``; the budget counts episodes that were begun.

    Args:
        target: Share of successes aimed at.
        probe: Number of turns after which an episode is judged.
        min_probability: Smallest probability to continue.
        rate: Learning rate of the regression.
        memory: Number of judged episodes over which the mean prediction is taken; none is given up before so many were
            judged.
    """

    target: float = 0.5
    probe: int = 1
    min_probability: float = 0.2
    rate: float = 0.5
    memory: int = 64
    replays = False

    def __post_init__(self) -> None:
        require("target", self.target, 0 < self.target < 1, "within (0, 1)")
        require("probe", self.probe, self.probe >= 1, "at least 1")
        require("min_probability", self.min_probability, 0 < self.min_probability <= 1, "within (0, 1]")
        require("rate", self.rate, self.rate > 0, "above 0")
        require("memory", self.memory, self.memory >= 1, "at least 1")
        self._head: Features = np.zeros(_FEATURES)
        self._predicted: deque[float] = deque(maxlen=self.memory)
        self._judged: dict[str, tuple[Features, float]] = {}

    def draw(self, step_budget: StepBudget) -> list[TaskDraw]:
        """The whole budget at once."""
        return whole_groups(step_budget, step_budget.draw_unplayed(step_budget.questions))

    def predict(self, features: Features) -> float:
        """The head's probability of success."""
        return float(1 / (1 + np.exp(-features @ self._head)))

    def gate(self, state: EpisodeState) -> bool:
        """Whether an episode goes on; depends on its own record, its seed and what earlier steps taught.

        An episode that is played again after an interruption is judged as it was.
        """
        if len(state.turns) != self.probe:
            return True
        if state.episode not in self._judged:
            features, chance = features_of(state), 1.0
            if len(self._predicted) == self.memory:
                rate = fmean(self._predicted)
                chance = keep_chance(
                    self.predict(features), rate, target=self.target, min_probability=self.min_probability
                )
            self._judged[state.episode] = features, chance
        _, chance = self._judged[state.episode]
        # Seeded by the episode, so that the draw does not depend on which episode reaches its turn first.
        return bool(np.random.default_rng([state.spec.seed, _DRAW]).random() < chance)

    def select(self, step_budget: StepBudget) -> Selection:
        """What was played on is trained and teaches the head; what was given up leaves its group."""
        begun = [t for group in step_budget.groups for t in group.members]
        judged = {t.id: self._judged.pop(t.id) for t in begun if t.id in self._judged}
        pruned = [t for t in begun if t.end_reason is EndReason.ABORTED]
        for group in step_budget.groups:
            group.members = [t for t in group.members if t.end_reason is not EndReason.ABORTED]
        metrics: dict[str, float] = {
            "pruned": len(pruned),
            "pruned_tokens": sum(trajectory.response_tokens for trajectory in pruned),
        }
        kept = [t for group in step_budget.groups for t in group.members if t.valid and t.id in judged]
        if kept:
            outcomes = [min(max(t.reward, 0.0), 1.0) for t in kept]
            features, chances = zip(*(judged[t.id] for t in kept), strict=True)
            metrics["pruning_bias"] = fmean(outcomes) - weighted_mean(outcomes, chances)
            self._learn(np.stack(features), np.array(outcomes), 1 / np.array(chances))
        self._predicted += [self.predict(features) for features, _ in judged.values()]
        return Selection(step_budget.groups, metrics=metrics, given_up=pruned)

    def _learn(self, features: Features, outcomes: Features, weights: Features) -> None:
        """Ten steps down the mean weighted log-loss."""
        for _ in range(10):
            errors = 1 / (1 + np.exp(-features @ self._head)) - outcomes
            self._head = self._head - self.rate * (weights * errors) @ features / weights.sum()

    def state_dict(self) -> dict[str, Any]:
        """The head, its last predictions, and what it made of the episodes that are not settled."""
        # A copy of the items first: episodes that are under way may be judged while a checkpoint is written.
        judged = {name: [features.tolist(), chance] for name, (features, chance) in [*self._judged.items()]}
        return {"head": self._head.tolist(), "predicted": list(self._predicted), "judged": judged}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up where ``state_dict`` stood."""
        self._head = np.array(state.get("head", [0.0] * _FEATURES))
        self._predicted = deque(state.get("predicted", ()), self.memory)
        judged = state.get("judged", {})
        self._judged = {name: (np.array(features), chance) for name, (features, chance) in judged.items()}
