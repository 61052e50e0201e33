"""The card of a trained policy: which rollout strategy an evaluation keeps."""

from pathlib import Path

import pytest

from agentenv.trainers.config.config_files import load_config
from agentenv.trainers.grpo import episode_card

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("run", "strategy", "options"),
    [
        ("examples/reseek.toml", "judge", {"verdict": "<judge>no</judge>", "drop": "mark"}),
        ("examples/ssrl.toml", "self_search", {"mask_information": True}),
        ("examples/r3l.toml", "", {}),  # retries belong to training
        ("laptop-search", "", {}),
    ],
)
def test_the_card_of_a_run_keeps_the_strategy_that_belongs_to_its_episodes(
    run: str, strategy: str, options: dict[str, object]
) -> None:
    card = episode_card(load_config(str(ROOT / run) if run.endswith(".toml") else run))
    assert (card.strategy, card.strategy_options) == (strategy, options)
