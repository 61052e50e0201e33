"""Where tasks come from: a named set of questions or programs on disk, or a FictionalWorld made on the spot."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from agentenv.core.types import Document, Task
from agentenv.data.code_sets import CODE_SETS, load_code_set
from agentenv.data.dataset_files import DATA_VARIABLE
from agentenv.data.datasets import SETS, check_split, load_dataset, sample
from agentenv.data.world import FictionalWorld, WorldConfig
from agentenv.errors import DatasetError, UnknownName
from agentenv.sandbox.spec import make_executor

WORLD, OWN = "world", "env"


class Frozen(BaseModel):
    """Base of every configuration: immutable, and a misspelt key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class SourceConfig(Frozen):
    """Which questions."""

    dataset: str = WORLD
    """A name that `agentenv list` shows, ``world`` for a FictionalWorld made by the dials of `world`, or ``env`` for tasks
    that the environment makes."""
    data: Path | None = None
    """Folder or file of the set; None looks at the environment variable AGENTENV_DATA."""
    split: str | None = None
    """None takes the set's default split; an environment that makes its tasks has train, dev and test."""
    limit: int | None = None
    """Number of questions drawn; None takes all, of an environment's own 200."""
    seed: int = 0
    """Seeds the draw."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Dials of an environment's own tasks, by the names of its ``make_tasks``; for ``humaneval`` and ``mbpp`` the
    ``executor`` in which their tests are read, ``bwrap`` where none is named; without effect otherwise."""
    topics: bool = False
    """Poses the titles of the corpus in place of its questions: what a proposer of self-play starts from. The questions and
    their answers are not looked at."""
    world: WorldConfig = WorldConfig()
    """Dials of the world; without effect for a named set."""


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
    if config.dataset not in SETS:
        raise UnknownName.among("dataset", config.dataset, (*SETS, *CODE_SETS, WORLD, OWN))
    loaded = load_dataset(
        config.dataset, config.data, split=config.split, limit=config.limit, seed=config.seed
    )
    return Source(loaded.name, loaded.split, loaded.tasks, None, loaded.corpus, loaded.notes)


def check_source(dataset: str, split: str | None, data: Path | None) -> None:
    """Refuses names that stand for no questions; reads nothing.

    Raises:
        UnknownName: no such set, or no such split of a set that lies in a folder of several.
    """
    if dataset in CODE_SETS:
        if split is not None and split not in CODE_SETS[dataset].splits:
            raise UnknownName.among(f"split of {dataset}", split, CODE_SETS[dataset].splits)
    elif dataset in SETS:
        if split is not None:
            check_split(dataset, split, data)
    elif dataset not in (WORLD, OWN):
        raise UnknownName.among("dataset", dataset, (*SETS, *CODE_SETS, WORLD, OWN))


def _code_set(config: SourceConfig) -> Source:
    split = config.split or next(iter(CODE_SETS[config.dataset].splits))
    folder = config.data or os.environ.get(DATA_VARIABLE)
    if not folder:
        raise DatasetError(
            f"Where is {config.dataset}? Pass its folder (--data PATH), or set {DATA_VARIABLE} to the folder of all sets."
        )
    with make_executor(str(config.options.get("executor", "bwrap"))) as executor:
        loaded = load_code_set(config.dataset, Path(folder), executor, split=split)
    left_out = f"left out: {', '.join(loaded.exceptions)}" if loaded.exceptions else ""
    return Source(
        config.dataset, split, sample(loaded.tasks, config.limit, config.seed), None, None, left_out
    )
