"""The card of a trained policy: which rollout strategy an evaluation keeps, and with which budgets it asks."""

from pathlib import Path

import pytest

from agentenv.core.registry import env_class, make
from agentenv.evaluation.benchmark import Benchmark, _options
from agentenv.trainers.config.config_files import load_config, presets
from agentenv.trainers.grpo import episode_card

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("run", "strategy", "options"),
    [
        ("examples/reseek.toml", "judge", {"verdict": "<judge>no</judge>", "drop": "mark", "split": True}),
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
        ("agentenv/AgentSearch-v0", {"observation_tokens": 256}, (10, 8, 256)),
        (
            "agentenv/HierarchicalSearch-v0",
            {"observation_tokens": 256},
            (3, 8, 256),
        ),  # k is that of every search
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


@pytest.mark.parametrize(
    ("run", "options"),
    [
        ("desktop-pixels", {"tree": False, "pixels": True, "pointing": "coordinate", "max_steps": 8}),
        ("examples/hybrid-search.toml", {"queries": 8, "repeat_notice": True}),
        ("examples/hiersearch-web.toml", {"tools": ["web_search", "browse_url"]}),
        (
            "examples/tracecoder.toml",
            {"rounds": 2, "observation_chars": 400},
        ),  # and not what repairs are paid by
        ("examples/mt-grpo.toml", {}),  # nothing but a reward
    ],
)
def test_the_card_keeps_what_shapes_the_episodes_and_not_what_they_are_paid(
    run: str, options: dict[str, object]
) -> None:
    """Asked with the environment's own options, a policy of pixels would be shown a tree, and its ids in place of places."""
    card = episode_card(load_config(str(ROOT / run) if run.endswith(".toml") else run))
    assert {name: value for name, value in card.options.items() if name in options or not options} == options
    assert not {"reward", "outcome", "scorer", "found_reward"} & card.options.keys()


def test_every_option_of_a_preset_is_asked_again_or_only_paid() -> None:
    """By `agentenv eval` in the environment of the run: what a card cannot hold is named here with its reason."""
    unsaid = {"generator": "it names who plays, which may be a model behind an address"}
    for path in [*presets().values(), *sorted((ROOT / "examples").glob("*.toml"))]:
        config = load_config(str(path))
        card, benchmark = episode_card(config), Benchmark("", "tiny", env=config.env.id)
        asked = _options(benchmark, card)
        paid = env_class(config.env.id).reward_options
        for name, value in config.env.options.items():
            assert name in paid or asked.get(name) == value or name in unsaid, (path.stem, name)


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize(
    ("env", "options"),
    [
        ("agentenv/LocalSearch-v0", {"outcome": "knowledge_boundary"}),  # IKEA asks for few searches
        ("agentenv/SearchSolver-v0", {"outcome": "knowledge_boundary"}),
        ("agentenv/LocalSearch-v0", {"outcome": "graded_format"}),
        ("agentenv/JudgedSearch-v0", {"outcome": "knowledge_boundary", "search_again": True}),
        ("agentenv/PlannedSearch-v0", {"outcome": "knowledge_boundary"}),
        ("agentenv/SQL-v0", {"reward": "sql_r1"}),  # asks for a form
        ("agentenv/SQL-v0", {"reward": "ex"}),
        ("agentenv/ReExSQL-v0", {}),
    ],
)
def test_a_policy_is_asked_with_the_message_of_its_training(
    env: str, options: dict[str, object], native: bool
) -> None:
    """Also where the message depends on what is paid, which the card does not say."""
    run = load_config("native-search" if native else "laptop-search")
    card = episode_card(
        run.model_copy(update={"env": run.env.model_copy(update={"id": env, "options": options})})
    )
    asked = _options(Benchmark("", "tiny", env=env), card)
    openings = []
    for given in (options, asked):
        made = make(env, **given)
        made.native = native
        openings.append(made.reset(seed=0)[0])
        made.close()
    assert openings[0] == openings[1]
    assert not {"outcome", "reward"} & asked.keys()
