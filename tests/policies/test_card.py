"""Cards of policies: what is written, and that it is read again."""

import json
from pathlib import Path
from typing import Any

import pytest

from agentenv.errors import CheckpointMismatch
from agentenv.policies.card import EpisodeCard, portable, read_card, write_card


@pytest.mark.parametrize(
    "card",
    [
        EpisodeCard(k=2),
        EpisodeCard(strategy="judge", strategy_options={"drop": "mark"}),
        EpisodeCard(
            options={"tools": ["web_search"], "agents": {"local": {"k": 5}}, "pixels": True, "rounds": 2}
        ),
    ],
)
def test_a_card_is_read_as_it_was_written(tmp_path: Path, card: EpisodeCard) -> None:
    write_card(tmp_path, card)
    assert read_card(tmp_path) == card
    assert ("strategy" in json.loads((tmp_path / "episode.json").read_text())) is bool(card.strategy)


def nested(depth: int) -> list[Any]:
    """A list in a list, so many times."""
    return [nested(depth - 1)] if depth else []


@pytest.mark.parametrize(
    "option",
    [
        {"summarizer": "openai:m@http://h/v1"},
        {"generator": "hf:policy"},
        {"validator": "module:name"},
        {"site": "../elsewhere"},
        {"agents": {"local": {"policy": "hf:other"}}},
        {"tools": ["a", "b:c"]},
        {"executor": "bwrap"},
        {"tools": nested(5)},
        {"tools": nested(900)},
        {"limits": {"memory_mb": 1e6}},
        {"place": "unsafe-local"},
    ],
    ids=lambda option: str(option)[:40],
)
def test_a_card_sets_options_to_numbers_and_words_alone(tmp_path: Path, option: dict[str, Any]) -> None:
    assert portable(option | {"rounds": 2}) == {"rounds": 2}
    (tmp_path / "episode.json").write_text(json.dumps({"options": option}))
    with pytest.raises(CheckpointMismatch, match=next(iter(option))):
        read_card(tmp_path)
