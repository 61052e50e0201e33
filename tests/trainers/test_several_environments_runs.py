"""Several environments in one run: shares, figures and evaluations of each, and the same files after an interruption."""

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from agentenv.errors import ConfigurationError, Fault
from agentenv.evaluation.report.report import write_report
from agentenv.policies.card import read_card
from agentenv.policies.policy_spec import make_policy
from agentenv.progress import SilentDisplay
from agentenv.trainers.config.config_files import parse_config
from agentenv.trainers.grpo import train
from agentenv.trainers.learner.value_training import recorded_episodes
from agentenv.trainers.loop import evaluate
from agentenv.trainers.plan import plan_run
from agentenv.trainers.run_folder.folder import RunFolder
from tests.file_contents import contents_of

KEPT = ["metrics.jsonl", "policy/model.safetensors", "policy/episode.json", "trajectories/*"]
STEPS, QUESTIONS, GROUP = 4, 4, 2


def questions(folder: Path, name: str, size: int) -> str:
    """A file of questions over a corpus of one passage."""
    rows = [
        {"id": str(i), "question": f"Who made {name} {i}?", "answer": "Ada", "gold": ["d"]}
        for i in range(size)
    ]
    path = folder / name / "questions.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (path.parent / "corpus.jsonl").write_text(
        json.dumps({"id": "d", "title": "Ada", "text": "Ada made it."}) + "\n"
    )
    return str(path)


def config(folder: Path, **changes: Any) -> dict[str, Any]:
    """Four steps of four groups of two episodes: half of them searches, a quarter sums, a quarter searches otherwise."""
    options = {"k": 1, "max_turns": 1, "observation_tokens": 64, "prompt": "{question}"}
    parts = ("train", "dev", "test")

    def asked(name: str) -> dict[str, Any]:
        return {part: {"dataset": questions(folder, f"{name}-{part}", 3)} for part in parts}

    sums = {part: {"dataset": "env", "split": part, "limit": 5} for part in parts}
    search = {"encoder": "hash"}
    return {
        "threads": 1,
        "checkpoint_every": 1,
        "checkpoints_kept": STEPS,
        "trajectories_every": 1,
        "env": {"id": "agentenv/SearchSolver-v0", "options": options},
        "search": search,
        **asked("own"),
        "environments": {
            "sums": {"share": 0.25, "env": {"id": "agentenv/Calculator-v0"}, **sums},
            "local": {
                "share": 0.25,
                "env": {"id": "agentenv/LocalSearch-v0", "options": options | {"prompt": "Q: {question}"}},
                "search": search,
                **asked("local"),
            },
        },
        "rollout": {
            "questions": QUESTIONS,
            "group_size": GROUP,
            "turn_tokens": 24,
            "context_tokens": 512,
        },
        "optimizer": {"steps": STEPS},
        "evaluation": {"every": 2, "keep_best": True, "bounds": False, "scorers": ["em_squad"]},
        **changes,
    }


def test_every_environment_is_trained_and_measured_and_a_resumed_run_repeats_it(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    folder = RunFolder.create(tmp_path / "run", parse_config(config(tmp_path), "test"))
    results = train(folder, SilentDisplay())
    lines = folder.history()

    names = ("env", "sums", "local")
    assert [[line[f"episodes/{name}"] for name in names] for line in lines] == [[4, 2, 2]] * STEPS
    for line in lines:
        mean = sum(line[f"episodes/{name}"] * line[f"reward_mean/{name}"] for name in names) / 8
        assert line["reward_mean"] == pytest.approx(mean)
        assert line["faults"] == sum(line[f"faults/{name}"] for name in names) == 0
    scored = [line for line in lines if "dev_score" in line]
    assert [line["step"] for line in scored] == [2, 4]
    for line in scored:
        own, sums, local = (line[f"dev_score/{name}"] for name in names)
        assert line["dev_score"] == pytest.approx(0.5 * own + 0.25 * sums + 0.25 * local)
        low, high = line["dev_score_ci95"]
        assert low <= line["dev_score"] <= high
    for moment in ("before", "after"):
        assert results[moment]["scorer"] == results[f"{moment}-local"]["scorer"] == "em_squad"
        assert (results[moment]["n"], results[f"{moment}-sums"]["n"]) == (3, 5)
        assert results[f"{moment}-sums"]["scorer"] == "reward"
    assert {one.task.partition("/")[0] for one in recorded_episodes(folder.path)} == set(names)
    asked = _prompts(folder.path)
    assert {name for name, _ in asked} == set(names)
    assert all("Who made own-train" in text for name, text in asked if name == "env")
    assert all("Q: Who made local-train" in text for name, text in asked if name == "local")
    assert all("Reply with the number alone" in text for name, text in asked if name == "sums")

    card = read_card(folder.path / "policy")
    assert (card.env, card.of("agentenv/LocalSearch-v0").prompt) == (
        "agentenv/SearchSolver-v0",
        "Q: {question}",
    )
    assert card.of("agentenv/Calculator-v0").env == "agentenv/Calculator-v0"
    assert card.of("agentenv/Unknown-v0") is card
    assert [read_card(best) for best in (folder.path / "best").iterdir()] == [card]
    assert "after, in sums | reward" in (folder.path / "policy" / "README.md").read_text()
    page = write_report(folder.path).read_text()
    shown = _shown_episodes(page)
    assert [(entry["question"].split("-")[0], entry["scorer"]) for entry in shown if entry["id"] == "0"] == [
        ("Who made own", "em_squad"),
        ("Who made local", "em_squad"),
    ]
    assert {entry["scorer"] for entry in shown if "Reply with the number" in json.dumps(entry)} == {"reward"}
    assert all(sum(one is not None for one in entry["runs"]) == 2 for entry in shown)
    assert "<span>reward, n = 5</span>" in page
    assert "after-sums (reward)" in page
    assert "em_squad, where no other scorer is named, with 95 % intervals" in page
    assert "score on dev, local" in page

    first = contents_of(folder.path, KEPT)
    for step in (3, 4):
        shutil.rmtree(folder.path / "checkpoints" / f"step-{step:06}")
    for gone in ("policy", "evaluation/after", "evaluation/after-sums", "evaluation/after-local"):
        shutil.rmtree(folder.path / gone)
    (folder.path / "results.json").unlink()
    train(RunFolder.open(folder.path), SilentDisplay())
    assert contents_of(folder.path, KEPT) == first


def _shown_episodes(page: str) -> list[dict[str, Any]]:
    """The questions of a report, each with an episode of every evaluation in which it was asked."""
    data = page.partition('<script type="application/json" id="data">')[2].partition("</script>")[0]
    episodes: list[dict[str, Any]] = json.loads(data)["episodes"]
    return episodes


def _prompts(run: Path) -> set[tuple[str, str]]:
    """The environment and the opening message of the episodes of the first step."""
    decode = make_policy("tiny").tokenizer.decode
    with gzip.open(run / "trajectories" / "step-000001.jsonl.gz", "rt") as file:
        records = [json.loads(line) for line in file]
    return {(record["environment"], decode(record["segments"][0]["ids"])) for record in records}


def test_a_plan_reads_the_questions_of_every_environment(tmp_path: Path) -> None:
    made = parse_config(config(tmp_path), "test")
    assert plan_run(made)["episodes_per_step"] == QUESTIONS * GROUP
    values = config(tmp_path)
    values["environments"]["local"]["test"] = values["train"]  # what the own environment trains on
    with pytest.raises(ConfigurationError, match="tasks of test are training tasks too") as planned:
        plan_run(parse_config(values, "test"))
    with pytest.raises(ConfigurationError, match="tasks of test are training tasks too") as trained:
        train(RunFolder.create(tmp_path / "run", parse_config(values, "test")), SilentDisplay())
    for caught in (planned, trained):
        assert caught.value.__notes__ == ["this is about environments.local"]


def test_without_the_score_of_one_environment_there_is_no_mean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = evaluate._dev_scores

    def failing(run: Any, environment: Any) -> Any:
        if environment.config.env.id == "agentenv/Calculator-v0":
            raise Fault("the calculator is out of order")
        return played(run, environment)

    monkeypatch.setattr(evaluate, "_dev_scores", failing)
    said: list[str] = []
    display = SilentDisplay()
    monkeypatch.setattr(display, "warn", said.append)
    values = config(tmp_path, optimizer={"steps": 2})
    values["evaluation"]["keep_best"] = False
    folder = RunFolder.create(tmp_path / "run", parse_config(values, "test"))
    train(folder, display)
    last = folder.history()[-1]
    assert {"dev_score/env", "dev_score/local"} <= last.keys()
    assert not {"dev_score", "dev_score/sums"} & last.keys()
    assert "there is no dev score of the environment sums: the calculator is out of order" in said
