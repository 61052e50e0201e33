"""The device ``fake`` for tests of code that is meant for a GPU; it is registered where such tests are collected."""

import contextlib
import importlib.util
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest


def pytest_configure() -> None:
    """Lets no test that draws its inputs fail because the machine is slow."""
    with contextlib.suppress(ImportError):  # the engine's environment is without hypothesis
        from hypothesis import HealthCheck, settings

        settings.register_profile("any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
        settings.load_profile("any-machine")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Registers the device before the first test: torch counts devices at the first backward pass of a process."""
    if any("separate_device" in getattr(item, "fixturenames", ()) for item in session.items):
        registered_device()


@pytest.fixture(scope="session")
def separate_device() -> Any:
    """The module ``separate_device.py`` of this folder."""
    return registered_device()


def registered_device() -> Any:
    """That module, loaded once, since a device is registered once."""
    name, path = "separate_device", Path(__file__).with_name("separate_device.py")
    if name not in sys.modules:
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
