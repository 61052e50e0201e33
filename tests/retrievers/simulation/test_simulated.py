"""Simulated search: the curriculum by hand, who is told what, the gold at evaluation, pages that cannot be read."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentenv.core.chat import InlineFormat
from agentenv.core.rollout import EpisodeSpec, RolloutConfig, rollout
from agentenv.core.types import Passage, Query, QueryContext, Task
from agentenv.data.sources import SourceConfig
from agentenv.data.world import WorldConfig
from agentenv.envs.search.simulated_search import SimulatedSearch
from agentenv.errors import (
    ConfigurationError,
    ContextTooSmall,
    EndpointFault,
    EndpointRefusal,
    RetrieverFault,
    UnknownName,
)
from agentenv.evaluation.task_env import EnvConfig, SearchConfig, open_task_env
from agentenv.policies.fake_endpoint import Answer, FakeEndpoint
from agentenv.policies.scripted import ScriptedPolicy
from agentenv.policies.wires import ChatMessage, Reply
from agentenv.retrievers.mixed import MixedRetriever, at_progress
from agentenv.retrievers.retriever_spec import make_retriever
from agentenv.retrievers.simulation.simulated import (
    SimulatedRetriever,
    SimulationConfig,
    noise_share,
    read_documents,
)
from agentenv.retrievers.simulation.simulators import (
    Brief,
    CassetteSimulator,
    EndpointSimulator,
    GrammarSimulator,
    SamplingOptions,
    ask,
)

TRAIN = QueryContext("t/1", "Who founded Tibfonu Society?", ("Ann Lee", "A. Lee"), 0, "train", 1)
FOUNDER = "Tibfonu Society founder"


class Recorder:
    """Remembers briefs and answers with given pages, the last one for ever."""

    id = "recorder"

    def __init__(self, *pages: str) -> None:
        self.pages = list(pages or ["Doc 1: words"])
        self.briefs: list[Brief] = []

    async def write(self, briefs: Sequence[Brief]) -> list[str]:
        self.briefs += briefs
        return [self.pages.pop(0) if len(self.pages) > 1 else self.pages[0] for _ in briefs]


def search(
    retriever: SimulatedRetriever, text: str = FOUNDER, context: QueryContext | None = TRAIN, k: int = 2
) -> list[Passage]:
    return asyncio.run(retriever.search([Query(text, context)], k))[0]


@pytest.mark.parametrize(
    ("step", "share"),
    [
        (0, 0.0),
        (25, 0.0690356),  # (4^.25 - 1) / 3 * .5 = (1.4142136 - 1) / 6
        (50, 1 / 6),  # (2 - 1) / 6
        (75, 0.3047379),  # (2.8284271 - 1) / 6
        (100, 0.5),
        (130, 0.5),  # beyond the last step
    ],
)
def test_the_curriculum_has_the_published_values(step: int, share: float) -> None:
    assert noise_share(step, 100, start=0.0, end=0.5, base=4.0) == pytest.approx(share, abs=1e-6)


def test_a_curriculum_of_base_1_is_a_straight_line() -> None:
    assert noise_share(1, 4, start=0.2, end=0.6, base=1.0) == pytest.approx(0.3)
    assert noise_share(1, 4, start=0.2, end=0.6, base=1.0001) == pytest.approx(0.3, abs=1e-4)


def test_noise_is_drawn_for_each_query() -> None:
    """Of 1000 queries of one turn at share .3, 300 within 5 standard errors of 14.5 are noisy; the same ones again."""
    recorder = Recorder()
    config = SimulationConfig(noise_start=0.3, noise_end=0.3)
    queries = [Query(f"stone {n}", TRAIN) for n in range(1000)]
    for _ in range(2):
        asyncio.run(SimulatedRetriever(recorder, config).search(queries, 1))
    noisy = [not brief.useful for brief in recorder.briefs]
    assert abs(sum(noisy[:1000]) - 300) < 73
    assert noisy[:1000] == noisy[1000:]


def test_the_share_follows_the_progress_of_training() -> None:
    retriever = SimulatedRetriever(Recorder(), SimulationConfig(noise_end=1.0))
    assert [retriever.at(progress).noise for progress in (0.0, 0.5, 1.0)] == pytest.approx([0, 1 / 3, 1])
    assert retriever.noise == 0.0
    assert retriever.at(1.0).info() != retriever.info()


def test_a_simulator_is_told_the_question_and_the_first_answer_of_its_own_episode() -> None:
    recorder = Recorder()
    other = replace(TRAIN, question="Where is it?", answers=("Halvik",), seed=2)
    retriever = SimulatedRetriever(recorder)
    asyncio.run(retriever.search([Query(FOUNDER, TRAIN), " ", Query("Halvik", other)], 3))
    first, second = recorder.briefs
    assert (first.query, first.question, first.answer) == (FOUNDER, TRAIN.question, "Ann Lee")
    assert (second.query, second.question, second.answer) == ("Halvik", "Where is it?", "Halvik")
    assert first.documents == 3
    assert first.seed != second.seed


def test_a_finished_row_does_not_shift_what_the_others_are_told() -> None:
    """D3: row 0 answers at once, row 1 searches; its simulator must not hear of row 0."""
    recorder = Recorder("Doc 1(Title: T) Ann Lee")
    tasks = [Task("a", "Who is first?", ("Zero",), "train"), Task("b", "Who is second?", ("One",), "train")]
    retriever = SimulatedRetriever(recorder)
    specs = [
        EpisodeSpec(SimulatedSearch(tasks=tasks, retriever=retriever), task, n)
        for n, task in enumerate(tasks)
    ]
    policy = ScriptedPolicy(
        {
            "e-0": ["<answer>Zero</answer>"],
            "e-1": ["<search>first</search>", "<search>second</search>", "<answer>One</answer>"],
        }
    )
    played = asyncio.run(
        rollout(
            specs,
            policy,
            InlineFormat(policy.tokenizer),
            RolloutConfig(context_tokens=4096, turn_tokens=500),
            name="e",
        )
    )
    assert [t.reward for t in played] == [1.0, 1.0]
    assert [(b.query, b.question, b.answer) for b in recorder.briefs] == [
        ("first", "Who is second?", "One"),
        ("second", "Who is second?", "One"),
    ]


@pytest.mark.parametrize("split", ["test", "dev", "validation", ""])
def test_the_gold_is_refused_outside_the_training_split(split: str) -> None:
    """D16: no simulator hears the answer to a question of an evaluation."""
    recorder = Recorder()
    with pytest.raises(ConfigurationError, match=f"'{split}'"):
        search(SimulatedRetriever(recorder), context=replace(TRAIN, split=split))
    assert recorder.briefs == []
    search(SimulatedRetriever(recorder, SimulationConfig(gold=False)), context=replace(TRAIN, split=split))
    (brief,) = recorder.briefs
    assert brief.answer == ""
    assert "Lee" not in repr(brief) + ask(brief, "instructions") + ask(brief, "compact")


def test_an_evaluation_over_a_simulator_that_knows_the_answers_does_not_begin() -> None:
    world = WorldConfig(documents=200, questions=2, split="dev")
    for spec in ("simulated:grammar", "simulated:gold=yes@grammar"):
        with pytest.raises(ConfigurationError, match="'dev'"):
            open_task_env(SourceConfig(world=world), SearchConfig(retriever=spec), EnvConfig(), len)
    blind = SearchConfig(retriever="simulated:gold=no@grammar")
    assert open_task_env(SourceConfig(world=world), blind, EnvConfig(), len).searched.info().contextual


def test_prompts_tell_mode_question_answer_and_query() -> None:
    useful = Brief("Halvik", 5, True, "Where?", "Rome")
    noisy = replace(useful, useful=False)
    assert ask(useful, "compact") == "useful\nQuestion: Where?\nAnswer: Rome\nQuery: Halvik"
    assert ask(noisy, "compact").startswith("noisy\n")
    text = ask(useful, "instructions")
    assert all(part in text for part in ("5 useful documents", "Where?", "answer is: Rome", "Query: Halvik"))
    assert "may contain this answer" not in text
    assert "None of the documents may contain this answer." in ask(noisy, "instructions")
    assert "correct answer" not in ask(Brief("Halvik", 5), "instructions")


@pytest.mark.parametrize(
    ("page", "found"),
    [
        ("Doc 1(Title: A (b)) one\ntwo\nDoc 2(Title: C) three", [("A (b)", "one two"), ("C", "three")]),
        ("Useful Output:\nDoc 1: one\n\n\nDoc 2: two", [("q", "one"), ("q", "two")]),
        ("Document 1. one Doc 7 more", [("q", "one Doc 7 more")]),
        ("Doc 1(Title: A)\nDoc 2(Title: B) words", [("B", "words")]),
        ("I cannot help with that.", []),
        ("", []),
    ],
)
def test_pages_are_read_as_documents(page: str, found: list[tuple[str, str]]) -> None:
    passages = read_documents(page, Brief("q", 5))
    assert [(passage.title, passage.text) for passage in passages] == found
    assert [passage.score for passage in passages] == [1 / rank for rank in range(1, len(found) + 1)]


@pytest.mark.parametrize(
    "page", ["Doc 1(Title:" + " " * 200_000, "Doc 1(Title:" + "\t(a)" * 50_000, "Doc 1(" * 50_000]
)
def test_a_title_that_does_not_end_is_read_in_time(page: str) -> None:
    began = time.process_time()
    assert read_documents(page, Brief("q", 5)) == []
    assert time.process_time() - began < 1.0


def test_no_more_documents_than_were_asked_for() -> None:
    page = "\n".join(f"Doc {n}: word {n}" for n in range(1, 9))
    assert len(search(SimulatedRetriever(Recorder(page)), k=3)) == 3


def test_a_page_that_cannot_be_read_is_asked_for_again_and_not_for_ever() -> None:
    recorder = Recorder("no", "no", "Doc 1: yes")
    assert search(SimulatedRetriever(recorder))[0].text == "yes"
    assert len({brief.seed for brief in recorder.briefs}) == 3
    hopeless = Recorder("no")
    # A failure would mask the episode of whoever asked for it.
    assert search(SimulatedRetriever(hopeless)) == []
    assert len(hopeless.briefs) == 3


def test_a_failure_of_the_simulator_is_one_of_the_retriever() -> None:
    class Broken(Recorder):
        async def write(self, briefs: Sequence[Brief]) -> list[str]:
            raise EndpointFault("the budget of 3 requests is spent")

    with pytest.raises(RetrieverFault, match=r"\b3\b"):
        search(SimulatedRetriever(Broken()))


class Picky:
    """Takes no query that is longer than ``most``; with less than nothing no request at all."""

    def __init__(self, most: int, error: Exception) -> None:
        self.most, self.error = most, error
        self.model = "picky"

    async def complete(self, messages: Sequence[ChatMessage], **_: Any) -> Reply:
        query = str(messages[0]["content"]).rpartition("Query: ")[2].partition("\n")[0]
        if len(query) > self.most:
            raise self.error
        return Reply("Doc 1: words", "stop")


@pytest.mark.parametrize("error", [ContextTooSmall("too long"), EndpointRefusal("its filter")])
def test_a_query_that_the_model_does_not_take_finds_nothing_and_masks_nobody(error: Exception) -> None:
    retriever = SimulatedRetriever(EndpointSimulator(Picky(100, error), SamplingOptions()))
    assert [passage.text for passage in search(retriever)] == ["words"]
    assert search(retriever, "what " * 1000) == []
    queries = [Query("what " * 1000, TRAIN), Query(FOUNDER, TRAIN)]
    assert [len(found) for found in asyncio.run(retriever.search(queries, 2))] == [0, 1]
    with pytest.raises((ConfigurationError, RetrieverFault)):  # nothing that a policy wrote
        search(SimulatedRetriever(EndpointSimulator(Picky(-1, error), SamplingOptions())), "what")


def test_the_grammar_states_the_answer_where_it_is_useful_and_never_where_it_is_not() -> None:
    useful = SimulatedRetriever(GrammarSimulator(), SimulationConfig(noise_end=0.0))
    noisy = SimulatedRetriever(GrammarSimulator(), SimulationConfig(noise_start=1.0))
    first, second = search(useful)
    assert (first.title, first.text) == ("Tibfonu Society", "Tibfonu Society was founded by Ann Lee.")
    assert "Ann Lee" not in second.text
    assert "Ann Lee" not in "".join(passage.text for passage in search(noisy))
    assert search(useful) == search(useful)
    assert search(useful, context=replace(TRAIN, seed=9))[1] != second


def test_specs_name_simulator_and_options(tmp_path: Path) -> None:
    with FakeEndpoint(lambda body: Answer()) as server:
        model = f"openai:m@{server.url}"
        retriever = make_retriever(f"simulated:noise_end=0.25,gold=no,tokens=64@{model}#retries=0")
        plain = make_retriever(f"simulated:{model}")
        assert server.bodies == []
    with pytest.raises(ConfigurationError, match=server.url):
        make_retriever(f"rerank:overlap@simulated:tokens=9@{model}")
    assert isinstance(retriever, SimulatedRetriever)
    assert retriever.config == SimulationConfig(noise_end=0.25, gold=False, tokens=64)
    assert f"m@{server.url}" in retriever.simulator.id
    assert isinstance(plain, SimulatedRetriever)
    assert plain.config == SimulationConfig()
    with pytest.raises(ConfigurationError, match="noise_end"):
        make_retriever("simulated:noise_end=2@grammar")
    with pytest.raises(ConfigurationError, match="noisy"):
        make_retriever("simulated:noisy=2@grammar")
    with pytest.raises(UnknownName, match="'grammar'"):
        make_retriever("simulated:gramar")


def test_a_cassette_replays_a_curriculum_without_the_simulator(tmp_path: Path) -> None:
    config = SimulationConfig(noise_end=1.0)
    recording = SimulatedRetriever(CassetteSimulator(tmp_path / "tape", GrammarSimulator()), config)
    recorded = [search(recording.at(progress)) for progress in (0.0, 1.0)]
    assert recorded[0] != recorded[1]
    replay = make_retriever(f"simulated:noise_end=1@cassette:{tmp_path / 'tape'}")
    assert isinstance(replay, SimulatedRetriever)
    assert [search(replay.at(progress)) for progress in (0.0, 1.0)] == recorded
    with pytest.raises(RetrieverFault, match="something else"):
        search(replay, "something else")


def test_a_mixture_keeps_each_episode_with_one_retriever_and_follows_its_schedule() -> None:
    simulated, real = (SimulatedRetriever(Recorder(f"Doc 1: {name}")) for name in ("made up", "real"))
    mixed = MixedRetriever(simulated, real, start=0.0, end=1.0)
    queries = [Query("q", replace(TRAIN, episode=f"e{n}", step=turn)) for n in range(400) for turn in (0, 1)]

    def share(progress: float) -> float:
        moved = at_progress(mixed, progress)
        texts = [page[0].text for page in asyncio.run(moved.search(queries, 1))]
        assert texts[::2] == texts[1::2]  # both turns of an episode
        return texts.count("real") / len(texts)

    assert (share(0.0), share(1.0)) == (0.0, 1.0)
    assert abs(share(0.5) - 0.5) < 0.125  # 5 standard errors
    assert mixed.info().contextual
