"""The ``docker`` backend: jails that are containers of a Docker engine, with the same fork server inside.

A program costs a fork and not a container: the zygote is the container's first process. Its channel is the container's
attached input and output, which end when the owner ends. The container then ends too, and the engine removes it.
"""

import base64
import contextlib
import importlib
import io
import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentenv.errors import AgentEnvError, ConfigurationError, MissingExtra, SandboxFault
from agentenv.sandbox import reaper, seccomp
from agentenv.sandbox.bwrap import ENVIRONMENT
from agentenv.sandbox.executor import JailExecutor
from agentenv.sandbox.jail_source import BOOT, boot_message
from agentenv.sandbox.jails import Jail, never_stall
from agentenv.sandbox.labels import boot, label, living, parse
from agentenv.sandbox.types import ExecutorInfo

IMAGE = "agentenv-sandbox"
OWNER, HOST = "agentenv.owner", "agentenv.host"
"""Labels of a container: the process that owns it, and the PID namespace and boot in which that process id is valid."""
PATH = "/py/bin:/usr/local/bin:/usr/bin:/bin"
KEPT = ("/usr", "/bin", "/etc", "/lib", "/lib32", "/lib64", "/opt", "/py", "/site")
"""Folders of an image that programs see, if it has them. Mounts that the engine puts over them are not visible."""
CAPABILITIES = ("SYS_ADMIN", "SETUID", "SETGID", "SETPCAP", "NET_ADMIN")
"""Capabilities of the zygote: for namespaces and mounts, the program's uid, and dropping the bounding set. Programs have
none."""
RESERVED = 96
"""Processes of a container that are reserved for its router and template, and for waiting supervisors."""
ANSWER_S = 30.0
CHUNK = struct.Struct(">BxxxI")  # stream number, length
STDERR = 2
COMPLAINT = 1 << 16


def engine() -> Any:
    """Connects to the engine that ``DOCKER_HOST`` or the system's socket names.

    Raises:
        MissingExtra: the package docker is not installed.
        ConfigurationError: no engine answers.
    """
    try:
        docker = importlib.import_module("docker")
    except ImportError as error:
        raise MissingExtra.of("docker", "docker") from error
    try:
        _check_socket()
        return docker.from_env(timeout=ANSWER_S).api
    except (OSError, docker.errors.DockerException) as error:
        raise ConfigurationError(
            f"no Docker engine answers: {error}; start dockerd, or name one in DOCKER_HOST"
        ) from None


def _check_socket() -> None:
    """Raises an ``OSError`` if nobody listens on the engine's local socket; the SDK would leave its own socket open."""
    address = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    if address.startswith("unix://"):
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(ANSWER_S)
            probe.connect(address.removeprefix("unix://"))


@contextlib.contextmanager
def faults(what: str) -> Iterator[None]:
    """Converts every error of the engine in the block, and a lost connection, to an infrastructure failure.

    Raises:
        SandboxFault: the engine failed.
    """
    try:
        yield
    except AgentEnvError:
        raise
    except Exception as error:  # the SDK raises its own errors and those of requests and urllib3
        said = getattr(error, "explanation", None) or str(error) or type(error).__name__
        raise SandboxFault(f"{what}: {said}") from error


class Container:
    """The container of a jail."""

    def __init__(self, client: Any, name: str, sock: socket.socket) -> None:
        self._client, self._name, self._socket = client, name, sock

    def kill(self) -> None:
        """Closes its channel and removes it. If the engine is unreachable, the reaper or the next executor does that."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        remove(self._client, self._name)

    def wait(self) -> None:
        """Waits until the engine has removed it."""
        with contextlib.suppress(Exception):  # it was removed already, or the engine is unreachable
            self._client.wait(self._name, timeout=ANSWER_S, condition="removed")


class Attached:
    """A stream over a container's attached input and output, which the engine sends in chunks with eight-byte headers."""

    def __init__(self, stream: Any) -> None:
        """Takes ownership of the SDK's object: a socket, or a file object that keeps one open."""
        self.errors = io.BytesIO()
        self.socket: socket.socket = getattr(stream, "_sock", stream)
        self._stream = stream
        self._left = 0
        never_stall(self.socket)

    def read(self, size: int) -> bytes:
        """See ``ZygoteStream``. Data on stderr is stored separately."""
        while not self._left:
            head = self._read_exactly(CHUNK.size)
            if not head:
                return b""
            stream, length = CHUNK.unpack(head)
            if stream == STDERR:
                # Read and limited, because a jail that writes to stderr without end would fill the memory of its owner.
                said = self._read_exactly(length)
                self.errors.write(said[: COMPLAINT - self.errors.tell()])
            else:
                self._left = length
        part = self.socket.recv(min(size, self._left))
        self._left -= len(part)
        return part

    def _read_exactly(self, size: int) -> bytes:
        """Reads ``size`` bytes; returns b"" if the stream ends before."""
        parts = b""
        while len(parts) < size:
            part = self.socket.recv(size - len(parts))
            if not part:
                return b""
            parts += part
        return parts

    def write(self, data: bytes) -> None:
        """See ``ZygoteStream``."""
        self.socket.sendall(data)

    def close(self) -> None:
        """See ``ZygoteStream``."""
        self._stream.close()
        self.socket.close()


def host() -> str:
    """Returns a name for this boot of this machine and its PID namespace, within which an owner's process id is valid."""
    return f"{boot()}/{Path('/proc/self/ns/pid').readlink()}"


def remove(client: Any, name: str) -> None:
    """Kills and removes a container, if it and the engine still exist."""
    with contextlib.suppress(Exception):
        client.remove_container(name, force=True, v=True)


def owners(client: Any) -> dict[str, str]:
    """Returns the containers owned by processes of this machine, including ended ones."""
    found = client.containers(all=True, filters={"label": f"{HOST}={host()}"})
    labels = {one["Id"]: parse(one["Labels"].get(OWNER, "")) for one in found}
    return {name: owner for name, owner in labels.items() if owner is not None}


def reap_orphans(client: Any) -> int:
    """Removes the containers of ended owners; returns their number. Called at start-up."""
    # listed before the live processes, so that containers created meanwhile are not included
    found = owners(client)
    alive = living() if found else set()
    orphans = [name for name, owner in found.items() if owner not in alive]
    for name in orphans:
        remove(client, name)
    return len(orphans)


def hardening(client: Any, *, memory_mb: int, processes: int, runtime: str) -> dict[str, Any]:
    """Returns the options that make a container a jail, as the engine's ``HostConfig``."""
    about = client.info()
    if runtime and runtime not in about["Runtimes"]:
        known = ", ".join(about["Runtimes"])
        raise ConfigurationError(f"the Docker engine has no runtime {runtime!r}, only {known}")
    # Half of the memory, so that a container that uses all of its own leaves the machine usable.
    memory = (memory_mb << 20) or about["MemTotal"] // 2
    security = ["no-new-privileges", f"seccomp={json.dumps(seccomp.container_profile())}"]
    if any("apparmor" in one for one in about["SecurityOptions"] or ()):
        # its profile would forbid the zygote to mount; programs never can
        security.append("apparmor=unconfined")
    options: dict[str, Any] = client.create_host_config(
        network_mode="none",
        ipc_mode="none",
        read_only=True,
        tmpfs={"/new": "rw,nosuid,nodev,noexec,size=1m"},
        cap_drop=["ALL"],
        cap_add=list(CAPABILITIES),
        security_opt=security,
        pids_limit=processes,
        mem_limit=memory,
        # Equal to the memory limit, which disables swap: the memory watch would not see swapped memory.
        memswap_limit=memory,
        ulimits=[{"name": "core", "soft": 0, "hard": 0}, {"name": "nofile", "soft": 4096, "hard": 4096}],
        log_config={"type": "none"},
        auto_remove=True,
        runtime=runtime or None,
    )
    return options


def setup(imports: tuple[str, ...]) -> dict[str, object]:
    """Returns the settings for the zygote."""
    return {
        "isolated": True,
        "own_uids": True,
        "root": "/box",
        "kept": KEPT,
        "path": ["/site"],
        "imports": imports,
        "filters": {name: base64.b64encode(code).decode() for name, code in seccomp.filters().items()},
    }


def start(client: Any, image: str, options: dict[str, Any], message: bytes) -> Jail:
    """Starts a new jail. ``Jail.await_ready`` waits until it is ready.

    Raises:
        SandboxFault: the engine does not start it.
    """
    with faults("a container cannot be started"), contextlib.ExitStack() as undo:
        name = client.create_container(
            image,
            entrypoint=["python3", "-s", "-P", "-c", BOOT],
            command=[],
            user="0:0",
            working_dir="/",
            hostname="box",
            environment={**ENVIRONMENT, "PATH": PATH},
            stdin_open=True,
            stop_signal="SIGKILL",  # the init of a PID namespace ignores other signals of an engine that shuts down
            labels={OWNER: label(), HOST: host()},
            host_config=options,
        )["Id"]
        undo.callback(remove, client, name)
        streams = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
        link = Attached(client.attach_socket(name, params=streams))
        undo.callback(link.close)
        client.start(name)
        undo.pop_all()
    return Jail(Container(client, name, link.socket), link, link.errors, message)


def executor(
    *,
    imports: tuple[str, ...] = ("numpy",),
    image: str = IMAGE,
    runtime: str = "",
    memory_mb: int = 0,
    processes: int = 4096,
    **options: Any,
) -> JailExecutor:
    """Makes an executor with containers.

    Args:
        imports: Modules that are imported in advance for every program; numpy only if the image has it.
        image: The name of an image that the engine has. Images are never pulled.
        runtime: The engine's runtime, for example ``runsc`` (gVisor); empty uses its default.
        memory_mb: Memory limit of a whole container in MiB, besides that of each program; 0 is half of the engine's machine.
        processes: Largest number of processes and threads of a whole container. Each run and each session reserves as many
            as its limits allow, so that none can take them from another. If a container is full, another one is started.
        options: Arguments of ``JailExecutor``.

    Raises:
        ConfigurationError: no engine answers, it lacks the image or runtime, or ``processes`` leaves no room for programs.
        MissingExtra: docker or pyseccomp is not installed.
        SandboxFault: the engine answers with an error.
    """
    if processes <= RESERVED:
        raise ConfigurationError(
            f"processes={processes} must be above {RESERVED}, which a container needs for itself"
        )
    client = engine()
    try:
        with faults("the Docker engine fails"):
            if not client.images(name=image):
                raise ConfigurationError(
                    f"the Docker engine has no image {image!r}; run: agentenv sandbox build"
                )
            hardened = hardening(client, memory_mb=memory_mb, processes=processes, runtime=runtime)
            reap_orphans(client)
        # Before the reaper is started, so that a failure here leaves no process behind.
        message = boot_message(setup(imports))
        keeper = watch_over()
    except BaseException:
        client.close()
        raise

    def end() -> None:
        keeper.kill()
        keeper.wait()
        client.close()

    info = ExecutorInfo("docker", isolated=True)
    room = processes - RESERVED
    return JailExecutor(
        info, lambda: start(client, image, hardened, message), room=room, on_close=end, **options
    )


def watch_over() -> subprocess.Popen[bytes]:
    """Starts the reaper: a process that removes this process's containers after its end."""
    return subprocess.Popen(
        [
            sys.executable,
            "-s",
            "-P",
            reaper.__file__,
            str(os.getpid()),
            f"{OWNER}={label()}",
            f"{HOST}={host()}",
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
