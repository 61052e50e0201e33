"""Rows of other libraries' data sets, and the environment that their trainer's configuration plays them in.

A data set may be somebody else's. So a row says which episode is played and nothing more: which environment plays it, with
which arguments (files, retrievers, executors), stands in the configuration of the adapter (`Episodes`).

All adapters read the same two columns. ``task`` is a JSON text there, because a column of Arrow and Parquet has one type,
and what is in a task differs from task to task.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, Field, ValidationError, field_validator

from agentenv.core.env import Env
from agentenv.core.images import text_alone
from agentenv.core.registry import make
from agentenv.core.types import Observation, Task
from agentenv.core.validation import sentence
from agentenv.errors import ConfigurationError
from agentenv.serving.client_options import ClientOptions
from agentenv.serving.wire import TaskData, options_in, plain, read_json

CHOSEN_BY_THE_TRAINER = ("env", "arguments")
"""Columns that no row may have."""


class DatasetRow(BaseModel):
    """An episode to play."""

    seed: int | None = Field(None, ge=0)
    """Seed of the episode; None draws one."""
    task: dict[str, Any] | None = None
    """``id``, ``question``, ``answers``, ``split`` and ``data``, or the ``id`` alone; None takes what the seed draws."""

    @field_validator("task", mode="before")
    @classmethod
    def _of_text(cls, value: Any) -> Any:
        return read_json(value) if isinstance(value, str) else value

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> "DatasetRow":
        """The row among the columns of another library's row.

        Raises:
            ConfigurationError: neither of the two is there, one is of another kind, or the row chooses what is the
                trainer's to choose.
        """
        if chosen := [name for name in CHOSEN_BY_THE_TRAINER if fields.get(name) is not None]:
            raise ConfigurationError(
                f"a row of episodes has the column {chosen[0]!r} ({str(fields[chosen[0]])[:60]!r}); rows choose neither "
                "environment nor arguments: name them where the adapter is configured, and leave the column out"
            )
        given = {name: fields[name] for name in cls.model_fields if fields.get(name) is not None}
        if not given:
            raise ConfigurationError(f"a row of episodes has neither 'seed' nor 'task', but {sorted(fields)}")
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            raise ConfigurationError(f"a row of episodes: {sentence(error)}") from error


class Episodes:
    """The environment in which rows are played, as the trainer's own configuration names it.

    Args:
        env: A registered id, or ``remote:URL``.
        arguments: Of the environment's class.
        tasks: Questions of the trainer's own program: a row that repeats one as it is stands for all of it.
    """

    def __init__(
        self, env: str, arguments: Mapping[str, Any] | None = None, tasks: Iterable[Task] = ()
    ) -> None:
        self.env, self.arguments, self._tasks = env, dict(arguments or {}), tuple(tasks)
        self._reader: ClientOptions | None = None

    def __getstate__(self) -> dict[str, Any]:
        # The reader holds models that pydantic made at run time, which cannot be pickled.
        return {**vars(self), "_reader": None}

    def make(self) -> Env[Any]:
        """Makes a further environment of this kind.

        Raises:
            ConfigurationError: it cannot be made with these arguments.
        """
        try:
            return make(self.env, **self.arguments)
        except TypeError as error:
            raise ConfigurationError(f"{self.env} cannot be made with {self.arguments}: {error}") from error

    def options(self, env: Env[Any], row: DatasetRow) -> dict[str, Any] | None:
        """What ``reset`` of ``env`` is given for ``row`` beside the seed.

        A task that the environment or the trainer holds is taken from there. Of any other one the environment is shown
        only the entries of ``data`` that it declares to be harmless (`Env.client_data`).

        Raises:
            ConfigurationError: the task is malformed, or is named by an id that nobody holds.
        """
        if row.task is None:
            return None
        if self.env.startswith("remote:"):  # its server decides what a client may send
            return options_in({"task": row.task})
        if self._reader is None:
            self._reader = ClientOptions(env, whole_tasks=True, tasks=self._tasks)
        given = row.task
        if "answers" in given or "data" in given:
            whole = TaskData.read(given)
            held = self._reader.held(whole.id)
            # Compared as they travel, because tuples and numbers of numpy come back from a column as lists and plain
            # numbers.
            if held is not None and _as_sent(held) == whole:
                return {"task": held}
            declared = {name: whole.data[name] for name in env.client_data if name in whole.data}
            given = {**given, "data": declared}
        return self._reader.read({"task": given})


def _as_sent(task: Task) -> TaskData:
    """A task as it comes out of a column."""
    return TaskData.read(read_json(json.dumps(plain(task))))


def rows(*, tasks: Iterable[Task] = (), seeds: Iterable[int] = ()) -> list[dict[str, Any]]:
    """The columns of a data set: one row a task, or one a seed where no tasks are given.

    Args:
        tasks: Questions to pose.
        seeds: Seeds of episodes whose tasks the environment draws itself.

    Raises:
        ConfigurationError: neither tasks nor seeds.
    """
    posed = [{"seed": None, "task": json.dumps(plain(task))} for task in tasks]
    drawn = [{"seed": seed, "task": None} for seed in seeds]
    if not (posed or drawn):
        raise ConfigurationError("a data set needs tasks or seeds")
    return [*posed, *drawn]


def as_messages(observation: Observation) -> list[dict[str, str]]:
    """An observation as chat templates take it; what a tool said is said by the user, which every template knows.

    Raises:
        ConfigurationError: there is an image in it.
    """
    roles = ("user" if message.role == "tool" else message.role for message in observation)
    texts = (text_alone([message], "the adapter of another trainer") for message in observation)
    return [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
