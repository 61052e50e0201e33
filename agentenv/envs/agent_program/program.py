"""The agent program: a function or a command of the user that is given a task and asks a model at an endpoint."""

import asyncio
import inspect
import os
import shlex
import signal
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from agentenv.core.concurrency.background import BackgroundLoop
from agentenv.core.concurrency.threads import DaemonThreads
from agentenv.core.grammar import encodable, shortened
from agentenv.core.registry import describe_error, load_own
from agentenv.core.types import Task
from agentenv.errors import ConfigurationError, EnvFault

FUNCTION, COMMAND = "python:", "stdio:"
_INHERITED = ("HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "USER", "VIRTUAL_ENV")
"""Environment variables that a command gets besides those that are named: what every program needs."""
_OUTPUT_BYTES = 2**20
_STDERR_LINES, _LINE_CHARS = 8, 200
_PARTING_S = 2.0  # between SIGTERM and SIGKILL
_GLANCE_S = 0.05  # between two looks at whether a process has ended
_WAS_CUT = "LengthFinishReasonError"
"""What OpenAI's client raises where an answer ends with ``length``, which is the policy's doing in every agent."""
_MOST_THREADS = 1024
_COROUTINES = BackgroundLoop("agentenv-agents", DaemonThreads(_MOST_THREADS, "agentenv-agent-call"))
"""Where coroutines run: not on the loop of their endpoint, which one that blocks would hold up. What they call in threads
waits for the model, which may wait for the requests of all other episodes: with few threads none would go on."""
_THREADS = DaemonThreads(_MOST_THREADS, "agentenv-agent-program")
"""Where plain functions run, each for as long as its episode."""


class AgentMistake(Exception):
    """The agent has given up for a reason that the model's answers are to blame for."""


@dataclass(frozen=True)
class Program:
    """An agent program, and how its failures are read."""

    address: str
    """``python:MODULE:FUNCTION`` or ``stdio:COMMAND``."""
    variables: tuple[str, ...] = ()
    """Environment variables that a command gets, beside the few that every program needs, such as ``PATH``."""
    policy_errors: tuple[str, ...] = ()
    """Names of exceptions, and codes such as ``exit 3``, with which it ends where the model has answered badly."""

    def __post_init__(self) -> None:
        """Checks what can be known before it runs.

        Raises:
            ConfigurationError: neither a function nor a command, no such function, or a variable that is not set.
        """
        if self.address.startswith(COMMAND) and self.words:
            if missing := [name for name in self.variables if name not in os.environ]:
                raise ConfigurationError(f"the environment variable {missing[0]!r} for the agent is not set")
            return
        if not self.address.startswith(FUNCTION):
            raise ConfigurationError(
                f"the agent is {self.address!r:.80}; write python:MODULE:FUNCTION, or stdio:COMMAND as in "
                "'stdio:python3 agent.py'"
            )
        if not callable(self.function):
            raise ConfigurationError(f"{self.address!r:.80} names no function")

    @property
    def words(self) -> list[str]:
        """The words of the command.

        Raises:
            ConfigurationError: a quote does not end.
        """
        try:
            return shlex.split(self.address.removeprefix(COMMAND))
        except ValueError as error:
            raise ConfigurationError(f"the command of the agent cannot be read: {error}") from None

    @cached_property
    def function(self) -> Callable[..., Any]:
        """What a function's address names; its module is looked for in the current folder first."""
        function: Callable[..., Any] = load_own(self.address.removeprefix(FUNCTION), "function", called=True)
        return function

    async def run(self, task: Task, base_url: str, api_key: str) -> str:
        """The program's answer to ``task``. Cancelling ends a command, and leaves a plain function behind.

        Args:
            task: What it is to do.
            base_url: Where it finds its model.
            api_key: What it sends there.

        Raises:
            AgentMistake: it failed in a way that ``policy_errors`` names, or because the model's answer was cut.
            EnvFault: it failed in any other way, or gave no text.
        """
        if self.address.startswith(COMMAND):
            return await self._run_command(task, base_url, api_key)
        try:
            answer = await self._called(task, base_url, api_key)
        except (Exception, SystemExit) as error:
            kinds = {kind.__name__ for kind in type(error).__mro__}
            failed = AgentMistake if kinds & {_WAS_CUT, *self.policy_errors} else EnvFault
            raise failed(f"the agent raised {describe_error(error)}") from error
        if not isinstance(answer, str):
            raise EnvFault(
                f"the agent returned {answer!r:.80} of type {type(answer).__name__}, and not a text"
            )
        return encodable(answer)

    async def _called(self, task: Task, base_url: str, api_key: str) -> Any:
        given = {"base_url": base_url, "api_key": api_key}
        if inspect.iscoroutinefunction(self.function):
            return await _COROUTINES.join(self.function(task, **given))
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(_THREADS, lambda: self.function(task, **given))

    async def _run_command(self, task: Task, base_url: str, api_key: str) -> str:
        kept = {name: os.environ[name] for name in (*_INHERITED, *self.variables) if name in os.environ}
        given = {"OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": api_key, "AGENTENV_TASK_ID": task.id}
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                *self.words, stdin=pipe, stdout=pipe, stderr=pipe, env=kept | given, start_new_session=True
            )
        except OSError as error:
            raise EnvFault(f"the agent {self.words[0]!r} cannot be started: {error.strerror}") from error
        try:
            return await self._output_of(process, task.question)
        finally:
            await _end(process)

    async def _output_of(self, process: asyncio.subprocess.Process, question: str) -> str:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        chunks: list[bytes] = []
        said = asyncio.create_task(_last_lines(process.stderr))
        reading = asyncio.create_task(_read(process.stdout, chunks))
        exited = asyncio.create_task(_exit_of(process))
        written = asyncio.create_task(_write(process.stdin, question))
        try:
            await asyncio.wait([reading, exited], return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                reading.result()
            code = await exited
            # A process that it has left behind may hold the pipes open.
            await asyncio.wait([said, reading], timeout=_PARTING_S)
            if reading.done():
                reading.result()
        finally:
            for task in (said, reading, exited, written):
                task.cancel()
        if code:
            line = said.result() if said.done() and not said.cancelled() else ""
            why = f"the agent ended with code {code}" + (f": {shortened(line, 300)}" if line else "")
            raise (AgentMistake if f"exit {code}" in self.policy_errors else EnvFault)(why)
        return b"".join(chunks).decode(errors="replace").strip()


async def _exit_of(process: asyncio.subprocess.Process) -> int:
    """The code with which it ends. In Python 3.11 ``wait`` waits for the pipes too, which a child may hold open."""
    while process.returncode is None:
        await asyncio.sleep(_GLANCE_S)
    return process.returncode


async def _write(stream: asyncio.StreamWriter, text: str) -> None:
    with suppress(ConnectionError):  # it need not read the question
        stream.write(encodable(text).encode())
        await stream.drain()
        stream.close()


async def _read(stream: asyncio.StreamReader, chunks: list[bytes]) -> None:
    size = 0
    while chunk := await stream.read(65_536):
        size += len(chunk)
        if size > _OUTPUT_BYTES:
            raise EnvFault(
                f"the agent wrote more than {_OUTPUT_BYTES} bytes to stdout, where its answer belongs"
            )
        chunks.append(chunk)


async def _last_lines(stream: asyncio.StreamReader) -> str:
    """The last line of a stream that is read to its end, so that the process never waits for a reader."""
    kept: deque[bytes] = deque(maxlen=2)
    while chunk := await stream.read(65_536):
        kept.append(chunk[-_LINE_CHARS * _STDERR_LINES :])
    lines = b"".join(kept).decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ends the process and what it has started in its group, and reaps it."""
    for sent, seconds in ((signal.SIGTERM, _PARTING_S), (signal.SIGKILL, None)):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, sent)
        with suppress(TimeoutError):
            await asyncio.wait_for(_exit_of(process), seconds)
        if process.returncode is not None and not _group_lives(process.pid):
            return


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def known_errors(names: Sequence[str]) -> tuple[str, ...]:
    """``names`` as a tuple.

    Raises:
        ConfigurationError: one of them is neither the name of an exception nor ``exit N``.
    """
    for name in names:
        if not (name.isidentifier() or (name.startswith("exit ") and name[5:].isdigit())):
            raise ConfigurationError(
                f"policy_errors names {name!r}; write the name of an exception, or a code such as 'exit 3'"
            )
    return tuple(names)
