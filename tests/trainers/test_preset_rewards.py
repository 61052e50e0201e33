"""The rewards that presets choose by options: no policy that does not try to solve the task earns what the expert earns."""

from functools import partial
from pathlib import Path

import pytest

from agentenv.core.probes import probe_env
from agentenv.core.registry import env_class, make
from agentenv.trainers.config.config_files import load_config
from agentenv.trainers.config.train_config import TrainConfig

FOLDER = Path(__file__).resolve().parents[2] / "examples"
SANDBOXED = ("agentenv/Code-v0", "agentenv/TraceCode-v0")
"""Their probes take a sandbox and half a minute; ``benchmarks/reward_probes.py`` plays them."""

SHOWN = ["everything as answer", "expert, wrong answer"]
"""Probes that search as the expert does and answer wrongly. TRACE pays for showing a capability, whatever comes of it, and
``examples/trace.toml`` does as published; the environment's own default pays them half."""


def chosen_rewards() -> dict[str, TrainConfig]:
    """By name, the presets whose options decide the reward, each choice once."""
    found: dict[str, TrainConfig] = {}
    for path in sorted(FOLDER.glob("*.toml")):
        config = load_config(str(path))
        env = config.env
        deciding = env.options.keys() & (env_class(env.id).reward_options | {"capability", "patch_budget"})
        same = [one for one in found.values() if (one.env.id, one.env.options) == (env.id, env.options)]
        if deciding and env.id not in SANDBOXED and not same:
            found[path.stem] = config
    return found


CHOSEN = chosen_rewards()


def test_presets_choose_rewards() -> None:
    assert CHOSEN.keys() >= {"ikea", "reseek", "search-planner", "hiersearch", "think2sql", "trace", "ui-s1"}


@pytest.mark.parametrize("name", CHOSEN)
def test_no_probe_of_a_presets_reward_earns_what_its_expert_earns(name: str) -> None:
    env = CHOSEN[name].env
    options = {
        key: value for key, value in env.options.items() if key != "prompt"
    }  # probes copy the long one
    rows = probe_env(partial(make, env.id, **options))
    assert [row.probe for row in rows if row.is_farm] == (SHOWN if name == "trace" else [])
    assert any(row.reward is not None for row in rows)
