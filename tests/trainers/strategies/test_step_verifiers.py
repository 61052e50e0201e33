"""Verifiers of steps: which step of a search is the first that the evidence speaks against."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from agentenv.core.trajectory import Trajectory, Turn
from agentenv.core.types import EndReason, Task, ToolResult, ToolStatus
from agentenv.errors import ConfigurationError
from agentenv.progress import SilentDisplay
from agentenv.trainers.config.config_files import parse_config
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.grpo import train
from agentenv.trainers.plan import plan_run
from agentenv.trainers.run_folder.folder import RunFolder
from agentenv.trainers.strategies.step_verifiers import VERIFIERS, Flaw
from agentenv.trainers.strategies.strategies import check_tasks, get_strategy

TASK = Task("t", "Where was the builder of Iria born?", ("Orun",), data={"supporting_ids": ("1", "2")})


def search(*found: str) -> Turn:
    result = ToolResult("search", ToolStatus.OK, "q", data={"ids": [list(found)]})
    return Turn("<search>q</search>", tool_results=(result,))


ANSWER = Turn("<answer>Iria</answer>")
BROKEN = Turn("<search>", tool_results=(ToolResult("none", ToolStatus.FORMAT_ERROR),))


def flaw_of(turns: Sequence[Turn], reward: float = 0.0, task: Task = TASK) -> Flaw | None:
    episode = Trajectory(task, (), tuple(turns), reward, EndReason.ANSWERED)
    return asyncio.run(VERIFIERS["evidence"]().first_flaw(episode, 1.0))


@pytest.mark.parametrize(
    ("turns", "step", "cause"),
    [
        ((search("1", "9"), search("8", "9"), search("2"), ANSWER), 1, "no further evidence"),
        ((search("1"), search("1"), ANSWER), 1, "no further evidence"),  # it is known already
        ((search("1"), ANSWER), 1, "1 of 2 needed"),
        ((ANSWER,), 0, "2 of 2 needed"),
        ((search("1"), search("2", "1"), ANSWER), 2, "last action"),
        ((search("1"), BROKEN, ANSWER), 1, "could not be acted on"),
        ((search("1"), search("2")), 1, "last action"),  # it never answered
    ],
)
def test_the_first_step_that_the_evidence_speaks_against(
    turns: Sequence[Turn], step: int, cause: str
) -> None:
    found = flaw_of(turns)
    assert found is not None
    assert found.turn == step
    assert cause in found.cause


def test_a_success_is_flawed_only_by_a_search_for_nothing() -> None:
    assert flaw_of((search("1"), search("2"), ANSWER), reward=1.0) is None
    assert flaw_of((search("1"), ANSWER), reward=1.0) is None  # known without looking it up
    wasteful = flaw_of((search("9"), search("1"), search("2"), ANSWER), reward=1.0)
    assert wasteful is not None
    assert wasteful.turn == 0


PATH = (
    {"document": "1", "entity": "Iria", "relation": "builder", "query": "Iria builder", "answer": "Vell"},
    {
        "document": "2",
        "entity": "Vell",
        "relation": "birthplace",
        "query": "Vell birthplace",
        "answer": "Orun",
    },
)
ROUTED = replace(TASK, data={**TASK.data, "path": PATH})


@pytest.mark.parametrize(
    ("turns", "advice"),
    [
        ((search("9"), ANSWER), "Look up Iria."),
        ((search("1"), search("9"), ANSWER), "Look up Vell."),
        # The first that is missing, in the order of the path.
        ((search("2"), search("9"), ANSWER), "Look up Iria."),
        ((search("1"), ANSWER), "Look up Vell."),
        ((ANSWER,), "Look up Iria."),
        ((search("1"), search("2"), ANSWER), "The answer stands in the passage on Vell."),
        ((search("1"), search("2"), search("9"), ANSWER), "The answer stands in the passage on Vell."),
        ((search("1"), search("2")), "Look up Vell."),  # it never answered, and is to find this again
    ],
)
def test_the_advice_names_what_to_look_up_and_not_what_was_wrong(turns: Sequence[Turn], advice: str) -> None:
    found = flaw_of(turns, task=ROUTED)
    assert found is not None
    assert found.advice == advice


def test_the_advice_does_not_name_an_answer() -> None:
    """The larger of two towns: its name is the answer."""
    path = ({"document": "1", "entity": "Orun"}, {"document": "2", "entity": "Vell"})
    asked = replace(TASK, answers=("orun ",), data={**TASK.data, "path": path})
    for turns in ((search("9"), ANSWER), (ANSWER,), (search("2"), ANSWER)):
        found = flaw_of(turns, task=asked)
        assert found is not None
        assert "orun" not in found.advice.lower()
    second = flaw_of((search("1"), ANSWER), task=asked)
    assert second is not None
    assert second.advice == "Look up Vell."


@pytest.mark.parametrize("path", [(), ({"query": "q"},)])
def test_where_no_entity_is_named_the_advice_says_what_was_wrong(path: tuple[dict[str, str], ...]) -> None:
    asked = replace(TASK, data={**TASK.data, "path": path})
    wrong, early, last = (
        flaw_of(turns, task=asked)
        for turns in ((search("9"),), (ANSWER,), (search("1"), search("2"), ANSWER))
    )
    assert wrong is not None
    assert early is not None
    assert last is not None
    assert wrong.advice.endswith(": <search>q</search>")
    assert early.advice == "Look up what is missing before you answer."
    assert last.advice == "This was wrong: <answer>Iria</answer>"


def test_a_question_that_does_not_say_what_it_needs_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'t2'"):
        flaw_of((ANSWER,), task=Task("t2", "?"))


OPTIONS = {"reflect_retry": "reflector", "critique": "critic"}


@pytest.mark.parametrize("strategy", OPTIONS)
def test_a_strategy_refuses_such_questions_before_it_plays(strategy: str) -> None:
    tasks = [TASK, Task("t2", "?"), Task("t3", "?")]
    judged = get_strategy(strategy, {OPTIONS[strategy]: "evidence"})
    with pytest.raises(ConfigurationError, match=r"\b2 of 3\b.*'t2'"):
        check_tasks(judged, tasks)
    check_tasks(judged, tasks[:1])
    check_tasks(get_strategy(strategy, {OPTIONS[strategy]: "rule"}), tasks)
    check_tasks(get_strategy("plain"), tasks)


def unknown_evidence(folder: Path) -> TrainConfig:
    """A run whose training questions do not say what they need."""
    file = folder / "own.jsonl"
    rows = [{"id": f"own-{i}", "question": f"Who built {i}?", "answers": ["Vell"]} for i in range(3)]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    passage = {"id": "p", "title": "Iria", "text": "Iria was built by Vell."}
    (folder / "corpus.jsonl").write_text(json.dumps(passage) + "\n")
    world = {"documents": 200, "questions": 12, "families": ["lookup"], "hops": [1, 1]}
    return parse_config(
        {
            "threads": 1,
            "train": {"dataset": str(file)},
            "search": {"encoder": "hash"},
            "dev": {"world": world | {"split": "dev"}},
            "test": {"world": world | {"split": "test"}},
            "rollout": {"strategy": "reflect_retry", "strategy_options": {"reflector": "evidence"}},
        },
        "test",
    )


def test_a_plan_refuses_them(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"\b3 of 3\b.*'own-0'"):
        plan_run(unknown_evidence(tmp_path))


def test_a_run_refuses_them_before_its_first_episode(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", unknown_evidence(tmp_path))
    with pytest.raises(ConfigurationError, match=r"\b3 of 3\b.*'own-0'"):
        train(folder, SilentDisplay())
    assert not folder.path.exists()
