"""One reader a native format: a record of the file in, its tasks out.

To add a format, write a function here and name it in the table of ``agentenv.data.datasets``.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from agentenv.core.types import Task
from agentenv.data.dataset_files import Record
from agentenv.errors import DatasetError

Reader = Callable[[Record], Iterator[Task]]

GOLDS = ("golden_answers", "answers", "answer")  # FlashRAG, ours and DPR, NQ-open


def flat(record: Record) -> Iterator[Task]:
    """FlashRAG's layout and its relatives: ``id``, ``question``, the accepted answers; the rest is ``data``.

    ``metadata`` is unpacked; ``gold`` (ids of passages) is another name of ``supporting_ids``.
    """
    data = _rest(record, "id", "question", "metadata", *GOLDS)
    data = {**_mapping(record, "metadata"), **data}
    if "gold" in data:
        data["supporting_ids"] = data.pop("gold")
    yield Task(record.id("id"), record.text("question"), record.golds(*GOLDS), data=data)


def nq_open(record: Record) -> Iterator[Task]:
    """NQ-open: ``question`` and ``answer``; the id is made of the question, so any subset keeps it."""
    question = record.text("question")
    digest = hashlib.sha256(question.encode()).hexdigest()[:12]
    yield Task(f"nq_{digest}", question, record.golds("answer"))


def triviaqa(record: Record) -> Iterator[Task]:
    """The flat layout after a careless passage through CSV: some texts are quoted, with quotes doubled."""
    for task in flat(record):
        answers = tuple(dict.fromkeys(map(undouble, task.answers)))
        yield Task(task.id, undouble(task.question).strip(), answers, data=task.data)


def undouble(text: str) -> str:
    """Undoes CSV quoting that was left in ``text``; a text without doubled quotes stays as it is."""
    if '""' not in text:
        return text
    inner = text[1:-1]
    quoted = text.startswith('"') and text.endswith('"') and '"' not in inner.replace('""', "")
    return (inner if quoted else text).replace('""', '"')


def hotpotqa(record: Record) -> Iterator[Task]:
    """HotpotQA and 2WikiMultihopQA: one answer; the paragraphs (``context``) stay in the corpus."""
    data = _rest(record, "_id", "question", "answer", "context")
    yield Task(record.id("_id"), record.text("question"), (record.gold("answer"),), data=data)


def musique(record: Record) -> Iterator[Task]:
    """MuSiQue-Ans: one answer and its aliases; a hop is one step of ``question_decomposition``."""
    if record.fields.get("answerable") is False:
        raise DatasetError(f"{record.place} is marked unanswerable; load the answerable set (MuSiQue-Ans).")
    aliases = record.golds("answer_aliases") if record.fields.get("answer_aliases") else ()
    answers = tuple(dict.fromkeys((record.gold("answer"), *aliases)))
    steps = tuple(dict(step.fields) for step in record.items("question_decomposition"))
    data = {"hops": len(steps), "decomposition": steps}
    yield Task(record.id("id"), record.text("question"), answers, data=data)


def squad(record: Record) -> Iterator[Task]:
    """SQuAD's nesting: articles, their paragraphs, the questions on each.

    ``data["paragraph"]`` numbers the paragraphs: the questions on one are a cluster for standard errors.
    """
    number = 0
    for article in record.items("data"):
        for paragraph in article.items("paragraphs"):
            for question in paragraph.items("qas"):
                answers = [answer.gold("text") for answer in question.items("answers")]
                golds = Record({"answers": answers}, question.place).golds("answers")
                data = {"title": article.fields.get("title", ""), "paragraph": number}
                yield Task(question.id("id"), question.text("question"), golds, data=data)
            number += 1


def frames(record: Record) -> Iterator[Task]:
    """FRAMES: ``Prompt`` (``Question`` in copies) and one ``Answer``; links to the pages, no passages."""
    links = [str(link) for name, link in record.fields.items() if name.startswith("wikipedia_link") and link]
    kinds = [
        kind.strip() for kind in str(record.fields.get("reasoning_types", "")).split("|") if kind.strip()
    ]
    data = {"wiki_links": tuple(links), "reasoning_types": tuple(kinds)}
    yield Task(record.id("id"), record.text("Prompt", "Question"), (record.gold("Answer"),), data=data)


def _rest(record: Record, *known: str) -> dict[str, Any]:
    """The fields that have no place of their own in a task."""
    return {name: value for name, value in record.fields.items() if name not in known}


def _mapping(record: Record, name: str) -> Mapping[str, Any]:
    value = record.fields.get(name) or {}
    if not isinstance(value, dict):
        raise DatasetError(f"{record.place}: {name} must be an object, not {value!r}.")
    return value
