"""The base class of environments in which the policy writes a program that hidden tests grade."""

import atexit
import functools
from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

from agentenv.core.env import Env
from agentenv.core.prompt_templates import require_placeholder
from agentenv.core.types import Info, Message, Observation, Task
from agentenv.data.code_tasks import generate_code_tasks
from agentenv.errors import DatasetError
from agentenv.sandbox.backends import make_executor
from agentenv.sandbox.grading import CaseOutcome, ProgramGrade
from agentenv.sandbox.types import ExecResult, ExecStatus, ExecutionLimits, Executor

StateT = TypeVar("StateT")


@functools.cache
def shared_executor(backend: str) -> Executor:
    """Returns the executor of a backend that all environments of this process share."""
    made = make_executor(backend)
    atexit.register(made.close)
    return made


class ProgramEnv(Env[StateT]):
    """Has tasks with hidden tests, and the executor that runs programs."""

    refuses_half_escapes: ClassVar[bool] = True  # a program may hold any escape

    def __init__(
        self,
        tasks: Sequence[Task] | None,
        executor: Executor | str,
        limits: ExecutionLimits | None,
        prompt: str,
        render_mode: str | None,
    ) -> None:
        """Sets the common arguments; see ``Code``.

        Raises:
            ConfigurationError: the prompt does not contain ``{question}``.
        """
        super().__init__(render_mode=render_mode)
        require_placeholder(prompt, "question")
        self._tasks = tuple(generate_code_tasks(200) if tasks is None else tasks)
        self._executor = shared_executor(executor) if isinstance(executor, str) else executor
        self._limits, self._prompt = limits, prompt

    @classmethod
    def make_tasks(
        cls, n: int, *, seed: int = 0, split: str = "train", steps: int = 2, tests: int = 8
    ) -> Sequence[Task]:
        """Generates simple tasks from templates; see `generate_code_tasks`."""
        return generate_code_tasks(n, seed=seed, steps=steps, tests=tests, split=split)

    def held_tasks(self) -> Sequence[Task]:
        """Returns the tasks given to the constructor, or the default ones."""
        return self._tasks

    def choose_tested_task(self, options: dict[str, Any] | None) -> Task:
        """Returns the task of an episode; see `choose_task`.

        Raises:
            DatasetError: the task has no tests.
        """
        task = self.choose_task(options)
        if task is None or not task.data.get("tests"):
            whose = f"task {task.id!r} has" if task else "this environment was given no task, so there are"
            raise DatasetError(f"{whose} no hidden tests: give it tasks with data['tests']")
        return task

    def opening(self, task: Task) -> tuple[Observation, Info]:
        """Returns the observation and info of ``reset`` for ``task``."""
        return (Message("user", self._prompt.replace("{question}", task.question)),), {"task_id": task.id}


def describe_run(result: ExecResult) -> str:
    """Returns what the policy sees of a run: output, last value, errors, and how it ended unless it succeeded."""
    parts = [result.stdout, result.value or "", result.stderr]
    notes = {
        ExecStatus.TIMEOUT: "[stopped: it took too long]",
        ExecStatus.OOM: "[stopped: it needed too much memory]",
        ExecStatus.OUTPUT_LIMIT: "[stopped: it printed too much]",
        ExecStatus.KILLED: "[it was killed]",
    }
    parts.append(notes.get(result.status, ""))
    if result.state_lost:
        parts.append("[the interpreter was restarted: names are lost]")
    return "\n".join(part.strip("\n") for part in parts if part.strip())


def counted(found: ProgramGrade) -> str:
    """Counts passed tests and the outcomes of the others. By default, nothing else is revealed about hidden tests."""
    ways = Counter(outcome.value for outcome in found.outcomes if outcome is not CaseOutcome.PASSED)
    rest = ", ".join(f"{count} {way}" for way, count in sorted(ways.items()))
    return f"{found.passed} of {len(found.outcomes)} hidden tests passed ({rest})."


def framed(body: str) -> str:
    """Puts ``body`` between the tags of an observation."""
    return f"\n<output>\n{body}\n</output>\n"
