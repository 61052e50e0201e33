"""An evaluation as programs run it: the card of the policy, what is kept of its settings, the phases that are shown."""

from pathlib import Path
from typing import Any

import pytest

from agentenv.data.world import WorldConfig, write_world
from agentenv.evaluation.benchmark import Benchmark, Given, run_benchmark
from agentenv.evaluation.records import read_records
from agentenv.policies.agent import AgentPolicy
from agentenv.policies.card import EpisodeCard
from agentenv.policies.scripted import ScriptedPolicy
from agentenv.progress import SilentDisplay
from agentenv.retrievers.encoder import HashEncoder

SCRIPT = {"run-0-0": ["<search>who founded it</search>", "<answer>nobody</answer>"]}


class Display(SilentDisplay):
    """Keeps the phases."""

    def __init__(self) -> None:
        self.phases: dict[str, int] = {}

    def phase(self, name: str, total: int) -> None:
        self.phases[name] = total


class Carded(ScriptedPolicy):
    """A scripted policy with a card."""

    card = EpisodeCard(observation_tokens=12)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("worlds") / "world"
    write_world(WorldConfig(seed=11, documents=200, questions=4), folder)
    return folder


def evaluated(
    world: Path, out: Path, policy: Any, display: Display | None = None, **more: Any
) -> dict[str, Any]:
    given: dict[str, Any] = {"retriever": "bm25", "limit": 1, "bounds": False} | more
    benchmark = Benchmark("fictional", "mine", data=world, **given)
    return run_benchmark(benchmark, out, display or Display(), given=Given(policy))


@pytest.mark.parametrize(("kind", "most"), [(Carded, 12), (ScriptedPolicy, 500)])
def test_an_observation_is_as_long_as_the_card_of_the_policy_says(
    world: Path, tmp_path: Path, kind: Any, most: int
) -> None:
    evaluated(world, tmp_path / "out", kind(SCRIPT))
    (record,) = read_records(tmp_path / "out" / "episodes.jsonl")
    words = len(record["turns"][0]["observation"].split())
    assert words <= most
    assert words > most / 10


def test_results_say_how_they_were_sampled(world: Path, tmp_path: Path) -> None:
    """How many episodes run at a time decides batches, and nothing where there are none."""
    batched = evaluated(world, tmp_path / "batched", ScriptedPolicy(SCRIPT), concurrency=8)["settings"]
    agent = evaluated(world, tmp_path / "agent", AgentPolicy(lambda messages: "<answer>nobody</answer>"))[
        "settings"
    ]
    assert (batched["decoding"], batched["concurrency"]) == ("greedy", 8)
    assert agent["decoding"] == "greedy"
    assert "concurrency" not in agent


def test_passages_that_are_encoded_are_a_phase_of_their_own(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentenv.retrievers.encoder.make_encoder", lambda name: HashEncoder())
    display = Display()
    evaluated(world, tmp_path / "out", ScriptedPolicy(SCRIPT), display, retriever="")
    assert display.phases["index"] == 200
