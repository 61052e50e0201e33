"""An executor for tests of environments, which runs programs in this process, quickly and without any isolation."""

import builtins
import contextlib
import copy
import io
import linecache
from collections.abc import Mapping, Sequence
from typing import Any, overload

from agentenv.errors import SandboxFault, SnapshotError
from agentenv.sandbox.jail import frames, plain
from agentenv.sandbox.jail.worker import IMPORTED, answer_call, report, split_cell
from agentenv.sandbox.types import (
    ExecResult,
    ExecStatus,
    ExecutionLimits,
    ExecutorInfo,
    FunctionCall,
    ProgramError,
)


class FakeExecutor:
    """Must never run untrusted programs. The first ``faults`` runs return ``sandbox_error``."""

    def __init__(self, *, faults: int = 0) -> None:
        self.faults = faults
        self.programs: list[str] = []
        """Every program and cell so far, in order."""
        self.closed = False

    def info(self) -> ExecutorInfo:
        """The name of the executor, and that it isolates nothing."""
        return ExecutorInfo("fake", isolated=False)

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
        """Runs ``code`` in this process. Files are virtual, and programs access them through ``open``."""
        session = FakeSession(self, files)
        session.stdin, session.calls = stdin, calls
        return session.run(code, collect=collect, variables=variables)

    def open(
        self,
        *,
        files: Mapping[str, bytes] | None = None,
        limits: ExecutionLimits | None = None,
        domain: str = "",
    ) -> "FakeSession":
        """Opens a session in this process."""
        return FakeSession(self, files)

    def close(self) -> None:
        """Records that it was closed."""
        self.closed = True


class _VirtualFile(io.StringIO):
    """A virtual file that is stored when it is closed."""

    def __init__(self, files: dict[str, bytes], name: str, mode: str) -> None:
        before = files.get(name, b"").decode() if "w" not in mode else ""
        super().__init__(before)
        self._files, self._name, self._writes = files, name, mode != "r"
        if "a" in mode:
            self.seek(0, io.SEEK_END)

    def __deepcopy__(self, _: object) -> "_VirtualFile":
        return self

    def close(self) -> None:
        if self._writes and not self.closed:
            self._files[self._name] = self.getvalue().encode()
        super().close()


class FakeSnapshot:
    """A deep copy of names and files."""

    def __init__(self, owner: "FakeSession", state: Any) -> None:
        self.owner, self.state = owner, state
        self.bytes = 0

    def pin(self) -> None:
        """Does nothing, because snapshots are never dropped here."""

    def release(self) -> None:
        """Drops the copy."""
        self.state = None


class FakeSession:
    """Names and virtual files that can be copied."""

    def __init__(self, executor: FakeExecutor, files: Mapping[str, bytes] | None = None) -> None:
        self._executor = executor
        self.names: dict[str, Any] = {}
        self.files = dict(files or {})
        self.stdin = ""
        self.calls: Sequence[FunctionCall] | None = None
        self.closed = False

    def run(
        self,
        code: str,
        *,
        files: Mapping[str, bytes] | None = None,
        collect: Sequence[str] = (),
        wall_s: float | None = None,
        variables: bool = False,
    ) -> ExecResult:
        """Runs one cell in this process."""
        if self.closed:
            raise SandboxFault("this session is closed")
        self._executor.programs.append(code)
        if self._executor.faults:
            self._executor.faults -= 1
            return ExecResult(ExecStatus.SANDBOX_ERROR, fault="a scripted fault")
        self.files |= files or {}
        out, err, reader = io.StringIO(), io.StringIO(), io.StringIO(self.stdin)
        name = "__main__" if self.calls is None else IMPORTED
        scope: dict[str, Any] = {"__name__": name, "__builtins__": self._builtins(reader), **self.names}
        value, error, code_given, returned = None, None, 0, []
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                value = _execute(code, scope)
                for call in self.calls or ():
                    arguments = plain.dump(call.arguments)
                    returned.append(answer_call(scope, call.function, arguments, variables=variables))
                    variables = variables and "e" not in returned[-1]
            except SystemExit as stop:
                code_given = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
            except BaseException as raised:
                code_given, error = 1, ProgramError(**report(raised, ("main.py",), variables=variables))
        self.names = {name: kept for name, kept in scope.items() if not name.startswith("__")}
        asked = {name: self.files.get(name) for name in collect}
        return ExecResult(
            ExecStatus.ERROR if code_given else ExecStatus.OK,
            out.getvalue(),
            err.getvalue(),
            value=value,
            error=error,
            exit_code=code_given,
            returned=tuple(frames.encode(document).decode() for document in returned),
            files={name: content for name, content in asked.items() if content is not None},
            refused={name: "missing" for name, content in asked.items() if content is None},
        )

    def _builtins(self, reader: io.StringIO) -> dict[str, Any]:
        def open_kept(name: str, mode: str = "r", **_: Any) -> _VirtualFile:
            if mode == "r" and name not in self.files:
                raise FileNotFoundError(name)
            return _VirtualFile(self.files, name, mode)

        def read_line(prompt: str = "") -> str:
            line = reader.readline()
            if not line:
                raise EOFError
            return line.rstrip("\n")

        return {**vars(builtins), "open": open_kept, "input": read_line}

    def snapshot(self) -> FakeSnapshot:
        """Copies names and files."""
        return FakeSnapshot(self, copy.deepcopy((self.names, self.files)))

    def restore(self, snapshot: FakeSnapshot) -> None:
        """Returns to a snapshot."""
        if snapshot.owner is not self or snapshot.state is None:
            raise SnapshotError("this snapshot was released, or belongs to another session")
        self.names, self.files = copy.deepcopy(snapshot.state)

    @overload
    def fork(self) -> "FakeSession": ...
    @overload
    def fork(self, n: int) -> "list[FakeSession]": ...
    def fork(self, n: int | None = None) -> "FakeSession | list[FakeSession]":
        """Returns one copy, or a list of ``n``."""
        twins = [FakeSession(self._executor) for _ in range(1 if n is None else n)]
        for twin in twins:
            twin.names, twin.files = copy.deepcopy((self.names, self.files))
        return twins[0] if n is None else twins

    def close(self) -> None:
        """Records that it was closed."""
        self.closed = True


def _execute(code: str, scope: dict[str, Any]) -> str | None:
    linecache.cache["main.py"] = (len(code), None, code.splitlines(keepends=True), "main.py")
    body, last = split_cell(code, "main.py")
    exec(body, scope)
    value = eval(last, scope) if last is not None else None
    return None if value is None else repr(value)
