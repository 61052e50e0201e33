"""The lab: which runs are needed when, what is compared, that a finished run is kept, and every experiment in seconds."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from agentenv.cli.main import main
from agentenv.errors import ConfigurationError, UnknownName
from agentenv.evaluation.report.charts import Curve, comparison_chart
from agentenv.policies.fakes import random_policy
from agentenv.progress import SilentDisplay
from agentenv.sandbox.backends import unavailable
from agentenv.trainers.config.config_files import merged
from agentenv.trainers.lab.lab import (
    Experiment,
    Trial,
    decide,
    experiments,
    finished,
    load_experiment,
    next_trial,
    pending_runs,
    run_trial,
    score,
)
from agentenv.trainers.lab.lab_page import mean_curve, page, page_data, write_page

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


def result(after: float, dev: list[float], tokens: int = 100, every: int = 2) -> dict[str, Any]:
    lines: list[dict[str, Any]] = [
        {"step": s, "sampled_tokens": tokens} for s in range(1, every * len(dev) + 1)
    ]
    for i, value in enumerate(dev):
        lines[every * (i + 1) - 1]["dev_score"] = value
    outcome = {"name": "r", "before": {"mean": 0.0}, "after": {"mean": after}, "faults": 0}
    return outcome | {"metrics": lines}


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
    assert score(experiment(measure=measure, level=level), run) == pytest.approx(value)


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
    two = experiment(per_interim=2, interims=3)
    assert pending_runs(two, {"a": [], "b": []}) == [
        Trial("a", 0),
        Trial("b", 0),
        Trial("a", 1),
        Trial("b", 1),
    ]
    assert pending_runs(two, {"a": [0.1, 0.2], "b": [0.1]}) == [Trial("b", 1)]
    assert pending_runs(two, {"a": [0.1, 0.2], "b": [0.2, 0.1]}) == [
        Trial("a", 2),
        Trial("b", 2),
        Trial("a", 3),
        Trial("b", 3),
    ]
    assert pending_runs(two, {"a": [0.1, 0.2] * 3, "b": [0.2, 0.1] * 3}) == []  # no interim analysis is left


def test_arms_that_are_decided_run_no_more() -> None:
    three = experiment(arms=ARMS | {"c": {}}, per_interim=5, interims=2)
    low, high = [0.0, 0.1, 0.0, 0.1, 0.0], [0.9, 1.0, 0.9, 1.0, 0.9]
    assert [t.arm for t in pending_runs(three, {"a": low, "b": high, "c": high})] == ["b", "c"] * 5
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
    assert pending_runs(four, {"a": low, "b": high, "c": low, "d": []}) == [
        Trial("d", seed) for seed in range(5)
    ]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"arms": {"a": {}}}, "two arms"),
        ({"families": (("a", "x"),)}, r"\['x'\]"),
        ({"arms": {"a": {}, "b": {"rollout": {"group_size": 4}}}}, r"\[384, 768\]"),
        ({"arms": {"a": {}, "b": {"rollouts": {}}}}, "'rollouts'.*'rollout'"),
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
    assert svg.count("<polyline") == 2
    assert "&lt;b&gt;" in svg


def test_the_page_says_what_was_found(tmp_path: Path) -> None:
    two = experiment(per_interim=5, interims=1)
    runs = {
        "a": [result(0.1 + i / 100, [0.1]) for i in range(5)],
        "b": [result(0.8 + i / 100, [0.2]) for i in range(5)],
    }
    figures = page_data("two", two, runs)
    assert figures["missing_runs"] == 0
    # s = sqrt(.001 / 4) = .0158, t(4) = 2.776: half of the interval is 2.776 * .0158 / sqrt(5) = .0196
    assert figures["arms"]["a"]["after"]["ci95"] == pytest.approx([0.12 - 0.0196, 0.12 + 0.0196], abs=1e-4)
    assert figures["families"][0]["pairs"][0]["verdict"] == "second better"
    written = write_page("none", two, tmp_path / "runs", tmp_path / "pages")
    assert written["missing_runs"] == 10
    text = (tmp_path / "pages" / "none.md").read_text()
    assert "10 runs are still missing" in text
    assert "a and b are not decided yet" in text
    assert not (tmp_path / "pages" / "none.svg").exists()


def test_searches_and_turns_are_told_where_there_are_any() -> None:
    pair = experiment(per_interim=2, interims=1)
    costs = [{"mean": 0.5, "turns": 2.5, "searches": 1.5}, {"mean": 0.0, "turns": 2.0, "searches": 1.0}]
    runs = {"a": [result(0.0, [0.1]) | {"after": cost} for cost in costs], "b": [result(0.2, [0.1])]}
    figures = page_data("pair", pair, runs)
    assert figures["arms"]["a"]["turns"]["mean"] == 2.25
    assert figures["arms"]["a"]["searches_per_right"]["values"] == [3.0]  # the second found nothing right
    assert figures["arms"]["b"]["turns"]["values"] == []
    row = next(
        line for line in page("pair", pair, figures, drawn=False).splitlines() if line.startswith("| a |")
    )
    assert row.endswith("| 2.250 [-0.927, 5.427] | 3.000 |")  # half = 12.706 * .3536 / sqrt(2)


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
    changes = {"base": base, "arms": arms, "families": (), "per_interim": 2, "interims": 1}
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
    figures = write_page(name, short, out, tmp_path)
    assert figures["missing_runs"] == 2
    assert set(figures.get("start", ())) == set(short.tests)
    assert all(
        len(found["values"]) == 1 for row in figures["arms"].values() for found in row["tests"].values()
    )
    assert all(row["faults"] == 0 for row in figures["arms"].values())
    assert (tmp_path / f"{name}.svg").read_text().startswith("<svg")


def test_a_sitting_goes_on_where_the_last_one_ended(
    policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the command: one run, then the three others; the first is not touched again, another one's folder is refused."""
    import tomli_w

    file, out = tmp_path / "mine.toml", tmp_path / "runs"
    file.write_text(tomli_w.dumps(small("samplers", policy).model_dump()))
    words = ["lab", "run", str(file), "--out", str(out), "--pages", str(tmp_path / "pages"), "--json"]
    assert main([*words, "--runs", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["missing_runs"] == 3
    kept = out / "mine" / "uniform" / "seed-0" / "results.json"
    before = kept.stat().st_mtime_ns
    assert main(words) == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["runs"], done["missing_runs"]) == (3, 0)
    assert kept.stat().st_mtime_ns == before
    assert [len(runs) for runs in finished(small("samplers", policy), out / "mine").values()] == [2, 2]
    kept.unlink()
    changed = merged(small("samplers", policy).model_dump(), {"base": {"optimizer": {"learning_rate": 1e-3}}})
    file.write_text(tomli_w.dumps(changed))
    assert main(words) == 1
    assert "mine/uniform/seed-0" in "".join(capsys.readouterr().err.split())  # lines may be wrapped


def test_pages_that_cannot_be_written_are_known_before_the_first_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    places = ["--out", str(tmp_path / "runs"), "--pages", str(tmp_path / "file" / "pages")]
    assert main(["lab", "run", "turn-credit", *places]) == 1
    assert str(tmp_path / "file") in capsys.readouterr().err
    assert not [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]


def test_the_list_says_how_far_each_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "list", "--out", str(tmp_path), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert set(listed) == set(experiments())
    assert listed["group-size"]["missing"] == 18


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
