"""Covers what the page of an evaluation and of a training run holds, and that text cannot become markup."""

import json
import re
import shutil
import sys
import time
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from agentenv.cli.report import Report
from agentenv.errors import ConfigurationError, MissingExtra
from agentenv.evaluation.records import EpisodeRecord
from agentenv.evaluation.report.page import PAGE_BYTES, TEXT_CHARS
from agentenv.evaluation.report.report import _curves, write_report

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>{{ 12345 * 3 }}\u2028"

pytest.importorskip("jinja2", reason="needs the extra 'report'")


def embedded(page: Path) -> dict[str, Any]:
    """The episodes that the page carries."""
    found = re.search(
        r'<script type="application/json" id="data">(.*?)</script>', page.read_text("utf-8"), re.S
    )
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


class Tags(HTMLParser):
    """Counts the elements and collects the visible text."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.names: list[str] = []
        self.words = ""
        self.feed(page.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)

    def handle_data(self, data: str) -> None:
        self.words += data


def test_training_page_holds_before_after_bounds_curves_and_warnings(training_folder: Path) -> None:
    page = Tags(write_report(training_folder))
    results = json.loads((training_folder / "results.json").read_text())
    for name in ("before", "after"):
        low, high = results[name]["ci95"]
        assert f"{results[name]['mean']:.3f}" in page.words
        assert f"95 % interval {low:.3f} to {high:.3f}" in page.words
        assert f"em_squad, n = {results[name]['n']}" in page.words
    assert "difference, same questions" in page.words
    for text in ("closed book", "oracle", "expert", "McNemar p", "em_squad on dev", "group_size = 8"):
        assert text in page.words
    assert "Step 15: entropy fell below 0.05" in page.words
    assert "1 training episode was masked" in page.words
    assert "rollout seconds" in page.words
    assert page.names.count("polyline") == 12  # one for each curve of the made-up run
    assert page.names.count("polygon") == 1  # only dev_score has an interval


def test_among_several_environments_the_difference_says_what_it_is_of(training_folder: Path) -> None:
    path = training_folder / "results.json"
    results = json.loads(path.read_text())
    for name in ("before", "after"):
        results[f"{name}-sums"] = results[name]
        shutil.copytree(
            training_folder / "evaluation" / name, training_folder / "evaluation" / f"{name}-sums"
        )
    path.write_text(json.dumps(results))
    assert "difference of after and before, same questions" in Tags(write_report(training_folder)).words


def test_the_page_says_in_which_steps_episodes_failed(training_folder: Path) -> None:
    """The made-up run has one failure of its own."""
    path = training_folder / "metrics.jsonl"
    first = next(
        line["step"] for line in map(json.loads, path.read_text().splitlines()) if line.get("faults")
    )
    with path.open("a") as stream:
        stream.writelines(json.dumps({"step": step, "faults": n}) + "\n" for step, n in ((40, 3), (41, 2)))
    words = Tags(write_report(training_folder)).words
    assert (
        f"6 training episodes were masked for an infrastructure failure, in step {first} (1), 40 (3), 41 (2)"
        in words
    )


def test_a_ceiling_below_the_run_is_said(training_folder: Path) -> None:
    path = training_folder / "results.json"
    results = json.loads(path.read_text())
    results["bounds"]["oracle"] = {"mean": 0.5, "n": 40, "ci95": [0.4, 0.6], "note": "below the run itself"}
    path.write_text(json.dumps(results))
    assert "the bound oracle is below the run itself." in Tags(write_report(training_folder)).words


def test_a_warning_that_comes_again_is_one_line(training_folder: Path) -> None:
    told = [(16, "reward 0.1 is low"), (17, "entropy fell below 0.04: the policy may be collapsing")]
    with (training_folder / "metrics.jsonl").open("a") as stream:
        stream.writelines(json.dumps({"step": step, "warning": warning}) + "\n" for step, warning in told)
    page = Tags(write_report(training_folder))
    assert "2 of steps 15 to 17, lately: entropy fell below 0.04: the policy may be collapsing" in page.words
    assert "Step 16: reward 0.1 is low" in page.words


def test_training_page_shows_each_question_before_and_after(training_folder: Path) -> None:
    data = embedded(write_report(training_folder))
    assert data["labels"] == ["before", "after"]
    assert len(data["episodes"]) == 40
    lines = (training_folder / "evaluation" / "after" / "episodes.jsonl").read_text().splitlines()
    for entry, record in zip(data["episodes"], map(json.loads, lines), strict=True):
        assert entry["id"] == record["id"]
        assert entry["runs"][1]["prediction"] == record["prediction"]
        assert entry["runs"][1]["turns"] == record["turns"]
        assert entry["runs"][1]["score"] == float(record["prediction"] in record["answers"])


def test_an_unfinished_run_has_a_page_that_says_so(training_folder: Path) -> None:
    (training_folder / "results.json").unlink()
    with (training_folder / "metrics.jsonl").open("a") as metrics:
        metrics.write('{"step": 31, "rew')  # the writer was killed
    page = Tags(write_report(training_folder))
    assert "not finished" in page.words
    assert f"agentenv train --resume {training_folder}" in page.words
    assert page.names.count("polyline") == 12


def test_the_end_of_the_log_is_on_the_page(training_folder: Path) -> None:
    lines = [f"2026-01-01 00:00:00,000 INFO step {step} <b>" for step in range(2000)]
    lines.append("2026-01-01 00:00:01,000 ERROR ended by Fault: the disk <is> full")
    (training_folder / "run.log").write_text("\n".join(lines) + "\n")
    (training_folder / "results.json").unlink()
    page = Tags(write_report(training_folder))
    log = page.words.partition("End of the log")[2].partition("Episodes")[0].strip().splitlines()
    assert log == lines[-len(log) :]
    assert 100 < len(log) < 1000
    assert f"Its log ends with: {lines[-1]!r}." in page.words
    assert "b" not in page.names


def test_a_broken_line_within_the_metrics_is_refused(training_folder: Path) -> None:
    path = training_folder / "metrics.jsonl"
    path.write_text("{oops\n" + path.read_text())
    with pytest.raises(ConfigurationError, match=r"metrics\.jsonl, line 1\b"):
        write_report(training_folder)
    assert not (training_folder / "report.html").exists()


def test_a_figure_that_never_changes_is_said_and_not_drawn(tmp_path: Path) -> None:
    lines = [
        {"step": step, "reward_mean": step / 10, "clip_fraction": 0.25, "rounds": 1}
        | {"approx_kl": (-1) ** step * 4e-8, "learning_rate": step * 1e-7}
        for step in (1, 2, 3)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = Tags(write_report(tmp_path))
    assert page.names.count("polyline") == 2  # a small step size is no rounding
    assert "approx kl -4e-08; clip fraction 0.25; rounds 1." in page.words


def test_figures_of_several_sets_stand_behind_that_of_all(tmp_path: Path) -> None:
    lines = [
        {"step": step, "dev_score": step / 10, "dev_score/nq": step / 5, "dev_score/nq_ci95": [0.0, 0.9]}
        | {"reward_mean": step / 10, "reward_mean/nq": step / 7, "episodes/nq": step}
        for step in (1, 2)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = Tags(write_report(tmp_path)).words
    titles = ["em_squad on dev", "em_squad on dev, nq", "mean reward", "mean reward, nq", "episodes, nq"]
    places = [words.index(title) for title in titles]
    assert places == sorted(places)


def test_values_that_cannot_be_drawn_are_left_out(tmp_path: Path) -> None:
    rows = [{"step": 1, "kl": float("nan"), "note": "x", "ok": True}, {"step": 2, "kl": 0.1, "loss": 1.0}]
    rows += [{"step": 3, "kl": 0.2, "loss": None}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = Tags(write_report(tmp_path))
    assert page.names.count("polyline") == 1  # kl has two finite values, loss one
    assert "KL to the reference" in page.words
    assert "loss 1 (step 2 alone)" in page.words


def test_evaluation_page_holds_scores_breakdowns_and_ends(training_folder: Path) -> None:
    folder = training_folder / "evaluation" / "after"
    page = Tags(write_report(folder))
    results = json.loads((folder / "results.json").read_text())
    assert "fictional test" in page.words
    for name, score in results["scores"].items():
        assert name in page.words
        assert f"{score['ci95'][0]:.3f} to {score['ci95'][1]:.3f}" in page.words
    for text in (
        "By family (em_squad)",
        "By number of hops (em_squad)",
        "recall@2",
        "answered",
        "hf:after",
    ):
        assert text in page.words


def test_nothing_in_an_episode_becomes_markup(
    tmp_path: Path, record: Callable[..., EpisodeRecord], write_run: Callable[..., None]
) -> None:
    turn = {"action": HOSTILE, "observation": HOSTILE, "valid": True, "reward": 0.0, "tool_results": []}
    one = record(HOSTILE, HOSTILE, question=HOSTILE, family=HOSTILE, prompt=HOSTILE, turns=[turn])
    write_run(tmp_path, [one], policy=HOSTILE, bounds={HOSTILE: {"mean": 0.5}}, settings={HOSTILE: HOSTILE})
    page = write_report(tmp_path)
    tags = Tags(page)
    assert tags.names.count("script") == 2  # the data and our own
    assert "img" not in tags.names
    assert "37035" not in page.read_text("utf-8")
    assert embedded(page)["episodes"][0]["runs"][0]["turns"][0]["action"] == HOSTILE


def test_the_page_needs_no_network(training_folder: Path) -> None:
    text = write_report(training_folder).read_text("utf-8")
    addresses = set(re.findall(r"https?://[^\"' ]+", text))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name, never fetched
    assert "default-src 'none'" in text


def test_an_evaluation_of_faults_only_has_a_page(
    tmp_path: Path, record: Callable[..., EpisodeRecord], write_run: Callable[..., None]
) -> None:
    reasons = ("disk full", "no answer", "disk full", "a", "b")
    failed: dict[str, Any] = {"valid": False, "end_reason": "env_fault"}
    write_run(tmp_path, [record(f"q{i}", None, error=reason, **failed) for i, reason in enumerate(reasons)])
    words = Tags(write_report(tmp_path)).words
    assert "5 episodes were left out of every score for an infrastructure failure" in words
    assert "failure: disk full (2); no answer (1); a (1); and others." in words


def test_where_no_causes_are_known_right_wrong_and_failed_add_up(
    tmp_path: Path, record: Callable[..., EpisodeRecord], write_run: Callable[..., None]
) -> None:
    """Two of five are right, two wrong and one failed."""
    rows = [
        record(f"q{i}", None, searches=None, reward=reward) for i, reward in enumerate((-4.0, 3.0, 9.0, -1.0))
    ]
    rows.append(record("q4", None, searches=None, valid=False, end_reason="env_fault"))
    write_run(tmp_path, rows, ("reward",), retriever=None)
    words = Tags(write_report(tmp_path)).words
    table = words.partition("Errors\n")[2].partition("Behaviour")[0].split()
    assert table == ["nshare", "correct240.0%", "not", "correct240.0%", "fault120.0%"]
    assert "Bounds" not in words  # there are none


def test_a_page_of_enormous_episodes_is_cut_and_says_so(
    tmp_path: Path, record: Callable[..., EpisodeRecord], write_run: Callable[..., None]
) -> None:
    action = "first " + "x" * 1_000_000 + " last"
    write_run(tmp_path / "long", [record("q", turns=[{"action": action, "observation": "y", "valid": True}])])
    shown = embedded(write_report(tmp_path / "long"))["episodes"][0]["runs"][0]["turns"][0]["action"]
    assert shown.startswith("first x")
    assert shown.endswith("x last")
    assert f"[{len(action) - TEXT_CHARS} characters left out]" in shown
    turn = {"action": "<\u4e2d" * (TEXT_CHARS // 2), "observation": "", "valid": True}
    write_run(tmp_path / "many", [record(f"q{i}", turns=[turn] * 40) for i in range(20)])
    page = write_report(tmp_path / "many")
    held = len(embedded(page)["episodes"])
    assert 1 < held < 20
    assert 0.8 * PAGE_BYTES < page.stat().st_size < 1.1 * PAGE_BYTES
    assert f"The first {held} of 20 episodes are here" in Tags(page).words


def test_a_thousand_episodes_take_under_three_seconds_of_processor_time(
    tmp_path: Path, record: Callable[..., EpisodeRecord], write_run: Callable[..., None]
) -> None:
    turn = {"action": "x" * 2000, "observation": "y" * 2000, "valid": True, "reward": 0.0, "tool_results": []}
    write_run(tmp_path, [record(f"q{i}", turns=[turn]) for i in range(1000)])
    start = time.process_time()
    page = write_report(tmp_path)
    assert time.process_time() - start < 3
    assert len(embedded(page)["episodes"]) == 1000


def test_a_folder_of_neither_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"metrics\.jsonl.*episodes\.jsonl"):
        write_report(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_without_jinja2_the_extra_is_named(training_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingExtra, match=r"agentenv-suite\[report\]"):
        write_report(training_folder)


def test_the_command_says_where_the_page_is(
    training_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = Report(training_folder)
    result = command.run()
    assert result["report"] == str(training_folder / "report.html")
    command.show(result, Console(width=300))
    assert str(training_folder / "report.html") in capsys.readouterr().out


def test_an_evaluation_that_was_stopped_says_how_it_goes_on(
    tmp_path: Path, record: Callable[..., EpisodeRecord], write_run: Callable[..., None]
) -> None:
    write_run(tmp_path, [record("q")])
    (tmp_path / "results.json").unlink()
    with pytest.raises(ConfigurationError, match=re.escape(str(tmp_path)) + ".*not finished.*agentenv eval"):
        write_report(tmp_path)


def test_an_endless_question_of_self_play_is_cut_in_its_table(training_folder: Path) -> None:
    row = {"step": 1, "topic": "t", "question": "begin " + "q" * 5000 + " end", "answer": "a", "searches": 2}
    (training_folder / "questions.jsonl").write_text(json.dumps(row | {"outcome": "accepted"}) + "\n")
    words = Tags(write_report(training_folder)).words
    assert "begin q" in words
    assert "q end" in words
    assert "q" * 301 not in words


def test_an_end_that_a_step_did_not_have_is_drawn_as_none() -> None:
    steps = [{"step": step, "faults": 0, "reward_mean": 0.1 * step} for step in range(1, 5)]
    steps[1] |= {"end_env_fault": 80}
    curves, constants = _curves([*steps, {"step": 4, "dev_score": 0.5}], "em")
    (drawn,) = [chart for title, last, chart in curves if title == "end env fault" and last == "0"]
    assert drawn.count(",") > 3  # four points, and not the one of the step that had it
    assert not [title for title, _ in constants if title == "end env fault"]
