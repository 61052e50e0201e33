"""One row of another library's data set: which environment, which arguments, which episode of it.

All adapters read the same four columns. ``arguments`` and ``task`` are JSON texts there, because a column of Arrow and
Parquet has one type, and what is in a task differs from task to task.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, Field, ValidationError, field_validator

from agentenv.core.env import Env
from agentenv.core.registry import make
from agentenv.core.types import Observation, Task
from agentenv.core.validation import sentence
from agentenv.errors import ConfigurationError
from agentenv.serving.wire import options_in, plain, read_json


class Row(BaseModel):
    """An episode to play."""

    env: str
    """A registered id, or ``remote:URL``."""
    arguments: dict[str, Any] = {}
    """Of the environment's class."""
    seed: int | None = Field(None, ge=0)
    """Of the episode; None draws one."""
    task: dict[str, Any] | None = None
    """``id``, ``question``, ``answers``, ``split`` and ``data``; None takes the one that the seed draws."""

    @field_validator("arguments", "task", mode="before")
    @classmethod
    def _of_text(cls, value: Any) -> Any:
        return read_json(value) if isinstance(value, str) else value

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> "Row":
        """The row among the columns of another library's row.

        Raises:
            ConfigurationError: one of the four is missing or of another kind.
        """
        given = {name: fields[name] for name in cls.model_fields if fields.get(name) is not None}
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            raise ConfigurationError(f"a row of episodes: {sentence(error)}") from error

    def make(self) -> Env[Any]:
        """The environment.

        Raises:
            ConfigurationError: it cannot be made with these arguments.
        """
        try:
            return make(self.env, **self.arguments)
        except TypeError as error:
            raise ConfigurationError(f"{self.env} cannot be made with {self.arguments}: {error}") from error

    def options(self) -> dict[str, Any] | None:
        """What ``reset`` is given beside the seed."""
        return None if self.task is None else options_in({"task": self.task})


def rows(
    env: str, *, tasks: Iterable[Task] = (), seeds: Iterable[int] = (), **arguments: Any
) -> list[dict[str, Any]]:
    """The columns of a data set: one row a task, or one a seed where no tasks are given.

    Args:
        env: A registered id, or ``remote:URL``.
        tasks: Questions to pose.
        seeds: Seeds of episodes whose tasks the environment draws itself.
        **arguments: Of the environment's class, as JSON has them.

    Raises:
        ConfigurationError: neither tasks nor seeds.
    """
    posed = [(None, json.dumps(plain(task))) for task in tasks]
    drawn = [(seed, None) for seed in seeds]
    if not (posed or drawn):
        raise ConfigurationError("a data set needs tasks or seeds")
    given = json.dumps(plain(arguments))
    return [{"env": env, "arguments": given, "seed": seed, "task": task} for seed, task in (*posed, *drawn)]


def as_messages(observation: Observation) -> list[dict[str, str]]:
    """An observation as chat templates take it; what a tool said is said by the user, which every template knows."""
    return [
        {"role": "user" if message.role == "tool" else message.role, "content": message.text}
        for message in observation
    ]
