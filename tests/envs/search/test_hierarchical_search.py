"""A planner over agents: what an agent is asked and gives, refinement, and the reward by hand."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentenv.cli.main import main
from agentenv.core.chat import InlineFormat
from agentenv.core.types import Document, Passage, Step, Task
from agentenv.envs.search.evidence import FoundEvidence, Refiner, closeness, refine, thought_of
from agentenv.envs.search.hierarchical_rewards import coverage_reward, local_first_penalty
from agentenv.envs.search.hierarchical_search import (
    Agent,
    HierarchicalSearch,
    configured_agent,
    extractive_agent,
)
from agentenv.envs.search.local_search import LocalSearch
from agentenv.errors import ConfigurationError, EnvFault, UnknownName
from agentenv.policies.card import EpisodeCard, write_card
from agentenv.policies.fake_endpoint import Answer, FakeEndpoint
from agentenv.policies.fakes import random_policy
from agentenv.policies.scripted import ScriptedPolicy
from agentenv.retrievers.fakes import FaultyRetriever, InMemoryRetriever
from agentenv.retrievers.rerank import OverlapReranker, make_reranker

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


def passages(*texts: str) -> list[Passage]:
    return [Passage(f"p{n}", "", text, 0.0) for n, text in enumerate(texts)]


def ids(found: list[Passage]) -> list[str]:
    return [passage.id for passage in found]


def test_refinement_keeps_the_best_share_and_one_at_least() -> None:
    some = passages("u", "u v w", "v", "u v", "x")
    assert ids(refine(some, ["u v w"], OverlapReranker(), 0.5)) == ["p1", "p3"]  # int(2.5)
    assert ids(refine(some, ["u v w"], OverlapReranker(), 0.3)) == ["p1"]  # int(1.5)
    assert ids(refine(some[4:], ["u"], OverlapReranker(), 0.1)) == ["p4"]
    assert ids(refine(some, [""], OverlapReranker(), 0.5)) == ["p0", "p1"]  # without a thought the first ones
    assert refine([], ["u"], OverlapReranker(), 0.3) == []


def test_an_agent_hands_up_what_suits_its_thoughts_and_then_its_conclusion() -> None:
    """Of each search the best for its thought: p1, then p3; of the rest (p0, p2, p4) the best for the conclusion: p4."""
    p0, p1, p2, p3, p4 = passages("x", "born town", "y", "written book", "Ulm")
    searches = [FoundEvidence("born", (p0, p1)), FoundEvidence("book", (p1, p2, p3, p4))]
    refiner = Refiner(OverlapReranker(), 0.3, 0.3)
    assert ids(refiner.of_agent(searches, ["Ulm"])) == ["p1", "p3", "p4"]
    assert ids(replace(refiner, share_of_rest=0.7).of_agent(searches, ["Ulm"])) == ["p1", "p3", "p4", "p0"]
    assert ids(refiner.of_agent(searches, [""])) == ["p1", "p3", "p0"]
    assert refiner.of_agent([], ["Ulm"]) == []


def test_evidence_is_held_against_all_conclusions() -> None:
    some = passages("Ulm", "Rome", "Ulm Rome", "x")
    assert ids(refine(some, ["Ulm", "Rome"], OverlapReranker(), 0.3)) == ["p2"]
    assert ids(refine(some, ["", "Rome"], OverlapReranker(), 0.5)) == ["p1", "p2"]
    assert ids(refine(some, ["", ""], OverlapReranker(), 0.5)) == ["p0", "p1"]


def test_no_conclusion_outweighs_another() -> None:
    """Cosines .0, .1, .06 for one and .8, .0, .7 for the other: min-max gives 0 + 1, 1 + 0 and .6 + .875, the most.

    The sums of the raw scores are .8, .1 and .76.
    """

    class Written:
        id = "written"

        def score(self, pairs: Sequence[tuple[str, str]]) -> Sequence[float]:
            table = {"low": {"a": 0.0, "b": 0.1, "c": 0.06}, "high": {"a": 0.8, "b": 0.0, "c": 0.7}}
            return [table[text][passage.strip()] for text, passage in pairs]

    some = passages("a", "b", "c")
    assert closeness(some, ["low", "high"], Written()) == pytest.approx([1.0, 1.0, 1.475])
    assert ids(refine(some, ["low", "high"], Written(), 0.3)) == ["p2"]


def test_the_last_thought_counts() -> None:
    assert thought_of("<think>a</think><think> b </think><search>c</search>") == "b"
    assert thought_of("<search>c</search>") == ""
    assert thought_of("<think>a<think>b</think>") == "b"
    assert thought_of("<think>" * 100_000) == ""  # in one pass


@pytest.mark.parametrize(
    ("place", "penalty"),
    [
        (1, -1.0),
        (3, -1.0),
        (4, -0.2),
        (5, -0.15),
        (6, -0.1),
        (7, -0.045),
        (8, -0.03),
        (9, -0.01),
        (20, -0.01),
    ],
)
def test_what_going_to_the_web_early_costs(place: int, penalty: float) -> None:
    calls = ["local"] * (place - 1) + ["web", "web"]
    assert local_first_penalty(calls, {"web"}) == pytest.approx(penalty)
    assert local_first_penalty(["local"] * place, {"web"}) == 0.0


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
    assert text.count("Doc ") == 2  # int(.3 * 4) = 1 of the search, and of the other three one for the answer
    assert env.state.used == {"local_search_agent"}
    assert step.info["tool_results"][0].data["ids"][0][0] == "l2"
    assert env.step(THINK + "<answer>Norland</answer>").reward == 1.0


@pytest.mark.parametrize(("cut_again", "shown"), [(False, 4), (True, 2)], ids=["program", "twice"])
def test_all_agents_are_asked_and_their_evidence_is_refined(cut_again: bool, shown: int) -> None:
    """Local: int(.5 * 4) = 2 of the search and int(.5 * 2) = 1 of the rest; web: 1. Cut again: int(.5 * 4) = 2 of these."""
    env = begun(keep=0.5, cut_again=cut_again)
    step = ask(env, "all", "Halvik is in Norland")
    assert env.state.used == {"all_search_agent"}
    assert "Ketterby" in step.observation[0].text
    assert len(step.info["tool_results"][0].data["ids"][0]) == shown
    assert env.step(THINK + "<answer>Paris</answer>").reward == pytest.approx(0.1 / 3)


def test_asking_both_agents_gives_no_less_than_asking_one() -> None:
    """Of four passages, 1 of the search and 2 of the other three (.7) stay; the web agent adds its one."""
    alone = ask(begun(keep_rest=0.7), "local", "Halvik is in Norland")
    both = ask(begun(keep_rest=0.7), "all", "Halvik is in Norland")
    counts = [len(step.info["tool_results"][0].data["ids"][0]) for step in (alone, both)]
    assert counts == [3, 4]


LOCAL_CALL = "<local_search_agent>Halvik</local_search_agent>"
ALL_CALLS = [LOCAL_CALL] + [LOCAL_CALL.replace("local_", other) for other in ("web_", "all_")]


@pytest.mark.parametrize(
    ("actions", "reward"),
    [
        # An honest attempt that goes wrong.
        ([*ALL_CALLS, "<think>It is</think><answer>Paris</answer>"], 0.1),
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
    with pytest.raises(ConfigurationError, match=r"\b1\.5\b"):
        HierarchicalSearch(keep_rest=1.5)
    with pytest.raises(ConfigurationError, match=r"\[\]"):
        HierarchicalSearch(agents={})


@pytest.mark.parametrize(
    ("calls", "reward"),
    [(["local", "local", "local", "web"], 0.8), (["web"], 0.0), (["local"], 1.0), (["all"], 0.0)],
    ids=["fourth", "first", "never", "both at once"],
)
def test_local_agents_come_first_where_that_is_asked_for(calls: list[str], reward: float) -> None:
    """Right answers earn 1 less 1 for a web call among the first three, less .2 for the fourth."""
    env = begun(local_first=True)
    for name in calls:
        ask(env, name, "Where is Halvik?")
    assert env.step(THINK + "<answer>Norland</answer>").reward == pytest.approx(reward)


def test_agents_of_a_configuration_have_corpora_tools_and_prompts_of_their_own(tmp_path: Path) -> None:
    """The web agent searches an index of its own; the local one acts by a policy with the tools that it is offered."""
    build = [
        "retriever",
        "build",
        str(tmp_path / "web.jsonl"),
        "--index",
        "bm25",
        "--out",
        str(tmp_path / "web"),
    ]
    (tmp_path / "web.jsonl").write_text(
        '{"id": "w0", "title": "Ketterby", "text": "Ketterby is in Rome ."}\n'
    )
    assert main(build) == 0

    def reply(body: Any) -> Answer:
        said = body["messages"][-1]["content"]
        if "Norland" in said:
            return Answer("<think>Found.</think><answer>Norland</answer>")
        return Answer("<think>Where is it?</think><chunk_search>Halvik Norland</chunk_search>")

    with FakeEndpoint(reply) as server:
        agents = {
            "local": {
                "policy": f"openai:m@{server.url}",
                "tools": ["chunk_search", "graph_search"],
                "prompt": "ASK {question} {tools}",
            },
            "web": {"retriever": f"bm25:{tmp_path / 'web'}"},
        }
        env = HierarchicalSearch(tasks=[TASK], retriever=InMemoryRetriever(LOCAL), agents=agents)
        env.reset(seed=0)
        local, web = ask(env, "local", "Where is Halvik"), ask(env, "web", "Where is Ketterby")
        opening = server.bodies[0]["messages"][0]["content"]
    assert opening.startswith("ASK Where is Halvik? a query between <chunk_search>")
    assert "browse_url" not in opening
    assert "The local agent answers: Norland" in local.observation[0].text
    assert "Ketterby is in Rome" in web.observation[0].text
    assert env.state.calls == ["local_search_agent", "web_search_agent"]


def test_an_agent_is_asked_as_it_was_trained(tmp_path: Path) -> None:
    """What the table names stands above its card, and the card of a policy that was trained elsewhere says nothing."""
    random_policy(
        tmp_path, context=512, texts=["<chunk_search> </chunk_search> <answer> </answer> who is it ?"]
    )
    card = EpisodeCard("agentenv/AgentSearch-v0", "ASK {question}", k=2, max_turns=3, turn_tokens=16)
    settings = {"policy": f"hf:{tmp_path}", "max_turns": 1}

    def made(card: EpisodeCard) -> tuple[str, int, int, int]:
        write_card(tmp_path, card)
        agent = configured_agent("local", settings, [TASK], InMemoryRetriever(LOCAL))
        opening = agent.env.parts.opening(TASK)
        return opening, agent.env.search.k, agent.env.max_turns, agent.config.turn_tokens

    assert made(card) == ("ASK Where is Halvik?", 2, 1, 16)
    assert made(EpisodeCard("agentenv/LocalSearch-v0", environments=(card,))) == made(card)
    opening, *budgets = made(replace(card, env="agentenv/LocalSearch-v0"))
    assert opening.startswith("Find the answer")
    assert budgets == [10, 1, 500]


def test_an_agent_has_the_judge_of_facts_that_its_table_names(tmp_path: Path) -> None:
    random_policy(
        tmp_path, context=512, texts=["<graph_search> </graph_search> <answer> </answer> who is it ?"]
    )
    settings = {"policy": f"hf:{tmp_path}", "fact_judge": "encoder:hash"}
    agent = configured_agent("local", settings, [TASK], InMemoryRetriever(LOCAL))
    assert agent.env._judge.id == make_reranker("encoder:hash").id  # type: ignore[attr-defined]


def test_an_agent_has_the_tools_that_it_was_trained_with(tmp_path: Path) -> None:
    """Those of the table stand above them; the agent of HierSearch's web preset would have been given the local ones."""
    random_policy(tmp_path, context=512, texts=["<web_search> </web_search> <answer> </answer> who is it ?"])
    trained = {"tools": ["web_search", "browse_url"], "local_first": True}
    write_card(tmp_path, EpisodeCard("agentenv/AgentSearch-v0", options=trained))

    def offered(**settings: Any) -> list[str]:
        policy = {"policy": f"hf:{tmp_path}"}
        agent = configured_agent("web", policy | settings, [TASK], InMemoryRetriever(LOCAL))
        return [tool for tool in agent.env.parts.tools if tool != "answer"]

    assert offered() == ["web_search", "browse_url"]
    assert offered(tools=["chunk_search"]) == ["chunk_search"]


def test_an_agent_of_a_configuration_sees_ten_passages_a_query() -> None:
    many = InMemoryRetriever([Document(f"l{n}", f"Halvik {n}", "Halvik is in dispute .") for n in range(12)])
    env = HierarchicalSearch(tasks=[TASK], retriever=many, agents={"local": {}}, keep=1.0)
    opening = env.reset(seed=0)[0][0].text
    assert "Where our documents and the web disagree, trust our documents more." in opening
    step = ask(env, "local", "Halvik")
    assert len(step.info["tool_results"][0].data["ids"][0]) == 10


def test_the_conclusions_stay_where_the_evidence_does_not_fit() -> None:
    """Ten passages of a hundred words at the published number of passages, in an observation of 500 words."""
    text = "Halvik is in Norland . " + "and so on " * 32
    many = InMemoryRetriever([Document(f"l{n}", f"Halvik {n}", text) for n in range(12)])
    agents: dict[str, Any] = {"local": {}, "web": {}}
    for name, conclusions in (("local", 1), ("all", 2)):
        env = HierarchicalSearch(tasks=[TASK], retriever=many, agents=agents, keep=1.0)
        env.reset(seed=0)
        shown = ask(env, name, "Where is Halvik?").observation[0].text
        assert shown.count("agent answers: ") == conclusions
        assert "Halvik 0" in shown
        assert shown.rstrip().endswith("</information>")


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"tool": ["chunk_search"]}, "'tool'"),
        ({"policy": "tiny", "tools": ["chunk"]}, "'chunk'"),
        ({"policy": "gpt"}, "'gpt'"),
    ],
    ids=["field", "tool", "policy"],
)
def test_an_agent_that_cannot_be_is_named(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        HierarchicalSearch(agents={"local": settings})


def test_agents_may_know_different_parts_of_one_corpus() -> None:
    documents = [Document(f"d{n}", f"Halvik {n}", "Halvik is here") for n in range(20)]
    agents = {name: {"part": [number, 2], "k": 20} for name, number in (("local", 1), ("web", 2))}
    env = begun(agents=agents, retriever=InMemoryRetriever(documents), keep=1.0)
    seen = {}
    for name in agents:
        ask(env, name, "Halvik")
        seen[name] = set(env.state.retrieved[-1])
    assert seen["local"] | seen["web"] == {document.id for document in documents}
    assert not seen["local"] & seen["web"]


@pytest.mark.parametrize("part", [[1], [1, 2, 3], [3, 2]])
def test_a_part_that_does_not_exist_is_refused(part: list[int]) -> None:
    with pytest.raises(ConfigurationError, match="part"):
        begun(agents={"local": {"part": part}}, retriever=InMemoryRetriever(LOCAL))


def test_the_expert_asks_the_web_agent_for_what_the_local_one_does_not_find() -> None:
    hops = ({"query": "Where is Halvik", "document": "l0"}, {"query": "Where is Ketterby", "document": "w0"})
    task = replace(TASK, data={"path": hops})
    env = HierarchicalSearch(
        tasks=[task], agents={"local": extractive_agent(lower(LOCAL)), "web": extractive_agent(lower(WEB))}
    )
    env.reset(seed=0)
    tags = [action.partition("</think>")[2].partition(">")[0] for action in env.expert() or ()]
    assert tags == ["<local_search_agent", "<local_search_agent", "<web_search_agent", "<answer"]
    assert not env.state.calls  # the episode itself has not moved


def test_pages_may_stand_between_the_tags_that_were_published() -> None:
    env = begun(frame="result")
    (opening,), _ = env.reset(seed=0)
    assert "between <result> and </result>" in " ".join(opening.text.split())
    assert "<information>" not in opening.text
    text = ask(env, "local", "Where is Halvik").observation[0].text
    assert text.startswith(" <result>\n")
    assert text.endswith("\n</result>")


def test_unknown_tags_are_refused() -> None:
    with pytest.raises(UnknownName, match="result"):
        begun(frame="results")
