"""Imports and runs benchmarks within the process of the tests, which has imported what they import."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs the script of a name with the words of its command line, and returns what it prints."""
    torch = pytest.importorskip("torch", reason="the extra train is not installed")

    def run(name: str, *words: str) -> str:
        monkeypatch.syspath_prepend(FOLDER)
        monkeypatch.setattr(sys, "argv", [str(FOLDER / f"{name}.py"), *words])
        threads = torch.get_num_threads()
        capsys.readouterr()
        try:
            importlib.import_module(name).main()
        finally:
            torch.set_num_threads(threads)
        return capsys.readouterr().out

    return run


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Imports the benchmark of a name."""
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module
