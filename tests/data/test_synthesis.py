"""Synthesis of harder questions: edits in the language of a world, verified by its solver; what fails is given up."""

from collections.abc import Iterator
from random import Random

import pytest

from agentenv.core.scoring.scorers import get_scorer
from agentenv.core.types import Task
from agentenv.data.synthesis import (
    Edit,
    GrammarEditor,
    keeps_the_answer_hidden,
    synthesize,
    unanswered_by,
    unique_by,
)
from agentenv.data.world import FictionalWorld, WorldConfig
from agentenv.data.world_facts import invent
from agentenv.data.world_solver import Solver
from agentenv.errors import DatasetError

CONFIG = WorldConfig(documents=200, questions=30, families=("lookup",), split="train")
WORLD = FictionalWorld.generate(CONFIG)
SOLVER = Solver(invent(CONFIG))
CHECKS = (keeps_the_answer_hidden, unique_by(SOLVER.answers))


def test_injected_questions_take_more_hops_and_keep_their_one_answer() -> None:
    editor = GrammarEditor(WORLD.documents)
    harder = [synthesize(task, editor, CHECKS, rounds=2) for task in WORLD.questions]
    edited = [(task, made) for task, made in zip(WORLD.questions, harder, strict=True) if made.edits]
    assert len(edited) >= 5
    assert any(len(made.edits) == 2 for _, made in edited)
    for task, made in edited:
        assert SOLVER.answers(made.task.question) == {task.answers[0]}
        assert made.task.answers == task.answers
        assert task.data["path"][0]["entity"] not in made.task.question
        leans = [edit.document for edit in made.edits]
        assert made.task.data["supporting_ids"] == (*reversed(leans), *task.data["supporting_ids"])
        assert made.task.id == f"{task.id}+{len(leans)}"
        assert made.task.split == "train"
    again = [synthesize(task, editor, CHECKS, rounds=2) for task in WORLD.questions]
    assert again == harder


class Given:
    """Proposes what it was given."""

    def __init__(self, *questions: str) -> None:
        self.questions = questions

    def edits(self, question: str, rng: Random) -> Iterator[Edit]:
        return iter(Edit("inject", q, "d") for q in self.questions)


SEED = Task("s", "Where is Halvik?", ("Norland",))


def test_an_edit_that_fails_a_check_is_given_up_and_the_next_one_tried() -> None:
    editor = Given("Is it Norland, where Halvik is?", "Halvik", "Where is the town of Orla Venn?")
    made = synthesize(SEED, editor, [keeps_the_answer_hidden], rounds=1)
    assert made.task.question == "Where is the town of Orla Venn?"
    assert made.rejected == (
        "Is it Norland, where Halvik is?: it holds its answer 'Norland'",
        "Halvik: it is no question",
    )
    kept = synthesize(SEED, Given("Halvik"), [keeps_the_answer_hidden])
    assert (kept.task, kept.edits) == (SEED, ())


def test_what_is_answered_without_a_search_is_too_easy() -> None:
    memory = {"Where is the old town?": "norland"}
    check = unanswered_by(memory.get, lambda given, golds: get_scorer("em_squad")(given, golds).value)
    made = synthesize(SEED, Given("Where is the old town?", "Where is the new town?"), [check], rounds=1)
    assert made.task.question == "Where is the new town?"
    assert made.rejected == ("Where is the old town?: it was answered without a search: 'norland'",)


def test_a_question_with_other_answers_is_not_kept() -> None:
    answers = {"Where is Halvik?": {"Norland"}, "Where?": {"Norland", "Rome"}, "Who?": set[str]()}
    made = synthesize(SEED, Given("Where?", "Who?"), [unique_by(answers.__getitem__)])
    assert made.task == SEED
    assert made.rejected == ("Where?: its answers are ['Norland', 'Rome']", "Who?: its answers are []")


def test_years_are_fuzzed() -> None:
    editor = GrammarEditor(WORLD.documents)
    (edit,) = editor.edits("Who won the race held in 1972?", Random(0))
    assert (edit.kind, edit.question) == ("fuzz", "Who won the race held in the 1970s?")


def test_a_seed_that_fails_is_refused() -> None:
    with pytest.raises(DatasetError, match="cannot be a seed: it is no question"):
        synthesize(Task("s", "Halvik", ("Norland",)), Given(), [keeps_the_answer_hidden])
