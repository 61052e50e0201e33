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
    configs = {name: samplers.arm_of(name, 0, tmp_path, "tiny") for name in samplers.ARMS}
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
    steps = [[group("a", 1, 0, 1, 0), group("b", 0, 0)], [group("b", 1, 0, 0), group("a", 1, 1)]]
    found = samplers.played_figures(steps, {"a": 1, "b": 3, "c": 2})
    assert found == {
        "steps": 2,
        "episodes": 11,
        "groups": 4,
        "unequal": 2,
        "reward": [pytest.approx(1 / 3), pytest.approx(3 / 5)],
        "by_class": {
            "1": {"episodes": 6, "groups": 2, "unequal": 1},
            "2": {"episodes": 0, "groups": 0, "unequal": 0},
            "3": {"episodes": 5, "groups": 2, "unequal": 1},
        },
    }


def test_the_variances_of_three_steps_by_hand(samplers: ModuleType) -> None:
    """Every task begins in class 0, so that two steps pass before v is known of ``a`` and ``b`` apart.

    At first v is 1/6. The first step has squares 0 and 1 and six degrees of freedom, so (8/6 + 1) / 14 = 1/6 again, and in
    either step groups of 4. Then ``a`` is in class 9, with squares of 0 and freedom 3: (8/6) / 11 = 4/33, and ``b`` in class
    5, with 1 and 3: (8/6 + 1) / 11 = 7/33. Of eight rollouts ``a`` gets 3 and ``b`` 5: 4/12 is more than 7/30, and so is
    7/20 than 4/12. In the groups themselves s^2 is 0 and 1/3, twice, and then 1/2 and 3/10.
    """
    same = [group("a", 1, 1, 1, 1), group("b", 1, 1, 0, 0)]
    third = [group("a", 1, 0), group("b", 1, 1, 1, 0, 0, 0)]
    found = samplers.variance_check([[same, same, third]], {"rule": "closed", "solved": "mean"}, 4)
    even = (1 / 6 + 1 / 6) / 4 * 2 + (4 / 33 + 7 / 33) / 4
    roots = (4 / 33) ** 0.5 + (7 / 33) ** 0.5
    assert found["formula"] == pytest.approx((2 / 12 + roots**2 / 8) / even)
    assert found["sizes"] == pytest.approx((2 / 12 + 4 / 33 / 3 + 7 / 33 / 5) / even)
    measured = 1 / 3 / 4 + 1 / 3 / 4 + (1 / 2 / 3 + 3 / 10 / 5)
    measured_even = (1 / 3 + 1 / 3 + 1 / 2 + 3 / 10) / 4
    assert found["measured"] == pytest.approx(measured / measured_even)
    assert found["of_runs"] == [found["measured"]]


def test_the_variances_of_several_runs_are_those_of_all_their_steps(samplers: ModuleType) -> None:
    one = [[group("a", 1, 1, 1, 1), group("b", 1, 1, 0, 0)]] * 3
    other = [[group("a", 1, 0, 0, 0), group("b", 1, 1, 0, 0)]]
    options = {"rule": "closed", "solved": "mean"}
    alone = samplers.variance_check([one], options, 4)
    both = samplers.variance_check([one, other], options, 4)
    assert both["of_runs"] == [alone["measured"], 1.0]
    assert alone["measured"] < both["measured"] < 1


def test_an_episode_that_met_a_failure_is_no_wrong_answer(samplers: ModuleType) -> None:
    played = group("a", 1, 0)
    assert samplers.without_faults(played) == played
    lost = Trajectory(Task("a", "q"), (), (), 0.0, EndReason.ENV_FAULT, valid=False, error="no index")
    with pytest.raises(SystemExit, match=r"1 of 3 .*no index"):
        samplers.without_faults([*played, lost])


def answered(*scores: float) -> dict[str, Any]:
    """Two tasks of one hop, one of two hops, and two of three."""
    return {
        name: {"hops": h, "sampled": s} for name, h, s in zip("abcde", (1, 1, 2, 3, 3), scores, strict=True)
    }


def test_differences_are_of_tasks_over_the_seeds_that_both_arms_have(samplers: ModuleType) -> None:
    runs = {
        "uniform": [{"tested": answered(1, 1, 0, 0, 0)}, {"tested": answered(1, 1, 1, 1, 0)}],
        "dars": [{"tested": answered(1, 0, 1, 1, 1)}],
        "dapo": [{"tested": answered(1, 1, 0, 0, 1)}, {"tested": answered(1, 1, 1, 1, 1)}],
    }
    table = samplers.summary(runs, answered(0, 1, 0, 0, 0), "sampled")
    assert {name: row["all"]["mean"] for name, row in table["scores"].items()} == {
        "start": 0.2,
        "uniform": 0.6,
        "dars": 0.8,
        "dapo": 0.8,
    }
    assert {name: row["n"] for name, row in table["scores"]["dars"].items()} == {
        "1": 2,
        "2": 1,
        "3": 2,
        "easier": 3,
        "all": 5,
    }
    assert list(table["differences"]) == ["dars over uniform", "dapo over uniform"]
    dars, dapo = table["differences"].values()
    assert {name: row["difference"] for name, row in dars.items()} == pytest.approx(
        {"1": -0.5, "2": 1.0, "3": 1.0, "easier": 0.0, "all": 0.4}
    )
    assert dars["3"]["of_seeds"] == [1.0]
    assert dapo["3"]["of_seeds"] == [0.5, 0.5]
    assert table["comparisons"] == 10
    assert all(row["p_holm"] >= row["p"] for pair in (dars, dapo) for row in pair.values())


@pytest.mark.slow
def test_it_runs_from_the_start_to_the_result_file(
    samplers: ModuleType, here: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One step of two arms. DAPO stops a step early and gets more of them, until it has played as many episodes."""
    monkeypatch.setattr(samplers, "QUESTIONS", 2)
    monkeypatch.setattr(samplers, "GROUP", 2)
    few = {"documents": 400, "questions": 12}
    for name, value in {
        "LESSON_BATCH": 2,
        "LESSONS": [({**world, **few}, 1) for world, _ in samplers.LESSONS],
        "STEPS": 1,
    }.items():
        monkeypatch.setattr(samplers, name, value)
    monkeypatch.setattr(samplers, "TRAINED", {1: 4, 2: 1, 3: 1})
    monkeypatch.setattr(samplers, "TESTED", {1: 2, 2: 2, 3: 2})
    out, runs = tmp_path / "result.json", tmp_path / "runs"
    words = ["--runs", str(runs), "--seeds", "1", "--out", str(out)]
    here("samplers", *words, "--threads", "1", "--arms", "uniform", "dapo", "rollout_gdro")
    found = json.loads(out.read_text())
    assert list(found["runs"]) == ["uniform", "dapo", "rollout_gdro"]
    assert all(run["episodes"] >= 4 for (run,) in found["runs"].values())
    assert found["variance"]["rollout_gdro"]["formula"] == 1.0  # nothing is known in the only step
    assert found["greedy"]["scores"]["start"]["all"]["n"] == 6
    assert found["sampled"]["comparisons"] == 2 * 5
    assert "tested" not in found["runs"]["uniform"][0]
