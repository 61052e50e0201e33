"""The executor with a pool of jails. Backends differ only in how a jail is started."""

import base64
import dataclasses
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from agentenv.core.concurrency.deadlines import bounded_by_call
from agentenv.errors import ConfigurationError, SandboxFault
from agentenv.sandbox.encoding import checked, packed, packed_call, result_of
from agentenv.sandbox.jail_session import JailSession, SessionGroup
from agentenv.sandbox.jails import Jail, JailDied
from agentenv.sandbox.labels import reap_orphans
from agentenv.sandbox.pool import Pool
from agentenv.sandbox.types import ExecResult, ExecStatus, ExecutionLimits, ExecutorInfo, FunctionCall

RETRIES = 2
SUPERVISOR_PROCESSES = 2
"""Number of processes besides those in a run's or session's limits: the supervisor, and the interpreters' template."""
SLACK_S = 15.0  # added to a run's own time limit, for a busy machine


class JailExecutor:
    """Runs programs in jails."""

    def __init__(
        self,
        info: ExecutorInfo,
        start: Callable[[], Jail],
        *,
        limits: ExecutionLimits | None = None,
        size: int = 2,
        slots: int | None = None,
        quota: int = 64,
        wait_s: float = 60.0,
        room: int | None = None,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        """Ends jails of dead owners and starts the pool.

        Args:
            info: The description of the executor.
            start: Starts one jail.
            limits: Default limits of runs and sessions.
            size: See ``Pool``.
            slots: See ``Pool``.
            quota: See ``Pool``.
            wait_s: See ``Pool``.
            room: Number of processes for which one jail has room; see ``Pool``.
            on_close: Called once after the last jail has ended.
        """
        self._info, self._limits, self._on_close = info, limits or ExecutionLimits(), on_close
        # Before the first jail starts, because orphaned jails use memory and processes that the new ones need.
        reap_orphans()
        self._pool = Pool(start, size=size, slots=slots, quota=quota, wait_s=wait_s, processes=room)
        self._lock = threading.Lock()
        self._closed = False

    def info(self) -> ExecutorInfo:
        """The name of the executor, and whether it isolates programs."""
        return self._info

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
        """See ``Executor``. If a jail breaks, it is replaced and the run repeated, at most twice."""
        limits = limits or self._limits
        order = {
            "op": "run",
            "code": code,
            "stdin": base64.b64encode(stdin.encode("utf-8", "surrogatepass")).decode(),
            "files": packed(files, limits),
            "collect": checked(collect),
            "calls": None if calls is None else [packed_call(call) for call in calls],
            "limits": dataclasses.asdict(limits),
            "variables": variables,
        }
        faults: list[str] = []
        while len(faults) <= RETRIES:
            try:
                with self._pool.slot(limits.wall_s) as queued:
                    answer = self._ask(domain, order, limits)
                return result_of(answer, queued, len(calls or ()))
            except (JailDied, SandboxFault) as error:
                # The run is repeated, which is harmless: a program has no effect outside of its jail.
                faults.append(str(error))
        return ExecResult(ExecStatus.SANDBOX_ERROR, fault="; ".join(dict.fromkeys(faults)))

    def _ask(self, domain: str, order: dict[str, Any], limits: ExecutionLimits) -> dict[str, Any]:
        channel = self._pool.channel(domain, limits.processes + SUPERVISOR_PROCESSES)
        wall_s = bounded_by_call(limits.wall_s)
        try:
            answer = channel.ask({**order, "limits": {**order["limits"], "wall_s": wall_s}}, wall_s + SLACK_S)
        finally:
            # Closed in any case, because an unused supervisor would keep the processes that are reserved for it.
            channel.close()
        if "refused_input" in answer:
            raise ConfigurationError(answer["refused_input"])
        if "fault" in answer:
            raise SandboxFault(answer["fault"])
        return answer

    def open(
        self,
        *,
        files: Mapping[str, bytes] | None = None,
        limits: ExecutionLimits | None = None,
        domain: str = "",
        snapshots: Literal["fork", "replay"] = "fork",
    ) -> JailSession:
        """See ``Executor``. Sessions that were dropped without being closed are ended first.

        Args:
            files: Written below its working folder before.
            limits: None takes the executor's own.
            domain: As for ``run``.
            snapshots: ``fork`` freezes the interpreter; ``replay`` keeps the cells and runs them again.

        Raises:
            SandboxFault: it could not be started.
        """
        self._pool.end_left()
        limits = limits or self._limits
        own = limits.snapshots + SUPERVISOR_PROCESSES
        group = SessionGroup(
            self._pool,
            lambda forks: self._pool.channel(domain, own + forks * limits.processes, session=True),
            limits,
            packed(files, limits),
            snapshots == "fork",
        )
        return JailSession(group)

    def warm(self) -> None:
        """Waits until the pool is warm.

        Raises:
            SandboxFault: a jail could not be started.
        """
        self._pool.warm()

    def close(self) -> None:
        """Ends every jail; a second call does nothing."""
        # Two threads may close at once, and `on_close` removes what the jails have in common.
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._pool.close()
        self._on_close()

    def __enter__(self) -> "JailExecutor":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
