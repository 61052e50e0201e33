"""HybridDeepSearcher's summaries: pages, reasoning and replies by hand, and whole turns with each summariser."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from agentenv.core.types import Document, Passage, Step, Task
from agentenv.envs.search.hybrid_search import BEGIN_QUERIES, END_QUERIES, HybridSearch
from agentenv.envs.search.page_summaries import (
    NOTHING,
    ExtractiveSummarizer,
    ModelSummarizer,
    around,
    best_sentence,
    condensed,
    final_information,
    make_summarizer,
)
from agentenv.errors import ContextTooSmall, EndpointFault, EnvFault, UnknownName
from agentenv.policies.fake_endpoint import Answer, FakeEndpoint
from agentenv.policies.wires import Reply
from agentenv.retrievers.fakes import InMemoryRetriever

DOCUMENTS = [
    Document("a", "Halvik", "It rains. Halvik lies in Norland. Boats leave."),
    Document("b", "Ketterby", "Ketterby has a port."),
]
TASK = Task("q", "Where is Halvik?", ("Norland",), data={"path": [{"query": "Halvik lies in"}]})
SAID = "I have read it.\n**Final Information**\n\nHalvik lies in\nNorland."


class Written:
    """A model that writes what it is given, and keeps what it was asked."""

    model = "written"

    def __init__(self, reply: str | Exception = SAID) -> None:
        self.reply = reply
        self.asked: list[tuple[str, dict[str, Any]]] = []

    async def complete(self, messages: Sequence[Any], **options: Any) -> Reply:
        self.asked.append((messages[-1]["content"], options))
        if isinstance(self.reply, Exception):
            raise self.reply
        return Reply(self.reply, "stop")


def asked(*queries: str, thought: str = "") -> str:
    return thought + BEGIN_QUERIES + "\n" + ";\n".join(queries) + "\n" + END_QUERIES


def played(*actions: str, **options: Any) -> tuple[HybridSearch, list[Step]]:
    env = HybridSearch(tasks=[TASK], retriever=InMemoryRetriever(DOCUMENTS), k=1, **options)
    env.reset(seed=0)
    return env, [env.step(action) for action in actions]


def test_the_sentence_that_fits_best_needs_more_than_a_fifth() -> None:
    text = "It rains. Halvik lies in Norland. Boats leave."
    assert best_sentence(text, "halvik lies, where?") == "Halvik lies in Norland."
    assert best_sentence(text, "port of Ketterby") is None
    nine = "one two three four five six seven eight nine"
    assert best_sentence(nine, "one") is None  # 2 * 1 / (9 + 1) = .2, which is not above
    assert best_sentence(nine[:-5], "one") == nine[:-5]  # 2 * 1 / (8 + 1) = .22


def test_a_page_is_cut_around_its_best_sentence() -> None:
    text = "x" * 20 + ". Halvik lies in Norland. " + "y" * 20 + "."
    assert around(text, "Halvik lies in", 3) == "x. Halvik lies in Norland. yy"
    assert around(text, "Ketterby", 3) == "x" * 6  # nothing fits: twice as many from the beginning
    assert len(around("x" * 9000, "Ketterby")) == 2048


def test_reasoning_keeps_the_first_step_the_last_four_and_whole_searches() -> None:
    """Eleven steps: the fourth is a block of queries, the empty line is none."""
    text = "a\nb\nc\n<q>d\ne</q>f\n\ng\nh\ni\nj\nk\nl"
    kept = "1: a,...,4: <q>d\ne</q>,...,8: i,9: j,10: k,11: l"
    blocks = (("<q>", "</q>"), ("<r>", "</r>"))
    assert condensed(text, blocks).replace("Step ", "").split("\n\n") == kept.split(",")
    assert condensed("a\nb\nc\nd\ne", blocks).count("...") == 0
    assert condensed("a\nb\nc\nd\ne\nf", blocks).count("...") == 1
    assert condensed("a\n<r>b", blocks) == "Step 1: a\n\nStep 2: <r>b"  # the text may be cut there
    assert condensed("", blocks) == ""


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (SAID, "Halvik lies in Norland."),
        ("**Final Information** one **Final Information** ```two```", "two"),
        ("Halvik lies in Norland.", NOTHING),
        ("**Final Information**\n ", NOTHING),
        ("", NOTHING),
    ],
)
def test_what_stands_behind_the_last_heading_is_the_summary(reply: str, said: str) -> None:
    assert final_information(reply) == said


def test_the_extractive_summary_takes_the_best_sentence_of_each_page() -> None:
    pages = [Passage(d.id, d.title, d.text, 1.0) for d in DOCUMENTS]
    summary = ExtractiveSummarizer().summary
    both = asyncio.run(summary("", "lies in Norland, has a port", pages, 0))
    assert both == "Halvik: Halvik lies in Norland. Ketterby: Ketterby has a port."
    assert asyncio.run(summary("", "cheese", pages, 0)) == NOTHING


def test_each_query_of_a_turn_has_a_summary_and_a_repeated_one_a_notice() -> None:
    env, steps = played(
        asked("Halvik lies in", "Ketterby port"), asked("halvik lies in"), summarizer="extractive"
    )
    assert steps[0].observation[0].text == (
        "\n\n<|begin_search_results|>\nQuery 1(summary): Halvik: Halvik lies in Norland.\n"
        "Query 2(summary): Ketterby: Ketterby has a port.\n<|end_search_results|>\n\n<think>\n"
    )
    assert "Query 1(repeated)" in steps[1].observation[0].text
    assert "Norland" not in steps[1].observation[0].text
    assert env.state.retrieved == [["a"], ["b"]]
    assert env.expert_gives_up() is None


def test_the_expert_gives_up_where_no_summary_shows_the_answer() -> None:
    env, _ = played(asked("It rains"), summarizer="extractive")
    assert env.expert_gives_up() == "\\boxed{}"


def test_the_model_sees_the_reasoning_the_query_and_the_pages_and_samples_as_published() -> None:
    model = Written()
    _, steps = played(
        asked("Halvik", thought="I need its land.\n"),
        asked("Ketterby"),
        summarizer=ModelSummarizer(model),
    )
    (first, options), (second, later) = model.asked
    assert "Step 1: I need its land.\n\nStep 2: <|begin_search_queries|>" in first
    assert "Search query: Halvik\n" in first
    assert "**Web Page 1:** Halvik\nIt rains. Halvik lies in Norland. Boats leave." in first
    shown = "Step 3: <|begin_search_results|>\nQuery 1(summary): Halvik lies in Norland.\n"
    assert shown in second
    assert {key: options[key] for key in ("temperature", "top_p", "max_tokens")} == {
        "temperature": 0.7, "top_p": 0.8, "max_tokens": 2048,
    }  # fmt: skip
    assert options["seed"] != later["seed"]
    assert (
        "\nQuery 1(summary): Halvik lies in Norland.\n<|end_search_results|>" in steps[0].observation[0].text
    )


def test_a_failing_model_is_a_fault_and_what_the_policy_made_unreadable_is_an_empty_summary() -> None:
    env, _ = played(summarizer=ModelSummarizer(Written(EndpointFault("down"))))
    with pytest.raises(EnvFault, match="down"):
        env.step(asked("Halvik"))
    assert (env.state.queries, env.state.record) == ([], [])
    too_long = ModelSummarizer(Written(ContextTooSmall("9000 tokens")))
    _, (step,) = played(asked("Halvik"), summarizer=too_long)
    assert f"Query 1(summary): {NOTHING}" in step.observation[0].text


def test_a_model_behind_an_endpoint_is_named() -> None:
    with FakeEndpoint(lambda _: Answer(SAID)) as server:
        _, (step,) = played(asked("Halvik"), summarizer=f"openai:m@{server.url}")
        assert server.bodies[-1]["temperature"] == 0.7
    assert "Halvik lies in Norland." in step.observation[0].text
    with pytest.raises(UnknownName, match="abridger"):
        make_summarizer("abridger:x")


def test_a_summary_shows_nothing_that_only_the_query_says() -> None:
    env, steps = played(
        asked("Norland", "Is it Norland"), summarizer=ExtractiveSummarizer(), found_reward=0.5
    )
    page = steps[0].observation[0].text
    assert page.count("Query") == 2
    assert steps[0].reward == 0.5 * ("Norland" in page)
    assert env.state.queries == ["Norland", "Is it Norland"]


def test_sentences_of_chinese_end_with_its_full_stop() -> None:
    assert best_sentence("上海是最大的城市。北京是首都。", "首都是哪里") == "北京是首都。"
