"""Marks of the trajectories whose turns are compared in pairs (EvoCUA, arXiv:2601.15876); the learner reads them."""

from typing import Any

PAIR = "preference"
"""Entry of ``info`` of the trajectories of a pair; `preference` makes it."""


def preference(pair: str, turn: int, *, better: bool) -> dict[str, Any]:
    """The entry of ``info`` that marks a trajectory as one of a pair.

    Args:
        pair: Names the pair.
        turn: The turn whose tokens are compared.
        better: Whether it is the better one.
    """
    return {PAIR: {"pair": pair, "turn": turn, "better": better}}
