"""Keys and names of other libraries: what an error suggests, and the page that lists them."""

import re
from pathlib import Path
from typing import Any

import pytest

from agentenv.errors import UnknownName
from agentenv.trainers.config.config_files import override
from agentenv.trainers.config.other_names import OTHER_NAMES, key_hint
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.credit.estimators import ESTIMATORS, get_estimator
from agentenv.trainers.credit.estimators import OTHER_NAMES as OTHER_ESTIMATORS
from agentenv.trainers.learner.losses import OBJECTIVES, get_objective
from agentenv.trainers.learner.losses import OTHER_NAMES as OTHER_OBJECTIVES

PAGE = Path(__file__).parents[3] / "docs" / "guides" / "other_libraries.md"
WHOLE = {
    "steps": 1,
    "loss": {"objective": "x", "kl_coefficient": 0.0},
    "rollout": {"group_size": 8, "seed": 1},
    "seed": 0,
}


def message(*words: str) -> str:
    with pytest.raises(UnknownName) as caught:
        override(TrainConfig(), words)
    return str(caught.value)


@pytest.mark.parametrize(
    ("key", "above", "expected"),
    [
        ("kl_coeficient", "loss.", "Did you mean 'loss.kl_coefficient'?"),
        ("group_size", "", "Did you mean 'rollout.group_size'?"),
        ("lr", "loss.", "Did you mean 'optimizer.learning_rate'?"),
        ("colour", "loss.", "Known: loss.kl_coefficient, loss.objective."),
        ("seed", "loss.", "Did you mean 'rollout.seed' or 'seed'?"),
    ],
    ids=["misspelt", "in another table", "of another library", "of nothing", "in several tables"],
)
def test_what_is_suggested_for_a_key(key: str, above: str, expected: str) -> None:
    known: dict[str, Any] = WHOLE["loss"] if above else WHOLE  # type: ignore[assignment]
    assert key_hint(key, above, known, WHOLE) == expected


def test_a_key_is_not_near_to_another_because_both_stand_in_one_table() -> None:
    assert "objective'" not in message("--loss.bata", "1")
    assert "'rollout.group_size'" in message("--group-size", "4")


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_a_name_of_another_library_leads_to_a_key_that_exists(name: str) -> None:
    key = OTHER_NAMES[name]
    assert repr(key) in message(f"--{name}", "1")
    if not key.startswith("env.options."):
        value: Any = TrainConfig().model_dump()
        for part in key.split("."):
            value = value[part]


@pytest.mark.parametrize("name", OTHER_ESTIMATORS)
def test_an_estimator_is_found_by_its_name_elsewhere(name: str) -> None:
    """``grpo`` is near to ``dr_grpo`` as a word, and another estimator."""
    assert OTHER_ESTIMATORS[name] in ESTIMATORS
    with pytest.raises(UnknownName, match=f"Did you mean '{OTHER_ESTIMATORS[name]}'"):
        get_estimator(name)


@pytest.mark.parametrize("name", OTHER_OBJECTIVES)
def test_an_objective_is_found_by_its_name_elsewhere(name: str) -> None:
    """``grpo`` is near to ``gspo`` as a word, and another objective."""
    assert OTHER_OBJECTIVES[name] in OBJECTIVES
    with pytest.raises(UnknownName, match=f"Did you mean '{OTHER_OBJECTIVES[name]}'"):
        get_objective(name)


def test_the_page_lists_every_name_beside_its_key() -> None:
    rows = [
        line.split("|") for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")
    ]
    listed = {name: row[2].strip(" `") for row in rows for name in re.findall(r"`([^`]+)`", row[1])}
    assert listed == dict(OTHER_NAMES)
    for name, estimator in OTHER_ESTIMATORS.items():
        assert f"`{name}` is `{estimator}`" in PAGE.read_text(encoding="utf-8")
