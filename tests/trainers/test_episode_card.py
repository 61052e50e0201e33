"""The card of a trained policy: which rollout strategy an evaluation keeps, and with which budgets it asks."""

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


@pytest.mark.parametrize(
    ("env", "options", "budgets"),
    [
        ("agentenv/LongSearch-v0", {}, (5, 128, 8192)),
        ("agentenv/LongSearch-v0", {"k": 2, "max_turns": 40}, (2, 40, 8192)),
        ("agentenv/AgentSearch-v0", {"observation_tokens": 256}, (3, 8, 256)),  # k is that of every search
        ("agentenv/LocalSearch-v0", {}, (3, 4, 500)),
    ],
)
def test_the_card_states_the_budgets_of_the_run_although_the_run_names_none(
    env: str, options: dict[str, int], budgets: tuple[int, int, int]
) -> None:
    """An evaluation by the card would otherwise play with those of `LocalSearch-v0`."""
    run = load_config("laptop-search")
    card = episode_card(
        run.model_copy(update={"env": run.env.model_copy(update={"id": env, "options": options})})
    )
    assert (card.k, card.max_turns, card.observation_tokens) == budgets
