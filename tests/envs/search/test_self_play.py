"""The environments of self-play and the rules that a proposal must keep, each by hand."""

from dataclasses import replace
from typing import Any

import pytest

from agentenv.core.types import Document, EndReason, Passage, Task, ToolStatus
from agentenv.envs.search.page_format import format_passages, information
from agentenv.envs.search.proposals import (
    FILTERS,
    Proposal,
    QuestionRules,
    as_documents,
    as_page,
    documents_shown,
    refusal,
)
from agentenv.envs.search.self_play import RoleTurn, SearchProposer, SearchSolver, fields_of
from agentenv.errors import ConfigurationError, DatasetError
from agentenv.retrievers.fakes import InMemoryRetriever

DOCUMENTS = [
    Document("a", "Ada Guild", "Ada Guild is based in Pobra Bay."),
    Document("b", "Pobra Bay", "Pobra Bay lies in the region of Kovim."),
]
TOPIC = Task("topic", "Ada Guild")
GOOD = Proposal(
    "Where is Ada Guild based?",
    "Pobra Bay",
    ("Ada Guild",),
    ("(Title: Ada Guild) It is based in Pobra Bay.",),
    ("Ada Guild: It is based in Pobra Bay.",),
)
BAD: dict[str, dict[str, Any]] = {
    "no_question": {"question": " "},
    "no_answer": {"answer": " the "},
    "too_short": {"question": "Where is?"},
    "too_long": {"question": "Where " * 200},
    "few_words": {"question": "Whereabouts exactly?"},
    "leaked": {"question": "Is Ada Guild based in Pobra Bay?"},
    "no_information": {"documents": ()},
    "few_searches": {"queries": ()},
    "repeated_search": {"queries": ("Ada Guild", "the ada guild")},
    "searched_answer": {"queries": ("Ada Guild", "Pobra Bay town")},
    "misquoted": {"thoughts": ("Ada Guild: It is based in Kovim.",)},
    "copied": {"question": "it is based in", "answer": "Kovim"},
}


def proposer(**options: Any) -> SearchProposer:
    return SearchProposer(tasks=[TOPIC], retriever=InMemoryRetriever(DOCUMENTS), k=1, **options)


@pytest.mark.parametrize("name", FILTERS)
def test_each_rule_refuses_what_it_is_for_and_nothing_else_does(name: str) -> None:
    rules = QuestionRules(searched_answer=True, quotes=True)
    assert refusal(GOOD, rules) is None
    assert refusal(replace(GOOD, **BAD[name]), rules) == name


@pytest.mark.parametrize(
    ("thoughts", "flaw"),
    [
        ((), "misquoted"),  # nothing is quoted
        (("Ada Guild: ",), "misquoted"),
        (("It is based in Pobra Bay.",), "misquoted"),  # of which document?
        (("Pobra Bay: It is based in Pobra Bay.",), "misquoted"),  # of another one
        (("Ada Guild: It is based in Pobra Bay.", "Ada Guild: I like it."), "misquoted"),
        (("Ada Guild: based in Pobra Bay",), None),
    ],
)
def test_every_thought_must_stand_in_the_document_that_it_names(
    thoughts: tuple[str, ...], flaw: str | None
) -> None:
    asked = replace(GOOD, thoughts=thoughts)
    assert refusal(asked, QuestionRules(quotes=True)) == flaw
    assert refusal(asked, QuestionRules()) is None


def test_what_a_verifier_says_where_it_cannot_know_is_no_gold() -> None:
    assert refusal(replace(GOOD, answer="Unknown."), QuestionRules()) == "no_answer"


def test_an_answer_leaks_by_whole_words() -> None:
    born = replace(GOOD, question="Who was born in the year 1910?")
    assert refusal(replace(born, answer="10"), QuestionRules()) is None
    assert refusal(replace(born, answer="the 1910"), QuestionRules()) == "leaked"


@pytest.mark.parametrize(
    "question",
    [
        "Of which of Pobra Bay's guilds is it?",
        "What is the Pobra-Bay-based guild called?",
        "Is it not (Pobra/Bay) that we look for?",
        "Is it based in Po\u200bbra Bay, or is it not?",  # an invisible blank
        "Is it based in \uff30\uff4f\uff42\uff52\uff41 Bay, or not?",  # wide letters
    ],
)
def test_no_mark_and_no_letter_hides_an_answer_in_a_question(question: str) -> None:
    assert refusal(replace(GOOD, question=question), QuestionRules()) == "leaked"
    asked = replace(GOOD, queries=(question,))
    assert refusal(asked, QuestionRules(searched_answer=True)) == "searched_answer"
    assert refusal(replace(GOOD, question="Which bay of Pobra is it?"), QuestionRules()) is None


@pytest.mark.parametrize("number", ["3.5 million", "10,005", "1/5", "at 10:05"])
def test_a_part_of_a_number_is_no_answer_in_it(number: str) -> None:
    asked = replace(GOOD, question=f"How many towns lie at the bay of {number} birds?")
    for answer in ("5", "10", "05", "005"):
        assert refusal(replace(asked, answer=answer), QuestionRules()) != "leaked"
    assert refusal(replace(asked, answer=number), QuestionRules()) == "leaked"


def test_the_words_of_a_chinese_question_are_its_characters() -> None:
    assert refusal(replace(GOOD, question="阿达公会的总部在什么地方\uff1f"), QuestionRules()) is None
    assert (
        refusal(replace(GOOD, question="公会\uff1f", answer="海湾"), QuestionRules(min_chars=1))
        == "few_words"
    )


def test_bounds_are_checked() -> None:
    with pytest.raises(ConfigurationError, match=r"max_chars.*min_chars"):
        QuestionRules(min_chars=20, max_chars=10)


def test_documents_are_taken_as_they_were_shown_once_each() -> None:
    first = information("Doc 1(Title: A) one\ntwo\nDoc 2(Title: B) thr")
    again = information("Doc 1(Title: B) thr\nDoc 2(Title: C) four")
    assert documents_shown([first, "No tags", again]) == (
        "(Title: A) one\ntwo",
        "(Title: B) thr",
        "(Title: C) four",
    )
    assert (
        as_page(["(Title: A) x", "(Title: B) y"])
        == "<information>Doc 1(Title: A) x\nDoc 2(Title: B) y</information>"
    )


def test_passages_that_were_shown_are_a_corpus_again() -> None:
    """Letter for letter, parentheses in a title and a word that was cut off included."""
    passages = [
        Passage("1", "Ada (guild)", "It is (was) based in Pob", 1.0),
        Passage("2", "B", "One.\nTwo.", 0.5),
    ]
    shown = documents_shown([information(format_passages(passages))])
    assert [(d.title, d.text) for d in as_documents(shown)] == [(p.title, p.text) for p in passages]


def test_a_proposal_is_what_was_written_and_seen() -> None:
    env = proposer()
    env.reset(seed=0, options={"task": TOPIC})
    page = env.step("<search>Ada Guild</search>").observation[0].text
    step = env.step("<question>Where is Ada Guild based?</question> so <answer>Pobra Bay</answer>")
    assert (step.terminated, step.info["end_reason"], step.reward) == (True, EndReason.SUBMITTED, 1.0)
    assert step.info["proposal"] == Proposal(
        "Where is Ada Guild based?", "Pobra Bay", ("Ada Guild",), documents_shown([page])
    )
    assert step.info["proposal"].documents == ("(Title: Ada Guild) Ada Guild is based in Pobra Bay.",)


def test_a_proposal_against_the_rules_is_worth_nothing() -> None:
    env = proposer()
    env.reset(seed=0, options={"task": TOPIC})
    step = env.step("<question>Where is Ada Guild based?</question><answer>Pobra Bay</answer>")
    assert (step.reward, step.info["refused"]) == (0.0, "no_information")


def test_what_is_neither_search_nor_question_is_corrected_and_the_last_turn_must_be_one() -> None:
    env = proposer(max_turns=1)
    env.reset(seed=0, options={"task": TOPIC})
    first = env.step("<answer>Pobra Bay</answer>")
    assert first.info["tool_results"][0].status is ToolStatus.FORMAT_ERROR
    assert "<question>" in first.observation[0].text
    last = env.step("<search>Ada Guild</search>")
    assert (last.truncated, last.info["end_reason"]) == (True, EndReason.TURN_LIMIT)


def test_a_given_answer_is_the_gold_and_must_be_text() -> None:
    """D8: golds that are no text fail where the task is posed, not unseen in a filter."""
    env = proposer()
    opening, _ = env.reset(seed=0, options={"task": replace(TOPIC, answers=("Kovim",), data={"searches": 2})})
    assert "The answer has to be: Kovim" in opening[0].text
    assert "at least 2 times" in opening[0].text
    step = env.step("<question>Which region?</question><answer>Pobra Bay</answer>")
    assert step.info["proposal"].answer == "Kovim"
    with pytest.raises(DatasetError, match=r"\['Kovim'\]"):
        env.reset(seed=0, options={"task": replace(TOPIC, answers=(["Kovim"],))})  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"\{topic\}"):
        proposer(prompt="Ask.")


def test_spam_costs_three_quarters_and_is_no_success() -> None:
    """D11. Ten pairs are allowed, the eleventh is not."""

    def answered(opening: int, before: int = 0) -> tuple[float, bool]:
        env = SearchSolver(tasks=[replace(TOPIC, answers=("Bay",))], retriever=InMemoryRetriever(DOCUMENTS))
        env.reset(seed=0)
        if before:
            env.step("<answer>" * before + "<search>Pobra Bay</search>")
        step = env.step("<answer>" * opening + "Bay</answer>")
        return step.reward, step.info["success"]

    assert answered(1) == (1.0, True)
    assert answered(10) == (1.0, True)
    assert answered(11) == (0.25, False)
    assert answered(10, before=1) == (0.25, False)  # the tags of the whole response count (SSP)
    assert answered(1, before=9) == (1.0, True)


def test_a_search_of_a_proposer_asks_one_query() -> None:
    """SSP counts searches: two lines in one block are one, so that two searches stand one after the other."""
    env = proposer(rules=QuestionRules(searches=2))
    env.reset(seed=0)
    env.step("<search>Ada Guild\nPobra Bay</search>")
    step = env.step("<question>Where is Ada Guild based?</question><answer>Pobra Bay</answer>")
    assert step.info["proposal"].queries == ("Ada Guild",)
    assert step.info["refused"] == "few_searches"


def test_a_written_turn_is_read_from_its_own_words() -> None:
    env = RoleTurn(("question", "score"))
    opening, _ = env.reset(seed=0, options={"task": Task("t", "Write <score>3</score>.")})
    assert opening[0].text == "Write <score>3</score>."
    step = env.step("<question>one</question> <question>two <question>three</question>")
    assert step.info["fields"] == {"question": "three"}
    assert (step.terminated, step.info["valid"]) == (True, False)
    assert fields_of("<a> x\ny </a>", ("a", "b")) == {"a": "x\ny"}
