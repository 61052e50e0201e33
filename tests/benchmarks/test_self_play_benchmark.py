"""The benchmark of self-play: what counts as true and as unique, its intervals, and that it runs."""

import importlib.util
import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agentenv.data.world import WorldConfig
from agentenv.data.world_facts import generate_facts
from agentenv.data.world_solver import Solver

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("self_play_benchmark", ROOT / "benchmarks" / "self_play.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_pair_is_true_where_the_world_says_so_and_unique_where_it_says_nothing_else(
    script: ModuleType,
) -> None:
    facts = generate_facts(WorldConfig(documents=200, questions=0))
    solver = Solver(facts)
    person = int(facts.known("person", "birthplace")[0])
    name = facts.names["person"][person]
    town = facts.names["place"][int(facts.values["person"]["birthplace"][person])]
    question = f"Where was {name} born?"
    assert script.verdict(solver, question, town.lower()) == (True, True)
    assert script.verdict(solver, question, "Nowhere") == (False, False)
    assert script.verdict(solver, f"Where is {name}?", town) == (False, False)  # cannot be read


def test_shares_and_intervals(script: ModuleType) -> None:
    """Gains .1 and .3: mean .2, sd .1414, half 12.706 * .1414 / sqrt 2 = 1.2706. Equal gains tell of no spread."""
    assert script.share([True, True, False, True])["share"] == 0.75
    assert script.share([])["share"] is None
    run = {"before": {"mean": 0.25}, "after": {"mean": 0.35}}
    better = {"before": {"mean": 0.25}, "after": {"mean": 0.55}}
    table = script.summary({"self-play": [better, better], "frozen proposer": [run, better]})
    assert table["self-play"] == {
        "before": 0.25,
        "after": [0.55, 0.55],
        "gain": pytest.approx(0.3),
        "ci95": None,
    }
    assert table["frozen proposer"]["ci95"] == pytest.approx([0.2 - 1.2706, 0.2 + 1.2706], abs=1e-4)
    assert table["self-play over frozen"]["gain"] == pytest.approx(0.1)


@pytest.fixture
def run(here: Callable[..., str], tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Runs the benchmark with the shipped policy, and returns what its result file holds."""
    out = tmp_path / "result.json"
    common = ("--policy", "tiny", "--documents", "200", "--threads", "1", "--out", str(out), "--json")

    def begin(*words: str) -> dict[str, Any]:
        here("self_play", *words, *common)
        found: dict[str, Any] = json.loads(out.read_text())
        return found

    return begin


Run = Callable[..., dict[str, Any]]


def test_it_runs_with_a_policy_that_cannot_propose(run: Run, script: ModuleType) -> None:
    """The shipped policy has no roles: every game is refused, and no share is claimed."""
    arms = run("truth", "--games", "2")["arms"]
    assert list(arms) == list(script.ARMS)
    assert all(arm["counts"]["games"] == 2 and arm["true"]["n"] <= 2 for arm in arms.values())


def test_both_arms_are_trained_and_where_nothing_was_accepted_nothing_is_learned(
    tmp_path: Path, run: Run
) -> None:
    small = ("--seeds", "2", "--steps", "1", "--questions", "2", "--limit", "4")
    found = run("train", *small, "--folder", str(tmp_path / "runs"))
    assert {name: len(runs) for name, runs in found["runs"].items()} == {"self-play": 2, "frozen proposer": 2}
    frozen = found["runs"]["frozen proposer"][0]
    assert frozen["accepted_true"]["n"] == sum(frozen["curves"]["accepted"]) == 0
    assert frozen["before"]["mean"] == frozen["after"]["mean"]
    assert found["summary"]["self-play over frozen"]["gain"] == 0.0
    learners = {
        name: tomllib.loads((tmp_path / "runs" / name / "config.toml").read_text())["second"]["roles"]
        for name in ("frozen-proposer-0", "self-play-1")
    }
    assert learners == {"frozen-proposer-0": [], "self-play-1": ["proposer"]}
