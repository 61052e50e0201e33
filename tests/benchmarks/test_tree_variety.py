"""What ``benchmarks/tree_variety.py`` counts of a group, by hand, and that it plays every arm."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest


@pytest.fixture
def tree_variety(script: Callable[[str], Any]) -> Any:
    return script("tree_variety")


def episode(actions: str, reward: float, sampled: int) -> Any:
    """A trajectory as far as it is counted; each letter of ``actions`` is the action of a turn."""
    turns = tuple(SimpleNamespace(action=action) for action in actions)
    info = {"strategy": {"sampled_tokens": sampled}}
    return SimpleNamespace(valid=True, turns=turns, reward=reward, info=info)


def test_a_group_is_counted_by_hand(tree_variety: Any) -> None:
    """Three leaves: two begin alike, two are worth nothing, and the second has sampled two tokens that are its own."""
    group = [episode("ab", 1.0, 6), episode("ac", 0.0, 2), episode("db", 0.0, 6)]
    assert tree_variety.measured(group) == {
        "leaves": 3,
        "tokens": 14,
        "first_actions": 2,
        "sequences": 3,
        "differ": 1.0,
    }
    assert tree_variety.measured(group[1:])["differ"] == 0.0


def test_episodes_are_bought_whole(tree_variety: Any) -> None:
    group = [episode(name, 0.0, 5) for name in "abcd"]
    assert [len(tree_variety.paid_for(group, tokens)) for tokens in (1, 9, 10, 100)] == [1, 1, 2, 4]


def test_every_arm_is_played_and_compared(tree_variety: Any) -> None:
    config = tree_variety.unseen(2, 11, "tiny")
    played = {
        name: tree_variety.groups_of(config, strategy, options)
        for name, (strategy, options) in tree_variety.ARMS.items()
    }
    assert {len(groups) for groups in played.values()} == {2}
    assert [len(group) for group in played["independent"]] == [8, 8]
    table = tree_variety.table_of(played)
    assert table["independent"]["leaves"]["mean"] == 8
    for name in ("full tree", "window", "window at 1"):
        assert 2 <= table[name]["leaves"]["mean"] <= 8
        assert table[name]["independent, equal tokens"]["tokens"] <= table[name]["tokens"]["mean"]
