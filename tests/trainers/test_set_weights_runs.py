"""Two sets with weights through the whole trainer: shares, figures of each set, and the same draws after an interruption."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from agentenv.errors import ConfigurationError
from agentenv.evaluation.report.report import write_report
from agentenv.progress import SilentDisplay
from agentenv.trainers.config.config_files import parse_config
from agentenv.trainers.grpo import train
from agentenv.trainers.plan import plan_run
from agentenv.trainers.run_folder.folder import RunFolder
from tests.file_contents import contents_of

KEPT = ["metrics.jsonl", "policy/model.safetensors", "trajectories/*"]


def sets(folder: Path, split: str, **sizes: int) -> str:
    """A file of questions for each name, over the one corpus of the folder."""
    names = []
    for name, size in sizes.items():
        rows = [
            {"id": str(i), "question": f"Who made {split} {name} {i}?", "answer": "Ada", "gold": ["d"]}
            for i in range(size)
        ]
        path = folder / split / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        names.append(str(path))
    corpus = {"id": "d", "title": "Ada", "text": "Ada made it."}
    (folder / split / "corpus.jsonl").write_text(json.dumps(corpus) + "\n")
    return ",".join(names)


def config(folder: Path, weights: dict[str, float]) -> dict[str, Any]:
    """Four steps of four groups of two episodes, from a set of three questions and one of forty."""
    options = {"k": 1, "max_turns": 1, "observation_tokens": 64, "prompt": "{question}"}
    return {
        "threads": 1,
        "checkpoint_every": 1,
        "checkpoints_kept": 4,
        "trajectories_every": 1,
        "env": {"id": "agentenv/SearchSolver-v0", "options": options},
        "search": {"encoder": "hash"},
        "train": {"dataset": sets(folder, "train", small=3, large=40), "weights": weights},
        "dev": {"dataset": sets(folder, "dev", small=1, large=2)},
        "test": {"dataset": sets(folder, "test", small=1, large=2)},
        "rollout": {"questions": 4, "group_size": 2, "turn_tokens": 24, "context_tokens": 256},
        "optimizer": {"steps": 4},
        "evaluation": {"every": 2, "bounds": False, "scorers": ["em_squad"]},
    }


def test_shares_follow_the_weights_and_each_set_has_its_own_figures(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    folder = RunFolder.create(
        tmp_path / "run", parse_config(config(tmp_path, {"small": 0.75, "large": 0.25}), "test")
    )
    results = train(folder, SilentDisplay())
    lines = folder.history()
    # Three and one of four groups, of two episodes each, though the sets have three and forty questions.
    assert [(line["episodes/small"], line["episodes/large"]) for line in lines] == [(6, 2)] * 4
    for line in lines:
        mean = (6 * line["reward_mean/small"] + 2 * line["reward_mean/large"]) / 8
        assert line["reward_mean"] == pytest.approx(mean)
    scored = [line for line in lines if "dev_score" in line]
    assert [line["step"] for line in scored] == [2, 4]
    for line in scored:
        mean = (line["dev_score/small"] + 2 * line["dev_score/large"]) / 3
        assert line["dev_score"] == pytest.approx(mean)
        assert len(line["dev_score/large_ci95"]) == 2
    for name in ("before", "after"):
        own = results[name]["by_set"]
        assert {set_: own[set_]["n"] for set_ in own} == {"small": 1, "large": 2}
        assert len(own["large"]["ci95"]) == 2
        kept = json.loads((folder.path / "evaluation" / name / "results.json").read_text())["by_set"]
        assert kept["large"]["scores"]["em_squad"]["n"] == 2
    assert "By set" in write_report(folder.path).read_text()

    first = contents_of(folder.path, KEPT)
    for step in ("step-000003", "step-000004"):
        shutil.rmtree(folder.path / "checkpoints" / step)
    _begin_again_after(folder.path, 2)
    train(RunFolder.open(folder.path), SilentDisplay())
    assert contents_of(folder.path, KEPT) == first


def _begin_again_after(run: Path, step: int) -> None:
    """Leaves of a finished run what a run killed in the step after ``step`` has left."""
    held = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert held[-1:] == [f"step-{step:06}"], held
    shutil.rmtree(run / "policy")
    shutil.rmtree(run / "evaluation" / "after")
    (run / "results.json").unlink()


def test_a_weight_of_a_set_of_which_no_question_is_drawn_is_refused_before_anything_is_built(
    tmp_path: Path,
) -> None:
    values = config(tmp_path, {"small": 1, "large": 1})
    values["train"]["limit"] = 1
    made = parse_config(values, "test")
    with pytest.raises(ConfigurationError, match=r"train\.weights.*none of the 1 questions"):
        train(RunFolder.create(tmp_path / "run", made), SilentDisplay())
    with pytest.raises(ConfigurationError, match=r"train\.weights.*none of the 1 questions"):
        plan_run(made)
