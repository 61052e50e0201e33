"""Covers the paired comparison, what it refuses to compare, and scoring the same episodes again."""

import io
import json
import re
from collections.abc import Callable, Sequence
from math import sqrt
from pathlib import Path
from typing import Any

import pytest
import rich.console

from agentenv.cli.compare import Compare
from agentenv.cli.main import main
from agentenv.cli.rescore import Rescore
from agentenv.errors import ConfigurationError, UnknownName
from agentenv.evaluation.compare import compare, compare_suites, rescore
from agentenv.evaluation.llm_judge import GRADES, GradeCache, Judge, judge_folder
from agentenv.evaluation.records import EpisodeRecord, read_evaluation, write_results
from agentenv.evaluation.rubrics import get_rubric
from agentenv.evaluation.statistics.intervals import t_quantile
from agentenv.evaluation.suite import summarize_suite
from agentenv.policies.wires import ChatMessage, Reply

Maker = Callable[..., EpisodeRecord]
Writer = Callable[..., None]


@pytest.fixture
def runs(tmp_path: Path, record: Maker, write_run: Writer) -> tuple[Path, Path]:
    """Two runs over 12 questions: A alone right on 1, B alone on 8, both on 1; B has a fault on the last."""
    ids = [f"q{i:02d}" for i in range(12)]
    right_a, right_b = {0, 1}, {1, *range(2, 10)}
    a = [record(name, "Paris" if i in right_a else "Rome") for i, name in enumerate(ids)]
    b = [record(name, "Paris" if i in right_b else None) for i, name in enumerate(ids)]
    b[11]["valid"] = False
    write_run(tmp_path / "a", a, ("em_squad", "f1_squad"))
    write_run(tmp_path / "b", list(reversed(b)), ("em_squad", "f1_squad"))
    return tmp_path / "a", tmp_path / "b"


def test_pairs_by_id_and_tests_the_discordant(runs: tuple[Path, Path]) -> None:
    result = compare(*runs)
    assert (result["dataset"], result["split"]) == ("fictional", "test")
    em = result["scores"]["em_squad"]
    assert (result["n"], result["left_out"]) == (11, 1)
    assert (em["a_better"], em["b_better"], em["discordant"]) == (1, 8, 9)
    assert em["difference"] == pytest.approx(7 / 11)
    # 1 against 8: 2 * (C(9,0) + C(9,1)) / 2^9 = 20/512.
    assert em["p_mcnemar"] == 20 / 512
    low, high = em["ci95"]
    assert low < 7 / 11 < high
    assert low > 0


def test_only_binary_scorers_have_a_mcnemar_test(runs: tuple[Path, Path]) -> None:
    scores = compare(*runs)["scores"]
    assert "p_mcnemar" in scores["em_squad"]
    assert "p_mcnemar" not in scores["f1_squad"]
    assert list(compare(*runs, scorer="f1_squad")["scores"]) == ["f1_squad"]


def test_questions_on_one_passage_are_one_coin(tmp_path: Path, record: Maker, write_run: Writer) -> None:
    """Nine wins on three passages: three coins of net 3, of whose eight signed sums two are 9 from 0."""
    for name, answer in (("a", "Rome"), ("b", "Paris")):
        rows = [record(f"q{i}", answer if i < 9 else "Rome", cluster=str(i // 3)) for i in range(12)]
        write_run(tmp_path / name, rows, ("em_squad", "f1_squad"))
    found = compare(tmp_path / "a", tmp_path / "b")["scores"]["em_squad"]
    assert (found["discordant"], found["interval"]) == (9, "mover clustered")
    assert found["p_mcnemar"] == 2 / 8
    # Four passages of which three moved are too few to be drawn from: the same coins.
    assert found["p_bootstrap"] == 2 / 8


class Believer:
    """Takes any answer that names a city for right, and has nothing to say of odd ones."""

    model = "believer"

    async def complete(self, messages: Sequence[ChatMessage], **options: Any) -> Reply:
        said = json.loads(messages[0]["content"].rpartition("\n\n")[2])["response"]
        return Reply(
            "odd" if said == "odd" else f"VERDICT: {'CORRECT' if 'city' in said else 'INCORRECT'}", "stop"
        )


def _judged(folder: Path, records: list[EpisodeRecord], write_run: Writer, model: str = "believer") -> None:
    write_run(folder, records)
    judge_folder(folder, Judge(get_rubric("simpleqa"), model, Believer(), GradeCache(folder / GRADES)))


def test_judges_are_compared_from_their_grades(tmp_path: Path, record: Maker, write_run: Writer) -> None:
    """Of six questions B alone is right on four; one has no grade, and no answer is graded unasked."""
    first: list[str | None] = ["Rome", "Rome", "Rome", None, "Rome", "odd"]
    for name, said in (("a", first), ("b", ["the city"] * 4 + ["Rome"] * 2)):
        rows = [record(f"q{i}", answer) for i, answer in enumerate(said)]
        _judged(tmp_path / name, rows, write_run)
    found = compare(tmp_path / "a", tmp_path / "b")
    row = found["scores"]["judge_simpleqa"]
    assert (found["n"], row["n"], row["mean_a"], row["mean_b"]) == (6, 5, 0.0, 0.8)
    assert (row["a_better"], row["b_better"], row["p_mcnemar"]) == (0, 4, 2 / 16)
    assert found["scores"]["em_squad"]["n"] == 6
    assert list(compare(tmp_path / "a", tmp_path / "b", scorer="judge_simpleqa")["scores"]) == [
        "judge_simpleqa"
    ]


def test_other_judges_and_lost_grades_are_refused(tmp_path: Path, record: Maker, write_run: Writer) -> None:
    for name, model in (("a", "believer"), ("b", "another"), ("c", "believer")):
        _judged(tmp_path / name, [record("q", "Rome")], write_run, model)
    write_run(tmp_path / "none", [record("q", "Rome")])
    with pytest.raises(ConfigurationError, match=r"judge_simpleqa.*believer"):
        compare(tmp_path / "a", tmp_path / "b")
    assert compare(tmp_path / "a", tmp_path / "b", scorer="em_squad")["scores"]["em_squad"]["n"] == 1
    with pytest.raises(ConfigurationError, match="judge_simpleqa"):
        compare(tmp_path / "a", tmp_path / "none", scorer="judge_simpleqa")
    (tmp_path / "c" / GRADES).unlink()
    with pytest.raises(ConfigurationError, match="judge_simpleqa"):
        compare(tmp_path / "a", tmp_path / "c")
    _change(tmp_path / "a", lambda results: results["judged"]["judge_simpleqa"].update(prompt_sha256="0"))
    _change(tmp_path / "c", lambda results: results["judged"]["judge_simpleqa"].update(prompt_sha256="0"))
    with pytest.raises(ConfigurationError, match="'simpleqa'"):
        compare(tmp_path / "a", tmp_path / "c")


def test_comparing_backwards_changes_the_sign(runs: tuple[Path, Path]) -> None:
    forth, back = (compare(*pair)["scores"]["em_squad"] for pair in (runs, runs[::-1]))
    assert forth["difference"] == -back["difference"]
    assert forth["p_mcnemar"] == back["p_mcnemar"]


def _change(directory: Path, change: Callable[[dict[str, Any]], object]) -> None:
    results = read_evaluation(directory).results
    change(results)
    write_results(directory, results)


def test_refuses_what_is_not_the_same(runs: tuple[Path, Path], record: Maker, write_run: Writer) -> None:
    a, b = runs
    with pytest.raises(ConfigurationError, match="em_cover"):
        compare(a, b, scorer="em_cover")
    with pytest.raises(UnknownName, match="em_squad"):
        compare(a, b, scorer="em_squat")
    _change(b, lambda results: results["scores"]["em_squad"].update(version=2))
    with pytest.raises(ConfigurationError, match=r"\b1\b.*\b2\b.*em_squad"):
        compare(a, b)
    _change(b, lambda results: results.update(split="dev"))
    with pytest.raises(ConfigurationError, match=r"'test'.*'dev'"):
        compare(a, b)
    _change(b, lambda results: results.update(dataset="musique"))
    with pytest.raises(ConfigurationError, match=r"'fictional'.*'musique'"):
        compare(a, b)
    write_run(b, [record("q00"), record("new")])
    with pytest.raises(ConfigurationError, match=r"\b12\b.*'new'"):
        compare(a, b)


def test_refuses_other_golds_and_empty_pairings(tmp_path: Path, record: Maker, write_run: Writer) -> None:
    for name, one in (
        ("a", record("q")),
        ("b", record("q", answers=("Rome",))),
        ("c", record("q", valid=False)),
    ):
        write_run(tmp_path / name, [one])
    with pytest.raises(ConfigurationError, match="'q'"):
        compare(tmp_path / "a", tmp_path / "b")
    with pytest.raises(ConfigurationError):
        compare(tmp_path / "a", tmp_path / "c")


def test_runs_without_a_common_scorer_are_refused(tmp_path: Path, record: Maker, write_run: Writer) -> None:
    write_run(tmp_path / "a", [record("q")], ("em_squad",))
    write_run(tmp_path / "b", [record("q")], ("cem",))
    with pytest.raises(ConfigurationError, match=r"em_squad.*cem"):
        compare(tmp_path / "a", tmp_path / "b")


def test_rescore_adds_and_keeps(tmp_path: Path, record: Maker, write_run: Writer) -> None:
    rows = [
        record("x", "in Paris, France", family="bridge", hops=1, set="one"),
        record("y", family="bridge", hops=2, set="one"),
        record("z", None, valid=False, family="bridge", hops=2),
    ]
    write_run(tmp_path, rows, ("em_squad",))
    before = read_evaluation(tmp_path).results
    _change(tmp_path, lambda results: results["scores"].update(judge={"mean": 0.3, "version": 1}))
    rescore(tmp_path, ["em_cover"])
    after = read_evaluation(tmp_path).results
    assert after["scores"]["em_cover"]["mean"] == 1.0
    assert after["scores"]["em_squad"] == before["scores"]["em_squad"]
    assert after["scores"]["judge"]["mean"] == 0.3  # what cannot be computed here is kept
    assert set(after["by_family"]["bridge"]["scores"]) == {"em_squad", "em_cover"}
    assert set(after["by_set"]["one"]["scores"]) == {"em_squad", "em_cover"}
    assert after["by_hops"]["2"]["n"] == 1
    assert {key: after[key] for key in ("n", "faults", "retrieval")} == {
        key: before[key] for key in ("n", "faults", "retrieval")
    }


def test_rescoring_draws_its_bootstrap_as_the_evaluation_did(
    tmp_path: Path, record: Maker, write_run: Writer
) -> None:
    rows = [record(f"q{i}", " ".join(["Paris"] * (1 + i % 7))) for i in range(40)]
    intervals = {}
    for seed in (0, 7):
        write_run(tmp_path / str(seed), rows, ("em_squad", "f1_squad"), seed=seed)
        written = read_evaluation(tmp_path / str(seed)).results["scores"]["f1_squad"]
        assert rescore(tmp_path / str(seed), ["f1_squad"])["scores"]["f1_squad"] == written
        intervals[seed] = written["ci95"]
    assert intervals[0] != intervals[7]  # the seed decides the last digits


def test_a_refused_rescore_writes_nothing(runs: tuple[Path, Path]) -> None:
    before = (runs[0] / "results.json").read_bytes()
    with pytest.raises(UnknownName):
        rescore(runs[0], ["em_cover", "bleu"])
    with pytest.raises(ConfigurationError, match="mrr"):  # no episode has a rank
        rescore(runs[0], ["em_cover", "mrr"])
    assert (runs[0] / "results.json").read_bytes() == before


def test_commands_return_json_and_print_the_numbers(runs: tuple[Path, Path]) -> None:
    console = rich.console.Console(width=160, record=True, file=io.StringIO())
    compared = Compare(*runs)
    rescored = Rescore(runs[0], scorer=("em_cover",))
    for command in (compared, rescored):
        result = command.run()
        assert json.loads(json.dumps(result)) == result
        command.show(result, console)
    text = console.export_text()
    assert "+0.636" in text
    assert "0.039" in text  # 20/512 = .0390625
    assert "em_cover v1: 0.167" in text  # 2 of 12
    assert "1 question is left out: 0 met an infrastructure failure in the first run, 1 in the second" in text


def test_the_whole_of_a_comparison(runs: tuple[Path, Path]) -> None:
    found = compare(*runs)
    em, f1 = found["scores"].pop("em_squad"), found["scores"].pop("f1_squad")
    assert found == {
        "a": str(runs[0]),
        "b": str(runs[1]),
        "dataset": "fictional",
        "split": "test",
        "n": 11,
        "left_out": 1,
        "faults_a": 0,
        "faults_b": 1,
        "scores": {},
    }
    ends, p_value = em.pop("ci95"), em.pop("p_bootstrap")
    assert ends[0] < 7 / 11 < ends[1]
    assert 0 < p_value < 0.05
    assert em == {
        "version": 1,
        "n": 11,
        "mean_a": pytest.approx(2 / 11),
        "mean_b": pytest.approx(9 / 11),
        "difference": pytest.approx(7 / 11),
        "interval": em["interval"],
        "a_better": 1,
        "b_better": 8,
        "discordant": 9,
        "p_mcnemar": 20 / 512,
    }
    assert f1["difference"] == pytest.approx(7 / 11)


def test_the_seed_decides_the_bootstrap_of_a_comparison(
    tmp_path: Path, record: Maker, write_run: Writer
) -> None:
    for name, shift in (("a", 0), ("b", 3)):
        rows = [record(f"q{n}", " ".join(["Paris"] * (1 + (n * (1 + shift)) % 7))) for n in range(40)]
        write_run(tmp_path / name, rows, ("f1_squad",))
    drawn = [
        compare(tmp_path / "a", tmp_path / "b", seed=seed)["scores"]["f1_squad"]["ci95"] for seed in (0, 1)
    ]
    assert drawn[0] != drawn[1]
    assert compare(tmp_path / "a", tmp_path / "b")["scores"]["f1_squad"]["ci95"] == drawn[0]


def test_suites_are_compared_set_by_set_with_holm_and_a_mean_over_sets(
    tmp_path: Path, record: Maker, write_run: Writer
) -> None:
    """B is better by 1 on six questions of one set and by 1 on three of the other: p = 2/64 and 2/8, Holm 2/32 and 2/8."""
    for name, right in (("a", (0, 0)), ("b", (6, 3))):
        for part, hits in zip(("one", "two"), right, strict=True):
            rows = [record(f"q{n}", "Paris" if n < hits else "Rome") for n in range(6)]
            write_run(tmp_path / name / part, rows, ("em_squad", "f1_squad"), dataset=part)
        summarize_suite(tmp_path / name, ["one", "two"])
    found = compare_suites(tmp_path / "a", tmp_path / "b")
    assert (found["a"], found["b"], list(found["sets"])) == (
        str(tmp_path / "a"),
        str(tmp_path / "b"),
        ["one", "two"],
    )
    assert found["macro"] == {"em_squad": pytest.approx(0.75), "f1_squad": pytest.approx(0.75)}
    # Of six gains the squared error is that of seven of eight, 7/512; of three it is 6/5 * 1.5 / 36 = .05. Welch's degrees
    # of freedom are .063672^2 / ((.013672^2 + .05^2) / 5) = 7.544.
    half = t_quantile(0.975, 7.544) * sqrt(7 / 512 + 0.05) / 2
    assert found["macro_ci95"]["em_squad"] == pytest.approx([0.75 - half, 1.0], abs=1e-4)
    rows_of = [part["scores"]["em_squad"] for part in found["sets"].values()]
    assert [row["p_mcnemar"] for row in rows_of] == [2 / 64, 2 / 8]
    assert [row["p_mcnemar_holm"] for row in rows_of] == [2 / 32, 2 / 8]
    bare = found["sets"]["one"]["scores"]["f1_squad"]
    assert "p_mcnemar_holm" not in bare
    assert bare["p_bootstrap_holm"] >= bare["p_bootstrap"]
    only = compare_suites(tmp_path / "a", tmp_path / "b", scorer="f1_squad")
    assert list(only["macro"]) == ["f1_squad"]


def test_an_evaluation_of_several_sets_is_compared_by_set_as_well(
    tmp_path: Path, record: Maker, write_run: Writer
) -> None:
    """B alone is right on six questions of one set and on three of the other: p = 2/64 and 2/8, Holm 2/32 and 2/8."""
    for name, right in (("a", (0, 0)), ("b", (6, 3))):
        rows = [
            record(f"{part}:q{n}", "Paris" if n < hits else "Rome", set=part)
            for part, hits in zip(("one", "two"), right, strict=True)
            for n in range(7)
        ]
        rows[-1]["valid"] = name == "a"
        write_run(tmp_path / name, rows, ("em_squad", "f1_squad"), dataset="one+two")
    found = compare(tmp_path / "a", tmp_path / "b")
    assert (found["n"], found["scores"]["em_squad"]["p_mcnemar"]) == (13, 2 / 2**9)
    assert "p_mcnemar_holm" not in found["scores"]["em_squad"]
    one, two = (found["by_set"][name] for name in ("one", "two"))
    counts = [(part["n"], part["left_out"], part["faults_a"], part["faults_b"]) for part in (one, two)]
    assert counts == [(7, 0, 0, 0), (6, 1, 0, 1)]
    exact = [part["scores"]["em_squad"] for part in (one, two)]
    assert [row["difference"] for row in exact] == pytest.approx([6 / 7, 3 / 6])
    assert [row["p_mcnemar"] for row in exact] == [2 / 64, 2 / 8]
    assert [row["p_mcnemar_holm"] for row in exact] == [2 / 32, 2 / 8]
    shown = io.StringIO()
    Compare(tmp_path / "a", tmp_path / "b").show(found, rich.console.Console(file=shown, width=120))
    assert re.search(r"set +one\+two.* one +two\n", shown.getvalue())


def test_a_judge_that_graded_nothing_of_a_set_has_no_row_in_it(
    tmp_path: Path, record: Maker, write_run: Writer
) -> None:
    for name, said in (("a", "Rome"), ("b", "the city")):
        rows = [record(f"one:q{n}", said, set="one") for n in range(3)]
        _judged(tmp_path / name, [*rows, record("two:q", "odd", set="two")], write_run)
    parts = compare(tmp_path / "a", tmp_path / "b")["by_set"]
    assert {name: list(part["scores"]) for name, part in parts.items()} == {
        "one": ["em_squad", "judge_simpleqa"],
        "two": ["em_squad"],
    }
    assert parts["one"]["scores"]["judge_simpleqa"]["difference"] == 1.0


def test_one_set_alone_has_no_table_by_set(tmp_path: Path, record: Maker, write_run: Writer) -> None:
    for name in ("a", "b"):
        write_run(tmp_path / name, [record("q", set="one"), record("r", set="one")])
    assert "by_set" not in compare(tmp_path / "a", tmp_path / "b")


def test_the_mean_difference_of_equal_suites_may_go_either_way(
    tmp_path: Path, record: Maker, write_run: Writer
) -> None:
    """Scores without a difference are differences of 0, and not scores of 0, below which there is nothing."""
    for name in ("a", "b"):
        write_run(tmp_path / name / "one", [record(f"q{n}") for n in range(6)], dataset="one")
        summarize_suite(tmp_path / name, ["one"])
    (ends,) = compare_suites(tmp_path / "a", tmp_path / "b")["macro_ci95"].values()
    assert ends[0] == pytest.approx(-ends[1])
    assert 0.1 < ends[1] < 1


def test_what_is_missing_is_told_with_the_command_that_adds_it(
    runs: tuple[Path, Path], tmp_path: Path, record: Maker, write_run: Writer
) -> None:
    rescore(runs[0], ["em_cover"])
    with pytest.raises(ConfigurationError, match=rf"{runs[1].name}'.*--scorer em_cover"):
        compare(*runs, scorer="em_cover")
    rows = [record("q", "Rome")]
    _judged(tmp_path / "judged", rows, write_run)
    write_run(tmp_path / "not judged", rows)
    with pytest.raises(ConfigurationError, match=r"not judged.*'.*--judge "):
        compare(tmp_path / "judged", tmp_path / "not judged", scorer="judge_simpleqa")
    write_run(tmp_path / "fault", [record("q", valid=False)])
    with pytest.raises(ConfigurationError, match="fault"):
        compare(tmp_path / "judged", tmp_path / "fault")


def test_the_passages_are_those_of_the_first_run(tmp_path: Path, record: Maker, write_run: Writer) -> None:
    """Two wins on one passage are one coin; the second folder, which an earlier version wrote, names no passages."""
    write_run(tmp_path / "a", [record(f"q{i}", "Rome", cluster="p") for i in range(2)])
    write_run(tmp_path / "b", [record(f"q{i}") for i in range(2)])
    assert compare(tmp_path / "a", tmp_path / "b")["scores"]["em_squad"]["p_mcnemar"] == 1.0
    assert compare(tmp_path / "b", tmp_path / "a")["scores"]["em_squad"]["p_mcnemar"] == 0.5


def test_rewards_that_were_paid_under_other_settings_are_named(
    tmp_path: Path,
    record: Callable[..., EpisodeRecord],
    write_run: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A dearer search lowers the reward of the same answers; the share of right ones does not depend on it."""
    runs = {
        "cheap": {"env": "e", "options": {"price": 0.1}},
        "dear": {"env": "e", "options": {"price": 0.2}},
        "same": {"env": "e", "options": {}, "trained_options": {"price": 0.1}},
    }
    for name, settings in runs.items():
        write_run(tmp_path / name, [record("q0")], ("em_squad", "reward"), settings=settings)
    (note,) = compare(tmp_path / "cheap", tmp_path / "dear")["notes"]
    assert "price" in note
    assert compare(tmp_path / "cheap", tmp_path / "dear", scorer="em_squad").get("notes") is None
    assert compare(tmp_path / "cheap", tmp_path / "same").get("notes") is None
    assert main(["compare", str(tmp_path / "cheap"), str(tmp_path / "dear")]) == 0
    assert "differ in price" in " ".join(capsys.readouterr().out.split())
