"""The lab: which runs are needed when, what is compared, that a finished run is kept, and every experiment in seconds."""

import json
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from agentenv.cli.lab import Run
from agentenv.cli.main import main
from agentenv.core.concurrency.signals import Interrupted
from agentenv.core.io.claims import claim
from agentenv.errors import ConfigurationError, UnknownName
from agentenv.evaluation.report.charts import Curve, comparison_chart
from agentenv.policies.fakes import random_policy
from agentenv.progress import SilentDisplay
from agentenv.sandbox.backends import unavailable
from agentenv.trainers.config.config_files import merged
from agentenv.trainers.lab.figures import page_data
from agentenv.trainers.lab.lab import Experiment, experiments, load_experiment
from agentenv.trainers.lab.lab_page import mean_curve, page, with_interval, write_page
from agentenv.trainers.lab.provenance import SOURCE, STANDS_ON, configured
from agentenv.trainers.lab.results_table import claim_verdict, decided_by, power_in_words, results_of
from agentenv.trainers.lab.trials import (
    Trial,
    decide,
    finished,
    next_trial,
    pending_runs,
    refuse_other_plan,
    run_trial,
    score,
    show_equivalence,
)

ARMS: dict[str, dict[str, Any]] = {"a": {}, "b": {"loss": {"estimator": "dr_grpo"}}}
WORLD = {"documents": 200, "questions": 4}
SMALL: dict[str, Any] = {
    "train": {"world": WORLD, "limit": 4},
    "dev": {"world": WORLD, "limit": 1},
    "test": {"world": WORLD, "limit": 2},
    "rollout": {"questions": 1, "group_size": 4, "turn_tokens": 3, "context_tokens": 1150},
    "optimizer": {"steps": 1},
    "evaluation": {"every": 1},
}


def experiment(**changes: Any) -> Experiment:
    return Experiment(
        **({"title": "t", "claim": "c", "base": {"base": "lab-search"}, "arms": ARMS} | changes)
    )


def changed_by(one: Experiment, change: dict[str, Any]) -> Experiment:
    return Experiment(**merged(one.model_dump(exclude_none=True), change))


def result(after: float, dev: Sequence[float] = (0.1,), tokens: int = 100, every: int = 2) -> dict[str, Any]:
    lines: list[dict[str, Any]] = [
        {"step": s, "sampled_tokens": tokens} for s in range(1, every * len(dev) + 1)
    ]
    for i, value in enumerate(dev):
        lines[every * (i + 1) - 1]["dev_score"] = value
    outcome = {"name": "r", "before": {"mean": 0.0}, "after": {"mean": after}, "faults": 0}
    return outcome | {"metrics": lines}


def by_arm(**scores: Sequence[float]) -> dict[str, list[dict[str, Any]]]:
    """Finished runs with these scores afterwards."""
    return {arm: [result(value) for value in mine] for arm, mine in scores.items()}


@pytest.mark.parametrize(
    ("measure", "level", "value"),
    [
        ("after", 0, 0.9),
        ("dev_mean", 0, 0.4),
        ("steps_to", 0.5, 4),
        ("tokens_to", 0.5, 400),
        ("steps_to", 0.8, 6),  # never: all of them
        ("dev_at_tokens", 450, 0.5),
        ("dev_at_tokens", 600, 0.6),
        ("dev_at_tokens", 199, 0.0),  # before the first evaluation
    ],
)
def test_what_is_compared(measure: Any, level: float, value: float) -> None:
    run = result(0.9, [0.1, 0.5, 0.6])
    base = {"base": "lab-search", "evaluation": {"every": 1}}
    assert score(experiment(measure=measure, level=level, base=base), run) == pytest.approx(value)


def test_arms_that_are_rewarded_otherwise_are_compared_under_one_test() -> None:
    both = {"same": {"env": {"options": {"k": 2}}}, "other": {}}
    run = result(0.9, []) | {"tests": {"same": 0.3, "other": 0.7}}
    assert score(experiment(measure="tested", tests=both), run) == pytest.approx(0.3)
    with pytest.raises(ValidationError, match="tested"):
        experiment(measure="tested")


def test_without_dev_scores_there_is_nothing_to_measure() -> None:
    with pytest.raises(ConfigurationError, match=r"evaluation\.every"):
        score(experiment(measure="dev_mean"), result(0.9, []))


def test_seeds_go_round_the_arms_until_a_look() -> None:
    two = experiment(per_interim=3, interims=2, alpha=0.5)
    assert pending_runs(two, by_arm(a=[], b=[])) == [Trial(arm, seed) for seed in range(3) for arm in "ab"]
    assert pending_runs(two, by_arm(a=[0.1, 0.2, 0.1], b=[0.1, 0.2])) == [Trial("b", 2)]
    even = [0.1, 0.2, 0.1]
    assert pending_runs(two, by_arm(a=even, b=even)) == [
        Trial(arm, seed) for seed in (3, 4, 5) for arm in "ab"
    ]
    assert pending_runs(two, by_arm(a=even * 2, b=even * 2)) == []  # no interim analysis is left


def test_arms_that_are_decided_run_no_more() -> None:
    three = experiment(arms=ARMS | {"c": {}}, per_interim=5, interims=2)
    low, high = [0.0, 0.1, 0.0, 0.1, 0.0], [0.9, 1.0, 0.9, 1.0, 0.9]
    assert [t.arm for t in pending_runs(three, by_arm(a=low, b=high, c=high))] == ["b", "c"] * 5
    (decision,) = decide(three, {"a": low, "b": high, "c": high})
    assert [str(p.verdict) for p in decision.pairs] == ["second better", "second better", "undecided"]


def test_families_are_compared_within_and_share_the_error_level() -> None:
    four = experiment(
        arms=ARMS | {"c": {}, "d": {}},
        families=(("a", "b"), ("c", "d")),
        per_interim=5,
        interims=1,
        alpha=0.05,
    )
    low, high = [0.0, 0.1, 0.2, 0.3, 0.4], [0.5, 0.6, 0.7, 0.8, 0.9]
    first, second = decide(four, {"a": low, "b": high, "c": low, "d": []})
    assert [(p.first, p.second) for p in (*first.pairs, *second.pairs)] == [("a", "b"), ("c", "d")]
    assert first.enough  # 2 of 252 orders are as extreme: .008 of .025
    assert pending_runs(four, by_arm(a=low, b=high, c=low, d=[])) == [Trial("d", seed) for seed in range(5)]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"arms": {"a": {}}}, "two arms"),
        ({"arms": {"a": {}, "../b": {}}}, r"\.\./b"),
        ({"arms": {"a": {}, "/tmp/b": {}}}, "/tmp/b"),
        ({"arms": {"a": {}, "..": {}}}, "folder"),
        ({"families": (("a", "x"),)}, r"\['x'\]"),
        ({"arms": {"a": {}, "b": {"rollout": {"group_size": 4}}}}, r"\[384, 768\]"),
        ({"arms": {"a": {}, "b": {"rollouts": {}}}}, "'rollouts'.*'rollout'"),
        ({"expects": (("a", "x"),)}, r"\['a', 'x'\]"),
        ({"equivalences": ({"arms": ("a", "x"), "margin": 0.1},)}, r"\['x'\]"),
        ({"measure": "steps_to", "level": 0.5}, r"evaluation\.every = 1.*\['a', 'b'\]"),
        ({"per_interim": 3}, r"3 seeds.*\.1000.*\.0250"),
        ({"per_interim": 5, "families": (("a", "b"),) * 4}, r"5 seeds.*\.0079.*\.0063"),
    ],
)
def test_what_cannot_be_compared_is_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        experiment(**changes)


def test_a_wrong_name_gets_the_nearest() -> None:
    with pytest.raises(UnknownName, match="'cleaner'"):
        load_experiment("claener")


def test_the_mean_curve_and_the_chart() -> None:
    runs = [result(0, [0.1, 0.5], tokens=100), result(0, [0.3, 0.9], tokens=200)]
    curve = mean_curve("a", runs)
    assert curve.steps == (300, 600)
    assert curve.values == pytest.approx((0.2, 0.7))
    assert curve.band == ((0.1, 0.3), (0.5, 0.9))
    svg = comparison_chart([curve, Curve("<b>", (0.0,), (0.0,))], "tokens")
    assert (svg.count("<polyline"), svg.count("<circle")) == (1, 1)  # a single point is no line
    assert "&lt;b&gt;" in svg


def test_the_page_says_what_was_found(tmp_path: Path) -> None:
    two = experiment(per_interim=5, interims=1, expects=(("b", "a"),))
    runs = {
        "a": [result(0.1 + i / 100, [0.1]) for i in range(5)],
        "b": [result(0.8 + i / 100, [0.2]) for i in range(5)],
    }
    figures = page_data("two", two, runs)
    assert figures["missing_runs"] == 0
    # s = sqrt(.001 / 4) = .0158, t(4) = 2.776: half of the interval is 2.776 * .0158 / sqrt(5) = .0196
    assert figures["arms"]["a"]["after"]["ci95"] == pytest.approx([0.12 - 0.0196, 0.12 + 0.0196], abs=1e-4)
    assert figures["families"][0]["pairs"][0]["verdict"] == "second better"
    assert figures["families"][0]["deviation"] == pytest.approx(0.0158, abs=1e-4)
    assert claim_verdict(figures) == "holds"
    written = write_page("none", two, tmp_path / "runs")
    assert written["missing_runs"] == 10
    text = (tmp_path / "runs" / "none.md").read_text()
    assert "10 runs are still missing" in text
    assert "a and b are not decided yet" in text
    assert "score on the test tasks afterwards; higher is better. It expects b above a." in text
    assert not (tmp_path / "runs" / "none.svg").exists()


def test_searches_and_turns_are_told_where_there_are_any_of_the_start_too() -> None:
    pair = experiment(per_interim=5, interims=1)
    costs = [
        {"mean": 0.5, "n": 8, "turns": 2.5, "searches": 1.5},
        {"mean": 0.0, "n": 8, "turns": 2.0, "searches": 1.0},
    ]
    begun = {"mean": 0.25, "n": 8, "turns": 3.0, "searches": 2.0}
    runs = {"a": [result(0.0) | {"after": cost, "before": begun} for cost in costs], "b": [result(0.2)]}
    figures = page_data("pair", pair, runs)
    assert figures["arms"]["a"]["turns"]["mean"] == 2.25
    # 8 questions, 1.5 searches each, 4 right; of the second none is right, and its 8 searches count as for one
    assert figures["arms"]["a"]["searches_per_right"]["values"] == [3.0, 8.0]
    assert figures["arms"]["a"]["start"] == {
        "after": 0.25, "sampled_tokens": 0.0, "turns": 3.0, "searches": 2.0,
        "turns_per_right": 12.0, "searches_per_right": 8.0,
            "after_with_strategy": 0.25,
    }  # fmt: skip
    assert figures["arms"]["b"]["turns"]["values"] == []
    lines = page(figures | {"drawn": False}).splitlines()
    (row,) = [line for line in lines if line.startswith("| a |")]
    assert "| 2.250 [-0.927, 5.427] |" in row  # half = 12.706 * .3536 / sqrt(2)
    (start,) = [line for line in lines if line.startswith("| start of a |")]
    assert start.endswith("| 3.000 | 2.000 | 12.000 | 8.000 |")


@pytest.mark.parametrize("name", experiments())
def test_arms_that_do_not_overlap_are_decided_at_the_first_look(name: str) -> None:
    """Each arm of a shipped experiment has scores of its own; one look of the planned seeds tells all pairs apart."""
    whole = load_experiment(name)
    scores = {
        arm: [100.0 * place + seed for seed in range(whole.per_interim)]
        for place, arm in enumerate(whole.arms)
    }
    for decision in decide(whole, scores):
        assert {str(pair.verdict) for pair in decision.pairs} == {"second better"}
        assert decision.interims == 1


@pytest.mark.parametrize(
    ("b", "margin", "verdict", "interims", "more"),
    [
        # Deviations of .01581 over five seeds: an error of .01 with 8 degrees of freedom, and one look of level .0125.
        # t = (.1 - 0) / .01 = 10 is shown; t = (.02 - 0) / .01 = 2 has p = .040 and waits; .1 lower never is.
        ([0.0, 0.01, 0.02, 0.03, 0.04], 0.1, "equivalent", 1, 0),
        ([0.0, 0.01, 0.02, 0.03, 0.04], 0.02, "undecided", 1, 10),
        ([0.1, 0.11, 0.12, 0.13, 0.14] * 2, 0.1, "not shown", 2, 0),
        ([0.0, 0.01], 0.1, "undecided", 0, 5),
    ],
)
def test_arms_that_are_expected_to_be_alike_are_tested_for_equivalence(
    b: list[float], margin: float, verdict: str, interims: int, more: int
) -> None:
    a = [0.0, 0.01, 0.02, 0.03, 0.04] * (2 if len(b) > 5 else 1)
    two = experiment(equivalences=({"arms": ("a", "b"), "margin": margin},))
    (one,) = two.equivalences
    shown = show_equivalence(two, one, {"a": a, "b": b})
    assert (shown.verdict, shown.interims, shown.more_seeds) == (verdict, interims, more)
    if margin == 0.02:
        assert shown.p == pytest.approx(0.0403, abs=1e-4)  # Student's t with 8 degrees of freedom at 2


def test_the_figures_of_an_equivalence_are_those_of_the_seeds_that_showed_it() -> None:
    """Other comparisons go on with the same arms; later seeds change neither the verdict nor what is said of it."""
    two = experiment(equivalences=({"arms": ("a", "b"), "margin": 0.1},))
    first, later = [0.0, 0.01, 0.02, 0.03, 0.04], [0.9, 0.8, 0.9, 0.8, 0.9]
    shown, again = (
        page_data("x", two, by_arm(a=first + more, b=first + [0.0] * len(more)))["equivalences"][0]
        for more in ([], later)
    )
    assert shown["verdict"] == "equivalent"
    assert shown["seeds"] == 5
    keys = ("verdict", "p", "interim", "seeds", "difference")
    assert [again[key] for key in keys] == [shown[key] for key in keys]


def test_the_difference_of_an_equivalence_has_its_interval() -> None:
    """Deviations of .01581 over five seeds: an error of .01 with 8 degrees of freedom, of which 2.306 are the interval."""
    two = experiment(equivalences=({"arms": ("a", "b"), "margin": 0.1},), expects=())
    first = [0.0, 0.01, 0.02, 0.03, 0.04]
    figures = page_data("x", two, by_arm(a=first, b=[one + 0.02 for one in first]))
    (one,) = figures["equivalences"]
    assert with_interval(figures, one)["ci95"] == pytest.approx([-0.04306, 0.00306], abs=1e-5)
    assert results_of(figures) == ["a - b (after, margin 0.1): -0.020 [-0.043, +0.003]"]
    alone = page_data("x", two, by_arm(a=first[:1], b=first[:1]))
    assert with_interval(alone, alone["equivalences"][0])["ci95"] is None


def test_no_difference_has_no_sign() -> None:
    """Where the claim names the arms in the other order, the difference is turned round, and the negative of 0 is -0.0."""
    two = experiment(expects=(("b", "a"),))
    assert results_of(page_data("x", two, by_arm(a=[0.5] * 5, b=[0.5] * 5))) == ["b - a: +0.000"]


def test_seeds_that_all_score_the_same_have_no_interval_and_no_power() -> None:
    """A planner that always stops searching, for example: ten equal scores are no interval of no width."""
    two = experiment(equivalences=({"arms": ("a", "b"), "margin": 0.1},))
    figures = page_data("x", two, by_arm(a=[1.5] * 10, b=[0.0] * 10))
    assert figures["arms"]["a"]["measure"] == {"values": [1.5] * 10, "mean": 1.5, "ci95": None}
    (family,) = figures["families"]
    (pair,) = family["pairs"]
    assert (pair["verdict"], pair["difference"], pair["ci95"]) == ("first better", 1.5, None)
    assert (family["deviation"], family["detectable"]) == (0.0, None)
    assert figures["equivalences"][0]["detectable"] is None
    assert with_interval(figures, figures["equivalences"][0])["ci95"] is None
    assert "all seeds of an arm score the same" in power_in_words(decided_by(figures))
    text = page(figures | {"drawn": False})
    assert "deviations between seeds; how large that is in the unit of the measure cannot be said" in text
    assert "[1.500" not in text
    assert "here of" not in text


def test_a_single_seed_of_each_arm_tells_of_no_power() -> None:
    """Nor that seeds score the same: there are no two to compare."""
    figures = page_data("x", experiment(), by_arm(a=[0.5], b=[0.4]))
    assert power_in_words(decided_by(figures)).endswith("1 of 10 seeds, power not known")
    assert "score the same and so" not in page(figures | {"drawn": False})


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policy")
    random_policy(
        folder, ["Find the answer to the question below. Write a Python function that takes a list."]
    )
    return folder


def small(name: str, policy: Path) -> Experiment:
    """Its first and last arm in runs of a second by a random policy."""
    whole = load_experiment(name)
    names = list(whole.arms)
    arms = {arm: merged(whole.arms[arm], SMALL) for arm in (names[0], names[-1])}
    base = merged(whole.base, {"policy": f"hf:{policy}"})
    plan = {"families": (), "expects": (), "equivalences": (), "per_interim": 2, "interims": 1, "alpha": 0.6}
    changes = {"base": base, "arms": arms} | plan
    text = json.dumps(whole.model_dump() | changes).replace("hf:runs/simulator", "grammar")
    return Experiment(**json.loads(text.replace("hf:runs/tiny-self", f"hf:{policy}")))


@pytest.mark.parametrize("name", experiments())
def test_every_experiment_in_seconds(name: str, policy: Path, tmp_path: Path) -> None:
    if name == "cleaner" and (reason := unavailable("bwrap")):
        pytest.skip(reason)
    short, out = small(name, policy), tmp_path / "runs"
    for arm in short.arms:
        trial = next_trial(short, out)
        assert trial == Trial(arm, 0)
        run_trial(short, trial, out, SilentDisplay())
        assert not (trial.folder(out) / "checkpoints").exists()
    figures = write_page(name, short, out)
    assert figures["missing_runs"] == 2
    for row in figures["arms"].values():
        assert set(row["tests"]) == set(row["start"].get("tests", ())) == set(short.tests)
        assert set(row["played"]) == set(row["start"]["played"])
        assert isinstance(row["start"]["dev_mean"], float)
        assert (row["start"]["measure"] is None) == short.claimed.every_step
        assert all(len(found["values"]) == 1 for found in (row["tests"] | row["played"]).values())
        assert row["faults"] == 0
    assert f"weights of hf:{policy}" in figures["stands_on"]
    assert len(figures["sources"]) == 1
    assert (out / f"{name}.svg").read_text().startswith("<svg")


def test_a_sitting_goes_on_where_the_last_one_ended(
    policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the command: one run, then the three others; the first is not touched again, another one's folder is refused."""
    import tomli_w

    file, out = tmp_path / "mine.toml", tmp_path / "runs"
    file.write_text(tomli_w.dumps(small("samplers", policy).model_dump(exclude_none=True)))
    words = ["lab", "run", str(file), "--out", str(out), "--pages", str(tmp_path / "pages"), "--json"]
    assert main([*words, "--runs", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["missing_runs"] == 3
    kept = out / "mine" / "uniform" / "seed-0" / "results.json"
    before = kept.stat().st_mtime_ns
    left = [kept.parent / name for name in ("policy.gone", "checkpoints")]  # by a process that was killed
    for folder in left:
        folder.mkdir()
        (folder / "half").touch()
    assert main(words) == 0
    assert not any(folder.exists() for folder in left)
    done = json.loads(capsys.readouterr().out)
    assert (done["runs"], done["missing_runs"]) == (3, 0)
    assert kept.stat().st_mtime_ns == before
    assert [len(runs) for runs in finished(small("samplers", policy), out / "mine").values()] == [2, 2]
    kept.unlink()
    changed = merged(
        small("samplers", policy).model_dump(exclude_none=True),
        {"base": {"optimizer": {"learning_rate": 1e-3}}},
    )
    file.write_text(tomli_w.dumps(changed))
    assert main(words) == 1
    assert "mine/uniform/seed-0" in "".join(capsys.readouterr().err.split())  # lines may be wrapped
    assert not (tmp_path / "pages").exists()


def test_a_second_look_never_mixes_starts(policy: Path, tmp_path: Path) -> None:
    """Neither with a run that began with other weights, nor with one that does not say with which."""
    short, out = small("samplers", policy), tmp_path / "runs"
    run_trial(short, Trial("uniform", 0), out, SilentDisplay())
    kept = out / "uniform" / "seed-0" / STANDS_ON
    held = json.loads(kept.read_text())
    weights = f"weights of hf:{policy}"
    kept.write_text(json.dumps(held | {SOURCE: "another"}))  # a changed comment is no other start
    run_trial(short, Trial("gdro", 0), out, SilentDisplay())
    for other, named in ((held | {weights: "other"}, weights), (None, "does not say")):
        kept.unlink() if other is None else kept.write_text(json.dumps(other))
        with pytest.raises(ConfigurationError, match=named) as refused:
            run_trial(short, Trial("uniform", 1), out, SilentDisplay())
        assert str(kept.parent) in str(refused.value)
        assert not (out / "uniform" / "seed-1").exists()


def test_a_second_look_never_mixes_designs(policy: Path, tmp_path: Path) -> None:
    """Neither what the arms have in common, where the changed arm has no run, nor the plan of the test."""
    short, out = small("samplers", policy), tmp_path / "runs"
    begun = out / "uniform" / "seed-0"
    begun.mkdir(parents=True)
    (begun / "config.toml").touch()
    mine = configured("uniform", short.run_of("uniform", 0), short.conditions("uniform"))
    (begun / STANDS_ON).write_text(json.dumps(mine))
    slower = changed_by(short, {"base": {"optimizer": {"learning_rate": 1e-3}}})
    with pytest.raises(ConfigurationError, match="configuration of uniform"):
        run_trial(slower, Trial("gdro", 0), out, SilentDisplay())
    assert not (out / "gdro").exists()


def test_a_plan_does_not_change_after_a_look(policy: Path, tmp_path: Path) -> None:
    short, out = small("samplers", policy), tmp_path / "runs"
    refuse_other_plan(short, out)
    run_trial(short, Trial("uniform", 0), out, SilentDisplay())
    refuse_other_plan(short, out)
    refuse_other_plan(changed_by(short, {"title": "another"}), out)
    changes: list[dict[str, Any]] = [
        {"interims": 2, "alpha": 0.9}, {"alpha": 0.7}, {"measure": "after"}, {"per_interim": 3},
        {"equivalences": [{"arms": list(short.arms), "margin": 0.1}], "alpha": 0.9},
    ]  # fmt: skip
    for change in changes:
        with pytest.raises(ConfigurationError, match="plan"):
            refuse_other_plan(changed_by(short, change), out)
    with pytest.raises(ConfigurationError, match="expectation of the claim"):
        refuse_other_plan(changed_by(short, {"expects": [["uniform", "gdro"]]}), out)
    renamed = short.model_dump(exclude_none=True) | {
        "arms": {"a": {}, "b": {}},
        "expects": (),
        "families": (),
    }
    with pytest.raises(ConfigurationError, match="plan"):
        refuse_other_plan(Experiment(**renamed), out)


def test_runs_whose_page_cannot_be_written_do_not_begin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["lab", "run", "group-size", "--out", str(tmp_path / "file" / "runs")]) == 1
    assert str(tmp_path / "file") in capsys.readouterr().err


def test_the_second_of_two_commands_that_run_the_same_experiment_is_told_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "group-size").mkdir()
    words = ["lab", "run", "group-size", "--runs", "0", "--out", str(tmp_path)]
    with claim(tmp_path / "group-size", "taken"):  # as the first of them holds it
        assert main(words) == 1
    assert str(tmp_path) in capsys.readouterr().err
    assert list((tmp_path / "group-size").iterdir()) == []
    assert main(words) == 0


def test_an_interrupted_experiment_says_how_to_go_on_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run of one arm alone would say how to go on with that run."""

    def interrupted(*_: Any) -> None:
        raise Interrupted(signal.SIGTERM, "; go on with agentenv train")

    monkeypatch.setattr("agentenv.trainers.lab.trials.run_trial", interrupted)
    with pytest.raises(Interrupted, match="same command") as caught:
        Run("group-size", out=tmp_path).run()
    assert caught.value.signal == signal.SIGTERM


def test_the_list_says_how_far_each_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "list", "--out", str(tmp_path), "--pages", str(tmp_path), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert set(listed) == set(experiments())
    assert listed["group-size"]["missing"] == 36
    assert listed["group-size"]["decided"] is None
    figures = write_page("tree", load_experiment("tree"), tmp_path / "tree")
    figures["families"][0]["detectable"] = 0.25
    for arm in figures["arms"].values():
        arm["measure"]["values"] = [0.5] * 5
    (tmp_path / "tree.json").write_text(json.dumps(figures))
    assert main(["lab", "list", "--out", str(tmp_path), "--pages", str(tmp_path)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "undecided: AdaStop, 5 of 10 seeds, 80 % power for 0.250" in shown


def test_fewer_runs_than_none_are_refused(tmp_path: Path) -> None:
    """They would never be made, so that the command would go on until the experiment has decided."""
    words = [
        "lab",
        "run",
        "group-size",
        "--runs",
        "-1",
        "--out",
        str(tmp_path / "o"),
        "--pages",
        str(tmp_path / "p"),
    ]
    assert main(words) == 1
    assert list(tmp_path.iterdir()) == []


def test_an_experiment_that_lacks_a_key_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text('title = "x"\n')
    with pytest.raises(ConfigurationError, match="claim: Field required") as error:
        load_experiment(str(path))
    assert "\n" not in str(error.value)
