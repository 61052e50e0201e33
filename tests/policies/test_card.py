"""Cards of policies: what is written, and that it is read again."""

import json
from pathlib import Path

import pytest

from agentenv.policies.card import EpisodeCard, read_card, write_card


@pytest.mark.parametrize(
    "card", [EpisodeCard(k=2), EpisodeCard(strategy="judge", strategy_options={"drop": "mark"})]
)
def test_a_card_is_read_as_it_was_written(tmp_path: Path, card: EpisodeCard) -> None:
    write_card(tmp_path, card)
    assert read_card(tmp_path) == card
    assert ("strategy" in json.loads((tmp_path / "episode.json").read_text())) is bool(card.strategy)
