"""Demonstrators of the roles of self-play: one searches and poses a question, one looks its answer up, one doubts.

Together with the mixture they make a policy that can play every role of ``docs/self_play.md``: the mixture's share keeps the
solver as careless as it was.
"""

import re
from collections.abc import Mapping, Sequence

from agentenv.core.types import Document, Passage, Task
from agentenv.envs.search.page_format import as_question, format_passages, information
from agentenv.envs.search.proposals import UNKNOWN
from agentenv.envs.search.self_play import opening_of, proposal_text
from agentenv.retrievers.bm25 import BM25Retriever
from agentenv.trainers.warmstart.demonstrations import (
    MIXTURE,
    Demo,
    DemonstrationContext,
    Demonstrator,
    Piece,
    made_up,
)

PROPOSER_PROMPT = "Ask about {topic}.{reference}"
"""What the tiny policy is told as proposer: how far it goes is left to it."""
VERIFIER_PROMPT = "Check: {question}"
"""What it is told as verifier."""

_REFERENCE_SHARE = 0.4  # of the proposals that follow a question of the same kind
_NOISE = 3  # most documents of other searches among which a verifier searches
_WITHHELD = 0.4  # of the doubts; the others are about another name


def proposing(context: DemonstrationContext) -> Demo:
    """Follows the path of a question from its first entity, one search a hop, then poses it with its answer.

    After each search it quotes the sentence that it goes on from, so that what is asked is what the pages tell. Gives up (an
    empty demonstration) where a search by the bare name misses the document.
    """
    path = context.task.data["path"]
    alike = [
        task for task in context.others if task.id != context.task.id and _shape(task) == _shape(context.task)
    ]
    reference = (
        context.rng.choice(alike).question if alike and context.rng.random() < _REFERENCE_SHARE else ""
    )
    opening = opening_of(PROPOSER_PROMPT, path[0]["entity"], len(path), reference)
    demo: Demo = [Piece("opening", opening)]
    thought = ""
    for hop in path:
        passages = context.library.search(hop["entity"])
        quote = _quote(hop, passages)
        if not quote:
            return []
        demo += [
            Piece("own", f"{thought}<search> {hop['entity']} </search>"),
            Piece("page", information(format_passages(passages))),
        ]
        thought = f"<think> {quote} </think> "
    return [*demo, Piece("own", thought + proposal_text(context.task.question, context.task.answers[0]))]


def hurried(context: DemonstrationContext) -> Demo:
    """Asks something that it made up before it has searched anything."""
    other = context.rng.choice(context.others)
    opening = opening_of(PROPOSER_PROMPT, _start(context.task), 1, "")
    question, answer = made_up("question", other.question), made_up("answer", other.answers[0])
    return [Piece("opening", opening), *question, Piece("own", " "), *answer]


def _quote(hop: Mapping[str, str], passages: Sequence[Passage]) -> str:
    """The first sentence of the hop's document that holds its answer, after the title; empty where none was found."""
    told = next((passage for passage in passages if passage.id == hop["document"]), None)
    sentences = re.findall(r"[^.]+\.", told.text) if told else []
    return next((f"{told.title}: {one.strip()}" for one in sentences if told and hop["answer"] in one), "")


def verifying(context: DemonstrationContext) -> Demo:
    """Searches for every hop among what a proposer's searches show and documents of other searches, and answers right."""
    passages, task = _material(context), context.task
    if not {hop["document"] for hop in task.data["path"]} <= {passage.id for passage in passages}:
        return []
    return _checked(context, passages, task, _start(task))


def doubting(context: DemonstrationContext) -> Demo:
    """Answers that it is unknown where a document is withheld, or where the question is put to another name on the page.

    Gives up (an empty demonstration) where the true answer stands there all the same.
    """
    passages, task, name = _material(context), context.task, _start(context.task)
    if context.rng.random() < _WITHHELD:
        missing = task.data["path"][-1]["document"]
        passages = [passage for passage in passages if passage.id != missing]
    else:
        name = context.rng.choice(passages).title
        alike = [other for other in context.others if _kind(context, _start(other)) == _kind(context, name)]
        task = context.rng.choice(alike or context.others)
    question = task.question.replace(_start(task), name)
    if any(answer in passage.text for answer in context.solver.answers(question) for passage in passages):
        return []
    return _checked(context, passages, task, name)


def _checked(context: DemonstrationContext, passages: Sequence[Passage], task: Task, name: str) -> Demo:
    """The question of ``task`` put to ``name``: a search a hop among ``passages``, as far as they tell, then the answer."""
    path, found = task.data["path"], name
    question = as_question(task.question.replace(_start(task), name))
    demo: Demo = [Piece("opening", VERIFIER_PROMPT.format(question=question))]
    among = BM25Retriever.build([Document(passage.id, passage.title, passage.text) for passage in passages])
    for hop in path:
        query = hop["query"].replace(hop["entity"], found)
        shown = [passages[row] for row, _ in among.rank([query], min(context.library.k, len(passages)))[0]]
        demo += [
            Piece("own", f"<search> {query} </search>"),
            Piece("page", information(format_passages(shown))),
        ]
        told = context.solver.stated(found, hop["relation"])
        if told is None or not any(found in passage.text and told in passage.text for passage in shown):
            return [*demo, Piece("own", f"<answer> {UNKNOWN} </answer>")]
        found = told
    return [*demo, Piece("own", f"<answer> {found} </answer>")]


def _material(context: DemonstrationContext) -> list[Passage]:
    """What a proposer's searches along the path show and documents of other searches, shuffled."""
    shown: dict[str, Passage] = {}
    for hop in context.task.data["path"]:
        shown |= {passage.id: passage for passage in context.library.search(hop["entity"])}
    for _ in range(context.rng.randint(0, _NOISE)):
        stray = context.library.search(context.rng.choice(context.others).data["path"][0]["entity"])[0]
        shown.setdefault(stray.id, stray)
    passages = list(shown.values())
    context.rng.shuffle(passages)
    return passages


def _start(task: Task) -> str:
    entity: str = task.data["path"][0]["entity"]
    return entity


def _kind(context: DemonstrationContext, name: str) -> set[str]:
    """What a name is the name of: a person, a town and so on."""
    return {kind for kind, _ in context.solver.entities(name)}


def _shape(task: Task) -> tuple[str, ...]:
    return tuple(hop["relation"] for hop in task.data["path"])


_MIXTURE_SHARE = 0.15

ROLE_MIXTURE: Mapping[Demonstrator, float] = {proposing: 0.4, verifying: 0.25, doubting: 0.2} | {
    demonstrator: _MIXTURE_SHARE * share for demonstrator, share in MIXTURE.items()
}
"""Share of each demonstrator in the mixture from which the roles are learned."""

WEAK_PROPOSER_MIXTURE: Mapping[Demonstrator, float] = {**ROLE_MIXTURE, proposing: 0.07, hurried: 0.33}
"""The mixture imitated last: most proposals are worth nothing, as are most answers, and self-play has to find those
that are."""
