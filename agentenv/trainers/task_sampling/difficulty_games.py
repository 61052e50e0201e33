"""GDRO's two games over classes of difficulty that form while a run goes on: which tasks are played, and how often each.

GDRO, Panaganti et al. 2026, arXiv:2601.19280. A task belongs to the class of its mean success over the steps in which it was
played. Both games are samplers, and the paper does not combine them.

Shapes: B classes of difficulty, G groups of one step. The formulas are pure functions; ``docs/sampling.md`` has them in one
table.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, variance
from typing import Any, ClassVar, Literal

import numpy as np

from agentenv.core.trajectory import Trajectory
from agentenv.trainers.credit.group_statistics import CREDIT_WEIGHT, Values, standardize
from agentenv.trainers.task_sampling.rollout_bandit import (
    arm_chances,
    chosen_arms,
    moved_price,
    priced_loss,
    updated_scores,
)
from agentenv.trainers.task_sampling.step_budget import (
    Group,
    Selection,
    StepBudget,
    TaskDraw,
    require,
    whole_groups,
)

CLASSES = 10
"""Of width .1 each, the last one with its upper end."""
PRIOR_VARIANCE = 1 / 6
"""Mean of p (1 - p) over success rates p that are all equally likely: what a class counts for before it was played."""
PRIOR_FREEDOM = 8.0
"""Degrees of freedom that `PRIOR_VARIANCE` counts for; see ``estimated_variance``."""
_EQUAL = 1e-12  # deviation of equal probabilities by rounding

Solved = Literal["any", "mean"]


def difficulty_class(success: float, now: int, margin: float) -> int:
    """The class of a mean success; another one than ``now`` only where it is past the edge of ``now`` by ``margin``.

    The published program compares a fall with the lower edge of the new class, which the mean is never below, so no task
    would ever become harder again. Here the edge that was crossed counts.
    """
    if now / CLASSES - margin <= success < (now + 1) / CLASSES + margin:
        return now
    # The tiny addition keeps a mean at the lower edge of a class from falling below it by rounding.
    return min(CLASSES - 1, math.floor(success * CLASSES + 1e-9))


def game_weights(scores_B: Sequence[float], *, strength: float, bound: float) -> Values:
    """float64[B]: exp(strength clip(score, -bound, bound)) (GDRO)."""
    clipped = np.clip(np.asarray(scores_B, dtype=np.float64), -bound, bound)
    weights: Values = np.exp(strength * clipped)
    return weights


def game_distribution(weights_B: Values, *, floor: float) -> Values:
    """float64[B]: (1 - floor) w / sum w + floor / B, with which the adversary plays a class (GDRO)."""
    mixed: Values = (1 - floor) * weights_B / weights_B.sum() + floor / len(weights_B)
    return mixed


def surrogate_loss(rewards_G: Sequence[float], tokens_G: Sequence[int]) -> float:
    """-sum A n / sum n, A the standardised rewards and n the tokens: GRPO's loss of a group on policy, over its tokens.

    It is 0 where all episodes are as long, and above 0 where the worse ones are longer (GDRO's signal).
    """
    total = sum(tokens_G)
    return float(-np.dot(standardize(rewards_G), tokens_G) / total) if total else 0.0


def standard_scores(chances_B: Values, *, bound: float) -> Values:
    """float64[B]: (q - mean q) / std q, within ``bound`` of 0; ones where all are equal, as nothing sets classes apart."""
    deviation = chances_B.std()
    if deviation < _EQUAL:
        return np.ones_like(chances_B)
    scores: Values = np.clip((chances_B - chances_B.mean()) / deviation, -bound, bound)
    return scores


def moved(mean: float | None, value: float, rate: float) -> float:
    """(1 - rate) mean + rate value; the first value as it is."""
    return value if mean is None else (1 - rate) * mean + rate * value


def variance_allocation(variances_G: Sequence[float], total: int, *, low: int, high: int) -> list[int]:
    """Rollouts n of each group that minimise sum v / n, between ``low`` and ``high`` and ``total`` together (GDRO).

    Without the bounds and in real numbers they are n_i = total sqrt(v_i) / sum sqrt(v_j). One rollout after the other goes
    to the group whose v / n falls most by it, which is exact in whole numbers because v / n is convex. Of equal ones the
    smallest group gets it.
    """
    sizes_G = [low] * len(variances_G)
    for _ in range(total - sum(sizes_G)):
        open_G = [i for i, size in enumerate(sizes_G) if size < high]
        if not open_G:
            break
        gain = {i: variances_G[i] / (sizes_G[i] * (sizes_G[i] + 1)) for i in open_G}
        best = max(open_G, key=lambda i: (gain[i], -sizes_G[i], -i))
        sizes_G[best] += 1
    return sizes_G


def estimated_variance(squares: float, freedom: float) -> float:
    """(8 / 6 + S) / (8 + D): the variance of a class, S its squares about the group means and D their degrees of freedom.

    What sum v / n will be is linear in v, so the sizes should rest on the mean of v given what was seen. This is its
    credibility estimate (Bühlmann 1967, ASTIN Bulletin 4): S / D, which is unbiased, weighed against the prior mean by
    E[Var(s^2)] / Var(v). For outcomes of 0 and 1 whose rates are all equally likely that quotient is worth 9 degrees of
    freedom in groups of 2, 7.5 in groups of 4 and 6.75 in groups of 8. Without a prior a class whose few groups were all
    equal would have a variance of 0, and so the fewest rollouts, where a single mixed group costs the most.
    """
    return (PRIOR_FREEDOM * PRIOR_VARIANCE + squares) / (PRIOR_FREEDOM + freedom)


@dataclass(kw_only=True)
class DifficultyGame:
    """What both games remember of the tasks and of the classes.

    Args:
        solved: Outcome of a task in a step: ``mean`` is the share of its episodes that succeeded, ``any`` is 1 where one of
            them did (published). Under ``any`` most tasks soon stand in the highest class, whatever their share, and a game
            over classes then has next to nothing to choose among.
        window: Steps over which the mean of a task is taken; 0 is all.
        margin: See ``difficulty_class``.
        rate: Weight of a step in what is known of a class; what came before keeps 1 - ``rate`` of its own.
    """

    solved: Solved = "mean"
    window: int = 0
    margin: float = 0.0
    rate: float = 0.1
    replays = False
    remembered: ClassVar[tuple[str, ...]] = ("outcomes", "classes")
    """The fields that a checkpoint has."""
    outcomes: dict[int, list[float]] = field(init=False, default_factory=dict)
    """By task."""
    classes: dict[int, int] = field(init=False, default_factory=dict)
    """By task; one that was never played is in class 0."""

    def __post_init__(self) -> None:
        require("window", self.window, self.window >= 0, "at least 0")
        require("margin", self.margin, 0 <= self.margin < 1, "within [0, 1)")
        require("rate", self.rate, 0 < self.rate <= 1, "within (0, 1]")

    def class_of(self, task: int) -> int:
        """The class of a task now."""
        return self.classes.get(task, 0)

    def move_tasks(self, groups: Sequence[Group]) -> None:
        """Moves the tasks of ``groups`` that have outcomes to their new classes."""
        for group in groups:
            if group.rewards:
                self.outcomes[group.task] = mine = self.outcomes_with(group)
                self.classes[group.task] = difficulty_class(
                    fmean(mine), self.class_of(group.task), self.margin
                )

    def outcomes_with(self, group: Group) -> list[float]:
        """The outcomes of the task of ``group`` within the window, the one of this group, which has rewards, included."""
        rewards = _clipped(group)
        outcome = fmean(rewards) if self.solved == "mean" else float(max(rewards) >= 1.0)
        mine = [*self.outcomes.get(group.task, ()), outcome]
        return mine[-self.window :] if self.window else mine

    def state_dict(self) -> dict[str, Any]:
        """What is known of tasks and classes, as pairs."""
        return {name: [*getattr(self, name).items()] for name in self.remembered}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up where ``state_dict`` stood."""
        for name in self.remembered:
            setattr(self, name, {int(key): value for key, value in state.get(name, ())})


def _clipped(group: Group) -> list[float]:
    return [min(max(reward, 0.0), 1.0) for reward in group.rewards]


@dataclass(kw_only=True)
class PromptGame(DifficultyGame):
    """Draws tasks of the classes of difficulty whose loss is largest more often.

    GDRO, Panaganti et al. 2026, arXiv:2601.19280, its game over prompts. The loss of a task is 1 - its mean outcome, or
    with ``signal="surrogate"`` the loss that the paper names, as it is on policy: see ``surrogate_loss``. That says
    which tasks fail at length and not which are hard. ``apply="weight"`` is the text of the paper: credit times min(w,
    ``cap``), so that a class counts by its share of the tasks times w. The weights of a step are those after its own
    losses were taken in. ``draw`` draws classes by the game's own distribution, whatever their shares, and trains no
    group with a large weight: of two classes of equal loss with 90 and 10 % of the tasks, each is half of what is
    played. ``probability`` is the published program: credit times min(q, ``cap``), q the game's distribution over the
    classes of the step, so that the credits shrink as there are more classes. Two options of the program are off by
    default. ``z_bound`` puts z-scores of q in the place of q, which turns the sign of the credit of the classes below
    their mean. ``leave_out`` takes tasks that are always or never solved out of the game: they move no class and are not
    trained. With ``solved="mean"`` such tasks have no credit anyway, and with ``any`` those that one episode of each
    group solves are lost.

    Args:
        signal: ``failure``: 1 - the mean outcome; or ``surrogate``, as published.
        apply: ``draw``; ``weight``: the credit of a task times min(w, ``cap``), w the weight of its class; or
            ``probability``: times min(q, ``cap``) instead.
        cap: See ``apply``.
        strength: See ``game_weights``.
        bound: See ``game_weights``.
        floor: See ``game_distribution``.
        per_share: Whether the loss of a class in a step is divided by its share of the step's groups, so that classes that
            are rarely drawn are not forgotten (an option of GDRO).
        z_bound: For ``probability``: the bound on the z-scores that the credit is multiplied by, 3 in the published program;
            0 takes the probabilities themselves.
        leave_out: Whether a task whose mean success, this step included, is exactly 0 or 1 takes part in nothing but the
            draw. What the program does with such tasks besides is not known to this project.
    """

    signal: Literal["failure", "surrogate"] = "failure"
    apply: Literal["draw", "weight", "probability"] = "draw"
    cap: float = 10.0
    strength: float = 0.1
    bound: float = 10.0
    floor: float = 0.15
    per_share: bool = False
    z_bound: float = 0.0
    leave_out: bool = False
    remembered: ClassVar[tuple[str, ...]] = ("outcomes", "classes", "means")
    means: dict[int, float] = field(init=False, default_factory=dict)
    """The moving mean of the loss, by class."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("cap", self.cap, self.cap > 0, "above 0")
        require("strength", self.strength, self.strength >= 0, "at least 0")
        require("bound", self.bound, self.bound > 0, "above 0")
        require("floor", self.floor, 0 <= self.floor <= 1, "within [0, 1]")
        usable = self.z_bound == 0 or (self.z_bound > 0 and self.apply == "probability")
        require("z_bound", self.z_bound, usable, "0, or above 0 with apply='probability'")

    @property
    def chooses(self) -> bool:
        """Whether the probabilities of the classes decide what is drawn."""
        return self.apply == "draw"

    def draw(self, step_budget: StepBudget) -> list[TaskDraw]:
        """``questions`` tasks; a class that has tasks is played with its probability, within it all are equally likely."""
        if self.apply != "draw":
            return whole_groups(step_budget, step_budget.draw_unplayed(step_budget.questions))
        numbers = [self.class_of(task) for task in range(len(step_budget.tasks))]
        present, places, sizes = np.unique(numbers, return_inverse=True, return_counts=True)
        weights = (self._distribution(present.tolist()) / sizes)[places]
        return whole_groups(step_budget, step_budget.draw_weighted(weights))

    def select(self, step_budget: StepBudget) -> Selection:
        """Losses and classes move. All groups are trained that are not left out."""
        groups = step_budget.groups
        played_in = [self.class_of(group.task) for group in groups]
        taking_part = [
            i for i, group in enumerate(groups) if not (self.leave_out and self._is_extreme(group))
        ]
        # Groups lost to faults are left out: to call their loss 1 would make their class look hard.
        losses = {i: self._loss(groups[i]) for i in taking_part if groups[i].rewards}
        self._follow(groups, losses)
        self.move_tasks(groups)
        if self.apply != "draw" and taking_part:
            factors = self._factors([played_in[i] for i in taking_part])
            for i in taking_part:
                groups[i].members = [weighted(member, factors[played_in[i]]) for member in groups[i].members]
        metrics = {f"loss_class_{number}": self.means[number] for number in sorted(self.means)}
        return Selection([groups[i] for i in taking_part], metrics=metrics)

    def _follow(self, groups: Sequence[Group], losses: Mapping[int, float]) -> None:
        """Moves the mean loss of each class by the ``losses`` of its groups, which are named by their places."""
        by_class: dict[int, list[float]] = {}
        for place, loss in losses.items():
            by_class.setdefault(self.class_of(groups[place].task), []).append(loss)
        for number, mine in by_class.items():
            share = len(mine) / len(losses) if self.per_share else 1.0
            self.means[number] = moved(self.means.get(number), fmean(mine) / share, self.rate)

    def _loss(self, group: Group) -> float:
        """What the game follows of a group with outcomes."""
        if self.signal == "failure":
            return 1 - fmean(_clipped(group))
        members = group.credited
        return surrogate_loss([t.reward for t in members], [t.response_tokens for t in members])

    def _is_extreme(self, group: Group) -> bool:
        return bool(group.rewards) and fmean(self.outcomes_with(group)) in (0.0, 1.0)

    def _factors(self, played_in: Sequence[int]) -> dict[int, float]:
        """For each class of a step the factor of its tasks' credit; the step's own losses count already."""
        present = sorted(set(played_in))
        found = self._weights(present) if self.apply == "weight" else self._distribution(present)
        if self.z_bound:
            found = standard_scores(found, bound=self.z_bound)
        return {number: min(float(one), self.cap) for number, one in zip(present, found, strict=True)}

    def _distribution(self, present: Sequence[int]) -> Values:
        """float64[B]: the game's distribution over the classes ``present``."""
        return game_distribution(self._weights(present), floor=self.floor)

    def _weights(self, present: Sequence[int]) -> Values:
        """float64[B]: the weights of the classes ``present``."""
        unknown = 1.0 if self.signal == "failure" else 0.0
        scores_B = [self.means.get(number, unknown) for number in present]
        return game_weights(scores_B, strength=self.strength, bound=self.bound)


def weighted(member: Trajectory, weight: float) -> Trajectory:
    """``member`` whose credit is multiplied by ``weight``."""
    return replace(member, info=member.info | {CREDIT_WEIGHT: weight})


@dataclass(kw_only=True)
class RolloutGame(DifficultyGame):
    """Draws tasks uniformly and plays those longer whose class of difficulty has rewards of larger variance.

    GDRO, Panaganti et al. 2026, arXiv:2601.19280, its game over rollouts, by the closed form of its theory: see
    ``variance_allocation``, or by the bandit that the paper plays (``rollout_bandit.py``). The theory knows the variance of
    a class; here it is estimated (``estimated_variance``), with a prior that is this project's. The loss of an arm n of the
    bandit is v / n, the variance of the mean reward, which the theory minimises, over the largest there is; the surrogate
    loss that the paper names is 0 on policy for every group whose credit is standardised. Exploration, bonus, price and
    bounds are this project's. A bandit tries the arms of a class by turns before it prefers one.

    Args:
        rule: ``closed`` or ``bandit``.
        exploration: Share of the plays of a bandit that is uniform over its arms.
        bonus: See ``updated_scores``.
        price_rate: See ``moved_price``; 0 leaves the price at 0.
        fewest: Least rollouts of a task; at least 2 for ``bandit``, which learns from the variance within a group.
        most: Most rollouts of a task; 0 is twice ``group_size``.
    """

    rule: Literal["closed", "bandit"] = "closed"
    exploration: float = 0.15
    bonus: float = 0.01
    price_rate: float = 0.001
    fewest: int = 2
    most: int = 0
    remembered: ClassVar[tuple[str, ...]] = ("outcomes", "classes", "squares", "freedom")
    squares: dict[int, float] = field(init=False, default_factory=dict)
    """By class, squares of rewards about the means of their groups."""
    freedom: dict[int, float] = field(init=False, default_factory=dict)
    """By class, the degrees of freedom of these squares."""
    arms: dict[int, list[float]] = field(init=False, default_factory=dict)
    """Scores of the arms of each class, for ``bandit``."""
    price: float = field(init=False, default=0.0)
    """Of a rollout, for ``bandit``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("exploration", self.exploration, 0 < self.exploration <= 1, "within (0, 1]")
        require("bonus", self.bonus, self.bonus >= 0, "at least 0")
        require("price_rate", self.price_rate, self.price_rate >= 0, "at least 0")
        least = 2 if self.rule == "bandit" else 1
        require("fewest", self.fewest, self.fewest >= least, f"at least {least}")
        require("most", self.most, self.most == 0 or self.most >= self.fewest, "0 or at least fewest")

    def draw(self, step_budget: StepBudget) -> list[TaskDraw]:
        """``questions`` tasks and the whole budget."""
        if step_budget.rounds:
            return []
        places = step_budget.draw_unplayed(step_budget.questions)
        if self.rule == "bandit":
            numbers = [self.class_of(place) for place in places]
            counts = Counter(numbers)
            arms = self._arms(step_budget.group_size)
            chances = [
                np.log(arm_chances(self._scores(number, len(arms)), exploration=self.exploration))
                for number in counts
            ]
            sizes = chosen_arms(
                [c.tolist() for c in chances], [*counts.values()], arms, step_budget.remaining
            )
            by_class = dict(zip(counts, sizes, strict=True))
            return [TaskDraw(place, by_class[number]) for place, number in zip(places, numbers, strict=True)]
        sizes_G = variance_allocation(
            [self.variance_of(place) for place in places],
            step_budget.remaining,
            low=min(self.fewest, step_budget.group_size),
            high=self.most or 2 * step_budget.group_size,
        )
        return [TaskDraw(place, size) for place, size in zip(places, sizes_G, strict=True)]

    def select(self, step_budget: StepBudget) -> Selection:
        """Variances and classes move. All groups are trained."""
        groups = step_budget.groups
        if self.rule == "bandit":
            self._play_bandits(groups, step_budget.group_size)
        self.learn(groups)
        metrics = {
            f"variance_class_{number}": estimated_variance(self.squares[number], self.freedom[number])
            for number in sorted(self.squares)
        }
        metrics["largest_group"] = max(len(group.compared) for group in groups)
        if self.rule == "bandit":
            metrics["rollout_price"] = self.price
        return Selection(groups, metrics=metrics)

    def variance_of(self, task: int) -> float:
        """The variance of the rewards of a task, as it is estimated for its class."""
        number = self.class_of(task)
        return estimated_variance(self.squares.get(number, 0.0), self.freedom.get(number, 0.0))

    def learn(self, groups: Sequence[Group]) -> None:
        """Adds what was played to what is known of the classes, and then moves the tasks to their new ones."""
        # By the classes before the tasks move, in which the step was played.
        played = [(self.class_of(group.task), _clipped(group)) for group in groups if len(group.rewards) > 1]
        for number in {number for number, _ in played}:
            self.squares[number] = (1 - self.rate) * self.squares.get(number, 0.0)
            self.freedom[number] = (1 - self.rate) * self.freedom.get(number, 0.0)
        for number, rewards in played:
            self.squares[number] += (len(rewards) - 1) * variance(rewards)
            self.freedom[number] += len(rewards) - 1
        self.move_tasks(groups)

    def _arms(self, group_size: int) -> list[int]:
        return list(range(min(self.fewest, group_size), (self.most or 2 * group_size) + 1))

    def _scores(self, number: int, count: int) -> list[float]:
        return self.arms.get(number, [0.0] * count)

    def _play_bandits(self, groups: Sequence[Group], group_size: int) -> None:
        """Every class that was played learns what its number of rollouts cost; then the price follows what was spent."""
        arms = self._arms(group_size)
        variances: dict[tuple[int, int], list[float]] = {}
        for group in groups:
            # Of a size that is no arm are groups that a strategy made larger; no arm can learn from them.
            if len(group.rewards) > 1 and len(group.compared) in arms:
                key = self.class_of(group.task), len(group.compared)
                variances.setdefault(key, []).append(variance(_clipped(group)))
        for (number, size), found in variances.items():
            scores, arm = self._scores(number, len(arms)), arms.index(size)
            chances = arm_chances(scores, exploration=self.exploration)
            loss = priced_loss(fmean(found), size, self.price, arms[0])
            self.arms[number] = updated_scores(
                scores, chances, arm, loss, exploration=self.exploration, bonus=self.bonus
            )
        # Last, because the losses above were paid at the price at which the arms were chosen.
        spent = fmean([len(group.compared) for group in groups])
        self.price = moved_price(self.price, spent, group_size, self.price_rate)

    def state_dict(self) -> dict[str, Any]:
        """What is known of tasks and classes, and the scores of the arms."""
        return super().state_dict() | {"arms": [*self.arms.items()], "price": self.price}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up where ``state_dict`` stood."""
        super().load_state_dict(state)
        self.arms = {int(number): list(scores) for number, scores in state.get("arms", ())}
        self.price = state.get("price", 0.0)
