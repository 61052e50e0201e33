"""Scores under budgets: areas by hand, what is left out, and the command over an evaluation."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from agentenv.cli.main import main
from agentenv.errors import ConfigurationError, DatasetError
from agentenv.evaluation.budget_curve import Budget, area, budget_table, places, score_under
from agentenv.evaluation.records import EpisodeRecord


@pytest.mark.parametrize(
    ("cost", "expected"),
    [(0, 0.5), (1, 0.5), (2, 0.45), (10, 0.05), (11, 0.0), (99, 0.0)],
)
def test_an_area_is_the_share_of_the_budgets_at_which_an_answer_counts(cost: int, expected: float) -> None:
    """A score of .5 over the ten budgets 1 to 10: finished after 2 turns it counts at 9 of them, .5 x 9/10."""
    budget = Budget(1, 10)
    assert area(0.5, cost, budget) == pytest.approx(expected)
    assert area(0.5, cost, budget) == pytest.approx(sum(score_under(0.5, cost, b) for b in range(1, 11)) / 10)


def test_a_curve_has_all_budgets_or_twenty_one_places() -> None:
    assert places(Budget(1, 10)) == list(range(1, 11))
    assert places(Budget(300, 1500)) == list(range(300, 1501, 60))
    assert places(Budget(4, 4)) == [4]


@pytest.mark.parametrize(("low", "high"), [(-1, 4), (5, 4)])
def test_a_range_that_is_none_is_refused(low: int, high: int) -> None:
    with pytest.raises(ConfigurationError, match=str(low)):
        Budget(low, high)


def record(number: int, prediction: str | None, turns: int, *, valid: bool = True) -> EpisodeRecord:
    return {
        "id": str(number),
        "question": "Q?",
        "answers": ["a"],
        "prediction": prediction,
        "valid": valid,
        "end_reason": "answered",
        "searches": turns - 1,
        "retrieved_ids": [],
        "tokens": {"policy": 100 * turns, "total": 1000},
        "turns": [{"action": "x", "observation": "", "valid": True, "reward": 0.0, "tool_results": []}]
        * turns,
    }


def test_a_table_over_the_episodes_that_did_not_fail() -> None:
    """Turns 1 to 4: right after 2 (counts at 2, 3 and 4), wrong after 1, and a fault: the area is (3/4 + 0) / 2."""
    records = [record(1, "a", 2), record(2, "b", 1), record(3, "a", 1, valid=False)]
    table = budget_table(records, "em_squad", {"turns": Budget(1, 4), "searches": Budget(0, 1)})
    assert table["turns"]["area"] == pytest.approx(0.375)
    assert table["turns"]["n"] == 2
    assert table["turns"]["curve"] == [[1, 0.0], [2, 0.5], [3, 0.5], [4, 0.5]]
    assert table["searches"]["area"] == pytest.approx(0.25)


def test_what_is_not_recorded_has_no_area() -> None:
    one = record(1, "a", 2)
    one["searches"] = None
    assert budget_table([one], "em_squad")["searches"]["area"] is None
    with pytest.raises(DatasetError):
        budget_table([record(1, "a", 1, valid=False)], "em_squad")


def test_the_command_reads_evaluations(
    tmp_path: Path, write_run: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "run", [record(1, "a", 2), record(2, "b", 1)])
    assert main(["budget", str(tmp_path / "run"), "--turns", "1", "4", "--scorer", "em_squad", "--json"]) == 0
    (table,) = json.loads(capsys.readouterr().out)["runs"].values()
    assert table["turns"]["area"] == pytest.approx(0.375)
    assert main(["budget", str(tmp_path / "run"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["scorer"] == "f1_plain"  # the F1 of HybridDeepSearcher
    assert main(["budget", str(tmp_path / "run")]) == 0
    shown = capsys.readouterr().out
    assert all(kind in shown for kind in ("turns", "searches", "tokens"))
    assert main(["budget", str(tmp_path / "none")]) == 1


def test_areas_over_other_questions_are_not_put_side_by_side_without_a_word(
    tmp_path: Path, write_run: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [tmp_path / name for name in ("one", "same", "fewer", "other")]
    both = [record(1, "a", 2), record(2, "b", 1)]
    for folder, rows in zip(folders, (both, both, both[:1], both), strict=True):
        write_run(folder, rows, dataset="other" if folder.name == "other" else "fictional")
    command = ["budget", *map(str, folders), "--scorer", "em_squad"]
    assert main([*command, "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["other_questions"]) == {str(folders[2]), str(folders[3])}
    assert main(command) == 0
    assert capsys.readouterr().out.count("not to be compared with the first") == 2
