"""Training tasks among the test tasks are refused, by content and whatever their ids; a plan refuses what the run would."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from agentenv.cli.main import main
from agentenv.core.types import Task
from agentenv.data.organisation_questions import organisation_tasks
from agentenv.data.overlap import refuse_overlap
from agentenv.envs.gui.actions import Action, ActionKind
from agentenv.envs.gui.matching import Gold
from agentenv.envs.gui.recordings import RecordedStep, Recording
from agentenv.envs.gui.screen import Screen
from agentenv.errors import ConfigurationError
from agentenv.evaluation.task_env import open_tasks
from agentenv.trainers.config.config_files import load_config


def tasks(questions: Sequence[str], start: int = 0) -> list[Task]:
    return [Task(f"t-{start + i}", question, ("yes",)) for i, question in enumerate(questions)]


WORDS = [f"Is {number} odd?" for number in range(20)]


def test_an_equal_split_is_refused_whatever_its_ids_and_spaces() -> None:
    again = tasks([f" {question.upper()}  " for question in WORDS], start=100)
    with pytest.raises(ConfigurationError, match=r"\b20\b.*\b20\b.*on_training_tasks"):
        refuse_overlap(tasks(WORDS), {"test": again})


def test_a_few_shared_tasks_and_a_shared_dev_set_are_warned_of() -> None:
    said: list[str] = []
    measured = {"dev": tasks(WORDS), "test": tasks([*WORDS[:1], *(f"Is {n} even?" for n in range(30))])}
    refuse_overlap(tasks(WORDS), measured, warn=said.append)
    numbers = [re.findall(r"\d+ of \d+", sentence) for sentence in said]
    assert numbers == [["20 of 20"], ["1 of 31"]]


def test_it_may_be_asked_for() -> None:
    said: list[str] = []
    refuse_overlap(tasks(WORDS), {"test": tasks(WORDS)}, allowed=True, warn=said.append)
    assert len(said) == 1


def test_equal_words_over_other_data_are_other_tasks() -> None:
    """Pages of an environment have one instruction and other buttons; ids of two worlds are alike."""
    one, two = (
        Task("p", "Click the button.", (), data={"seed": 1}),
        Task("p", "Click the button.", (), data={"seed": 2}),
    )
    refuse_overlap([one], {"test": [two]})
    with pytest.raises(ConfigurationError, match="1 of 1"):
        refuse_overlap([one], {"test": [one]})


def test_questions_about_several_organisations_are_several_tasks() -> None:
    """Each has an incident INC-4, of which many were resolved by nobody."""
    train, test = (organisation_tasks(40, seed=1000, split=split) for split in ("train", "test"))
    assert {task.question for task in train} & {task.question for task in test}
    refuse_overlap(train, {"test": test}, warn=pytest.fail)
    with pytest.raises(ConfigurationError, match="40 of 40"):
        refuse_overlap(train, {"test": train})
    config = load_config(str(Path(__file__).parents[2] / "examples" / "orgforge.toml"))
    sources = {"train": config.train, "dev": config.dev, "test": config.test}
    made = {name: open_tasks(source, config.search, config.env).tasks for name, source in sources.items()}
    refuse_overlap(made.pop("train"), made, warn=pytest.fail)


@pytest.mark.parametrize("plan", [["--plan"], []])
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--test.world.seed", "7", "--train.world.seed", "7", "--train.world.split", "test"],
            "training tasks",
        ),
        (["--env.id", "agentenv/Nothing-v0"], "agentenv/Nothing-v0"),
        (["--train.dataset", "no-such-set"], "no-such-set"),
        (["--env.options.no_such", "1"], "no_such"),
        (["--search.retriever", "faiss:/nowhere/at/all"], "/nowhere/at/all"),
    ],
)
def test_run_and_plan_refuse_alike(
    plan: list[str], words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["--search.encoder", "hash", "--train.world.documents", "200", "--test.world.documents", "200"]
    small += ["--train.world.questions", "12", "--test.world.questions", "12", "--test.limit", "12"]
    small += ["--dev.world.documents", "200", "--dev.world.questions", "12"]
    argv = ["train", "laptop-search", "--out", str(tmp_path / "out"), *small, *words, *plan]
    assert main(argv) == 1
    err = capsys.readouterr().err
    assert message in err
    assert "Traceback" not in err
    assert not (tmp_path / "out").exists()


def test_recordings_are_told_apart_by_what_they_show_whatever_their_ids() -> None:
    """Recordings of one goal on other screens are other tasks; the same recording under another id is the same."""

    def recorded(id: str, title: str) -> Task:
        step = RecordedStep(Screen(100, 200, title), Gold(Action(ActionKind.WAIT), (100, 200)))
        return Recording(id, "Pin the note.", (step,)).task()

    refuse_overlap([recorded("a", "Notes")], {"test": [recorded("b", "Other notes")]})
    with pytest.raises(ConfigurationError, match="1 of 1"):
        refuse_overlap([recorded("a", "Notes")], {"test": [recorded("b", "Notes")]})
