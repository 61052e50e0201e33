"""Where tasks come from: a named set of questions or programs on disk, or a FictionalWorld made on the spot."""

import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from agentenv.core.io.named_paths import existing_path, is_existing_file
from agentenv.core.types import Document, Task
from agentenv.core.validation import Frozen
from agentenv.data.code_contests import CONTEST_SETS, load_contest_set
from agentenv.data.code_sets import CODE_SETS, load_code_set
from agentenv.data.dataset_files import DATA_VARIABLE, FORMATS, bare_name, has_file
from agentenv.data.datasets import OTHER_NAMES, SETS, Dataset, check_split, load_dataset, sample
from agentenv.data.sql_sets import SQL_SETS, load_sql_set
from agentenv.data.world import FictionalWorld, WorldConfig
from agentenv.data.world_config import SPLITS
from agentenv.errors import ConfigurationError, DatasetError, UnknownName
from agentenv.sandbox.backends import make_executor

WORLD, OWN = "world", "env"
PROGRAM_SETS = (*CODE_SETS, *CONTEST_SETS, *SQL_SETS)
"""The sets whose questions ask for a program or a query; each has tests of its own in place of accepted answers."""


class SourceConfig(Frozen):
    """Which questions are asked."""

    dataset: str = WORLD
    """A name that `agentenv list` shows, a file of questions (``docs/own_data.md`` in the repository), several of these with
    commas between them, ``world`` for a FictionalWorld made by the dials of `world`, or ``env`` for tasks that the
    environment makes."""
    data: Path | None = None
    """Folder or file of the set; None looks at the environment variable AGENTENV_DATA."""
    split: str | None = None
    """None takes the set's default split; an environment that makes its tasks has train, dev and test."""
    limit: int | None = None
    """Number of questions drawn; None takes all, of an environment's own 200."""
    seed: int = Field(0, ge=0)
    """Seeds the draw."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Dials of an environment's own tasks, by the names of its ``make_tasks``; for ``humaneval`` and ``mbpp`` the
    ``executor`` in which their tests are read, ``bwrap`` where none is named; without effect otherwise."""
    topics: bool = False
    """Poses the titles of the corpus in place of its questions: what a proposer of self-play starts from. The questions and
    their answers are not looked at."""
    passage_questions: int = Field(0, ge=0)
    """Questions that rules make of the passages of the named sets, besides those that are drawn; of no passage that supports
    a question of another split (``data/synthesis/passage_questions.py``)."""
    yes_or_no: float | None = Field(None, ge=0, le=1)
    """Largest share of questions whose answer is yes or no. Where more are drawn, some are left out by the seed; None leaves
    all in."""
    world: WorldConfig = WorldConfig()
    """Dials of the world; without effect for a named set."""


class TrainSourceConfig(SourceConfig):
    """Which questions are trained on."""

    weights: dict[str, Annotated[float, Field(ge=0)]] = Field(default_factory=dict)
    """Of several sets: the weight of each by its name, such as ``{nq = 0.7, hotpotqa = 0.3}``. The questions of a step come
    from each set in proportion to its weight, whatever its size; 0 leaves a set out. Empty draws every question alike."""


@dataclass(frozen=True)
class Source:
    """Questions and the corpus that they are asked of."""

    name: str
    split: str
    tasks: tuple[Task, ...] = field(repr=False)
    documents: Sequence[Document] | None = field(repr=False)
    """The documents of a world."""
    corpus: Path | None
    """The corpus file of a named set."""
    notes: str = ""
    corpora: tuple[tuple[str, Path], ...] = ()
    """Of several sets together: each corpus file, with the name that stands before the ids of its documents."""
    parts: tuple[str, ...] = ()
    """Of several sets together: what each is called, which stands before the ids of its questions."""

    def set_of(self, task: Task) -> str:
        """What the set of ``task``, one of these questions, is called."""
        return str(task.data.get("set", self.name)) if self.parts else self.name


def check_draw(config: SourceConfig) -> SourceConfig:
    """``config``, refused with a number of questions below 1, or with a split that its world is not of.

    Raises:
        ConfigurationError: either of them.
    """
    if config.limit is not None and config.limit < 1:
        raise ConfigurationError(
            f"limit must be at least 1, not {config.limit}; leave it out for all questions."
        )
    if config.topics and config.passage_questions:
        raise ConfigurationError("topics poses the titles alone: leave passage_questions out")
    if config.dataset == WORLD and config.split not in (None, config.world.split):
        raise ConfigurationError(
            f"split is {config.split!r}, and the world is of the split {config.world.split!r}: leave split out, or set "
            "world.split."
        )
    return config


def check_weights(config: TrainSourceConfig) -> TrainSourceConfig:
    """``config``, refused with weights that cannot be those of its sets; reads nothing.

    Raises:
        ConfigurationError: there is one set alone, a set without a weight or a weight without a set, no weight is above 0,
            or there are questions of none of the sets.
    """
    if not config.weights:
        return config
    named = config.dataset in (WORLD, OWN, *PROGRAM_SETS)
    names = [config.dataset] if named else [_space(name) for name in set_names(config.dataset)]
    if len(names) < 2:
        raise ConfigurationError(f"weights are for several sets, and {names[0]!r} is one: leave weights out")
    if set(names) != set(config.weights):
        raise ConfigurationError(
            f"weights names {', '.join(map(repr, config.weights))}, and the sets are {', '.join(map(repr, names))}: give "
            "each of them a weight, 0 to leave it out"
        )
    if not any(config.weights.values()):
        raise ConfigurationError("all weights are 0: give at least one set a weight above 0")
    if config.topics or config.passage_questions:
        raise ConfigurationError(
            f"{'topics' if config.topics else 'passage_questions'} adds questions that belong to no set: leave it out, or "
            "weights"
        )
    return config


def open_source(config: SourceConfig) -> Source:
    """Loads or makes the questions.

    Raises:
        UnknownName: no such set or split.
        DatasetError: the set cannot be read or scored as it stands.
        ConfigurationError: a code set, and no sandbox in which its tests can be read.
    """
    if config.dataset == WORLD:
        world = FictionalWorld.generate(config.world)
        return Source(
            WORLD, config.world.split, tuple(world.questions[: config.limit]), world.documents, None
        )
    if config.dataset in CODE_SETS:
        return _code_set(config)
    if config.dataset in CONTEST_SETS:
        return _contest_set(config)
    if config.dataset in SQL_SETS:
        return _sql_set(config)
    names = set_names(config.dataset)
    if len(names) > 1:
        return _merged(names, config)
    loaded = _load(names[0], config.data, config.split)
    tasks = sample(loaded.tasks, config.limit, config.seed)
    return Source(loaded.name, loaded.split, tasks, None, loaded.corpus, loaded.notes)


def set_names(dataset: str) -> list[str]:
    """The sets and files that ``dataset`` names; a file whose name holds a comma is one.

    Raises:
        ConfigurationError: a set is named twice.
    """
    names = [name.strip() for name in dataset.split(",") if name.strip()]
    if is_existing_file(dataset) or len(names) < 2:
        return [dataset]
    spaces = [_space(name) for name in names]
    if twice := next((space for space in spaces if spaces.count(space) > 1), None):
        raise ConfigurationError(
            f"Two of the sets {dataset!r} are called {twice!r}, which would stand before the ids of both: name each "
            "set once, and give files names that differ."
        )
    return names


def called_sets(dataset: str) -> list[str]:
    """What each of several sets is called that ``dataset`` names; empty where it names a single one. Reads nothing.

    Raises:
        ConfigurationError: a set is named twice.
    """
    names = set_names(dataset)
    return [_space(name) for name in names] if len(names) > 1 else []


def is_file_name(name: str) -> bool:
    """Whether ``name`` is meant as a file of questions, there or not."""
    return "/" in name or name.removesuffix(".gz").endswith(FORMATS)


def _space(name: str) -> str:
    """What a set is called, and what stands before its ids beside other sets."""
    return bare_name(Path(name)) if is_file_name(name) else name


def _load(name: str, data: Path | None, split: str | None) -> Dataset:
    """All questions of one set or file."""
    if is_file_name(name):
        if not is_existing_file(name):
            found = "is a folder" if existing_path(name) else "is no file"
            raise DatasetError(f"{name!r} {found}; give a file of questions, or the name of a set.")
        return replace(load_dataset("jsonl", Path(name), split=split), name=_space(name))
    if name not in SETS:
        raise _unknown(name)
    return load_dataset(name, data, split=split)


def _unknown(name: str) -> ConfigurationError:
    """What is wrong with a name of no set: that it is no format's, if a file or a folder here is called so."""
    if is_existing_file(name):
        return DatasetError(
            f"{name!r} is a file whose name has none of the endings of a question file: {', '.join(FORMATS)}; "
            "all but .parquet may have .gz behind them."
        )
    if existing_path(name):
        return DatasetError(f"{name!r} is a folder; give a file of questions, or the name of a set.")
    return UnknownName.among("dataset", name, (*SETS, *PROGRAM_SETS, WORLD, OWN), OTHER_NAMES)


def _refuse_beside_others(names: Sequence[str]) -> None:
    """Refuses what cannot be one of several sets.

    Raises:
        ConfigurationError: one of ``names`` is a world, the environment's own tasks or a set of programs.
    """
    if alone := next((name for name in names if name in (*PROGRAM_SETS, WORLD, OWN)), None):
        raise ConfigurationError(f"{alone!r} cannot be asked together with other sets: name it alone")


def _merged(names: Sequence[str], config: SourceConfig) -> Source:
    """Several sets as one: ``NAME:`` stands before every id of a question, a passage's cluster and a document.

    Each task names its set as ``set`` in its data, by which scores are listed.

    Sets over one corpus file share its documents, under the name of the first of them.
    """
    _refuse_beside_others(names)
    parts = [_load(name, config.data, config.split) for name in names]
    owners: dict[Path, str] = {}
    for part in parts:
        if part.corpus is not None:
            owners.setdefault(part.corpus.resolve(), part.name)
    tasks = [_namespaced(task, part, owners) for part in parts for task in part.tasks]
    return Source(
        "+".join(part.name for part in parts),
        "+".join(dict.fromkeys(part.split for part in parts if part.split)),
        sample(tuple(tasks), config.limit, config.seed),
        None,
        None,
        " ".join(part.notes for part in parts if part.notes),
        tuple((name, path) for path, name in owners.items()),
        tuple(part.name for part in parts),
    )


def _namespaced(task: Task, part: Dataset, owners: Mapping[Path, str]) -> Task:
    data = {**task.data, "set": part.name}
    if "cluster" in data:
        data["cluster"] = f"{part.name}:{data['cluster']}"
    if "supporting_ids" in data and part.corpus is not None:
        space = owners[part.corpus.resolve()]
        data["supporting_ids"] = tuple(f"{space}:{one}" for one in data["supporting_ids"])
    return replace(task, id=f"{part.name}:{task.id}", data=data)


def held_out_passages(source: Source, config: SourceConfig) -> tuple[str, ...]:
    """Ids, as in ``source``, of the passages that support a question of another split of its sets.

    A split whose file is not there is left out.

    Raises:
        ConfigurationError: ``data`` is a file, beside which no other split can be looked for.
        DatasetError: such a file cannot be read, or several of them may be meant.
    """
    if config.data is not None and config.data.is_file():
        raise ConfigurationError(
            f"passage_questions leaves out the passages of other splits, which a single file does not name: give the folder "
            f"of the set in place of {str(config.data)!r}"
        )
    owners = {path.resolve(): space for space, path in source.corpora}
    found: dict[str, None] = {}
    for name in set_names(config.dataset):
        if name not in SETS:
            continue  # a file of the user, which has no other split
        kind = SETS[name]
        for split in sorted(set(kind.files) - {"", config.split or next(iter(kind.files))}):
            if not has_file(kind.folder, kind.files[split], config.data):
                continue  # a run cannot be tested on it
            part = load_dataset(name, config.data, split=split)
            tasks = [_namespaced(task, part, owners) for task in part.tasks] if owners else part.tasks
            found |= dict.fromkeys(one for task in tasks for one in task.data.get("supporting_ids", ()))
    return tuple(found)


def held_out_worlds(values: Any) -> Any:
    """The configuration ``values`` with worlds of the splits train, dev and test where it names no splits of its own."""
    if not isinstance(values, dict):
        return values
    filled = dict(values)
    for name in SPLITS:
        source = filled.get(name, {})
        world = source.get("world", {}) if isinstance(source, dict) else None
        if isinstance(world, dict):
            filled[name] = {**source, "world": {"split": name, **world}}
    return filled


def check_source(dataset: str, split: str | None, data: Path | None) -> None:
    """Refuses names that stand for no questions; reads nothing.

    Raises:
        ConfigurationError: a set is named twice.
        UnknownName: no such set, or no such split of a set that lies in a folder of several.
    """
    if dataset in CODE_SETS or dataset in SQL_SETS:
        splits = CODE_SETS[dataset].splits if dataset in CODE_SETS else SQL_SETS[dataset].splits
        if split is not None and split not in splits:
            raise UnknownName.among(f"split of {dataset}", split, splits)
    elif dataset in CONTEST_SETS:
        if split is not None:
            raise ConfigurationError(
                f"{dataset} has no splits: leave out {split!r}, and name the file to read."
            )
    elif dataset not in (WORLD, OWN):
        names = set_names(dataset)
        if len(names) > 1:
            _refuse_beside_others(names)
        if data is not None and all(map(is_file_name, names)):
            raise ConfigurationError(
                f"The data set {dataset!r} is named by its file: leave out {str(data)!r}."
            )
        for name in names:
            if is_file_name(name):
                continue
            if name not in SETS:
                raise _unknown(name)
            if split is not None:
                check_split(name, split, data)


def _contest_set(config: SourceConfig) -> Source:
    """The problems of a file or folder of programming contests; malformed records are left out and counted."""
    check_source(config.dataset, config.split, config.data)
    place = _place(config.dataset, config.data)
    folder = place / config.dataset
    problems: list[str] = []
    tasks = load_contest_set(config.dataset, folder if folder.is_dir() else place, problems=problems)
    if not tasks:
        raise DatasetError(
            f"{place} holds no problem of {config.dataset}" + "".join(f"; {p}" for p in problems[:1])
        )
    return Source(
        config.dataset, "", sample(tasks, config.limit, config.seed), None, None, _left_out(problems)
    )


def _left_out(problems: Sequence[str]) -> str:
    """A note on malformed records; empty where there are none."""
    return f"malformed records left out: {len(problems)}; the first: {problems[0]}" if problems else ""


def _sql_set(config: SourceConfig) -> Source:
    """The questions of a set over databases; malformed records are left out and counted."""
    check_source(config.dataset, config.split, config.data)
    place, problems = _place(config.dataset, config.data), list[str]()
    split = config.split or next(iter(SQL_SETS[config.dataset].splits))
    tasks = load_sql_set(config.dataset, place, split=split, problems=problems)
    if not tasks:
        raise DatasetError(
            f"{place} holds no question of {config.dataset}" + "".join(f"; {p}" for p in problems[:1])
        )
    drawn = sample(tasks, config.limit, config.seed)
    return Source(config.dataset, split, drawn, None, None, _left_out(problems))


def _place(dataset: str, data: Path | None) -> Path:
    """Where a set of programs lies: what is named, or the folder of all sets."""
    place = data or os.environ.get(DATA_VARIABLE)
    if not place:
        raise DatasetError(
            f"Where is {dataset}? Pass its folder (--data PATH), or set {DATA_VARIABLE} to the folder of all sets."
        )
    return Path(place)


def _code_set(config: SourceConfig) -> Source:
    split = config.split or next(iter(CODE_SETS[config.dataset].splits))
    with closing(make_executor(str(config.options.get("executor", "bwrap")))) as executor:
        loaded = load_code_set(config.dataset, _place(config.dataset, config.data), executor, split=split)
    left_out = f"left out: {', '.join(loaded.exceptions)}" if loaded.exceptions else ""
    return Source(
        config.dataset, split, sample(loaded.tasks, config.limit, config.seed), None, None, left_out
    )
