"""One executor a backend for the whole session, and what must be as before after every attack.

Starting jails is most of the time that these tests take.
"""

import functools
import importlib
import itertools
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
DEADLINE_S = 30.0
"""Long enough for a machine that is busy with other things: only what fails waits for it."""
STILL = 30
"""How often in a row, a tenth of a second apart, as many processes are found as before where no more are awaited."""
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


def parent_of(entry: Path) -> int:
    """The parent of a process by its folder in ``/proc``; -1 where it is gone."""
    try:
        stat = (entry / "stat").read_text(encoding="utf-8", errors="replace")
        return int(stat.rpartition(")")[2].split()[1])
    except (OSError, LookupError, ValueError):
        return -1


def number_inside(pid: int) -> int:
    """The number of a process in its own PID namespace, in which 1 is the first process."""
    lines = (Path("/proc") / str(pid) / "status").read_text(encoding="utf-8", errors="replace").splitlines()
    return next(int(line.split()[-1]) for line in lines if line.startswith("NSpid"))


def descendants(roots: set[int]) -> set[int]:
    """``roots`` and every process that descends from them."""
    parents = {int(entry.name): parent_of(entry) for entry in Path("/proc").iterdir() if entry.name.isdigit()}
    found: set[int] = set()
    fresh = roots
    while fresh:
        found |= fresh
        fresh = {pid for pid, parent in parents.items() if parent in fresh} - found
    return found


def first_process(container: str) -> set[int]:
    """The first process of a container, if that has begun and not ended."""
    with suppress(docker_errors().NotFound):
        return {engine().inspect_container(container)["State"]["Pid"]} - {0}
    return set()


def drivers() -> set[int]:
    """The processes that drive the browser of other tests, whose number changes whenever the browser likes."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and parent_of(entry) == os.getpid():
            with suppress(OSError):
                if (entry / "exe").readlink().name == "node":
                    found.add(int(entry.name))
    return found


def own_jails() -> dict[int, int]:
    """The outer processes of this process's jails that are no containers, and the parent of each."""
    mine = labels.owner_of(os.getpid())
    return {
        pid: parent_of(Path("/proc") / str(pid)) for pid, owner in labels.jails().items() if owner == mine
    }


def tree(backend: str = "") -> set[int]:
    """Every process that descends from this one without its browser, or is in one of its containers.

    A test that uses containers leaves out the jails of other backends: they make their processes whenever they are idle.
    """
    roots, others = {os.getpid()}, drivers()
    if backend == "docker":
        others |= set(own_jails())
        for name in containers():
            roots |= first_process(name)
    return descendants(roots) - descendants(others) - {os.getpid()}


def jails_of(executor: JailExecutor) -> list[Any]:
    """Every jail of an executor that has been started."""
    ordered = [*executor._pool._reserve, *itertools.chain(*executor._pool._domains.values())]
    return [one.result() for one in ordered if one.done() and not one.exception()]


@pytest.fixture
def waiting() -> Callable[[JailExecutor], set[int]]:
    """Finds every process of an executor's jails that is a program or is to be one: the kernel would kill those first."""

    def find(executor: JailExecutor) -> set[int]:
        found: set[int] = set()
        roots: set[int] = set()
        for jail in jails_of(executor):
            outside = jail._outside
            roots |= first_process(outside._name) if isinstance(outside, docker.Container) else {outside.pid}
        for pid in descendants(roots):
            with suppress(OSError, ValueError):
                score = (Path("/proc") / str(pid) / "oom_score_adj").read_text(encoding="ascii")
                if int(score) == 1000:
                    found.add(pid)
        return found

    return find


def at_rest(backend: str) -> int:
    """The fewest processes once all jails have made ready what they keep.

    Each has a fork template and some supervisors, each of these with the process of a run.
    """
    spares = 1 + 2 * SPARES
    if backend == "docker":
        return len(tree() - descendants(set(own_jails()))) + len(containers()) * (1 + spares)
    parents = own_jails()
    own = [pid for pid, parent in parents.items() if parent == os.getpid()]
    # A jail without walls is its zygote alone, and what it forks bears its name.
    walled = sum(pid not in parents.values() for pid in own)
    return len(own) * (1 + spares) + walled


def settled(backend: str) -> None:
    """Waits until their number no longer changes: every jail makes new supervisors after a run, when it is idle."""
    end, count, still = time.monotonic() + DEADLINE_S, len(tree(backend)), 0
    # A jail of another test may keep less, for ever: what matters is that nothing changes any more.
    while time.monotonic() < end and still < STILL and not (still and count >= at_rest(backend)):
        time.sleep(0.1)
        before, count = count, len(tree(backend))
        still = still + 1 if count == before else 0
    assert still, f"{before} processes, then {count}"


def described(pid: int) -> str:
    """What is known of a process."""
    with suppress(OSError):
        status = (Path("/proc") / str(pid) / "status").read_text(encoding="utf-8", errors="replace")
        return " ".join(
            line for line in status.splitlines() if line.startswith(("Name", "State", "Pid", "PPid"))
        )
    return f"{pid}, which is gone"


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
        settled(self._backend)
        self._processes, self._containers = tree(self._backend), self._count()
        self._mounts, self._descriptors = self._mount_table(), descriptors()
        self._jails = self._count_jails()

    def _count(self) -> int:
        return len(containers()) if self._backend == "docker" else 0

    @staticmethod
    def _count_jails() -> int:
        """The jails of all executors: one has more of them once programs of more domains have run at a time."""
        pools = [executor._pool for executor in _made.values()]
        return sum(len(pool._reserve) + sum(map(len, pool._domains.values())) for pool in pools)

    @staticmethod
    def _mount_table() -> list[str]:
        """Without the containers of engines, which are counted apart and may be other people's."""
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
        of_engines = ("/overlay2/", " nsfs ", "/runtime-runc/")
        return [line for line in lines if not any(part in line for part in of_engines)]

    def _more(self) -> int:
        return self._count_jails() - self._jails

    def _left(self) -> list[str]:
        """Every process that there was not before, where there are more of them than jails at rest have."""
        found = tree(self._backend)
        if len(found) <= len(self._processes) + self._more() * PROCESSES:
            return []
        return [described(pid) for pid in sorted(found - self._processes)]

    def holds(self) -> None:
        """The next run works, and nothing is left of the ones before."""
        assert self._executor.run("print(6 * 7)").stdout == "42\n"
        left = eventually(self._left, [])
        assert not left, f"a process is left, among {left}"
        in_containers = self._backend == "docker"
        assert eventually(lambda: self._count() <= self._containers + self._more() * in_containers, True)
        assert eventually(lambda: descriptors() <= self._descriptors + self._more() * DESCRIPTORS, True)
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
