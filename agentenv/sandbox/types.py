"""What a sandbox takes and gives: limits, results, and the two protocols that every backend implements."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, Self, overload, runtime_checkable

from agentenv.errors import ConfigurationError

MAX_SECONDS = 10**9
MAX_COUNT = 2**40
"""Beyond them the limits leave the numbers that the system takes."""


class ExecStatus(StrEnum):
    """How a run ended. Every value but the last is the program's own doing."""

    OK = "ok"
    ERROR = "error"  # an exception, or an exit code other than 0
    TIMEOUT = "timeout"  # of wall or processor time
    OOM = "oom"  # more memory than the limit
    OUTPUT_LIMIT = "output_limit"  # more output than a program may write
    KILLED = "killed"  # by a signal that it brought upon itself
    SANDBOX_ERROR = "sandbox_error"  # ours: the sample is masked, never scored


@dataclass(frozen=True, slots=True)
class ExecutionLimits:
    """What one run, or one session, may use."""

    wall_s: float = 10.0
    """Seconds of a run or a cell, by the clock; waiting for a free jail does not count."""
    cpu_s: float = 5.0
    """Processor seconds of one process of a run; a session has no such limit."""
    memory_mb: int = 256
    """MiB of all processes of a run together, and of the address space that each may add."""
    processes: int = 64
    """Processes and threads at a time."""
    output_bytes: int = 65536
    """Bytes of stdout, and again of stderr, that are kept: head and tail."""
    hard_output_bytes: int = 1 << 20
    """Bytes of one stream after which the run is ended."""
    file_mb: int = 8
    """MiB of one file."""
    disk_mb: int = 16
    """MiB of all files together."""
    open_files: int = 64
    """Open descriptors of one process."""
    snapshots: int = 32
    """Live snapshots of a session; older ones are thinned out and rebuilt when asked for."""
    snapshot_mb: int = 1024
    """MiB that the live snapshots of a session may hold together, beyond what they share with it."""

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
    """Line of the cell; 0 where it is not known."""


@dataclass(frozen=True, slots=True)
class ExecResult:
    """What a run or a cell did."""

    status: ExecStatus
    stdout: str = ""
    stderr: str = ""
    value: str | None = None
    """Value of a cell's last expression, as repr() gives it."""
    error: ProgramError | None = None
    """The exception that ended a cell."""
    exit_code: int | None = None
    signal: int | None = None
    truncated: bool = False
    """Whether the middle of stdout or stderr is missing."""
    # A line for each call that was answered, as the program wrote it: see ``plain.decode``.
    returned: tuple[str, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    """Files that were asked for and did not leave the sandbox, with the reason."""
    state_lost: bool = False
    """Whether the interpreter died; the next cell starts a new one."""
    lost_snapshots: int = 0
    """Snapshots that the program of this cell destroyed."""
    wall_s: float = 0.0
    cpu_s: float = 0.0
    queue_s: float = 0.0
    """Seconds that the run waited for a free jail; no limit counts them."""
    memory_mb: float = 0.0
    fault: str = ""
    """What went wrong, where the status is ``sandbox_error``."""

    @property
    def ok(self) -> bool:
        """Whether the program ran to its end without error."""
        return self.status is ExecStatus.OK


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A function of the program to be called, and its arguments, plain values only.

    ``C.m`` names the method ``m`` of a new object of class ``C``.
    """

    function: str
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class ExecutorInfo:
    """What a backend says about itself."""

    name: str
    isolated: bool


@runtime_checkable
class ExecutorSnapshot(Protocol):
    """A point in a session's life that it can go back to."""

    @property
    def bytes(self) -> int:
        """Bytes of memory and files that it holds for itself, at most; measured once all of a session may be too many."""

    def pin(self) -> None:
        """Keeps it from being thinned out."""

    def release(self) -> None:
        """Gives up what it holds; a second call does nothing."""


@runtime_checkable
class ExecutorSession(Protocol):
    """An interpreter that keeps its state from cell to cell, with files beside it."""

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
            code: The cell; where it ends in an expression, its value is shown.
            files: Written below the working folder before. What an earlier cell put in their way is a result of status
                ``error``, without the cell.
            collect: Relative paths to read after.
            wall_s: Seconds; None takes the session's limit.
            variables: Whether stderr shows the variables on the line of an uncaught exception.

        Raises:
            ConfigurationError: a path that is not relative, or more files than the disk holds.
            SandboxFault: the session is closed. A sandbox that breaks is a result of status ``sandbox_error``.
        """

    def snapshot(self) -> ExecutorSnapshot:
        """Freezes interpreter and files.

        Raises:
            SnapshotRefused: threads, child processes or open files make it unsound.
        """

    def restore(self, snapshot: Any) -> None:
        """Goes back; the snapshot stays usable.

        Raises:
            SnapshotError: it belongs to another session or was released.
            StateLost: the program destroyed it, and it could not be built again. The session is empty then, and its next
                result says so: ``killed`` with ``state_lost``, without its cell.
            SandboxFault: the sandbox failed.
        """

    @overload
    def fork(self) -> Self: ...
    @overload
    def fork(self, n: int) -> list[Self]: ...
    def fork(self, n: int | None = None) -> Self | list[Self]:
        """One twin, or ``n``, in the present state."""

    def close(self) -> None:
        """Ends the interpreter; a second call does nothing."""


@runtime_checkable
class Executor(Protocol):
    """A place where untrusted programs run."""

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
        """Runs one whole Python program in an empty corner of its own; nothing of it stays.

        Args:
            code: The program.
            stdin: What it can read from its standard input.
            files: Written below its working folder before.
            collect: Relative paths to read after; regular files within the limits only.
            calls: Functions to call once the program has run; it is then imported, so that nothing below
                ``if __name__ == "__main__":`` is run. None starts it.
            limits: None takes the executor's own.
            variables: Whether stderr shows the variables on the line of an uncaught exception, that of a call included.
            domain: Programs of different trust domains never meet in one jail.

        Returns:
            What the program did; never raises for anything that a program can do. A failure of the sandbox is a result
            too, of status ``sandbox_error``.

        Raises:
            ConfigurationError: a path or an argument that cannot be sent.
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
        """The name of the executor, and whether it isolates programs."""

    def close(self) -> None:
        """Ends every jail; a second call does nothing."""
