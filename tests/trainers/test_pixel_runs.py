"""Training from pixels, from end to end: a small random vision-language model, its run, resuming it, evaluating it."""

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import agentenv
from agentenv.api import evaluate, train
from agentenv.cli.main import main
from agentenv.core.trajectory import Origin, from_record
from agentenv.core.types import Task
from agentenv.errors import ConfigurationError
from agentenv.policies.fake_vision import vision_policy
from agentenv.progress import SilentDisplay
from agentenv.trainers.config.config_files import changed, load_config
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.warmstart.expert_warmstart import expert_warmstart
from tests.file_contents import content, contents_of

SMALL: dict[str, Any] = {
    "optimizer.steps": 2,
    "optimizer.learning_rate": 1e-3,
    "loss.entropy_coefficient": 0.01,
    "loss.kl_coefficient": 0.01,
    "checkpoint_every": 1,
    "trajectories_every": 1,
    "rollout.questions": 1,
    "rollout.group_size": 2,
    "rollout.turn_tokens": 12,
    "rollout.context_tokens": 1500,
    "env.options.max_steps": 2,
    "train.limit": 2,
    "dev.limit": 2,
    "test.limit": 2,
    "evaluation.every": 2,
    "threads": 1,
}
OPTIONS = {"tree": False, "pixels": True, "pointing": "coordinate", "max_steps": 2}


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policy")
    env = agentenv.make("agentenv/DomSim-v0", **OPTIONS)
    vision_policy(folder, [env.reset(seed=0)[0][0].text])
    return folder


def configured(policy: Path, **more: Any) -> TrainConfig:
    return changed(load_config("desktop-pixels"), SMALL | {"policy": f"hf:{policy}"} | more)


def weights(folder: Path) -> str:
    return content(folder / "model.safetensors")


def test_a_run_trains_from_pixels_and_resumes_to_the_bit(policy: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    found = train(configured(policy), out=run, display=SilentDisplay())
    assert found.after.n == 2
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["faults"] for line in steps] == [0, 0]
    assert all(line["grad_norm"] > 0 for line in steps)
    assert steps[0]["approx_kl"] == pytest.approx(0.0, abs=1e-6)
    assert weights(run / "policy") != weights(policy)
    for kept in ("policy", "checkpoints/step-000002"):
        assert (run / kept / "preprocessor_config.json").is_file()
    before = contents_of(run, ["trajectories/*.gz"])
    wanted = weights(run / "policy")

    shutil.rmtree(run / "checkpoints" / "step-000002")
    shutil.rmtree(run / "evaluation" / "after")
    (run / "results.json").unlink()
    train(out=run, resume=True, display=SilentDisplay())
    assert weights(run / "policy") == wanted
    assert contents_of(run, ["trajectories/*.gz"]) == before

    ((first, *_), *_) = (
        [json.loads(line) for line in gzip.decompress((run / name).read_bytes()).splitlines()]
        for name in before
    )
    played = from_record(first, Task(first["task"]["id"], ""), run / "trajectories" / "images")
    assert len(played.row_images[0]) == 2
    named = {image.digest for image in played.row_images[0]}
    assert named <= {path.stem for path in (run / "trajectories" / "images").iterdir()}


def test_the_expert_is_shown_with_its_pixels(policy: Path, tmp_path: Path) -> None:
    """A random policy fails, so that the strategy shows what the expert does, on the screens that the expert sees."""
    longer = {"rollout.turn_tokens": 80, "rollout.context_tokens": 4000, "env.options.max_steps": 8}
    run = tmp_path / "run"
    shown = {"rollout.strategy": "demonstrate", "optimizer.steps": 1}
    train(configured(policy, **longer, **shown), out=run, display=SilentDisplay())
    (file,) = (run / "trajectories").glob("*.gz")
    records = [json.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines()]
    (demonstration,) = (record for record in records if record["origin"] == Origin.DEMONSTRATION)
    assert demonstration["reward"] == 1.0
    images = [image for segment in demonstration["segments"] for image in segment.get("images", [])]
    assert len(images) == len(demonstration["turns"])


def test_imitation_refuses_pixels(policy: Path, tmp_path: Path) -> None:
    longer = {"rollout.turn_tokens": 80, "rollout.context_tokens": 4000, "env.options.max_steps": 8}
    with pytest.raises(ConfigurationError, match=r"show images.*demonstrate"):
        expert_warmstart([configured(policy, **longer)], SilentDisplay(), tmp_path / "policy")


def test_an_evaluation_shows_pixels_to_the_policy(policy: Path, tmp_path: Path) -> None:
    options = ["--option", "tree=false", "--option", "pixels=true", "--option", "pointing=coordinate"]
    words = ["eval", "--env", "agentenv/DomSim-v0", *options, "--option", "max_steps=2", "--limit", "2"]
    spec = f"hf:{policy}"
    assert main([*words, "--policy", spec, "--format", "template", "--out", str(tmp_path / "seen")]) == 0
    assert len(list((tmp_path / "seen" / "screens").glob("*.png"))) >= 1
    episodes = [json.loads(line) for line in (tmp_path / "seen" / "episodes.jsonl").read_text().splitlines()]
    assert [episode["valid"] for episode in episodes] == [True, True]
    for other, form, named in ((spec, "inline", "inline"), ("tiny", "template", "text alone")):
        out = tmp_path / f"{form}-{other.partition(':')[0]}"
        with pytest.raises(ConfigurationError, match=named):
            evaluate(other, env="agentenv/DomSim-v0", options=OPTIONS, limit=2, format=form, out=out)
