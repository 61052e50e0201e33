"""Containers in which agents work: commands, files, snapshots and forks, and nothing that is left behind."""

import functools
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentenv.errors import ConfigurationError, SandboxFault, SnapshotError, SnapshotRefused
from agentenv.sandbox import docker, image
from agentenv.sandbox.backends import unavailable
from agentenv.sandbox.labels import label
from agentenv.sandbox.task_container import (
    ContainerLimits,
    ContainerSnapshot,
    TaskContainer,
    _remove_orphaned_images,
    shared_engine,
)

reason = unavailable("docker")
pytestmark = pytest.mark.skipif(bool(reason), reason=f"docker: {reason}")
WITH_PROGRAMS = "agentenv-task-test"
LIMITS = ContainerLimits(memory_mb=256, processes=64)


@functools.cache
def image_with_programs() -> str:
    """An image with bash, timeout and ps, as most have them; that of the sandbox has none of the three."""

    def fill(archive: tarfile.TarFile) -> None:
        files = image.interpreter_files()
        named = {name: shutil.which(name, path="/usr/bin:/bin") for name in ("bash", "timeout", "ps")}
        more = {f"/usr/bin/{name}": Path(path) for name, path in named.items() if path}
        image.add_files(archive, files | more | image.libraries(more.values(), []))

    image._import_image(WITH_PROGRAMS, fill)
    return WITH_PROGRAMS


@pytest.fixture
def start() -> Iterator[Callable[..., TaskContainer]]:
    """Starts containers, and closes them after the test."""
    made: list[TaskContainer] = []

    def run(name: str = docker.IMAGE, limits: ContainerLimits = LIMITS, **options: Any) -> TaskContainer:
        made.append(TaskContainer(name, limits, **options))
        return made[-1]

    yield run
    for container in made:
        container.close()


def said(container: TaskContainer, command: str, **options: Any) -> str:
    return container.run(command, timeout_s=30, **options).output


def own_images() -> list[Any]:
    """Those of this process: other workers have some too."""
    return list(shared_engine().images(filters={"label": f"{docker.OWNER}={label()}"}))


def test_a_command_writes_and_exits(start: Any) -> None:
    found = start(workdir="/usr", env={"NAME": "a b"}).run(
        'pwd; echo "$NAME"; echo lost >&2; exit 3', timeout_s=30
    )
    assert found.output == "/usr\na b\nlost\n"
    assert (found.exit_code, found.timed_out) == (3, False)


def test_files_stay_and_variables_do_not(start: Any) -> None:
    container = start()
    assert said(container, "X=1; echo kept > /file") == ""
    assert said(container, 'cat /file; echo "[$X]"; echo "[$Y]"', env={"Y": "2"}) == "kept\n[]\n[2]\n"


@pytest.mark.parametrize("programs", [True, False], ids=["with bash", "without"])
def test_a_command_may_begin_with_a_dash_and_exit_as_a_killed_one(start: Any, programs: bool) -> None:
    container = start(image_with_programs() if programs else docker.IMAGE)
    assert "-x" in said(container, "-x")
    found = container.run("exit 137", timeout_s=30)
    assert (found.exit_code, found.timed_out) == (137, False)


def test_a_timeout_that_knows_no_options_is_not_used(start: Any) -> None:
    old = "printf '#!/bin/sh\\necho usage: timeout SECS PROG; exit 1\\n' > /usr/bin/timeout; chmod +x /usr/bin/timeout"
    container = start()
    said(container, old)
    assert said(container, "echo works") == "works\n"


def test_long_output_keeps_both_ends_and_is_read_to_its_end(start: Any) -> None:
    text = said(start(), "i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done", output_chars=400)
    assert text.startswith("line 0\nline 1\n")
    assert text.endswith("line 19999\n")
    assert len(text) < 600


@pytest.mark.parametrize("programs", [True, False], ids=["with timeout", "without"])
def test_a_command_that_takes_too_long_is_killed(
    start: Any, programs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentenv.sandbox.task_container._GRACE_S", 5.0)
    container = start(image_with_programs() if programs else docker.IMAGE)
    found = container.run("trap '' TERM; echo begun; while :; do sleep 1; done", timeout_s=1)
    assert found.timed_out
    assert found.output == "begun\n"
    assert said(container, "echo again") == "again\n"


def test_what_a_command_leaves_running_keeps_nobody_waiting(start: Any) -> None:
    container = start()
    begin = time.monotonic()
    assert said(container, "sleep 600 & echo begun") == "begun\n"
    assert time.monotonic() - begin < 60
    with pytest.raises(SnapshotRefused, match="1 processes"):
        container.snapshot()
    container.kill_all()
    container.snapshot().release()


@pytest.mark.parametrize("command", ["echo \0", "a" * 200_000])
def test_a_command_that_no_system_takes(start: Any, command: str) -> None:
    with pytest.raises(ValueError, match="a command has at most"):
        start().run(command, timeout_s=1)


def test_a_snapshot_is_brought_back_as_often_as_it_is_asked_for(start: Any) -> None:
    container = start()
    said(container, "mkdir /rooms; echo first > /rooms/file")
    taken = container.snapshot()
    for _ in range(2):
        said(container, "echo second > /rooms/file; touch /rooms/other; rm -r /usr/bin/sort")
        container.restore(taken)
        assert (
            said(container, "cat /rooms/file; ls /rooms /usr/bin/sort")
            == "first\n/usr/bin/sort\n\n/rooms:\nfile\n"
        )
    taken.release()
    with pytest.raises(SnapshotError, match="restored from its snapshot"):
        container.restore("anything")


def test_a_fork_goes_its_own_way(start: Any) -> None:
    container = start()
    said(container, "echo common > /file")
    twin = container.fork()
    said(container, "echo mine > /file")
    assert said(twin, "cat /file") == "common\n"
    container.close()
    again = twin.fork()
    assert said(again, "cat /file") == "common\n"
    twin.close()
    again.close()
    assert own_images() == []


def test_images_go_when_nobody_uses_them_any_more(start: Any) -> None:
    container = start()
    first = container.snapshot()
    container.restore(first)
    second = container.snapshot()
    first.release()
    assert len(own_images()) == 2  # the container runs on the first, and the second was made of it
    container.restore(second)
    second.release()
    container.close()
    container.close()
    assert own_images() == []
    assert isinstance(first, ContainerSnapshot)


def test_too_many_snapshots_of_snapshots_are_refused(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_deep(*_: Any, **__: Any) -> None:
        raise TaskContainer._errors().APIError("max depth exceeded")

    container = start()
    monkeypatch.setattr(shared_engine(), "commit", too_deep)
    with pytest.raises(SnapshotRefused, match="no more snapshots"):
        container.snapshot()


@pytest.mark.parametrize(
    ("limits", "said"),
    [(ContainerLimits(cpus=10**4), "CPUs"), (ContainerLimits(memory_mb=1), "[Mm]emory")],
    ids=["processors", "memory"],
)
def test_limits_that_the_engine_refuses(limits: ContainerLimits, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        TaskContainer(docker.IMAGE, limits)


def test_files_in_both_directions(start: Any, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "text").write_text("ä\n", encoding="utf-8")
    (tmp_path / "script").write_text("echo runs\n", encoding="utf-8")
    (tmp_path / "script").chmod(0o755)
    container = start()
    container.write_folder(tmp_path, "/tests/deep")
    assert said(container, "cat /tests/deep/sub/text; sh /tests/deep/script") == "ä\nruns\n"
    assert container.read_file("/tests/deep/sub/text") == "ä\n".encode()
    said(container, "ln -s /etc /folder; ln -s /tests/deep/script /link; mkfifo /pipe 2>/dev/null")
    assert [container.read_file(path) for path in ("/none", "/tests", "/link", "/folder")] == [None] * 4


def test_there_is_no_network_and_what_it_may_use_is_bounded(start: Any) -> None:
    container = start()
    assert said(container, "ls /sys/class/net").split() == ["lo"]
    bomb = container.run("i=0; while [ $i -lt 300 ]; do sleep 60 & i=$((i+1)); done", timeout_s=30)
    assert "fork" in bomb.output.lower()
    container.kill_all()
    hog = container.run("/py/bin/python3 -c 'x = bytearray(10**9)'", timeout_s=60)
    assert hog.exit_code != 0
    assert said(container, "echo alive") == "alive\n"
    assert not container.has_ended


def test_a_container_that_is_gone_is_a_failure_of_the_infrastructure(start: Any) -> None:
    container = start()
    docker.remove(shared_engine(), container._name)
    with pytest.raises(SandboxFault, match="a command cannot be run"):
        said(container, "echo")
    with pytest.raises(SandboxFault, match="cannot be read"):
        container.read_file("/etc/passwd")
    with pytest.raises(SandboxFault, match="No such image"):
        start("agentenv-no-such-image")


KILLED = """
import os, signal, sys
from agentenv.sandbox.task_container import ContainerLimits, TaskContainer
container = TaskContainer(sys.argv[1], ContainerLimits(memory_mb=128))
print(container._name, container.snapshot().image, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_leaves_no_container_and_the_next_one_removes_its_images() -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, docker.IMAGE], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout, done.stderr
    name, snapshot = done.stdout.split()
    deadline = time.monotonic() + 60
    while any(one["Id"] == name for one in shared_engine().containers(all=True)):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    _remove_orphaned_images(shared_engine())
    assert snapshot not in [one["Id"] for one in shared_engine().images()]


def test_without_an_engine_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    shared_engine.cache_clear()
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere")
    with pytest.raises(ConfigurationError, match="start dockerd"):
        TaskContainer(docker.IMAGE, LIMITS)
