"""XRPO: further rollouts for the tasks of most uncertain reward, and solved examples for those on which all rollouts fail.

XRPO, Bamba et al. 2025, arXiv:2510.06672. The formulas are pure functions; ``docs/sampling.md`` has them in one table.

Shapes: G groups of one step, N tasks, D dimensions of a question's vector.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentenv.core.trajectory import Trajectory
from agentenv.core.types import Task
from agentenv.evaluation.statistics.intervals import t_quantile
from agentenv.retrievers.encoder import make_encoder
from agentenv.trainers.task_sampling.allocation import added, first_look
from agentenv.trainers.task_sampling.step_budget import Group, Selection, StepBudget, TaskDraw, require


def half_width(deviation: float, size: int, *, level: float = 0.95) -> float:
    """Half the width of the confidence interval of a mean: t sqrt(s^2 / n); infinite for fewer than two outcomes."""
    return _t_quantile((1 + level) / 2, size - 1) * deviation / math.sqrt(size) if size > 1 else math.inf


# The intervals of a step ask for few pairs of level and size, again and again, and each is bisected.
_t_quantile = lru_cache(maxsize=1024)(t_quantile)


def priority(deviation: float, size: int, total: int, *, exploration: float, level: float = 0.95) -> float:
    """How much one more rollout is expected to narrow the confidence interval, plus a bonus for groups of few rollouts.

    XRPO, Bamba et al. 2025, arXiv:2510.06672. The deviation is assumed to stay the same. The published bonus is not known to
    this project; this one is that of upper confidence bounds, ``exploration`` * sqrt(log(1 + total) / size).

    Args:
        deviation: Standard deviation of the outcomes so far.
        size: Their number n.
        total: Rollouts of the whole step so far.
        exploration: Weight of the bonus.
        level: Of the interval.
    """
    if size < 2:
        return math.inf
    shrink = half_width(deviation, size, level=level) - half_width(deviation, size + 1, level=level)
    return shrink + exploration * math.sqrt(math.log(1 + total) / size)


def uncertainty_allocation(
    deviations_G: Sequence[float],
    sizes_G: Sequence[int],
    amount: int,
    *,
    exploration: float,
    level: float = 0.95,
) -> list[int]:
    """``amount`` rollouts, one after the other to the group of highest ``priority``, the first of equal ones."""
    sizes, added_G = list(sizes_G), [0] * len(sizes_G)
    for _ in range(amount):
        total = sum(sizes)
        ranks = [
            priority(s, n, total, exploration=exploration, level=level)
            for s, n in zip(deviations_G, sizes, strict=True)
        ]
        # By place where ranks are equal, so that a resumed run allocates alike.
        best = max(range(len(ranks)), key=lambda i: (ranks[i], -i))
        sizes[best] += 1
        added_G[best] += 1
    return added_G


def nearest_places(
    vector_D: NDArray[np.floating[Any]], vectors_N_D: NDArray[np.floating[Any]], count: int
) -> list[int]:
    """Places of the ``count`` vectors with the largest inner product with ``vector_D``, the first of equal ones first."""
    order = np.argsort(-(vectors_N_D @ vector_D), kind="stable")
    return [int(place) for place in order[:count]]


def solved_example(trajectory: Trajectory, limit: int) -> str:
    """The question of a solved episode and all that was done and seen in it, at most ``limit`` characters of that."""
    done = "".join(
        turn.action + "".join(message.text for message in turn.observation) for turn in trajectory.turns
    )
    return f"Question: {trajectory.task.question}\n{done if len(done) <= limit else done[:limit] + ' ...'}"


@dataclass(kw_only=True)
class UncertaintyAllocation:
    """Plays each task a few times first, and then those whose mean reward is most uncertain.

    XRPO, Bamba et al. 2025, arXiv:2510.06672. A task on which every rollout of the step has failed so far is played on with
    solved examples of the most similar other questions in the context (in-context seeding). The examples come from the
    run itself: the newest solution of each task. They are cut out of the record, as hints are, and what was sampled behind
    them carries ``context_mismatch``. In the round after the first, each of these tasks gets ``seeds`` rollouts
    before the rest is allocated. The novelty bonus of the same paper is ``reward_shaping.novelty``.

    Args:
        first: Rollouts of each task in the first round; 0 takes half of ``group_size``, at least 2.
        rounds: Number of rounds over which the rest is spent, in equal parts.
        exploration: See ``priority``.
        level: Confidence level of the interval.
        examples: Solved examples that a failed task is played with (2 in the paper); 0 plays it without.
        example_characters: Characters after which an example is cut.
        encoder: Embeds the questions, by which similar ones are found: ``hash`` for hashed words, or an encoder of
            ``search.encoder``.
        seeds: Rollouts with examples that a failed task gets in any case.
        success: Smallest outcome that counts as a success.
    """

    replays = False
    first: int = 0
    rounds: int = 2
    exploration: float = 0.1
    level: float = 0.95
    examples: int = 2
    example_characters: int = 2000
    encoder: str = "hash"
    seeds: int = 1
    success: float = 1.0

    def __post_init__(self) -> None:
        require("first", self.first, self.first == 0 or self.first >= 2, "0 or at least 2")
        require("rounds", self.rounds, self.rounds >= 1, "at least 1")
        require("exploration", self.exploration, self.exploration >= 0, "at least 0")
        require("level", self.level, 0 < self.level < 1, "within (0, 1)")
        require("examples", self.examples, self.examples >= 0, "at least 0")
        require("example_characters", self.example_characters, self.example_characters >= 1, "at least 1")
        require("seeds", self.seeds, self.seeds >= 0, "at least 0")
        self._solved: dict[int, str] = {}
        self._vectors: NDArray[np.float32] | None = None

    @property
    def guides(self) -> bool:
        """Whether some rollouts are played with examples in their context."""
        return self.examples > 0

    def draw(self, step_budget: StepBudget) -> list[TaskDraw]:
        """Draws the first episodes of each task, and then one round after the other."""
        if step_budget.rounds == 0:
            return first_look(step_budget, self.first)
        rounds_left = self.rounds - step_budget.rounds + 1
        if rounds_left < 1:
            return []
        amount = math.ceil(step_budget.remaining / rounds_left)
        guidance = self._guidance(step_budget)
        seeds = self._seeds(step_budget, guidance, amount)
        outcomes = [_outcomes(group) for group in step_budget.groups]
        more = uncertainty_allocation(
            [stdev(mine) if len(mine) > 1 else 0.0 for mine in outcomes],
            # Seeds are counted as if they had been played, so that a failed task does not get them twice.
            [len(mine) + seed for mine, seed in zip(outcomes, seeds, strict=True)],
            amount - sum(seeds),
            exploration=self.exploration,
            level=self.level,
        )
        draws = added(step_budget, [a + b for a, b in zip(more, seeds, strict=True)])
        return [replace(draw, guidance=guidance.get(draw.group or 0, "")) for draw in draws]

    def _guidance(self, step_budget: StepBudget) -> dict[int, str]:
        """What groups without a success are told, by their place; none while nothing is solved that could be shown."""
        if not self.examples:
            return {}
        failed = {
            place: group.task
            for place, group in enumerate(step_budget.groups)
            if group.members and all(outcome < self.success for outcome in _outcomes(group))
        }
        texts = {place: self._examples(task, step_budget.tasks) for place, task in failed.items()}
        return {place: text for place, text in texts.items() if text}

    def _examples(self, task: int, tasks: Sequence[Task]) -> str:
        others = [place for place in self._solved if place != task]
        if not others:
            return ""
        if self._vectors is None:
            self._vectors = make_encoder(self.encoder).encode_queries([task.question for task in tasks])
        near = nearest_places(self._vectors[task], self._vectors[others], self.examples)
        solved_examples = [self._solved[others[place]] for place in near]
        return "\n\n".join(["Here are solved examples.", *solved_examples, "Now solve the question above."])

    def _seeds(self, step_budget: StepBudget, guidance: Mapping[int, str], amount: int) -> list[int]:
        """Rollouts with examples that each group gets in any case; where few are left, the first groups get them."""
        seeds = [0] * len(step_budget.groups)
        for place in guidance if step_budget.rounds == 1 else ():
            seeds[place] = min(self.seeds, amount - sum(seeds))
        return seeds

    def select(self, step_budget: StepBudget) -> Selection:
        """Everything is trained; what was solved becomes an example."""
        for group in step_budget.groups:
            solved = [t for t in group.credited if t.reward >= self.success]
            if solved and self.examples:
                self._solved.pop(group.task, None)  # the newest come last
                self._solved[group.task] = solved_example(solved[-1], self.example_characters)
        metrics: dict[str, float] = {
            "largest_group": max(len(group.compared) for group in step_budget.groups)
        }
        if self.examples:
            guided = [group for group in step_budget.groups if any(t.guided for t in group.members)]
            metrics |= {"seeded_groups": len(guided), "solved_examples": len(self._solved)}
        return Selection(step_budget.groups, metrics=metrics)

    def state_dict(self) -> dict[str, Any]:
        """The example of each task that was solved, in their order."""
        return {"solved": [[place, text] for place, text in self._solved.items()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up where ``state_dict`` stood."""
        self._solved = {int(place): str(text) for place, text in state.get("solved", ())}


def _outcomes(group: Group) -> list[float]:
    """Outcomes of the valid members, those with examples included; a reflection is no outcome of the task."""
    return [member.reward for member in group.credited]
