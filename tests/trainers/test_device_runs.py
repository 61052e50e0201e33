"""Runs on a device that refuses tensors of the processor: training, resuming, evaluating, a second policy, a simulator.

Losses and figures of every step are those of the same run on the CPU.
"""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from agentenv.cli.main import main
from agentenv.policies.compute import ComputeSettings
from agentenv.policies.fakes import random_policy
from agentenv.policies.policy_spec import make_policy
from agentenv.progress import SilentDisplay
from agentenv.retrievers.simulation.simulation_data import Example
from agentenv.retrievers.simulation.simulators import ask
from agentenv.trainers.warmstart import supervised
from agentenv.trainers.warmstart.simulator import SimulatorConfig, as_text, train_simulator

WORLD = ("documents", "200"), ("questions", "8")
SHORT = [
    *("--search.encoder", "hash", "--threads", "1", "--evaluation.every", "0", "--test.limit", "2"),
    *("--evaluation.bounds", "false"),
    *("--rollout.questions", "2", "--rollout.group_size", "4", "--rollout.context_tokens", "400"),
    *(word for split in ("train", "dev", "test") for k, v in WORLD for word in (f"--{split}.world.{k}", v)),
    *("--dev.limit", "4"),
]


def train(
    out: Path, device: str, *flags: str, preset: str = "laptop-search", steps: int = 1
) -> list[dict[str, Any]]:
    """The metrics of a short run."""
    place = ["--out", str(out), "--compute.device", device, "--optimizer.steps", str(steps)]
    assert main(["train", preset, *place, *SHORT, *flags]) == 0
    return metrics(out)


def metrics(out: Path) -> list[dict[str, Any]]:
    """What a run has logged, numbers alone."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if isinstance(v, int | float)} for line in lines]


def assert_close(there: list[dict[str, Any]], here: list[dict[str, Any]]) -> None:
    assert len(there) == len(here)
    for found, wanted in zip(there, here, strict=True):
        assert found["loss"] == pytest.approx(wanted["loss"], abs=1e-5)
        # The CPU computes several micro-batches at once, and cuts a step otherwise for that.
        found["padding_share"] = wanted["padding_share"]
        assert found == pytest.approx(wanted, abs=2e-3)  # Adam magnifies the last digit of gradients near 0


@pytest.mark.slow
def test_a_step_and_a_resumed_second_are_those_of_the_cpu(tmp_path: Path, fake_device: str) -> None:
    torch.set_num_threads(1)
    runs = {device: tmp_path / device for device in ("cpu", fake_device)}
    assert_close(*(train(runs[device], device) for device in (fake_device, "cpu")))
    for out in runs.values():
        assert main(["train", "--resume", str(out), "--optimizer.steps", "2"]) == 0
    assert_close(*(metrics(runs[device]) for device in (fake_device, "cpu")))
    asked = ["--policy", f"hf:{runs[fake_device]}/policy", "--env", "agentenv/Calculator-v0", "--limit", "2"]
    found = tmp_path / "eval"
    assert main(["eval", *asked, "--compute.device", fake_device, "--out", str(found), "--no-bounds"]) == 0
    assert json.loads((found / "results.json").read_text())["n"] == 2


@pytest.mark.slow
def test_a_plan_measures_on_the_device(fake_device: str, capsys: pytest.CaptureFixture[str]) -> None:
    torch.set_num_threads(1)
    asked = ["train", "laptop-search", "--plan", "--json", *SHORT, "--compute.device"]
    saved = []
    for device in ("cpu", fake_device):
        assert main([*asked, device]) == 0
        saved.append(json.loads(capsys.readouterr().out)["memory_parts_gib"]["activations"])
    assert 0 < saved[0] <= saved[1]  # views have memory of their own on the device of the tests


@pytest.mark.slow
def test_a_second_policy_and_a_reference_follow_to_the_device(tmp_path: Path, fake_device: str) -> None:
    torch.set_num_threads(1)
    flags = ("--second.roles", "proposer", "--train.world.questions", "0", "--league.every", "0")
    adapted = ("--lora.rank", "2", "--loss.kl_coefficient", "0.01")
    runs = [
        train(tmp_path / device, device, *flags, *adapted, preset="self-play")
        for device in (fake_device, "cpu")
    ]
    assert_close(*runs)


def test_a_simulator_learns_on_the_device_what_it_learns_on_the_cpu(
    tmp_path: Path, fake_device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float32 on both: the device has no multiplication in bfloat16. The context is short, for a page may fill it."""
    monkeypatch.setattr(supervised, "autocast", lambda *_, **__: contextlib.nullcontext())
    torch.set_num_threads(1)
    page = (("Halvik", "In Norland."),)
    examples = [Example(f"Halvik {n}", "Where?", "Norland", ("Norland",), page, page) for n in range(12)]
    losses: list[list[float]] = []
    said = [ask(example.brief(useful=useful), "compact") for example in examples for useful in (True, False)]
    random_policy(tmp_path / "start", [*said, as_text(page)], layers=2, context=128)

    class Noting(SilentDisplay):
        def advance(self, done: int, metrics: Any) -> None:
            losses[-1].append(metrics["loss"])

    for device in ("cpu", fake_device):
        losses.append([])
        policy = make_policy(f"hf:{tmp_path / 'start'}", ComputeSettings(device=device).precise())
        config = SimulatorConfig(steps=10, episodes=4, held_out=1)
        train_simulator(policy, examples, config, Noting(), tmp_path / device)
    assert losses[0]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    written = ComputeSettings(device=fake_device)
    assert make_policy(f"hf:{tmp_path / fake_device}", written).model.device.type == fake_device
