"""Which tasks are played and which episodes are trained again: difficulty targets with replay of earlier groups.

Shapes: N tasks, R of them known from their outcomes.
"""

import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from agentenv.core.trajectory import Origin, Trajectory, from_record, to_record
from agentenv.core.types import Task
from agentenv.retrievers.encoder import make_encoder
from agentenv.trainers.credit.group_statistics import Values
from agentenv.trainers.task_sampling.step_budget import (
    Group,
    Selection,
    StepBudget,
    TaskDraw,
    require,
    whole_groups,
)

if TYPE_CHECKING:
    from agentenv.trainers.task_sampling.difficulty_predictor import DifficultyPredictor

_BLOCK = 4096  # tasks compared with the reference at a time; bounds memory


def predicted_rewards(
    similarities_N_R: NDArray[np.floating[Any]], rewards_R: Sequence[float], *, bandwidth: float
) -> Values:
    """float64[N]: mean rewards of like tasks, weighed by softmax(similarity / bandwidth)."""
    scores = np.asarray(similarities_N_R, dtype=np.float64) / bandwidth
    # Divided by a small bandwidth the scores overflow in exp, unless the largest of a row becomes 0.
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
    softmax(-|d - target| / temperature), for ``every`` steps at once. The prediction d is a weighted mean outcome of the
    tasks played last. The weights are those of attention that learns (``difficulty_predictor.py``), or of the similarity of
    words. The published method plays a reference set of its own, which the budget does not allow here. Groups whose outcomes
    differ are stored. A replayed group is trained with the log-probs of its own sampling, which the ratios of ``proximal =
    "sampler"`` and the weights of a correction read.

    Args:
        fresh: Share of the trained groups that are played in the step; 1 replays none. Each step plays ``questions`` fresh
            groups in any case, and replayed ones are added to them.
        buffer: Number of groups that are stored for replay; the oldest are removed first.
        reference: Number of tasks, those played last, that predictions are made from.
        predictor: ``learned`` weighs them by attention that is trained after each step (published), ``similar`` by the inner
            product of embeddings.
        encoder: Embeds the questions and stays as it is: ``hash`` for hashed words, or an encoder of ``search.encoder``.
        every: Number of steps that tasks are drawn for at once.
        target: Success rate aimed at.
        temperature: Temperature of the draw.
        bandwidth: Bandwidth of the similarity between questions, for ``similar``.
    """

    fresh: float = 0.5
    buffer: int = 512
    reference: int = 256
    predictor: Literal["learned", "similar"] = "learned"
    encoder: str = "hash"
    every: int = 2
    target: float = 0.5
    temperature: float = 1e-3
    bandwidth: float = 0.1

    def __post_init__(self) -> None:
        require("fresh", self.fresh, 0 < self.fresh <= 1, "within (0, 1]")
        require("buffer", self.buffer, self.buffer >= 0, "at least 0")
        require("reference", self.reference, self.reference >= 1, "at least 1")
        require("every", self.every, self.every >= 1, "at least 1")
        require("temperature", self.temperature, self.temperature > 0, "above 0")
        require("bandwidth", self.bandwidth, self.bandwidth > 0, "above 0")
        self._known: deque[tuple[int, float]] = deque(maxlen=self.reference)
        self._kept: deque[tuple[int, list[dict[str, Any]]]] = deque(maxlen=self.buffer)
        self._ahead: list[int] = []
        self._vectors: NDArray[np.float32] | None = None
        self._learned: DifficultyPredictor | None = None
        self._saved: Mapping[str, Any] | None = None

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
        if not self._ahead:
            distance = np.abs(self._predict(step_budget.tasks) - self.target)
            count = self.every * step_budget.questions
            drawn = sample_without_replacement(-distance / self.temperature, count, step_budget.rng)
            self._ahead = [int(place) for place in drawn]
        now, self._ahead = self._ahead[: step_budget.questions], self._ahead[step_budget.questions :]
        return whole_groups(step_budget, now)

    def _predict(self, tasks: Sequence[Task]) -> Values:
        vectors, rewards = self._embedded(tasks), [reward for _, reward in self._known]
        known = vectors[[place for place, _ in self._known]]
        blocks = np.array_split(vectors, len(vectors) // _BLOCK + 1)
        if self.predictor == "learned":
            network = self._network()
            return np.concatenate([network.predict(mine, known, rewards) for mine in blocks])
        predicted = [predicted_rewards(mine @ known.T, rewards, bandwidth=self.bandwidth) for mine in blocks]
        return np.concatenate(predicted)

    def _embedded(self, tasks: Sequence[Task]) -> NDArray[np.float32]:
        if self._vectors is None:
            self._vectors = make_encoder(self.encoder).encode_queries([task.question for task in tasks])
        return self._vectors

    def _network(self) -> "DifficultyPredictor":
        """The predictor, with what a checkpoint held of it; the questions have embeddings by then."""
        if self._learned is None:
            from agentenv.trainers.task_sampling.difficulty_predictor import DifficultyPredictor

            assert self._vectors is not None
            self._learned = DifficultyPredictor(self._vectors.shape[1])
            if self._saved is not None:
                self._learned.load_state_dict(self._saved)
        return self._learned

    def select(self, step_budget: StepBudget) -> Selection:
        """All groups are trained, with as many replayed ones as make their share; then the step's own are kept."""
        # Solved for r in fresh = n / (n + r). The draw comes before the step's own groups are kept, or a group could
        # be trained twice in the step that played it.
        count = round(len(step_budget.groups) * (1 - self.fresh) / self.fresh)
        places = step_budget.rng.choice(len(self._kept), size=min(count, len(self._kept)), replace=False)
        replayed = [self._thaw(int(place), step_budget.tasks) for place in places]
        with_outcome = [group for group in step_budget.groups if group.rewards]
        self._known += [(g.task, g.successes / len(g.rewards)) for g in with_outcome]
        self._kept += [_frozen(group) for group in step_budget.groups if not group.zero_variance]
        metrics: dict[str, float] = {"replay_buffer": len(self._kept)}
        if self.predictor == "learned":
            vectors, network = self._embedded(step_budget.tasks), self._network()
            network.learn(vectors[[place for place, _ in self._known]], [reward for _, reward in self._known])
            metrics["predictor_loss"] = network.loss
        return Selection(step_budget.groups, replayed, metrics=metrics)

    def _thaw(self, place: int, tasks: Sequence[Task]) -> list[Trajectory]:
        task, records = self._kept[place]
        return [replace(from_record(record, tasks[task]), origin=Origin.REPLAY) for record in records]

    def state_dict(self) -> dict[str, Any]:
        """Known rewards, kept groups, tasks of the steps to come, and what the predictor has learned."""
        learned = self._saved if self._learned is None else self._learned.state_dict()
        state = {"known": list(self._known), "kept": list(self._kept), "ahead": list(self._ahead)}
        return state | ({} if learned is None else {"predictor": learned})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up where ``state_dict`` stood."""
        self._known = deque(((task, reward) for task, reward in state.get("known", ())), self.reference)
        self._kept = deque(((task, records) for task, records in state.get("kept", ())), self.buffer)
        self._ahead = list(state.get("ahead", ()))
        self._learned, self._saved = None, state.get("predictor")


def _frozen(group: Group) -> tuple[int, list[dict[str, Any]]]:
    return group.task, [json.loads(json.dumps(to_record(t, whole=True))) for t in group.credited]
