"""What holds in every test: an error of the package has words. And the device ``fake``, for code that is meant for a GPU.

The device is registered where tests that need it are collected.
"""

import asyncio
import contextlib
import functools
import gc
import importlib
import importlib.util
import os
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentenv.errors import AgentEnvError

# Threads of torch and FAISS sleep while they wait. They would spin between two operations, which takes most of the processor
# time where several processes share the cores. OpenMP reads it when it is loaded, here and in processes that tests start.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def pytest_configure() -> None:
    """Lets no test that draws its inputs fail because the machine is slow."""
    with contextlib.suppress(ImportError):  # the engine's environment is without hypothesis
        from hypothesis import HealthCheck, settings

        settings.register_profile("any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
        settings.load_profile("any-machine")


def pytest_make_parametrize_id(val: object) -> str | None:
    """Names bytes by their length: a packed file holds the time, and all processes must name their tests alike."""
    return f"{len(val)} bytes" if isinstance(val, bytes) else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Searches for no garbage among the modules and tests, which are made here and stay to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Registers the device before the first test: torch counts devices at the first backward pass of a process."""
    if any("separate_device" in getattr(item, "fixturenames", ()) for item in session.items):
        registered_device()


@pytest.fixture(autouse=True)
def _errors_have_words(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails a test in which the package makes an error without words, whoever catches it."""
    wordless: list[str] = []

    def init(error: AgentEnvError, *args: object) -> None:
        super(AgentEnvError, error).__init__(*args)
        maker = sys._getframe(1)
        module = str(maker.f_globals.get("__name__"))
        if module.startswith("agentenv.") and not (args and isinstance(args[0], str) and args[0].strip()):
            wordless.append(f"{type(error).__name__}{args!r} of {module}, line {maker.f_lineno}")

    monkeypatch.setattr(AgentEnvError, "__init__", init)
    yield
    assert wordless == []


@pytest.fixture(autouse=True)
def _event_loops_stay_as_they_were() -> Iterator[None]:
    """Fails a test that leaves loops of its own kind to those after it, which could wait for ever on one."""
    before = asyncio.get_event_loop_policy()
    yield
    after = asyncio.get_event_loop_policy()
    asyncio.set_event_loop_policy(before)
    assert after is before


@pytest.fixture(scope="session")
def separate_device() -> Any:
    """The module ``separate_device.py`` of this folder."""
    return registered_device() or pytest.skip("torch before 2.10 takes no device that is written in Python")


@functools.cache
def registered_device() -> Any:
    """That module, loaded once, since a device is registered once; None where torch is too old."""
    registration = importlib.import_module("torch.utils.backend_registration")
    if not hasattr(registration, "_setup_privateuseone_for_python_backend"):
        return None
    name, path = "separate_device", Path(__file__).with_name("separate_device.py")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


@pytest.fixture
def fake_device(separate_device: Any) -> str:
    """Name of a device that computes on the processor and refuses tensors of the processor."""
    return str(separate_device.NAME)


@pytest.fixture
def device_waits(separate_device: Any) -> "Counter[str]":
    """How often the test has waited for values of the device, by operator."""
    waits: Counter[str] = separate_device.WAITS
    waits.clear()
    return waits
