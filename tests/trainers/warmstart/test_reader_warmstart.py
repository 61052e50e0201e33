"""Lessons of a reader and their loss; the sets themselves are read where AGENTENV_DATA names them."""

import math
import os
from dataclasses import replace
from itertools import islice, repeat
from pathlib import Path
from random import Random

import pytest
import torch

from agentenv.core.types import Document, Passage, Task
from agentenv.data.datasets import sample
from agentenv.data.overlap import FAMILY
from agentenv.data.sources import SourceConfig
from agentenv.evaluation.task_env import EnvConfig, SearchConfig, open_tasks
from agentenv.policies.fake_reader import random_reader
from agentenv.policies.reader import ReaderPolicy
from agentenv.policies.reader_adapter import ADAPTER, apply_adapter
from agentenv.policies.reading import FoundPassage, Reading, bare
from agentenv.progress import SilentDisplay
from agentenv.retrievers.fakes import InMemoryRetriever
from agentenv.retrievers.storage.corpus import Corpus
from agentenv.trainers.config.config_files import load_config
from agentenv.trainers.warmstart.reader_lessons import (
    SEVERAL_HOPS,
    Lesson,
    ReaderWarmstartConfig,
    answer_lesson,
    asked_of,
    crowded_lessons,
    endless_lessons,
    episode_lessons,
    found_lesson,
    held_out_titles,
    taught,
    window_of,
    without_pages,
)
from agentenv.trainers.warmstart.reader_warmstart import fit_lessons, loss_of, reader_warmstart

CORPUS = Corpus(
    [
        Document("jaws", "Jaws (film)", "Jaws was directed by Steven Spielberg in 1975."),
        Document("steven", "Steven Spielberg", "Steven Spielberg was born in Cincinnati."),
        Document("paris", "Paris", "Paris is where the director of another film was born."),
    ]
)
QUESTION = "Where was the director of Jaws born?"
TASK = Task("t", QUESTION, ("Cincinnati",), "train", {"supporting_ids": ("jaws", "steven")})


def passage(document_id: str) -> Passage:
    document = CORPUS[CORPUS.row_of(document_id)]
    return Passage(document.id, document.title, document.text, 1.0)


def lessons_after(*found: str, task: Task = TASK) -> list[Lesson]:
    """Those of a first search that found these documents."""
    retriever = InMemoryRetriever(CORPUS)
    shown = [passage(one) for one in found]
    return list(episode_lessons(task, shown, CORPUS, retriever, ReaderWarmstartConfig(), Random(0)))


@pytest.fixture
def policy() -> ReaderPolicy:
    texts = [f"{document.title} {document.text}" for document in CORPUS]
    return random_reader([QUESTION, *texts])


def test_a_missing_page_is_searched_for_by_its_title_and_then_answered_from() -> None:
    """The title stands in what was found; the answer is taken from the page that the second search found."""
    ask, search, answer = lessons_after("jaws", "paris")
    assert ask == Lesson(Reading(QUESTION), frozenset([f"<search>{QUESTION}</search>".lower().encode()]))
    assert search.accepted == {b"<search>steven spielberg</search>"}
    assert (search.known.searches, answer.known.searches) == (1, 2)
    assert answer.accepted == {b"<answer>cincinnati</answer>"}
    queries = {found.title: found.query for found in answer.known.found}
    assert queries["Jaws (film)"] == ""
    assert queries["Steven Spielberg"] == "Steven Spielberg"


def test_two_missing_pages_are_searched_for_one_after_the_other() -> None:
    """Either may come first; what is answered with stands on a page that was found before the last search."""
    golds = {"supporting_ids": ("jaws", "steven", "paris")}
    task = Task(
        "t", "Where was the director of Jaws born, and where is Paris?", ("Cincinnati",), "train", golds
    )
    ask, first, second, answer = lessons_after("jaws", task=task)
    assert ask.known.searches == 0
    assert first.accepted == {b"<search>steven spielberg</search>", b"<search>paris</search>"}
    assert len(second.accepted) == 1
    assert second.accepted < first.accepted
    assert [one.known.searches for one in (first, second, answer)] == [1, 2, 3]
    assert answer.accepted == {b"<answer>cincinnati</answer>"}


def test_no_answer_is_taught_while_a_page_is_missing() -> None:
    """As where the last search did not find it: what is shown does not say the answer."""
    task = Task("t", QUESTION, ("yes",), "train", {"supporting_ids": ("jaws", "steven")})
    retriever = InMemoryRetriever(CORPUS)
    config = replace(ReaderWarmstartConfig(), searches=1)
    lessons = list(episode_lessons(task, [passage("jaws")], CORPUS, retriever, config, Random(0)))
    assert [lesson.known.searches for lesson in lessons] == [0]


def test_a_question_is_the_same_in_other_words_by_its_pages_and_its_answer() -> None:
    other = Task(
        "u",
        "When is the birthday of Jaws' director?",
        ("CINCINNATI",),
        "train",
        {"supporting_ids": ("steven", "jaws")},
    )
    assert asked_of(other) == asked_of(TASK)
    assert asked_of(replace(other, answers=("Paris",))) != asked_of(TASK)


def test_where_all_pages_were_found_it_answers_at_once() -> None:
    _, answer = lessons_after("jaws", "steven")
    assert answer.known.searches == 1
    assert answer.accepted == {b"<answer>cincinnati</answer>"}
    assert answer.gold == {"Jaws (film)", "Steven Spielberg"}


def test_what_no_found_page_names_is_no_lesson() -> None:
    """But for the first query, which is the question; a page that the question itself names is searched for."""
    assert lessons_after("paris")[1].accepted == {b"<search>jaws</search>"}
    unnamed = Task("t", "Where was he born?", TASK.answers, "train", TASK.data)
    assert len(lessons_after("paris", task=unnamed)) == 1


def test_an_answer_that_no_gold_page_has_is_no_lesson() -> None:
    known = Reading(QUESTION, (FoundPassage("", "Paris", "Cincinnati is not here."),), 1)
    assert answer_lesson(TASK, known, [CORPUS[CORPUS.row_of("steven")]]) is None


def test_yes_and_no_stand_in_no_page() -> None:
    task = Task("t", "Is it?", ("No",), "train", {"supporting_ids": ("paris",)})
    lesson = answer_lesson(task, Reading("Is it?", (), 2), [])
    assert lesson is not None
    assert lesson.accepted == {b"<answer>no</answer>"}


def test_lessons_and_episodes_are_of_different_questions() -> None:
    """The preset draws exactly the questions that the lessons leave out."""
    train, config = load_config("real-questions").train, ReaderWarmstartConfig()
    assert (train.limit, train.seed) == (config.kept, config.kept_seed)
    tasks = tuple(Task(str(i), f"Question {i}?", ("yes",), "train", {}) for i in range(365))
    played = {task.id for task in sample(tasks, train.limit, train.seed)}
    assert {task.id for task in taught(tasks, config)} == {task.id for task in tasks} - played
    assert len(played) == 180
    assert (train.passage_questions, train.seed) == (config.kept_rules, config.kept_seed)


def test_an_answer_is_taught_wherever_a_search_finds_it() -> None:
    """In a passage that has it as whole words; it is no lesson where none does."""
    found = [passage("paris"), passage("jaws")]
    task = Task("t", "Who made Jaws?", ("Steven Spielberg", "Spiel"), "test", {})
    lesson = found_lesson(task, found, ReaderWarmstartConfig(), Random(0))
    assert lesson is not None
    assert lesson.accepted == {b"<answer>steven spielberg</answer>", b"<answer>spiel</answer>"}
    assert lesson.gold == {"Jaws (film)"}
    assert [one.title for one in lesson.known.found] == ["Jaws (film)", "Paris"]
    part = Task("t", "Who?", ("Spiel",), "test", {})
    assert found_lesson(part, found, ReaderWarmstartConfig(), Random(0)) is None


def test_no_lesson_stands_on_a_page_of_a_held_out_question() -> None:
    """It leaves what was found for questions of other sets; where no other page has the answer, no lesson is left."""
    task = Task("t", "Who made Jaws?", ("Steven Spielberg",), "test", {})
    ((_, left),) = without_pages([(task, [passage("paris"), passage("jaws")])], frozenset(["Jaws"]))
    assert [one.id for one in left] == ["paris"]
    assert found_lesson(task, left, ReaderWarmstartConfig(), Random(0)) is None


def test_a_crowded_lesson_shows_more_passages_without_an_answer() -> None:
    found = [passage("paris"), passage("jaws"), passage("steven")]
    task = Task("t", "Who made Jaws?", ("1975",), "test", {})
    for others, titles in ((0, 1), (1, 2), (4, 3)):
        lesson = found_lesson(task, found, ReaderWarmstartConfig(others=others), Random(0))
        assert lesson is not None
        assert len(lesson.known.found) == titles
        assert lesson.known.found[0].title == "Jaws (film)"


def test_a_third_of_the_crowded_lessons_are_of_several_hops(monkeypatch: pytest.MonkeyPatch) -> None:
    module = "agentenv.trainers.warmstart.reader_lessons"
    asked: list[ReaderWarmstartConfig] = []

    hops, other = (Lesson(Reading(name), frozenset()) for name in ("several", "any"))

    def several(config: ReaderWarmstartConfig, rng: Random) -> list[Lesson]:
        asked.append(config)
        return [hops, hops]

    monkeypatch.setattr(f"{module}._several_hops", several)
    monkeypatch.setattr(f"{module}.endless_lessons", lambda config, rng: repeat(other))
    lessons = list(islice(crowded_lessons(ReaderWarmstartConfig(), Random(0)), 9))
    assert lessons == [hops, other, other] * 3
    assert [(one.others, one.passages) for one in asked] == [(4, 8), (4, 8)]


def test_a_window_holds_an_answer() -> None:
    """Wherever it stands, and so many words; a short text stays whole."""
    words = [f"w{i}" for i in range(100)]
    for seed, place in enumerate((0, 3, 50, 98, 99)):
        cut = window_of(" ".join(words), (f"w{place}",), 20, Random(seed)).split(" ")
        assert len(cut) == 20
        assert f"w{place}" in cut
    assert window_of("a b c", ("b",), 20, Random(0)) == "a b c"


def test_the_loss_counts_all_accepted_actions_of_gold_pages_together(policy: ReaderPolicy) -> None:
    """By hand: minus the logarithm of the sum of their probabilities; the same span of another page does not count."""
    found = (FoundPassage("", "Paris", "Paris Paris"), FoundPassage("", "Jaws", "Paris"))
    known = Reading("Where?", found, 2)
    choices = policy.model.choices(known)
    probabilities = torch.softmax(choices.scores_C.detach(), 0)
    actions = choices.candidates.actions.tolist()
    pairs = zip(actions, choices.sources, probabilities.tolist(), strict=True)
    mass = [p for text, source, p in pairs if text == b"<answer>Paris</answer>" and source == 0]
    assert len(mass) == 3
    loss = loss_of(choices, Lesson(known, frozenset([b"<answer>paris</answer>"]), frozenset(["Paris"])))
    assert loss is not None
    assert loss.item() == pytest.approx(-math.log(sum(mass)))
    assert loss_of(choices, Lesson(known, frozenset([b"<answer>rome</answer>"]))) is None


def test_lessons_are_learned(policy: ReaderPolicy) -> None:
    """A few lessons again and again: the loss falls, and the encoder's embeddings stay as they are."""
    embeddings = policy.model.encoder.embeddings.word_embeddings.weight.clone()
    again = (lesson for lessons in repeat(lessons_after("jaws", "paris")) for lesson in lessons)
    groups = [{"params": [p for p in policy.model.parameters() if p.requires_grad], "lr": 1e-2}]
    losses = fit_lessons(policy, again, groups, 3, 40, SilentDisplay())
    assert len(losses) == 40
    assert losses[-1] < 0.5 * losses[0]
    assert torch.equal(embeddings, policy.model.encoder.embeddings.word_embeddings.weight)


def test_the_folder_holds_the_reader_that_its_adapter_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights are not those that were taught but those that the adapter, which is rounded, gives to a new reader."""
    texts = [QUESTION, *(f"{document.title} {document.text}" for document in CORPUS)]
    module = "agentenv.trainers.warmstart.reader_warmstart"
    monkeypatch.setattr(f"{module}.new_reader", lambda **_: random_reader(texts))
    for phase in ("endless_lessons", "crowded_lessons"):
        monkeypatch.setattr(
            f"{module}.{phase}",
            lambda config, rng: (one for all in repeat(lessons_after("jaws", "paris")) for one in all),
        )
    config = ReaderWarmstartConfig(
        lessons=12, crowded_lessons=12, batch=3, encoder_rate=1e-2, head_rate=1e-2, rank=2
    )
    metrics = reader_warmstart(config, SilentDisplay(), tmp_path / "reader")
    assert metrics["lessons"] == 24
    written = ReaderPolicy.load(tmp_path / "reader").model
    made = random_reader(texts).model
    apply_adapter(made, tmp_path / "reader" / ADAPTER)
    for name, value in made.named_parameters():
        assert torch.equal(value, written.get_parameter(name)), name


@pytest.mark.slow
def test_no_lesson_of_the_real_sets_stands_on_a_page_of_a_held_out_question() -> None:
    """Nor is one a question that rules make for the episodes; the real training questions are as the sets have them."""
    if not os.environ.get("AGENTENV_DATA"):
        pytest.skip("AGENTENV_DATA names no folder of the question sets")
    config = ReaderWarmstartConfig(rules=100)
    held = held_out_titles(config)
    given = SourceConfig(dataset=SEVERAL_HOPS, split="train", passage_questions=config.kept_rules)
    tasks = open_tasks(given, SearchConfig(), EnvConfig()).tasks
    real = {task.question for task in tasks if task.data.get("family") != FAMILY}
    kept = {task.question for task in tasks} - real
    lessons = list(islice(endless_lessons(config, Random(0)), 3000))
    others = [lesson for lesson in lessons if lesson.known.question not in real]
    assert len(others) > 1500
    assert [lesson for lesson in others if any(bare(title) in held for title in lesson.gold)] == []
    assert [lesson for lesson in others if lesson.known.question in kept] == []


def test_a_window_holds_an_answer_behind_letters_that_become_two_in_lower_case() -> None:
    """The dotted capital I does; counted in the text as it is written, the answer would be sought too far behind."""
    text = " ".join(["\u0130" * 200, *(f"w{i}" for i in range(100))])
    for seed in range(20):
        assert "w10" in window_of(text, ("w10",), 20, Random(seed)).split(" ")


def test_an_answer_with_a_capital_with_an_accent_is_a_lesson() -> None:
    """A span of the page has it as it is written, and the accepted answer is in lower case."""
    page = "\u00c9mile Zola wrote it."
    policy = random_reader([page])
    golds = [Document("a", "Nana", page)]
    lesson = answer_lesson(
        Task("t", "Who?", ("\u00c9mile Zola",)), Reading("Who?", (FoundPassage("", "Nana", page),), 2), golds
    )
    assert lesson is not None
    assert loss_of(policy.model.choices(lesson.known), lesson) is not None
