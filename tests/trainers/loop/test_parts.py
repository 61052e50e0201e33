"""The parts of a training run: what is shown while the passages of its questions are indexed."""

import pytest

from agentenv.data.sources import SourceConfig
from agentenv.data.world_config import WorldConfig
from agentenv.evaluation.task_env import EnvConfig, SearchConfig
from agentenv.policies.compute import AUTOMATIC
from agentenv.progress import SilentDisplay
from agentenv.trainers.config.sections import LoraSettings
from agentenv.trainers.loop.parts import open_questions, trained_policy


def test_the_passages_of_the_questions_are_a_phase_of_the_run() -> None:
    pytest.importorskip("faiss", reason="faiss-cpu is not installed")
    phases: list[tuple[str, int]] = []

    class Told(SilentDisplay):
        def phase(self, name: str, total: int) -> None:
            phases.append((name, total))

    policy = trained_policy("tiny", LoraSettings(), AUTOMATIC, seed=0)
    source = SourceConfig(world=WorldConfig(documents=200, questions=3))
    open_questions(source, SearchConfig(encoder="hash"), EnvConfig(), policy, Told())
    assert [phase for phase in phases if phase[0] == "indexing passages"] == [("indexing passages", 200)]
