"""A container of a Docker engine in which an agent works on one task: commands, files, and copies of its file tree.

Unlike the jails of this package it is a whole system of its own image, in which the commands may be those of root. It has no
network unless it is given one, bounded memory, processes and processors, and it ends with the process that owns it.
"""

import atexit
import contextlib
import io
import math
import tarfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, Self

from agentenv.errors import ConfigurationError, SandboxFault, SnapshotError, SnapshotRefused
from agentenv.sandbox.docker import HOST, OWNER, engine, faults, host, reap_orphans, remove, watch_over
from agentenv.sandbox.labels import label, living, parse
from agentenv.sandbox.task_output import read_output

SNAPSHOTS = "agentenv-snapshot"
"""Repository of the images that hold snapshots."""
REFUSED = 400
"""Status of the engine's answer where the request or the image is at fault."""
_FIRST_PROCESS = ["/bin/sh", "-c", "while :; do sleep 3600 & wait $!; done"]  # reaps what a command leaves
_WITH_A_DEADLINE = """\
exec 2>&1
if command -v bash >/dev/null 2>&1; then shell=bash; else shell=sh; fi
if timeout -k 2 "$2" "$shell" -c : >/dev/null 2>&1; then exec timeout -k 2 "$2" "$shell" -c -- "$1"; fi
exec "$shell" -c -- "$1"
"""
_OWN_PROCESSES = 2  # that shell and its sleep
_NOT_FOUND = 404
_GRACE_S = 5.0  # beyond the time of a command, for the engine to say that it has ended
_TIMED_OUT = (124, 137)  # exit statuses of `timeout`, as it ended or killed a command
_STOPPED = (
    137,
    255,
)  # exit statuses of a container that somebody else has ended, or an engine that went down
_MOST_COMMAND = 100_000  # bytes; Linux takes no argument of more than 128 KiB
_MOST_BYTES = 64 << 20  # of a file that is read
_KIND_BITS = 0x8F280000  # of a file mode as the engine writes it; none is set for a plain file


@dataclass(frozen=True)
class ContainerLimits:
    """What a container may use."""

    memory_mb: int = 2048
    cpus: float = 1.0
    processes: int = 512
    network: bool = False
    """Whether it reaches the network of the engine."""


@dataclass(frozen=True)
class CommandResult:
    """How a command ended."""

    output: str
    """What it wrote to both streams, with the middle left out where that is long."""
    exit_code: int
    timed_out: bool = False


class _Uses:
    """How many snapshots and containers use each image of a snapshot. What nobody uses any more is removed."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._unused: list[str] = []
        self._lock = threading.Lock()

    def add(self, image: str) -> None:
        with self._lock:
            self._counts[image] += 1

    def drop(self, image: str) -> None:
        with self._lock:
            self._counts[image] -= 1
            if not self._counts[image]:
                del self._counts[image]
                self._unused.append(image)
            # The engine keeps an image until those that were made of it are gone, so the newest go first.
            self._unused = [image for image in reversed(self._unused) if not _removed(image)][::-1]


def _removed(image: str) -> bool:
    """Removes an image; says whether it is gone."""
    from docker import errors

    try:
        shared_engine().remove_image(image)
    except errors.NotFound:
        return True
    except Exception:  # something is made of it, or the engine is away
        return False
    return True


_uses = _Uses()


class ContainerSnapshot:
    """The file tree of a container, as an image.

    Args:
        image: Its id.
    """

    def __init__(self, image: str) -> None:
        self.image = image
        _uses.add(image)
        self._released = False

    def release(self) -> None:
        """Gives the image up; a second call does nothing."""
        if not self._released:
            self._released = True
            _uses.drop(self.image)


@cache
def shared_engine() -> Any:
    """The engine's client of this process.

    Containers of the process are removed when it ends, however it ends. Images of snapshots that it leaves are removed when
    a later process begins.

    Raises:
        MissingExtra: the package docker is not installed.
        ConfigurationError: no engine answers.
    """
    client = engine()
    reap_orphans(client)
    _remove_orphaned_images(client)
    keeper = watch_over()

    def end() -> None:
        with contextlib.suppress(Exception):  # the engine may be gone
            for one in client.containers(
                all=True, filters={"label": [f"{OWNER}={label()}", f"{HOST}={host()}"]}
            ):
                remove(client, one["Id"])
        keeper.kill()
        keeper.wait()
        client.close()

    atexit.register(end)
    return client


def _remove_orphaned_images(client: Any) -> None:
    """Removes the images of snapshots whose process has ended; a committed image has the labels of its container."""
    found = client.images(filters={"label": f"{HOST}={host()}"})
    alive = living() if found else set()
    for image in found:
        if parse(image["Labels"].get(OWNER, "")) not in alive:
            with contextlib.suppress(Exception):
                client.remove_image(image["Id"], force=True)


class TaskContainer:
    """One running container.

    Args:
        image: Name of an image that the engine has.
        limits: What it may use.
        workdir: Folder in which commands run; empty is that of the image.
        env: Environment variables of the commands.

    Raises:
        ConfigurationError: the engine refuses the limits, or the image has no ``/bin/sh``.
        SandboxFault: the engine does not start it.
    """

    def __init__(
        self, image: str, limits: ContainerLimits, *, workdir: str = "", env: Mapping[str, str] | None = None
    ) -> None:
        self._client = shared_engine()
        self._limits, self._workdir, self._env = limits, workdir, dict(env or {})
        self._snapshot: str | None = None  # the image of a snapshot that it runs on
        try:
            self._name = self._start(image)
        except SandboxFault as fault:
            if getattr(fault.__cause__, "status_code", None) == REFUSED:
                raise ConfigurationError(f"a container of the image {image!r} is refused: {fault}") from fault
            raise

    def _start(self, image: str, *, may_fail: bool = False) -> str:
        """Starts a container of ``image``.

        Args:
            image: Its name or id.
            may_fail: Whether a container stays, and has ended, that does not start because of what is in its image.
        """
        limits = self._limits
        with faults("a container cannot be started"), contextlib.ExitStack() as undo:
            options = self._client.create_host_config(
                network_mode="bridge" if limits.network else "none",
                security_opt=["no-new-privileges"],
                pids_limit=limits.processes,
                mem_limit=limits.memory_mb << 20,
                memswap_limit=limits.memory_mb << 20,
                nano_cpus=math.ceil(limits.cpus * 1e9),
                log_config={"type": "none"},
            )
            name: str = self._client.create_container(
                image,
                entrypoint=_FIRST_PROCESS,
                command=[],
                user="0:0",
                working_dir=self._workdir or None,
                environment=self._env,
                stop_signal="SIGKILL",
                labels={OWNER: label(), HOST: host()},
                host_config=options,
            )["Id"]
            undo.callback(remove, self._client, name)
            try:
                self._client.start(name)
            except self._errors().APIError as error:
                if not may_fail or error.status_code != REFUSED:
                    raise
            undo.pop_all()
        return name

    def run(
        self,
        command: str,
        *,
        timeout_s: float,
        output_chars: int = 10_000,
        env: Mapping[str, str] | None = None,
        workdir: str = "",
    ) -> CommandResult:
        """Runs a command of the shell to its end.

        Args:
            command: For ``bash``, or ``sh`` where the image has no bash.
            timeout_s: Seconds after which it is killed.
            output_chars: Characters of its output that are kept.
            env: Further environment variables.
            workdir: Another working folder.

        Raises:
            ValueError: the system takes no such command, because of its length or a character.
            SandboxFault: the engine failed, or the container is gone.
        """
        if "\0" in command or len(command.encode("utf-8", "replace")) > _MOST_COMMAND:
            raise ValueError(
                f"a command has at most {_MOST_COMMAND:,} bytes and no character NUL; write long files in several commands"
            )
        words = ["/bin/sh", "-c", _WITH_A_DEADLINE, "sh", command, f"{timeout_s:g}"]
        with faults("a command cannot be run in a container"):
            begun = self._client.exec_create(
                self._name,
                words,
                environment=dict(env or {}) or None,
                workdir=workdir or None,
                user="0:0",
            )["Id"]
            stream = self._client.exec_start(begun, socket=True)
            start = time.monotonic()
            output, ended = read_output(stream, start + timeout_s + _GRACE_S, output_chars)
            late = time.monotonic() - start >= timeout_s
            status = self._client.exec_inspect(begun)["ExitCode"]
        if not ended:
            self.kill_all()
            return CommandResult(output, 137, timed_out=True)
        if status is None:  # what it started holds its output open and goes on
            return CommandResult(output, 0)
        return CommandResult(output, int(status), timed_out=late and status in _TIMED_OUT)

    @property
    def has_ended(self) -> bool:
        """Whether the container has ended because of what ran in it, which is no failure of the engine.

        Its memory was full, its first process could not go on, or the program that it starts with is broken.

        Raises:
            SandboxFault: the engine failed.
        """
        with faults("a container cannot be looked at"):
            state = self._client.inspect_container(self._name)["State"]
        if state["Running"] or (state["Status"] == "created" and not state["ExitCode"]):
            return False
        return bool(state["OOMKilled"] or state["ExitCode"] not in _STOPPED)

    def kill_all(self) -> None:
        """Kills whatever commands have left running.

        The engine ends every process and starts the first one again, so that nothing in the container can prevent it.
        Files stay, but for those in ``/dev/shm``. Where the container cannot be started again, it ``has_ended``.

        Raises:
            SandboxFault: the engine failed, or the container is gone.
        """
        with faults("the processes of a container cannot be killed"):
            try:
                self._client.restart(self._name, timeout=0)
            except self._errors().APIError:
                if not self.has_ended:
                    raise

    def exists(self, path: str) -> bool:
        """Whether there is a file, a folder or a link of this name.

        Raises:
            SandboxFault: the engine failed, or the container is gone.
        """
        return self._opened(path) is not None

    def write_folder(self, source: Path, target: str) -> None:
        """Copies the content of ``source`` into the folder ``target``, which is made.

        Raises:
            SandboxFault: the engine failed, or the container is gone.
        """
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for path in sorted(source.rglob("*")):
                archive.add(
                    path,
                    str(PurePosixPath(target.lstrip("/")) / path.relative_to(source).as_posix()),
                    recursive=False,
                )
        with faults(f"{target} cannot be written in a container"):
            self._client.put_archive(self._name, "/", packed.getvalue())

    def read_file(self, path: str) -> bytes | None:
        """The content of a file; None where there is no plain file of at most 64 MiB.

        Raises:
            SandboxFault: the engine failed, or the container is gone.
        """
        with faults(f"{path} cannot be read in a container"):
            found = self._opened(path)
            if found is None or found[1]["mode"] & _KIND_BITS or found[1]["size"] > _MOST_BYTES:
                return None
            packed = io.BytesIO()
            for chunk in found[0]:
                packed.write(chunk)
                if packed.tell() > _MOST_BYTES + (1 << 20):  # it has grown meanwhile
                    return None
            packed.seek(0)
        with tarfile.open(fileobj=packed) as archive:
            member = archive.next()
            file = archive.extractfile(member) if member is not None and member.isfile() else None
            return None if file is None else file.read()

    def _opened(self, path: str) -> tuple[Any, dict[str, Any]] | None:
        """The packed file in parts, and what the engine says about it; None where there is none."""
        with faults(f"{path} cannot be read in a container"):
            try:
                found: tuple[Any, dict[str, Any]] = self._client.get_archive(self._name, path)
            except self._errors().APIError as error:
                self._client.inspect_container(self._name)
                if error.status_code != _NOT_FOUND and "not a directory" not in str(error):
                    raise
                return None
        return found

    @staticmethod
    def _errors() -> Any:
        from docker import errors

        return errors

    def snapshot(self) -> ContainerSnapshot:
        """Its file tree as an image.

        Raises:
            SnapshotRefused: a command has left a process running, which no image holds.
            SandboxFault: the engine failed.
        """
        with faults("a container cannot be captured"):
            running = len(self._client.top(self._name)["Processes"]) - _OWN_PROCESSES
            if running > 0:
                raise SnapshotRefused(
                    f"{running} processes that commands have left running cannot be captured"
                )
            try:
                made = self._client.commit(self._name, repository=SNAPSHOTS, tag=uuid.uuid4().hex)["Id"]
            except self._errors().APIError as error:
                if "max depth exceeded" not in str(error):
                    raise
                raise SnapshotRefused(
                    "the engine stacks no more snapshots of snapshots on each other"
                ) from error
        return ContainerSnapshot(made)

    def restore(self, handle: Any) -> None:
        """Goes back to a snapshot: a new container of its image takes the place of this one.

        Raises:
            SnapshotError: it is not a snapshot of a container.
            SandboxFault: the engine failed.
        """
        if not isinstance(handle, ContainerSnapshot):
            raise SnapshotError(f"a container is restored from its snapshot, not from {handle!r:.80}")
        before, self._name = self._name, self._start(handle.image, may_fail=True)
        remove(self._client, before)
        self._runs_on(handle.image)

    def fork(self) -> Self:
        """A twin with the same file tree.

        Raises:
            SnapshotRefused, SandboxFault: as ``snapshot``.
        """
        taken = self.snapshot()
        twin = type(self).__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin._snapshot = None
        try:
            twin._name = self._start(taken.image, may_fail=True)
            twin._runs_on(taken.image)
        finally:
            taken.release()
        return twin

    def _runs_on(self, image: str | None) -> None:
        if image is not None:
            _uses.add(image)
        before, self._snapshot = self._snapshot, image
        if before is not None:
            _uses.drop(before)

    def close(self) -> None:
        """Removes it; a second call does nothing."""
        remove(self._client, self._name)
        self._runs_on(None)
