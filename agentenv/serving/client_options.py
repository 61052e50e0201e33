"""What a client may choose for an episode: a task by its id, or, where the server allows it, a whole task of checked values.

The options of ``reset`` may hold anything where one process plays, and some environments read the names of files from a
task. A client of a server is not trusted with that. It names a task that the environment holds; and the entries of a whole
task that it writes itself are only those that the environment has declared to be harmless (`Env.client_data`).
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

_MOST_HELD = 100_000  # tasks of the environment and those that callers asked for; beyond it no more are made
_MOST_NAMED = 200  # characters of an id that an error repeats


class ClientOptions:
    """Reads the options of ``reset`` that clients of one server send.

    Args:
        env: An environment of the kind that is served; it says which tasks it holds and what a client may set.
        whole_tasks: Whether a client may write tasks itself, with their question and their accepted answers.
        tasks: Further ones that may be named by their ids.
    """

    def __init__(self, env: Env[Any], *, whole_tasks: bool, tasks: Iterable[Task] = ()) -> None:
        self.whole_tasks = whole_tasks
        self._held = {task.id: task for task in (*env.held_tasks(), *tasks)}
        self._asked: Counter[str] = Counter()
        """How many tasks are held because a client asked for them, by its address."""
        self._data = _model("task.data", env.client_data)
        self._options = _model("options", env.client_options)

    def held(self, id: str) -> Task | None:
        """The task of that id, where there is one."""
        return self._held.get(id)

    def hold(self, tasks: Iterable[Task], client: str = "") -> None:
        """Lets clients name ``tasks``, which were made for the one at the address ``client``.

        Raises:
            ConfigurationError: another task has the id of one of them already, or too many are held, in all or for this
                client: one that asks without end leaves half of the room to others.
        """
        made = {task.id: task for task in tasks}
        # Looked for before any is held, so that a refusal leaves the tasks that clients may name as they were.
        taken = next((id for id, task in made.items() if self._held.get(id, task) != task), None)
        if taken is not None:
            raise ConfigurationError(
                f"two tasks of this server have the id {taken[:_MOST_NAMED]!r}: make_tasks has to give every task an id "
                "that depends on its content"
            )
        new = len(made.keys() - self._held.keys())
        if len(self._held) + new > _MOST_HELD or self._asked[client] + new > _MOST_HELD // 2:
            raise ConfigurationError(
                f"this server holds {len(self._held)} tasks, {self._asked[client]} of them for this client; it holds no "
                f"more than {_MOST_HELD}, and {_MOST_HELD // 2} for one client"
            )
        self._held |= made
        self._asked[client] += new

    def read(self, given: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """The options as the environment takes them.

        Raises:
            UnknownName: the environment holds no task of that id.
            ConfigurationError: an option that clients may not set, a malformed task, or a whole task where the server takes
                none.
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
                f"there is no task {str(id)[:_MOST_NAMED]!r} here; of its own the environment holds {held}"
            )
        task = self._held[id]
        # An id may mean another task at a server of another version; its answers would then score the wrong question.
        if question is not None and question != task.question:
            raise ConfigurationError(
                f"task {id[:_MOST_NAMED]!r} asks another question here than the one that was sent with its id"
            )
        return task


def _model(name: str, fields: Mapping[str, Any]) -> type[BaseModel]:
    """A model of ``fields``, none of which has to be there and beside which there may be no other."""
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
