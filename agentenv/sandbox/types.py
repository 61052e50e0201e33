"""The types of a sandbox: limits, results, and the protocols that every backend implements."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, Self, overload, runtime_checkable

from agentenv.errors import ConfigurationError

MAX_SECONDS = 10**9
MAX_COUNT = 2**40
"""Larger limits would exceed the numbers that the system accepts."""


class ExecStatus(StrEnum):
    """How a run ended. The program causes all values except the last."""

    OK = "ok"
    ERROR = "error"  # an exception, or an exit code other than 0
    TIMEOUT = "timeout"  # wall-clock or processor time limit exceeded
    OOM = "oom"  # more memory than the limit
    OUTPUT_LIMIT = "output_limit"  # more output than a program may write
    KILLED = "killed"  # by a signal that the program caused
    SANDBOX_ERROR = "sandbox_error"  # infrastructure failure: the episode is masked and never scored


@dataclass(frozen=True, slots=True)
class ExecutionLimits:
    """The limits of one run or one session."""

    wall_s: float = 10.0
    """Wall-clock seconds of a run or a cell; waiting for a free jail does not count."""
    cpu_s: float = 5.0
    """Processor seconds of one process of a run; sessions have no such limit."""
    memory_mb: int = 256
    """Memory of all processes of a run together in MiB, and of the address space that each may add."""
    processes: int = 64
    """Processes and threads at a time."""
    output_bytes: int = 65536
    """Bytes of stdout, and the same for stderr, that are kept: head and tail."""
    hard_output_bytes: int = 1 << 20
    """Bytes of one stream after which the run is ended."""
    file_mb: int = 8
    """MiB of one file."""
    disk_mb: int = 16
    """MiB of all files together."""
    open_files: int = 64
    """Open descriptors of one process."""
    snapshots: int = 32
    """Live snapshots of a session; older ones are dropped and rebuilt on demand."""
    snapshot_mb: int = 1024
    """Memory that a session's live snapshots may use together in MiB, excluding what they share with the session."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value, most = getattr(self, name), MAX_SECONDS if name.endswith("_s") else MAX_COUNT
            if not 0 < value <= most:
                raise ConfigurationError(f"limit {name}={value} must be above 0 and at most {most:,}")


@dataclass(frozen=True, slots=True)
class ProgramError:
    """The exception that ended a cell."""

    type: str
    message: str
    line: int
    """The line in the cell; 0 if unknown."""


@dataclass(frozen=True, slots=True)
class ExecResult:
    """The result of a run or a cell."""

    status: ExecStatus
    stdout: str = ""
    stderr: str = ""
    value: str | None = None
    """The value of a cell's last expression, as formatted by repr()."""
    error: ProgramError | None = None
    """The exception that ended a cell, if any."""
    exit_code: int | None = None
    signal: int | None = None
    truncated: bool = False
    """Whether the middle of stdout or stderr is missing."""
    # One line per completed call, as the program wrote it; see ``plain.decode``.
    returned: tuple[str, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    """Requested files that could not be returned, with the reason."""
    state_lost: bool = False
    """Whether the interpreter died; the next cell starts a new one."""
    lost_snapshots: int = 0
    """Number of snapshots that the program of this cell destroyed."""
    wall_s: float = 0.0
    cpu_s: float = 0.0
    queue_s: float = 0.0
    """Seconds that the run waited for a free jail; no limit includes them."""
    memory_mb: float = 0.0
    fault: str = ""
    """The error, if the status is ``sandbox_error``."""

    @property
    def ok(self) -> bool:
        """Whether the program ran to its end without error."""
        return self.status is ExecStatus.OK


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A function of the program to call, with plain values as arguments.

    ``C.m`` is the method ``m`` of a new object of class ``C``.
    """

    function: str
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class ExecutorInfo:
    """The description of a backend."""

    name: str
    isolated: bool


@runtime_checkable
class ExecutorSnapshot(Protocol):
    """A state to which a session can return."""

    @property
    def bytes(self) -> int:
        """Upper bound of the bytes of memory and files that only it uses; measured once all of a session may be too many."""

    def pin(self) -> None:
        """Prevents it from being dropped."""

    def release(self) -> None:
        """Releases what it holds. A second call does nothing."""


@runtime_checkable
class ExecutorSession(Protocol):
    """An interpreter with files that keeps its state from cell to cell."""

    def run(
        self,
        code: str,
        *,
        files: Mapping[str, bytes] | None = None,
        collect: Sequence[str] = (),
        wall_s: float | None = None,
        variables: bool = False,
    ) -> ExecResult:
        """Runs one cell.

        Args:
            code: The cell. If it ends in an expression, the result contains its value.
            files: Files to write below the working folder first. If earlier cells prevent that, the result has the status
                ``error`` and the cell does not run.
            collect: Relative paths of files to read afterwards.
            wall_s: Time limit in seconds; None uses that of the session.
            variables: Whether stderr shows the variables on the line of an uncaught exception.

        Raises:
            ConfigurationError: a path is not relative, or the files exceed the disk limit.
            SandboxFault: the session is closed. A failure of the sandbox is a result with the status ``sandbox_error``.
        """

    def snapshot(self) -> ExecutorSnapshot:
        """Captures interpreter and files.

        Raises:
            SnapshotRefused: threads, child processes or open files prevent a sound capture.
        """

    def restore(self, snapshot: Any) -> None:
        """Returns to a snapshot, which stays usable.

        Raises:
            SnapshotError: it belongs to another session or was released.
            StateLost: the program destroyed the snapshot, and it could not be rebuilt. The session is then empty, and its
                next result reports this: ``killed`` with ``state_lost``, without running its cell.
            SandboxFault: the sandbox failed.
        """

    @overload
    def fork(self) -> Self: ...
    @overload
    def fork(self, n: int) -> list[Self]: ...
    def fork(self, n: int | None = None) -> Self | list[Self]:
        """Makes one copy, or a list of ``n``, in the present state."""

    def close(self) -> None:
        """Ends the interpreter. A second call does nothing."""


@runtime_checkable
class Executor(Protocol):
    """Runs untrusted programs."""

    def run(
        self,
        code: str,
        *,
        stdin: str = "",
        files: Mapping[str, bytes] | None = None,
        collect: Sequence[str] = (),
        calls: Sequence[FunctionCall] | None = None,
        limits: ExecutionLimits | None = None,
        variables: bool = False,
        domain: str = "",
    ) -> ExecResult:
        """Runs a whole Python program in an empty, private environment, of which nothing remains.

        Args:
            code: The program.
            stdin: The text on its standard input.
            files: Files to write below its working folder first.
            collect: Relative paths of files to read afterwards; only regular files within the limits.
            calls: Functions to call after the program has run. It is then imported, so that the part below ``if __name__ ==
                "__main__":`` does not run. None runs it as the main program.
            limits: The limits; None uses those of the executor.
            variables: Whether stderr shows the variables on the line of an uncaught exception, also in a call.
            domain: The trust domain. Programs of different domains are never in the same jail.

        Returns:
            The result of the program; nothing that a program can do raises an exception. A failure of the sandbox is a
            result with the status ``sandbox_error``.

        Raises:
            ConfigurationError: a path or an argument cannot be sent.
        """

    def open(
        self,
        *,
        files: Mapping[str, bytes] | None = None,
        limits: ExecutionLimits | None = None,
        domain: str = "",
    ) -> ExecutorSession:
        """Starts an interpreter.

        Raises:
            SandboxFault: it could not be started.
        """

    def info(self) -> ExecutorInfo:
        """Returns the name of the executor, and whether it isolates programs."""

    def close(self) -> None:
        """Ends every jail. A second call does nothing."""
