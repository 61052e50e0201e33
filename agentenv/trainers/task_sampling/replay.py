"""Which tasks are played and which episodes are trained again: difficulty targets with replay of earlier groups.

Shapes: N tasks, R of them known from their outcomes.
"""

import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentenv.core.trajectory import Origin, Trajectory, from_record, to_record
from agentenv.core.types import Task
from agentenv.retrievers.encoder import HashEncoder
from agentenv.trainers.credit.group_statistics import Values
from agentenv.trainers.task_sampling.step_budget import (
    Group,
    Selection,
    StepBudget,
    TaskDraw,
    require,
    whole_groups,
)

_BLOCK = 4096  # tasks compared with the reference at a time; bounds memory


def predicted_rewards(
    similarities_N_R: NDArray[np.floating[Any]], rewards_R: Sequence[float], *, bandwidth: float
) -> Values:
    """float64[N]: mean rewards of like tasks, weighed by softmax(similarity / bandwidth)."""
    scores = np.asarray(similarities_N_R, dtype=np.float64) / bandwidth
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    predicted: Values = weights @ np.asarray(rewards_R, dtype=np.float64) / weights.sum(axis=1)
    return predicted


def sample_without_replacement(logits_N: Values, count: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Places drawn one after the other from softmax(logits), each at most once (Gumbel top-k, Kool et al. 2019)."""
    return np.argsort(-(logits_N + rng.gumbel(size=len(logits_N))), kind="stable")[:count]


@dataclass(kw_only=True)
class TargetedReplay:
    """Plays tasks whose predicted success is near one half, and trains stored groups of earlier steps again.

    DOTS with rollout replay, Sun et al. 2025, arXiv:2506.05316. Tasks are drawn without replacement from
    softmax(-|d - target| / temperature). The prediction d is the mean reward of the tasks played last, weighed by the
    similarity of their words. The published predictor has a trained encoder and rollouts of its own for its reference set,
    which the budget does not allow here. Groups whose outcomes differ are stored. A replayed group is trained with the
    log-probs of its own sampling, which the ratios of ``proximal = "sampler"`` and the weights of a correction read.

    Args:
        fresh: Share of the trained groups that are played in the step; 1 replays none. Each step plays ``questions`` fresh
            groups in any case, and replayed ones are added to them.
        buffer: Number of groups that are stored for replay; the oldest are removed first.
        reference: Number of tasks, those played last, that predictions are made from.
        target: Success rate aimed at.
        temperature: Temperature of the draw.
        bandwidth: Bandwidth of the similarity between questions.
    """

    fresh: float = 0.5
    buffer: int = 512
    reference: int = 256
    target: float = 0.5
    temperature: float = 1e-3
    bandwidth: float = 0.1

    def __post_init__(self) -> None:
        require("fresh", self.fresh, 0 < self.fresh <= 1, "within (0, 1]")
        require("buffer", self.buffer, self.buffer >= 0, "at least 0")
        require("reference", self.reference, self.reference >= 1, "at least 1")
        require("temperature", self.temperature, self.temperature > 0, "above 0")
        require("bandwidth", self.bandwidth, self.bandwidth > 0, "above 0")
        self._known: deque[tuple[int, float]] = deque(maxlen=self.reference)
        self._kept: deque[tuple[int, list[dict[str, Any]]]] = deque(maxlen=self.buffer)
        self._vectors: NDArray[np.float32] | None = None

    @property
    def replays(self) -> bool:
        """Unless every trained group is fresh."""
        return self.fresh < 1

    def draw(self, step_budget: StepBudget) -> list[TaskDraw]:
        """``questions`` tasks of predicted success near the target; uniform while nothing is known."""
        if not self._known:
            return [
                TaskDraw(place, step_budget.group_size)
                for place in step_budget.draw_unplayed(step_budget.questions)
            ]
        distance = np.abs(self._predict(step_budget.tasks) - self.target)
        return whole_groups(
            step_budget,
            sample_without_replacement(-distance / self.temperature, step_budget.questions, step_budget.rng),
        )

    def _predict(self, tasks: Sequence[Task]) -> Values:
        if self._vectors is None:
            self._vectors = HashEncoder().encode_queries([task.question for task in tasks])
        known = self._vectors[[place for place, _ in self._known]]
        rewards = [reward for _, reward in self._known]
        blocks = np.array_split(self._vectors, len(self._vectors) // _BLOCK + 1)
        predicted = [predicted_rewards(mine @ known.T, rewards, bandwidth=self.bandwidth) for mine in blocks]
        return np.concatenate(predicted)

    def select(self, step_budget: StepBudget) -> Selection:
        """All groups are trained, with as many replayed ones as make their share; then the step's own are kept."""
        count = round(len(step_budget.groups) * (1 - self.fresh) / self.fresh)
        places = step_budget.rng.choice(len(self._kept), size=min(count, len(self._kept)), replace=False)
        replayed = [self._thaw(int(place), step_budget.tasks) for place in places]
        with_outcome = [group for group in step_budget.groups if group.rewards]
        self._known += [(g.task, sum(g.rewards) / len(g.rewards)) for g in with_outcome]
        self._kept += [_frozen(group) for group in step_budget.groups if not group.zero_variance]
        return Selection(step_budget.groups, replayed, metrics={"replay_buffer": len(self._kept)})

    def _thaw(self, place: int, tasks: Sequence[Task]) -> list[Trajectory]:
        task, records = self._kept[place]
        return [replace(from_record(record, tasks[task]), origin=Origin.REPLAY) for record in records]

    def state_dict(self) -> dict[str, Any]:
        """Known rewards and kept groups."""
        return {"known": list(self._known), "kept": list(self._kept)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up where ``state_dict`` stood."""
        self._known = deque(((task, reward) for task, reward in state.get("known", ())), self.reference)
        self._kept = deque(((task, records) for task, records in state.get("kept", ())), self.buffer)


def _frozen(group: Group) -> tuple[int, list[dict[str, Any]]]:
    return group.task, [json.loads(json.dumps(to_record(t, whole=True))) for t in group.members if t.valid]
