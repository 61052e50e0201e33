"""Where sampler and learner are not the same computation the loss allows for it by default, and says so."""

import json
from pathlib import Path
from typing import Any

import pytest

from agentenv.cli.main import main
from agentenv.policies.fakes import random_policy
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.loop.parts import make_objective

VLLM = {"engine": {"kind": "vllm"}, "rollout": {"deterministic": False}}
STALE = {"asynchronous": {"staleness": 2}, "rollout": {"deterministic": False}}
ROUNDED = {"memory": {"precision": "bfloat16"}}


def chosen(config: dict[str, Any]) -> tuple[str | None, str | None, str | None]:
    run = TrainConfig.model_validate(config)
    goal = make_objective(run.resolved_loss, run.memory, run.rollout)
    return goal.proximal, goal.correction.mode, goal.correction.off_context


def test_the_default_run_corrects_nothing() -> None:
    assert chosen({}) == ("sampler", "none", "recompute")
    assert TrainConfig().correction_note == ""


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (VLLM, "vllm"),
        (VLLM | {"engine": {"kind": "vllm", "dtype": "bfloat16"}}, "bfloat16"),
        (VLLM | {"engine": {"kind": "vllm", "urls": ("http://127.0.0.1:1",)}}, "vllm"),
        (VLLM | {"cluster": {"address": "local"}}, "vllm"),
        (VLLM | {"lora": {"rank": 4}}, "vllm"),
        (STALE, "staleness=2"),
        (ROUNDED, "bfloat16"),
        (ROUNDED | {"rollout": {"strategy": "rollback"}}, "bfloat16"),
    ],
)
def test_wherever_log_probs_are_apart_they_are_corrected(config: dict[str, Any], named: str) -> None:
    assert chosen(config) == ("recompute", "truncate", "weight")
    note = TrainConfig.model_validate(config).correction_note
    assert named in note
    assert "truncate" in note


def test_what_is_named_is_kept() -> None:
    assert chosen({"memory": {"precision": "bfloat16"}, "loss": {"proximal": "sampler"}}) == (
        "sampler",
        "none",
        "recompute",
    )
    named = {"correction": {"mode": "mask", "off_context": "rescore"}}
    assert chosen(ROUNDED | {"loss": named}) == ("recompute", "mask", "rescore")
    none = TrainConfig.model_validate({"memory": {"precision": "bfloat16"}, "loss": {"proximal": "sampler"}})
    assert "correction.mode='none'" in none.correction_note


SMALL = """
name = "rounded"
policy = "hf:{policy}"
threads = 1
checkpoint_every = 2
env = {{ id = "agentenv/SQL-v0" }}
train = {{ dataset = "env", limit = 4 }}
dev = {{ dataset = "env", limit = 2, split = "dev" }}
test = {{ dataset = "env", limit = 2, split = "test" }}
rollout = {{ questions = 1, group_size = 2, turn_tokens = 4, context_tokens = 1100, strategy = "{strategy}" }}
optimizer = {{ steps = 2 }}
memory = {{ precision = "{precision}" }}
loss = {{ entropy_coefficient = 0.1 }}
evaluation = {{ every = 0, bounds = false }}
"""


@pytest.mark.parametrize("strategy", ["plain", "rollback"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_run_says_what_it_does_about_it(
    tmp_path: Path, precision: str, strategy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    random_policy(tmp_path / "policy", ["Write a query for the question."])
    preset, out = tmp_path / "preset.toml", tmp_path / "out"
    preset.write_text(SMALL.format(policy=tmp_path / "policy", precision=precision, strategy=strategy))
    assert main(["train", str(preset), "--out", str(out)]) == 0
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    results = json.loads((out / "results.json").read_text())
    rounded = precision == "bfloat16"
    assert [("behaviour_weight" in line) for line in lines] == [rounded, rounded]
    assert ("loss.proximal='recompute'" in " ".join(capsys.readouterr().err.split())) == rounded
    assert ("correction" in results) == rounded
    if rounded:  # weights near 1: rounding, and no other context
        assert all(line["behaviour_weight"] == pytest.approx(1, abs=0.2) for line in lines)
