"""The agent program: a function or a command of the user that gets a task and queries a model at an endpoint."""

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
_INHERITED_VARIABLES = ("HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "USER", "VIRTUAL_ENV")
"""Environment variables that every command gets, because every program needs them."""
_OUTPUT_BYTES = 2**20
_STDERR_LINES, _LINE_CHARS = 8, 200
_KILL_DELAY_S = 2.0  # delay between SIGTERM and SIGKILL
_POLL_S = 0.05  # interval of checks whether a process has ended
_LENGTH_ERROR = "LengthFinishReasonError"
"""The exception that OpenAI's client raises for a reply with finish reason ``length``; the policy causes it in any agent."""
_MOST_THREADS = 1024
_COROUTINE_LOOP = BackgroundLoop("agentenv-agents", DaemonThreads(_MOST_THREADS, "agentenv-agent-call"))
"""Runs coroutines of agents, on another loop than the endpoint's, because an agent may block its loop. Their threads wait
for the model, which may wait for requests of all other episodes, so a small pool could cause a deadlock."""
_FUNCTION_THREADS = DaemonThreads(_MOST_THREADS, "agentenv-agent-program")
"""Runs plain functions of agents, each for the length of its episode."""


class AgentMistake(Exception):
    """The agent gave up because of the model's replies."""


@dataclass(frozen=True)
class Program:
    """An agent program, and how its failures are interpreted."""

    address: str
    """``python:MODULE:FUNCTION`` or ``stdio:COMMAND``."""
    variables: tuple[str, ...] = ()
    """Environment variables that a command gets in addition to those that every program needs, such as ``PATH``."""
    policy_errors: tuple[str, ...] = ()
    """Names of exceptions, and exit codes such as ``exit 3``, with which it ends because of a bad reply of the model."""

    def __post_init__(self) -> None:
        """Checks everything that can be checked before the program runs.

        Raises:
            ConfigurationError: it is neither a function nor a command, or the function or a variable does not exist.
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
            ConfigurationError: a quote is not closed.
        """
        try:
            return shlex.split(self.address.removeprefix(COMMAND))
        except ValueError as error:
            raise ConfigurationError(f"the command of the agent cannot be read: {error}") from None

    @cached_property
    def function(self) -> Callable[..., Any]:
        """The function that the address names. The current folder is searched first for its module."""
        function: Callable[..., Any] = load_own(self.address.removeprefix(FUNCTION), "function", called=True)
        return function

    async def run(self, task: Task, base_url: str, api_key: str) -> str:
        """Runs the program on ``task`` and returns its answer. Cancelling ends a command, but abandons a plain function.

        Args:
            task: The task of the program.
            base_url: The URL of its model.
            api_key: The API key for that URL.

        Raises:
            AgentMistake: it failed in a way that ``policy_errors`` names, or because the model's reply was truncated.
            EnvFault: it failed in any other way, or did not return text.
        """
        if self.address.startswith(COMMAND):
            return await self._run_command(task, base_url, api_key)
        try:
            answer = await self._call_function(task, base_url, api_key)
        except (Exception, SystemExit) as error:
            kinds = {kind.__name__ for kind in type(error).__mro__}
            failed = AgentMistake if kinds & {_LENGTH_ERROR, *self.policy_errors} else EnvFault
            raise failed(f"the agent raised {describe_error(error)}") from error
        if not isinstance(answer, str):
            raise EnvFault(
                f"the agent returned {answer!r:.80} of type {type(answer).__name__}, and not a text"
            )
        return encodable(answer)

    async def _call_function(self, task: Task, base_url: str, api_key: str) -> Any:
        given = {"base_url": base_url, "api_key": api_key}
        if inspect.iscoroutinefunction(self.function):
            return await _COROUTINE_LOOP.join(self.function(task, **given))
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(_FUNCTION_THREADS, lambda: self.function(task, **given))

    async def _run_command(self, task: Task, base_url: str, api_key: str) -> str:
        kept = {
            name: os.environ[name] for name in (*_INHERITED_VARIABLES, *self.variables) if name in os.environ
        }
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
            # A child process that the program left behind may keep the pipes open.
            await asyncio.wait([said, reading], timeout=_KILL_DELAY_S)
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
    """Returns the exit code. In Python 3.11 ``wait`` also waits for the pipes, which a child process may keep open."""
    while process.returncode is None:
        await asyncio.sleep(_POLL_S)
    return process.returncode


async def _write(stream: asyncio.StreamWriter, text: str) -> None:
    with suppress(ConnectionError):  # the program need not read the question
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
    """Reads a stream to its end, so that the process never blocks; returns its last lines."""
    kept: deque[bytes] = deque(maxlen=2)
    while chunk := await stream.read(65_536):
        kept.append(chunk[-_LINE_CHARS * _STDERR_LINES :])
    lines = b"".join(kept).decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ends the process and all processes of its group, and reaps it."""
    for sent, seconds in ((signal.SIGTERM, _KILL_DELAY_S), (signal.SIGKILL, None)):
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
    """Checks the names of errors, and returns them as a tuple.

    Raises:
        ConfigurationError: a name is neither that of an exception nor ``exit N``.
    """
    for name in names:
        if not (name.isidentifier() or (name.startswith("exit ") and name[5:].isdigit())):
            raise ConfigurationError(
                f"policy_errors names {name!r}; write the name of an exception, or a code such as 'exit 3'"
            )
    return tuple(names)
