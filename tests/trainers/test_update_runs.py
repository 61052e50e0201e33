"""A run with schedule, mini-batches, masked episodes, a kept best policy and cut weights resumes to the bit."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from agentenv.errors import CheckpointMismatch, ConfigurationError
from agentenv.policies.card import read_card
from agentenv.policies.fake_endpoint import Answer, FakeEndpoint
from agentenv.policies.policy_spec import make_policy
from agentenv.progress import SilentDisplay
from agentenv.trainers.config.config_files import override, parse_config
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.grpo import train
from agentenv.trainers.run_folder.folder import RunFolder
from tests.file_contents import contents_of

WORLD = {"documents": 200, "questions": 12, "families": ["lookup"], "hops": [1, 1]}
STEPS = 3


def config() -> TrainConfig:
    values: dict[str, Any] = {
        "threads": 1,
        "checkpoint_every": 2,
        "checkpoints_kept": 3,
        "checkpoint_shard_gib": 2e-3,
        "env": {"options": {"k": 2, "max_turns": 1, "observation_tokens": 128, "prompt": "{question}"}},
        "search": {"encoder": "hash"},
        "train": {"world": WORLD | {"seed": 1, "split": "train"}},
        "dev": {"limit": 2, "world": WORLD | {"seed": 2, "split": "dev"}},
        "test": {"limit": 1, "world": WORLD | {"seed": 2, "split": "dev"}},
        "rollout": {"questions": 3, "group_size": 4, "turn_tokens": 16, "context_tokens": 256},
        "optimizer": {
            "steps": STEPS,
            "learning_rate": 1e-4,
            "warmup_steps": 1,
            "schedule": "cosine",
            "updates": 2,
            "mini_batches": 2,
        },
        "loss": {"mask_truncated": True},
        "evaluation": {"every": 1, "bounds": False, "keep_best": True},
    }
    return parse_config(values, "test")


def lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def flip_a_bit(path: Path) -> None:
    whole = bytearray(path.read_bytes())
    whole[-1000] ^= 1
    path.write_bytes(whole)


def contents(run: Path) -> dict[str, str]:
    return contents_of(
        run, ["metrics.jsonl", "policy/*.safetensors", "best/*/*", "checkpoints/*/*.safetensors*"]
    )


def test_a_run_resumes_to_the_bit_and_keeps_its_best_policy(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    folder = RunFolder.create(tmp_path / "run", config())
    train(folder, SilentDisplay())
    run, whole = folder.path, contents(folder.path)
    made = lines(run)
    assert [len(line["updates"]) for line in made] == [4] * STEPS
    assert [line["learning_rate"] for line in made] == pytest.approx([1e-4, 1e-4, 5e-5])
    for line in made:
        cut_off = line.get("end_turn_limit", 0) + line.get("end_token_limit", 0)
        assert line["truncated_masked"] == cut_off
    scores = [line["dev_score"] for line in made]
    (best,) = (run / "best").iterdir()
    assert best.name == f"step-00000{scores.index(max(scores)) + 1}"
    assert read_card(best).turn_tokens == 16
    assert make_policy(f"hf:{best}").model is not None
    shards = list((run / "checkpoints" / "step-000003").glob("*.safetensors"))
    assert len(shards) > 1
    assert all(shard.stat().st_size < 2.5e-3 * 2**30 for shard in shards)

    shutil.rmtree(run / "checkpoints" / "step-000003")
    shutil.rmtree(run / "evaluation" / "after")
    (run / "results.json").unlink()
    train(RunFolder.open(run), SilentDisplay())
    assert contents(run) == whole

    for damaged in (best, run / "policy"):
        flip_a_bit(damaged / "model.safetensors")
    with pytest.raises(CheckpointMismatch, match=r"model\.safetensors is not what was written"):
        make_policy(f"hf:{best}")
    train(RunFolder.open(run), SilentDisplay())
    assert contents_of(run, ["policy/*.safetensors"]).items() <= whole.items()


def test_a_judge_grades_the_answers_before_and_after(tmp_path: Path) -> None:
    """Whatever is answered: a question without an answer is FALSE unasked."""
    with FakeEndpoint(lambda _: Answer("VERDICT: TRUE")) as judge:
        words = f"--optimizer.steps 1 --test.limit 4 --evaluation.judge openai:any@{judge.url}".split()
        folder = RunFolder.create(tmp_path / "run", override(config(), words))
        train(folder, SilentDisplay())
    for name in ("before", "after"):
        results = json.loads((folder.path / "evaluation" / name / "results.json").read_text())
        table = results["judged"]["judge_equivalence"]
        answered = results["n"] - table["verdicts"].get("FALSE", 0)
        assert (table["n"], table["mean"]) == (4, answered / 4)
    assert judge.bodies


def test_a_run_that_was_stopped_before_its_judge_had_answered_asks_it_when_it_goes_on(
    tmp_path: Path,
) -> None:
    """Its key was refused; the evaluation itself was finished. Where a judge leaves answers out, the run says so."""
    status = [401]
    said: list[str] = []

    class Display(SilentDisplay):
        def warn(self, text: str) -> None:
            said.append(text)

    with FakeEndpoint(lambda _: Answer("no idea", status=status[0])) as judge:
        words = f"--optimizer.steps 1 --test.limit 4 --evaluation.judge openai:any@{judge.url}".split()
        folder = RunFolder.create(tmp_path / "run", override(config(), words))
        with pytest.raises(ConfigurationError, match="401"):
            train(folder, SilentDisplay())
        status[0] = 200
        train(RunFolder.open(folder.path), Display())
    for name in ("before", "after"):
        results = json.loads((folder.path / "evaluation" / name / "results.json").read_text())
        table = results["judged"]["judge_equivalence"]
        assert table["faults"] == {"JudgeFault": 4 - table["n"]}
        assert table["n"] < 4
        assert any(f"answers of {name} without a grade" in sentence for sentence in said)


def test_a_judge_that_nobody_serves_is_said_before_anything_is_played(tmp_path: Path) -> None:
    with FakeEndpoint(lambda _: Answer()) as gone:
        words = f"--evaluation.judge openai:any@{gone.url}".split()
    folder = RunFolder.create(tmp_path / "run", override(config(), words))
    with pytest.raises(ConfigurationError, match=gone.url):
        train(folder, SilentDisplay())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--evaluation.judge gpt-4", r"evaluation: .*openai:MODEL@URL"),
        ("--evaluation.judge openai:a@http://h/v1 --evaluation.rubric fair", r"evaluation: .*fair"),
        ("--optimizer.schedule sine", r"optimizer\.schedule: .*'sine'"),
        ("--optimizer.final_rate 2", r"optimizer\.final_rate: .*got 2"),
        ("--optimizer.mini_batches 0", r"optimizer\.mini_batches: .*got 0"),
        ("--checkpoints_kept 0", r"checkpoints_kept: .*got 0"),
        ("--checkpoint_shard_gib 0", r"checkpoint_shard_gib: .*got 0"),
        ("--evaluation.keep_best --evaluation.every 0", r"evaluation: keep_best"),
    ],
)
def test_a_wrong_setting_is_named(words: str, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        override(TrainConfig(), words.split())


@pytest.mark.parametrize(
    ("change", "allowed"),
    [
        ("--optimizer.schedule linear", True),
        ("--checkpoints_kept 4", True),
        ("--evaluation.keep_best", True),
        ("--optimizer.mini_batches 2", False),
        ("--loss.mask_truncated", False),
    ],
)
def test_what_may_change_on_resume(tmp_path: Path, change: str, allowed: bool) -> None:
    run = RunFolder.create(tmp_path / "run", TrainConfig())
    run.compare_contents({})
    later = RunFolder.open(run.path, override(TrainConfig(), change.split()))
    if allowed:
        later.compare_config(lambda sentence: None)
    else:
        with pytest.raises(ConfigurationError, match=change.split()[0].removeprefix("--")):
            later.compare_config(lambda sentence: None)
