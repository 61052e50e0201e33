"""One executor a backend for the whole session, and what must be as before after every attack.

Starting jails is most of the time that these tests take.
"""

import functools
import importlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from agentenv.sandbox import docker, labels
from agentenv.sandbox.backends import make_executor, unavailable
from agentenv.sandbox.executor import JailExecutor
from agentenv.sandbox.jail.router import SPARES
from agentenv.sandbox.jail_session import JailSession
from agentenv.sandbox.types import ExecutionLimits

LIMITS = ExecutionLimits(wall_s=10.0, cpu_s=6.0)
DEADLINE_S = 5.0
WALLED = ("bwrap", "docker")
PROCESSES, DESCRIPTORS = 3 + 2 * SPARES, 3
"""Of one jail at rest, at most."""


_reasons: dict[str, str] = {}
_made: dict[str, JailExecutor] = {}


def shared(backend: str) -> JailExecutor:
    """The executor of ``backend`` that all tests use; skips where there is none."""
    if backend not in _reasons:
        _reasons[backend] = unavailable(backend)
    if _reasons[backend]:
        pytest.skip(f"{backend}: {_reasons[backend]}")
    if backend not in _made:
        _made[backend] = make_executor(backend, size=1, limits=LIMITS)
    return _made[backend]


@pytest.fixture(scope="session", autouse=True)
def _close_all() -> Iterator[None]:
    yield
    for executor in _made.values():
        executor.close()
    _made.clear()
    if engine.cache_info().currsize:
        engine().close()


@pytest.fixture
def bwrap() -> JailExecutor:
    return shared("bwrap")


@pytest.fixture(name="docker")
def docker_() -> JailExecutor:
    return shared("docker")


@pytest.fixture
def unsafe() -> JailExecutor:
    return shared("unsafe-local")


@functools.cache
def engine() -> Any:
    return docker.engine()


def docker_errors() -> Any:
    return importlib.import_module("docker.errors")


def containers() -> set[str]:
    """The containers that this process owns."""
    return {name for name, owner in docker.owners(engine()).items() if owner == labels.owner_of(os.getpid())}


def tree(backend: str = "") -> set[int]:
    """Every process that descends from this one, or is in one of its containers."""
    roots = {os.getpid()}
    if backend == "docker":
        for name in containers():
            with suppress(docker_errors().NotFound):  # it has ended since
                roots.add(engine().inspect_container(name)["State"]["Pid"])
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (
                    (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
                )
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1])
    found, fresh = set(), roots
    while fresh:
        found |= fresh
        fresh = {pid for pid, parent in parents.items() if parent in fresh} - found
    return found - {os.getpid()}


@pytest.fixture
def waiting() -> Callable[[JailExecutor], set[int]]:
    """Finds every process of an executor's jails that is a program or is to be one: the kernel would kill those first."""

    def find(executor: JailExecutor) -> set[int]:
        found = set()
        for pid in tree(executor.info().name):
            with suppress(OSError):
                score = (Path("/proc") / str(pid) / "oom_score_adj").read_text(encoding="ascii")
                if int(score) == 1000:
                    found.add(pid)
        return found

    return find


def at_rest(backend: str) -> int:
    """The fewest processes once all jails have made ready what they keep.

    Each has a fork template and some supervisors, each of these with the process of a run.
    """
    spares, parents = 1 + 2 * SPARES, {}
    for pid, owner in labels.jails().items():
        with suppress(OSError):
            stat = (Path("/proc") / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
            mine = owner == labels.owner_of(os.getpid())
            parents[pid] = int(stat.rpartition(")")[2].split()[1]) if mine else 0
    own = [pid for pid, parent in parents.items() if parent == os.getpid()]
    # A jail without walls is its zygote alone, and what it forks bears its name.
    walled = sum(pid not in parents.values() for pid in own)
    return len(own) * (1 + spares) + walled + (len(containers()) * (1 + spares) if backend == "docker" else 0)


def settled(backend: str) -> int:
    """How many they are once that no longer changes: every jail makes new supervisors after a run, when it is idle."""
    end, counts = time.monotonic() + DEADLINE_S, [-1, len(tree(backend))]
    while (counts[-1] != counts[-2] or counts[-1] < at_rest(backend)) and time.monotonic() < end:
        time.sleep(0.1)
        counts.append(len(tree(backend)))
    return counts[-1]


def descriptors() -> int:
    """Open descriptors of this process."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def eventually(check: Callable[[], Any], wanted: Any) -> Any:
    """``check()`` once it equals ``wanted``, or what it gives when the deadline passes."""
    end = time.monotonic() + DEADLINE_S
    while (found := check()) != wanted and time.monotonic() < end:
        time.sleep(0.02)
    return found


class Baseline:
    """The state before an attack."""

    def __init__(self, executor: JailExecutor) -> None:
        executor.run("1")  # whatever is started once is started now
        executor.warm()
        self._executor, self._backend = executor, executor.info().name
        self._processes, self._containers = settled(self._backend), self._count()
        self._mounts, self._descriptors = self._mount_table(), descriptors()
        self._jails = self._count_jails()

    def _count(self) -> int:
        return len(containers()) if self._backend == "docker" else 0

    def _count_jails(self) -> int:
        """The jails of the executor, which has more of them once programs of more domains have run at a time."""
        pool = self._executor._pool
        return len(pool._reserve) + sum(map(len, pool._domains.values()))

    @staticmethod
    def _mount_table() -> list[str]:
        """Without the containers of engines, which are counted apart and may be other people's."""
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
        return [line for line in lines if "/overlay2/" not in line and " nsfs " not in line]

    def holds(self) -> None:
        """The next run works, and nothing is left of the ones before."""
        assert self._executor.run("print(6 * 7)").stdout == "42\n"
        more = self._count_jails() - self._jails
        processes = self._processes + more * PROCESSES
        assert eventually(lambda: len(tree(self._backend)) <= processes, True), "a process is left"
        containers = self._containers + more * (self._backend == "docker")
        assert eventually(lambda: self._count() <= containers, True)
        assert eventually(lambda: descriptors() <= self._descriptors + more * DESCRIPTORS, True)
        assert self._mount_table() == self._mounts


@pytest.fixture(params=WALLED)
def doomed(request: pytest.FixtureRequest) -> Iterator[JailExecutor]:
    """An executor of the test's own, whose jails it may kill."""
    shared(request.param)
    with make_executor(request.param, size=1) as executor:
        yield executor


@pytest.fixture(params=WALLED)
def box(request: pytest.FixtureRequest) -> Iterator[JailExecutor]:
    """Every backend with walls; afterwards the owner is alive, the next run works and nothing is left."""
    yield from watched(request.param)


@pytest.fixture
def session(box: JailExecutor) -> Iterator[JailSession]:
    """A session in ``box``."""
    with box.open(limits=ExecutionLimits(wall_s=20.0)) as opened:
        yield opened


@pytest.fixture(params=WALLED, scope="module")
def box_of_module(request: pytest.FixtureRequest) -> Iterator[JailExecutor]:
    """As ``box``, for modules of many rows: looking for what is left takes longer than most of them."""
    yield from watched(request.param)


def watched(backend: str) -> Iterator[JailExecutor]:
    """The executor of ``backend``; afterwards nothing may be left of what it ran."""
    executor = shared(backend)
    before = Baseline(executor)
    yield executor
    before.holds()
