"""Sessions: interpreters that can be rewound, with the record from which each state can be rebuilt."""

import base64
import contextlib
import dataclasses
import functools
import hashlib
import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

from agentenv.core.concurrency.deadlines import DeadlineAwareLock, bounded_by_call
from agentenv.errors import ConfigurationError, SandboxFault, SnapshotError, SnapshotRefused, StateLost
from agentenv.sandbox.encoding import checked, packed, result_of
from agentenv.sandbox.jails import Channel, JailDied
from agentenv.sandbox.pool import Pool
from agentenv.sandbox.types import ExecResult, ExecStatus, ExecutionLimits

SLACK_S = 15.0
REBUILD_S = 120.0
"""Time limit for all repeated cells of a rebuilt snapshot together; beyond it the state counts as lost."""
MIB = 1 << 20


@dataclass(frozen=True)
class Point:
    """One state of a session: the cell that led to it, the digest of its result, and the state before."""

    before: "Point | None" = None
    order: Mapping[str, Any] = field(default_factory=dict)
    digest: str = ""

    def path(self) -> list["Point"]:
        """Returns all states from the first one to this one."""
        points: list[Point] = []
        at: Point | None = self
        # A loop instead of recursion, because a session may have thousands of cells.
        while at is not None:
            points.append(at)
            at = at.before
        return points[::-1]


class JailSnapshot:
    """A state to which its session and that session's forks can return."""

    def __init__(self, group: "SessionGroup", point: Point, node: int | None, size: int) -> None:
        self.group, self.point, self.node, self.bytes = group, point, node, size
        self.pinned = False
        self.released = False

    def pin(self) -> None:
        """Prevents it from being dropped."""
        self.pinned = True

    def release(self) -> None:
        """Releases what it holds. A second call does nothing."""
        if not self.released:
            self.released = True
            self.group.forget(self)


class SessionGroup:
    """The shared part of a session and its forks: one supervisor with all their interpreters, and their snapshots."""

    def __init__(
        self,
        pool: Pool,
        channel: Callable[[int], Channel],
        limits: ExecutionLimits,
        files: dict[str, str],
        freezes: bool,
    ) -> None:
        self.pool, self.limits, self.freezes = pool, limits, freezes
        self._open_channel, self._files = channel, files
        # Guards channel, snapshots and count. Reentrant, because guarded methods call each other (`end` within `ask` within
        # `begin`).
        self._lock = DeadlineAwareLock()
        self._names = itertools.count(1)
        self._channel: Channel | None = None
        self._snapshots: list[JailSnapshot] = []
        self._sessions = 0

    def begin(self) -> int:
        """Starts a new, empty interpreter; makes a new supervisor if there is none or its template was lost.

        Programs can make the machine end the template, so the forks lost with it count as ended by a program.

        Raises:
            SandboxFault: the interpreter could not be started.
        """
        with self._lock:
            name = next(self._names)
            if self._start(name, replaces=False).get("template_gone"):
                self.end()
                self._start(name, replaces=True)
            return name

    def _start(self, name: int, *, replaces: bool) -> dict[str, Any]:
        if self._channel is None:
            try:
                # With the processes of all sessions in this group, because a new supervisor replaces one that had reserved
                # them.
                self._channel = self._open_channel(max(1, self._sessions))
            except JailDied as error:
                raise SandboxFault(f"a session cannot be started: {error}") from error
        limits = dataclasses.asdict(self.limits)
        return self.ask(
            {"op": "open", "node": name, "files": self._files, "limits": limits, "replaces": replaces}
        )

    def ask(self, order: dict[str, Any], timeout_s: float = SLACK_S) -> dict[str, Any]:
        """Sends one order to the supervisor and returns the answer.

        Raises:
            ConfigurationError: a file cannot be written.
            SandboxFault: the supervisor has ended, or failed.
        """
        with self._lock:
            if self._channel is None:
                raise SandboxFault("the session has ended")
            try:
                answer = self._channel.ask(order, timeout_s)
            except JailDied as error:
                self.end()
                raise SandboxFault(f"the session's jail broke: {error}") from error
        if "refused_input" in answer:
            raise ConfigurationError(answer["refused_input"])
        if "fault" in answer:
            raise SandboxFault(answer["fault"])
        return answer

    def turn(self) -> contextlib.AbstractContextManager[object]:
        """Returns a lock to hold while a cell runs, because forks of one session take turns."""
        return self._lock

    def child_of(self, node: int, left: Sequence[int] = ()) -> tuple[int, int]:
        """Continues from ``node`` in a new interpreter, and freezes ``node``; also returns the bytes that ``node`` holds.

        The nodes in ``left`` are ended before.

        Raises:
            SnapshotRefused: the interpreter cannot be captured in its present state.
        """
        name = next(self._names)
        answer = self.ask({"op": "fork", "node": node, "child": name, "left": list(left)})
        if reason := answer.get("refused"):
            raise SnapshotRefused(f"the session cannot be captured: {reason}")
        # A fork changes all sizes, because memory that a node shares with its children counts by shares.
        sizes = dict(answer["sizes"])
        for snapshot in self._snapshots:
            snapshot.bytes = sizes.get(snapshot.node, snapshot.bytes)
        return name, sizes[node]

    def keep(self, snapshot: JailSnapshot) -> None:
        """Registers a snapshot, and drops older ones if there are too many."""
        with self._lock:
            if snapshot not in self._snapshots:
                self._snapshots.append(snapshot)
            while (live := self._live()) and (
                len(live) > self.limits.snapshots
                or sum(one.bytes for one in live) > self.limits.snapshot_mb * MIB
            ):
                # Only its interpreter ends; the cells that led to it are kept, and can rebuild it.
                victim = snapshot_to_drop(live)
                if victim is None:
                    break
                self.drop(victim)

    def _live(self) -> list[JailSnapshot]:
        return [one for one in self._snapshots if one.node is not None]

    def drop(self, snapshot: JailSnapshot) -> None:
        """Ends the interpreter of a snapshot, which can be rebuilt."""
        if snapshot.node is not None and self._channel is not None:
            self.ask({"op": "kill", "nodes": [snapshot.node]})
        snapshot.node, snapshot.bytes = None, 0

    def forget(self, snapshot: JailSnapshot) -> None:
        """Removes a released snapshot from the list."""
        with self._lock:
            if snapshot in self._snapshots:
                self._snapshots.remove(snapshot)
                try:
                    self.drop(snapshot)
                except SandboxFault:
                    snapshot.node = None

    def lost(self, nodes: Sequence[int]) -> None:
        """Marks snapshots whose interpreters a program destroyed; they are rebuilt on demand."""
        for snapshot in self._snapshots:
            if snapshot.node in nodes:
                snapshot.node, snapshot.bytes = None, 0

    def nearest(self, point: Point) -> tuple[JailSnapshot | None, list[Point]]:
        """Returns the latest live snapshot on the path to ``point``, and the states after it."""
        path = point.path()
        for cut in range(len(path), 0, -1):
            for snapshot in self._live():
                if snapshot.point is path[cut - 1]:
                    return snapshot, path[cut:]
        return None, path[1:]

    def join(self) -> bool:
        """Registers one more session in this group, and reserves its processes.

        Returns False if the jail has no room for a fork's processes.
        """
        with self._lock:
            # the first session's processes are reserved with the channel
            channel = self._channel if self._sessions else None
            if channel is not None and not self.pool.enlarge(channel, self.limits.processes):
                return False
            self._sessions += 1
            return True

    def leave(self) -> None:
        """Returns what ``join`` reserved. The last session to leave ends the group."""
        with self._lock:
            self._sessions -= 1
            # The channel is closed with the last fork, because the first session may be closed long before its forks.
            if self._sessions == 0:
                self.end()
            elif self._channel is not None:
                self._channel.processes -= self.limits.processes

    def end(self) -> None:
        """Ends the supervisor with everything in it."""
        with self._lock:
            if self._channel is not None:
                self._channel.close()
                self._channel = None
            for snapshot in self._snapshots:
                snapshot.node, snapshot.bytes = None, 0


def snapshot_to_drop(live: list[JailSnapshot]) -> JailSnapshot | None:
    """Chooses the snapshot to drop: never the first, newest or pinned ones; every second of the others, oldest first."""
    free = [index for index in range(1, len(live) - 1) if not live[index].pinned]
    # Every second one, so that the remaining ones are spread over the session and none is far from a live one.
    odd = [index for index in free if index % 2]
    return live[(odd or free)[0]] if free else None


class JailSession:
    """One interpreter with its files. Its forks are separate sessions."""

    def __init__(self, group: SessionGroup, point: Point | None = None, node: int | None = None) -> None:
        """Starts a new interpreter, or takes over ``node`` at ``point`` for a session that has joined its group."""
        self._group = group
        self._point = point or Point()
        self._node: int | None = group.begin() if node is None else node
        self._closed = False
        self._owner = os.getpid()
        self._unreported_loss: ExecResult | None = None
        """The result of the next cell if the state was lost and no result has reported that yet; until then, no new
        interpreter may answer."""
        if node is None:
            group.join()

    def run(
        self,
        code: str,
        *,
        files: Mapping[str, bytes] | None = None,
        collect: Sequence[str] = (),
        wall_s: float | None = None,
        variables: bool = False,
    ) -> ExecResult:
        """Runs one cell; see ``Session``. If it kills the interpreter, a new, empty one is started."""
        self._check_open()
        order = {
            "op": "cell",
            "code": code,
            "files": packed(files, self._group.limits),
            "collect": checked(collect),
            "wall_s": wall_s or self._group.limits.wall_s,
            "variables": variables,
        }
        # Reported before anything runs, because in a new interpreter the cell would fail on missing names.
        if (untold := self._unreported_loss) is not None:
            self._unreported_loss = None
            return untold
        try:
            if self._node is None:
                self._node = self._group.begin()
                self._point = Point()
            return self._cell(order)[0]
        except SandboxFault as error:
            self._node = None
            return ExecResult(ExecStatus.SANDBOX_ERROR, fault=str(error), state_lost=True)

    def _cell(self, order: dict[str, Any]) -> tuple[ExecResult, str]:
        """Runs a cell in the present interpreter and records it; also returns the digest of its result."""
        began = time.monotonic()
        with self._group.turn(), self._group.pool.slot(order["wall_s"]):
            queued = time.monotonic() - began
            wall_s = bounded_by_call(order["wall_s"])
            answer = self._group.ask({**order, "node": self._node, "wall_s": wall_s}, wall_s + SLACK_S)
        self._group.lost(answer["lost"])
        if not answer["alive"]:
            self._node = None
        # Compared by a replay; without stderr and times, which may differ although the state does not.
        text = f"{answer['status']}\n{answer['stdout']}\n{answer['value']}\n{answer['digest']}"
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        self._point = Point(self._point, order, digest)
        return result_of(answer, queued), digest

    def _check_open(self) -> None:
        if self._closed:
            raise SandboxFault("this session is closed")

    def snapshot(self) -> JailSnapshot:
        """Freezes the interpreter and continues in a child of it; see ``Session``.

        Raises:
            SnapshotRefused: threads, child processes or open files prevent a sound fork, or there is no interpreter.
        """
        self._check_open()
        if self._node is None:
            raise SnapshotRefused(
                "the session cannot be captured: its interpreter died; run a cell to start a new one"
            )
        if not self._group.freezes:
            return JailSnapshot(self._group, self._point, None, 0)
        child, size = self._group.child_of(self._node)
        snapshot = JailSnapshot(self._group, self._point, self._node, size)
        # The frozen interpreter becomes the snapshot, and the session continues in its child.
        self._node = child
        self._group.keep(snapshot)
        return snapshot

    def restore(self, snapshot: JailSnapshot) -> None:
        """Returns to a snapshot; see ``Session``. If it cannot, the next result reports that the state is lost."""
        self._check_open()
        if snapshot.group is not self._group:
            raise SnapshotError("this snapshot belongs to another session")
        if snapshot.released:
            raise SnapshotError("this snapshot was released")
        # Set before the attempt: a fault meanwhile leaves the session without its state, which the next result must report.
        self._unreported_loss = ExecResult(
            ExecStatus.SANDBOX_ERROR,
            fault="the state was lost when the session could not be restored",
            state_lost=True,
        )
        try:
            self._enter(snapshot)
        except StateLost:
            self._unreported_loss = ExecResult(ExecStatus.KILLED, state_lost=True)
            raise
        self._unreported_loss = None

    def _leave(self) -> None:
        if self._node is not None:
            self._group.ask({"op": "kill", "nodes": [self._node]})
            self._node = None

    def _enter(self, snapshot: JailSnapshot) -> None:
        """Continues from ``snapshot``, which is rebuilt if its interpreter has ended."""
        if snapshot.node is not None:
            left = [] if self._node is None else [self._node]
            self._node = None
            try:
                self._node, _ = self._group.child_of(snapshot.node, left)
            except SnapshotRefused:  # a timer or another effect of its program has ended it
                self._group.drop(snapshot)
        if snapshot.node is None:
            self._leave()
            self._rebuild(snapshot)
        self._point = snapshot.point

    def _rebuild(self, snapshot: JailSnapshot) -> None:
        """Repeats the cells since the nearest live snapshot and compares their results.

        Raises:
            StateLost: a result differs, or the cells take too long.
        """
        missing = self._enter_nearest(snapshot.point)
        # One deadline for all cells together; each one may take as long as it did before.
        end = time.monotonic() + bounded_by_call(REBUILD_S)
        for number, point in enumerate(missing, 1):
            _, digest = self._cell(dict(point.order))
            if digest != point.digest or self._node is None or time.monotonic() > end:
                self._leave()
                raise StateLost(
                    f"cell {number} of {len(missing)} that were run again showed something else or came too late; a "
                    "program that reads time or randomness can only be rewound to a live snapshot"
                )
        if self._group.freezes and self._node is not None:
            self._freeze_again(snapshot, self._node)

    def _enter_nearest(self, point: Point) -> list[Point]:
        """Continues from the latest live snapshot on the path to ``point``; returns the states after it."""
        while True:
            start, missing = self._group.nearest(point)
            if start is None or start.node is None:
                self._node, self._point = self._group.begin(), point.path()[0]
                return missing
            try:
                self._node, _ = self._group.child_of(start.node)
            except SnapshotRefused:  # an effect of its program prevents it from forking
                self._group.drop(start)
            else:
                self._point = start.point
                return missing

    def _freeze_again(self, snapshot: JailSnapshot, node: int) -> None:
        """Freezes the interpreter that was rebuilt for ``snapshot`` as its new node, if it can be frozen."""
        try:
            self._node, snapshot.bytes = self._group.child_of(node)
        except SnapshotRefused:  # the state is right, but has to be rebuilt next time
            return
        snapshot.node = node
        self._group.keep(snapshot)

    @overload
    def fork(self) -> "JailSession": ...
    @overload
    def fork(self, n: int) -> "list[JailSession]": ...
    def fork(self, n: int | None = None) -> "JailSession | list[JailSession]":
        """Makes one copy, or a list of ``n``, in the present state; they take turns with this session.

        Raises:
            SnapshotRefused: see ``snapshot``.
        """
        snapshot = self.snapshot()
        forks: list[JailSession] = []
        try:
            for _ in range(1 if n is None else n):
                forks.append(self._fork_at(snapshot))
        except BaseException:
            for fork in forks:
                fork.close()
            raise
        finally:
            snapshot.release()
        return forks[0] if n is None else forks

    def _fork_at(self, snapshot: JailSnapshot) -> "JailSession":
        """Forks ``snapshot`` in this group, or rebuilds it in another jail if this one lacks room for its processes."""
        # Joined before the fork, so that the copy's processes are reserved before they exist.
        if snapshot.node is None or not self._group.join():
            return self._fork_in_new_group(snapshot.point)
        try:
            child, _ = self._group.child_of(snapshot.node)
        except BaseException:
            self._group.leave()
            raise
        return JailSession(self._group, snapshot.point, child)

    def _fork_in_new_group(self, point: Point) -> "JailSession":
        old = self._group
        group = SessionGroup(old.pool, old._open_channel, old.limits, old._files, old.freezes)
        twin, snapshot = JailSession(group), JailSnapshot(group, point, None, 0)
        try:
            twin.restore(snapshot)
            snapshot.release()
        except BaseException as error:
            twin.close()
            if isinstance(error, StateLost):
                raise SnapshotRefused(f"the session cannot be forked: {error}") from error
            raise
        return twin

    def read(self, *names: str) -> dict[str, bytes]:
        """Reads the named files; missing and non-regular ones are left out."""
        answer = self._group.ask({"op": "files", "node": self._node, "collect": list(names)})
        return {name: base64.b64decode(content) for name, content in answer["files"].items()}

    def close(self) -> None:
        """Ends the interpreter. A second call does nothing."""
        if not self._closed:
            self._closed = True
            node, self._node = self._node, None
            _end(self._group, node)

    def __del__(self) -> None:
        """Schedules the end of a session that was never closed; not directly, because this thread may hold a lock."""
        # A session that failed to start lacks these attributes, and a forked process must not end its parent's.
        if not self.__dict__.get("_closed", True) and self._owner == os.getpid():
            self._group.pool.end_later(functools.partial(_end, self._group, self._node))

    def __enter__(self) -> "JailSession":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _end(group: SessionGroup, node: int | None) -> None:
    """Ends a session of ``group`` and its interpreter ``node``."""
    if node is not None:
        with contextlib.suppress(SandboxFault):
            group.ask({"op": "kill", "nodes": [node]})
    group.leave()
