"""The public names are these and no others; importing them is quick, silent and light."""

import subprocess
import sys

import agentenv

NAMES = """
    Agent AgentEnvError AsyncEnv ChatFormat CheckpointMismatch Completion ConfigurationError ContextTooSmall
    CorpusError DatasetError Document EndReason Env EnvFault EnvSpec EpisodeOver EvaluationResult Executor
    Fault FinishReason IndexMismatch Info Message MessagePart MissingExtra Observation Origin Passage Policy
    PolicyFault Query QueryContext ReplayDivergence Retriever RetrieverFault RetrieverInfo Sampling
    SandboxFault Score Segment SegmentKind Snapshot SnapshotError SnapshotRefused StateCapability Step Task
    Tool ToolEnv ToolResult ToolStatus TrainConfig TrainResult Trajectory Turn UnknownName VectorEnv
    evaluate load_config make make_executor make_policy make_retriever make_vec register registered spec
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


def test_importing_is_quick_silent_and_light() -> None:
    # Processor time, not wall time: other work on the machine must not decide.
    code = (
        "import time; start = time.process_time(); import agentenv; used = time.process_time() - start; "
        "import sys; print(used); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seconds, modules = done.stdout.splitlines()
    assert done.stderr == ""
    assert not HEAVY & set(modules.split())
    assert float(seconds) < 0.5, "0.2 s on an idle core, of which Gymnasium and numpy take nearly all"
