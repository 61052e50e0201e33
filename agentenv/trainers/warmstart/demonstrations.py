"""Demonstrators of search episodes: one careful, two careless. The tiny policy imitates a mixture of them.

A demonstrator sees a task with its reasoning path and a way to search, and gives the turns of an episode. Observations are
those of ``LocalSearch``, letter for letter, so what is imitated is what the environment will show.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count as numbers
from random import Random
from typing import Literal

from agentenv.core.chat import InlineFormat
from agentenv.core.types import Document, Message, Passage, Task
from agentenv.data.world import FictionalWorld, WorldConfig
from agentenv.data.world_facts import generate_facts
from agentenv.data.world_solver import Solver
from agentenv.envs.search.page_format import as_question, format_passages, information
from agentenv.retrievers.encoder import Encoder, HashEncoder
from agentenv.retrievers.faiss import LAYOUT


class Library:
    """The documents of one world with a search that confuses similar names, as vector search does.

    Args:
        documents: What is searched.
        encoder: Makes vectors of documents, laid out as an index of ``FaissRetriever`` lays them out, and of queries.
        k: Documents a search.
        queries: Queries that will come, encoded in one pass because a sentence encoder is slow on single queries.
    """

    def __init__(
        self,
        documents: Sequence[Document],
        encoder: Encoder,
        k: int,
        queries: Sequence[str] = (),
    ) -> None:
        self._documents = documents
        self._encoder = encoder
        self.k = k
        self._passages = encoder.encode_passages(
            [LAYOUT.format(title=d.title, text=d.text) for d in documents]
        )
        self._queries = dict(zip(queries, encoder.encode_queries(queries), strict=True)) if queries else {}

    def search(self, query: str) -> list[Passage]:
        """The ``k`` nearest documents, best first."""
        vector = self._queries[query] if query in self._queries else self._encoder.encode_queries([query])[0]
        scores = self._passages @ vector
        order = (-scores).argsort(kind="stable")[: self.k]
        return [
            Passage(d.id, d.title, d.text, float(scores[i]))
            for i in order
            for d in (self._documents[int(i)],)
        ]

    def documents(self, ids: Sequence[str]) -> list[Passage]:
        """The documents with these ids, in this order, as if searches had found them."""
        known = {d.id: d for d in self._documents}
        return [Passage(d.id, d.title, d.text, 1.0) for d in map(known.__getitem__, ids)]


@dataclass(frozen=True)
class DemonstrationContext:
    """What a demonstrator may look at."""

    task: Task
    library: Library
    others: Sequence[Task]
    """Other questions about the same world: a stock of wrong queries and wrong answers."""
    solver: Solver
    """Answers any question from the facts of the world."""
    rng: Random


@dataclass(frozen=True)
class Piece:
    """A stretch of a demonstration: a question, an opening message as it stands, what was shown or what the policy wrote."""

    kind: Literal["question", "opening", "page", "own"]
    text: str


Demo = list[Piece]
Demonstrator = Callable[[DemonstrationContext], Demo]


def searched(context: DemonstrationContext, query: str) -> tuple[Demo, list[Passage]]:
    """A turn that searches, with its page, and what was found."""
    passages = context.library.search(query)
    page = information(format_passages(passages))
    return [Piece("own", f"<search> {query} </search>"), Piece("page", page)], passages


def answered_with(text: str) -> Piece:
    """A turn that answers."""
    return Piece("own", f"<answer> {text} </answer>")


def made_up(tag: str, text: str) -> Demo:
    """A search or an answer that nothing in sight tells: imitated is that it is made, not the name.

    To imitate names out of nowhere costs a policy the copying of those that stand there.
    """
    return [Piece("own", f"<{tag}>"), Piece("page", f" {text}"), Piece("own", f" </{tag}>")]


def _question(context: DemonstrationContext) -> Piece:
    return Piece("question", context.task.question)


def careful(context: DemonstrationContext) -> Demo:
    """Searches for every hop and answers right; gives up (an empty demonstration) where a document is missed."""
    demo = [_question(context)]
    for hop in context.task.data["path"]:
        turn, passages = searched(context, hop["query"])
        if hop["document"] not in {passage.id for passage in passages}:
            return []
        demo += turn
    return [*demo, answered_with(context.task.answers[0])]


def guessing(context: DemonstrationContext) -> Demo:
    """Answers at once with something of the right kind that it made up."""
    last = context.task.data["path"][-1]["relation"]
    alike = [t for t in context.others if t.data["path"][-1]["relation"] == last and t.id != context.task.id]
    return [_question(context), *made_up("answer", context.rng.choice(alike or context.others).answers[0])]


def hasty(context: DemonstrationContext) -> Demo:
    """Answers a question of two hops after the first, makes up numbers, and is careful where one name is asked for.

    It never misreads a page: a policy that learns to misread by imitation stays a poor reader under reinforcement learning.
    """
    path = context.task.data["path"]
    if len(path) > 1:
        turn, _ = searched(context, path[0]["query"])
        return [_question(context), *turn, answered_with(path[0]["answer"])]
    return guessing(context) if path[0]["answer"].isdigit() else careful(context)


MIXTURE: Mapping[Demonstrator, float] = {careful: 0.25, guessing: 0.25, hasty: 0.50}
"""Share of each demonstrator in the mixture that the shipped policy imitates."""


def demonstrate(
    mixture: Mapping[Demonstrator, float], *, seed: int, worlds: WorldConfig, k: int
) -> Iterator[list[Demo]]:
    """Endless batches of episodes, each batch about a fresh world.

    Args:
        mixture: Share of each demonstrator.
        seed: The worlds take the seeds after it.
        worlds: Dials of the worlds; the seed in it is replaced.
        k: Documents a search.
    """
    names, weights = list(mixture), list(mixture.values())
    for world, library, rng in _worlds(seed, worlds, k):
        solver = Solver(generate_facts(world.config))
        scenes = [
            DemonstrationContext(task, library, world.questions, solver, rng) for task in world.questions
        ]
        demos = [rng.choices(names, weights)[0](context) for context in scenes]
        yield [demo for demo in demos if demo]


def reading_exercises(*, seed: int, worlds: WorldConfig, k: int, count: int) -> Iterator[list[Demo]]:
    """Endless batches of ``count`` reading exercises, each batch about a fresh world (see `exercise`)."""
    for world, library, rng in _worlds(seed, lookups_of(worlds), k):
        asked = questions_by_document(world.questions)
        yield [exercise(task, library, asked, rng) for task in world.questions[:count]]


def exercise(task: Task, library: Library, asked: Mapping[str, Sequence[Task]], rng: Random) -> Demo:
    """The page of the first search of ``task``, then every question that the page answers.

    An episode asks for one answer in about 180 tokens; an exercise asks for several of the same page, so that copying from
    it is learned from fewer tokens.

    Args:
        task: Whose search is made.
        library: Searched.
        asked: Questions of one hop, by the document that answers them.
        rng: Mixes the questions.
    """
    passages = library.search(task.data["path"][0]["query"])
    questions = [other for passage in passages for other in asked.get(passage.id, ())]
    rng.shuffle(questions)
    pieces = [(Piece("question", t.question), answered_with(t.answers[0])) for t in questions]
    page = Piece("page", information(format_passages(passages)))
    return [page, *(piece for pair in pieces for piece in pair)]


def questions_by_document(tasks: Sequence[Task]) -> dict[str, list[Task]]:
    """The tasks by the document that answers them, or the first of several."""
    asked: dict[str, list[Task]] = {}
    for task in tasks:
        asked.setdefault(task.data["supporting_ids"][0], []).append(task)
    return asked


def lookups_of(worlds: WorldConfig) -> WorldConfig:
    """Worlds that ask for every fact there is, one at a time."""
    return replace(worlds, hops=(1, 1), families=("lookup",), questions=3 * worlds.documents // 2)


def follow(*, seed: int, worlds: WorldConfig, k: int, count: int) -> Iterator[list[Demo]]:
    """Endless batches of ``count`` rows of three searches, each batch about a fresh world (see `searches_in_a_row`)."""
    for world, library, rng in _worlds(seed, lookups_of(worlds), k):
        solver = Solver(generate_facts(world.config))
        drawn = (rng.sample(world.questions, 3) for _ in range(count))
        rows = [
            searches_in_a_row([DemonstrationContext(task, library, (), solver, rng) for task in tasks])
            for tasks in drawn
        ]
        yield [row for row in rows if row]


def searches_in_a_row(contexts: Sequence[DemonstrationContext]) -> Demo:
    """Careful searches of one hop, each with its pages and its answer; those that miss their document are left out.

    No question stands before them: which of two pages is meant must be read off the query. The query itself is given, not
    learned, as nothing tells what is asked next.
    """
    return [piece for context in contexts for piece in _given(careful(context))]


def _given(demo: Demo) -> Demo:
    """A demonstration of one search without its question, its query given."""
    return [Piece("page", demo[1].text), *demo[2:]] if demo else []


def echo(demo: Demo) -> Demo:
    """The page of an exercise, then the same page once more as the policy's own: pure copying of unseen names."""
    return [demo[0], Piece("own", demo[0].text)]


def _worlds(seed: int, dials: WorldConfig, k: int) -> Iterator[tuple[FictionalWorld, Library, Random]]:
    encoder = HashEncoder()
    for number in numbers(seed + 1):
        world = FictionalWorld.generate(replace(dials, seed=number))
        yield world, Library(world.documents, encoder, k), Random(number)


def to_tokens(chat: InlineFormat, demo: Demo) -> tuple[list[int], list[bool]]:
    """Token ids of a demonstration and which of them are the policy's own."""
    ids: list[int] = []
    own: list[bool] = []
    for piece in demo:
        if piece.kind in ("question", "opening"):
            text = as_question(piece.text) if piece.kind == "question" else piece.text
            more = chat.prompt((Message("user", text),))
        else:
            more = chat.extend([], (Message("tool", piece.text),))
        ids += more
        own += [piece.kind == "own"] * len(more)
    return ids, own
