"""Credit from trajectories that share a past: retries, forks and trees. Pure functions.

The record says what trajectories share: a trajectory with ``parent_id`` and ``fork_turn`` has the parent's turns before
``fork_turn`` and sampled those from there on itself. A path is the tuple of the ids of those who sampled turns 0 to t; it
names one edge of the tree, and the path before it the state in which that turn was chosen. Equal tokens that were sampled
twice are two edges.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import Literal

import numpy as np

from agentenv.core.trajectory import SegmentKind, Trajectory
from agentenv.errors import ConfigurationError
from agentenv.trainers.credit.group_statistics import (
    Values,
    on_turns,
    rewards_of,
    standardize,
    turn_rewards,
    without_noise,
)

Path = tuple[str, ...]

_FLAT_DEPTH = 1e-6  # BranchGRPO's own bound on the deviation of a depth


def pivotal(
    group: Sequence[Trajectory],
    *,
    alpha: float = 3.0,
    amplify: Literal["paper", "repo"] = "paper",
    baseline: Literal["mean", "soft"] = "mean",
    temperature: float = 1.0,
    from_pivot: bool = True,
) -> list[Values]:
    """Credits the turns from the pivot on with R - b, times ``alpha`` where that is positive; turns before it get 0.

    R3L, Shi et al. 2026, arXiv:2601.03715. The pivot of a retry is its ``fork_turn``. The pivot of the trajectory that was
    retried is the earliest one of its retries; without retries every turn counts. A group of one has b = 0.
    Biased by design: alpha gives successes more weight, and retries were sampled under guidance that the record no longer
    contains. Measured without retries: 1.394 along, .102 aside (``repo`` .823, .231).

    Args:
        group: Valid trajectories, base and retries.
        alpha: Factor on positive scores.
        amplify: ``paper`` multiplies every positive score; ``repo`` gives 1 to every outcome of at least 1, whatever the
            baseline, and multiplies the other positive ones.
        baseline: ``soft`` is temperature * log mean exp(R / temperature).
        temperature: Of the soft baseline.
        from_pivot: False credits the turns before the pivot like the others, which is R3L without pivotal credit. The
            strategy has to leave these turns in the loss then (``pivotal = false`` of ``reflect_retry``).
    """
    rewards = np.asarray(rewards_of(group), dtype=np.float64)
    base = 0.0
    if len(group) > 1:
        # logaddexp and not log(mean(exp)): rewards over a small temperature overflow in exp.
        soft = temperature * (np.logaddexp.reduce(rewards / temperature) - np.log(len(group)))
        base = float(rewards.mean() if baseline == "mean" else soft)
    above = without_noise(rewards - base)
    scores = np.where(above > 0, alpha * above, above)
    if amplify == "repo":
        scores = np.where(rewards >= 1.0, 1.0, scores)
    return [
        np.where(trajectory.turn_index < (_pivot(trajectory, group) if from_pivot else 0), 0.0, score)
        for trajectory, score in zip(group, scores, strict=True)
    ]


def shared_means(group: Sequence[Trajectory], values: Sequence[Values]) -> list[Values]:
    """``values`` with the mean over all leaves of a turn where its first holder trains it for them.

    For estimators that know no tree, under the strategy ``tree``: the value of a turn is that of its last token.
    """
    made = [own.copy() for own in values]
    for path, holders in Tree(group).holders.items():
        if len(holders) > 1:
            # A path of n ids ends with turn n - 1.
            places = [group[i].turn_index == len(path) - 1 for i in holders]
            found = [values[i][own][-1] for i, own in zip(holders, places, strict=True) if own.any()]
            made[holders[0]][places[0]] = np.mean(found) if found else 0.0
    return made


def _pivot(trajectory: Trajectory, group: Sequence[Trajectory]) -> int:
    """The first turn in which ``trajectory`` differs from the one it retries, or from its retries."""
    if trajectory.fork_turn is not None:
        return trajectory.fork_turn
    # The earliest fork: from there on the base is what its retries are compared with.
    forks = [t.fork_turn for t in group if t.parent_id == trajectory.id and t.fork_turn is not None]
    return min(forks, default=0)


@dataclass(frozen=True)
class Tree:
    """The group as edges; made once for each call of an estimator."""

    group: Sequence[Trajectory]

    @cached_property
    def paths(self) -> list[Path]:
        """For each trajectory, the ids of the trajectories that sampled its turns."""
        by_id = {trajectory.id: trajectory for trajectory in self.group}

        def owner(trajectory: Trajectory, turn: int) -> str:
            # A retry of a retry shares its first turns with the first episode, so the walk goes up while the turn is shared.
            while trajectory.parent_id is not None and turn < (trajectory.fork_turn or 0):
                # A parent that failed is not in the group; its id still names the edges that its children share.
                if trajectory.parent_id not in by_id:
                    return trajectory.parent_id
                trajectory = by_id[trajectory.parent_id]
            return trajectory.id

        return [tuple(owner(t, turn) for turn in range(len(turn_rewards(t)))) for t in self.group]

    @cached_property
    def holders(self) -> dict[Path, list[int]]:
        """For each edge the trajectories that have it, in the order of the group; the first one trains it."""
        holders: dict[Path, list[int]] = {}
        for place, path in enumerate(self.paths):
            for end in range(1, len(path) + 1):
                holders.setdefault(path[:end], []).append(place)
        return holders

    @cached_property
    def children(self) -> dict[Path, list[Path]]:
        """For each state the edges that leave it."""
        children: dict[Path, list[Path]] = {}
        for path in self.holders:
            children.setdefault(path[:-1], []).append(path)
        return children

    @cached_property
    def values(self) -> dict[Path, float]:
        """For each edge the mean over the edges behind it, of theirs; the outcome where the trajectory ends.

        Unlike a mean over leaves this stays unbiased where one branch was forked more often than its sibling.
        """
        values: dict[Path, float] = {}
        # Longest paths first, so that every edge finds the values of those behind it.
        for path in sorted(self.holders, key=len, reverse=True):
            behind = [values[child] for child in self.children.get(path, ())]
            ends = [self.group[i].reward for i in self.holders[path] if len(self.paths[i]) == len(path)]
            values[path] = float(np.mean(behind + ends))
        return values

    def trained_once(self, scores: dict[Path, float]) -> list[Values]:
        """The score of each edge on the tokens of its first holder; 0 where another trajectory repeats it."""
        return [
            on_turns(
                trajectory,
                [
                    scores[path[:end]] if self.holders[path[:end]][0] == place else 0.0
                    for end in range(1, len(path) + 1)
                ],
            )
            for place, (trajectory, path) in enumerate(zip(self.group, self.paths, strict=True))
        ]


def sibling(group: Sequence[Trajectory], *, weighting: Literal["path", "none"] = "path") -> list[Values]:
    """Subtracts the mean value of the siblings of a turn, which were sampled independently in the same state. Unbiased.

    After VinePPO, Kazemnejad et al. 2024, arXiv:2410.01679; independent siblings in place of extra rollouts are this
    project's own. The value of a turn is the mean outcome behind it. A turn without siblings takes those of the nearest turn
    before it that has some. Independent trajectories are siblings in their first turn, so a group without forks gives
    ``leave_one_out``. If the number of forks of a state does not depend on what follows it, the mean over trajectories of
    the sum over tokens is unbiased.

    Args:
        group: Valid trajectories and their forks.
        weighting: ``path`` divides a turn by the number of siblings of each turn up to it, so that a state counts as often
            as the policy comes to it; ``none`` lets states count as often as they were forked, which is biased.
    """
    tree = Tree(group)
    scores = {}
    for path in tree.holders:
        ups = [path[:end] for end in range(len(path), 0, -1)]
        families = [(up, tree.children[up[:-1]]) for up in ups]
        # The nearest branching at or before the turn; what was chosen without an alternative has that one's baseline.
        up, family = next(((up, f) for up, f in families if len(f) > 1), (path, [path]))
        others = [tree.values[child] for child in family if child != up]
        score = tree.values[path] - float(np.mean(others)) if others else 0.0
        if weighting == "path":
            # A state counts by the chance to come to it, one over the product of the branchings on the way. The mean over
            # trajectories divides by their number, so that is multiplied in here.
            score *= len(group) / float(np.prod([len(f) for _, f in families]))
        scores[path] = score
    return tree.trained_once(scores)


def tree(
    group: Sequence[Trajectory],
    *,
    normalise: Literal["depth", "leaves"] = "depth",
    fusion: Literal["mean", "softmax"] = "mean",
    temperature: float = 1.0,
    epsilon: float = 1e-8,
    keep_siblings: float = 1.0,
    skip_depths: tuple[int, ...] = (),
) -> list[Values]:
    """Credits a turn with the mean outcome of the leaves behind it, standardised among the turns of its depth.

    BranchGRPO, Li et al. 2025, arXiv:2509.06040. A turn that several trajectories share is trained once.
    Biased: turns of one depth are not of one state, and each depth is divided by its own deviation.
    Measured without forks: .499 along, .076 aside (``leaves`` .536, .031).

    Args:
        group: The leaves.
        normalise: ``depth`` standardises the rewards of all turns of a depth; ``leaves`` standardises the outcomes and
            gives a turn the mean over its leaves.
        fusion: ``mean`` over the leaves, or ``softmax`` over the log-probs of the turns behind, level by level.
        temperature: Of the softmax.
        epsilon: Added to the deviation.
        keep_siblings: Share of the turns taken in one state that are trained, the best first and at least one (width pruning
            by parent); the others get 0 after all have been standardised. `keep` of the strategy prunes whole leaves.
        skip_depths: Turns, from 0, that get 0 in every trajectory (depth pruning).

    Raises:
        ConfigurationError: ``keep_siblings`` is not in (0, 1].
    """
    if not 0 < keep_siblings <= 1:
        raise ConfigurationError(
            f"option 'keep_siblings' of the estimator 'tree' must be in (0, 1], not {keep_siblings}"
        )
    trunk = Tree(group)
    outcomes = np.asarray(rewards_of(group), dtype=np.float64)
    leaves = standardize(outcomes, epsilon=epsilon) if normalise == "leaves" else outcomes
    if fusion == "softmax":
        rewards = _fused(trunk, leaves, temperature)
    else:
        rewards = {path: float(leaves[places].mean()) for path, places in trunk.holders.items()}
    scores = _by_depth(rewards, epsilon) if normalise == "depth" else rewards
    kept = _best_siblings(trunk, rewards, keep_siblings)
    return trunk.trained_once(
        {
            path: score if path in kept and len(path) - 1 not in skip_depths else 0.0
            for path, score in scores.items()
        }
    )


def _best_siblings(trunk: Tree, rewards: Mapping[Path, float], share: float) -> set[Path]:
    """The best share of the turns taken in each state, the first of equal ones."""
    ranked = (sorted(family, key=lambda path: -rewards[path]) for family in trunk.children.values())
    return {path for family in ranked for path in family[: ceil(share * len(family))]}


def _by_depth(rewards: dict[Path, float], epsilon: float) -> dict[Path, float]:
    scores: dict[Path, float] = {}
    for depth in {len(path) for path in rewards}:
        level = [path for path in rewards if len(path) == depth]
        values = np.asarray([rewards[path] for path in level])
        # A depth of one turn, or of equal ones, has no better and no worse.
        flat = len(level) < 2 or values.std(ddof=1) < _FLAT_DEPTH
        standing = np.zeros(len(level)) if flat else standardize(values, epsilon=epsilon)
        scores |= dict(zip(level, map(float, standing), strict=True))
    return scores


def _fused(trunk: Tree, leaves_G: Values, temperature: float) -> dict[Path, float]:
    """Rewards from the leaves up, each turn's weighted by the softmax over the turns behind it."""
    rewards: dict[Path, float] = {}
    for path in sorted(trunk.holders, key=len, reverse=True):
        behind = trunk.children.get(path, [])
        if not behind:
            rewards[path] = float(leaves_G[trunk.holders[path]].mean())
            continue
        scores = np.asarray([_logprob(trunk, child) for child in behind]) / temperature
        # The largest exponent is 0, so that nothing overflows and the sum is at least 1.
        weights = np.exp(scores - scores.max())
        rewards[path] = float(weights @ [rewards[child] for child in behind] / weights.sum())
    return rewards


def _logprob(trunk: Tree, path: Path) -> float:
    """Log-probability of the turn that ``path`` ends with."""
    trajectory = trunk.group[trunk.holders[path][0]]
    turn = len(path) - 1
    return sum(
        sum(s.logprobs) for s in trajectory.segments if s.kind is SegmentKind.POLICY and s.turn == turn
    )
