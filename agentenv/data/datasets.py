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

from agentenv.core.task_checks import flaw_of
from agentenv.core.types import Task
from agentenv.data import conversation_formats as conversations
from agentenv.data import dataset_formats as formats
from agentenv.data.dataset_files import RawRow, find_file, read_qrels, read_records, world_split
from agentenv.data.hub import Hub, hub_source, is_hub, read_hub
from agentenv.data.splits import in_split
from agentenv.errors import ConfigurationError, DatasetError, UnknownName, check_known


@dataclass(frozen=True, slots=True)
class QuestionSet:
    """Where a set lies, how it is read, and what to know before quoting a number on it."""

    folder: str
    files: Mapping[str, str]
    """Pattern of the file's name by split; the first split is the default."""
    read: formats.Reader
    corpus: str = "corpus.jsonl*"
    """Pattern of the name of the corpus beside the questions."""
    notes: str = ""
    hub: Hub | None = None
    held_out: str = ""
    """A split that takes a tenth of the clusters of the file of ``train``, which has no file of its own; empty for none."""


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


_HUB = "RUC-NLPIR/FlashRAG_datasets"
_FLASHRAG = "A sample of 1,000; its passages are those that an agent retrieved: easier than all of wiki-18."

OTHER_NAMES = {
    "nq_open": "nq",
    "natural_questions": "nq",
    "2wikimultihopqa": "2wiki",
    "2wikimultihop": "2wiki",
}
"""What others call some sets, for errors: ``nq_open`` would otherwise be taken for a misspelt ``nq_oracle``."""
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
        hub=Hub(_HUB, "hotpotqa"),
    ),
    "2wiki": QuestionSet(
        "2wiki",
        {"dev": "2wiki_dev*.json*", "train": "2wiki_train*.json*"},
        formats.hotpotqa,
        notes="Without the official alias file, so scores are lower bounds of the official ones.",
        hub=Hub(_HUB, "2wikimultihopqa"),
    ),
    "2wiki_hippo": QuestionSet("2wiki_hippo", {"dev": "questions_101.jsonl*"}, formats.flashrag),
    "musique": QuestionSet(
        "musique",
        {"dev": "musique_*dev*.jsonl*", "train": "musique_*train*.jsonl*"},
        formats.musique,
        hub=Hub(_HUB, "musique"),
    ),
    "nq": QuestionSet(
        "nq_open",
        {"dev": "NQ-open.dev*.jsonl*", "efficientqa": "NQ-open.efficientqa*.jsonl*"},
        formats.nq_open,
        corpus="oracle_corpus.jsonl*",
        notes="The split dev is what papers call the NQ test set; do not mix it with efficientqa.",
        hub=Hub(_HUB, "nq", {"dev": "test"}),
    ),
    "nq_oracle": QuestionSet(
        "nq_open",
        {"dev": "nq_open_oracle.jsonl*"},
        formats.flashrag_by_passage,
        corpus="oracle_corpus.jsonl*",
        notes="Questions on one passage are a cluster: intervals are clustered.",
    ),
    "squad": QuestionSet(
        "squad",
        {"dev": "xquad_en.json*"},
        formats.squad,
        notes="Questions on one paragraph are a cluster: intervals are clustered.",
        hub=Hub("rajpurkar/squad", splits={"dev": "validation"}),
    ),
    "triviaqa": QuestionSet(
        "triviaqa",
        {"test": "triviaqa_dpr_test.jsonl*", "dev": "*-dev.json*"},
        formats.triviaqa,
        notes="The split test is the unfiltered dev questions that papers report; score it with em_triviaqa too.",
        hub=Hub(_HUB, "triviaqa"),
    ),
    "popqa": QuestionSet(
        "flashrag_1000",
        {"test": "popqa.[jt]s*"},
        formats.popqa,
        "wiki18_passages.jsonl*",
        "The official measure is em_popqa_raw; papers on search agents report em_squad. " + _FLASHRAG,
        Hub(_HUB, "popqa"),
    ),
    "flashrag_nq": QuestionSet(
        "flashrag_1000", {"test": "nq.jsonl*"}, formats.flashrag, "wiki18_passages.jsonl*", _FLASHRAG
    ),
    "flashrag_triviaqa": QuestionSet(
        "flashrag_1000", {"test": "triviaqa.jsonl*"}, formats.triviaqa, "wiki18_passages.jsonl*", _FLASHRAG
    ),
    "bamboogle": QuestionSet(
        "bamboogle",
        {"test": "bamboogle.*"},
        formats.bamboogle,
        notes="125 questions: a standard error is about 4 points.",
        hub=Hub(_HUB, "bamboogle"),
    ),
    "frames": QuestionSet(
        "frames",
        {"test": "frames.*"},
        formats.frames,
        notes="No passages; answers are long, so use a judge.",
        hub=Hub("google/frames-benchmark"),
    ),
    "simpleqa": QuestionSet(
        "simpleqa",
        {"test": "simple*qa*.*"},
        formats.simpleqa,
        notes="No passages; the official measure is a judge (rubric simpleqa).",
        hub=Hub("basicv8vc/SimpleQA"),
    ),
    "browsecomp": QuestionSet(
        "browsecomp",
        {"test": "browse*comp*.*"},
        formats.browsecomp,
        notes="Encrypted on disk and decrypted in memory only; the official measure is a judge (rubric browsecomp).",
        hub=Hub("smolagents/browse_comp"),
    ),
    "topiocqa": QuestionSet(
        "topiocqa",
        {"dev": "topiocqa_dev*.json*", "train": "topiocqa_train*.json*", "test": "topiocqa_test*.json*"},
        conversations.topiocqa,
        notes="Turns of one conversation are a cluster. Turns that cannot be answered are left out.",
    ),
    "topiocqa_dpr": QuestionSet(
        "topiocqa",
        {
            "dev": "topiocqa_all_history*dev*.json*",
            "train": "topiocqa_all_history*train*.json*",
            "test": "topiocqa_all_history*test*.json*",
        },
        conversations.topiocqa_dpr,
        notes="The files of TopiOCQA's own program, in the form AllHistory; name a file of the form Original or Rewrites by "
        "its path. Turns that cannot be answered are left out.",
    ),
    "qrecc": QuestionSet(
        "qrecc",
        {"test": "*qrecc*test*.json*", "train": "*qrecc*train*.json*", "dev": "*qrecc*train*.json*"},
        conversations.qrecc,
        notes="Turns of one conversation are a cluster. Turns with an empty answer are left out. The split dev is a tenth "
        "of the conversations of the training file, which the split train lacks.",
        held_out="dev",
    ),
    "fictional": QuestionSet("fictional", {"": "questions.jsonl*"}, formats.flashrag),
    "jsonl": QuestionSet("", {"": "questions.jsonl*"}, formats.own_questions),
}

_ROUNDING = 1e-9  # .6 * 4 / .4 is a little less than 6
_SHOWN = 20  # sentences of one message about malformed records


def load_dataset(
    name: str,
    path: Path | str | None = None,
    *,
    split: str | None = None,
    limit: int | None = None,
    seed: int = 0,
) -> Dataset:
    """Reads one split of a question set.

    Args:
        name: a key of ``SETS``; ``jsonl`` reads any file of questions and answers (`dataset_formats.own_questions`),
            ``fictional`` the folder of a world.
        path: the question file, the set's own folder or its parent; ``hub:`` and ``hub:owner/name`` read from
            the Hugging Face hub; where None, the environment variable ``AGENTENV_DATA``.
        split: a split of the set; its first where None. For a single file it is only a label.
        limit: a random sample of so many questions in the order of the file; all where None.
        seed: of that sample.

    Raises:
        UnknownName: no such set or split.
        DatasetError: the file is missing or corrupt, holds no questions, an id occurs twice, or a question
            has no answer or a null, nested or non-text one; the message has one sentence for each such record.
        MissingExtra: the hub is named and ``datasets`` is not installed.
        ConfigurationError: ``limit`` is below 1.
    """
    path = None if path is None else Path(path)
    check_known("dataset", name, SETS, OTHER_NAMES)
    if limit is not None and limit < 1:
        raise ConfigurationError(f"limit must be at least 1, not {limit}; leave it out for all questions.")
    kind = SETS[name]
    if split is None:
        split = _split_of(kind, path)
    else:
        check_split(name, split, path)
    if path is not None and is_hub(path):
        hub = hub_source(path, kind.hub, name)
        tasks = _tasks(kind, split, read_hub(hub, split), None, hub.repository)
        return Dataset(name, split, sample(tasks, limit, seed), path, None, kind.notes)
    pattern = kind.files.get(split, next(iter(kind.files.values())))
    source = find_file(name, kind.folder, pattern, path)
    if name == "fictional":
        split = _world_split(source, split)
    problems: list[str] = []
    records = read_records(source, problems=problems)
    found = _tasks(kind, split, records, read_qrels(source), str(source), problems)
    tasks = sample(_held_out(kind, split, found), limit, seed)
    corpus = next(iter(sorted(source.parent.glob(kind.corpus))), None)
    return Dataset(name, split, tasks, source, corpus, kind.notes)


def _held_out(kind: QuestionSet, split: str, tasks: tuple[Task, ...]) -> tuple[Task, ...]:
    """The tasks of a split that shares its file with another: whole clusters, so that no conversation is in both."""
    if not kind.held_out or split not in (kind.held_out, "train"):
        return tasks
    held = [in_split(str(task.data["cluster"]), "test") for task in tasks]
    return tuple(task for task, one in zip(tasks, held, strict=True) if one == (split == kind.held_out))


def check_split(name: str, split: str, path: Path | None) -> None:
    """Refuses a split that the set ``name`` does not have; any may label a single file.

    Raises:
        UnknownName: no such split.
    """
    files = SETS[name].files
    if "" not in files and split not in files and not _labels(path):
        raise UnknownName.among(f"split of {name}", split, files)


def _split_of(kind: QuestionSet, path: Path | None) -> str:
    """The default split; for a single file the one whose pattern its name fits."""
    if path is None or not path.is_file():
        return next(iter(kind.files))
    return next((split for split, pattern in kind.files.items() if fnmatch(path.name, pattern)), "")


def _world_split(source: Path, wanted: str) -> str:
    """The split of a world; a world is of one split, so no wrong flag lets training see a test world."""
    declared = world_split(source)
    if wanted and declared and wanted != declared:
        raise DatasetError(
            f"The world in {source.parent} is of the split {declared!r}, not {wanted!r}; name that split or leave it out."
        )
    return declared or wanted


def _labels(path: Path | None) -> bool:
    """Whether any split may be named: it labels a single file, and the hub has its own."""
    return path is not None and (is_hub(path) or path.is_file())


def sample(tasks: tuple[Task, ...], limit: int | None, seed: int) -> tuple[Task, ...]:
    """``limit`` of the tasks drawn by ``seed``, in their order; all where it is None."""
    if limit is None or limit >= len(tasks):
        return tasks
    rows = random.Random(seed).sample(range(len(tasks)), limit)
    return tuple(tasks[row] for row in sorted(rows))


def limit_yes_or_no(tasks: tuple[Task, ...], share: float | None, seed: int) -> tuple[Task, ...]:
    """``tasks`` without some whose only answer is yes or no, so that these are at most ``share`` of what is left.

    Those that stay are drawn by ``seed``, and the order stays. k of them among n others are at most the share s where
    k <= s (k + n), so k is the whole part of s n / (1 - s). None leaves all in.

    Raises:
        ConfigurationError: nothing would be left.
    """
    asked = [
        row for row, task in enumerate(tasks) if {one.lower() for one in task.answers} in ({"yes"}, {"no"})
    ]
    others = len(tasks) - len(asked)
    if share is None or share == 1 or not asked:
        return tasks
    allowed = int(share * others / (1 - share) + _ROUNDING)
    if len(asked) <= allowed:
        return tasks
    if not others and not allowed:
        raise ConfigurationError(
            f"yes_or_no={share:g} leaves none of {len(tasks)} questions, all of which are answered by yes or no"
        )
    left_out = set(asked) - set(random.Random(seed).sample(asked, allowed))
    return tuple(task for row, task in enumerate(tasks) if row not in left_out)


def _tasks(
    kind: QuestionSet,
    split: str,
    records: Iterable[RawRow],
    qrels: Mapping[str, tuple[str, ...]] | None,
    source: str,
    problems: list[str] | None = None,
) -> tuple[Task, ...]:
    """Every task of ``records``, with its split and supporting documents, checked.

    ``problems`` takes what is wrong, and may already hold what the file's reader has found.
    """
    problems = [] if problems is None else problems
    tasks: dict[str, Task] = {}
    for record in records:
        try:
            for task in kind.read(record):
                if task.id in tasks:
                    raise DatasetError(f"{record.place}: {_twice(task)}.")
                found = task.data.get("supporting_ids", ()) if qrels is None else qrels.get(task.id, ())
                made = replace(task, split=split, data=_with_support(task.data, found, record.place))
                if (flaw := flaw_of(made)) is not None:
                    raise DatasetError(f"{record.place}: {flaw}.")
                tasks[task.id] = made
        except DatasetError as error:
            problems.append(str(error))
    if problems:
        more = [f"And {len(problems) - _SHOWN} more malformed records."] if len(problems) > _SHOWN else []
        raise DatasetError("\n".join([*problems[:_SHOWN], *more]))
    if not tasks:
        raise DatasetError(f"{source} holds no questions.")
    return tuple(tasks.values())


def _twice(task: Task) -> str:
    """What is wrong with a second task of one id, which the file gives or which was made of the question."""
    if formats.is_made_id(task.id):
        return f"the question {task.question[:80]!r} stands in the file twice; remove one, or give each an id of its own"
    return f"the id {task.id!r} occurs twice; make ids unique"


def _with_support(data: Mapping[str, Any], found: Iterable[Any], place: str) -> dict[str, Any]:
    if (
        isinstance(found, str)
        or not isinstance(found, Iterable)
        or not all(isinstance(one, str) for one in found)
    ):
        raise DatasetError(f"{place}: supporting_ids must be a list of document ids (text), not {found!r}.")
    return {**data, "supporting_ids": tuple(found)} if found else dict(data)
