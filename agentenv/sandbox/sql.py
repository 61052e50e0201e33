"""Runs untrusted read-only SQL queries on SQLite files, in a pool of worker processes.

The layers of protection, from the inside: the file is opened read-only and immutable; an authorizer allows only SELECT and a
list of functions that neither leave the database nor read a clock; SQLite's own limits bound values, expressions and memory;
the progress handler enforces the deadline; and all of this happens in a process that cannot write files and that the kernel
ends if a single step exceeds the deadline. Deadlines are in processor time, so load on the machine has no influence.
"""

import atexit
import contextlib
import functools
import itertools
import json
import os
import select
import signal
import subprocess
import sys
import time
import urllib.parse
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from agentenv.core.types import ToolStatus
from agentenv.errors import ConfigurationError, SandboxFault
from agentenv.sandbox.pool import Slots

WORKER = Path(__file__).with_name("sql_worker.py")
MAX_QUERY = 10_000
"""Largest number of characters of a query, so that it always fits into the pipe to a worker."""
GRACE_S = 60.0
"""Wall-clock time in addition to ten times the deadline, for a reply and for waiting for a free worker."""
END_S = 0.5
"""Time that a worker has to end by itself after its input is closed."""

Value = int | float | str | bytes | None


@dataclass(frozen=True, slots=True)
class SqlResult:
    """The result of one query."""

    status: ToolStatus
    """ok, error or timeout."""
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Value, ...], ...] = ()
    more: bool = False
    """Whether there are more rows than the requested number of rows or bytes."""
    error_class: str = ""
    """NotAllowed, Timeout, OutOfMemory, NoQuery, TooLong, Crash, or the class of SQLite's own error."""
    message: str = ""
    reads: tuple[tuple[str, str], ...] = ()
    """The tables and columns that the query reads, as resolved by SQLite. The column is empty if only the number of rows
    matters."""
    seconds: float = field(default=0.0, compare=False)
    """Wall-clock time in seconds."""
    cpu_s: float = field(default=0.0, compare=False)
    """Processor time in seconds."""

    @property
    def ok(self) -> bool:
        """Whether the query succeeded."""
        return self.status is ToolStatus.OK


class SqlReader:
    """Runs queries, several at a time. It is safe to share between threads, and has no state that a query could change.

    Example:
        ```python
        with SqlReader() as reader:
            print(reader.run("shop.sqlite", "SELECT count(*) FROM orders").rows)
        ```
    """

    def __init__(self, *, cpu_s: float = 2.0, memory_mb: int = 64, workers: int | None = None) -> None:
        """Checks the limits. Workers are started when they are needed.

        Args:
            cpu_s: Default processor time limit of a query in seconds.
            memory_mb: Memory that SQLite may use for one query in MiB.
            workers: Largest number of processes; None uses one for each core.

        Raises:
            ConfigurationError: a limit is not above 0.
        """
        workers = workers or os.cpu_count() or 1
        if min(cpu_s, memory_mb, workers) <= 0:
            raise ConfigurationError(
                f"cpu_s={cpu_s}, memory_mb={memory_mb} and workers={workers} must be above 0"
            )
        self._cpu_s, self._memory_mb = cpu_s, memory_mb
        self._hang_timeout_s = _hang_timeout_s(cpu_s)
        self._slots = Slots(workers, GRACE_S)
        self._idle: list[_Worker] = []
        self._ids = itertools.count()

    def run(
        self,
        database: str | Path,
        query: str,
        *,
        rows: int = 1000,
        size: int = 1 << 20,
        cpu_s: float | None = None,
    ) -> SqlResult:
        """Runs one query on the file ``database``, which must not change meanwhile.

        Args:
            database: An SQLite file.
            query: The untrusted query. Its errors are results and are not raised.
            rows: Largest number of rows.
            size: Largest size of all cells in bytes.
            cpu_s: Processor time limit in seconds; None uses that of the reader.

        Raises:
            SandboxFault: the file cannot be read, or no worker is available.
        """
        # A longer query might not fit into the pipe, and writing to a worker that does not read would block.
        if len(query) > MAX_QUERY:
            text = f"the query has {len(query)} characters, {MAX_QUERY} at most"
            return SqlResult(ToolStatus.ERROR, error_class="TooLong", message=text)
        wall_s = self._hang_timeout_s if cpu_s is None else _hang_timeout_s(cpu_s)
        if not self._slots.take(max(0.0, wall_s - GRACE_S)):
            raise SandboxFault(f"no SQL worker came to an end {GRACE_S:g} s after it should have")
        try:
            uri = f"file:{urllib.parse.quote(str(Path(database).absolute()))}?mode=ro&immutable=1"
            order = {"uri": uri, "query": query, "rows": rows, "bytes": size, "cpu_s": cpu_s or self._cpu_s}
            result = self._ask(order, wall_s)
            # A worker may die of another cause; a query that ends two workers is itself the cause.
            return self._ask(order, wall_s) if result.error_class == "Crash" else result
        finally:
            self._slots.give()

    def _ask(self, order: dict[str, Any], wall_s: float) -> SqlResult:
        """Sends ``order`` to a worker, and ends a worker that does not answer or answers something else."""
        # The id distinguishes replies to this process from those to a fork of it that shares the pipe.
        order["id"] = f"{os.getpid()}-{next(self._ids)}"
        worker = self._take()
        try:
            reply = worker.ask(order, wall_s)
            if reply.pop("id") != order["id"]:
                raise SandboxFault("an SQL worker answered another query; make a reader of its own in a fork")
        except EOFError:
            return _crash_result(worker.end())
        except TimeoutError as error:
            worker.end()
            raise SandboxFault(
                f"an SQL worker was silent for {wall_s:g} s; is the machine overloaded?"
            ) from error
        except BaseException:
            worker.end()
            raise
        # Only a worker that has answered exactly this order is reused; the next answer of any other is unpredictable.
        self._idle.append(worker)
        return _result(reply, order["uri"])

    def _take(self) -> "_Worker":
        try:
            return self._idle.pop()
        except IndexError:
            return _Worker(self._memory_mb)

    def close(self) -> None:
        """Ends the idle workers. A later query starts new ones."""
        while self._idle:
            self._idle.pop().end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _hang_timeout_s(cpu_s: float) -> float:
    """Returns the wall-clock time after which a worker counts as hanging, for a query with ``cpu_s`` of processor time."""
    return 10 * cpu_s + GRACE_S


@functools.cache
def shared_reader() -> SqlReader:
    """Returns the reader that all environments of this process share."""
    reader = SqlReader()
    atexit.register(reader.close)
    return reader


class _Worker:
    """A child process with its pipes."""

    def __init__(self, memory_mb: int) -> None:
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(WORKER), str(memory_mb)],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={},
                cwd="/",
                start_new_session=True,  # an interrupt from the terminal is for the owner only
            )
        except OSError as error:
            raise SandboxFault(f"an SQL worker cannot be started: {error}") from error

    def ask(self, order: dict[str, Any], wall_s: float) -> dict[str, Any]:
        """Returns the reply to ``order``.

        Raises:
            EOFError: the process has ended.
            TimeoutError: there was no reply within ``wall_s`` seconds.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
        except OSError as error:
            raise EOFError from error
        reply: dict[str, Any] = json.loads(self._line(time.monotonic() + wall_s))
        return reply

    def _line(self, end: float) -> bytearray:
        assert self._process.stdout is not None
        pipe, ready, found = self._process.stdout.fileno(), select.poll(), bytearray()
        ready.register(pipe, select.POLLIN)
        # Polled, because a plain read would wait for a hanging worker for ever.
        while b"\n" not in found:
            if not ready.poll(max(0.0, end - time.monotonic()) * 1000):
                raise TimeoutError
            piece = os.read(pipe, 1 << 16)
            if not piece:
                raise EOFError
            found += piece
        return found.partition(b"\n")[0]

    def end(self) -> int:
        """Ends the process and closes the pipes; returns the exit code, which is negative for a signal."""
        assert self._process.stdin is not None
        # Its input is closed first: a worker that ends by itself has an exit code that shows the reason.
        self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)
        with self._process:
            self._process.kill()
        return self._process.returncode


def _crash_result(code: int) -> SqlResult:
    """Returns the result of a query that ended its worker."""
    if code == -signal.SIGXCPU:
        return SqlResult(ToolStatus.TIMEOUT, error_class="Timeout", message="the query took too long")
    if code > 0:
        raise SandboxFault(f"an SQL worker cannot work here (exit code {code})")
    return SqlResult(ToolStatus.ERROR, error_class="Crash", message="the query ended its process")


def _result(reply: dict[str, Any], uri: str) -> SqlResult:
    if "fault" in reply:
        raise SandboxFault(f"{uri} cannot be read: {reply['fault']}")
    if "error" in reply:
        status = ToolStatus.TIMEOUT if reply["error"] == "Timeout" else ToolStatus.ERROR
        return SqlResult(status, error_class=reply["error"], message=reply["message"])
    rows = tuple(tuple(_value(cell) for cell in row) for row in reply["rows"])
    reads = tuple((table, column) for table, column in reply["reads"])
    columns = tuple(reply["columns"])
    times = {name: reply[name] for name in ("seconds", "cpu_s")}
    return SqlResult(ToolStatus.OK, columns, rows, reply["more"], reads=reads, **times)


def _value(cell: Any) -> Value:
    value: Value = bytes.fromhex(cell["blob"]) if isinstance(cell, dict) else cell
    return value
