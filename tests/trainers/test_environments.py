"""Training on any registered environment: its own tasks, stop strings and score, and no retriever where it has none.

The policy is random: what is read off the runs is what it was asked and how it was judged.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from agentenv.cli.main import main
from agentenv.core.env import Env
from agentenv.core.registry import env_class, registered
from agentenv.core.types import Task
from agentenv.data.sources import SourceConfig
from agentenv.envs.browser.driver import unavailable as no_browser
from agentenv.errors import ConfigurationError, UnknownName
from agentenv.evaluation.runner import play
from agentenv.evaluation.task_env import EnvConfig, SearchConfig, open_task_env
from agentenv.policies.fakes import random_policy
from agentenv.sandbox.backends import unavailable
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.loop import evaluate
from agentenv.trainers.loop.parts import rollout_config

SMALL = """
name = "any"
policy = "hf:{policy}"
threads = 1
trajectories_every = 0
env = {{ id = "{env}"{options} }}
train = {{ dataset = "env", limit = 4{tasks} }}
dev = {{ dataset = "env", limit = 2, split = "dev"{tasks} }}
test = {{ dataset = "env", limit = 2, split = "test"{tasks} }}
rollout = {{ questions = 1, group_size = 2, turn_tokens = 4, context_tokens = 1100 }}
optimizer = {{ steps = 1 }}
evaluation = {{ every = 1 }}
"""
HEADLINES = {
    "agentenv/SemiOnlineGUI-v0": "sop",
    "agentenv/SQL-v0": "solved",
    "agentenv/ReExSQL-v0": "solved",
    "agentenv/TraceCode-v0": "solved",
    "agentenv/TextArena-v0": "solved",
    "agentenv/ReasoningGym-v0": "solved",
    "agentenv/Terminal-v0": "solved",
}
"""Of environments whose reward is not what an evaluation counts."""
TERMINAL_TASKS = Path(__file__).resolve().parents[1] / "envs" / "terminal_tasks"
OPTIONS = {
    "agentenv/Code-v0": ", options = { stateful = false, max_turns = 1 }",
    "agentenv/ReExSQL-v0": ', options = { prompt = "{question}" }',
    "agentenv/DomSim-v0": ', options = { prompt = "{goal}" }',
    "agentenv/SemiOnlineGUI-v0": ', options = { prompt = "{goal}", window = 1, patch_budget = 0 }',
    "agentenv/Browser-v0": ", options = { max_steps = 6, prompt = '{goal}' }",
}


def makes_tasks(id: str) -> bool:
    """Whether it has a source of tasks of its own; those that search are trained over worlds, named sets and by examples."""
    return env_class(id).make_tasks.__func__ is not Env.make_tasks.__func__  # type: ignore[attr-defined]


SEARCH = ("agentenv/OrganisationSearch-v0",)  # scored by its answers; trained by examples/orgforge.toml
OWN = [id for id in registered() if id.startswith("agentenv/") and makes_tasks(id) and id not in SEARCH]


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policy")
    random_policy(
        folder, ["Write a Python function that answers the question with one query. def solve(x): return x"]
    )
    return folder


def trained(env: str, policy: Path, out: Path, *words: str) -> Path:
    needs = {
        "agentenv/Code-v0": lambda: unavailable("bwrap"),
        "agentenv/Terminal-v0": lambda: unavailable("docker"),
        "agentenv/Browser-v0": no_browser,
    }
    if reason := needs.get(env, str)():
        pytest.skip(reason)
    if env == "agentenv/TextArena-v0":
        pytest.importorskip("textarena")
    if env == "agentenv/ReasoningGym-v0":
        pytest.importorskip("reasoning_gym")
    tasks = ""
    if env == "agentenv/Terminal-v0":
        for split in ("train", "dev", "test"):
            for task in TERMINAL_TASKS.iterdir():
                copied = out.with_suffix(".tasks") / split / f"{split}-{task.name}"
                shutil.copytree(task, copied)
                # No task of the test may be one of the training.
                (copied / "instruction.md").write_text(f"{split} {task.name}", encoding="utf-8")
        tasks = f', options = {{ folder = "{out.with_suffix(".tasks")}" }}'
    toml = out.with_suffix(".toml")
    toml.write_text(SMALL.format(policy=policy, env=env, options=OPTIONS.get(env, ""), tasks=tasks))
    assert main(["train", str(toml), "--out", str(out), "--json", *words]) == 0
    return out


@pytest.mark.parametrize("env", OWN)
def test_every_environment_can_be_trained_on(env: str, policy: Path, tmp_path: Path) -> None:
    out = trained(env, policy, tmp_path / "out")
    (metrics,) = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert metrics["faults"] == 0
    assert metrics["dev_score"] == 0
    results = json.loads((out / "results.json").read_text())
    headline = HEADLINES.get(env, "reward")
    assert results["scorer"] == results["after"]["scorer"] == headline
    assert (results["after"]["mean"], results["after"]["n"]) == (0, 2)
    assert "em" not in results["before"].keys() | results["after"].keys()
    assert results["bounds"]["expert"]["mean"] == 1
    assert set(results["bounds"]) == {"expert"}
    assert results["retrieval"] == results["index_recall"] == {}
    assert json.loads((out / "policy" / "episode.json").read_text())["env"] == env


def test_before_and_after_can_be_compared(policy: Path, tmp_path: Path) -> None:
    sides = trained("agentenv/Calculator-v0", policy, tmp_path / "out") / "evaluation"
    assert main(["compare", str(sides / "before"), str(sides / "after"), "--json"]) == 0


def test_the_evaluations_of_a_run_sample_at_the_temperature_that_it_names(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heats = []

    def recorded(*args: Any, **options: Any) -> Any:
        heats.append(args[4].temperature)
        return play(*args, **options)

    monkeypatch.setattr(evaluate, "play", recorded)
    run = trained("agentenv/Calculator-v0", policy, tmp_path / "out", "--evaluation.temperature", "5")
    assert set(heats) == {5.0}  # of the dev questions
    for side in ("before", "after"):
        read = json.loads((run / "evaluation" / side / "results.json").read_text())
        assert read["settings"]["decoding"] == "temperature 5"


def task_env(env: str, **source: Any) -> tuple[Task, ...]:
    config = SourceConfig(dataset="env", **source)
    return open_task_env(config, SearchConfig(), EnvConfig(id=env), len).source.tasks


def test_the_tasks_are_the_environments_own_by_its_dials() -> None:
    tasks = task_env("agentenv/Code-v0", limit=3, split="dev", options={"steps": 4})
    assert [task.data["steps"] for task in tasks] == [4, 4, 4]
    assert {task.split for task in tasks} == {"dev"}
    assert len(task_env("agentenv/Calculator-v0")) == 200
    with pytest.raises(UnknownName, match="'steps'"):
        task_env("agentenv/Code-v0", options={"step": 4})
    with pytest.raises(UnknownName, match="'tset'"):
        task_env("agentenv/Calculator-v0", split="tset")


@pytest.mark.parametrize("env", ["agentenv/Code-v0", "agentenv/Calculator-v0"])
def test_splits_share_no_task(env: str) -> None:
    make = env_class(env).make_tasks
    questions = [
        {t.data.get("solution", t.question) for t in make(40, split=s)} for s in ("train", "dev", "test")
    ]
    assert all(questions)
    assert len(set.union(*questions)) == sum(map(len, questions))


def test_an_environment_without_tasks_of_its_own_says_so() -> None:
    with pytest.raises(ConfigurationError, match="LocalSearch"):
        task_env("agentenv/LocalSearch-v0")


def test_an_action_ends_where_the_environment_says() -> None:
    config = TrainConfig(env=EnvConfig(id="agentenv/Code-v0"))
    assert rollout_config(config.rollout, config.env, temperature=1.0).stop == ("</python>", "</submit>")


def test_misses_are_for_searches_only() -> None:
    opened = open_task_env(
        SourceConfig(dataset="env", limit=1), SearchConfig(), EnvConfig(id="agentenv/Calculator-v0"), len
    )
    with pytest.raises(ConfigurationError, match="Calculator-v0"):
        _ = opened.searched
