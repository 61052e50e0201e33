"""The comparison of samplers by class: its tasks, arms, counts, variances and differences by hand, and that it runs."""

import importlib
import json
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("torch", reason="the extra train is not installed")

from agentenv.core.trajectory import Trajectory
from agentenv.core.types import EndReason, Task

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def samplers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("samplers")


def group(task: str, *rewards: float) -> list[Trajectory]:
    return [Trajectory(Task(task, "q"), (), (), one, EndReason.SUBMITTED, group_id=task) for one in rewards]


def test_the_tasks_of_both_splits_are_as_many_of_each_class_as_it_says(
    samplers: ModuleType, tmp_path: Path
) -> None:
    sections = samplers.write_tasks(tmp_path)
    assert samplers.write_tasks(tmp_path) == sections
    read = {split: samplers.hops_of(Path(sections[split]["dataset"])) for split in ("train", "test")}
    assert Counter(read["train"].values()) == {1: 34, 2: 9, 3: 5}
    assert Counter(read["test"].values()) == {1: 100, 2: 100, 3: 100}
    assert list(read["train"].values()) != sorted(
        read["train"].values()
    )  # hard_focus plays them in this order
    assert not read["train"].keys() & read["test"].keys()


def test_a_world_with_too_few_tasks_of_a_class_is_refused(samplers: ModuleType) -> None:
    dials = samplers.WorldConfig(documents=200, hops=(1, 2), families=("lookup", "bridge"), questions=10)
    with pytest.raises(SystemExit, match="3 hops"):
        samplers.drawn_tasks(samplers.FictionalWorld.generate(dials), {1: 2, 3: 1})


def test_the_arms_differ_in_the_sampler_alone(samplers: ModuleType, tmp_path: Path) -> None:
    configs = {name: samplers.arm_of(name, 0, 12, tmp_path, "tiny") for name in samplers.ARMS}
    sampler = {"sampler": "uniform", "sampler_options": {}}
    alike = {
        name: config.model_copy(update={"rollout": config.rollout.model_copy(update=sampler)})
        for name, config in configs.items()
    }
    assert all(config == alike["uniform"] for config in alike.values())
    hard, control = (configs[name].rollout.sampler_options for name in ("hard_focus", "random_focus"))
    assert control == {**hard, "keep": "random"}
    # Half of the steps play every task once, the other half are in the phases.
    assert 2 * sum(samplers.TRAINED.values()) == samplers.QUESTIONS * samplers.STEPS
    assert 2 * sum(steps for steps, _ in hard["phases"]) == samplers.STEPS


def test_what_was_played_by_hand(samplers: ModuleType) -> None:
    steps = [[group("a", 1, 0, 1, 0), group("b", 0, 0)], [group("b", 1, 0), group("a", 1, 1)]]
    found = samplers.played_figures(steps, {"a": 1, "b": 3})
    assert found == {
        "steps": 2,
        "episodes": 10,
        "groups": 4,
        "unequal": 2,
        "reward": [pytest.approx(1 / 3), 0.75],
        "by_class": {
            "1": {"episodes": 6, "unequal": 1},
            "2": {"episodes": 0, "unequal": 0},
            "3": {"episodes": 4, "unequal": 1},
        },
    }


def test_the_variances_of_two_steps_by_hand(samplers: ModuleType) -> None:
    """Nothing is known in the first step. Then the class of ``a`` has 3/16, that of ``b`` 4/16, and 9 and 3 are played.

    Known before the second step: class 7 (a, mean .75) 3/16; class 5 (b, mean .5) 1/4. Even sizes are 4 and 6.
    """
    first = [group("a", 1, 1, 1, 0), group("b", 1, 1, 0, 0)]
    second = [group("a", *[1] * 6, *[0] * 3), group("b", 1, 0, 0)]
    found = samplers.variance_check([first, second], {"rule": "closed", "solved": "mean"})
    even = (1 + 1) * 2 / 8 + (3 / 16 + 1 / 4) * 2 / 12
    free = (1 + 1) ** 2 / 8 + ((3 / 16) ** 0.5 + 0.5) ** 2 / 12
    sizes = 2 / 4 + 3 / 16 / 9 + 1 / 4 / 3
    assert found["formula"] == pytest.approx(free / even)
    assert found["sizes"] == pytest.approx(sizes / even)
    even_found = (1 / 4 + 1 / 3) * 2 / 8 + (1 / 4 + 1 / 3) * 2 / 12
    measured = (1 / 4 + 1 / 3) / 4 + 1 / 4 / 9 + 1 / 3 / 3
    assert found["measured"] == pytest.approx(measured / even_found)


def tested(*scores: float) -> dict[str, Any]:
    """Two tasks of one hop, two of three."""
    return {name: {"hops": h, "score": s} for name, h, s in zip("abcd", (1, 1, 3, 3), scores, strict=True)}


def test_differences_to_uniform_are_of_tasks_over_the_seeds_that_both_have(samplers: ModuleType) -> None:
    runs = {
        "uniform": [{"tested": tested(1, 1, 0, 0)}, {"tested": tested(1, 1, 1, 0)}],
        "dars": [{"tested": tested(1, 0, 1, 1)}],
    }
    table = samplers.summary(runs, tested(0, 1, 0, 0))
    assert table["start"]["all"]["mean"] == 0.25
    assert table["uniform"]["scores"]["3"] == {
        "mean": 0.25,
        "ci95": table["uniform"]["scores"]["3"]["ci95"],
        "n": 2,
    }
    over = table["dars"]["over_uniform"]
    assert over["seeds"] == 1
    assert [over[part]["difference"] for part in ("1", "3", "all")] == [-0.5, 1.0, 0.25]
    assert over["3"]["of_seeds"] == [1.0]
    assert table["comparisons"] == 3
    assert all(over[part]["p_holm"] >= over[part]["p"] for part in ("1", "3", "all"))


@pytest.mark.slow
def test_it_runs_from_the_start_to_the_result_file(
    samplers: ModuleType, here: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One step of two arms. DAPO stops a step early and gets more of them, until it has played as many episodes."""
    monkeypatch.setattr(samplers, "QUESTIONS", 2)
    monkeypatch.setattr(samplers, "GROUP", 2)
    monkeypatch.setattr(samplers, "START_BATCH", 2)
    monkeypatch.setattr(samplers, "TRAINED", {1: 4, 2: 1, 3: 1})
    monkeypatch.setattr(samplers, "TESTED", {1: 2, 2: 2, 3: 2})
    out, runs = tmp_path / "result.json", tmp_path / "runs"
    words = ["--runs", str(runs), "--seeds", "1", "--steps", "1", "--start-steps", "1", "--out", str(out)]
    here("samplers", *words, "--threads", "1", "--arms", "uniform", "dapo", "rollout_gdro")
    found = json.loads(out.read_text())
    assert list(found["runs"]) == ["uniform", "dapo", "rollout_gdro"]
    assert all(run["episodes"] >= 4 for (run,) in found["runs"].values())
    assert found["runs"]["rollout_gdro"][0]["variance"]["formula"] == 1.0  # nothing is known in the only step
    assert found["summary"]["start"]["all"]["n"] == 6
    assert found["summary"]["comparisons"] == 2 * 4
    assert "tested" not in found["runs"]["uniform"][0]
