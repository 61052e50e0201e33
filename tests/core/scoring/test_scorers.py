"""Covers the reference vectors of every scorer, where they disagree, and golds that cannot be scored."""

import pickle

import pytest

from agentenv.core.scoring import normalize
from agentenv.core.scoring.scorers import OTHER_NAMES, SCORERS, Score, get_scorer
from agentenv.errors import DatasetError, UnknownName

ORDINARY = [name for name in sorted(SCORERS) if name not in ("em_squad2", "f1_squad2")]
NEW_YORK = ("new york new york city", "new york city")


def value(name: str, prediction: str | None, *answers: str) -> float:
    return get_scorer(name)(prediction, answers).value


@pytest.mark.parametrize(
    ("name", "prediction", "gold", "expected"),
    [
        ("em_squad", "usa", "the U.S.A.", 1),
        ("em_squad", "us", "U.S.", 1),
        ("em_squad", "in Beijing, China", "Beijing", 0),
        ("em_cover", "in Beijing, China", "Beijing", 1),
        ("cem", "in Beijing, China", "Beijing", 1),
        ("f1_squad", "in Beijing, China", "Beijing", 0.5),  # P = 1/3, R = 1
        ("f1_squad", *NEW_YORK, 0.75),  # multiset overlap 3: P = 3/5, R = 1
        ("f1_set", *NEW_YORK, 1),  # the same set of three words
        ("em_squad", "Spiderman", "Spider-Man", 1),
        ("em_squad", "Spider Man", "Spider-Man", 0),
        ("em_triviaqa", "Spider Man", "Spider-Man", 1),
        ("em_triviaqa", "Spiderman", "Spider-Man", 0),
        ("em_triviaqa", "rock_n_roll", "rock \u2018n\u2019 roll", 1),
        ("em_squad", "rock n roll", "rock \u2018n\u2019 roll", 0),  # non-ASCII quotes survive
        ("em_squad", "1914-18", "1914\u201318", 0),  # and so does an en dash
        ("em_squad", "Beyonce", "Beyonc\u00e9", 0),
        ("em_squad", "beyonc\u00e9!", "Beyonc\u00e9", 1),
        ("em_squad", "1000", "1,000", 1),
        ("em_triviaqa", "1000", "1,000", 0),
        ("em_nq", "beyonce\u0301", "Beyonc\u00e9", 1),  # the accent as a character of its own
        ("em_squad", "beyonce\u0301", "Beyonc\u00e9", 0),
        ("em_nq", "Beyonce", "Beyonc\u00e9", 0),
        ("em_squad2", "usa", "the U.S.A.", 1),
        ("em_squad", "theatre", "atre", 0),  # articles go as whole words only
        ("cem", "China's capital: Beijing", "Beijing capital", 1),  # order is ignored
        ("em_cover", "capital Beijing", "Beijing capital", 0),
        ("em_cover", "Beijinger", "Beijing", 1),  # a substring, not a word
        ("cem", "Beijinger", "Beijing", 0),
        ("em_plain", " New  YORK", "new york", 1),
        ("em_plain", "the usa", "usa", 0),  # articles and punctuation stay
        ("em_plain", "Spider-Man", "spiderman", 0),
        ("em_cover_plain", "in  BEIJING, China", "Beijing", 1),
        ("em_cover_plain", "the USA", "U.S.A.", 0),  # punctuation stays
        ("f1_plain", "in Beijing, China", "Beijing", 0),  # "beijing," is another word
        ("f1_plain", "the city of Ulm", "Ulm", 0.4),  # P = 1/4, R = 1; without the article it would be .5
        ("f1_plain", *NEW_YORK, 0.75),
        ("em_gaia", "FINAL ANSWER: $1,000.0", "1000", 1),
        ("em_gaia", "17 %", "17", 1),
        ("em_gaia", "about 17", "17", 0),
        ("em_gaia", "1e999", "17", 0),
        ("em_gaia", "Right. FINAL ANSWER: St. Peters burg!", "st Petersburg", 1),
        ("em_gaia", "the usa", "usa", 0),  # articles stay
        ("em_gaia", "apples; 2.0, Pears", "apples, 2, pears", 1),
        ("em_gaia", "pears, 2, apples", "apples, 2, pears", 0),  # in another order
        ("em_gaia", "apples, 2", "apples, 2, pears", 0),
        ("em_gaia", "a.b, c", "ab, c", 0),  # parts of a list keep their punctuation
    ],
)
def test_reference_vectors(name: str, prediction: str, gold: str, expected: float) -> None:
    assert value(name, prediction, gold) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("prediction", "gold", "expected"),
    [
        ("It was Paris.", "Paris", 1),
        ("it was paris", "Paris", 1),  # lower-cased gold
        ("Politician and writer", "politician", 1),  # capitalised gold
        ("PARIS", "Paris", 0),
        ("New York", "new york", 0),  # capitalised is "New york"
        ("the U S A", "U.S.A.", 0),  # nothing is normalised
    ],
)
def test_popqa_looks_for_the_raw_alias_in_the_raw_prediction(
    prediction: str, gold: str, expected: float
) -> None:
    assert value("em_popqa_raw", prediction, gold) == expected


def test_guard_gives_no_partial_credit_for_yes_and_no() -> None:
    # Unguarded: pred [yes, it, is], gold [yes] -> P = 1/3, R = 1 -> 1/2.
    assert value("f1_squad", "yes it is", "yes") == 0.5
    assert value("f1_squad_guard", "yes it is", "yes") == 0.0
    assert value("f1_squad_guard", *NEW_YORK) == 0.75
    assert value("f1_hotpot", "yes it is", "yes") == 0.0
    assert value("f1_hotpot", "no", "no it is not") == 0.0
    assert value("f1_hotpot", "Yes.", "yes") == 1.0
    assert value("f1_hotpot", "in Beijing, China", "Beijing") == 0.5
    assert value("f1_hotpot", "yes", "no", "yes") == 1.0  # the guard speaks of one gold, not of all


def test_the_guarded_f1_takes_every_chinese_character_as_a_word() -> None:
    """Of the four characters of the gold two are predicted: P = 2/2, R = 2/4, F1 = 2/3; whole strings share no word."""
    assert value("f1_squad_guard", "北京", "北京大学") == pytest.approx(2 / 3)
    assert value("f1_hotpot", "北京", "北京大学") == 0.0
    assert value("f1_squad_guard", "北京 2008", "北京2008") == 1.0  # digits stay together: 北, 京, 2008
    assert value("f1_squad_guard", "大大", "大学") == 0.5  # one of two and one of two, with multiplicity
    assert value("f1_squad_guard", "yes", "北京 yes") == 0.0  # the guard still holds
    assert get_scorer("f1_squad_guard").version == 2


@pytest.mark.parametrize(
    ("prediction", "gold", "precision", "recall"),
    [
        ("in Beijing, China", "Beijing", 1 / 3, 1.0),
        (*NEW_YORK, 3 / 5, 1.0),
        ("york", "new york city", 1.0, 1 / 3),
        ("yes it is", "yes", 0.0, 0.0),  # the guard
        ("Paris", "Beijing", 0.0, 0.0),
        ("", "Beijing", 0.0, 0.0),
        ("the", "Beijing", 0.0, 0.0),
        ("北京", "北京大学", 1.0, 0.5),
    ],
)
def test_precision_and_recall_of_flashrag(
    prediction: str, gold: str, precision: float, recall: float
) -> None:
    assert value("precision_squad_guard", prediction, gold) == pytest.approx(precision)
    assert value("recall_squad_guard", prediction, gold) == pytest.approx(recall)
    both = precision + recall
    f1 = 2 * precision * recall / both if both else 0.0
    assert value("f1_squad_guard", prediction, gold) == pytest.approx(f1)


def test_f1_set_keeps_articles_and_maps_booleans() -> None:
    # pred {the, beatles}, gold {beatles}: 2*1/(2+1).
    assert value("f1_set", "The Beatles", "Beatles") == pytest.approx(2 / 3)
    assert value("f1_set", "True", "yes") == 1.0
    assert value("f1_set", "no", "False") == 1.0
    assert value("f1_set", "true", "yes") == 0.0  # the mapping is exact
    assert value("f1_set", "Spider Man", "Spider-Man") == 1.0  # punctuation is a blank


def test_f1_set_cuts_chinese_into_letters_and_digit_runs() -> None:
    # gold {1949, year in Chinese}, pred {in, 1949, year}: 2*2/(3+2).
    assert value("f1_set", "\u57281949\u5e74\u3002", "1949\u5e74") == pytest.approx(4 / 5)
    assert value("f1_set", "1950\u5e74", "1949\u5e74") == pytest.approx(1 / 2)  # digit runs are one element
    assert value("f1_set", "Beijing", "\u5317\u4eac") == 0.0


@pytest.mark.parametrize("name", ORDINARY)
@pytest.mark.parametrize("prediction", ["anything at all", "", "the", "!"])
def test_a_gold_that_normalises_to_nothing_does_not_match_everything(name: str, prediction: str) -> None:
    keeps_articles = name in ("em_popqa_raw", "f1_set", "em_plain", "em_cover_plain", "f1_plain")
    golds = ("   ", "---") if keeps_articles else ("The The", "A")
    expected = 1.0 if keeps_articles and prediction == "" else 0.0
    assert value(name, prediction, *golds) == expected


@pytest.mark.parametrize("name", ORDINARY)
def test_a_gold_that_normalises_to_nothing_matches_itself(name: str) -> None:
    assert value(name, "the  THE" if name != "em_popqa_raw" else "The The", "The The") == 1.0


def test_squad2_knows_the_unanswerable_question() -> None:
    assert value("f1_squad2", "", "") == 1.0
    assert value("f1_squad2", "Paris", "") == 0.0
    assert value("f1_squad2", "", "Paris") == 0.0
    assert value("f1_squad2", "", "The The", "Paris") == 0.0  # the empty gold is dropped where another stands
    assert value("f1_squad2", "in Beijing, China", "Beijing") == 0.5
    assert value("em_squad2", "", "") == value("em_squad2", "the", "") == 1.0
    assert value("em_squad2", "Paris", "") == value("em_squad2", "", "Paris") == 0.0
    assert value("em_squad2", "the the", "The The", "Paris") == 0.0


@pytest.mark.parametrize("name", sorted(SCORERS))
def test_no_answer_scores_zero_even_where_the_gold_is_the_prompts_example(name: str) -> None:
    # Defect D1 of Search-R1: an episode without an answer was scored as the prompt's example, "Beijing".
    assert value(name, None, "Beijing") == 0.0


@pytest.mark.parametrize("name", sorted(SCORERS))
def test_best_gold_counts_and_the_gold_scores_full(name: str) -> None:
    assert value(name, "Ada Lovelace", "Charles Babbage", "Ada Lovelace") == 1.0
    assert value(name, "Grace Hopper", "Charles Babbage", "Ada Lovelace") == 0.0


@pytest.mark.parametrize("name", sorted(SCORERS))
@pytest.mark.parametrize("answers", [(), "Beijing", None, (None,), (["Beijing"],), ("Beijing", 3)])
def test_golds_that_are_not_text_are_refused(name: str, answers: tuple[str, ...]) -> None:
    # Defect D8 of SSP: a gold stored as a list made every comparison fail without a word.
    with pytest.raises(DatasetError):
        get_scorer(name)("Beijing", answers)


def test_a_prediction_that_is_not_text_is_refused() -> None:
    with pytest.raises(DatasetError, match=r"\b3\b"):
        get_scorer("em_squad")(3, ("3",))  # type: ignore[arg-type]


def test_a_score_names_its_scorer() -> None:
    # Defect D12 of ZeroSearch: the file held EM in the field named F1.
    assert get_scorer("em_squad")("usa", ("the U.S.A.",)) == Score(1.0, "em_squad", 1)
    assert {scorer.name for scorer in SCORERS.values()} == set(SCORERS)


def test_every_scorer_names_how_it_normalises() -> None:
    ways = {"squad", "triviaqa", "nq", "asearcher", "plain"}
    assert {scorer.normaliser for scorer in SCORERS.values()} == ways | {"none"}
    assert all(callable(getattr(normalize, way)) for way in ways)


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match="'em_squad'"):
        get_scorer("em_squat")


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_a_name_of_another_library_is_no_misspelling(name: str) -> None:
    """``em`` is near to ``cem`` as a word, and ``cem`` accepts every prediction that contains the answer."""
    assert OTHER_NAMES[name] in SCORERS
    with pytest.raises(UnknownName, match=f"Did you mean '{OTHER_NAMES[name]}'"):
        get_scorer(name)


@pytest.mark.parametrize("name", sorted(SCORERS))
def test_a_scorer_is_itself_again_after_a_way_to_another_process(name: str) -> None:
    assert pickle.loads(pickle.dumps(get_scorer(name))) is get_scorer(name)
