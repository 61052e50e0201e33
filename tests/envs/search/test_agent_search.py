"""The tools of HierSearch's agents: the graph by hand, pages next to each other, two corpora, and what a run earns."""

from pathlib import Path
from typing import Any

import pytest

from agentenv.core.types import Document, Step, Task
from agentenv.envs.search.agent_search import TOOLS, AgentSearch, addresses_in
from agentenv.envs.search.page_graph import PageGraph, personalised_pagerank
from agentenv.errors import ConfigurationError, DatasetError, UnknownName
from agentenv.retrievers.fakes import FaultyRetriever, InMemoryRetriever
from agentenv.retrievers.storage.corpus import Corpus

LOCAL = [
    Document("1", "Halvik", "Halvik was built by Ada Stone."),
    Document("2", "Ada Stone", "She left for Ulm."),
    Document("3", "Ulm", "A town on a river."),
    Document("4", "Ketterby", "Nothing to see."),
]
WEB = [Document("w", "Norland News", "Ulm is in Norland. " + "word " * 60 + "end")]
TASK = Task("q", "Where did the builder of Halvik go?", ("Ulm",))


def begun(*tools: str, **options: Any) -> AgentSearch:
    env = AgentSearch(
        tasks=[TASK],
        retriever=InMemoryRetriever(LOCAL),
        web=InMemoryRetriever(WEB),
        tools=tools or tuple(TOOLS),
        **options,
    )
    env.reset(seed=0)
    return env


def call(env: AgentSearch, tool: str, text: str) -> Step:
    return env.step(f"<{tool}>{text}</{tool}>")


def found(step: Step) -> list[str]:
    (result,) = step.info["tool_results"]
    return [one for ids in result.data["ids"] for one in ids]


def test_pagerank_of_two_nodes() -> None:
    """With seeds on a alone and damping d: a = (1 - d) + d b, b = d a, so a = 1 / (1 + d) = 2/3 for d = 1/2."""
    rank = personalised_pagerank({"a": {"b": 1.0}, "b": {"a": 1.0}}, {"a": 3.0})
    assert rank["a"] == pytest.approx(2 / 3)
    assert rank["b"] == pytest.approx(1 / 3)


def test_pagerank_keeps_its_mass_at_a_node_without_links() -> None:
    """B has no links, so its mass goes back to the seed: a = (1 - d) + d b, b = d a, as above; c is never reached."""
    rank = personalised_pagerank({"a": {"b": 1.0}, "c": {"a": 1.0}}, {"a": 1.0})
    assert sum(rank.values()) == pytest.approx(1.0)
    assert rank["a"] == pytest.approx(2 / 3)
    assert "c" not in rank


def test_a_walk_takes_an_edge_as_often_as_it_weighs() -> None:
    """From a to b in 3 of 4 cases: with d = 1/2, a = 1/2 + (b + c) / 2 = 2/3, of the rest b has 3/4 and c 1/4."""
    links = {"a": {"b": 0.9, "c": 0.3}, "b": {"a": 0.9}, "c": {"a": 0.3}}
    assert personalised_pagerank(links, {"a": 1.0}) == pytest.approx({"a": 2 / 3, "b": 1 / 4, "c": 1 / 12})


def test_a_graph_finds_pages_that_share_no_word_with_the_query() -> None:
    env = begun(k=3)
    assert found(call(env, "chunk_search", "Halvik built")) == ["1"]
    assert found(call(env, "graph_search", "Halvik built")) == ["1", "2", "3"]
    graph = PageGraph(Corpus(LOCAL))
    assert graph.rank({"nowhere": 1.0}, 3) == []


def test_environments_over_one_corpus_share_its_graph() -> None:
    retriever = InMemoryRetriever(LOCAL)
    one, other = (AgentSearch(tasks=[TASK], retriever=retriever) for _ in range(2))
    tools = [env.parts.tools["get_adjacent_passages"].tool.graph for env in (one, other)]  # type: ignore[attr-defined]
    assert tools[0] is tools[1]


def test_pages_next_to_each_other() -> None:
    env = begun(k=3)
    assert found(call(env, "get_adjacent_passages", "Ada Stone")) == ["2", "1", "3"]
    assert call(env, "get_adjacent_passages", "Nobody").info["tool_results"][0].error_class == "UnknownTitle"


def test_a_graph_of_facts_finds_what_shares_no_word_with_the_query() -> None:
    env = begun("graph_search", "get_adjacent_passages", k=2, facts="titles")
    assert found(call(env, "graph_search", "builder built Halvik")) == ["1", "2"]
    assert found(call(env, "get_adjacent_passages", "Halvik")) == ["1", "2"]
    twin = env.fork()[0]
    assert found(call(twin, "graph_search", "Ulm")) == found(call(env, "graph_search", "Ulm"))


def test_synonyms_lead_to_pages_that_no_fact_leads_to(tmp_path: Path) -> None:
    """The encoder by spelling finds the two spellings of the river alike, and each has a passage of its own."""
    path = tmp_path / "facts.jsonl"
    path.write_text(
        '{"id": "1", "facts": [["Halvik", "is on", "Ostermeranbach"]]}\n'
        '{"id": "4", "facts": [["Ostermeranbachs", "feeds", "Ketterby"]]}\n'
    )
    plain = begun("graph_search", k=2, facts=str(path))
    linked = begun("graph_search", k=2, facts=str(path), synonyms="hash", synonym_similarity=0.75)
    assert found(call(plain, "graph_search", "Halvik")) == ["1"]
    assert found(call(linked, "graph_search", "Halvik")) == ["1", "4"]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"facts": "titles", "synonyms": "hush"}, "'hush'"),
        ({"synonyms": "hash"}, "'hash'"),
        ({"facts": "titles", "synonyms": "hash", "synonym_similarity": 0.0}, r"0\.0"),
    ],
    ids=["encoder", "no facts", "similarity"],
)
def test_synonyms_that_cannot_be_told_are_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        begun(**options)


def test_facts_of_another_corpus_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "facts.jsonl"
    path.write_text('{"id": "99", "facts": [["Halvik", "is in", "Norland"]]}\n')
    with pytest.raises(DatasetError, match="'99'"):
        begun(facts=str(path))


def test_the_web_is_another_corpus_whose_pages_are_opened() -> None:
    env = begun()
    page = call(env, "web_search", "Norland").observation[0].text
    assert "Ulm is in Norland" in page
    assert "end" not in page  # the beginning alone
    for address in (
        "Norland News | where is it?",
        "w",
        "Norland News, and where?",
        "Norland News\uff0cwhere?",
    ):
        assert "end" in call(env, "browse_url", address).observation[0].text
    assert call(env, "browse_url", "Ulm | what?").info["tool_results"][0].error_class == "UnknownPage"
    assert env.state.calls == ["web_search", *["browse_url"] * 5]


def test_the_reward_is_f1_or_a_part_of_the_tools_that_were_tried() -> None:
    env = begun("chunk_search", "web_search")
    call(env, "chunk_search", "Halvik")
    # One tool of two.
    assert env.step("<think>So.</think><answer>Rome</answer>").reward == pytest.approx(0.05)
    env.reset(seed=0)
    assert env.step("<think>So.</think><answer>Ulm</answer>").reward == 1.0


@pytest.mark.parametrize(
    ("calls", "reward"),
    [
        (["web_search"], 0.0),
        (["chunk_search", "browse_url"], 0.0),
        (["chunk_search"] * 3 + ["web_search"], 0.8),
        (["chunk_search"] * 6 + ["browse_url"], 0.955),
        (["chunk_search"], 1.0),
    ],
    ids=["first", "a page of the web", "fourth", "seventh", "never"],
)
def test_an_early_call_of_a_web_tool_costs_where_that_is_asked_for(calls: list[str], reward: float) -> None:
    """1 less 1 within three calls, less .05 * 4 at the fourth, less .015 * 3 at the seventh; nothing without the option."""
    for local_first, worth in ((True, reward), (False, 1.0)):
        env = begun("chunk_search", "web_search", "browse_url", local_first=local_first)
        for tool in calls:
            call(env, tool, "Ulm")
        assert env.step("<think>So.</think><answer>Ulm</answer>").reward == pytest.approx(worth)


@pytest.mark.parametrize("tools", [("chunk_search", "graph_search"), ("web_search", "browse_url")])
def test_tools_of_one_kind_have_no_order(tools: tuple[str, ...]) -> None:
    with pytest.raises(ConfigurationError, match=tools[0]):
        begun(*tools, local_first=True)


def test_the_prompt_offers_the_tools_of_the_agent_alone() -> None:
    env = begun("web_search", "browse_url")
    opening, _ = env.reset(seed=0)
    assert "<browse_url>title | question</browse_url>" in opening[0].text
    assert "graph_search" not in opening[0].text
    assert call(env, "chunk_search", "Halvik").info["valid"] is False  # a tool that is not offered


def test_tools_that_cannot_be_are_refused() -> None:
    with pytest.raises(UnknownName, match="'chunk'"):
        AgentSearch(tools=["chunk"])
    with pytest.raises(ConfigurationError, match=r"\[\]"):
        AgentSearch(tools=[])
    elsewhere = FaultyRetriever(InMemoryRetriever(LOCAL), fail_on=())
    with pytest.raises(ConfigurationError, match="graph_search"):
        AgentSearch(tasks=[TASK], retriever=elsewhere, tools=["graph_search"])


def test_the_question_behind_an_address_may_hold_separators() -> None:
    for question in ("| a | b?", ", what, and when?", "\uff5c who, and | why?", "|"):
        env = begun("web_search", "browse_url")
        call(env, "web_search", "Ulm Norland")
        assert "end" in call(env, "browse_url", f"Norland News{question}").observation[0].text
    assert addresses_in("a, b | c") == ["a, b | c", "a, b", "a"]  # a title may hold a comma
    assert addresses_in("a") == ["a"]


def test_an_agent_s_pages_may_stand_between_the_tags_that_were_published() -> None:
    env = AgentSearch(frame="result")
    (opening,), _ = env.reset(seed=0)
    assert "<result>" in opening.text
    assert "<information>" not in opening.text
    tools = ("chunk_search", "graph_search", "get_adjacent_passages")
    pages = [env.step(f"<{tool}>the town</{tool}>").observation[0].text for tool in tools]
    assert all(page.startswith(" <result>\n") for page in pages)


def test_an_agent_is_trained_with_the_ten_passages_that_it_is_shown_below_a_planner() -> None:
    """Published are ten a query; of ten passages of 100 words none is cut off."""
    words = " ".join(f"word{n}" for n in range(100))
    many = InMemoryRetriever([Document(str(n), f"Halvik {n}", f"Halvik {words} end{n}") for n in range(12)])
    env = AgentSearch(tasks=[TASK], retriever=many, tools=["chunk_search"])
    env.reset(seed=0)
    step = call(env, "chunk_search", "Halvik")
    shown = step.observation[0].text
    assert [f"end{one}" in shown for one in found(step)] == [True] * 10
