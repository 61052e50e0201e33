"""Credit for getting where the expert's next turn is likely: the progress reward of LayerTuning. Pure functions.

Dynamic-TreeRPO, 2025, arXiv:2509.23352; the formulas for turns are this project's, because only the abstract was found.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from agentenv.core.trajectory import Trajectory
from agentenv.trainers.credit.group_statistics import Values, on_turns, standardize
from agentenv.trainers.credit.tree import Path, Tree

PROGRESS = "expert_progress"
"""Entry of ``info``: the progress of each turn, as pairs, and the success rate of the group; `progress_info` makes it."""


def progress_info(
    trajectory: Trajectory, progress: Mapping[int, float], *, success_rate: float
) -> Trajectory:
    """``trajectory`` with the progress of its turns.

    Args:
        trajectory: A leaf.
        progress: By turn: the mean log-prob of the expert's next turn after it.
        success_rate: Share of the leaves of its group that succeeded.
    """
    entry = {"turns": [[turn, value] for turn, value in progress.items()], "success_rate": success_rate}
    return replace(trajectory, info=trajectory.info | {PROGRESS: entry})


def progress_weight(trajectory: Trajectory, weight: float) -> float | None:
    """Lambda (1 - success rate of the group); None where no progress was measured in it.

    Args:
        trajectory: A leaf.
        weight: lambda.
    """
    entry = trajectory.info.get(PROGRESS)
    return None if entry is None else weight * (1.0 - float(entry["success_rate"]))


def progress_credit(group: Sequence[Trajectory], credit: Sequence[Values], *, weight: float) -> list[Values]:
    """Adds lambda (1 - success rate) times the standardised progress to the credit of each turn.

    Progress is standardised among the turns of one depth, a turn that several leaves share counting once, as
    ``tree`` standardises outcomes. A turn of which no progress is known gets nothing.

    Args:
        group: Valid trajectories of one group.
        credit: float64[T] for each.
        weight: lambda; 0 adds nothing.
    """
    if not weight:
        return list(credit)
    tree = Tree(group)
    known: dict[Path, float] = {}
    for trajectory, path in zip(group, tree.paths, strict=True):
        for turn, value in trajectory.info.get(PROGRESS, {}).get("turns", ()):
            # Leaves that share a turn carry the same measurement; counted once each, the turn would stand several
            # times among those of its depth.
            known.setdefault(path[: int(turn) + 1], float(value))
    standing = _by_depth(known)
    return [
        values + (progress_weight(trajectory, weight) or 0.0) * _on_path(trajectory, path, standing)
        for trajectory, path, values in zip(group, tree.paths, credit, strict=True)
    ]


def _by_depth(known: Mapping[Path, float]) -> dict[Path, float]:
    standing: dict[Path, float] = {}
    for depth in {len(path) for path in known}:
        level = [path for path in known if len(path) == depth]
        scores = standardize([known[path] for path in level])
        standing |= dict(zip(level, map(float, scores), strict=True))
    return standing


def _on_path(trajectory: Trajectory, path: Path, standing: Mapping[Path, float]) -> Values:
    scores = [standing.get(path[:end], 0.0) for end in range(1, len(path) + 1)]
    return on_turns(trajectory, scores) if scores else np.zeros(len(trajectory.ids))
