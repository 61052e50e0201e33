"""A planner over agents: what an agent is asked and gives, refinement, and the reward by hand."""

from typing import Any

import pytest

from agentenv.core.chat import InlineFormat
from agentenv.core.types import Document, Passage, Step, Task
from agentenv.envs.search.hierarchical_search import (
    Agent,
    HierarchicalSearch,
    coverage_reward,
    extractive_agent,
    refine,
)
from agentenv.envs.search.local_search import LocalSearch
from agentenv.errors import ConfigurationError, EnvFault
from agentenv.policies.scripted import ScriptedPolicy
from agentenv.retrievers.fakes import FaultyRetriever, InMemoryRetriever
from agentenv.retrievers.rerank import OverlapReranker

LOCAL = [
    Document(f"l{n}", f"Halvik {n}", "Halvik is in " + ("Norland ." if n == 2 else "dispute ."))
    for n in range(4)
]
WEB = [Document("w0", "Ketterby", "Ketterby is in Rome .")]
TASK = Task("q", "Where is Halvik?", ("Norland",))
THINK = "<think>I know it.</think>"


def lower(documents: list[Document]) -> LocalSearch:
    return LocalSearch(
        tasks=[TASK], retriever=InMemoryRetriever(documents), k=4, max_turns=1, observation_tokens=4000
    )


def begun(**options: Any) -> HierarchicalSearch:
    agents = {"local": extractive_agent(lower(LOCAL)), "web": extractive_agent(lower(WEB))}
    env = HierarchicalSearch(tasks=[TASK], **({"agents": agents} | options))
    env.reset(seed=0)
    return env


def ask(env: HierarchicalSearch, name: str, question: str) -> Step:
    return env.step(f"<{name}_search_agent>{question}</{name}_search_agent>")


def test_refinement_keeps_the_best_share_and_one_at_least() -> None:
    passages = [Passage(f"p{n}", "", text, 0.0) for n, text in enumerate(["a", "a b c", "b", "a b", "x"])]
    assert [p.id for p in refine(passages, "a b c", OverlapReranker(), 0.3)] == ["p1", "p3"]  # ceil(1.5)
    assert [p.id for p in refine(passages[4:], "a", OverlapReranker(), 0.1)] == ["p4"]
    assert refine([], "a", OverlapReranker(), 0.3) == []


@pytest.mark.parametrize(
    ("arguments", "reward"),
    [
        ((0.5, 0, 2, True), 0.5),
        ((0.0, 1, 2, True), 0.05),
        ((0.0, 2, 2, True), 0.1),
        ((0.0, 0, 2, True), 0.0),
        ((1.0, 2, 2, False), 0.0),
    ],
)
def test_the_reward_by_hand(arguments: tuple[float, int, int, bool], reward: float) -> None:
    assert coverage_reward(*arguments) == pytest.approx(reward)


def test_an_agent_searches_in_its_own_environment_and_its_best_evidence_goes_up() -> None:
    env = begun()
    step = ask(env, "local", "Where is Halvik in Norland")
    text = step.observation[0].text
    assert "Halvik 2" in text
    assert text.count("Doc ") == 2  # ceil(.3 * 4)
    assert env.state.used == {"local_search_agent"}
    assert step.info["tool_results"][0].data["ids"][0][0] == "l2"
    assert env.step(THINK + "<answer>Norland</answer>").reward == 1.0


def test_all_agents_are_asked_and_refined_together() -> None:
    env = begun(keep=0.5)
    step = ask(env, "all", "Halvik is in Norland")
    assert env.state.used == {"all_search_agent"}
    assert "Ketterby" in step.observation[0].text
    assert len(step.info["tool_results"][0].data["ids"][0]) == 2  # ceil(.5 * (2 + 1))
    assert env.step(THINK + "<answer>Paris</answer>").reward == pytest.approx(0.1 / 3)


LOCAL_CALL = "<local_search_agent>Halvik</local_search_agent>"
ALL_CALLS = [LOCAL_CALL] + [LOCAL_CALL.replace("local_", other) for other in ("web_", "all_")]


@pytest.mark.parametrize(
    ("actions", "reward"),
    [
        (
            [*ALL_CALLS, "<think>It is</think><answer>Paris</answer>"],
            0.1,
        ),  # an honest attempt that goes wrong
        ([*ALL_CALLS, *["<think>again</think>" + LOCAL_CALL] * 6], 0.0),  # never answers
        ([*ALL_CALLS, "<answer>Paris</answer>"], 0.0),  # never thinks
        ([*ALL_CALLS, "<think>It is<answer>Norland</answer>"], 0.0),
        ([LOCAL_CALL * 2, "<think>It is</think><answer>Norland</answer>"], 0.0),  # two calls before a result
        (["<think>I know.</think><answer>Norland</answer><answer>Rome</answer>"], 0.0),
        (["<think>I know.</think><answer>Norland</answer>"], 1.0),
    ],
)
def test_only_an_answer_in_form_is_paid(actions: list[str], reward: float) -> None:
    env = begun()
    assert sum(env.step(action).reward for action in actions) == pytest.approx(reward)


def test_a_malformed_turn_costs_everything() -> None:
    env = begun()
    env.step("hello")
    assert env.step(THINK + "<answer>Norland</answer>").reward == 0.0


def test_a_fault_below_is_a_fault_of_ours() -> None:
    broken = LocalSearch(
        tasks=[TASK], retriever=FaultyRetriever(InMemoryRetriever(LOCAL), fail_on={0}), max_turns=1
    )
    env = begun(agents={"local": extractive_agent(broken)})
    with pytest.raises(EnvFault, match="RetrieverFault"):
        ask(env, "local", "Where?")
    policy = ScriptedPolicy({})
    silent = begun(agents={"local": Agent(lower(LOCAL), policy, InlineFormat(policy.tokenizer))})
    with pytest.raises(EnvFault, match="PolicyFault"):
        ask(silent, "local", "Where?")


def test_agents_and_share_are_checked() -> None:
    with pytest.raises(ConfigurationError, match=r"\b0\.0\b"):
        HierarchicalSearch(keep=0.0)
    with pytest.raises(ConfigurationError, match=r"\[\]"):
        HierarchicalSearch(agents={})
