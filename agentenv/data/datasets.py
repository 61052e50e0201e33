"""Question sets by name, as tuples of tasks.

``load_dataset("hotpotqa", Path("data"), limit=100)`` reads the set's own file format, refuses what could not
be scored fairly and draws a seeded sample. A new set is one row of ``SETS``; a new format is one function in
``agentenv.data.dataset_formats``.
"""

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from agentenv.core.types import Task
from agentenv.data import dataset_formats as formats
from agentenv.data.dataset_files import find_file, read_qrels, read_records, world_split
from agentenv.errors import ConfigurationError, DatasetError, UnknownName


@dataclass(frozen=True, slots=True)
class QuestionSet:
    """Where a set lies, how it is read, and what to know before quoting a number on it."""

    folder: str
    files: Mapping[str, str]  # split -> pattern of the file's name; the first split is the default
    read: formats.Reader
    corpus: str = "corpus.jsonl*"  # pattern of the corpus beside the questions
    notes: str = ""


@dataclass(frozen=True)
class Dataset:
    """The questions of one split.

    Attributes:
        name: of the set, as ``SETS`` has it.
        split: of every task.
        tasks: in the order of the file, ids unique; ``data["supporting_ids"]`` holds corpus ids where known.
        source: the file that was read.
        corpus: the corpus file beside it, or None.
        notes: what to know before quoting a number.
    """

    name: str
    split: str
    tasks: tuple[Task, ...] = field(repr=False)
    source: Path
    corpus: Path | None
    notes: str


_FLASHRAG = "A sample of 1,000; its passages are those that an agent retrieved: easier than all of wiki-18."

SETS: dict[str, QuestionSet] = {
    "hotpotqa": QuestionSet(
        "hotpotqa",
        {
            "dev": "hotpot*_dev*.json*",
            "train": "hotpot*_train*.json*",
            "distractor": "hotpot*_distractor_100.json*",
        },
        formats.hotpotqa,
        notes="The split distractor is the 100 dev questions of Reflexion; two of them are also in dev.",
    ),
    "2wiki": QuestionSet(
        "2wiki",
        {"dev": "2wiki_dev*.json*", "train": "2wiki_train*.json*"},
        formats.hotpotqa,
        notes="Without the official alias file, so scores are lower bounds of the official ones.",
    ),
    "2wiki_hippo": QuestionSet("2wiki_hippo", {"dev": "questions_101.jsonl*"}, formats.flat),
    "musique": QuestionSet(
        "musique", {"dev": "musique_*dev*.jsonl*", "train": "musique_*train*.jsonl*"}, formats.musique
    ),
    "nq": QuestionSet(
        "nq_open",
        {"dev": "NQ-open.dev*.jsonl*", "efficientqa": "NQ-open.efficientqa*.jsonl*"},
        formats.nq_open,
        corpus="oracle_corpus.jsonl*",
        notes="The split dev is what papers call the NQ test set; do not mix it with efficientqa.",
    ),
    "nq_oracle": QuestionSet(
        "nq_open", {"dev": "nq_open_oracle.jsonl*"}, formats.flat, corpus="oracle_corpus.jsonl*"
    ),
    "squad": QuestionSet(
        "squad",
        {"dev": "xquad_en.json*"},
        formats.squad,
        notes="Questions on one paragraph are a cluster: use clustered standard errors (data['paragraph']).",
    ),
    "triviaqa": QuestionSet("triviaqa", {"test": "triviaqa_dpr_test.jsonl*"}, formats.triviaqa),
    "popqa": QuestionSet(
        "flashrag_1000", {"test": "popqa.jsonl*"}, formats.flat, "wiki18_passages.jsonl*", _FLASHRAG
    ),
    "flashrag_nq": QuestionSet(
        "flashrag_1000", {"test": "nq.jsonl*"}, formats.flat, "wiki18_passages.jsonl*", _FLASHRAG
    ),
    "flashrag_triviaqa": QuestionSet(
        "flashrag_1000", {"test": "triviaqa.jsonl*"}, formats.triviaqa, "wiki18_passages.jsonl*", _FLASHRAG
    ),
    "bamboogle": QuestionSet("bamboogle", {"test": "bamboogle.jsonl*"}, formats.flat),
    "frames": QuestionSet(
        "frames",
        {"test": "frames.json*"},
        formats.frames,
        notes="No passages; answers are long, so use a judge.",
    ),
    "fictional": QuestionSet("fictional", {"": "questions.jsonl*"}, formats.flat),
    "jsonl": QuestionSet("", {"": "questions.jsonl*"}, formats.flat),
}


def load_dataset(
    name: str,
    path: Path | None = None,
    *,
    split: str | None = None,
    limit: int | None = None,
    seed: int = 0,
) -> Dataset:
    """Reads one split of a question set.

    Args:
        name: a key of ``SETS``; ``jsonl`` reads any file of ``id``, ``question`` and ``golden_answers``,
            ``fictional`` the folder of a world.
        path: the question file, the set's own folder or its parent; where None, the environment variable
            ``AGENTENV_DATA``.
        split: a split of the set; its first where None. For a single file it is only a label.
        limit: a random sample of so many questions in the order of the file; all where None.
        seed: of that sample.

    Raises:
        UnknownName: no such set or split.
        DatasetError: the file is missing or corrupt, holds no questions, an id occurs twice, or a question
            has no answer or a null, nested or non-text one.
        ConfigurationError: ``limit`` is below 1.
    """
    if name not in SETS:
        raise UnknownName.among("dataset", name, SETS)
    if limit is not None and limit < 1:
        raise ConfigurationError(f"limit must be at least 1, not {limit}; leave it out for all questions.")
    kind = SETS[name]
    if split is None:
        split = _split_of(kind, path)
    elif "" not in kind.files and split not in kind.files and not (path and path.is_file()):
        raise UnknownName.among(f"split of {name}", split, kind.files)
    pattern = kind.files.get(split, next(iter(kind.files.values())))
    source = find_file(name, kind.folder, pattern, path)
    if name == "fictional":
        split = _world_split(source, split)
    tasks = _tasks(kind, source, split)
    if limit is not None and limit < len(tasks):
        rows = random.Random(seed).sample(range(len(tasks)), limit)
        tasks = tuple(tasks[row] for row in sorted(rows))
    corpus = next(iter(sorted(source.parent.glob(kind.corpus))), None)
    return Dataset(name, split, tasks, source, corpus, kind.notes)


def _split_of(kind: QuestionSet, path: Path | None) -> str:
    """The default split; for a single file the one whose pattern its name fits."""
    if path is None or not path.is_file():
        return next(iter(kind.files))
    return next((split for split, pattern in kind.files.items() if fnmatch(path.name, pattern)), "")


def _world_split(source: Path, wanted: str) -> str:
    """The split of a world; a world is of one split, so no wrong flag lets training see a test world."""
    declared = world_split(source)
    if wanted and declared and wanted != declared:
        raise DatasetError(f"The world in {source.parent} is of the split {declared!r}, not {wanted!r}.")
    return declared or wanted


def _tasks(kind: QuestionSet, source: Path, split: str) -> tuple[Task, ...]:
    """Every task of ``source``, with its split and supporting documents, checked."""
    qrels = read_qrels(source)
    tasks: dict[str, Task] = {}
    for record in read_records(source):
        for task in kind.read(record):
            if task.id in tasks:
                raise DatasetError(f"{record.place}: the id {task.id!r} occurs twice; make ids unique.")
            found = task.data.get("supporting_ids", ()) if qrels is None else qrels.get(task.id, ())
            tasks[task.id] = replace(task, split=split, data=_with_support(task.data, found, record.place))
    if not tasks:
        raise DatasetError(f"{source} holds no questions.")
    return tuple(tasks.values())


def _with_support(data: Mapping[str, Any], found: Iterable[Any], place: str) -> dict[str, Any]:
    if (
        isinstance(found, str)
        or not isinstance(found, Iterable)
        or not all(isinstance(one, str) for one in found)
    ):
        raise DatasetError(f"{place}: supporting_ids must be a list of document ids (text), not {found!r}.")
    return {**data, "supporting_ids": tuple(found)} if found else dict(data)
