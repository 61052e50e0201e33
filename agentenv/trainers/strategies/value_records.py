"""What a search of ReST-RL's training phase leaves: the text of states, and what the verifier said they are worth.

ReST-RL, 2025, arXiv:2508.19576: the targets of the value model are every state that was expanded, with the mean V over its
visits, and every complete program with its reward. A record is plain: ``pieces``, the question and then each action with
its observation, and ``targets``, the value by the number of turns played.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from agentenv.core.trajectory import Trajectory
from agentenv.policies.value_model import state_pieces

STATES = "value_states"
"""Key of the records in the info of the episode that a search keeps."""

Record = dict[str, Any]


@dataclass(frozen=True)
class Expansion:
    """A state from which the policy went on."""

    turns: int
    """Played before it."""
    value: float
    """V, the mean over all its visits when the search was over."""
    episodes: tuple[Trajectory, ...]
    """The complete ones that went on from it and that no infrastructure failure ended."""


def state_records(question: str, expansions: Sequence[Expansion]) -> list[Record]:
    """One record for each complete episode; the first that went on from a state labels that state as well.

    Episodes of equal actions are one, with the mean of their rewards: in an environment without chance they are equal.
    """
    rewards: dict[tuple[str, ...], list[float]] = {}
    for expansion in expansions:
        for episode in expansion.episodes:
            rewards.setdefault(_actions(episode), []).append(episode.reward)
    records = []
    for expansion in expansions:
        for place, episode in enumerate(expansion.episodes):
            targets = {} if place else {expansion.turns: expansion.value}
            if found := rewards.pop(_actions(episode), None):
                targets[len(episode.turns)] = fmean(found)
            if targets:
                pieces = state_pieces(question, episode.turns)
                records.append({"pieces": pieces, "targets": targets})
    return records


def _actions(episode: Trajectory) -> tuple[str, ...]:
    return tuple(turn.action for turn in episode.turns)
