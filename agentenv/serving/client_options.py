"""Checks what a client may choose for an episode: a task by its id, or a whole task if the server allows it.

Within one process, the options of ``reset`` may hold anything, and some environments read file names from a task. Clients of
a server are not trusted with that: they name a task that the environment holds. If they write a whole task, it may have only
those entries that the environment declares harmless (`Env.client_data`).
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from agentenv.core.env import Env
from agentenv.core.types import Task
from agentenv.core.validation import sentence
from agentenv.errors import ConfigurationError, UnknownName
from agentenv.serving.wire import TaskData

_MOST_TASKS = 100_000  # largest number of tasks: those of the environment and those made for callers
_ID_CHARS = 200  # characters of an id that an error quotes


class ClientOptions:
    """Checks the options of ``reset`` that the clients of one server send.

    Args:
        env: An environment of the served class; it tells which tasks it holds and what clients may set.
        whole_tasks: Whether clients may write whole tasks, including question and accepted answers.
        tasks: Further tasks that clients may name by id.
    """

    def __init__(self, env: Env[Any], *, whole_tasks: bool, tasks: Iterable[Task] = ()) -> None:
        self.whole_tasks = whole_tasks
        self._held = {task.id: task for task in (*env.held_tasks(), *tasks)}
        self._asked: Counter[str] = Counter()
        """How many tasks are held for each client, by its address."""
        self._data = _model("task.data", env.client_data)
        self._options = _model("options", env.client_options)

    def held(self, id: str) -> Task | None:
        """Returns the task with that id; None if there is none."""
        return self._held.get(id)

    def hold(self, tasks: Iterable[Task], client: str = "") -> None:
        """Lets all clients name ``tasks`` by id; they were made for the client with the address ``client``.

        Raises:
            ConfigurationError: a different task already has one of the ids, or too many tasks are held: in total, or for
                this client, which may take at most half of the room.
        """
        made = {task.id: task for task in tasks}
        # All ids are checked before any task is added, so that a refusal changes nothing.
        taken = next((id for id, task in made.items() if self._held.get(id, task) != task), None)
        if taken is not None:
            raise ConfigurationError(
                f"two tasks of this server have the id {taken[:_ID_CHARS]!r}: make_tasks has to give every task an id "
                "that depends on its content"
            )
        new = len(made.keys() - self._held.keys())
        if len(self._held) + new > _MOST_TASKS or self._asked[client] + new > _MOST_TASKS // 2:
            raise ConfigurationError(
                f"this server holds {len(self._held)} tasks, {self._asked[client]} of them for this client; it holds no "
                f"more than {_MOST_TASKS}, and {_MOST_TASKS // 2} for one client"
            )
        self._held |= made
        self._asked[client] += new

    def read(self, given: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """Returns the options in the form that the environment takes.

        Raises:
            UnknownName: the environment holds no task with that id.
            ConfigurationError: an option is not open to clients, a task is malformed, or it is a whole task and the server
                takes none.
        """
        if given is None:
            return None
        rest = {name: value for name, value in given.items() if name != "task"}
        options = _checked(self._options, rest, "options")
        if given.get("task") is not None:
            options["task"] = self._task(given["task"])
        return options

    def _task(self, given: Any) -> Task:
        named = {"id": given} if isinstance(given, str) else given
        if not isinstance(named, Mapping):
            raise ConfigurationError(f"options.task is a task's id or an object, not {str(given)[:60]!r}")
        if set(named) <= {"id", "question"} and "id" in named:
            return self._held_task(named["id"], named.get("question"))
        if not self.whole_tasks:
            raise ConfigurationError(
                "this server takes tasks by id alone, as in {'task': {'id': ...}}; its operator may allow whole tasks "
                "with --client-tasks"
            )
        task = TaskData.read(named)
        data = _checked(self._data, task.data, "options.task.data")
        return Task(task.id, task.question, task.answers, task.split, data)

    def _held_task(self, id: Any, question: Any) -> Task:
        if not isinstance(id, str) or id not in self._held:
            held = f"{len(self._held)}, such as {next(iter(self._held))!r}" if self._held else "none"
            raise UnknownName(
                f"there is no task {str(id)[:_ID_CHARS]!r} here; of its own the environment holds {held}"
            )
        task = self._held[id]
        # On a server of another version, the id may stand for another task, whose answers would score the wrong question.
        if question is not None and question != task.question:
            raise ConfigurationError(
                f"task {id[:_ID_CHARS]!r} asks another question here than the one that was sent with its id"
            )
        return task


def _model(name: str, fields: Mapping[str, Any]) -> type[BaseModel]:
    """Makes a model with these optional fields that forbids all others."""
    optional: dict[str, Any] = {field: (kind, None) for field, kind in fields.items()}
    return create_model(name, __config__=ConfigDict(extra="forbid"), **optional)


def _checked(model: type[BaseModel], values: Mapping[str, Any], place: str) -> dict[str, Any]:
    known = model.model_fields
    if strange := [name for name in values if name not in known]:
        allowed = f"clients may set {', '.join(known)} there" if known else "clients may set nothing there"
        raise ConfigurationError(f"{place} holds {strange[0][:60]!r}; {allowed}")
    try:
        return model.model_validate(dict(values)).model_dump(exclude_unset=True)
    except ValidationError as error:
        raise ConfigurationError(f"{place}: {sentence(error)}") from error
