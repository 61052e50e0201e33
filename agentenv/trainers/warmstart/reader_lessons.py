"""Lessons for a reader of passages: what it knows, and what it may then do.

Questions with one gold passage (SQuAD, Natural Questions) teach where an answer stands. So do questions with answers alone
(TriviaQA, PopQA and more of Natural Questions), by the passages that a search finds and an answer stands in, which is
distant supervision (Clark and Gardner 2018). The sets are gone through several times, and each time the passages are cut at
other places and shown beside other ones. Questions of several hops (the training files of HotpotQA, 2WikiMultihopQA and
MuSiQue) are searched as an episode searches them: where a gold passage is missing and its title stands in what was found,
the lesson is to search for the title, and where none is missing it is to answer. Some of them are left to the episodes of
reinforcement learning: an episode says little about reading where the answer was taught before.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from agentenv.core.protocols import Retriever
from agentenv.core.types import Document, Passage, Task
from agentenv.data.datasets import sample
from agentenv.data.overlap import FAMILY
from agentenv.data.sources import SourceConfig
from agentenv.evaluation.built_retrievers import corpus_of
from agentenv.evaluation.task_env import EnvConfig, SearchConfig, open_tasks
from agentenv.policies.reading import ANSWER, SEARCH, FoundPassage, Reading, action, bare, lowered
from agentenv.retrievers.bm25 import BM25Retriever
from agentenv.retrievers.bulk import search_all
from agentenv.retrievers.storage.corpus import Corpus

ONE_HOP = ("squad", "nq_oracle")
"""Sets whose questions have one gold passage."""
FOUND = "flashrag_nq,flashrag_triviaqa,popqa"
"""Sets whose questions have answers alone, over one corpus."""
UNFOUND = (("triviaqa", "test"), ("nq", "dev"), ("nq", "efficientqa"))
"""Sets without any passages, and their splits; the passages of ``ALL_CORPORA`` are searched for them."""
ALL_CORPORA = "hotpotqa,2wiki,musique,flashrag_nq,nq_oracle"
SEVERAL_HOPS = "hotpotqa,2wiki,musique"
HELD_OUT = "dev"
"""Split of ``SEVERAL_HOPS`` on which a trained reader is tested."""


@dataclass(frozen=True)
class ReaderWarmstartConfig:
    """How a reader is taught."""

    seed: int = 0
    data: Path | None = None
    """Folder of the sets; None looks at AGENTENV_DATA."""
    k: int = 5
    """Passages a search, as in the episodes to come."""
    lessons: int = 12_000
    """Lessons for all weights of the encoder but its embeddings."""
    crowded_lessons: int = 1_360
    """Lessons after them, for changes of low rank, among as many passages as an episode shows."""
    window: int = 90
    """Words of a passage in a lesson of one hop."""
    kept: int = 180
    """Questions of several hops that are left to the episodes: those that ``train.limit`` draws."""
    kept_seed: int = 0
    """Seed of that draw; ``train.seed`` of the episodes."""
    others: int = 1
    """Most passages without an answer of a lesson of one hop."""
    rules: int = 600
    """Questions that rules make of passages for each time that the sets are gone through."""
    kept_rules: int = 180
    """Of such questions, those that are left to the episodes, ``train.passage_questions`` of them."""
    searches: int = 3
    """Most searches of an episode."""
    passages: int = 3
    """Most passages of a search in a lesson of several hops: the gold ones first, then others that it found."""
    segment_tokens: int = 256
    """Most tokens of a question and a passage together; the rest of the passage is not read."""
    frozen_layers: int = 0
    """First layers of the encoder that are not taught."""
    rank: int = 32
    """Of what is kept of the change of each matrix."""
    batch: int = 8
    """Lessons of one optimiser step."""
    encoder_rate: float = 1e-4
    """Peak step size of the encoder."""
    head_rate: float = 1e-3
    """Peak step size of the heads."""
    factor_rate: float = 2e-4
    """Peak step size of all that is learned under a low rank, the heads included."""


@dataclass(frozen=True)
class Lesson:
    """What a reader knows, and what it may then do."""

    known: Reading
    accepted: frozenset[bytes]
    """Actions in lower case."""
    gold: frozenset[str] = frozenset()
    """Titles of the passages that an accepted span stands in; none named is any."""


def endless_lessons(config: ReaderWarmstartConfig, rng: Random) -> Iterator[Lesson]:
    """All lessons of all sets in a random order, then again with other cuts and other passages beside them, and so on."""
    searched = [*_found_passages(config), *_found_everywhere(config)]
    while True:
        lessons = [lesson for name in ONE_HOP for lesson in _one_hop(name, config, rng)]
        found = (found_lesson(task, passages, config, rng) for task, passages in searched)
        lessons += [lesson for lesson in found if lesson is not None]
        lessons += _several_hops(config, rng)
        rng.shuffle(lessons)
        yield from lessons


def crowded_lessons(config: ReaderWarmstartConfig, rng: Random) -> Iterator[Lesson]:
    """Lessons in which every passage that a search found is shown, a third of them of several hops.

    The scores of all passages are compared in one softmax, so a reader that was taught beside one wrong passage prefers too
    readily some span of the nine that an episode shows besides.
    """
    crowded = replace(config, others=4, passages=8)
    others = endless_lessons(crowded, rng)
    while True:
        several = list(_several_hops(crowded, rng))
        rng.shuffle(several)
        for lesson in several:
            yield from (lesson, next(others), next(others))


def _one_hop(name: str, config: ReaderWarmstartConfig, rng: Random) -> Iterator[Lesson]:
    given = SourceConfig(dataset=name, data=config.data)
    source = open_tasks(given, SearchConfig(), EnvConfig())
    corpus = corpus_of(source)
    assert corpus is not None
    retriever, held = BM25Retriever.build(corpus), held_out_titles(config)
    for task, found in zip(
        source.tasks,
        search_all(retriever, [t.question for t in source.tasks], config.others + 2),
        strict=True,
    ):
        golds = [corpus[corpus.row_of(one)] for one in task.data["supporting_ids"][:1]]
        if any(bare(gold.title) in held for gold in golds):
            continue
        others = _others(found, golds, rng, config.others)
        shown = [*(_found(gold, "") for gold in golds), *(_found(other, "") for other in others)]
        cut = tuple(one._replace(text=window_of(one.text, task.answers, config.window, rng)) for one in shown)
        lesson = answer_lesson(task, Reading(task.question, cut, 2), golds)
        if lesson is not None:
            yield lesson


def _found_passages(config: ReaderWarmstartConfig) -> list[tuple[Task, list[Passage]]]:
    """The questions of ``FOUND`` with what a search in their own corpus finds, but for pages of held-out questions."""
    source = open_tasks(SourceConfig(dataset=FOUND, data=config.data), SearchConfig(), EnvConfig())
    corpus = corpus_of(source)
    assert corpus is not None
    found = _searched(BM25Retriever.build(corpus), source.tasks, config.k)
    return without_pages(found, held_out_titles(config))


def _found_everywhere(config: ReaderWarmstartConfig) -> list[tuple[Task, list[Passage]]]:
    """The questions of ``UNFOUND`` with what a search in all corpora together finds, but for pages of held-out questions.

    On such a page the lesson could be the very answer that the held-out question asks for.
    """
    given = SourceConfig(dataset=ALL_CORPORA, data=config.data)
    corpus = corpus_of(open_tasks(given, SearchConfig(), EnvConfig()))
    assert corpus is not None
    retriever = BM25Retriever.build(corpus)
    held, found = held_out_titles(config), []
    for name, split in UNFOUND:
        given = SourceConfig(dataset=name, split=split, data=config.data)
        tasks = open_tasks(given, SearchConfig(), EnvConfig()).tasks
        found += without_pages(_searched(retriever, tasks, config.k), held)
    return found


def without_pages(
    found: Sequence[tuple[Task, list[Passage]]], titles: frozenset[str]
) -> list[tuple[Task, list[Passage]]]:
    """``found`` without the passages of these titles, whatever stands in brackets behind them."""
    return [(task, [one for one in passages if bare(one.title) not in titles]) for task, passages in found]


def held_out_titles(config: ReaderWarmstartConfig) -> frozenset[str]:
    """Titles of the pages that support the questions on which a trained reader is tested."""
    given = SourceConfig(dataset=SEVERAL_HOPS, split=HELD_OUT, data=config.data)
    source = open_tasks(given, SearchConfig(), EnvConfig())
    corpus = corpus_of(source)
    assert corpus is not None
    pages = (corpus[corpus.row_of(one)] for task in source.tasks for one in task.data["supporting_ids"])
    return frozenset(bare(page.title) for page in pages)


def _searched(retriever: Retriever, tasks: Sequence[Task], k: int) -> list[tuple[Task, list[Passage]]]:
    return list(zip(tasks, search_all(retriever, [task.question for task in tasks], k), strict=True))


def found_lesson(
    task: Task, passages: Sequence[Passage], config: ReaderWarmstartConfig, rng: Random
) -> Lesson | None:
    """The lesson to answer from the first two passages that an answer stands in, beside some in which none stands."""
    answers = [answer.strip().lower() for answer in task.answers]
    having = [p for p in passages if any(_stands(answer, p.text.lower()) for answer in answers)]
    others = [p for p in passages if p not in having]
    shown = [*having[:2], *others[: config.others]]
    cut = tuple(
        _found(p, "")._replace(text=window_of(" ".join(p.text.split()), task.answers, config.window, rng))
        for p in shown
    )
    golds = [Document(p.id, p.title.strip('"'), p.text) for p in having[:2]]
    return answer_lesson(task, Reading(task.question, cut, 2), golds) if having else None


def _stands(answer: str, text: str) -> bool:
    """Whether ``answer`` stands in ``text`` as whole words."""
    if not answer or answer not in text:  # most are not, and to compile a pattern takes longer than to look
        return False
    return re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", text) is not None


def taught(tasks: tuple[Task, ...], config: ReaderWarmstartConfig) -> list[Task]:
    """The questions of several hops that are not left to the episodes."""
    kept = {task.id for task in sample(tasks, config.kept, config.kept_seed)}
    return [task for task in tasks if task.id not in kept]


def _several_hops(config: ReaderWarmstartConfig, rng: Random) -> Iterator[Lesson]:
    """The lessons of the questions of several hops that are taught, and of others that rules make of the same passages."""
    given = SourceConfig(dataset=SEVERAL_HOPS, split="train", data=config.data)
    source = open_tasks(given, SearchConfig(), EnvConfig())
    corpus = corpus_of(source)
    assert corpus is not None
    retriever = BM25Retriever.build(corpus)
    mine = taught(source.tasks, config)
    kept = {task.id for task in source.tasks} - {task.id for task in mine}
    tasks = [*mine, *_rule_made(given, kept, config, rng)]
    firsts = search_all(retriever, [task.question for task in tasks], config.k)
    for task, found in zip(tasks, firsts, strict=True):
        yield from episode_lessons(task, found, corpus, retriever, config, rng)


def _rule_made(
    given: SourceConfig, kept_ids: Collection[str], config: ReaderWarmstartConfig, rng: Random
) -> list[Task]:
    """Questions that rules make of the passages, other ones each time.

    None asks in other words what a question asks that is left to the episodes, real or made by rules.
    """

    def made(count: int, seed: int) -> list[Task]:
        asked = given.model_copy(update={"passage_questions": count, "seed": seed})
        tasks = open_tasks(asked, SearchConfig(), EnvConfig()).tasks
        return [task for task in tasks if task.data.get("family") == FAMILY]

    left = [task for task in open_tasks(given, SearchConfig(), EnvConfig()).tasks if task.id in kept_ids]
    kept = {asked_of(task) for task in (*made(config.kept_rules, config.kept_seed), *left)}
    return [task for task in made(config.rules, rng.getrandbits(32)) if asked_of(task) not in kept]


def asked_of(task: Task) -> tuple[frozenset[str], str]:
    """The pages that a question stands on and its answer, by which it is the same in other words."""
    return frozenset(task.data["supporting_ids"]), task.answers[0].lower()


def episode_lessons(
    task: Task,
    found: Sequence[Passage],
    corpus: Corpus,
    retriever: Retriever,
    config: ReaderWarmstartConfig,
    rng: Random,
) -> Iterator[Lesson]:
    """The lessons of one question: the first query, then further ones while gold passages are missing, then the answer."""
    golds = [corpus[corpus.row_of(one)] for one in task.data["supporting_ids"]]
    yield Lesson(Reading(task.question), frozenset([lowered(action(SEARCH, task.question))]))
    shown: list[FoundPassage] = []
    query, missing = "", golds
    for searches in range(1, config.searches + 1):
        ids = {passage.id for passage in found}
        there = [gold for gold in missing if gold.id in ids]
        missing = [gold for gold in missing if gold.id not in ids]
        shown += [_found(gold, query) for gold in there]
        beside = max(config.passages - len(there) - min(searches - 1, 1), 0)
        shown += [_found(p, query) for p in _others(found, golds, rng, beside)]
        if searches == 1:
            rng.shuffle(shown)
        if not missing:
            lesson = answer_lesson(task, Reading(task.question, tuple(shown), searches), golds)
            if lesson is not None:
                yield lesson
            return
        read = "\n".join([task.question, *(one.text for one in shown)]).lower()
        named = [gold for gold in missing if bare(gold.title).lower() in read]
        if not named or searches == config.searches:
            return
        accepted = frozenset(lowered(action(SEARCH, bare(gold.title))) for gold in named)
        yield Lesson(Reading(task.question, tuple(shown), searches), accepted)
        query = bare(rng.choice(named).title)
        (found,) = search_all(retriever, [query], config.k)


def window_of(text: str, answers: Sequence[str], size: int, rng: Random) -> str:
    """``size`` words of ``text`` drawn at random, an answer among them where the text has one; short passages are quick."""
    words = text.split(" ")
    lower = text.lower()  # a letter may become two, and a blank stays one
    there = [lower.find(answer.strip().lower()) for answer in answers]
    at = min((place for place in there if place >= 0), default=None)
    first = rng.randrange(len(words)) if at is None else lower[:at].count(" ")
    start = max(min(first - rng.randrange(max(size - 8, 1)), len(words) - size), 0)
    return " ".join(words[start : start + size])


def answer_lesson(task: Task, known: Reading, golds: Sequence[Document]) -> Lesson | None:
    """The lesson to answer; None where no gold passage that is shown has the answer."""
    titles = frozenset(gold.title for gold in golds)
    answers = [answer.strip().lower() for answer in task.answers]
    if answers[0] in ("yes", "no"):
        return Lesson(known, frozenset([action(ANSWER, answers[0])]))
    texts = [f"{found.title}\n{found.text}".lower() for found in known.found if found.title in titles]
    there = [answer for answer in answers if any(answer in text for text in texts)]
    return Lesson(known, frozenset(action(ANSWER, one) for one in there), titles) if there else None


def _others(found: Sequence[Passage], golds: Sequence[Document], rng: Random, count: int) -> list[Passage]:
    ids = {gold.id for gold in golds}
    wrong = [passage for passage in found if passage.id not in ids]
    return rng.sample(wrong, max(min(count, len(wrong)), 0))


def _found(passage: Document | Passage, query: str) -> FoundPassage:
    return FoundPassage(query, passage.title.strip('"'), " ".join(passage.text.split()))
