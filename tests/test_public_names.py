"""The public names are these and no others; importing them is quick, silent and light. Sub-packages say theirs."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import agentenv

ROOT = Path(agentenv.__file__).parent
PACKAGES = sorted(
    ".".join(path.parent.relative_to(ROOT.parent).parts)
    for path in ROOT.rglob("__init__.py")
    if "__all__" in path.read_text(encoding="utf-8")
)

NAMES = """
    Agent AgentEnvError AsyncEnv ChatFormat CheckpointMismatch Completion ConfigurationError ContextTooSmall
    CorpusError DatasetError Document EndReason Env EnvFault EnvSpec EpisodeOver EvaluationResult Executor
    Fault FinishReason IndexMismatch Info Message MessagePart MissingExtra Observation Origin Passage Policy
    PolicyFault Query QueryContext ReplayDivergence Retriever RetrieverFault RetrieverInfo Sampling
    SandboxFault Score Segment SegmentKind Snapshot SnapshotError SnapshotRefused StateCapability Step SuiteResult
    Task Tool ToolEnv ToolResult ToolStatus TrainConfig TrainResult Trajectory Turn UnknownName VectorEnv
    evaluate evaluate_suite load_config make make_executor make_policy make_retriever make_vec register registered spec
    tool train
"""
HEAVY = {
    "torch",
    "faiss",
    "transformers",
    "sentence_transformers",
    "pydantic",
    "scipy",
    "bm25s",
    "tyro",
    "rich",
}


def test_the_public_names_are_pinned_sorted_and_there() -> None:
    assert agentenv.__all__ == NAMES.split()
    assert agentenv.__all__ == sorted(agentenv.__all__)
    assert all(hasattr(agentenv, name) for name in agentenv.__all__)


def test_importing_is_silent_and_light() -> None:
    code = "import sys, agentenv; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = set(done.stdout.split())
    assert done.stderr == ""
    assert not HEAVY & modules
    assert len(modules) < 600, "412, most of them of numpy, Gymnasium and Python"


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_hands_on_what_it_names(package: str) -> None:
    module = importlib.import_module(package)
    assert len(module.__all__) == len(set(module.__all__))
    assert set(module.__all__) <= set(dir(module))
    folder = Path(str(module.__file__)).parent
    beside = {path.stem for path in folder.glob("*.py")} | {path.name for path in folder.iterdir()}
    assert not beside & set(module.__all__), "a module of that name would stand in the way"
    for name in module.__all__:
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        module.no_such_name  # noqa: B018


@pytest.mark.parametrize("package", [name for name in PACKAGES if name != "agentenv"])
def test_type_checkers_see_the_same_names(package: str) -> None:
    source = ROOT.parent.joinpath(*package.split("."), "__init__.py").read_text(encoding="utf-8")
    blocks = [node for node in ast.parse(source).body if isinstance(node, ast.If)]
    imported = [alias.name for block in blocks for node in block.body for alias in node.names]  # type: ignore[attr-defined]
    assert sorted(imported) == sorted(importlib.import_module(package).__all__)


def test_importing_a_package_loads_none_of_its_modules() -> None:
    lazy = [name for name in PACKAGES if name not in ("agentenv", "agentenv.core")]
    code = f"import sys, {', '.join(lazy)}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not HEAVY & loaded
    assert not [name for name in loaded if name.rpartition(".")[0] in lazy and name not in PACKAGES]
