"""The verifier ``process``: the first clear fall of the expected reward, its value model, its name in a configuration."""

import asyncio
import tomllib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from agentenv.core.trajectory import Trajectory, Turn
from agentenv.core.types import EndReason, Task
from agentenv.errors import CheckpointMismatch, UnknownName
from agentenv.policies.fakes import random_policy
from agentenv.policies.policy_spec import make_policy
from agentenv.policies.value_model import features_of, save_value_model
from agentenv.trainers.config.config_files import parse_config
from agentenv.trainers.config.identity import named_files
from agentenv.trainers.learner.value_training import least_squares
from agentenv.trainers.strategies.step_verifiers import Flaw, ProcessVerifier, find_verifier, first_drop
from agentenv.trainers.strategies.strategies import check_tasks, get_strategy

TASK = Task("t", "Q")


@pytest.mark.parametrize(
    ("values", "step"),
    [
        ([0.5, 0.6, 0.3, 0.1], 1),  # +.1, then -.3
        ([0.5, 0.45, 0.40], None),  # each fall is below .1
        ([0.5, 0.4], None),  # not more than the margin
        ([0.9, 0.2], 0),
        ([0.5], None),
    ],
)
def test_the_first_fall_above_the_margin(values: list[float], step: int | None) -> None:
    assert first_drop(values, 0.1 + 1e-9) == step


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A value model of four states: Q .5, Qa .6, Qab .2, Qac .55."""
    folder = tmp_path_factory.mktemp("value")
    random_policy(folder / "policy", ["Qabc"], spread=0.5)
    spec = f"hf:{folder / 'policy'}"
    policy = make_policy(spec)
    start, a, b, c = ("", "Q"), ("a", ""), ("b", ""), ("c", "")
    texts = ([start], [start, a], [start, a, b], [start, a, c])
    features = np.stack([features_of(policy, text)[-1] for text in texts])
    save_value_model(
        folder / "v.safetensors",
        spec,
        *least_squares(features, np.array([0.5, 0.6, 0.2, 0.55]), np.full(18, 1e-9)),
    )
    return folder / "v.safetensors"


def flaw_of(file: Path, actions: Sequence[str], reward: float = 0.0) -> Flaw | None:
    episode = Trajectory(TASK, (), tuple(Turn(a) for a in actions), reward, EndReason.ANSWERED)
    verifier = find_verifier(f"process:{file}")
    assert isinstance(verifier, ProcessVerifier)
    return asyncio.run(verifier.first_flaw(episode, 1.0))


def test_the_step_that_lowers_the_expected_reward_is_the_flaw(file: Path) -> None:
    found = flaw_of(file, "ab")
    assert found is not None
    assert (found.turn, found.cause) == (1, "the expected reward fell from 0.60 to 0.20")
    assert found.advice.endswith(": b")


def test_a_failure_without_a_fall_went_wrong_at_its_end(file: Path) -> None:
    found = flaw_of(file, "ac")
    assert found is not None
    assert (found.turn, found.cause) == (1, "the last action was wrong")


def test_a_success_and_an_episode_without_a_turn_have_no_flaw(file: Path) -> None:
    assert flaw_of(file, "ab", reward=1.0) is None
    assert flaw_of(file, "") is None


def test_the_shipped_one_needs_no_file() -> None:
    verifier = find_verifier("process")
    assert isinstance(verifier, ProcessVerifier)
    episode = Trajectory(TASK, (), (Turn("<answer> x </answer>"),), 0.0, EndReason.ANSWERED)
    assert asyncio.run(verifier.first_flaw(episode, 1.0)) is not None


def test_a_run_without_its_value_model_ends_before_it_begins(tmp_path: Path) -> None:
    strategy = get_strategy("reflect_retry", {"reflector": f"process:{tmp_path / 'gone'}"})
    with pytest.raises(CheckpointMismatch, match="gone"):
        check_tasks(strategy, [TASK])
    for name in ("process:", "rule:x", "proces"):
        with pytest.raises(UnknownName, match=name):
            get_strategy("reflect_retry", {"reflector": name})


def test_the_value_model_belongs_to_what_a_run_is_made_of(file: Path) -> None:
    """A run that is resumed with another one is refused."""
    text = f'[rollout]\nstrategy = "reflect_retry"\nstrategy_options = {{ reflector = "process:{file}" }}\n'
    (name,) = named_files(parse_config(tomllib.loads(text), "a test"))
    assert name == "contents of rollout.strategy_options.reflector"
