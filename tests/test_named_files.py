"""Every file that the documentation or the package names is there; what the wheel lacks is said to be in the repository."""

import ast
import fnmatch
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import agentenv

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "agentenv"
OUTSIDE = ("docs", "benchmarks", "examples", "tests")  # folders that the wheel does not hold
NAMED = re.compile(rf"(?<![\w./-])(?:{'|'.join(OUTSIDE)})/[\w./*-]*\w")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]
MARK = "repository"


def _strings(path: Path) -> Iterator[str]:
    """The texts of a module that a user can meet: of fields and of messages, but not of its own docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    scopes = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    own = {ast.get_docstring(scope, clean=False) for scope in scopes}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value not in own:
            yield node.value


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_names_files_that_are_there(page: Path) -> None:
    named = set(NAMED.findall(page.read_text(encoding="utf-8")))
    placeholders = {name for name in named if re.search(r"[A-Z]{3,}", name) and "README" not in name}
    absent = [name for name in named - placeholders if not list(ROOT.glob(name))]
    assert absent == []


def test_the_readme_says_which_files_the_wheel_lacks() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (sentence,) = re.findall(r"files under ([^;]*?) are in the repository", text, re.S)
    named = {name.partition("/")[0] for name in NAMED.findall(text)}
    assert named <= {part.strip("`/") for part in re.findall(r"`\w+/`", sentence)}


def test_the_readme_names_every_environment() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    own = [id.removeprefix("agentenv/") for id in agentenv.registered() if id.startswith("agentenv/")]
    assert [name for name in own if f"`{name}`" not in text] == []


MODULES = sorted(path for path in PACKAGE.rglob("*.py") if NAMED.search(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_what_the_package_names_is_there_and_marked(module: Path) -> None:
    named = set(NAMED.findall(module.read_text(encoding="utf-8")))
    assert [name for name in named if not list(ROOT.glob(name)) and name != "docs/lab"] == []
    unmarked = [text for text in _strings(module) if "." in "".join(NAMED.findall(text)) and MARK not in text]
    assert unmarked == []


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.toml")), ids=lambda path: path.stem)
def test_what_a_preset_or_an_experiment_names_is_there_and_marked(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    named = NAMED.findall(text)
    assert [name for name in named if not list(ROOT.glob(name))] == []
    assert not named or MARK in text


def test_the_wheel_holds_every_file_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]["agentenv"]
    data = [path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    missing = [
        name
        for name in (str(path.relative_to(PACKAGE)) for path in data if path.suffix != ".py")
        if not any(fnmatch.fnmatch(name, pattern) for pattern in patterns)
    ]
    assert missing == []
