"""The extractive baseline: it reads only what a model would read, and picks spans by the stated rules."""

import asyncio

import pytest

from agentenv.core.protocols import Policy
from agentenv.core.types import Document, FinishReason, Message, Sampling, Task
from agentenv.envs.search.local_search import PROMPT, LocalSearch
from agentenv.policies.extractive import ExtractivePolicy, Page, act, answer, pages_of
from agentenv.policies.policy_contract import PolicyContract
from agentenv.retrievers.fakes import InMemoryRetriever

TESLA = Page(
    "Nikola Tesla", "Tesla arrived in 1884. In 1886 Tesla partnered with Robert Lane, who lived in New York."
)
TOWER = Page("Tower", "The tower was finished on 31 March 1889 after two years. It has 1,665 steps.")


class TestExtractivePolicy(PolicyContract):
    reads_episode = False

    def make(self) -> Policy:
        return ExtractivePolicy()


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("Who partnered with Tesla in 1886?", "Robert Lane"),
        ("In what year had Tesla arrived?", "1884"),
        ("When was the tower finished?", "31 March 1889"),
        ("How many steps does the tower have?", "1,665"),
        ("Where did Robert Lane live?", "New York"),
        ("Was the tower finished in 1889?", "yes"),
        ("Which came first, Tower or Nikola Tesla?", "Nikola Tesla"),  # 1884 against 1889
        ("Which came later, Tower or Nikola Tesla?", "Tower"),
    ],
)
def test_the_span_that_the_question_asks_for(question: str, expected: str) -> None:
    assert answer(question, [TESLA, TOWER]) == expected


def test_without_passages_it_gives_an_empty_answer() -> None:
    assert answer("Who was it?", []) == ""
    assert answer("Who was Tesla?", [Page("", "tesla")]) == ""


def test_it_searches_once_and_then_answers_from_the_observation_alone() -> None:
    """The prompt's own example tags and the words of the question are no passages."""
    env = LocalSearch(
        tasks=[Task("t", "Who partnered with Tesla in 1886", ("Robert Lane",))],
        retriever=InMemoryRetriever([Document("1", TESLA.title, TESLA.text)]),
    )
    opening, _ = env.reset(seed=0)
    text = opening[0].text
    first = act(text)
    assert first == "<search>Who partnered with Tesla in 1886?</search>"
    step = env.step(first)
    assert pages_of(text) == []
    assert pages_of(text + first + step.observation[0].text) == [TESLA]
    last = env.step(act(text + first + step.observation[0].text))
    assert (last.info["answer"], last.reward) == ("Robert Lane", 1.0)


def test_a_passage_that_quotes_tags_and_numbers_stays_one_passage() -> None:
    text = (
        "<information>Doc 1(Title: a (b)) see Doc 2(Title: c) here\nDoc 2(Title: d) line\nmore</information>"
    )
    assert pages_of(text) == [Page("a (b)", "see Doc 2(Title: c) here"), Page("d", "line more")]


def test_another_prompt_is_read_by_its_first_line() -> None:
    assert act("Who was it?\n") == "<search>Who was it?</search>"


def test_it_stops_at_the_token_limit() -> None:
    policy = ExtractivePolicy()
    prompt = policy.tokenizer.encode(Message("user", PROMPT.replace("{question}", "Who?")).text)
    done = asyncio.run(policy.generate(prompt, Sampling(8)))
    assert (done.text, done.finish) == ("<search>", FinishReason.LENGTH)
    done = asyncio.run(policy.generate(prompt, Sampling(99, stop=("</search>",))))
    assert (done.text, done.finish) == ("<search>Who?</search>", FinishReason.STOP)
