"""What only the Docker backend has: its image, its stream, its profile, its containers and who removes them."""

import contextlib
import gc
import io
import os
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from agentenv.cli.main import main
from agentenv.errors import ConfigurationError, SandboxFault
from agentenv.sandbox import docker, image, seccomp
from agentenv.sandbox.backends import make_executor, unavailable
from agentenv.sandbox.executor import JailExecutor
from agentenv.sandbox.jail import confine
from agentenv.sandbox.labels import PREFIX, label, owner_of
from agentenv.sandbox.types import ExecResult, ExecStatus, ExecutionLimits

ROOT = Path(__file__).resolve().parents[2]
LEFT_S = 5.0


@pytest.fixture(name="client")
def client_(docker: JailExecutor) -> Iterator[Any]:
    """A client of the engine, where there is one."""
    from agentenv.sandbox.docker import engine

    made = engine()
    yield made
    made.close()


def created(client: Any, labels: dict[str, str]) -> str:
    """A container that was never started."""
    name: str = client.create_container(docker.IMAGE, ["python3"], labels=labels)["Id"]
    return name


def exists(client: Any, name: str) -> bool:
    return bool(client.containers(all=True, filters={"id": name}))


def test_the_stream_is_unwrapped_and_complaints_are_put_aside() -> None:
    ours, theirs = socket.socketpair()
    link = docker.Attached(ours)
    theirs.sendall(docker.CHUNK.pack(1, 5) + b"he" + b"llo")
    theirs.sendall(docker.CHUNK.pack(2, 4) + b"oops" + docker.CHUNK.pack(1, 1) + b"!")
    assert [link.read(3), link.read(9), link.read(9)] == [b"hel", b"lo", b"!"]
    assert link.errors.getvalue() == b"oops"
    link.write(b"back")
    assert theirs.recv(9) == b"back"
    theirs.sendall(docker.CHUNK.pack(1, 5)[:3])
    theirs.close()
    assert link.read(1) == b""
    link.close()


def test_a_containers_profile_names_what_is_allowed() -> None:
    allowed, clone3, clone, unshare = seccomp.container_profile()["syscalls"]
    assert len(set(allowed["names"])) == len(allowed["names"])
    zygotes = {"mount", "umount2", "pivot_root", "chroot"}
    assert set(allowed["names"]) & set(seccomp.DENIED.split()) == zygotes
    assert (clone3["action"], clone3["errnoRet"]) == ("SCMP_ACT_ERRNO", 38)
    pid, mount, network = 0x20000000, 0x00020000, 0x40000000
    for rule, name, flags in ((clone, "clone", pid), (unshare, "unshare", mount | network)):
        namespaces = seccomp.NAMESPACE_FLAGS & ~rule["args"][0]["value"]
        assert (rule["names"], namespaces) == ([name], flags)


def test_every_program_has_a_uid_of_its_own() -> None:
    uids = [confine.draw_uid({"isolated": True, "own_uids": True}) for _ in range(20)]
    assert len(set(uids)) > 10
    assert min(uids) >= 1000
    assert confine.draw_uid({"isolated": True, "own_uids": False}) == 0


def test_the_image_of_the_interpreter_holds_what_programs_need() -> None:
    files = image.interpreter_files()
    library = f"/py/lib/{Path(os.__file__).parent.name}"
    for place in ("/py/bin/python3", f"{library}/json/__init__.py", "/site/numpy/__init__.py", "/usr/bin/sh"):
        assert place in files
    assert any(Path(place).name.startswith("libc.so") for place in files)
    for folder in ("site-packages", "test", "ensurepip"):
        assert not any(place.startswith(f"{library}/{folder}/") for place in files)
    assert all(path.is_file() for path in files.values())


def test_files_enter_the_archive_readable_by_all_below_folders_and_links(tmp_path: Path) -> None:
    source = tmp_path / "program"
    source.write_text("x")
    source.chmod(0o700)
    (tmp_path / "link").symlink_to(source)
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        image.add_files(archive, {"/usr/bin/a": source, "/lib/b": tmp_path / "link"})
    stream.seek(0)
    with tarfile.open(fileobj=stream) as archive:
        found = {entry.name: (entry.mode, entry.uid, entry.linkname) for entry in archive}
    assert found["usr/bin"] == (0o755, 0, "")
    assert found["usr/bin/a"] == found["lib/b"] == (0o755, 0, "")
    assert found["bin"][2] == "usr/bin"
    assert found["lib"][2] == ""  # a folder of its own, as on a system without one /usr


def test_what_cannot_become_an_image_is_said_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigurationError, match="python3"):
        image.build_from_root(tmp_path)
    with pytest.raises(ConfigurationError, match="Dockerfile"):
        image.build_from_dockerfile(tmp_path / "Dockerfile")
    assert main(["sandbox", "build", "--root", str(tmp_path), "--dockerfile", str(tmp_path)]) == 1
    assert "--dockerfile" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_where_no_engine_answers_the_backend_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("docker")
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    assert "no Docker engine answers" in unavailable("docker")
    gc.collect()  # the SDK leaves the socket open that it could not connect


def test_a_missing_image_and_an_unknown_runtime_are_named(docker: JailExecutor) -> None:
    with pytest.raises(ConfigurationError, match="agentenv-nothing"):
        make_executor("docker", image="agentenv-nothing")
    with pytest.raises(ConfigurationError, match="'runsk'"):
        make_executor("docker", runtime="runsk")
    with make_executor("docker", runtime="runc", size=1) as executor:
        assert executor.run("print(1)").stdout == "1\n"


def test_a_container_that_does_not_start_is_a_typed_result(client: Any, tmp_path: Path) -> None:
    (tmp_path / "py" / "bin").mkdir(parents=True)
    (tmp_path / "py" / "bin" / "python3").write_text("no program")
    assert image.build_from_root(tmp_path, "agentenv-broken") > 0
    try:
        with make_executor("docker", image="agentenv-broken", size=1) as broken:
            result = broken.run("1")
        assert result.status is ExecStatus.SANDBOX_ERROR
        assert "container" in result.fault or "jail" in result.fault
    finally:
        client.remove_image("agentenv-broken", force=True)


def test_an_image_is_made_by_a_dockerfile(client: Any, tmp_path: Path) -> None:
    dockerfile = tmp_path / "Dockerfile"
    dockerfile.write_text(f"FROM {docker.IMAGE}\nENV MADE=here\n")
    try:
        words = ["sandbox", "build", "--dockerfile", str(dockerfile), "--image", "agentenv-derived"]
        assert main(words) == 0
        with make_executor("docker", image="agentenv-derived", size=1) as executor:
            assert executor.run("import os\nprint(os.environ['MADE'])").stdout == "here\n"
    finally:
        client.remove_image("agentenv-derived", force=True)
    dockerfile.write_text(f"FROM {docker.IMAGE}\nCOPY nothing /\n")
    with pytest.raises(ConfigurationError, match=r"cannot be built.*nothing"):
        image.build_from_dockerfile(dockerfile, "agentenv-derived")


def test_a_container_has_the_hardened_options(docker: JailExecutor, client: Any) -> None:
    from agentenv.sandbox.docker import CAPABILITIES, owners

    docker.warm()
    name = next(name for name, owner in owners(client).items() if owner == owner_of(os.getpid()))
    options = client.inspect_container(name)["HostConfig"]
    assert (options["NetworkMode"], options["IpcMode"], options["ReadonlyRootfs"]) == ("none", "none", True)
    assert (options["CapDrop"], tuple(options["CapAdd"])) == (["ALL"], CAPABILITIES)
    assert options["Memory"] == options["MemorySwap"] > 0
    assert options["PidsLimit"] > 0
    assert options["AutoRemove"]
    assert not options["Binds"]
    assert not options["Privileged"]
    assert options["LogConfig"]["Type"] == "none"
    assert {(one["Name"], one["Soft"], one["Hard"]) for one in options["Ulimits"]} >= {("core", 0, 0)}
    assert "no-new-privileges" in options["SecurityOpt"]
    assert any('"defaultAction": "SCMP_ACT_ERRNO"' in one for one in options["SecurityOpt"])


def test_start_up_removes_containers_of_the_dead_and_of_nobody_else(client: Any) -> None:
    here = docker.host()
    orphan = created(client, {docker.OWNER: f"{PREFIX}:{'0' * 24}", docker.HOST: here})
    elsewhere = created(client, {docker.OWNER: f"{PREFIX}:{'0' * 24}", docker.HOST: "another machine"})
    own = created(client, {docker.OWNER: label(), docker.HOST: here})
    try:
        assert docker.reap_orphans(client) >= 1
        assert [exists(client, name) for name in (orphan, elsewhere, own)] == [False, True, True]
    finally:
        for name in (elsewhere, own):
            docker.remove(client, name)


OWNER = """
import time
from agentenv.sandbox import docker
from agentenv.sandbox.labels import label
from agentenv.sandbox.backends import make_executor
executor = make_executor("docker", size=1)
session = executor.open()
session.run("x = 1")
session.snapshot()
labels = {docker.OWNER: label(), docker.HOST: docker.host()}
docker.engine().create_container(docker.IMAGE, ["python3"], labels=labels)
print("ready", flush=True)
executor.run("import os, time\\nos.fork()\\ntime.sleep(600)")
"""


def test_nothing_is_left_of_a_killed_owner_not_even_what_it_never_started(client: Any) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER], stdout=subprocess.PIPE, env=environment, text=True
    )
    assert owner.stdout is not None

    def left() -> list[Any]:
        return [one for one in client.containers(all=True) if one["Labels"].get(docker.OWNER, "") == name]

    with owner, owner.stdout:
        assert owner.stdout.readline() == "ready\n"
        name = f"{PREFIX}:{owner_of(owner.pid)}"  # and not the number of the process
        assert len(left()) >= 2
        pids = [client.inspect_container(one["Id"])["State"]["Pid"] for one in left()]
        owner.send_signal(signal.SIGKILL)
    end = time.monotonic() + 2 * LEFT_S
    while left() and time.monotonic() < end:
        time.sleep(0.05)
    assert left() == []
    assert not any(pid and Path(f"/proc/{pid}").exists() for pid in pids)


SDK_LEAVES_SOCKETS = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
"""Its sockets for a connection that failed are closed by the garbage collector."""


class Relay:
    """An address of the engine that can go away, with all that is connected through it."""

    def __init__(self, address: Path, engine: str) -> None:
        self.address, self._engine = address, engine
        self._ends: set[socket.socket] = set()
        self.begin()

    def begin(self) -> None:
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(str(self.address))
        self._door.listen()
        threading.Thread(target=self._accept, args=(self._door,), daemon=True).start()

    def _accept(self, door: socket.socket) -> None:
        with suppress(OSError):
            while True:
                near, far = door.accept()[0], socket.socket(socket.AF_UNIX)
                far.connect(self._engine)
                self._ends |= {near, far}
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=(source, sink), daemon=True).start()

    @staticmethod
    def _carry(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def end(self) -> None:
        self.address.unlink()
        for one in (self._door, *self._ends):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._ends.clear()


@pytest.fixture
def relay(docker: JailExecutor, monkeypatch: pytest.MonkeyPatch) -> Iterator[Relay]:
    """The engine, behind an address of the test's own; what the SDK has left of it is collected at the end."""
    address = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    if not address.startswith("unix://"):
        pytest.skip("the engine is not on this machine")
    before = {*threading.enumerate()}
    with tempfile.TemporaryDirectory() as folder:
        made = Relay(Path(folder, "engine.sock"), address.removeprefix("unix://"))
        monkeypatch.setenv("DOCKER_HOST", f"unix://{made.address}")
        yield made
        if made.address.exists():
            made.end()
    for thread in {
        *threading.enumerate()
    } - before:  # each may hold a socket still, by the error that it ended with
        thread.join(10)
    gc.collect()


@SDK_LEAVES_SOCKETS
def test_an_engine_that_dies_is_a_result_and_one_that_comes_back_is_used(relay: Relay) -> None:
    with make_executor("docker", size=1) as executor, executor.open() as session:
        assert session.run("x = 1").status is ExecStatus.OK
        results: list[ExecResult] = []
        slow = "import time; time.sleep(30)"
        running = threading.Thread(target=lambda: results.append(executor.run(slow)))
        running.start()
        time.sleep(0.5)
        relay.end()
        running.join(25)
        results += [executor.run("print(1)"), session.run("x")]
        assert [result.status for result in results] == [ExecStatus.SANDBOX_ERROR] * 3
        assert all(result.fault for result in results)
        with pytest.raises(SandboxFault):
            executor.open()
        relay.begin()
        assert executor.run("print(6 * 7)").stdout == "42\n"
        assert session.run("6 * 7").value == "42"


@SDK_LEAVES_SOCKETS
def test_an_executor_can_be_closed_when_its_engine_is_gone(relay: Relay) -> None:
    executor = make_executor("docker", size=1)
    assert executor.run("1").ok
    relay.end()
    executor.close()


FORKS = """
import os, time
def fill():
    made = 0
    while made < 200:
        try:
            if os.fork() == 0:
                time.sleep(60); os._exit(0)
        except OSError:
            break
        made += 1
    return made
"""


def test_sessions_that_fork_all_they_can_take_nothing_from_a_neighbour(client: Any) -> None:
    """A container has room for two of these sessions, so five of them need three containers."""
    limits = ExecutionLimits(wall_s=20.0, processes=20, snapshots=4)
    with make_executor("docker", size=1, slots=4, processes=docker.RESERVED + 60, limits=limits) as executor:
        with contextlib.ExitStack() as stack:
            sessions = [stack.enter_context(executor.open()) for _ in range(5)]
            made = [session.run(f"{FORKS}\nfill()") for session in sessions]
            assert [result.status for result in made] == [ExecStatus.OK] * 5, made
            assert min(int(result.value or 0) for result in made) >= 20 - 1
            innocent = "import os\nimport subprocess\nsubprocess.run(['true'], check=True); print('forked')"
            for _ in range(3):
                result = executor.run(innocent)
                assert (result.status, result.stdout) == (ExecStatus.OK, "forked\n"), result
            late = stack.enter_context(executor.open())
            assert late.run(f"{innocent}\n7").value == "7"
        assert executor.run("print(1)").stdout == "1\n"


def test_a_fork_reserves_processes_of_its_own(client: Any) -> None:
    """A container has room for a session and one fork: the others are built again in another one."""
    limits = ExecutionLimits(wall_s=20.0, processes=20, snapshots=4)
    bounds: dict[str, Any] = {"size": 1, "slots": 4, "processes": docker.RESERVED + 60, "limits": limits}
    with make_executor("docker", **bounds) as executor, contextlib.ExitStack() as stack:
        session = stack.enter_context(executor.open())
        session.run(f"x = [1]\nopen('f', 'w').write('kept')\n{FORKS}")
        forks = [session, *map(stack.enter_context, session.fork(3))]
        assert len({id(fork._group) for fork in forks}) > 1
        for fork in forks:
            result = fork.run("(x, open('f').read(), fill() >= 19)")
            assert (result.status, result.value) == (ExecStatus.OK, "([1], 'kept', True)"), result
        for fork in forks:
            assert fork.run("x").value == "[1]"
        forks[1].close()
        with executor.open() as session, session.fork() as fork:
            assert [session.run("1").value, fork.run("2").value] == ["1", "2"]
