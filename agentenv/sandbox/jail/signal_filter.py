"""Decides which processes of a session may get signals: a program reaches its own, but no snapshot and no other fork."""

import os
import platform
import signal
from collections.abc import Callable
from typing import NamedTuple

from agentenv.sandbox.jail import kernel
from agentenv.sandbox.jail.kernel import CLONE, CLONE_PARENT
from agentenv.sandbox.jail.watch import group_of, processes, stat_of

# tgkill and rt_tgsigqueueinfo have the process as first and the thread as second argument; tkill has a thread.
SIGNAL_CALLS = {
    "x86_64": {62: "kill", 200: "tkill", 234: "tgkill", 129: "rt_sigqueueinfo", 297: "rt_tgsigqueueinfo"},
    "aarch64": {129: "kill", 130: "tkill", 131: "tgkill", 138: "rt_sigqueueinfo", 240: "rt_tgsigqueueinfo"},
}
NAMES = SIGNAL_CALLS[platform.machine()]
MAX_DEPTH = 200


class SignalFilter:
    """Tracks the interpreters of a session and decides every system call that sends a signal.

    The kernel holds such a call until the supervisor has answered (seccomp's user notification). Its arguments are numbers
    in registers, so they cannot be changed between the decision and the call.
    """

    def __init__(self, node_pids: Callable[[], set[int]], template: int) -> None:
        """``node_pids`` returns the present interpreters; ``template`` is the process whose children they are."""
        self._node_pids, self._template = node_pids, template
        self.forking = 0
        """The interpreter that may fork a sibling of itself, once."""

    def answer(self, listener: int) -> None:
        """Decides the next waiting call."""
        waiting = kernel.receive_notification(listener)
        if waiting is not None:
            allowed = self.allows(waiting.pid, waiting.number, waiting.arguments)
            kernel.answer_notification(listener, waiting, allow=allowed)

    def allows(self, caller: int, number: int, arguments: tuple[int, ...]) -> bool:
        """Whether ``caller`` may make this call."""
        if number == CLONE[platform.machine()]:
            may = caller == self.forking and arguments[0] == CLONE_PARENT | signal.SIGCHLD
            self.forking = 0
            return may
        # Only the lower 32 bits count, because the kernel reads an int from the register.
        target = arguments[0] & 0xFFFFFFFF
        if target >= 1 << 31:
            target -= 1 << 32
        if NAMES.get(number) == "tkill" and os.path.isdir(f"/proc/{caller}/task/{target}"):
            return True
        if target == -1:
            return False
        owner = self.owner(caller)
        if owner is None:
            return False
        if target > 0:
            return owner == self.owner(target)
        group = -target or group_of(caller)
        # A signal to a group reaches all of it at once, so the whole group must belong to the caller.
        return {self.owner(pid) for pid in processes() if group_of(pid) == group} <= {owner}

    def owner(self, pid: int) -> int | None:
        """Returns the interpreter that is ``pid`` or its ancestor."""
        return owner_among(self._node_pids(), pid, lambda each: stat_of(each)[0])

    def table(self) -> "ProcessTable":
        """Returns every present process with the interpreter it belongs to."""
        stats = {pid: stat_of(pid) for pid in processes()}
        nodes = self._node_pids()
        return ProcessTable(
            {pid: threads for pid, (_, threads, _) in stats.items()},
            {
                pid: owner_among(nodes, pid, lambda each: stats[each][0] if each in stats else 0)
                for pid in stats
            },
            self._template,
        )


class ProcessTable(NamedTuple):
    """The processes of a session at a moment at which every program was stopped."""

    threads: dict[int, int]
    """The number of threads of each process."""
    owners: dict[int, int | None]
    """For each process, the interpreter that is itself or its ancestor."""
    template: int

    def lineage_of(self, node: int) -> list[int]:
        """Returns the processes of one interpreter's program, including the interpreter."""
        return [pid for pid, owner in self.owners.items() if owner == node and pid != 1]

    def beside(self, node: int) -> set[int]:
        """Returns all processes except those of one interpreter's program: other forks, snapshots, template, dying ones."""
        return {pid for pid, owner in self.owners.items() if owner != node and pid != 1}

    def orphans(self, live: set[int]) -> set[int]:
        """Returns processes of no running interpreter: they detached themselves, or theirs ended or is frozen."""
        return {
            pid
            for pid, owner in self.owners.items()
            if owner not in live and pid not in live and pid != owner and pid not in (1, self.template)
        }


def owner_among(nodes: set[int], pid: int, parent_of: Callable[[int], int]) -> int | None:
    """Returns the one of ``nodes`` that is ``pid`` or its ancestor; None if there is none."""
    for _ in range(MAX_DEPTH):
        if pid in nodes:
            return pid
        if pid <= 1:
            return None
        pid = parent_of(pid)
    return None
