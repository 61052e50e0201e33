"""What a tree of episodes consists of: its branches, which slots each has, and which leaf trains what they share."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import ceil
from typing import Literal

from agentenv.core.rollout import EpisodeState
from agentenv.core.trajectory import Origin, SegmentKind, Trajectory
from agentenv.core.types import Completion
from agentenv.trainers.credit.step_selection import without_turns
from agentenv.trainers.credit.tree import Tree
from agentenv.trainers.strategies.branch_windows import LAYERS
from agentenv.trainers.strategies.token_forks import AlternativeToken


@dataclass
class Branch:
    """One path under way."""

    record: EpisodeState
    slots: range
    """Slots of the branch: it plays in the first one and gives the others to its forks."""
    forks: int
    """Forks that this branch and its forks may still make along one path."""
    parent: str | None = None
    turn: int = 0
    """The first turn that this branch played itself."""
    made: int = 0
    """Number of branches that forked from this one."""
    head: tuple[int, ...] = ()
    """Tokens with which its next turn begins; the last one is the token at which it forked from another branch."""
    copied: int = 0
    """Number of tokens of its own turns that were copied from the branch that it forked from."""
    alternative: tuple[int, ...] = ()
    """Tokens that the other branch wrote from that token on."""
    dropped: bool = False
    """Whether it was dropped for writing much the same as the other branch."""
    script: tuple[str, ...] = ()
    """The expert's actions from the start of the episode."""
    progress: dict[int, float] = field(default_factory=dict)
    """How likely the expert's next turn was after each turn."""
    layers: list[tuple[int, int, float]] = field(default_factory=list)
    """Layer, tokens and sum of -log p of the turns of the window that it sampled itself."""

    @property
    def may_fork(self) -> bool:
        """Whether it has forks and slots left."""
        return self.forks > 0 and len(self.slots) > 1


def begin_turn(
    child: Branch,
    head: tuple[int, ...],
    completion: Completion,
    alternative: AlternativeToken,
    *,
    trained: bool,
) -> None:
    """Writes what ``child`` has of its turn already: ``completion`` up to the alternative's place, then the alternative.

    Unless ``trained``, none of it is trained here: the branch that sampled the first tokens trains them, and nobody sampled
    the alternative.
    """
    kept = completion.ids[: alternative.place]
    logprobs = (*completion.logprobs[: alternative.place], alternative.logprob)
    turn, version = len(child.record.turns), completion.version
    ids = (*kept, alternative.token)
    child.record.add(SegmentKind.POLICY, ids, turn, logprobs=logprobs, version=version, trained=trained)
    child.head = (*head, *ids)
    child.copied, child.alternative = len(child.head), completion.ids[alternative.place :]


def shares(slots: range, parts: int) -> list[range]:
    """``slots`` cut into as many runs of nearly equal length, or one for each slot where there are fewer."""
    parts = min(parts, len(slots))
    edges = [slots.start + len(slots) * i // parts for i in range(parts + 1)]
    return [range(a, b) for a, b in pairwise(edges)]


def labelled(trajectory: Trajectory, branch: Branch) -> Trajectory:
    """``trajectory`` with its place in the tree; ``sampled_tokens`` counts those of its own turns."""
    own = [s for s in trajectory.segments if s.kind is SegmentKind.POLICY and s.turn >= branch.turn]
    sampled = sum(len(s.ids) for s in own) - branch.copied
    metrics = {"tree_branches": branch.made, "sampled_tokens": sampled}
    info = trajectory.info | {"strategy": metrics}
    if branch.layers:
        info |= {LAYERS: [list(layer) for layer in branch.layers]}
    if branch.parent is None:
        return replace(trajectory, info=info)
    return replace(
        trajectory, parent_id=branch.parent, fork_turn=branch.turn, origin=Origin.BRANCH, info=info
    )


def trained_once(
    group: Sequence[Trajectory], *, keep: float = 1.0, shared: Literal["once", "each"] = "once"
) -> list[Trajectory]:
    """The leaves with every shared turn marked for training in its first holder only, as the credit of trees expects.

    Args:
        group: Leaves; faults stay as they are.
        shared: ``each`` marks it in every leaf that is kept.
        keep: Share of the valid leaves that are trained, the best and the worst in equal numbers; a turn is trained where
            such a leaf is behind it.
    """
    valid = [place for place, trajectory in enumerate(group) if trajectory.valid]
    tree = Tree([group[place] for place in valid])
    ranked = sorted(range(len(valid)), key=lambda i: -group[valid[i]].reward)
    count = ceil(keep * len(valid))
    kept = {*ranked[: ceil(count / 2)], *ranked[len(ranked) - count // 2 :]}
    marked = list(group)
    for i, place in enumerate(valid):
        path = tree.paths[i]
        holders = [tree.holders[path[: turn + 1]] for turn in range(len(path))]
        off = {t for t, who in enumerate(holders) if who[0] != i or kept.isdisjoint(who)}
        if shared == "each":
            off = set() if i in kept else set(range(len(path)))
        marked[place] = without_turns(group[place], off)
    return marked
