"""Readers of conversational question sets: TopiOCQA and QReCC, one task a turn, with the turns before it as its history.

``data["history"]`` holds pairs of question and answer, ``data["supporting_ids"]`` the passages that answer the turn, and
``data["cluster"]`` the conversation, because its turns are not independent of each other.
"""

from collections.abc import Iterator
from typing import Any

from agentenv.core.types import Task
from agentenv.data.dataset_files import RawRow
from agentenv.errors import DatasetError
from agentenv.policies.conversations import SEPARATOR

UNANSWERABLE = "UNANSWERABLE"
_IDS = ("passage_id", "psg_id", "id")


def topiocqa(record: RawRow) -> Iterator[Task]:
    """TopiOCQA (Adlakha et al. 2022, arXiv:2110.00768): a turn, its answers, and its gold passage where there is one.

    A turn that cannot be answered yields no task: nothing could be found for it.
    """
    data = _turn(record) | {
        "topic": str(record.fields.get("Topic") or ""),
        "section": str(record.fields.get("Topic_section") or ""),
    }
    answers = [record.gold("Answer")]
    for number, other in enumerate(record.fields.get("Additional_answers") or ()):
        text = other.get("Answer") if isinstance(other, dict) else other
        if not isinstance(text, str):
            raise DatasetError(f"{record.place}: Additional_answers {number + 1} holds no text: {other!r}.")
        answers.append(text.strip())
    accepted = tuple(dict.fromkeys(answer for answer in answers if answer and answer != UNANSWERABLE))
    if not accepted:
        return
    passage = record.fields.get("Gold_passage") or {}
    if not isinstance(passage, dict):
        raise DatasetError(f"{record.place}: Gold_passage must be an object, not {passage!r}.")
    if passage:
        data["supporting_ids"] = [RawRow(passage, f"{record.place}, Gold_passage").id("id")]
    yield Task(_turn_id(record), record.text("Question"), accepted, data=data)


def topiocqa_dpr(record: RawRow) -> Iterator[Task]:
    """A turn of TopiOCQA in the format of DPR, as its authors' program reads it; negative passages are not read.

    Its files come in three forms of the question. In the form AllHistory the turns before it stand in the question, and they
    become ``data["history"]``. In the forms Original and Rewrites there are none, and the question is what is searched. A
    turn that cannot be answered yields no task.
    """
    said = record.text("question").split(SEPARATOR)
    if len(said) % 2 == 0:
        raise DatasetError(
            f"{record.place}: question must end with a question after pairs of question and answer, not after "
            f"{len(said) - 1} parts."
        )
    answers = record.value("answers")
    if not isinstance(answers, list) or not all(isinstance(answer, str) for answer in answers):
        raise DatasetError(f"{record.place}: answers must be a list of text, not {str(answers)[:60]!r}.")
    accepted = tuple(dict.fromkeys(answer.strip() for answer in answers if answer.strip()))
    if UNANSWERABLE in accepted or not accepted:
        return
    pairs = list(zip(said[:-1:2], said[1::2], strict=True))
    passages = list(record.items("positive_ctxs"))
    ids = (passage.id(*_IDS) for passage in passages if any(name in passage.fields for name in _IDS))
    # The authors' files name a passage by its number in their table, whose documents are called wiki:NUMBER.
    named = [f"wiki:{one}" if one.isdigit() else one for one in ids]
    data: dict[str, Any] = {
        "cluster": f"conversation {record.id('conv_id')}",
        "history": pairs,
        "topic": passages[0].text("title").partition(SEPARATOR)[0] if passages else "",
    }
    if named:
        data["supporting_ids"] = named
    if pairs:
        data["turn"] = len(pairs) + 1
    yield Task(f"{record.id('conv_id')}_{record.id('turn_id')}", said[-1], accepted, data=data)


def qrecc(record: RawRow) -> Iterator[Task]:
    """QReCC (Anantha et al. 2021, arXiv:2010.04898): a turn, its answer, and how a person has rewritten its question.

    A turn with an empty answer yields no task, as it is left out of the official scores too. The relevant passages stand in
    files of their own; ``Truth_passages`` is read where a copy of the set holds it, and so are names with ``Truth_`` before
    them.
    """
    answer = record.value("Answer", "Truth_answer")
    if not isinstance(answer, str):
        raise DatasetError(f"{record.place}: Answer must be text, not {answer!r}.")
    if not answer.strip():
        return
    data = _turn(record) | {"source": str(record.fields.get("Conversation_source") or "")}
    rewrite = record.fields.get("Rewrite") or record.fields.get("Truth_rewrite")
    if isinstance(rewrite, str) and rewrite.strip():
        data["rewrite"] = rewrite.strip()
    if passages := record.texts("Truth_passages"):
        data["supporting_ids"] = list(passages)
    yield Task(_turn_id(record), record.text("Question"), (answer.strip(),), data=data)


def _turn_id(record: RawRow) -> str:
    return f"{record.id('Conversation_no')}_{record.id('Turn_no')}"


def _turn(record: RawRow) -> dict[str, Any]:
    """The conversation of a turn, and the questions and answers before it."""
    said = record.fields.get("Context") or []
    if not isinstance(said, list) or len(said) % 2 or not all(isinstance(text, str) for text in said):
        raise DatasetError(
            f"{record.place}: Context must be a list of questions and answers in turn, not {str(said)[:60]!r}."
        )
    pairs = list(zip(said[::2], said[1::2], strict=True))
    return {
        "cluster": f"conversation {record.id('Conversation_no')}",
        "history": pairs,
        "turn": len(pairs) + 1,
    }
