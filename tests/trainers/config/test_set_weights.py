"""Weights of several sets in the configuration: what goes there and back, and one sentence for each mistake."""

from pathlib import Path
from typing import Any

import pytest

from agentenv.errors import ConfigurationError
from agentenv.trainers.config.config_files import config_of, dump_config, load_config, override
from agentenv.trainers.config.identity import flatten_config
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.task_sampling.samplers import SAMPLERS, chooses_tasks, get_sampler

SETS = {"dataset": "nq,hotpotqa", "weights": {"nq": 0.7, "hotpotqa": 0.3}}


def test_weights_come_back_from_toml_and_the_command_line(tmp_path: Path) -> None:
    config = config_of({"train": SETS}, "test")
    assert config.train.weights == {"nq": 0.7, "hotpotqa": 0.3}
    (tmp_path / "own.toml").write_text(dump_config(config))
    assert load_config(str(tmp_path / "own.toml")) == config
    words = ["--train.dataset", "nq,hotpotqa", "--train.weights", "{ nq = 0.7, hotpotqa = 0.3 }"]
    assert override(TrainConfig(), words) == config


def test_files_are_named_as_before_their_ids() -> None:
    train = {"dataset": "my/first.jsonl,hotpotqa", "weights": {"first": 1, "hotpotqa": 0}}
    assert config_of({"train": train}, "test").train.weights == {"first": 1.0, "hotpotqa": 0.0}


def test_a_run_without_weights_has_the_configuration_that_it_had_before_there_were_any() -> None:
    assert not any("weights" in key for key in flatten_config(TrainConfig()) if key.startswith("train."))


@pytest.mark.parametrize(
    ("train", "named"),
    [
        ({"weights": {"nq": 1, "hotpot": 1}}, r"'nq', 'hotpot', and the sets are 'nq', 'hotpotqa'"),
        ({"weights": {"nq": 1}}, r"names 'nq', and the sets are 'nq', 'hotpotqa'"),
        ({"weights": {"nq": -0.5, "hotpotqa": 1}}, r"weights\.nq.*-0\.5"),
        ({"weights": {"nq": float("nan"), "hotpotqa": 1}}, r"weights\.nq.*finite.*nan"),
        ({"weights": {"nq": float("inf"), "hotpotqa": 1}}, r"weights\.nq.*finite.*inf"),
        ({"weights": {"nq": 0, "hotpotqa": 0}}, "all weights are 0"),
        ({"dataset": "nq", "weights": {"nq": 1}}, "several sets, and 'nq' is one"),
        ({"dataset": "world", "weights": {"world": 1}}, "several sets, and 'world' is one"),
        ({"dataset": "humaneval", "weights": {"humaneval": 1}}, "several sets, and 'humaneval' is one"),
        ({"topics": True}, "topics.*weights"),
        ({"passage_questions": 8}, "passage_questions.*weights"),
    ],
)
def test_weights_that_mean_nothing_are_refused(train: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named) as caught:
        config_of({"train": SETS | train}, "test")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("section", ["dev", "test"])
def test_what_is_evaluated_has_no_weights(section: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"{section}\.weights.*train\.weights"):
        config_of({section: SETS}, "test")


# self_play is refused for its strategy.
@pytest.mark.parametrize("sampler", [name for name in SAMPLERS if name != "self_play"])
def test_weights_go_with_the_samplers_that_leave_the_draw_to_the_step(sampler: str) -> None:
    values = {"train": SETS, "rollout": {"sampler": sampler}, "loss": {"proximal": "sampler"}}
    if not chooses_tasks(get_sampler(sampler)):
        assert config_of(values, "test").rollout.sampler == sampler
        return
    with pytest.raises(ConfigurationError, match=rf"'{sampler}' chooses tasks.*train\.weights"):
        config_of(values, "test")
