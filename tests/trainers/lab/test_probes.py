"""What a comparison plays besides its runs: agreement and sign flips of a policy, and what a proposer asked."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentenv.core.trajectory import Trajectory
from agentenv.core.types import Task
from agentenv.data.world_facts import generate_facts
from agentenv.data.world_questions import generate_questions
from agentenv.errors import ConfigurationError
from agentenv.trainers.config.config_files import config_of, dump_config
from agentenv.trainers.lab.probes import SAMPLES, play_besides
from agentenv.trainers.loop import evaluate

Turns = Callable[..., Trajectory]
BASE: dict[str, Any] = {"base": "lab-search", "rollout": {"group_size": 2}, "loss": {"estimator": "dr_grpo"}}


@pytest.fixture
def tasks() -> list[Task]:
    return [
        Task("0", "Who?", ("x",), data={"paraphrases": ["What is it?"]}),
        Task("1", "Where?", ("y",), data={"paraphrases": ["In which place?"]}),
    ]


def played_as(
    monkeypatch: pytest.MonkeyPatch, tasks: list[Task], made: Callable[[int, Task], Trajectory]
) -> None:
    """Lets the policy play what ``made`` gives for the place and the task."""

    def play_under(
        config: Any, pose: Callable[[Sequence[Task]], Sequence[Task]], *, temperature: float = 0.0
    ) -> list[Trajectory]:
        return [made(place, task) for place, task in enumerate(pose(tasks))]

    monkeypatch.setattr(evaluate, "play_under", play_under)


def test_every_wording_of_a_test_question_is_asked(
    monkeypatch: pytest.MonkeyPatch, tasks: list[Task], turns: Turns
) -> None:
    answers = {"Who?": "x", "What is it?": "The x", "Where?": "y", "In which place?": None}
    asked = []

    def made(place: int, task: Task) -> Trajectory:
        asked.append(task.question)
        return replace(turns([0.0]), info={"answer": answers[task.question]})

    played_as(monkeypatch, tasks, made)
    assert play_besides("wordings", config_of(BASE, "t")) == {"agreement": 0.5}
    assert asked == list(answers)


def test_a_wording_that_met_an_infrastructure_failure_agrees_and_disagrees_with_nothing(
    monkeypatch: pytest.MonkeyPatch, tasks: list[Task], turns: Turns
) -> None:
    """Of two questions in two wordings the second failed in one of them; the other agrees with itself."""

    def made(place: int, task: Task) -> Trajectory:
        return replace(turns([0.0]), info={"answer": "x"}, valid=place != 3)

    played_as(monkeypatch, tasks, made)
    assert play_besides("wordings", config_of(BASE, "t")) == {"agreement": 1.0}


def test_sign_flips_of_the_run_s_estimator_in_groups_of_its_size(
    monkeypatch: pytest.MonkeyPatch, tasks: list[Task], turns: Turns
) -> None:
    """Of the first task every fourth group of two has .4 and 0, the others have 1 and 0; the second always fails.

    4 groups of 16 have .4 and 0, so the value is (12 + 1.6) / 32 = .425. In these the .4, which is below it, is pushed up.
    """

    def made(place: int, task: Task) -> Trajectory:
        better = 0.4 if place // 2 % 4 == 0 else 1.0
        return turns([better if task.id == "0" and place % 2 == 0 else 0.0])

    played_as(monkeypatch, tasks, made)
    assert SAMPLES == 32
    assert play_besides("samples", config_of(BASE, "t")) == {"sign_flips": pytest.approx(4 / 32)}


def test_nothing_can_flip_where_all_episodes_are_alike(
    monkeypatch: pytest.MonkeyPatch, tasks: list[Task], turns: Turns
) -> None:
    played_as(monkeypatch, tasks, lambda place, task: turns([1.0]))
    assert play_besides("samples", config_of(BASE, "t")) == {"sign_flips": 0.0}


def test_a_proposal_is_true_if_its_world_says_so(tmp_path: Path) -> None:
    config = config_of(BASE, "t")
    true = next(generate_questions(generate_facts(config.train.world)))
    asked = [
        {"step": 1, "question": true.question, "answer": true.answers[0], "outcome": "accepted"},
        {"step": 1, "question": true.question, "answer": "nobody at all", "outcome": "accepted"},
    ]
    (tmp_path / "config.toml").write_text(dump_config(config))
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked))
    found = play_besides("proposals", config, tmp_path)
    assert (found["proposed"], found["accepted_true"]) == (2, 0.5)
    assert play_besides("proposals", config) == {}
    with pytest.raises(ConfigurationError, match="hotpotqa"):
        play_besides(
            "proposals", config_of({"train": {"dataset": "hotpotqa", "split": "train"}}, "t"), tmp_path
        )
