"""One executor a backend for the whole session: starting jails is most of the time that these tests take."""

import shutil
from collections.abc import Iterator

import pytest

from agentenv.errors import AgentEnvError
from agentenv.sandbox.executor import JailExecutor
from agentenv.sandbox.spec import make_executor
from agentenv.sandbox.types import Limits

LIMITS = Limits(wall_s=10.0, cpu_s=6.0)


def available(backend: str) -> str:
    """Why ``backend`` cannot be tested here, or ''."""
    if backend == "bwrap" and shutil.which("bwrap") is None:
        return "bubblewrap is not installed"
    try:
        made = make_executor(backend, size=1)
    except AgentEnvError as error:
        return str(error)
    result = made.run("print(1)")
    made.close()
    return result.fault


_reasons: dict[str, str] = {}
_made: dict[str, JailExecutor] = {}


def shared(backend: str) -> JailExecutor:
    """The executor of ``backend`` that all tests use; skips where there is none."""
    if backend not in _reasons:
        _reasons[backend] = available(backend)
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


@pytest.fixture
def bwrap() -> JailExecutor:
    return shared("bwrap")


@pytest.fixture
def unsafe() -> JailExecutor:
    return shared("unsafe-local")
