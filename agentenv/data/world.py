"""FictionalWorld: invented people, places, organisations, works and events, and questions about them.

Every question has one provable answer. The benchmark that needs no download and cannot be contaminated:
names follow a grammar that no language has, and the splits share no invented word.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agentenv.core.io.files import new_folder
from agentenv.core.io.strict_json import read_json_text
from agentenv.core.types import Document, Task
from agentenv.data.world_config import WorldConfig
from agentenv.data.world_documents import write_documents
from agentenv.data.world_facts import generate_facts
from agentenv.data.world_questions import generate_questions
from agentenv.errors import ConfigurationError, CorpusError, DatasetError

__all__ = ["FictionalWorld", "WorldConfig", "read_world", "write_world"]


@dataclass(frozen=True)
class FictionalWorld:
    """One invented world.

    Attributes:
        config: the dials that made it.
        documents: its corpus, each document about one entity.
        questions: tasks whose ``data`` holds ``hops``, ``family``, ``supporting_ids`` (in path order) and
            ``path``, one dict a hop: ``query`` (an expert's search), ``document``, ``entity``, ``relation``,
            ``answer``.
    """

    config: WorldConfig
    documents: Sequence[Document]
    questions: Sequence[Task]

    @classmethod
    def generate(cls, config: WorldConfig) -> "FictionalWorld":
        """Invents the world that ``config`` describes.

        Raises:
            ConfigurationError: the world is too small for so many distinct questions.
        """
        facts = generate_facts(config)
        return cls(config, tuple(write_documents(facts)), tuple(generate_questions(facts)))


def write_world(config: WorldConfig, out: Path) -> dict[str, Any]:
    """Writes ``corpus.jsonl``, ``questions.jsonl`` and the card ``world.json`` into the new folder ``out``.

    Documents are streamed. The folder appears under its name only when it is complete.

    Returns:
        The card: the config, the numbers of documents and questions, and questions by family and hops.

    Raises:
        ConfigurationError: ``out`` holds files already, or the world is too small for so many questions.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigurationError(f"{out} exists and is not an empty folder; give a new one.")
    with new_folder(out) as folder:
        facts = generate_facts(config)
        questions = list(generate_questions(facts))
        _write_lines(folder / "questions.jsonl", (_question_row(task) for task in questions))
        _write_lines(folder / "corpus.jsonl", (asdict(document) for document in write_documents(facts)))
        card = {
            "config": asdict(config),
            "documents": config.documents,
            "questions": len(questions),
            "families": dict(Counter(task.data["family"] for task in questions)),
            "hops": {
                str(hops): n for hops, n in sorted(Counter(task.data["hops"] for task in questions).items())
            },
        }
        (folder / "world.json").write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")
    return card


def read_world(folder: Path) -> FictionalWorld:
    """Reads what ``write_world`` wrote.

    Raises:
        CorpusError: the card or the corpus is missing, corrupt, empty or has duplicate ids.
        DatasetError: a question is corrupt, lacks an answer or a supporting document, or has a duplicate id.
    """
    config = _read_card(folder / "world.json")
    documents = tuple(_read_corpus(folder / "corpus.jsonl"))
    known = {document.id for document in documents}
    questions: dict[str, Task] = {}
    path = folder / "questions.jsonl"
    for line, row in _read_lines(path, DatasetError):
        task = _task_of(f"{path}:{line}", row, config.split)
        missing = [name for name in task.data["supporting_ids"] if name not in known]
        if task.id in questions or missing:
            fault = (
                f"supporting document {missing[0]!r} is not in the corpus"
                if missing
                else f"duplicate id {task.id!r}"
            )
            raise DatasetError(f"{path}:{line}: {fault}; write the world anew.")
        questions[task.id] = task
    return FictionalWorld(config, documents, tuple(questions.values()))


def _question_row(task: Task) -> dict[str, Any]:
    return {"id": task.id, "question": task.question, "answers": list(task.answers), **task.data}


def _write_lines(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def _read_lines(path: Path, error: type[ConfigurationError]) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                try:
                    row = read_json_text(line)
                except ValueError as reason:
                    raise error(f"{path}:{number} is no JSON: {reason}; write the world anew.") from reason
                if not isinstance(row, dict):
                    raise error(f"{path}:{number}: a JSON object is wanted, not {line.strip()[:60]!r}.")
                yield number, row
    except (OSError, ValueError) as reason:
        if isinstance(reason, error):
            raise
        raise error(f"{path} cannot be read ({reason}); write the world anew.") from reason


def _read_card(path: Path) -> WorldConfig:
    try:
        card = dict(read_json_text(path.read_text(encoding="utf-8"))["config"])
        card.update(hops=tuple(card["hops"]), families=tuple(card["families"]))
        return WorldConfig(**card)
    except (OSError, ValueError, LookupError, TypeError) as reason:
        raise CorpusError(f"{path} is not the card of a world ({reason}); write the world anew.") from reason


def _read_corpus(path: Path) -> Iterator[Document]:
    seen: set[str] = set()
    for line, row in _read_lines(path, CorpusError):
        if set(row) != {"id", "title", "text"} or not all(
            isinstance(part, str) and part for part in row.values()
        ):
            raise CorpusError(
                f"{path}:{line}: a document has the texts id, title and text; write the world anew."
            )
        if row["id"] in seen:
            raise CorpusError(f"{path}:{line}: duplicate id {row['id']!r}; write the world anew.")
        seen.add(row["id"])
        yield Document(**row)
    if not seen:
        raise CorpusError(f"{path} is empty; write the world anew.")


def _task_of(place: str, row: dict[str, Any], split: str) -> Task:
    try:
        answers = row["answers"]
        if not isinstance(answers, list) or not answers or not all(isinstance(a, str) and a for a in answers):
            raise DatasetError(f"{place}: answers must be a list of one or more texts, not {answers!r}.")
        data = {
            "hops": int(row["hops"]),
            "family": str(row["family"]),
            "supporting_ids": tuple(row["supporting_ids"]),
            "path": tuple(dict(hop) for hop in row["path"]),
        }
        return Task(str(row["id"]), str(row["question"]), tuple(answers), split, data)
    except (KeyError, TypeError) as reason:
        raise DatasetError(
            f"{place}: a field of the question is missing or malformed ({reason}); write the world anew."
        ) from reason
