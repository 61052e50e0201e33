"""The draw of mutants: its files and tests are there, and what is explained still stands in the source."""

import importlib.util
import re
import sys
import tomllib
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SETTINGS: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
    "mutmut"
]
EXPLAINED: list[dict[str, str]] = tomllib.loads(
    (ROOT / "benchmarks" / "mutants_explained.toml").read_text(encoding="utf-8")
)["mutant"]


@cache
def mutants() -> ModuleType:
    """The script, which finds its neighbours where it lies."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        spec = importlib.util.spec_from_file_location("mutants", ROOT / "benchmarks" / "mutants.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))
    return module


@pytest.mark.parametrize("name", ["only_mutate", "do_not_mutate"])
def test_every_pattern_of_the_source_names_a_file(name: str) -> None:
    assert all(list(ROOT.glob(pattern)) for pattern in SETTINGS[name])


def test_every_test_that_may_be_run_is_there() -> None:
    words = [word for word in SETTINGS["pytest_add_cli_args_test_selection"] if not word.startswith("-")]
    assert all((ROOT / word.partition("::")[0]).exists() for word in words)


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("agentenv.core.acting.x_step_env__mutmut_8", "agentenv.core.acting"),
        (
            "agentenv.core.concurrency.threads.xǁ_Poolǁ_staff__mutmut_19",
            "agentenv.core.concurrency.threads",
        ),
    ],
)
def test_the_module_of_a_mutant_may_lie_at_any_depth(name: str, module: str) -> None:
    assert mutants().module_of(name) == module


@pytest.mark.parametrize("row", EXPLAINED, ids=lambda row: f"{row['function']} {row['after'][-30:]}")
def test_what_is_explained_stands_in_its_function(row: dict[str, str]) -> None:
    """A row whose function or lines have changed explains nothing any more."""
    path = ROOT / f"{mutants().module_of(row['function']).replace('.', '/')}.py"
    name = re.split(r"ǁ|\.x_", row["function"])[-1]
    source = path.read_text(encoding="utf-8")
    assert re.search(rf"def {re.escape(name)}\(", source)
    lines = {line.strip() for line in source.splitlines()}
    assert {*row["before"].splitlines()} <= lines
    assert row["before"] != row["after"]
