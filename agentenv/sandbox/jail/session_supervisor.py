"""The supervisor of one session: interpreters that keep their state, snapshots of them, forks, and their files.

Every interpreter is a *node*. A node that has forked is frozen: it waits for the next order to fork and runs nothing any
more, which makes it a snapshot. A session goes on in the fork. All nodes are children of the session's template, so that no
program has its snapshots among its children and none learns how another ended. Nodes take turns: the files in the box belong
to one of them, those of the others stand in the snapshot folder, and between cells every process of the program is stopped.

Whatever a program does to its interpreter or its files ends at most its own interpreter, which is a result like any other.
A fault is only what has its cause outside of the box.

A frozen node still runs its program's Python while it forks, and the program may have changed all of that. So it sees no
later files while it does, and the outcome is checked from here before anything else may run.
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
    """Carries out the orders of the host for one session, one after the other."""

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
        """Whether a cell was handed to an interpreter: what ends the template afterwards may be the doing of a program."""
        self._replaced = first["node"] if first["replaces"] else 0
        """Interpreters of lower names were in a supervisor whose template was lost."""
        self._died: set[int] = set()
        """Interpreters that their own program ended while another one ran, or whose files could not be kept."""
        self._signal_filter = SignalFilter(self._node_pids, template.pid)
        self._listeners: dict[int, Callable[[int], None]] = {}
        self._unneeded = False
        """Whether there may be trees in the snapshot folder that nobody needs any more."""
        self._in_box = -1
        self._held = 0, 0
        """Bytes and inodes in the box that other interpreters kept when it was last emptied."""
        self._work = f"{self._box}/work"
        self._room = self._limits["disk_mb"] * MIB
        self._baseline = resident(os.getpid())
        self._open(first)
        frames.reply(self._host, first, {})

    def serve(self) -> None:
        """Carries out orders until the host closes the session."""
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
            # Answered first: the host need not wait until trees that nobody needs any more are removed.
            frames.reply(self._host, order, answer)
            self._sweep()

    def _living(self, name: int) -> Node | None:
        """A node, None where its program ended it.

        Raises:
            RuntimeError: there never was one of this name, or it ended before it had a program.
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
        """A new interpreter in an empty box; where the box cannot be emptied, one that its program has ended."""
        # That is the doing of a program, so the new interpreter counts as ended and not as a fault.
        if not self._put_away():
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
        """Runs a cell in a node; a node that dies of it is gone."""
        name = order["node"]
        node = self._living(name)
        if node is None or not self._bring_files(name):
            return {**answers.NOTHING_RAN, "status": "killed", "alive": False, "lost": self._lost(name)}
        node.changed = self._began = True
        try:
            for path, content in order["files"].items():
                trees.write(self._work, path, base64.b64decode(content))
        except trees.PathRefused as reason:  # the box was empty once: its program is in the way
            return {**answers.NOTHING_RAN, **answers.unwritten(str(reason)), "lost": self._lost(name)}
        return self._run_cell(node, order)

    def _run_cell(self, node: Node, order: dict[str, Any]) -> dict[str, Any]:
        records = {node.out: bounded(self._limits), node.err: bounded(self._limits)}
        # A process that has just been forked holds about as much as the supervisor, and no program is charged for that.
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
        # What the program wrote last may still stand in the pipes when it has ended.
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
        """Lets a node's program have the processes of its limits and ``more``, beside those of the others."""
        count = sum(table.threads[pid] for pid in table.beside(node.pid)) + self._limits["processes"] + more
        confine.bound_processes(self._setup["uid"], table.lineage_of(node.pid), count)

    def _end_program(self, node: Node) -> None:
        """Kills the processes of a node's program."""
        own = self._signal_filter.table().lineage_of(node.pid) if self._setup["isolated"] else [node.pid]
        for pid in own:
            send_signal(pid, signal.SIGKILL)

    def _settle(self, name: int, dead: bool) -> None:
        """Between cells nothing runs: stops what the program left behind, kills what left the program."""
        node = self._nodes[name]
        # Stopped before anything is killed: a process that still runs could fork another one that escapes.
        self._stop_all(node)
        if dead:
            self._end_program(node)
            self._remove(name)
        if self._setup["isolated"]:
            self._kill_strays()

    def _stop_all(self, node: Node) -> None:
        """Stops the processes of all programs by one call: one after the other, one could fork another that escapes."""
        if self._setup["isolated"]:
            os.kill(-1, signal.SIGSTOP)
        else:
            send_signal(node.pid, signal.SIGSTOP)

    def _kill_strays(self) -> tuple[set[int], ProcessTable]:
        """Kills what belongs to no interpreter that runs; the pids, of which some may not be gone at once, among all."""
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
        """Nodes that died while another one ran; they are removed."""
        # All others are stopped while one runs, so what ended them is the running program, or a lack of memory.
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
        """Freezes a node, unless it is frozen, and lets a child go on from it under a new name.

        A session that goes back leaves the node where it was before, which is ended first.
        """
        for left in set(order["left"]) & set(self._nodes):
            self._remove(left)  # whatever else its program has started is killed before anything is forked
        node, name = self._living(order["node"]), order["child"]
        first = node is not None and not node.frozen
        if node is None or (first and not self._bring_files(order["node"])):
            return {"refused": "the program ended the interpreter"}
        if not first and not self._hide_later_files(order["node"]):
            return {"refused": "the files of its other forks leave no room for those that are in use"}
        dying, table = self._kill_strays() if self._setup["isolated"] else (set(), None)
        if first:
            if reason := self._unsound(node, table):
                return {"refused": reason}
            try:
                node.copied = self._save(order["node"])
            except OSError as error:
                trees.remove(f"{self._snapshot_dir}/{order['node']}")
                return {"refused": f"its files cannot be copied: {error.strerror}"}
        child = self._split(node, dying, table)
        if isinstance(child, str):
            return {"refused": child}
        # Only now that the child has passed every check: until then the node is the session's own interpreter.
        node.frozen, node.files = True, order["node"]
        child.files, child.folder, child.parent = order["node"], node.folder, order["node"]
        child.began = node.began
        self._nodes[name] = child
        if first:
            self._in_box = name
        return {"sizes": list(self._sizes(order["node"]).items())}

    def _hide_later_files(self, name: int) -> bool:
        """Empties the box, unless what stands there is exactly what the frozen node ``name`` had when it was frozen.

        False where it cannot be emptied.
        """
        owner = self._nodes.get(self._in_box)
        same = owner is not None and not owner.changed and owner.files == name
        return same or self._put_away()

    def _sizes(self, latest: int) -> dict[int, int]:
        """Bytes of memory and files that each frozen node holds: at most, while all of them fit; else measured.

        What several hold counts for each by its share. Measuring takes the kernel as long as a fork: what a node holds
        is settled when its child is frozen in turn, until one that it shared with is gone.
        """
        frozen = {name: node for name, node in self._nodes.items() if node.frozen}
        # The cheap bound first: measuring what is shared costs as much as a fork.
        sizes = {name: resident(node.pid) + node.copied for name, node in frozen.items()}
        if sum(sizes.values()) < self._limits["snapshot_mb"] * MIB:
            return sizes
        for name, node in frozen.items():
            if node.held < 0 or name in (latest, frozen[latest].parent):
                node.held = share(node.pid)
        return {name: node.held + node.copied for name, node in frozen.items()}

    def _unsound(self, node: Node, table: ProcessTable | None) -> str:
        """Why forking this interpreter would lose something, or ''."""
        if (threads := stat_of(node.pid)[1]) != 1:
            return f"the interpreter has {threads} threads"
        if table is None:
            return ""
        others = len(table.lineage_of(node.pid)) - 1
        if others:
            return f"the program has {others} child processes"
        return sharing.lost_in_fork(node.pid) or self._shared(node)

    def _shared(self, node: Node) -> str:
        """What a fork of this interpreter would share with it, or ''."""
        found = sharing.shared_descriptor(node.pid, node.own, self._box)
        return found or self._mappings.shared(node.pid)

    def _split(self, node: Node, dying: set[int], table: ProcessTable | None) -> Node | str:
        """A fork of ``node``; where it does not come, or is not as it should be, the reason.

        ``dying`` are the processes that were killed before, and ``table`` shows all that there are.
        """
        streams, link, other = new_streams(), *answers.link()
        # The kernel then writes the sender's pid beside its message; a pid that the program told could be a lie.
        link.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        fds = (*streams.theirs, other.fileno())
        own = frozenset(map(sharing.descriptor, fds))
        if table is not None:
            # One more for the child itself, and taken back with the next cell's own bound.
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
        # Whether or not it has forked: the leave is for this one time.
        self._signal_filter.forking = 0
        self._stop_all(node)
        child = Node(link, pid, streams.out, streams.err, own, 0, "", changed=False)
        if reason := refusal or self._misborn(node, child, dying):
            child.close()
            if self._setup["isolated"]:
                self._kill_strays()
            return reason
        return child

    def _misborn(self, node: Node, child: Node, dying: set[int]) -> str:
        """What is wrong with a fork that has been stopped, and with the process that forked it; or ''."""
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
        """Waits until the process that was to fork keeps nothing that its child was to get; why it did not fork, or ''."""
        try:
            said = frames.receive(node.link, 2, time.monotonic() + FORK_S)
        except (frames.Closed, TimeoutError):
            return ""  # what it keeps will be found
        return "the program has a timer" if said == answers.TIMED else ""

    def _await_child(self, link: socket.socket) -> int:
        """The pid of the process that greets on ``link``, 0 where none does; the kernel, not the process, says who it is."""
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

    def _bring_files(self, name: int) -> bool:
        """Puts a node's files into the box, after saving those of the node that has them there.

        False where they do not fit any more, by the doing of its program: the node is gone then.
        """
        if self._in_box != name:
            if not self._put_away():
                self._lose(name)
                return False
            try:
                trees.copy(f"{self._snapshot_dir}/{self._nodes[name].files}", self._box, self._room)
            except OSError:
                trees.clear(self._box)
                self._lose(name)
                return False
            self._in_box = name
        return True

    def _put_away(self) -> bool:
        """Empties the box, after saving what a living interpreter has in it; one whose own files cannot be copied is ended.

        False where the files of all forks together have filled the snapshot folder: everything stays as it is then, and who
        asked for the box is the one that cannot have it.
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
                self._lose(name)
        self._in_box = -1
        trees.clear(self._box)
        self._make_room()
        return True

    def _make_room(self) -> None:
        """Lets the empty box hold a whole disk beside what other interpreters still keep of their own turns in it.

        A file that somebody has open, or works in, takes its room until it is closed, though it has no name any more.
        """
        if not self._setup["isolated"]:
            return
        found = os.statvfs(self._box)
        held = (found.f_blocks - found.f_bfree) * found.f_frsize, found.f_files - found.f_ffree - 1
        if held != self._held:
            confine.resize_box_later(self._setup["uid"], self._limits["disk_mb"], *held)
            self._held = held

    def _save(self, name: int) -> int:
        """Copies what is in the box into the snapshot folder, as a node's files; returns their bytes.

        Raises:
            OSError: they cannot be copied.
        """
        self._sweep()  # what an interpreter leaves that has ended is room for the others
        target = f"{self._snapshot_dir}/{name}"
        # What a node left there before belongs to an earlier turn in the box.
        trees.remove(target)
        return trees.copy(self._box, target, self._room)

    def _lose(self, name: int) -> None:
        """Ends a node for what its program did."""
        self._end_program(self._nodes[name])
        self._remove(name)
        self._died.add(name)
        self._reap()

    def _kill(self, order: dict[str, Any]) -> dict[str, Any]:
        """Ends nodes; trees that nobody needs any more go with them."""
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
        """Removes the trees that nobody needs any more: between orders, for nobody waits for that."""
        if not self._unneeded:
            return
        self._unneeded = False
        needed = {node.files for node in self._nodes.values()}
        for entry in os.listdir(self._snapshot_dir):
            if int(entry) not in needed:
                trees.remove_quietly(f"{self._snapshot_dir}/{entry}")

    def _files(self, order: dict[str, Any]) -> dict[str, Any]:
        """Reads files of a node without running anything."""
        if self._living(order["node"]) is None or not self._bring_files(order["node"]):
            return {
                "files": {},
                "refused": dict.fromkeys(order["collect"], "the program ended the interpreter"),
            }
        found, refused = collect(self._work, order["collect"], self._limits)
        return {"files": found, "refused": refused}
