"""Verdicts on pages: which ones are rewarded, by hand, and that a page judged useless leaves the context."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from agentenv.core.chat import InlineFormat
from agentenv.core.rollout import EpisodeSpec, RolloutConfig
from agentenv.core.types import Document, Task
from agentenv.envs.search.judged_search import AGAIN, JudgedSearch, verdict_mean, verdict_sum
from agentenv.envs.search.local_search import STOP
from agentenv.errors import ConfigurationError, UnknownName
from agentenv.policies.scripted import ScriptedPolicy
from agentenv.retrievers.fakes import InMemoryRetriever
from agentenv.trainers.strategies.rollout_context import RolloutContext
from agentenv.trainers.strategies.strategies import get_strategy, play_groups

DOCUMENTS = [
    Document("a", "Halvik", "Halvik is in cold Norland ."),
    Document("b", "Ketterby", "Ketterby has a lighthouse ."),
]
TASK = Task("q", "Where is Halvik?", ("cold Norland", "the far north"))
YES, NO = "<judge>yes</judge>", "<judge>no</judge>"
ANSWER = "<answer>cold Norland</answer>"


def rewards(*actions: str, **options: Any) -> list[float]:
    env = JudgedSearch(tasks=[TASK], retriever=InMemoryRetriever(DOCUMENTS), k=1, **options)
    env.reset(seed=0)
    return [env.step(action).reward for action in actions]


@pytest.mark.parametrize(
    ("actions", "expected"),
    [
        (["<search>Halvik</search>", YES + ANSWER], [0.0, 1.3]),
        (["<search>Halvik</search>", NO + ANSWER], [0.0, 0.7]),
        (
            [
                "<search> Ketterby </search>",
                NO + "<search> Halvik </search>",
                YES + "<answer> cold Norland </answer>",
            ],
            [0.0, 0.3, 1.0],
        ),
        (["<search>Ketterby</search>", YES + "<search>Halvik</search>", ANSWER], [0.0, -0.6, 1.3]),
        (["<search>Ketterby</search>", YES + "<search>Halvik</search>", NO + ANSWER], [0.0, -0.6, 1.15]),
        (["<search>Halvik</search>", "<judge>maybe</judge>" + ANSWER], [0.0, 1.0]),
        ([YES + "<search>Halvik</search>", YES + "what?", YES + ANSWER], [0.0, 0.3, 1.0]),  # once a page
        (["<search>Halvik</search>", "<judge> No </judge><answer>Rome</answer>"], [0.0, -0.3]),
    ],
)
def test_the_mean_of_the_verdicts_follows_the_reranker(actions: list[str], expected: list[float]) -> None:
    assert rewards(*actions) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("actions", "expected"),
    [
        (
            [
                "<search> Ketterby </search>",
                NO + "<search> Halvik </search>",
                YES + "<answer> cold Norland </answer>",
            ],
            [0.0, 0.3, 1.3],
        ),
        (["<search>Ketterby</search>", YES + "<search>Halvik</search>", NO + ANSWER], [0.0, -0.6, 0.7]),
    ],
)
def test_the_published_sum_by_hand(actions: list[str], expected: list[float]) -> None:
    assert rewards(*actions, verdicts="sum") == pytest.approx(expected)


def test_the_share_of_right_verdicts_is_told_once_there_is_one() -> None:
    """A wrong one, a right one, and a turn without: none, 0, 1/2, 1/2."""
    env = JudgedSearch(tasks=[TASK], retriever=InMemoryRetriever(DOCUMENTS), k=1)
    env.reset(seed=0)
    search = "<search>Halvik</search>"
    actions = [search, NO + search, YES + search, ANSWER]
    assert [env.step(action).info.get("verdicts_right") for action in actions] == [None, 0.0, 0.5, 0.5]


def test_version_1_charges_every_wrong_verdict_alike() -> None:
    """The sum of +.3 and -.3 (version 1): useless called useful -.3, useful called useless -.3, and 1 for the answer."""
    actions = ["<search>Ketterby</search>", YES + "<search>Halvik</search>", NO + ANSWER]
    assert rewards(*actions, verdicts="sum", false_yes=1.0) == pytest.approx([0.0, -0.3, 0.7])
    assert sum(rewards(*actions, verdicts="sum")) == pytest.approx(0.1)  # version 3: -.6 - .3 + 1
    silent = rewards("<search>Ketterby</search>", YES + "what?", *["what?"] * 3, false_yes=1.0)
    assert sum(silent) == pytest.approx(-0.6)  # one unit less than the worst mean, which is -.3


def test_a_false_yes_that_pays_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"-1\.0"):
        rewards(false_yes=-1.0)


def test_the_discount_of_the_sum_counts_the_searches() -> None:
    """0.3 - 0.25 * 0.6 + 0.125 * 0.3: the second page has no verdict, and is a search all the same."""
    assert verdict_sum([0.3, None, -0.6, 0.3], discount=0.5) == pytest.approx(0.1875)
    assert verdict_mean([0.3, None, -0.6, 0.3]) == pytest.approx(0.0)
    assert verdict_mean([]) == verdict_sum([]) == 0.0


NONSENSE = NO + "<search>lighthouse</search>"


def test_judging_nonsense_useless_is_worth_less_than_an_honest_wrong_answer() -> None:
    """Four pages of nonsense, all judged rightly, no answer: 1.2 as published, less than anything else here."""
    farm = ["<search>lighthouse</search>", *[NONSENSE] * 3, NO]
    assert sum(rewards(*farm, verdicts="sum")) == pytest.approx(1.2)
    assert sum(rewards(*farm)) == pytest.approx(-0.9)
    wrong = sum(rewards("<search>Halvik</search>", YES + "<answer>Rome</answer>"))
    careless = sum(rewards("<search>Ketterby</search>", YES + "<answer>Rome</answer>"))
    right = sum(rewards("<search>Ketterby</search>", YES + ANSWER))
    assert (wrong, careless, right) == pytest.approx((0.3, -0.6, 0.4))


def test_further_pages_do_not_raise_the_mean() -> None:
    once = sum(rewards("<search>Halvik</search>", YES + ANSWER))
    padded = sum(rewards("<search>Ketterby</search>", NONSENSE, NO + "<search>Halvik</search>", YES + ANSWER))
    assert padded == pytest.approx(once) == pytest.approx(1.3)


def test_another_total_is_refused() -> None:
    with pytest.raises(UnknownName, match="'sums'"):
        rewards(verdicts="sums")


def test_an_answer_is_found_beside_a_full_stop() -> None:
    env = JudgedSearch(
        tasks=[TASK], retriever=InMemoryRetriever([Document("a", "Halvik", "It is in cold Norland.")]), k=1
    )
    env.reset(seed=0)
    env.step("<search>Halvik</search>")
    assert env.step(YES + ANSWER).reward == pytest.approx(1.3)


def test_the_threshold_is_passed_by_more_than_it() -> None:
    class Fixed:
        id = "fixed"

        def score(self, pairs: Sequence[tuple[str, str]]) -> Sequence[float]:
            assert [answer for answer, _ in pairs] == list(TASK.answers)
            return [0.1, 0.7]

    for threshold, reward in ((0.7, -0.6), (0.69, 0.3)):
        env = JudgedSearch(
            tasks=[TASK], retriever=InMemoryRetriever(DOCUMENTS), reranker=Fixed(), threshold=threshold
        )
        env.reset(seed=0)
        env.step("<search>Halvik</search>")
        assert env.step(YES).reward == pytest.approx(reward)


def test_a_page_judged_useless_leaves_the_context_and_the_verdict_is_paid() -> None:
    env = JudgedSearch(tasks=[TASK], retriever=InMemoryRetriever(DOCUMENTS), k=1)
    actions = [
        "<search> Ketterby </search>",
        NO + "<search> Halvik </search>",
        YES + "<answer> cold Norland </answer>",
    ]
    policy = ScriptedPolicy({"e-0": actions})
    config = RolloutConfig(context_tokens=9999, turn_tokens=999, stop=STOP)
    context = RolloutContext(policy, InlineFormat(policy.tokenizer), config, policy.tokenizer.decode)
    ((played,),) = asyncio.run(play_groups([[EpisodeSpec(env, TASK, 0)]], get_strategy("judge"), context))
    text = policy.tokenizer.decode([int(i) for i in played.ids])
    assert "lighthouse" not in text
    assert "Norland" in text
    assert played.reward == pytest.approx(1.3)
    assert played.info["strategy"] == {"judge_dropped": 1}


def test_after_a_useless_page_the_policy_searches_again() -> None:
    """An answer beside the verdict no, or after it, is refused until a search follows; in the last turn it is taken."""
    env = JudgedSearch(
        tasks=[TASK], retriever=InMemoryRetriever(DOCUMENTS), k=1, max_turns=5, search_again=True
    )
    env.reset(seed=0)
    env.step("<search>Ketterby</search>")
    for action in (NO + ANSWER, ANSWER):
        refused = env.step(action)
        assert refused.observation[0].text == AGAIN
        assert not refused.terminated
    env.step("<search>Halvik</search>")
    assert env.step(YES + ANSWER).terminated
    env.reset(seed=0)
    for action in ["<search>Ketterby</search>", NO + "what?", *["what?"] * 3]:
        env.step(action)
    assert env.step(ANSWER).terminated
    env.reset(seed=0)
    assert env.step(NO + ANSWER).terminated  # nothing was searched


def test_the_opening_message_says_what_becomes_of_a_useless_page() -> None:
    for search_again, said, unsaid in (
        (False, "left out", "have to"),
        (True, "have to search again", "left out"),
    ):
        env = JudgedSearch(tasks=[TASK], retriever=InMemoryRetriever(DOCUMENTS), search_again=search_again)
        (opening,), _ = env.reset(seed=0)
        assert said in opening.text
        assert unsaid not in opening.text


def test_the_expert_keeps_a_verdict_to_itself_that_its_answer_would_be_refused_for() -> None:
    task = Task(
        "q", "Where is Halvik?", ("nowhere",), data={"path": [{"query": "Halvik", "answer": "nowhere"}]}
    )
    env = JudgedSearch(tasks=[task], retriever=InMemoryRetriever(DOCUMENTS), k=1, search_again=True)
    env.reset(seed=0)
    assert env.expert() == ["<search> Halvik </search>", "<answer> nowhere </answer>"]


def test_the_expert_judges_each_page_in_the_action_after_it() -> None:
    path = [{"query": "Ketterby", "answer": "a lighthouse"}, {"query": "Halvik", "answer": "cold Norland"}]
    task = Task("q", "Where is Halvik?", ("cold Norland",), data={"path": path})
    env = JudgedSearch(tasks=[task], retriever=InMemoryRetriever(DOCUMENTS), k=1)
    env.reset(seed=0)
    actions = env.expert()
    assert actions == [
        "<search> Ketterby </search>",
        NO + "<search> Halvik </search>",
        YES + "<answer> cold Norland </answer>",
    ]
    assert [env.step(action).reward for action in actions] == pytest.approx([0.0, 0.3, 1.0])


def test_an_episode_that_is_cut_is_worth_as_little_as_silence() -> None:
    """One page of nonsense, judged useless, has earned .3 so far; without an answer the whole episode is worth -.9."""
    env = JudgedSearch(tasks=[TASK], retriever=InMemoryRetriever(DOCUMENTS), k=1)
    env.reset(seed=0)
    earned = sum(env.step(action).reward for action in ("<search>Ketterby</search>", NO + "what?"))
    assert earned == pytest.approx(0.3)
    assert earned + env.cut_reward() == pytest.approx(-0.9)
