"""Which tasks are played and which episodes are trained again: difficulty targets with replay of earlier groups.

Shapes: N tasks, R of them known from their outcomes.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from agentenv.core.trajectory import Origin, Trajectory, checkpoint_record, from_record
from agentenv.core.types import Task
from agentenv.errors import ConfigurationError
from agentenv.retrievers.encoder import make_encoder
from agentenv.trainers.credit.group_statistics import Values
from agentenv.trainers.task_sampling.step_budget import (
    Group,
    Selection,
    StepBudget,
    TaskDraw,
    require,
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
    words. The published method plays a reference set of its own, with ``predict_from="set"`` as here: that many tasks are
    drawn once, a part of each step plays them in turn, and they are neither trained nor replayed. Groups whose outcomes
    differ are stored. A replayed group is trained with the log-probs of its own sampling, which the ratios of ``proximal =
    "sampler"`` and the weights of a correction read.

    Args:
        fresh: Share of the trained groups that are played in the step; 1 replays none. Each step plays ``questions`` fresh
            groups in any case, and replayed ones are added to them.
        buffer: Number of groups that are stored for replay; the oldest are removed first.
        reference: Number of tasks that predictions are made from.
        predict_from: Which tasks these are: ``played``, those that were played last, or ``set``, a fixed set with the
            newest outcome of each of its tasks (published); at most half of all tasks.
        reference_share: Share of the questions of a step that play that set, at least one of them and not all.
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
    predict_from: Literal["played", "set"] = "played"
    reference_share: float = 0.25
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
        require("reference_share", self.reference_share, 0 < self.reference_share < 1, "within (0, 1)")
        require("every", self.every, self.every >= 1, "at least 1")
        require("temperature", self.temperature, self.temperature > 0, "above 0")
        require("bandwidth", self.bandwidth, self.bandwidth > 0, "above 0")
        self._known: deque[tuple[int, float]] = deque(maxlen=self.reference)
        self._kept: deque[tuple[int, list[dict[str, Any]]]] = deque(maxlen=self.buffer)
        self._ahead: list[int] = []
        self._set: list[int] = []
        self._turn = 0  # place in the set
        self._vectors: NDArray[np.float32] | None = None
        self._learned: DifficultyPredictor | None = None
        self._saved: Mapping[str, Any] | None = None

    chooses = True

    @property
    def replays(self) -> bool:
        """Unless every trained group is fresh."""
        return self.fresh < 1

    def draw(self, step_budget: StepBudget) -> list[TaskDraw]:
        """Draws the set, then tasks of predicted success near the target, uniform ones while nothing is known."""
        probed = self._probed(step_budget)
        count = step_budget.questions - len(probed)
        drawn = np.resize(self._targeted(step_budget, count), count)
        return [TaskDraw(int(place), step_budget.group_size) for place in (*probed, *drawn)]

    def _probed(self, step_budget: StepBudget) -> list[int]:
        """The tasks of the set whose turn it is; none where predictions are made from what was played.

        Raises:
            ConfigurationError: a step has one question, and so no part of it to spend.
        """
        questions = step_budget.questions
        if self.predict_from == "played":
            return []
        if questions == 1:
            raise ConfigurationError(
                "the task sampler dots with predict_from='set' plays some questions of each step for its predictions, "
                "and rollout.questions=1 leaves none to learn from: raise it, or take predict_from='played'"
            )
        if not self._set:
            size = min(self.reference, len(step_budget.tasks) // 2)
            self._set = step_budget.rng.permutation(len(step_budget.tasks))[:size].tolist()
        count = min(max(1, round(self.reference_share * questions)), questions - 1, len(self._set))
        now = [self._set[(self._turn + place) % len(self._set)] for place in range(count)]
        self._turn = (self._turn + count) % len(self._set)
        return now

    def _targeted(self, step_budget: StepBudget, count: int) -> list[int]:
        """Tasks to train on, which are not of the set."""
        probed = set(self._set)
        others = [place for place in range(len(step_budget.tasks)) if place not in probed]
        if not self._known:
            if not self._set:
                return step_budget.draw_unplayed(count)
            drawn = step_budget.rng.choice(others, size=count, replace=count > len(others))
            return [int(place) for place in drawn]
        if not self._ahead:
            distance = np.abs(self._predict(step_budget.tasks) - self.target)[others]
            drawn = sample_without_replacement(
                -distance / self.temperature, self.every * count, step_budget.rng
            )
            self._ahead = [others[place] for place in drawn]
        now, self._ahead = self._ahead[:count], self._ahead[count:]
        return now

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
        """Groups not of the set are trained, with as many replayed ones as make their share; then they are kept."""
        # Solved for r in fresh = n / (n + r). The draw comes before the step's own groups are kept, or a group could
        # be trained twice in the step that played it.
        groups = [group for group in step_budget.groups if group.task not in self._set]
        count = round(len(groups) * (1 - self.fresh) / self.fresh)
        places = step_budget.rng.choice(len(self._kept), size=min(count, len(self._kept)), replace=False)
        replayed = [self._thaw(int(place), step_budget.tasks) for place in places]
        self._learn_outcomes([group for group in step_budget.groups if group.rewards])
        self._kept += [_frozen(group) for group in groups if not group.zero_variance]
        metrics: dict[str, float] = {"replay_buffer": len(self._kept)}
        if self.predictor == "learned":
            vectors, network = self._embedded(step_budget.tasks), self._network()
            network.learn(vectors[[place for place, _ in self._known]], [reward for _, reward in self._known])
            metrics["predictor_loss"] = network.loss
        return Selection(groups, replayed, metrics=metrics)

    def _learn_outcomes(self, groups: Sequence[Group]) -> None:
        outcomes = [(group.task, group.successes / len(group.rewards)) for group in groups]
        if self.predict_from == "set":
            outcomes = [(task, reward) for task, reward in outcomes if task in self._set]
            # The newest outcome of each task: the policy has moved on since the set was last gone through.
            newest = {task for task, _ in outcomes}
            self._known = deque((pair for pair in self._known if pair[0] not in newest), self.reference)
        self._known += outcomes

    def _thaw(self, place: int, tasks: Sequence[Task]) -> list[Trajectory]:
        task, records = self._kept[place]
        return [replace(from_record(record, tasks[task]), origin=Origin.REPLAY) for record in records]

    def state_dict(self) -> dict[str, Any]:
        """Known rewards, the set and whose turn it is there, kept groups, tasks of the steps to come, and the predictor."""
        learned = self._saved if self._learned is None else self._learned.state_dict()
        state = {"known": list(self._known), "kept": list(self._kept), "ahead": list(self._ahead)}
        if self._set:
            state |= {"set": list(self._set), "turn": self._turn}
        return state | ({} if learned is None else {"predictor": learned})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up where ``state_dict`` stood."""
        self._known = deque(((task, reward) for task, reward in state.get("known", ())), self.reference)
        self._kept = deque(((task, records) for task, records in state.get("kept", ())), self.buffer)
        self._ahead = list(state.get("ahead", ()))
        self._set, self._turn = list(state.get("set", ())), state.get("turn", 0)
        self._learned, self._saved = None, state.get("predictor")


def _frozen(group: Group) -> tuple[int, list[dict[str, Any]]]:
    return group.task, [checkpoint_record(trajectory) for trajectory in group.credited]
