"""Training of a value model on states of known value (VM of ReST-RL; a process reward model for SCOPE).

The target of a state is what a search with the verifier found it to be worth, as in the training phase of ReST-RL (2025,
arXiv:2508.19576; ``trainers/value_states.py``), or else the mean reward of the recorded episodes that went through it. Where
episodes share their beginning, in trees and groups, this is a Monte Carlo estimate as in Math-Shepherd (Wang et al. 2023,
arXiv:2312.08935). The loss is the summed squared error of ReST-RL, over a linear head.

Shapes: N states, F features.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from agentenv.core.io.tables import open_text
from agentenv.core.trajectory import Origin, Trajectory, from_record
from agentenv.core.types import EndReason, Task
from agentenv.errors import ConfigurationError
from agentenv.policies.value_model import (
    LIKELIHOODS,
    Features,
    Piece,
    features_of,
    save_value_model,
    state_pieces,
)
from agentenv.progress import Display
from agentenv.trainers.credit.tree import Tree

if TYPE_CHECKING:
    from agentenv.policies.hf import HFPolicy

_LEAST = 10


@dataclass(frozen=True)
class LabelledEpisode:
    """An episode in pieces, and the targets of the states after those pieces that no other episode has labelled."""

    task: str
    pieces: tuple[Piece, ...]
    targets: Mapping[int, float]
    """By the place of the piece."""


def label_states(group: Sequence[Trajectory]) -> list[LabelledEpisode]:
    """The states of a group, each labelled once: V(s) = mean reward over the ways on from s, the reward where it ends.

    ReST-RL, 2025, arXiv:2508.19576, section on the value model. Branches that left one state count equally, however often
    they were forked again.

    Args:
        group: Episodes of one task; faults, demonstrations, reflections and what was given up are left out.
    """
    kept = [t for t in group if t.valid and t.origin not in (Origin.DEMONSTRATION, Origin.REFLECTION)]
    kept = [t for t in kept if t.end_reason is not EndReason.ABORTED and t.turns]
    tree = Tree(kept)
    found = []
    for place, (trajectory, path) in enumerate(zip(kept, tree.paths, strict=True)):
        edges = [path[:end] for end in range(1, len(path) + 1)]
        # A state that several episodes share is labelled by the first of them alone: counted once an episode, the
        # common beginnings of trees would outweigh everything else in the sum of squares.
        targets = {n: tree.values[e] for n, e in enumerate(edges, 1) if tree.holders[e][0] == place}
        if place == 0:
            # The root has no edge that leads to it, so its value is made from those that leave it.
            targets[0] = float(np.mean([tree.values[edge] for edge in tree.children[()]]))
        pieces = state_pieces(trajectory.task.question, trajectory.turns)
        found.append(LabelledEpisode(trajectory.task.id, tuple(pieces), targets))
    return found


def least_squares(features_NF: Features, targets_N: Features, ridge_F: Features) -> tuple[Features, float]:
    """Weight w [F] and bias b that minimise sum (w x + b - V)^2 + sum ridge (s w)^2, s the deviation of each feature.

    The squared error is that of ReST-RL, 2025, arXiv:2508.19576; ridge regression: Hoerl and Kennard 1970.
    """
    mean_F, scale_F = features_NF.mean(0), features_NF.std(0)
    # A feature that never varies is 0 once centred, and would be divided by 0.
    scale_F = np.where(scale_F > 1e-9, scale_F, 1.0)
    scaled_NF = (features_NF - mean_F) / scale_F
    # Both sides are centred, so that the bias drops out of the equations and the ridge does not pull at it. The ridge
    # also keeps the matrix regular where there are fewer states than features.
    gram_FF = scaled_NF.T @ scaled_NF + np.diag(ridge_F)
    weight_F = np.linalg.solve(gram_FF, scaled_NF.T @ (targets_N - targets_N.mean())) / scale_F
    return weight_F, float(targets_N.mean() - mean_F @ weight_F)


def ridge_of(features: int, ridge: float) -> Features:
    """float64[F]: ``ridge`` for each likelihood, and ``ridge`` times H for each number of the hidden state.

    So the hidden state as a whole is held back like one further feature.
    """
    hidden = features - LIKELIHOODS
    return np.array([ridge * hidden] * hidden + [ridge] * LIKELIHOODS)


def read_groups(run: Path) -> Iterator[list[Trajectory]]:
    """The groups of all steps that ``run`` has recorded, without their images.

    Raises:
        ConfigurationError: nothing is recorded there, or a file is damaged.
    """
    if not run.is_dir():
        raise ConfigurationError(f"there is no folder {run}; give the folder of a training run")
    paths = sorted((run / "trajectories").glob("step-*.jsonl.gz"))
    if not paths:
        raise ConfigurationError(
            f"{run} has recorded no episodes: train with trajectories_every=1, which writes {run / 'trajectories'}"
        )
    for path in paths:
        groups: dict[str, list[Trajectory]] = {}
        try:
            with open_text(path) as lines:
                for record in map(json.loads, lines):
                    without_tokens = record | {"segments": []}  # a value model reads text
                    # Tasks of several environments may have the same ids.
                    above = f"{record['environment']}/" if "environment" in record else ""
                    task = Task(above + record["task"]["id"], record["task"]["question"])
                    groups.setdefault(record["group_id"], []).append(from_record(without_tokens, task))
        except (OSError, ValueError, KeyError) as error:
            raise ConfigurationError(f"{path} holds no recorded episodes: {error}") from error
        yield from groups.values()


def recorded_episodes(run: Path) -> list[LabelledEpisode]:
    """The episodes that ``run`` has recorded, each state labelled with the mean reward of the ways on from it.

    Raises:
        ConfigurationError: nothing is recorded there, or a file is damaged.
    """
    return [episode for group in read_groups(run) for episode in label_states(group)]


def train_value_model(
    policy: "HFPolicy",
    spec: str,
    episodes: Sequence[LabelledEpisode],
    out: Path,
    *,
    ridge: float,
    display: Display,
) -> dict[str, Any]:
    """Fits a head to states of known value and writes it to ``out``.

    Every fifth task is held out first, to say how well the values of tasks that were not seen are predicted; the head that
    is written learned from all.

    Args:
        policy: The language model under the head.
        spec: Its name.
        episodes: Where the states are from.
        out: File to write.
        ridge: Strength of the pull towards 0; see ``ridge_of``.
        display: Told of the progress.

    Returns:
        ``states``, ``episodes``, ``tasks``, and of the held-out states ``squared_error`` beside ``constant_error``, that of
        the mean of the others; None where there are fewer than two tasks.

    Raises:
        ConfigurationError: there are hardly any states.
    """
    display.phase("value model", len(episodes))
    rows, targets, tasks = [], [], []
    for number, episode in enumerate(episodes, 1):
        places = sorted(episode.targets)
        if places:
            rows.append(features_of(policy, episode.pieces)[places])
            targets += [episode.targets[place] for place in places]
            tasks += [episode.task] * len(places)
        display.advance(number, {})
    refuse_few_states(len(targets))
    features_NF, targets_N = np.concatenate(rows), np.array(targets)
    held = held_out_tasks(episodes)
    held_N = np.array([task in held for task in tasks])
    metrics = {"states": len(targets), "episodes": len(episodes), "tasks": len(set(tasks))}
    errors = _held_out(features_NF, targets_N, held_N, ridge)
    head = least_squares(features_NF, targets_N, ridge_of(features_NF.shape[1], ridge))
    save_value_model(out, spec, *head)
    return metrics | errors


def refuse_few_states(states: int) -> None:
    """Refuses to train a value model on hardly any states.

    Raises:
        ConfigurationError: there are fewer than ten.
    """
    if states < _LEAST:
        raise ConfigurationError(
            f"there are {states} states of known value, and a value model needs {_LEAST}: record more episodes, or "
            "search more questions"
        )


def held_out_tasks(episodes: Sequence[LabelledEpisode]) -> set[str]:
    """Every fifth task with a state of known value, on which is measured how well others predict it."""
    names = list(dict.fromkeys(episode.task for episode in episodes if episode.targets))
    # From the second task on, so that the only task of a run is learned from and not held out.
    return set(names[1::5])


def _held_out(
    features_NF: Features, targets_N: Features, held_N: Any, ridge: float
) -> dict[str, float | None]:
    """Mean squared errors on the held-out states, of a head that learned from the others and of their mean."""
    if not held_N.any():
        return {"squared_error": None, "constant_error": None}
    weight_F, bias = least_squares(
        features_NF[~held_N], targets_N[~held_N], ridge_of(features_NF.shape[1], ridge)
    )
    found, wanted = features_NF[held_N] @ weight_F + bias, targets_N[held_N]
    constant = targets_N[~held_N].mean()
    return {
        "squared_error": float(((found - wanted) ** 2).mean()),
        "constant_error": float(((constant - wanted) ** 2).mean()),
    }
