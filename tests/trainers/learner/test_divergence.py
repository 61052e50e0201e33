"""A training that diverges: nothing of the step is applied, nothing ruined is written, and the run fails by name."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from agentenv.cli.main import main
from agentenv.errors import Diverged
from agentenv.policies.fakes import ByteTokenizer, random_policy
from agentenv.policies.hf import HFPolicy
from agentenv.progress import SilentDisplay
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.learner.learner import Learner, Objective, TrainingRow
from agentenv.trainers.learner.second_policy import SecondPolicy
from agentenv.trainers.run_folder.folder import RunFolder
from agentenv.trainers.warmstart.supervised import fit, sample_batches, write_folder

NAN, INF = float("nan"), float("inf")


def row(advantage: float, *, old: float = -3.0) -> TrainingRow:
    """Eight tokens, of which the last four are trained."""
    mask = np.arange(8) >= 4
    logprobs = np.full(8, old, dtype=np.float32)
    return TrainingRow(np.arange(60, 68), mask, logprobs, np.zeros(8, dtype=np.bool_), np.full(8, advantage))


def poison(model: Any) -> None:
    with torch.no_grad():
        next(iter(model.parameters()))[0, 0] = NAN


def state(model: Any) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name].nan_to_num(), value.nan_to_num()) for name, value in other.items())


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (row(NAN), "loss is nan"),
        (row(INF), "loss is"),
        (row(1.0, old=NAN), "loss is nan"),
        (row(1e30), "norm of the gradient is inf"),  # each slope is finite, and their squares are not
    ],
)
def test_no_step_is_made_on_what_is_not_finite(
    qwen: Callable[..., Any], given: TrainingRow, named: str
) -> None:
    model = qwen()
    learner = Learner(model, Objective(), learning_rate=1e-2)
    before = state(model)
    with pytest.raises(Diverged, match=named):
        learner.step([row(1.0), given])
    assert same(before, state(model))
    assert not learner.optimizer.state
    assert np.isfinite(learner.step([row(1.0)])["grad_norm"])  # and nothing of it is left for the next one
    assert not same(before, state(model))


@pytest.mark.parametrize(
    "objective", ["ppo_clip", "gspo", "cispo", "opmd", "probability_mask", "guided_clip"]
)
def test_no_step_is_made_with_log_probs_that_are_not_finite(qwen: Callable[..., Any], objective: str) -> None:
    model = qwen()
    # One logit is minus infinity: the log-prob too, which a bound on the ratio would hide.
    with torch.no_grad():
        model.lm_head.weight[64] = 0
        model.lm_head.bias = torch.nn.Parameter(torch.zeros(257).index_fill(0, torch.tensor([64]), -INF))
    before = state(model)
    with pytest.raises(Diverged, match="log-probs"):
        Learner(model, Objective(objective=objective), learning_rate=1e-2).step([row(1.0)])
    assert same(before, state(model))


def test_a_checkpoint_of_ruined_weights_is_not_written(tmp_path: Path, qwen: Callable[..., Any]) -> None:
    folder, model = RunFolder.create(tmp_path / "run", TrainConfig()), qwen()
    tokenizer = SimpleNamespace(save_pretrained=lambda path: None)
    policy: Any = SimpleNamespace(model=model, version=1, tokenizer=tokenizer, image_reader=None)
    learner = Learner(model, Objective(), learning_rate=1e-3)
    for step in (1, 2):
        folder.save_checkpoint(step, policy, learner, {})
    second = SecondPolicy(("proposer",), HFPolicy(qwen(), ByteTokenizer()), learner)
    poison(second.policy.model)
    with pytest.raises(Diverged, match="second"):
        folder.save_checkpoint(3, policy, learner, {"second": second})
    poison(model)
    with pytest.raises(Diverged, match="step 3"):
        folder.save_checkpoint(3, policy, learner, {})
    with pytest.raises(Diverged, match="step 3"):
        folder.keep_version(3, policy)
    assert {path.name for path in (folder.path / "checkpoints").iterdir()} == {"step-000001", "step-000002"}
    assert not folder.versions()


SMALL = """
name = "diverges"
policy = "hf:{policy}"
threads = 1
checkpoint_every = 1
env = {{ id = "agentenv/SQL-v0" }}
train = {{ dataset = "env", limit = 4 }}
dev = {{ dataset = "env", limit = 2, split = "dev" }}
test = {{ dataset = "env", limit = 2, split = "test" }}
rollout = {{ questions = 1, group_size = 2, turn_tokens = 4, context_tokens = 1100 }}
optimizer = {{ steps = {steps}, learning_rate = {rate} }}
loss = {{ entropy_coefficient = 1.0 }}
evaluation = {{ every = 0, bounds = false }}
"""


@pytest.mark.parametrize(("steps", "rate"), [(3, 1e20), (1, 1e20), (3, 1e30)])
def test_a_run_with_an_absurd_step_size_fails_by_name(
    tmp_path: Path, steps: int, rate: float, capsys: pytest.CaptureFixture[str]
) -> None:
    random_policy(tmp_path / "policy", ["Write a query for the question."])
    preset = tmp_path / "preset.toml"
    preset.write_text(SMALL.format(policy=tmp_path / "policy", steps=steps, rate=rate))
    assert main(["train", str(preset), "--out", str(tmp_path / "out")]) == 1
    told = " ".join(capsys.readouterr().err.split())
    assert "diverged" in told
    assert f"{rate:g}" in told
    assert "step 1" in told
    assert not list((tmp_path / "out" / "checkpoints").glob("*"))
    assert not (tmp_path / "out" / "results.json").exists()
    for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)  # no NaN was logged


@pytest.mark.parametrize("rate", [INF, NAN, 1e39, -1.0, 0.0])
def test_a_step_size_that_is_no_number_of_float32_is_refused(rate: float) -> None:
    with pytest.raises(ValidationError, match="learning_rate"):
        TrainConfig.model_validate({"optimizer": {"learning_rate": rate}})
    with pytest.raises(ValidationError, match="learning_rate"):
        TrainConfig.model_validate({"second": {"learning_rate": rate}})


FAR = 1e33
"""A share of the usual step sizes with which weights leave the range of their numbers in two steps."""


def examples() -> Iterator[Any]:
    return sample_batches([([65, 66, 67, 68], [False, True, True, True])] * 4, 4, 0.0, Random(0))


def test_supervised_steps_that_diverge_write_nothing(tmp_path: Path, qwen: Callable[..., Any]) -> None:
    policy = HFPolicy(qwen(), ByteTokenizer())
    with pytest.raises(Diverged, match=r"\b2\b.*\bnan\b"):
        fit(policy, examples(), 4, FAR, SilentDisplay())
    ruined = HFPolicy(qwen(), ByteTokenizer())
    # One step, whose outcome no later one has seen.
    fit(ruined, examples(), 1, 100 * FAR, SilentDisplay())
    with pytest.raises(Diverged):
        write_folder(ruined, tmp_path / "out", lambda part: None)
    assert not any(tmp_path.iterdir())
