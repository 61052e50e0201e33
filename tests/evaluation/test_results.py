"""Covers the summary of an evaluation: what counts, what is left out, recall, breakdowns, and the files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentenv.errors import ConfigurationError, DatasetError, UnknownName
from agentenv.evaluation.records import (
    EPISODES,
    EpisodeRecord,
    read_evaluation,
    read_records,
    write_evaluation,
)
from agentenv.evaluation.report.tables import tables
from agentenv.evaluation.results import (
    OUTCOME,
    Json,
    mark_low_ceilings,
    measure_of,
    retrieval_recall,
    score_of,
    score_tables,
    summarize,
    values_of,
)

Maker = Callable[..., EpisodeRecord]


def summary(*records: EpisodeRecord, scorers: tuple[str, ...] = ("em_squad",)) -> Json:
    return summarize(
        records, scorers, dataset="fictional", split="test", policy="scripted", retriever="bm25:x", k=2
    )


def test_faults_are_counted_and_left_out_of_every_mean(record: Maker) -> None:
    fault = record("c", None, valid=False, end_reason="env_fault", searches=9)
    result = summary(record("a"), record("b", "Rome", searches=2), fault)
    assert (result["n"], result["faults"]) == (2, 1)
    assert result["scores"]["em_squad"]["mean"] == 0.5  # 1 of the 2 valid ones, not of 3
    assert result["searches_per_question"] == 1.5
    assert result["end_reasons"] == {"answered": 2, "env_fault": 1}


def test_a_score_says_how_far_faults_could_move_it(record: Maker) -> None:
    """One right of two valid ones and two faults: 1 of 4 if these were wrong, 3 of 4 if they were right."""
    faults = [record(name, None, valid=False, end_reason="env_fault") for name in "cd"]
    records = [record("a"), record("b", "Rome"), *faults]
    scores = summary(*records, scorers=("em_squad", OUTCOME))["scores"]
    assert scores["em_squad"]["range_with_faults"] == [0.25, 0.75]
    assert "range_with_faults" not in scores[OUTCOME]  # nothing bounds a reward
    assert "range_with_faults" not in summary(*records[:2])["scores"]["em_squad"]
    assert summary(*faults)["scores"]["em_squad"]["range_with_faults"] == [0.0, 1.0]


def test_scores_carry_interval_n_and_version(record: Maker) -> None:
    score = summary(record("a"), record("b", None))["scores"]["em_squad"]
    assert (score["n"], score["version"], score["interval"]) == (2, 1, "wilson")
    # Wilson for 1 of 2: centre 1/2, half = z/(1+z^2/2) * sqrt(1/8 + z^2/16) with z = 1.96.
    assert score["ci95"] == pytest.approx([0.09453, 0.90547], abs=1e-5)


def test_a_missing_answer_is_wrong_and_lowers_the_answer_rate(record: Maker) -> None:
    result = summary(record("a"), record("b", None), scorers=("em_squad", "f1_squad", "em_cover"))
    assert [score["mean"] for score in result["scores"].values()] == [0.5, 0.5, 0.5]
    assert result["answer_rate"] == 0.5


def test_an_evaluation_of_faults_only_has_no_mean(record: Maker) -> None:
    result = summary(record("a", None, valid=False, end_reason="policy_fault"))
    assert (result["n"], result["faults"]) == (0, 1)
    assert result["scores"]["em_squad"]["mean"] is None
    assert result["searches_per_question"] is None


def test_breakdown_by_family_and_hops(record: Maker) -> None:
    records = [
        record("a", family="bridge", hops=2),
        record("b", "Rome", family="bridge", hops=1),
        record("c", family="count", hops=1),
        record("d", family="count", hops=1),
    ]
    result = summary(*records)
    assert {name: _n_and_mean(row) for name, row in result["by_family"].items()} == {
        "bridge": (2, 0.5),
        "count": (2, 1.0),
    }
    assert {name: _n_and_mean(row) for name, row in result["by_hops"].items()} == {
        "1": (3, pytest.approx(2 / 3)),
        "2": (1, 1.0),
    }


def test_breakdown_by_set_beside_families_that_sets_share(record: Maker) -> None:
    result = summary(
        record("one:a", set="one", family="bridge"),
        record("one:b", "Rome", set="one", family="count"),
        record("two:a", set="two", family="bridge"),
    )
    assert {name: _n_and_mean(row) for name, row in result["by_set"].items()} == {
        "one": (2, 0.5),
        "two": (1, 1.0),
    }
    assert {name: row["n"] for name, row in result["by_family"].items()} == {"bridge": 2, "count": 1}
    assert [table["title"] for table in tables([("run", result)], "em_squad")][1:3] == ["By set", "By family"]


def _n_and_mean(row: Json) -> tuple[int, float]:
    return row["n"], row["scores"]["em_squad"]["mean"]


def test_recall_is_over_the_first_k_of_every_search(record: Maker) -> None:
    records = [
        # s1 in search 1 at rank 2, s2 in search 2 at rank 3: recall@2 = 1/2, recall@3 = 1; first search 1/2
        # in both.
        record("a", supporting_ids=["s1", "s2"], retrieved_ids=[["x", "s1", "y"], ["x", "y", "s2"]]),
        record("b", supporting_ids=["s1"], retrieved_ids=[]),  # never searched: 0
        record("c"),  # names no supporting documents: not part of the mean
    ]
    assert retrieval_recall(records, 2) == {"k": 2, "n": 2, "recall@2": 0.25, "first_search_recall@2": 0.25}
    assert retrieval_recall(records, 3) == {"k": 3, "n": 2, "recall@3": 0.5, "first_search_recall@3": 0.25}
    assert retrieval_recall([record("c")], 2)["recall@2"] is None


def test_finding_a_document_twice_counts_once(record: Maker) -> None:
    twice = record("a", supporting_ids=["s1", "s2"], retrieved_ids=[["s1"], ["s1"]])
    assert retrieval_recall([twice], 1)["recall@1"] == 0.5


def test_an_unknown_scorer_is_refused(record: Maker) -> None:
    with pytest.raises(UnknownName, match="f1_hotpot"):
        summary(record("a"), scorers=("f1_hotpt",))


def test_a_folder_reads_back(record: Maker, tmp_path: Path) -> None:
    records = [record("a", question="O\u00f9\u2028?"), record("b", "Rome")]
    write_evaluation(tmp_path, summary(*records), records)
    back = read_evaluation(tmp_path)
    assert back.results == json.loads(json.dumps(summary(*records)))
    assert [row["question"] for row in back.records] == ["O\u00f9\u2028?", "Where?"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "episodes.jsonl",
        "episodes.sha256",
        "results.json",
    ]


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ('{"id": "a", "quest', "line 2"),
        ("[1]", "line 2.*'id'"),
        ('{"id": "q"}', "line 2.*'answers'"),
        ({"identity": "first"}, "line 2.*'first'"),
        ({"identity": "b", "answers": [["Paris"]]}, r"line 2.*\[\['Paris'\]\]"),
        ({"identity": "b", "answers": None}, "line 2.*None"),
        ({"identity": "b", "answers": [1]}, r"line 2.*\[1\]"),
    ],
)
def test_a_broken_line_is_named(
    record: Maker, tmp_path: Path, line: str | dict[str, object], named: str
) -> None:
    path = tmp_path / EPISODES
    second = line if isinstance(line, str) else json.dumps(record(**line))
    path.write_text(json.dumps(record("first")) + "\n" + second + "\n")
    with pytest.raises(DatasetError, match=named):
        read_records(path)


def test_a_line_that_is_no_text_is_named(record: Maker, tmp_path: Path) -> None:
    path = tmp_path / EPISODES
    path.write_bytes(json.dumps(record("first")).encode().replace(b"Paris", b"Par\xff", 1) + b"\n")
    with pytest.raises(DatasetError, match=r"line 1.*0xff"):
        read_records(path)


def test_a_folder_without_results_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"results\.json"):
        read_evaluation(tmp_path)
    (tmp_path / "results.json").write_text("[1]")
    with pytest.raises(ConfigurationError, match=r"results\.json"):
        read_evaluation(tmp_path)


def test_the_whole_summary_of_a_small_evaluation(record: Maker) -> None:
    """Two episodes count: one right after two searches, one without an answer after a search that found nothing."""
    right = record(
        "a",
        searches=2,
        turns=[{"action": "<search>x</search>", "observation": "in Paris", "valid": True}] * 3,
        supporting_ids=["s", "t"],
        retrieved_ids=[["s", "u", "t"], ["v"]],
        tokens={"policy": 6, "total": 20},
        reward=0.75,
    )
    silent = record(
        "b",
        None,
        searches=1,
        turns=[{"action": "<search>x</search>", "observation": "", "valid": True}],
        supporting_ids=["w"],
        retrieved_ids=[["u"]],
        tokens={"policy": 2, "total": 10},
        reward=0.25,
    )
    fault = record("c", valid=False, end_reason="env_fault", searches=None)
    found = summarize(
        [right, silent, fault],
        ["em_squad"],
        dataset="towns",
        split="dev",
        policy="p",
        retriever="bm25",
        k=2,
        seed=3,
        bounds={"oracle": {"mean": 0.25}, "expert": {"mean": 0.75}, "closed_book": {"mean": 0.0}},
        settings={"decoding": "greedy"},
        token_unit="bytes",
    )
    tables = {name: found.pop(name) for name in ("scores", "by_set", "by_family", "by_hops", "capabilities")}
    assert tables["scores"]["em_squad"]["mean"] == 0.5
    assert (tables["by_set"], tables["by_family"], tables["by_hops"]) == ({}, {}, {})
    assert "searches" in {row["skill"] for row in tables["capabilities"]}
    note = found["bounds"]["oracle"].pop("note")
    assert note
    assert found == {
        "dataset": "towns",
        "split": "dev",
        "policy": "p",
        "retriever": "bm25",
        "seed": 3,
        "n": 2,
        "faults": 1,
        "retrieval": {
            "k": 2,
            "n": 2,
            "recall@2": 0.25,
            "first_search_recall@2": 0.25,
            "support_recall": 0.5,
            "all_support": 0.5,
            "answer_shown": 0.5,
            "answer_shown_n": 2,
        },
        "turns_per_question": 2.0,
        "searches_per_question": 1.5,
        "answer_rate": 0.5,
        "reward_mean": 0.5,
        "end_reasons": {"answered": 1, "env_fault": 1, "turn_limit": 1},
        "errors": {
            "scorer": "em_squad",
            "correct": 1,
            "correct_without_evidence": 0,
            "retrieval_miss": 0,
            "read_miss": 0,
            "format": 0,
            "gave_up": 1,
            "fault": 1,
        },
        "tokens": {
            "unit": "bytes",
            "policy_per_question": 4.0,
            "policy_per_correct": 8.0,
            "total_per_question": 15.0,
            "total_per_correct": 30.0,
        },
        "bounds": {"oracle": {"mean": 0.25}, "expert": {"mean": 0.75}, "closed_book": {"mean": 0.0}},
        "settings": {"decoding": "greedy"},
    }


def test_without_a_search_nothing_is_said_of_retrieval_and_without_a_unit_nothing_of_tokens(
    record: Maker,
) -> None:
    found = summarize(
        [record("a")], ["em_squad"], dataset="d", split="", policy="p", retriever=None, k=2, token_unit=""
    )
    assert (found["retrieval"], found["capabilities"], found["tokens"]) == ({}, [], {})
    assert found["errors"] == {"scorer": "em_squad", "correct": 1}
    assert (found["seed"], found["bounds"], found["settings"]) == (0, {}, {})
    named = summarize(
        [record("a", retrieved_ids=[["x"]])],
        ["em_squad"],
        dataset="d",
        split="",
        policy="p",
        retriever=None,
        k=2,
    )
    assert named["retrieval"]["k"] == 2  # it searched by itself, and says what it found
    assert named["tokens"]["unit"] == "tokens"
    assert set(named["errors"]) > {"scorer", "correct"}


def test_a_ceiling_is_marked_where_it_lies_below_the_run() -> None:
    bounds: dict[str, dict[str, Any]] = {
        "oracle": {"mean": 0.4, "n": 5},
        "oracle_paged": {"mean": 0.5},
        "expert": {"note": "no expert"},
        "closed_book": {"mean": 0.0},
    }
    marked = mark_low_ceilings(bounds, 0.5)
    assert marked["oracle"].pop("note")
    assert marked == {**bounds, "oracle": {"mean": 0.4, "n": 5}}
    assert mark_low_ceilings(bounds, None) == bounds


def test_the_outcome_of_the_environment_is_a_score_like_others(record: Maker) -> None:
    rows = [record("a", reward=0.25), record("b", reward=0.75), record("c", valid=False)]
    del rows[2]["reward"]
    assert [score_of(row, OUTCOME) for row in rows] == [0.25, 0.75, 0.0]
    assert values_of(rows[:2], OUTCOME) == [0.25, 0.75]
    score = summary(*rows, scorers=(OUTCOME,))["scores"][OUTCOME]
    assert (score["mean"], score["n"], score["version"], score["normaliser"]) == (0.5, 2, 1, "none")
    assert not measure_of(OUTCOME).binary
    assert measure_of("em_squad").binary


def test_a_score_of_nothing_has_no_mean_and_a_breakdown_is_in_the_order_of_its_values(record: Maker) -> None:
    empty = score_tables([], ["em_squad"])["scores"]["em_squad"]
    assert empty == {"mean": None, "ci95": None, "n": 0, "version": 1, "normaliser": "squad"}
    rows = [record("a", hops=2, family="b"), record("b", hops=10), record("c", "Rome", hops=2, family="a")]
    tables = score_tables(rows, ["em_squad"])
    assert [(name, part["n"]) for name, part in tables["by_hops"].items()] == [("10", 1), ("2", 2)]
    assert list(tables["by_family"]) == ["a", "b"]
    assert tables["by_hops"]["2"]["scores"]["em_squad"]["mean"] == 0.5


def test_the_seed_of_the_bootstrap_reaches_every_table(record: Maker) -> None:
    rows = [record(f"q{i}", " ".join(["Paris"] * (1 + i % 7)), family="f", hops=1) for i in range(40)]
    drawn = {}
    for seed in (0, 9):
        tables = score_tables(rows, ["f1_squad"], seed=seed)
        ends = [tables["scores"]["f1_squad"]["ci95"]]
        ends += [
            tables[by][key]["scores"]["f1_squad"]["ci95"]
            for by, key in (("by_family", "f"), ("by_hops", "1"))
        ]
        assert ends[0] == ends[1] == ends[2]
        drawn[seed] = ends[0]
    assert drawn[0] != drawn[9]
    assert score_tables(rows, ["f1_squad"])["scores"]["f1_squad"]["ci95"] == drawn[0]


def test_ranks_give_mrr_and_recall_over_conversations(record: Maker) -> None:
    """Ranks 1, 4, 11 and none: MRR (1 + 1/4 + 1/11) / 4; two of four are among the first 10, three among the first 100."""
    ranks = {"a": 1, "b": 4, "c": 11, "d": None}
    played = [
        record(name, rank=rank, cluster="one" if name in "ab" else name) for name, rank in ranks.items()
    ]
    malformed = record("e", None)  # has no rank and counts 0
    names = ("mrr", "recall@10", "recall@100")
    scores = summary(*played, scorers=names)["scores"]
    assert [scores[name]["mean"] for name in names] == pytest.approx([(1 + 1 / 4 + 1 / 11) / 4, 2 / 4, 3 / 4])
    assert [measure_of(name).binary for name in names] == [False, True, True]
    alone = summary(*(one | {"cluster": one["id"]} for one in played), scorers=names)["scores"]
    assert scores["mrr"]["ci95"] != alone["mrr"]["ci95"]  # two turns of one conversation are not independent
    assert summary(*played, malformed, scorers=names)["scores"]["recall@10"]["mean"] == 2 / 5
    assert score_of(record("f", rank=100), "recall@100") == 1.0
    assert score_of(record("g", rank=101), "recall@100") == 0.0


def test_what_is_right_is_counted_whatever_the_training_pays(record: Maker) -> None:
    """Think2SQL pays .15 for the form of a wrong query, which is no right one, and neither is one never handed in."""
    played = [record("a", solved=True, reward=1.0), record("b", solved=False, reward=0.15), record("c")]
    score = summary(*played, scorers=("solved",))["scores"]["solved"]
    assert score["mean"] == pytest.approx(1 / 3)
    assert measure_of("solved").binary


def test_how_far_a_recording_was_followed_gives_sop(record: Maker) -> None:
    """1, 3/4 and 0 of it: PG 7/12, TSR 1/3, and the score is the mean of the two (UI-S1)."""
    played = [record(name, followed_share=share) for name, share in (("a", 1.0), ("b", 0.75), ("c", 0.0))]
    names = ("sop", "sop_pg", "sop_tsr")
    scores = summary(*played, scorers=names)["scores"]
    assert [scores[name]["mean"] for name in names] == pytest.approx([(7 / 12 + 1 / 3) / 2, 7 / 12, 1 / 3])
    assert [measure_of(name).binary for name in names] == [False, False, True]
    assert score_of(record("d"), "sop") == 0.0  # ended before its first turn did
