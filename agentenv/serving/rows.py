"""Rows of data sets for other libraries, and the environment in which a trainer's configuration plays them.

A data set may come from a stranger. So a row only tells which episode is played. The environment and its arguments (files,
retrievers, executors) are in the configuration of the adapter (`Episodes`).

All adapters read the same two columns. ``task`` is JSON text, because a column of Arrow and Parquet has one type, and tasks
differ in their data.
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
"""Columns that a row may not have."""


class DatasetRow(BaseModel):
    """An episode to play."""

    seed: int | None = Field(None, ge=0)
    """Seed of the episode; None draws one."""
    task: dict[str, Any] | None = None
    """``id``, ``question``, ``answers``, ``split`` and ``data``, or only the ``id``; None takes the task that the seed
    draws."""

    @field_validator("task", mode="before")
    @classmethod
    def _of_text(cls, value: Any) -> Any:
        return read_json(value) if isinstance(value, str) else value

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> "DatasetRow":
        """Reads the row from the columns of another library's row.

        Raises:
            ConfigurationError: both columns are missing, one has the wrong type, or the row sets a column that only the
                trainer may choose.
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
    """The environment for rows, as set by the trainer's configuration.

    Args:
        env: A registered id, or ``remote:URL``.
        arguments: Constructor arguments of the environment.
        tasks: Questions of the trainer's program: a row that equals one of them is trusted with all its data.
    """

    def __init__(
        self, env: str, arguments: Mapping[str, Any] | None = None, tasks: Iterable[Task] = ()
    ) -> None:
        self.env, self.arguments, self._tasks = env, dict(arguments or {}), tuple(tasks)
        self._reader: ClientOptions | None = None

    def __getstate__(self) -> dict[str, Any]:
        # The reader is left out, because its pydantic models are made at run time and cannot be pickled.
        return {**vars(self), "_reader": None}

    def make(self) -> Env[Any]:
        """Makes an environment of this kind.

        Raises:
            ConfigurationError: it cannot be made with these arguments.
        """
        try:
            return make(self.env, **self.arguments)
        except TypeError as error:
            raise ConfigurationError(f"{self.env} cannot be made with {self.arguments}: {error}") from error

    def options(self, env: Env[Any], row: DatasetRow) -> dict[str, Any] | None:
        """Returns the options of ``reset`` for ``row``; the seed is passed separately.

        A task that the environment or the trainer holds is used as held. Any other task keeps only the entries of ``data``
        that the environment declares harmless (`Env.client_data`).

        Raises:
            ConfigurationError: the task is malformed, or has an id without a question that nobody holds.
        """
        if row.task is None:
            return None
        if self.env.startswith("remote:"):  # the server decides what a client may send
            return options_in({"task": row.task})
        if self._reader is None:
            self._reader = ClientOptions(env, whole_tasks=True, tasks=self._tasks)
        given = row.task
        if "answers" in given or "data" in given:
            whole = TaskData.read(given)
            held = self._reader.held(whole.id)
            # Both are compared in their JSON form, because a column returns tuples and numbers of numpy as lists and plain
            # numbers.
            if held is not None and _as_row_task(held) == whole:
                return {"task": held}
            declared = {name: whole.data[name] for name in env.client_data if name in whole.data}
            given = {**given, "data": declared}
        return self._reader.read({"task": given})


def _as_row_task(task: Task) -> TaskData:
    """Returns a task in the form in which it is read from a column."""
    return TaskData.read(read_json(json.dumps(plain(task))))


def rows(*, tasks: Iterable[Task] = (), seeds: Iterable[int] = ()) -> list[dict[str, Any]]:
    """Returns the columns of a data set: one row per task, or one per seed if there are no tasks.

    Args:
        tasks: Questions to ask.
        seeds: Seeds of episodes whose tasks the environment draws.

    Raises:
        ConfigurationError: there are neither tasks nor seeds.
    """
    posed = [{"seed": None, "task": json.dumps(plain(task))} for task in tasks]
    drawn = [{"seed": seed, "task": None} for seed in seeds]
    if not (posed or drawn):
        raise ConfigurationError("a data set needs tasks or seeds")
    return [*posed, *drawn]


def as_messages(observation: Observation) -> list[dict[str, str]]:
    """Returns an observation as chat messages; tool messages become user messages, which every template can show.

    Raises:
        ConfigurationError: it contains an image.
    """
    roles = ("user" if message.role == "tool" else message.role for message in observation)
    texts = (text_alone([message], "the adapter of another trainer") for message in observation)
    return [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
