"""The supervisor of one session: interpreters that keep their state, with snapshots, forks, and files.

Every interpreter is a *node*. A node that has forked is frozen: it only waits for further orders to fork, which makes it a
snapshot, and the session continues in the fork. All nodes are children of the session's template, so that no program has
snapshots among its children or learns how another one ended. Nodes take turns: the files in the box belong to one of them,
those of the others are in the snapshot folder, and between cells all programs are stopped.

Whatever a program does to its interpreter or files ends at most its own interpreter, which is a normal result. Only an event
whose cause lies outside of the box is a fault.

A frozen node still runs its program's Python while it forks, and the program may have changed all of that. So it must not
see later files meanwhile, and the result is checked from here before anything else may run.
"""

import base64
import contextlib
import errno
import json
import os
import signal
import socket
import struct
import time
from collections.abc import Callable
from typing import Any, NoReturn

from agentenv.sandbox.jail import answers, cells, confine, frames, interpreters, sharing, trees
from agentenv.sandbox.jail.node import Node, new_streams, send_signal
from agentenv.sandbox.jail.once import bounded, collect, make_box
from agentenv.sandbox.jail.session_template import SessionTemplate
from agentenv.sandbox.jail.signal_filter import ProcessTable, SignalFilter
from agentenv.sandbox.jail.watch import MIB, Watch, all_but, resident, share, stat_of

FORK_S = 5.0


class SessionSupervisor:
    """Executes the host's orders for one session, one after another."""

    def __init__(
        self, link: socket.socket, first: dict[str, Any], setup: dict[str, Any], template: SessionTemplate
    ) -> None:
        self._host, self._setup, self._limits = link, setup, first["limits"]
        self._template = template
        self._mappings = sharing.Mappings(template.pid, setup["kept"])
        self._box = setup["root"] if setup["isolated"] else f"{setup['root']}/box"
        self._snapshot_dir = "/snapshots" if setup["isolated"] else f"{setup['root']}/snapshots"
        for folder in (self._box, self._snapshot_dir):
            os.makedirs(folder, exist_ok=True)
        self._nodes: dict[int, Node] = {}
        self._began = False
        """Whether an interpreter has received a cell; a later end of the template may then be caused by a program."""
        self._replaced = first["node"] if first["replaces"] else 0
        """Interpreters with lower names belonged to a supervisor whose template was lost."""
        self._died: set[int] = set()
        """Interpreters that their own program ended while another one ran, or whose files could not be saved."""
        self._signal_filter = SignalFilter(self._node_pids, template.pid)
        self._listeners: dict[int, Callable[[int], None]] = {}
        self._unneeded = False
        """Whether the snapshot folder may contain trees that are not needed any more."""
        self._in_box = -1
        self._held = 0, 0
        """Bytes and inodes in the box that other interpreters still held when it was last emptied."""
        self._work = f"{self._box}/work"
        self._room = self._limits["disk_mb"] * MIB
        self._baseline = resident(os.getpid())
        self._open(first)
        frames.reply(self._host, first, {})

    def serve(self) -> None:
        """Executes orders until the host closes the session."""
        try:
            self._serve()
        finally:
            for node in self._nodes.values():
                node.close()

    def _serve(self) -> NoReturn:
        operations = {
            "open": self._open,
            "cell": self._cell,
            "fork": self._fork,
            "kill": self._kill,
            "files": self._files,
        }
        while True:
            order = json.loads(frames.receive(self._host))
            try:
                answer = operations[order["op"]](order)
            except trees.PathRefused as reason:
                answer = {"refused_input": str(reason)}
            except Exception as error:
                answer = {"fault": f"{type(error).__name__}: {error}"}
            # Answered first, so that the host need not wait for the removal of unneeded trees.
            frames.reply(self._host, order, answer)
            self._sweep()

    def _living(self, name: int) -> Node | None:
        """Returns a node; None if its program has ended it.

        Raises:
            RuntimeError: there was never a node of this name, or it ended before it had a program.
        """
        if name not in self._nodes and name not in self._died and name >= self._replaced:
            raise RuntimeError(f"interpreter {name} is gone")
        node = self._nodes.get(name)
        if node is not None and not (node.began or node.frozen) and stat_of(node.pid)[2] in "ZX":
            self._remove(name)
            raise RuntimeError(f"interpreter {name} ended before its program began")
        return node

    def _node_pids(self, *, frozen: bool = True) -> set[int]:
        return {node.pid for node in self._nodes.values() if frozen or not node.frozen}

    def _open(self, order: dict[str, Any]) -> dict[str, Any]:
        """Starts an interpreter in an empty box; if the box cannot be emptied, it counts as ended by its program."""
        # Only a program can prevent this, so it is not a fault.
        if not self._empty_box():
            self._died.add(order["node"])
            return {}
        make_box(self._box, order["files"])
        self._in_box = order["node"]
        try:
            self._start(order["node"])
        except interpreters.TemplateGone:
            if not self._began:
                raise
            return {"template_gone": True}
        return {}

    def _start(self, name: int) -> None:
        isolated = self._setup["isolated"]
        node, listener = interpreters.start(self._template, self._limits, name, self._work, isolated=isolated)
        if listener >= 0:
            self._listeners[listener] = self._signal_filter.answer
        self._nodes[name] = node

    def _cell(self, order: dict[str, Any]) -> dict[str, Any]:
        """Runs a cell in a node; a node that dies is removed."""
        name = order["node"]
        node = self._living(name)
        if node is None or not self._load_files(name):
            return {**answers.NOTHING_RAN, "status": "killed", "alive": False, "lost": self._lost(name)}
        node.changed = self._began = True
        try:
            for path, content in order["files"].items():
                trees.write(self._work, path, base64.b64decode(content))
        except trees.PathRefused as reason:  # the box was empty at first, so its program caused this
            return {**answers.NOTHING_RAN, **answers.unwritten(str(reason)), "lost": self._lost(name)}
        return self._run_cell(node, order)

    def _run_cell(self, node: Node, order: dict[str, Any]) -> dict[str, Any]:
        records = {node.out: bounded(self._limits), node.err: bounded(self._limits)}
        # A process that has just been forked holds about as much as the supervisor; the program is not charged for that.
        watch = Watch(self._limits, records)
        watch.baseline, watch.members = self._baseline, lambda: [node.pid]
        own = [node.pid]
        if self._setup["isolated"]:
            table = self._signal_filter.table()
            self._bound_processes(node, table)
            own, watch.members = table.lineage_of(node.pid), all_but(table.beside(node.pid))
        watch.listeners = self._listeners
        started = time.monotonic()
        for pid in own:
            send_signal(pid, signal.SIGCONT)
        try:
            verdict, answer = cells.await_cell(node, order, watch, started)
        except cells.NeverBegan:
            self._remove(order["node"])
            raise
        wall = time.monotonic() - started
        # The last output of the program may still be in the pipes when it has ended.
        watch.drain_rest()
        self._settle(order["node"], answer is None)
        out, err = records.values()
        found, refused = collect(self._work, order["collect"], self._limits)
        return {
            **answers.outcome(verdict, answer),
            "stdout": out.text,
            "stderr": err.text,
            "truncated": out.truncated or err.truncated,
            "files": found,
            "refused": refused,
            "wall_s": wall,
            "memory_mb": watch.peak / MIB,
            "alive": answer is not None,
            "lost": self._lost(order["node"]),
        }

    def _bound_processes(self, node: Node, table: ProcessTable, more: int = 0) -> None:
        """Allows a node's program the processes of its limits plus ``more``, in addition to those of the others."""
        count = sum(table.threads[pid] for pid in table.beside(node.pid)) + self._limits["processes"] + more
        confine.bound_processes(self._setup["uid"], table.lineage_of(node.pid), count)

    def _end_program(self, node: Node) -> None:
        """Kills the processes of a node's program."""
        own = self._signal_filter.table().lineage_of(node.pid) if self._setup["isolated"] else [node.pid]
        for pid in own:
            send_signal(pid, signal.SIGKILL)

    def _settle(self, name: int, dead: bool) -> None:
        """Stops the rest of the program between cells, and kills processes that have left it."""
        node = self._nodes[name]
        # Stopped before anything is killed, because a running process could fork another one that escapes.
        self._stop_all(node)
        if dead:
            self._end_program(node)
            self._remove(name)
        if self._setup["isolated"]:
            self._kill_strays()

    def _stop_all(self, node: Node) -> None:
        """Stops the processes of all programs by one call; one by one, one of them could fork another that escapes."""
        if self._setup["isolated"]:
            os.kill(-1, signal.SIGSTOP)
        else:
            send_signal(node.pid, signal.SIGSTOP)

    def _kill_strays(self) -> tuple[set[int], ProcessTable]:
        """Kills processes that belong to no running interpreter; returns their pids and the table of all processes."""
        table = self._signal_filter.table()
        orphans = table.orphans(self._node_pids(frozen=False))
        for pid in orphans:
            send_signal(pid, signal.SIGKILL)
        self._reap()
        return orphans, table

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass

    def _lost(self, runner: int) -> list[int]:
        """Removes and returns nodes that died while another one ran."""
        # All others are stopped while one runs, so the running program or a lack of memory ended them.
        gone = {
            name: node
            for name, node in self._nodes.items()
            if name != runner and stat_of(node.pid)[2] in "ZX"
        }
        for name in gone:
            self._remove(name)
        self._died.update(name for name, node in gone.items() if node.began)
        return list(gone)

    def _fork(self, order: dict[str, Any]) -> dict[str, Any]:
        """Freezes a node, unless it is frozen, and continues in a child of it under a new name.

        A session that is restored leaves its present node, which is ended first.
        """
        for left in set(order["left"]) & set(self._nodes):
            self._remove(left)  # all processes of its program are killed before the fork
        node, name = self._living(order["node"]), order["child"]
        first = node is not None and not node.frozen
        if node is None or (first and not self._load_files(order["node"])):
            return {"refused": "the program ended the interpreter"}
        if not first and not self._hide_later_files(order["node"]):
            return {"refused": "the files of its other forks leave no room for those that are in use"}
        dying, table = self._kill_strays() if self._setup["isolated"] else (set(), None)
        if first:
            if reason := self._fork_obstacle(node, table):
                return {"refused": reason}
            try:
                node.copied = self._save(order["node"])
            except OSError as error:
                trees.remove(f"{self._snapshot_dir}/{order['node']}")
                return {"refused": f"its files cannot be copied: {error.strerror}"}
        child = self._split(node, dying, table)
        if isinstance(child, str):
            return {"refused": child}
        # Only after the child has passed every check; until then the node is the session's own interpreter.
        node.frozen, node.files = True, order["node"]
        child.files, child.folder, child.parent = order["node"], node.folder, order["node"]
        child.began = node.began
        self._nodes[name] = child
        if first:
            self._in_box = name
        return {"sizes": list(self._sizes(order["node"]).items())}

    def _hide_later_files(self, name: int) -> bool:
        """Empties the box, unless it contains exactly the files that the frozen node ``name`` had when it was frozen.

        Returns False if it cannot be emptied.
        """
        owner = self._nodes.get(self._in_box)
        same = owner is not None and not owner.changed and owner.files == name
        return same or self._empty_box()

    def _sizes(self, latest: int) -> dict[int, int]:
        """Returns the bytes of memory and files of each frozen node: an upper bound while all fit, otherwise measured.

        Memory shared by several nodes counts by shares. Measuring takes as long as a fork. The size of a node is final when
        its child is frozen in turn, until a node with which it shares memory ends.
        """
        frozen = {name: node for name, node in self._nodes.items() if node.frozen}
        # The cheap upper bound first, because measuring shared memory costs as much as a fork.
        sizes = {name: resident(node.pid) + node.copied for name, node in frozen.items()}
        if sum(sizes.values()) < self._limits["snapshot_mb"] * MIB:
            return sizes
        for name, node in frozen.items():
            if node.held < 0 or name in (latest, frozen[latest].parent):
                node.held = share(node.pid)
        return {name: node.held + node.copied for name, node in frozen.items()}

    def _fork_obstacle(self, node: Node, table: ProcessTable | None) -> str:
        """Returns why forking this interpreter would lose something; '' if nothing."""
        if (threads := stat_of(node.pid)[1]) != 1:
            return f"the interpreter has {threads} threads"
        if table is None:
            return ""
        others = len(table.lineage_of(node.pid)) - 1
        if others:
            return f"the program has {others} child processes"
        return sharing.lost_in_fork(node.pid) or self._shared(node)

    def _shared(self, node: Node) -> str:
        """Returns what a fork of this interpreter would share with it; '' if nothing."""
        found = sharing.shared_descriptor(node.pid, node.own, self._box)
        return found or self._mappings.shared(node.pid)

    def _split(self, node: Node, dying: set[int], table: ProcessTable | None) -> Node | str:
        """Forks ``node``; returns the new node, or the reason if there is none or it is not sound.

        ``dying`` are the processes that were killed before, and ``table`` has all processes.
        """
        streams, link, other = new_streams(), *answers.link()
        # The kernel then adds the sender's pid to its message; a pid reported by the program could be false.
        link.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        fds = (*streams.theirs, other.fileno())
        own = frozenset(map(sharing.descriptor, fds))
        if table is not None:
            # One more for the child itself, until the next cell sets its own limit.
            self._bound_processes(node, table, more=1)
        self._signal_filter.forking = node.pid
        send_signal(node.pid, signal.SIGCONT)
        try:
            frames.send(node.link, b'{"op":"fork"}', fds)
        except frames.Closed:
            pass
        for fd in streams.theirs:
            os.close(fd)
        other.close()
        pid = self._await_child(link)
        refusal = self._await_parent(node)
        # Whether or not it has forked: the permission is for one fork only.
        self._signal_filter.forking = 0
        self._stop_all(node)
        child = Node(link, pid, streams.out, streams.err, own, 0, "", changed=False)
        if reason := refusal or self._fork_flaw(node, child, dying):
            child.close()
            if self._setup["isolated"]:
                self._kill_strays()
            return reason
        return child

    def _fork_flaw(self, node: Node, child: Node, dying: set[int]) -> str:
        """Returns what is wrong with a stopped fork, or with the process that forked it; '' if nothing."""
        if not child.pid:
            return "the interpreter could not fork"
        if not self._setup["isolated"]:
            return ""
        table = self._signal_filter.table()
        orphans = table.orphans(self._node_pids(frozen=False) | {child.pid}) - dying
        reason = sharing.fork_violation(child.pid, self._template.pid) or self._shared(child)
        reason = reason or sharing.shared_descriptor(node.pid, node.own, self._box)
        if orphans or child.pid in self._node_pids():
            reason = "it forked more than once"
        return f"the interpreter did not fork as it should: {reason}" if reason else ""

    def _await_parent(self, node: Node) -> str:
        """Waits until the forking process has closed what its child was to get; returns why it did not fork, or ''."""
        try:
            said = frames.receive(node.link, 2, time.monotonic() + FORK_S)
        except (frames.Closed, TimeoutError):
            return ""  # descriptors that it keeps are found later
        return "the program has a timer" if said == answers.TIMED else ""

    def _await_child(self, link: socket.socket) -> int:
        """Returns the pid of the process that greets on ``link``, as reported by the kernel; 0 without one."""
        watch = Watch(self._limits, {})
        watch.listeners = self._listeners
        watch.members = list
        if watch.until(link.fileno(), time.monotonic() + FORK_S) != "ready":
            return 0
        data, ancillary, _, _ = link.recvmsg(frames.LENGTH.size + 2, socket.CMSG_SPACE(12))
        if len(data) < frames.LENGTH.size + 2 or not ancillary:
            return 0
        link.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
        pid: int = struct.unpack("=iII", ancillary[0][2][:12])[0]
        return pid

    def _load_files(self, name: int) -> bool:
        """Puts a node's files into the box, after saving those of the node whose files are there.

        Returns False if they do not fit any more because of its program; the node is then removed.
        """
        if self._in_box != name:
            if not self._empty_box():
                self._end_node(name)
                return False
            try:
                trees.copy(f"{self._snapshot_dir}/{self._nodes[name].files}", self._box, self._room)
            except OSError:
                trees.clear(self._box)
                self._end_node(name)
                return False
            self._in_box = name
        return True

    def _empty_box(self) -> bool:
        """Empties the box after saving a live interpreter's files in it; if its own files cannot be copied, it is ended.

        Returns False if the files of all forks together fill the snapshot folder. Everything then stays unchanged, and the
        caller that needs the box cannot have it.
        """
        name = self._in_box
        owner = self._nodes.get(name)
        if owner is not None and not owner.frozen and owner.changed:
            try:
                self._save(name)
                owner.files, owner.changed = name, False
            except OSError as error:
                trees.remove(f"{self._snapshot_dir}/{name}")
                if error.errno == errno.ENOSPC:
                    return False
                self._end_node(name)
        self._in_box = -1
        trees.clear(self._box)
        self._make_room()
        return True

    def _make_room(self) -> None:
        """Resizes the empty box to a whole disk plus what other interpreters still hold of their earlier turns.

        A removed file that a process has open, or a removed folder that it is in, uses space until it is closed.
        """
        if not self._setup["isolated"]:
            return
        found = os.statvfs(self._box)
        held = (found.f_blocks - found.f_bfree) * found.f_frsize, found.f_files - found.f_ffree - 1
        if held != self._held:
            confine.resize_box_later(self._setup["uid"], self._limits["disk_mb"], *held)
            self._held = held

    def _save(self, name: int) -> int:
        """Copies the files in the box into the snapshot folder as those of a node; returns their size in bytes.

        Raises:
            OSError: they cannot be copied.
        """
        self._sweep()  # trees of ended interpreters make room for others
        target = f"{self._snapshot_dir}/{name}"
        # Files that the node left there belong to an earlier turn in the box.
        trees.remove(target)
        return trees.copy(self._box, target, self._room)

    def _end_node(self, name: int) -> None:
        """Ends a node because of what its program did."""
        self._end_program(self._nodes[name])
        self._remove(name)
        self._died.add(name)
        self._reap()

    def _kill(self, order: dict[str, Any]) -> dict[str, Any]:
        """Ends nodes, and removes trees that are not needed any more."""
        for name in order["nodes"]:
            if name in self._nodes:
                self._end_program(self._nodes[name])
                self._remove(name)
        self._reap()
        return {}

    def _remove(self, name: int) -> None:
        gone = self._nodes.pop(name)
        gone.close()
        for other, node in self._nodes.items():
            if name == node.parent or gone.parent in (other, node.parent):  # child, parent or sibling
                node.held = -1
        self._unneeded = True

    def _sweep(self) -> None:
        """Removes trees that are not needed any more; called between orders, because nobody waits for it."""
        if not self._unneeded:
            return
        self._unneeded = False
        needed = {node.files for node in self._nodes.values()}
        for entry in os.listdir(self._snapshot_dir):
            if int(entry) not in needed:
                trees.remove_quietly(f"{self._snapshot_dir}/{entry}")

    def _files(self, order: dict[str, Any]) -> dict[str, Any]:
        """Reads files of a node without running anything."""
        if self._living(order["node"]) is None or not self._load_files(order["node"]):
            return {
                "files": {},
                "refused": dict.fromkeys(order["collect"], "the program ended the interpreter"),
            }
        found, refused = collect(self._work, order["collect"], self._limits)
        return {"files": found, "refused": refused}
