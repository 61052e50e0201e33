"""The official measures of HotpotQA, 2Wiki and MuSiQue on cases worked out by hand, and their prediction files."""

import json
from pathlib import Path
from typing import Any

import pytest

from agentenv.cli.main import main
from agentenv.data.datasets import load_dataset
from agentenv.errors import DatasetError, UnknownName
from agentenv.evaluation.official import (
    Match,
    answer_match,
    hotpot_support,
    joint,
    musique_answer,
    musique_support,
    score_file,
    wiki_evidence,
    wiki_support,
)


def write(path: Path, content: Any) -> Path:
    path.write_text(
        json.dumps(content) if path.suffix == ".json" else "".join(json.dumps(r) + "\n" for r in content)
    )
    return path


def test_answer_has_precision_and_recall_and_the_yes_no_guard() -> None:
    # [in, beijing, china] against [beijing]: P = 1/3, R = 1, F1 = 1/2.
    assert answer_match("in Beijing, China", ["Beijing"]) == pytest.approx((0.0, 0.5, 1 / 3, 1.0))
    assert answer_match("the U.S.A.", ["usa"]) == pytest.approx((1.0, 1.0, 1.0, 1.0))
    assert answer_match("yes it is", ["yes"]) == pytest.approx((0.0, 0.0, 0.0, 0.0))
    assert answer_match("noanswer", ["no answer"]) == pytest.approx((0.0, 0.0, 0.0, 0.0))
    for word in ("yes", "no", "noanswer"):  # on either side, though half of the words are the same
        assert (
            answer_match(word, [f"{word} indeed"]) == answer_match(f"{word} indeed", [word]) == (0, 0, 0, 0)
        )
        assert answer_match(word, [word]).em == 1.0


def test_over_several_golds_each_figure_takes_its_own_best() -> None:
    # Against "x y z w": P = 1, R = 1/2, F1 = 2/3; against "y": P = 1/2, R = 1, F1 = 2/3.
    found = answer_match("x y", ["x y z w", "y"])
    assert found == pytest.approx((0.0, 2 / 3, 1.0, 1.0))


def test_support_of_hotpotqa_by_hand() -> None:
    gold = [("A", 0), ("B", 1)]
    # A set.
    assert hotpot_support([("B", 1), ("A", 0), ("A", 0)], gold) == pytest.approx((1.0, 1.0, 1.0, 1.0))
    # One of three is right and one of two found: P = 1/3, R = 1/2, F1 = 2/5.
    found = hotpot_support([("A", 0), ("A", 1), ("C", 0)], gold)
    assert found == pytest.approx((0.0, 0.4, 1 / 3, 0.5))
    assert hotpot_support([("a", 0)], [("A", 0)]).em == 0.0  # case counts
    assert hotpot_support([], gold) == pytest.approx((0.0, 0.0, 0.0, 0.0))
    assert hotpot_support([], []) == pytest.approx((1.0, 0.0, 0.0, 0.0))  # the official quirk


def test_support_of_2wiki_lower_cases_titles_after_the_set_is_made() -> None:
    assert wiki_support([("a", 0)], [("A", 0)]) == pytest.approx((1.0, 1.0, 1.0, 1.0))
    # Both spellings count as right predictions: P = 2/2, R = 1/1.
    assert wiki_support([("a", 0), ("A", 0)], [("A", 0)]) == pytest.approx((1.0, 1.0, 1.0, 1.0))
    assert wiki_support([("a", 0)], [("A", 0), ("B", 2)]) == pytest.approx((0.0, 2 / 3, 1.0, 0.5))
    # A fact that is named twice counts once on either side, and one that is too much spoils the exact match.
    assert wiki_support([("A", 0), ("A", 0), ("C", 1)], [("A", 0)]) == pytest.approx((0.0, 2 / 3, 0.5, 1.0))
    assert wiki_support([("A", 0)], [("A", 0), ("B", 2), ("B", 2)]) == pytest.approx((0.0, 2 / 3, 1.0, 0.5))


def test_evidence_of_2wiki_accepts_every_form_of_a_triple() -> None:
    gold = [[("Ann", "mother", "Bea"), ("Annie", "mother", "Bea")], [("Bea", "born in", "Rome")]]
    assert wiki_evidence([("annie", "mother", "bea!"), ("Bea", "born  in", "Rome")], gold).em == 1.0
    assert wiki_evidence([("Ann", "mother", "Bea")], gold) == pytest.approx((0.0, 2 / 3, 1.0, 0.5))
    # Two forms of one triple are two hits: P = 2/2, R = 2/2 although the second triple is missing (quirk).
    assert wiki_evidence([("Ann", "mother", "Bea"), ("Annie", "mother", "Bea")], gold).em == 1.0
    assert wiki_evidence([("the Ann", "mother", "Bea")], gold).f1 == 0.0  # articles stay
    # A triple that is named twice counts once: P = 1/2, R = 1/2.
    named = [("Ann", "mother", "Bea"), ("ann", "mother", "bea"), ("Ann", "mother", "Cy")]
    assert wiki_evidence(named, gold) == pytest.approx((0.0, 0.5, 0.5, 0.5))


def test_joint_is_the_product_of_precisions_and_of_recalls() -> None:
    # P = 1/2 * 1 = 1/2, R = 1 * 1/4 = 1/4, F1 = 2 * 1/8 / (3/4) = 1/3.
    found = joint(Match(1.0, 2 / 3, 0.5, 1.0), Match(0.0, 0.4, 1.0, 0.25))
    assert found == pytest.approx((0.0, 1 / 3, 0.5, 0.25))
    assert joint(Match(1, 1, 1, 1), Match(1, 1, 1, 1), Match(1, 1, 1, 1)) == pytest.approx((1, 1, 1, 1))
    assert joint(Match(0, 0, 0, 0), Match(1, 1, 1, 1)).f1 == 0.0


def test_musique_by_hand() -> None:
    assert musique_support([3, 1], [1, 3]).f1 == 1.0
    assert musique_support([1, 2, 5, 7], [1, 3]).f1 == pytest.approx(1 / 3)  # P = 1/4, R = 1/2
    assert musique_support([], []).f1 == 1.0  # unlike HotpotQA
    assert musique_answer("in Beijing, China", ["Peking", "Beijing"]) == (0.0, 0.5)
    assert musique_answer("", [""]) == (1.0, 1.0)
    assert musique_answer("the", ["Paris"]) == (0.0, 0.0)  # an empty side
    assert musique_answer("the", ["Paris", "a"]) == (1.0, 1.0)  # and two


def hotpot_gold(folder: Path) -> Path:
    rows = [
        {"_id": "1", "question": "q", "answer": "Beijing", "supporting_facts": [["A", 0], ["B", 1]]},
        {"_id": "2", "question": "q", "answer": "yes", "supporting_facts": [["C", 0]]},
        {"_id": "3", "question": "q", "answer": "x", "supporting_facts": [["D", 0]]},
        {"_id": "4", "question": "q", "answer": "x", "supporting_facts": [["D", 0]]},
    ]
    return write(folder / "hotpot_dev_distractor_v1.json", rows)


def test_a_hotpotqa_file_divides_by_all_golds(tmp_path: Path) -> None:
    answers = {"1": "in Beijing, China", "2": "yes", "3": "x"}
    facts = {"1": [["A", 0]], "2": [["C", 0]], "4": [["D", 0]]}
    predictions = write(tmp_path / "pred.json", {"answer": answers, "sp": facts})
    found = score_file("hotpotqa", hotpot_gold(tmp_path), predictions)
    assert (found["n"], found["missing"]) == (4, {"answer": 1, "sp": 1})
    scores = found["scores"]
    # Answers: em 0, 1, 1, -; f1 1/2, 1, 1, -. Support: em 0, 1, -, 1; f1 2/3, 1, -, 1.
    assert (scores["em"], scores["f1"]) == (2 / 4, pytest.approx(2.5 / 4))
    assert (scores["sp_em"], scores["sp_f1"]) == (2 / 4, pytest.approx((2 / 3 + 2) / 4))
    # Joint of 1: P = 1/3 * 1, R = 1 * 1/2, F1 = 2/5; of 2: 1; of 3 and 4 nothing, a part is missing.
    assert (scores["joint_em"], scores["joint_f1"]) == (1 / 4, pytest.approx(1.4 / 4))
    assert (scores["joint_prec"], scores["joint_recall"]) == (
        pytest.approx((4 / 3) / 4),
        pytest.approx(1.5 / 4),
    )


def test_the_split_names_the_file_of_the_golds_and_its_first_is_the_default(tmp_path: Path) -> None:
    for split, answer in (("dev", "Rome"), ("train", "Oslo")):
        row = {"_id": "1", "question": "q", "answer": answer, "supporting_facts": [["A", 0]]}
        write(tmp_path / f"hotpot_{split}_v1.json", [row])
    predictions = write(tmp_path / "pred.json", {"answer": {"1": "Oslo"}, "sp": {}})
    found = {
        split: score_file("hotpotqa", tmp_path, predictions, split=split) for split in (None, "dev", "train")
    }
    assert {split: one["scores"]["em"] for split, one in found.items()} == {
        None: 0.0,
        "dev": 0.0,
        "train": 1.0,
    }


def test_an_unknown_split_is_refused_before_the_first_is_scored_in_its_place(tmp_path: Path) -> None:
    gold = hotpot_gold(tmp_path).parent
    predictions = write(tmp_path / "pred.json", {"answer": {"1": "Beijing"}, "sp": {}})
    assert score_file("hotpotqa", gold, predictions)["n"] == 4
    with pytest.raises(UnknownName, match="validation"):
        score_file("hotpotqa", gold, predictions, split="validation")


def test_predictions_of_other_questions_alone_are_refused(tmp_path: Path) -> None:
    gold = hotpot_gold(tmp_path)
    said = refusal(tmp_path, "hotpotqa", gold, {"answer": {"x": "yes"}, "sp": {"x": [["A", 0]]}})
    assert gold.name in said
    (tmp_path / "2wiki").mkdir()
    gold = write(tmp_path / "2wiki" / "dev.json", [WIKI_ROW])
    said = refusal(tmp_path, "2wiki", gold, {"answer": {"x": "yes"}, "sp": {}, "evidence": {}})
    assert gold.name in said


def test_a_2wiki_file_takes_aliases_where_the_official_file_is(tmp_path: Path) -> None:
    row = {
        "_id": "w",
        "question": "q",
        "answer": "United States",
        "answer_id": "Q30",
        "supporting_facts": [["Ann", 0]],
        "evidences": [["Ann", "country", "United States"]],
        "evidences_id": [["Q1", "country", "Q30"]],
    }
    gold = write(tmp_path / "2wiki_dev_1.json", [row])
    predictions = write(
        tmp_path / "pred.json",
        {
            "answer": {"w": "American"},
            "sp": {"w": [["ann", 0]]},
            "evidence": {"w": [["Ann", "country", "USA"]]},
        },
    )
    plain = score_file("2wiki", gold, predictions)
    assert (plain["aliases"], plain["scores"]["em"], plain["scores"]["sp_em"]) == (False, 0.0, 1.0)
    assert plain["scores"]["evi_f1"] == plain["scores"]["joint_f1"] == 0.0
    (tmp_path / "id_aliases.json").write_text(
        json.dumps({"Q_id": "Q30", "aliases": ["USA"], "demonyms": ["American"]}) + "\n"
    )
    named = score_file("2wiki", gold, predictions)
    assert named["aliases"]
    assert all(value == 1.0 for value in named["scores"].values())
    assert len(named["scores"]) == 16


def test_a_musique_file(tmp_path: Path) -> None:
    paragraphs = [
        {"idx": i, "title": "t", "paragraph_text": "p", "is_supporting": i in (1, 3)} for i in range(5)
    ]
    row = {"id": "2hop__1_2", "question": "q", "answer": "NYC", "answer_aliases": ["New York"]}
    gold = write(
        tmp_path / "musique_ans_v1.0_dev.jsonl", [{**row, "paragraphs": paragraphs, "answerable": True}]
    )
    line = {"id": "2hop__1_2", "predicted_answer": "new york city", "predicted_support_idxs": [1]}
    predictions = write(tmp_path / "pred.jsonl", [{**line, "predicted_answerable": True}])
    # [new, york, city] against [new, york]: F1 = 4/5; support P = 1, R = 1/2, F1 = 2/3.
    assert score_file("musique", gold, predictions)["missing"] == {}  # a prediction without a part is refused
    assert score_file("musique", gold, predictions)["scores"] == {
        "answer_em": 0.0,
        "answer_f1": pytest.approx(0.8),
        "support_f1": pytest.approx(2 / 3),
    }
    write(predictions, [{**line, "id": "other"}])
    with pytest.raises(DatasetError, match="'2hop__1_2'"):
        score_file("musique", gold, predictions)


def full_gold(folder: Path) -> Path:
    """Three questions with their twins, as MuSiQue-Full has them: paragraphs 1 and 2 support, a twin lacks the first."""
    rows: list[dict[str, Any]] = []
    for name in ("a", "b", "c"):
        for answerable in (True, False):
            support = (1, 2) if answerable else (2,)
            paragraphs = [{"idx": i, "is_supporting": i in support} for i in range(4)]
            row = {"id": name, "question": "q", "answer": "New York", "answer_aliases": list[str]()}
            rows.append({**row, "paragraphs": paragraphs, "answerable": answerable})
    return write(folder / "musique_full_v1.0_dev.jsonl", rows)


def full_predictions(folder: Path, *claims: str) -> Path:
    """For each claim (id, 1 or 0 for answerable, answer) one line; paragraph 1 is always named."""
    rows: list[dict[str, Any]] = []
    for claim in claims:
        name, flag, answer = claim.split(" ", 2)
        line = {"id": name, "predicted_answer": answer, "predicted_support_idxs": [1]}
        rows.append({**line, "predicted_answerable": flag == "1"})
    return write(folder / "full.jsonl", rows)


def test_musique_full_scores_pairs_by_hand(tmp_path: Path) -> None:
    """Only a and c have both flags right. Of a, [york] against [new, york] has P = 1, R = 1/2, F1 = 2/3; c is wrong.

    What is answered to an unanswerable twin counts nowhere.
    """
    claims = ("a 1 York", "b 1 New York", "a 0 New York", "b 1 New York", "c 1 Rome", "c 0 New York")
    found = score_file("musique", full_gold(tmp_path), full_predictions(tmp_path, *claims))
    assert found["n"] == 3
    scores = found["scores"]
    assert (scores["answer_em"], scores["answer_f1"]) == (
        pytest.approx(1 / 3),
        pytest.approx((2 / 3 + 1) / 3),
    )
    assert scores["support_f1"] == pytest.approx(2 / 3)  # [1] against [1, 2]: P = 1, R = 1/2
    assert scores["group_answer_sufficiency_f1"] == pytest.approx(2 / 3 / 3)
    assert scores["group_support_sufficiency_f1"] == pytest.approx((2 / 3 + 0 + 2 / 3) / 3)


def test_the_first_prediction_of_an_id_is_that_of_its_first_gold(tmp_path: Path) -> None:
    """The unanswerable twins stand first. Taken in any other order flags and answers would meet the wrong gold."""
    gold = full_gold(tmp_path)
    lines = gold.read_text().splitlines(keepends=True)
    gold.write_text("".join(lines[i] for i in (1, 0, 3, 2, 5, 4)))
    names = ("answer_f1", "group_answer_sufficiency_f1")

    def scores(*claims: str) -> tuple[float, ...]:
        found = score_file("musique", gold, full_predictions(tmp_path, *claims))["scores"]
        return tuple(found[name] for name in names)

    answers = [(f"{name} 0 Rome", f"{name} 1 New York") for name in "abc"]
    assert scores(*(line for pair in answers for line in pair)) == (1.0, 1.0)
    assert scores(*(first for first, _ in answers), *(second for _, second in answers)) == (1.0, 1.0)
    assert scores(*(line for pair in answers for line in pair[::-1])) == (0.0, 0.0)
    # Only b is turned round: its answerable twin is met by "Rome", and both of its flags are wrong.
    (a, b, c) = answers
    assert scores(*a, *b[::-1], *c) == pytest.approx((2 / 3, 2 / 3))


def test_musique_wants_no_more_predictions_than_golds(tmp_path: Path) -> None:
    whole = [f"{name} {flag} x" for name in "abc" for flag in (1, 0)]
    with pytest.raises(DatasetError, match=r"'b'.*\b3\b"):
        score_file("musique", full_gold(tmp_path), full_predictions(tmp_path, *whole, "b 1 y"))


def test_musique_full_wants_twins_and_flags(tmp_path: Path) -> None:
    gold, whole = full_gold(tmp_path), [f"{name} {flag} x" for name in "abc" for flag in (1, 0)]
    predictions = full_predictions(tmp_path, *whole[:-1])
    with pytest.raises(DatasetError, match=r"\b2\b"):
        score_file("musique", gold, predictions)
    predictions.write_text(full_predictions(tmp_path, *whole).read_text().replace("false", '"no"'))
    with pytest.raises(DatasetError, match="'no'"):
        score_file("musique", gold, predictions)
    lines = gold.read_text().splitlines(keepends=True)
    gold.write_text("".join(lines[:-1]))
    with pytest.raises(DatasetError, match="'c'"):
        score_file("musique", gold, full_predictions(tmp_path, *whole[:-1]))
    gold.write_text("".join([*lines[:-1], lines[-2]]))  # twice, and answerable both times
    with pytest.raises(DatasetError, match="'c'"):
        score_file("musique", gold, full_predictions(tmp_path, *whole))


def test_gold_predictions_score_one(tmp_path: Path) -> None:
    gold = hotpot_gold(tmp_path)
    rows = json.loads(gold.read_text())
    predictions = {
        "answer": {row["_id"]: row["answer"] for row in rows},
        "sp": {row["_id"]: row["supporting_facts"] for row in rows},
    }
    scores = score_file("hotpotqa", gold, write(tmp_path / "pred.json", predictions))["scores"]
    assert set(scores.values()) == {1.0}


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ({"answer": {}}, "'sp'"),
        ({"answer": [], "sp": {}}, "'answer'"),
        ({"answer": {"1": None}, "sp": {}}, "answer of 1.*None"),
        ({"answer": {}, "sp": {"1": [["A"]]}}, r"facts of 1\b"),
    ],
)
def test_files_of_another_layout_are_refused(tmp_path: Path, content: Any, named: str) -> None:
    with pytest.raises(DatasetError, match=named):
        score_file("hotpotqa", hotpot_gold(tmp_path), write(tmp_path / "pred.json", content))


WIKI = {
    "_id": "w",
    "question": "q",
    "answer": "United States",
    "supporting_facts": [["Ann", 0]],
    "evidences": [["Ann", "country", "United States"], ["Bob", "country", "Chad"]],
}


def test_the_id_of_2wiki_has_two_names(tmp_path: Path) -> None:
    renamed = {"id" if key == "_id" else key: value for key, value in WIKI.items()}
    content = {"answer": {"w": "United States"}, "sp": {}, "evidence": {}}
    predictions = write(tmp_path / "pred.json", content)
    for row in (WIKI, renamed):
        assert (
            score_file("2wiki", write(tmp_path / "2wiki_dev_1.json", [row]), predictions)["scores"]["em"]
            == 1.0
        )


@pytest.mark.parametrize(
    "evidence", [1, [1], ["abc"], [["Ann", "country"]], [["Ann", "country", 1]], {"a": 1}]
)
def test_evidence_that_is_no_triples_is_refused(tmp_path: Path, evidence: Any) -> None:
    gold = write(tmp_path / "2wiki_dev_1.json", [WIKI])
    content = {"answer": {}, "sp": {}, "evidence": {"w": evidence}}
    with pytest.raises(DatasetError) as caught:
        score_file("2wiki", gold, write(tmp_path / "pred.json", content))
    assert "w" in str(caught.value)


@pytest.mark.parametrize("numbers", [1, None, "1", ["1"], [[1]], [True], {"1": 2}])
def test_support_that_is_no_paragraph_numbers_is_refused(tmp_path: Path, numbers: Any) -> None:
    row = {"id": "m", "question": "q", "answer": "NYC", "paragraphs": [{"idx": 0, "is_supporting": True}]}
    gold = write(tmp_path / "musique_ans_v1.0_dev.jsonl", [row])
    line = {"id": "m", "predicted_answer": "NYC", "predicted_support_idxs": numbers}
    with pytest.raises(DatasetError) as caught:
        score_file("musique", gold, write(tmp_path / "pred.jsonl", [line]))
    assert repr(numbers) in str(caught.value)


def test_a_2wiki_file_divides_by_all_golds_and_each_part_may_be_missing(tmp_path: Path) -> None:
    """Of two golds one is answered and has one of its two triples: P = 1, R = 1/2, F1 = 2/3. Nothing is joint."""
    gold = write(tmp_path / "2wiki_dev_1.json", [WIKI, {**WIKI, "_id": "v"}])
    evidence = {"w": [["ann", "country", "united states."]]}
    predictions = write(tmp_path / "pred.json", {"answer": {"w": "Chad"}, "sp": {}, "evidence": evidence})
    found = score_file("2wiki", gold, predictions)
    assert found["missing"] == {"answer": 1, "sp": 2, "evidence": 1}
    scores = found["scores"]
    assert (scores["em"], scores["sp_f1"], scores["joint_f1"]) == (0.0, 0.0, 0.0)
    assert scores["evi_prec"] == pytest.approx(1 / 2)
    assert scores["evi_recall"] == pytest.approx(1 / 4)
    assert scores["evi_f1"] == pytest.approx(2 / 3 / 2)


def test_the_subject_of_a_triple_has_its_own_aliases(tmp_path: Path) -> None:
    row = {**WIKI, "evidences": [["Ann", "country", "Chad"]], "evidences_id": [["Q1", "country", "Q2"]]}
    gold = write(tmp_path / "2wiki_dev_1.json", [row])
    names = [{"Q_id": "Q1", "aliases": ["Annie"]}, {"Q_id": "Q2", "aliases": ["Tchad"]}]
    filled = [json.dumps({"demonyms": [], **name}) + "\n" for name in names]
    (tmp_path / "id_aliases.json").write_text("".join(filled))
    for triple, right in {("Annie", "Tchad"): 1.0, ("Tchad", "Annie"): 0.0, ("Annie", "Annie"): 0.0}.items():
        evidence = {"w": [[triple[0], "country", triple[1]]]}
        predictions = write(tmp_path / "pred.json", {"answer": {}, "sp": {}, "evidence": evidence})
        assert score_file("2wiki", gold, predictions)["scores"]["evi_em"] == right


def test_empty_sides_of_musique() -> None:
    """Two empty sides agree fully; with one empty side nothing agrees."""
    assert musique_support([], []) == (1.0, 1.0, 0.0, 0.0)
    assert musique_support([], [1])[:2] == (0.0, 0.0)
    assert musique_support([1], [])[:2] == (0.0, 0.0)
    assert musique_answer("the", ["a"]) == (1.0, 1.0)
    assert musique_answer("the", ["Rome"]) == (0.0, 0.0)
    assert musique_answer("Rome", ["the"]) == (0.0, 0.0)


FACTS = [["A", 0], ["B", 1]]


@pytest.mark.parametrize(
    "facts",
    [FACTS, {"title": ["A", "B"], "sent_id": [0, 1]}, json.dumps(FACTS)],
    ids=["pairs", "columns", "text"],
)
def test_golds_may_be_a_copy_on_the_hub(facts: Any, tmp_path: Path) -> None:
    """HotpotQA has columns of facts there, and 2Wiki the JSON of its lists as text."""
    record = {"id": "1", "question": "Who?", "answer": "yes", "supporting_facts": facts}
    triples = [["A", "director", "B"]]
    evidences = json.dumps(triples) if isinstance(facts, str) else triples
    gold = write(tmp_path / "gold.json", [record | {"evidences": evidences}])
    found = write(
        tmp_path / "found.json", {"answer": {"1": "yes"}, "sp": {"1": FACTS}, "evidence": {"1": triples}}
    )
    for name in ("hotpotqa", "2wiki"):
        scores = score_file(name, gold, found)["scores"]
        assert set(scores.values()) == {1.0}
        (task,) = load_dataset(name, gold).tasks
        assert (task.data["supporting_facts"], task.data["evidences"]) == (FACTS, triples)


def test_a_set_without_measures_of_its_own_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="hotpotqa"):
        score_file("hotpot", None, tmp_path / "x.json")


def test_the_command_prints_the_scores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gold = hotpot_gold(tmp_path)
    predictions = write(tmp_path / "pred.json", {"answer": {"2": "yes"}, "sp": {}})
    words = ["score", "hotpotqa", str(predictions), "--data", str(gold)]
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["scores"]["em"] == 0.25
    assert main(words) == 0
    assert "4 questions, 3 without answer, 4 without sp" in capsys.readouterr().out


def refusal(tmp_path: Path, name: str, gold: Path, predictions: Any) -> str:
    with pytest.raises(DatasetError) as refused:
        score_file(name, gold, write(tmp_path / ("p.jsonl" if name == "musique" else "p.json"), predictions))
    return str(refused.value)


@pytest.mark.parametrize(
    ("predictions", "named"),
    [
        ({"answer": {"1": 7}, "sp": {}}, ("1", "7")),
        ({"answer": {}, "sp": {"2": [["A", "0"]]}}, ("2",)),
        ({"answer": {}, "sp": {"2": [["A"]]}}, ("2",)),
        ({"answer": {}, "sp": {"2": "A"}}, ("2",)),
        ({"answer": {}}, ("'sp'",)),
        ({"sp": {}}, ("'answer'",)),
        ({"answer": [], "sp": {}}, ("'answer'",)),
    ],
)
def test_a_mistake_of_a_hotpotqa_file_names_the_question(
    tmp_path: Path, predictions: Any, named: tuple[str, ...]
) -> None:
    said = refusal(tmp_path, "hotpotqa", hotpot_gold(tmp_path), predictions)
    assert all(word in said for word in named)


WIKI_ROW = {
    "_id": "w7", "question": "q", "answer": "x", "supporting_facts": [["A", 0]],
    "evidences": [["s", "r", "t"]], "type": "compositional", "context": [],
}  # fmt: skip


@pytest.mark.parametrize(
    ("gold", "part", "named"),
    [
        ({}, {"answer": {"w7": 7}}, ("w7", "7")),
        ({}, {"sp": {"w7": [3]}}, ("w7",)),
        ({}, {"evidence": {"w7": [["s", "r"]]}}, ("w7",)),
        ({"evidences_id": [["Q1", "r", "Q2"], ["Q1", "r", "Q2"]]}, {"evidence": {"w7": []}}, ("1", "2")),
        ({"evidences_id": [["Q1", "r"]]}, {"evidence": {"w7": []}}, ("w7",)),
        ({"evidences": "s"}, {"evidence": {"w7": []}}, ("w7",)),
    ],
)
def test_a_mistake_of_a_2wiki_file_names_the_question(
    tmp_path: Path, gold: dict[str, Any], part: dict[str, Any], named: tuple[str, ...]
) -> None:
    path = write(tmp_path / "dev.json", [WIKI_ROW | gold])
    said = refusal(tmp_path, "2wiki", path, {"answer": {}, "sp": {}, "evidence": {}} | part)
    assert all(word in said for word in named)


MUSIQUE_ROW = {
    "id": "m7", "question": "q", "answer": "x", "answer_aliases": [], "answerable": True,
    "paragraphs": [{"idx": 0, "title": "t", "paragraph_text": "p", "is_supporting": True}],
}  # fmt: skip
SAID = {"id": "m7", "predicted_answer": "x", "predicted_support_idxs": [0], "predicted_answerable": True}


@pytest.mark.parametrize(
    ("gold", "said", "named"),
    [
        ([MUSIQUE_ROW], [SAID | {"predicted_answer": 7}], ("line 1", "7")),
        ([MUSIQUE_ROW], [SAID | {"predicted_support_idxs": ["0"]}], ("line 1", "predicted_support_idxs", "'0'")),
        ([MUSIQUE_ROW], [SAID | {"predicted_support_idxs": 0}], ("line 1", "predicted_support_idxs", "0")),
        ([MUSIQUE_ROW], [SAID] * 2, ("'m7'", "2", "1")),
        ([MUSIQUE_ROW], [SAID | {"id": "other"}], ("'m7'", "no", "1")),
        ([MUSIQUE_ROW | {"paragraphs": [{"idx": "0", "is_supporting": True}]}], [SAID], ("idx", "'0'")),
        ([MUSIQUE_ROW, MUSIQUE_ROW | {"answerable": False}], [SAID, SAID | {"predicted_answerable": 1}],
         ("line 2", "predicted_answerable", "1")),
        ([MUSIQUE_ROW | {"answerable": False}], [SAID], ("'m7'", "twice")),
    ],
)  # fmt: skip
def test_a_mistake_of_a_musique_file_names_the_question_or_the_line(
    tmp_path: Path, gold: list[Any], said: list[Any], named: tuple[str, ...]
) -> None:
    path = write(tmp_path / "musique_ans_v1.0_dev.jsonl", gold)
    found = refusal(tmp_path, "musique", path, said)
    assert all(word in found for word in named)
