"""Several seeds of one system and of two: avg@n, pass@k, the spread over seeds, and what is refused."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from agentenv.cli.main import main
from agentenv.errors import ConfigurationError
from agentenv.evaluation.records import EpisodeRecord
from agentenv.evaluation.repeats import compare_runs, read_runs, summarize_runs

Make = Callable[..., EpisodeRecord]
Write = Callable[..., None]


def seeds(folder: Path, record: Make, write: Write, *rows: str) -> list[Path]:
    """One run a column: of each question, ``1`` where the run is right, ``x`` where it has an infrastructure failure."""
    paths = []
    for seed in range(len(rows[0])):
        records = [
            record(f"q{n}", "Paris" if row[seed] == "1" else "Rome", valid=row[seed] != "x")
            for n, row in enumerate(rows)
        ]
        write(folder / f"seed-{seed}", records, seed=seed)
        paths.append(folder / f"seed-{seed}")
    return paths


def test_pass_and_avg_by_hand(tmp_path: Path, record: Make, write_run: Write) -> None:
    runs = read_runs(seeds(tmp_path, record, write_run, "1100", "1111", "0000", "1000"), "em_squad")
    table = summarize_runs(runs, "em_squad")
    # Right of 4: 2, 4, 0, 1. avg@4 = 7/16. pass@2: 1 - C(2,2)/6, 1, 0, 1 - C(3,2)/6 = 5/6, 1, 0, 1/2.
    assert table["avg@4"]["mean"] == pytest.approx(7 / 16)
    assert table["pass@1"]["mean"] == table["all@1"]["mean"] == pytest.approx(7 / 16)
    assert table["pass@2"]["mean"] == pytest.approx((5 / 6 + 1 + 0 + 1 / 2) / 4)
    assert table["all@2"]["mean"] == pytest.approx((1 / 6 + 1 + 0 + 0) / 4)
    assert (table["pass@4"]["mean"], table["all@4"]["mean"]) == (0.75, 0.25)
    # Seeds: 3/4, 2/4, 1/4, 1/4: mean 7/16, standard deviation sqrt(11/192), error half of it.
    spread = table["over_seeds"]
    assert (spread["low"], spread["high"], spread["means"]) == (0.25, 0.75, [0.75, 0.5, 0.25, 0.25])
    assert spread["standard_error"] == pytest.approx((11 / 192) ** 0.5 / 2)
    assert (table["n"], table["seeds"], table["left_out"]) == (4, 4, 0)


def test_a_question_with_a_fault_in_any_run_is_left_out_of_all(
    tmp_path: Path, record: Make, write_run: Write
) -> None:
    runs = read_runs(seeds(tmp_path, record, write_run, "11", "x1", "00"), "em_squad")
    assert (runs.ids, runs.left_out) == (("q0", "q2"), 1)
    assert runs.scores.tolist() == [[1.0, 1.0], [0.0, 0.0]]


def test_pass_at_k_needs_a_scorer_of_zero_and_one_and_k_runs(
    tmp_path: Path, record: Make, write_run: Write
) -> None:
    folders = seeds(tmp_path, record, write_run, "10", "01")
    assert not [key for key in summarize_runs(read_runs(folders, "f1_squad"), "f1_squad") if "pass" in key]
    with pytest.raises(ConfigurationError, match="k=3"):
        summarize_runs(read_runs(folders, "em_squad"), "em_squad", [3])


def test_runs_that_do_not_belong_together_are_refused(tmp_path: Path, record: Make, write_run: Write) -> None:
    one, two = seeds(tmp_path, record, write_run, "10", "01")
    with pytest.raises(ConfigurationError):
        read_runs([one, one], "em_squad")
    write_run(two, [record("q0"), record("other")])
    with pytest.raises(ConfigurationError, match=r"seed-0.*seed-1"):
        read_runs([one, two], "em_squad")
    write_run(two, [record("q0", valid=False), record("q1", valid=False)])
    with pytest.raises(ConfigurationError):
        read_runs([one, two], "em_squad")


def test_equal_ids_do_not_make_questions_the_same(tmp_path: Path, record: Make, write_run: Write) -> None:
    """Files of questions are often numbered from 0 on, whatever they ask."""
    write_run(tmp_path / "a", [record("0"), record("1")])
    write_run(tmp_path / "b", [record("0", answers=("Rome",)), record("1")], seed=1)
    write_run(tmp_path / "c", [record("0"), record("1")], seed=1, dataset="other")
    for other in ("b", "c"):
        with pytest.raises(ConfigurationError, match=f"a.*{other}"):
            read_runs([tmp_path / "a", tmp_path / other], "em_squad")
        with pytest.raises(ConfigurationError, match=f"a.*{other}"):
            compare_runs([tmp_path / "a"], [tmp_path / other], "em_squad")


def test_questions_that_are_left_out_are_told(
    tmp_path: Path, record: Make, write_run: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    one = seeds(tmp_path / "one", record, write_run, "11", "x1", "00", "00")
    two = seeds(tmp_path / "two", record, write_run, "11", "11", "0x", "00")
    assert main(["seeds", *map(str, one), "--against", *map(str, two)]) == 0
    shown = capsys.readouterr().out
    assert "3 questions, 2 seeds" in shown
    assert "in some run: 1" in shown  # of each system by itself
    assert "over 2 questions" in shown
    assert "in some run: 2" in shown  # of both


def test_two_systems_over_seeds(
    tmp_path: Path, record: Make, write_run: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    good = seeds(tmp_path / "good", record, write_run, *["11111"] * 8, "00000")
    bad = seeds(tmp_path / "bad", record, write_run, "10110", *["00000"] * 8)
    found = compare_runs(good, bad, "em_squad")
    assert found["difference"] == pytest.approx(8 / 9 - 3 / 45)
    assert found["sequential"]["verdict"] == "first better"
    assert found["sequential"]["enough"]
    assert found["questions"]["ci95"][0] > 0
    assert found["questions"]["n"] == 9
    few = compare_runs(good[:3], bad, "em_squad")["sequential"]  # nine questions are not nine seeds
    assert (few["interim"], few["more_seeds"], few["verdict"]) == (0, 2, "undecided")
    words = ["seeds", *map(str, good[:3]), "--against", *map(str, bad[:3]), "--json"]
    assert main(words) == 0
    result = json.loads(capsys.readouterr().out)
    # Three of the five of the first interim analysis.
    assert result["comparison"]["sequential"]["more_seeds"] == 2
    assert result["comparison"]["sequential"]["verdict"] == "undecided"
    assert result["first"]["pass@2"]["mean"] == pytest.approx(8 / 9)
    assert main(words[:-1]) == 0
    shown = capsys.readouterr().out
    assert "undecided; run 2 more seeds of each" in shown
    assert "3 seeds from 0.889 to 0.889" in shown


def test_questions_of_one_passage_and_the_seed_decide_the_intervals(
    tmp_path: Path, record: Make, write_run: Write
) -> None:
    """Forty questions with six values of F1 on ten passages."""
    for run in range(2):
        rows = [
            record(f"q{n:02}", " ".join(["Paris"] * (1 + (n + run) % 7)), cluster=str(n // 4))
            for n in range(40)
        ]
        write_run(tmp_path / str(run), rows, ("f1_squad",))
    runs = read_runs([tmp_path / "0", tmp_path / "1"], "f1_squad")
    assert runs.clusters == [f"cluster {n // 4}" for n in range(40)]
    assert runs.ids == tuple(f"q{n:02}" for n in range(40))
    found = [summarize_runs(runs, "f1_squad", seed=seed)["avg@2"] for seed in (0, 1)]
    assert "cluster" in found[0]["interval"]
    assert summarize_runs(runs, "f1_squad")["avg@2"] == found[0]
    loose = summarize_runs(replace(runs, clusters=[str(n) for n in range(40)]), "f1_squad")["avg@2"]
    assert loose["ci95"] != found[0]["ci95"]


def test_one_run_has_no_spread_over_seeds_and_other_ks_may_be_asked_for(
    tmp_path: Path, record: Make, write_run: Write
) -> None:
    (one,) = seeds(tmp_path / "one", record, write_run, "1", "0")
    table = summarize_runs(read_runs([one], "em_squad"), "em_squad")
    assert table["over_seeds"] == {"means": [0.5], "low": 0.5, "high": 0.5, "standard_error": None}
    three = seeds(tmp_path / "three", record, write_run, "111", "100")
    runs = read_runs(three, "em_squad")
    assert [key for key in summarize_runs(runs, "em_squad") if "pass" in key] == [
        "pass@1",
        "pass@2",
        "pass@3",
    ]
    assert [key for key in summarize_runs(runs, "em_squad", [2]) if "@" in key] == [
        "avg@3",
        "pass@2",
        "all@2",
    ]
    with pytest.raises(ConfigurationError):
        read_runs([], "em_squad")
    assert read_runs(three[:2], "em_squad", also=[one]).ids == ("q0", "q1")


def test_a_failure_of_either_system_leaves_its_question_out_of_both(
    tmp_path: Path, record: Make, write_run: Write
) -> None:
    first = seeds(tmp_path / "first", record, write_run, "11", "1x", "11", "00")
    second = seeds(tmp_path / "second", record, write_run, "x0", "11", "00", "00")
    for one, other, sign in ((first, second, 1), (second, first, -1)):
        found = compare_runs(one, other, "em_squad")
        assert found["questions"]["n"] == 2
        assert found["difference"] == sign * 0.5
    assert read_runs(first, "em_squad").ids == ("q0", "q2", "q3")
    assert read_runs(first, "em_squad", also=second).left_out == 2


def test_a_comparison_says_under_which_settings_it_was_made(
    tmp_path: Path, record: Make, write_run: Write
) -> None:
    first = seeds(tmp_path / "first", record, write_run, "1101", "0110", "1011")
    second = seeds(tmp_path / "second", record, write_run, "0000", "0100", "1000")
    assert compare_runs(first, second, "em_squad") == compare_runs(
        first, second, "em_squad", per_interim=5, interims=5, alpha=0.05, seed=0
    )
    found = compare_runs(first, second, "em_squad", per_interim=2, interims=3, alpha=0.2)["sequential"]
    settings = {"per_interim": 2, "interims": 3, "alpha": 0.2}
    assert found == found | settings
    assert found["interim"] == 2


@pytest.mark.parametrize(
    ("runs", "ks"), [(1, [1]), (3, [1, 2, 3]), (4, [1, 2, 4]), (6, [1, 2, 4, 6]), (9, [1, 2, 4, 8, 9])]
)
def test_chances_are_told_of_powers_of_two_and_of_all_runs(
    tmp_path: Path, record: Make, write_run: Write, runs: int, ks: list[int]
) -> None:
    folders = seeds(tmp_path, record, write_run, "1" * runs, "0" * runs)
    table = summarize_runs(read_runs(folders, "em_squad"), "em_squad")
    for name in ("pass", "all"):
        assert [key for key in table if key.startswith(name)] == [f"{name}@{k}" for k in ks]


def test_the_command_takes_the_first_scorer_of_the_evaluation(
    tmp_path: Path, record: Make, write_run: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "0", [record("q0", "Paris in spring")], ("f1_squad", "em_squad"))
    assert main(["seeds", str(tmp_path / "0"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["scorer"] == "f1_squad"
    assert main(["seeds"]) != 0


def test_rewards_that_were_paid_under_other_prices_are_named(
    tmp_path: Path, record: Make, write_run: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, price in (("cheap", 0.1), ("dear", 0.2)):
        settings = {"env": "e", "options": {"price": price}}
        write_run(tmp_path / name, [record("q0"), record("q1")], ("em_squad", "reward"), settings=settings)
    words = ["seeds", str(tmp_path / "cheap"), "--against", str(tmp_path / "dear")]
    for scorer, told in (("reward", True), ("em_squad", False)):
        assert main([*words, "--scorer", scorer]) == 0
        assert ("differ in price" in " ".join(capsys.readouterr().out.split())) is told
