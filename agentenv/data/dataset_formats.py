"""One reader a native format: a record of the file in, its tasks out.

To add a format, write a function here and name it in the table of ``agentenv.data.datasets``.
"""

import ast
import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from agentenv.core.io.strict_json import read_json_text
from agentenv.core.types import Task
from agentenv.data.dataset_files import RawRow, number_text
from agentenv.data.sealed import unseal
from agentenv.errors import DatasetError
from agentenv.syntax_trees import parse_expression

Reader = Callable[[RawRow], Iterator[Task]]

GOLDS = ("golden_answers", "answers", "answer")  # FlashRAG, ours and DPR, NQ-open


def flashrag(record: RawRow) -> Iterator[Task]:
    """FlashRAG's layout and its relatives: ``id``, ``question``, the accepted answers; the rest is ``data``.

    ``metadata`` is unpacked; ``gold`` (ids of passages) is another name of ``supporting_ids``.
    """
    data = _rest(record, "id", "question", "metadata", *GOLDS)
    data = {**_metadata(record), **data}
    if "gold" in data:
        data["supporting_ids"] = data.pop("gold")
    yield Task(record.id("id"), record.text("question"), record.golds(*GOLDS), data=data)


_IDS = ("id", "_id", "question_id", "qid")
_QUESTIONS = ("question", "query", "problem")
_ANSWERS = (*GOLDS, "gold_answers", "ground_truth", "target")
_FURTHER = "answer_aliases"  # of MuSiQue and its relatives: accepted beside the answers
_OPTIONAL = ("supporting_ids", "gold", "family", "hops", "cluster")
"""Fields with a meaning that a question may lack; an empty one is none, as a table cannot leave one out in a single row."""


def own_questions(record: RawRow) -> Iterator[Task]:
    """A user's own questions: `docs/own_data.md` in the repository says which fields there may be.

    Without an id a question gets one made of its text and its answers, so that any part and any order of the file keeps it.
    In a table, where every field is text, several answers are a JSON list; a number is taken as its text.
    """
    record = _with_parts_of_verl(record)
    data = _rest(record, "metadata", *_IDS, *_QUESTIONS, *_ANSWERS, _FURTHER)
    data = {**_metadata(record), **data}
    data = {name: value for name, value in data.items() if name not in _OPTIONAL or value not in (None, "")}
    if "gold" in data:
        data["supporting_ids"] = data.pop("gold")
    if isinstance(data.get("supporting_ids"), str):
        data["supporting_ids"] = _listed(data["supporting_ids"])
    if isinstance(data.get("hops"), str) and data["hops"].strip().isdecimal():
        data["hops"] = int(data["hops"])
    if isinstance(data.get("hops"), float) and data["hops"].is_integer():
        data["hops"] = int(data["hops"])
    for name in ("family", "cluster"):
        data |= {name: number_text(data[name])} if name in data else {}
    question = record.text(*_QUESTIONS)
    answers = _own_answers(record)
    named = [name for name in _IDS if record.fields.get(name) not in (None, "")]
    key = record.id(*named) if named else _id_of("q", json.dumps([question, *answers]))
    yield Task(key, question, answers, data=data)


def _own_answers(record: RawRow) -> tuple[str, ...]:
    """The accepted answers of a user's question.

    Raises:
        DatasetError: there are none, or two fields hold different ones: one may hold what a system said.
    """
    found: dict[str, tuple[str, ...]] = {}
    held = [name for name in _ANSWERS if name in record.fields]
    for name in [name for name in held if record.fields[name] not in (None, "", [])] or held[:1]:
        found[name] = _read_answers(record, name)
    if len({frozenset(answers) for answers in found.values()}) > 1:
        named = " and ".join(map(repr, found))
        raise DatasetError(
            f"{record.place}: the fields {named} hold different accepted answers; keep one of them, or rename what is none."
        )
    answers = next(iter(found.values())) if found else record.golds(*_ANSWERS)
    further = record.fields.get(_FURTHER) not in (None, "", [])
    return tuple(dict.fromkeys((*answers, *_read_answers(record, _FURTHER)))) if further else answers


def _read_answers(record: RawRow, name: str) -> tuple[str, ...]:
    """The accepted answers in the field ``name``: one, a list, or an object as SQuAD, TriviaQA and Search-R1 nest them."""
    value = record.fields[name]
    value = _listed(value) if isinstance(value, str) else value
    if isinstance(value, dict):
        value = _unnested(value)
    texts = [number_text(one) for one in value] if isinstance(value, list) else number_text(value)
    return RawRow({"answers": texts}, record.place).golds("answers")


def _unnested(answers: Mapping[str, Any]) -> Any:
    """The answers in ``answers``; the object itself where it is none that is known."""
    if isinstance(answers.get("text"), list):  # SQuAD
        return answers["text"]
    if "value" in answers and isinstance(answers.get("aliases"), list):  # TriviaQA
        return [answers["value"], *answers["aliases"]]
    return answers.get("target", answers)  # Search-R1


def _with_parts_of_verl(record: RawRow) -> RawRow:
    """``record`` with what the layout of verl nests: the question of ``extra_info``, the answers of ``reward_model``."""
    fields = record.fields
    about, rewarded = _object(fields, "extra_info"), _object(fields, "reward_model")
    if not any(name in fields for name in _QUESTIONS):
        if "question" not in about:
            return record
        fields = {**fields, "question": about["question"]}
    if "ground_truth" in rewarded and not any(name in fields for name in _ANSWERS):
        fields = {**fields, "ground_truth": rewarded["ground_truth"]}
    return RawRow(fields, record.place)


def _object(fields: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The object in the field ``name``; an empty one where it holds none."""
    value = fields.get(name)
    return value if isinstance(value, dict) else {}


def _listed(text: str) -> Any:
    """The list that ``text`` is in JSON, or ``text`` itself."""
    if text.lstrip().startswith("["):
        with contextlib.suppress(ValueError):
            return read_json_text(text)
    return text


def nq_open(record: RawRow) -> Iterator[Task]:
    """NQ-open: ``question`` and ``answer`` (``answers`` in DPR's files), or the flat layout.

    The first two have no ids: one is made of the question, so any subset keeps it.
    """
    if "golden_answers" in record.fields:
        yield from flashrag(record)
        return
    question = record.text("question")
    yield Task(_id_of("nq", question), question, record.golds("answer", "answers"))


def _id_of(prefix: str, question: str) -> str:
    return f"{prefix}_{hashlib.sha256(question.encode()).hexdigest()[:12]}"


def is_made_id(id: str) -> bool:
    """Whether an id has the form of those that are made of a question because its record has none."""
    return re.fullmatch(r"[a-z]+_[0-9a-f]{12}", id) is not None


def triviaqa(record: RawRow) -> Iterator[Task]:
    """TriviaQA: the authors' nesting, or the flat layout after a careless passage through CSV.

    In the flat layout some texts are quoted, with quotes doubled.
    """
    if "Data" in record.fields:
        for item in record.items("Data"):
            yield _trivia_item(item)
        return
    if "question_id" in record.fields:  # the authors' copy on the hub
        yield _trivia_item(record)
        return
    for task in flashrag(record):
        answers = tuple(dict.fromkeys(map(unescape_quotes, task.answers)))
        yield Task(task.id, unescape_quotes(task.question).strip(), answers, data=task.data)


_WITHHELD = "<unk>"
"""What stands in TriviaQA's test file on the hub in place of each answer."""


def _trivia_item(item: RawRow) -> Task:
    """One question with every name of its answer.

    ``NormalizedAliases`` are left out: the scorer em_triviaqa makes them of the aliases, and under another
    scorer they would be further golds.
    """
    answer = item.value("Answer", "answer")
    if not isinstance(answer, dict):
        raise DatasetError(f"{item.place}: Answer must be an object, not {answer!r}.")
    golds = RawRow({name.lower(): value for name, value in answer.items()}, item.place)
    if golds.fields.get("value") == _WITHHELD:
        raise DatasetError(
            f"{item.place}: the answer is {_WITHHELD!r}, so its publishers keep it secret; load another split."
        )
    names = (golds.gold("value"), *golds.texts("aliases"), *golds.texts("humananswers"))
    answers = RawRow({"aliases": list(names)}, item.place).golds("aliases")
    return Task(item.id("QuestionId", "question_id"), item.text("Question", "question"), answers)


def popqa(record: RawRow) -> Iterator[Task]:
    """PopQA: the authors' table, whose ``possible_answers`` are JSON text, or the flat layout."""
    if "possible_answers" not in record.fields:
        yield from flashrag(record)
        return
    try:
        golds = read_json_text(record.text("possible_answers"))
    except ValueError as error:
        raise DatasetError(f"{record.place}: possible_answers is no JSON: {error}.") from error
    answers = RawRow({"possible_answers": golds}, record.place).golds("possible_answers")
    data = {name: record.fields[name] for name in ("subj", "prop", "obj") if name in record.fields}
    for name in ("s_pop", "o_pop"):
        if name in record.fields and not (count := record.id(name)).isdecimal():
            raise DatasetError(f"{record.place}: {name} must be a whole number, not {count!r}.")
        data |= {name: int(record.id(name))} if name in record.fields else {}
    yield Task(record.id("id"), record.text("question"), answers, data=data)


def bamboogle(record: RawRow) -> Iterator[Task]:
    """Bamboogle: the authors' ``Question`` and ``Answer``, or the flat layout."""
    if "Question" not in record.fields:
        yield from flashrag(record)
        return
    question = record.text("Question")
    yield Task(_id_of("bamboogle", question), question, (record.gold("Answer"),))


def simpleqa(record: RawRow) -> Iterator[Task]:
    """SimpleQA: ``problem`` and ``answer``; ``metadata`` is a Python dictionary as text."""
    question = record.text("problem")
    data = record.value("metadata")
    if isinstance(data, str):
        try:
            data = ast.literal_eval(parse_expression(data.lstrip(" \t")))
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
            raise DatasetError(f"{record.place}: metadata is no dictionary ({error}).") from error
    if not isinstance(data, dict):
        raise DatasetError(f"{record.place}: metadata must be a dictionary, not {data!r}.")
    yield Task(_id_of("simpleqa", question), question, (record.gold("answer"),), data=data)


def browsecomp(record: RawRow) -> Iterator[Task]:
    """BrowseComp: ``problem`` and ``answer`` are encrypted under ``canary`` and leave memory in no other form.

    ``data["canary"]`` marks a question whose text nobody may write to disk; its id is made of the cipher.
    """
    canary = record.text("canary")
    try:
        question, answer = (unseal(record.text(name), canary).strip() for name in ("problem", "answer"))
    except ValueError:
        raise DatasetError(f"{record.place} cannot be decrypted with its canary.") from None
    if not question or not answer:
        raise DatasetError(f"{record.place}: the decrypted question or answer is blank.")
    data = {"canary": canary, "topic": record.fields.get("problem_topic") or ""}
    yield Task(_id_of("browsecomp", record.text("problem")), question, (answer,), data=data)


def unescape_quotes(text: str) -> str:
    """Undoes CSV quoting that was left in ``text``; a text without doubled quotes stays as it is."""
    if '""' not in text:
        return text
    inner = text[1:-1]
    quoted = text.startswith('"') and text.endswith('"') and '"' not in inner.replace('""', "")
    return (inner if quoted else text).replace('""', '"')


def hotpotqa(record: RawRow) -> Iterator[Task]:
    """HotpotQA and 2WikiMultihopQA: one answer; the paragraphs (``context``) stay in the corpus.

    Copies on the hub call the id ``id`` and turn the lists of the supporting facts into columns.
    """
    if "golden_answers" in record.fields:
        yield from flashrag(record)
        return
    data = _rest(record, "_id", "id", "question", "answer", "context")
    for name in ("supporting_facts", "evidences"):
        data |= {name: listed_facts(record, name)} if name in data else {}
    yield Task(record.id("_id", "id"), record.text("question"), (record.gold("answer"),), data=data)


def listed_facts(record: RawRow, name: str) -> Any:
    """The facts in a field of HotpotQA or 2Wiki as a list, where a copy on the hub has columns of them, or a text in JSON.

    Raises:
        DatasetError: the columns have different lengths, or there is no such field.
    """
    facts = record.value(name)
    if isinstance(facts, str):
        return _listed(facts)
    if not isinstance(facts, dict):
        return facts
    columns = list(facts.values())
    if not all(isinstance(one, list) and len(one) == len(columns[0]) for one in columns):
        raise DatasetError(f"{record.place}: the columns of {name} must be lists of one length.")
    return [list(fact) for fact in zip(*columns, strict=True)]


def musique(record: RawRow) -> Iterator[Task]:
    """MuSiQue-Ans: one answer and its aliases; a hop is one step of ``question_decomposition``."""
    if "golden_answers" in record.fields:
        yield from flashrag(record)
        return
    if record.fields.get("answerable") is False:
        raise DatasetError(
            f"{record.place} is marked unanswerable, which holds for its own paragraphs and not for a corpus that is "
            "searched: load MuSiQue-Ans, or score a prediction file over MuSiQue-Full with `agentenv score musique`."
        )
    aliases = record.golds("answer_aliases") if record.fields.get("answer_aliases") else ()
    answers = tuple(dict.fromkeys((record.gold("answer"), *aliases)))
    steps = tuple(dict(step.fields) for step in record.items("question_decomposition"))
    data = {"hops": len(steps), "decomposition": steps}
    yield Task(record.id("id"), record.text("question"), answers, data=data)


def flashrag_by_passage(record: RawRow) -> Iterator[Task]:
    """The flat layout of questions on one passage each: those on the same one are a cluster."""
    for task in flashrag(record):
        data = RawRow(task.data, record.place)
        support = data.texts("supporting_ids") or (task.id,)
        yield Task(task.id, task.question, task.answers, data={**task.data, "cluster": str(support[0])})


def squad(record: RawRow) -> Iterator[Task]:
    """SQuAD's nesting: articles, their paragraphs, the questions on each.

    ``data["cluster"]`` numbers the paragraphs: the questions on one are a cluster for standard errors.
    """
    if "context" in record.fields:
        yield _squad_row(record)
        return
    number = 0
    for article in record.items("data"):
        for paragraph in article.items("paragraphs"):
            for question in paragraph.items("qas"):
                answers = [answer.gold("text") for answer in question.items("answers")]
                golds = RawRow({"answers": answers}, question.place).golds("answers")
                data = {"title": article.fields.get("title", ""), "cluster": str(number)}
                yield Task(question.id("id"), question.text("question"), golds, data=data)
            number += 1


def _squad_row(record: RawRow) -> Task:
    """One question of SQuAD's copy on the hub, which is not nested."""
    answers = record.value("answers")
    golds = RawRow(answers if isinstance(answers, dict) else {}, record.place).golds("text")
    data = {"title": record.fields.get("title", ""), "cluster": _id_of("paragraph", record.text("context"))}
    return Task(record.id("id"), record.text("question"), golds, data=data)


def frames(record: RawRow) -> Iterator[Task]:
    """FRAMES: ``Prompt`` (``Question`` in copies) and one ``Answer``; links to the pages, no passages."""
    links = [str(link) for name, link in record.fields.items() if name.startswith("wikipedia_link") and link]
    kinds = [
        kind.strip() for kind in str(record.fields.get("reasoning_types", "")).split("|") if kind.strip()
    ]
    data = {"wiki_links": tuple(links), "reasoning_types": tuple(kinds)}
    question = record.text("Prompt", "Question")
    # The authors' table has no id of its own: its first column, without a name, is a row number.
    key = record.id("id") if "id" in record.fields else _id_of("frames", question)
    yield Task(key, question, (record.gold("Answer"),), data=data)


def _rest(record: RawRow, *known: str) -> dict[str, Any]:
    """The fields that have no place of their own in a task."""
    return {name: value for name, value in record.fields.items() if name not in known}


def _metadata(record: RawRow) -> Mapping[str, Any]:
    value = record.fields.get("metadata") or {}
    if not isinstance(value, dict):
        raise DatasetError(f"{record.place}: metadata must be an object, not {value!r}.")
    return value
