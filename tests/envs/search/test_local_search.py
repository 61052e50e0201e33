"""LocalSearch: grammar, budgets and observations to the byte, and the defects of earlier systems as regressions.

Numbers such as D1 are those of the list of defects found in Search-R1 and its family. D14 and D15 (ids) are in
``tests/core/test_rollout.py``, D17 (chat template) in ``tests/core/test_chat.py``.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from agentenv.core.chat import InlineFormat
from agentenv.core.rollout import EpisodeSpec, RolloutConfig, rollout
from agentenv.core.types import (
    Document,
    EndReason,
    Passage,
    Query,
    RetrieverInfo,
    StateCapability,
    Task,
    ToolStatus,
)
from agentenv.data.world import FictionalWorld, WorldConfig
from agentenv.envs.search.local_search import PROMPT, STOP, LocalSearch, as_turns
from agentenv.envs.search.page_format import as_question
from agentenv.envs.search.search_env import CORRECTION
from agentenv.errors import ConfigurationError, DatasetError, EnvFault, UnknownName
from agentenv.policies.scripted import ScriptedPolicy
from agentenv.retrievers.fakes import FaultyRetriever, InMemoryRetriever

DOCUMENTS = (
    Document("d1", "Ada Lovelace", "Ada Lovelace wrote programs in London."),
    Document("d2", "London", "London lies on the Thames."),
    Document("d3", "Beijing", "Beijing is a capital."),
)
TASK = Task("q1", "Where did Ada work", ("London",))
CHINA = Task("q2", "Which capital?", ("Beijing",))


def search(env: LocalSearch, *queries: str) -> Any:
    return env.step("<search>" + "\n".join(queries) + "</search>")


def begun(task: Task = TASK, **kwargs: Any) -> LocalSearch:
    settings: dict[str, Any] = {"tasks": (task,), "retriever": InMemoryRetriever(DOCUMENTS)} | kwargs
    env = LocalSearch(**settings)
    env.reset(seed=0)
    return env


def test_the_opening_is_one_message_with_the_question_and_its_mark() -> None:
    env = begun()
    opening, info = env.reset(seed=0)
    assert [message.role for message in opening] == ["user"]
    assert opening[0].text == PROMPT.replace("{question}", "Where did Ada work?")
    assert opening[0].text.endswith("Question: Where did Ada work?\n")
    assert "<answer> Beijing </answer>" in opening[0].text
    assert info == {"task_id": "q1"}


@pytest.mark.parametrize(
    ("text", "wanted"), [(" Who ", "Who?"), ("Who?", "Who?"), ("Who? ", "Who?"), ("{x}", "{x}?")]
)
def test_a_question_ends_with_its_mark(text: str, wanted: str) -> None:
    assert as_question(text) == wanted


def test_an_observation_to_the_byte() -> None:
    step = search(begun(k=2), "Ada in London")
    assert [message.role for message in step.observation] == ["tool"]
    assert step.observation[0].text == (
        "\n\n<information>Doc 1(Title: Ada Lovelace) Ada Lovelace wrote programs in London.\n"
        "Doc 2(Title: London) London lies on the Thames.</information>\n\n"
    )
    (result,) = step.info["tool_results"]
    assert (result.name, result.status, dict(result.data)) == (
        "search",
        ToolStatus.OK,
        {"ids": [["d1", "d2"]]},
    )
    assert (step.reward, step.info["valid"]) == (0.0, True)


@pytest.mark.parametrize(
    "text", ["", "I think it is London.", "<search></search>", "<search>London", "</answer>"]
)
def test_what_is_no_action_gets_the_correction_and_costs_a_turn(text: str) -> None:
    env = begun(max_turns=1)
    step = env.step(text)
    assert step.observation[0].text == CORRECTION
    assert CORRECTION[0] == CORRECTION[-1] == "\n"
    assert step.info["valid"] is False
    assert step.info["tool_results"][0].status is ToolStatus.FORMAT_ERROR
    assert (step.reward, step.terminated, step.truncated) == (0.0, False, False)
    assert env.step("still nothing").truncated


@pytest.mark.parametrize("response", ["", "no answer here", "<answer>"])
def test_d1_an_empty_response_has_no_answer_even_if_the_prompt_s_example_is_right(response: str) -> None:
    env = begun(CHINA, max_turns=0)
    step = env.step(response)
    assert (step.reward, step.info["answer"]) == (0.0, None)
    assert env.state.answer is None


@pytest.mark.parametrize(
    ("response", "reward", "over"),
    [
        ("<answer>London</answer><search>Ada</search>", 1.0, True),
        ("<search>Ada</search><answer>London</answer>", 0.0, False),
        ("<search>Ada <answer>London</answer>", 1.0, True),
        ("<answer>Paris</answer><answer>London</answer>", 0.0, True),
        ("<answer>Paris<answer>London</answer>", 1.0, True),
    ],
)
def test_d2_the_earliest_complete_block_decides(response: str, reward: float, over: bool) -> None:
    step = begun().step(response)
    assert (step.reward, step.terminated) == (reward, over)


def test_d2_the_engine_stops_where_the_environment_stops_reading() -> None:
    policy = ScriptedPolicy({"e-0": ["<answer>London</answer><search>Ada</search>"]})
    spec = EpisodeSpec(begun(), TASK, 0)
    chat = InlineFormat(policy.tokenizer)
    config = RolloutConfig(context_tokens=4096, turn_tokens=500, stop=STOP)
    (t,) = asyncio.run(rollout([spec], policy, chat, config, name="e"))
    assert policy.tokenizer.decode(t.ids[t.loss_mask].tolist()) == "<answer>London</answer>"


def test_d5_tasks_of_merged_sets_may_share_an_id() -> None:
    tasks = (Task("0", "Where did Ada work?", ("London",)), Task("0", "Which capital?", ("Beijing",)))
    specs = [EpisodeSpec(begun(), task, i, f"group-{i}") for i, task in enumerate(tasks)]
    policy = ScriptedPolicy({f"e-{i}": ["<answer>Beijing</answer>"] for i in range(2)})
    chat = InlineFormat(policy.tokenizer)
    played = asyncio.run(
        rollout(specs, policy, chat, RolloutConfig(context_tokens=4096, turn_tokens=500), name="e")
    )
    assert [t.reward for t in played] == [0.0, 1.0]
    assert len({t.id for t in played}) == len({t.group_id for t in played}) == 2


@pytest.mark.parametrize("count", [lambda text: len(text.split()), len])
@pytest.mark.parametrize("limit", [40, 60, 100])
def test_d6_a_cut_observation_keeps_both_tags_and_the_bound(count: Callable[[str], int], limit: int) -> None:
    documents = [Document(f"d{i}", f"Title {i}", "London " + "word " * 50) for i in range(5)]
    env = begun(retriever=InMemoryRetriever(documents), k=5, observation_tokens=limit, count_tokens=count)
    text = search(env, "London").observation[0].text
    assert text.startswith("\n\n<information>Doc")
    assert text.endswith("</information>\n\n")
    assert count(text) <= limit
    assert limit - count(text) < 10, "no more is cut than one word"


def test_d6_a_short_observation_is_not_cut() -> None:
    env = begun(observation_tokens=500)
    assert "Thames." in search(env, "Thames").observation[0].text


def test_the_turn_budget_leaves_one_last_answer() -> None:
    env = begun(max_turns=2)
    for _ in range(2):
        step = search(env, "Ada")
        assert (step.terminated, step.truncated) == (False, False)
    step = env.step("<answer>London</answer>")
    assert (step.reward, step.info["turn"], step.info["end_reason"]) == (1.0, 3, EndReason.ANSWERED)


def test_a_search_in_the_last_turn_ends_the_episode_unanswered() -> None:
    env = begun(max_turns=1)
    search(env, "Ada")
    step = search(env, "London")
    assert (step.truncated, step.terminated, step.reward) == (True, False, 0.0)
    assert (step.info["end_reason"], step.info["answer"]) == (EndReason.TURN_LIMIT, None)
    assert step.info["valid"] is False
    assert len(env.state.retrieved) == 1, "the search is disabled"


class Recorder:
    """Notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[Sequence[Query | str]] = []
        self.inner = InMemoryRetriever(DOCUMENTS)

    async def search(self, queries: Sequence[Query | str], k: int) -> list[list[Passage]]:
        self.asked.append(queries)
        return await self.inner.search(queries, k)

    def info(self) -> RetrieverInfo:
        return self.inner.info()


def test_several_queries_of_one_turn_run_together_and_share_no_passage() -> None:
    recorder = Recorder()
    env = begun(retriever=recorder, k=2)
    step = search(env, "Ada London", " ", "London Thames")
    assert len(recorder.asked) == 1
    assert [query.text for query in recorder.asked[0] if isinstance(query, Query)] == [
        "Ada London",
        "London Thames",
    ]
    text = step.observation[0].text
    assert text.count("(Title: London)") == text.count("(Title: Ada Lovelace)") == 1
    assert text.index("Doc 1(") < text.index("Doc 2(")
    assert step.info["tool_results"][0].data["ids"] == [["d1", "d2"], ["d2", "d1"]]
    assert env.state.retrieved == [["d1", "d2"], ["d2", "d1"]]


def test_queries_carry_the_context_of_their_episode() -> None:
    recorder = Recorder()
    env = begun(retriever=recorder)
    search(env, "Ada")
    search(env, "London")
    first, second = (asked[0] for asked in recorder.asked)
    assert isinstance(first, Query)
    assert isinstance(second, Query)
    assert first.context is not None
    assert second.context is not None
    assert (first.context.question, first.context.answers) == (TASK.question, TASK.answers)
    assert (first.context.step, second.context.step) == (0, 1)
    assert first.context.episode == second.context.episode


def test_read_shows_a_found_passage_whole() -> None:
    env = begun(snippet_words=3)
    assert "Ada Lovelace wrote\n" in search(env, "Ada wrote programs London").observation[0].text
    step = env.step("<read> Ada Lovelace </read>")
    assert "Ada Lovelace wrote programs in London." in step.observation[0].text
    assert step.info["tool_results"][0].data == {"ids": [["d1"]]}
    assert step.info["valid"] is True


def test_read_of_what_was_never_found_is_a_mistake() -> None:
    step = begun().step("<read>London</read>")
    assert step.observation[0].text == (
        "\n\n<information>No document titled 'London' was found so far.</information>\n\n"
    )
    (result,) = step.info["tool_results"]
    assert (result.status, result.error_class) == (ToolStatus.ERROR, "UnknownTitle")
    assert step.info["valid"] is False


def test_nothing_found_is_said_without_a_fault() -> None:
    step = search(begun(), "xyzzy")
    assert step.observation[0].text == "\n\n<information></information>\n\n"
    assert step.info["tool_results"][0].status is ToolStatus.OK


def test_a_fault_of_the_retriever_is_ours_and_changes_nothing() -> None:
    env = begun(retriever=FaultyRetriever(InMemoryRetriever(DOCUMENTS), fail_on={0}))
    with pytest.raises(EnvFault):
        search(env, "Ada")
    assert env.state.turns == 0
    assert search(env, "Ada").info["turn"] == 1


def test_a_fault_of_the_retriever_makes_the_sample_invalid() -> None:
    env = begun(retriever=FaultyRetriever(InMemoryRetriever(DOCUMENTS), fail_on={0}))
    policy = ScriptedPolicy({"e-0": ["<search>Ada</search>", "<answer>London</answer>"]})
    chat = InlineFormat(policy.tokenizer)
    (t,) = asyncio.run(
        rollout(
            [EpisodeSpec(env, TASK, 0)],
            policy,
            chat,
            RolloutConfig(context_tokens=4096, turn_tokens=500),
            name="e",
        )
    )
    assert (t.valid, t.end_reason, t.reward) == (False, EndReason.ENV_FAULT, 0.0)
    assert t.error.startswith("RetrieverFault")


def test_time_travel_goes_through_searches() -> None:
    env = begun()
    assert env.capability is StateCapability.MEMORY
    snapshot = env.snapshot()
    key = env.anchor_key()
    search(env, "Ada")
    assert env.anchor_key() != key
    env.restore(snapshot)
    assert env.anchor_key() == key
    assert env.step("<read>Ada Lovelace</read>").info["valid"] is False


def test_the_turn_that_shows_an_answer_first_may_have_a_reward() -> None:
    env = begun(k=1, found_reward=0.5)
    first = env.snapshot()
    turns = [search(env, "Beijing"), search(env, "Thames"), search(env, "Thames")]
    assert [step.reward for step in turns] == [0.0, 0.5, 0.0]
    assert env.step("<answer>London</answer>").reward == 1.0
    env.restore(first)
    assert search(env, "Thames").reward == 0.5
    assert search(begun(k=1), "Thames").reward == 0.0


def test_the_anchor_is_what_was_seen_and_not_how_it_was_asked() -> None:
    one, other, apart = begun(k=1), begun(k=1), begun(k=1)
    search(one, "Ada wrote")
    search(one, "Thames")
    search(other, "on the Thames")
    search(other, "Ada programs")
    search(apart, "Beijing")
    assert one.anchor_key() == other.anchor_key() != apart.anchor_key()


def test_a_task_without_answers_is_refused() -> None:
    with pytest.raises(DatasetError, match="'q3'"):
        begun(Task("q3", "Who?"))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"prompt": "Answer!"}, "{question}"),
        ({"k": 0}, "k=0"),
        ({"max_turns": -1}, "max_turns=-1"),
        ({"observation_tokens": 0}, "observation_tokens=0"),
        ({"retriever": "faise:here"}, "'faiss'"),
        ({"scorer": "em_squat"}, "'em_squad'"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises((ConfigurationError, UnknownName), match=words):
        begun(**settings)


def test_the_expert_scores_full_on_every_question_of_a_world() -> None:
    world = FictionalWorld.generate(WorldConfig(documents=200, questions=20))
    retriever = InMemoryRetriever(world.documents)
    for task in world.questions:
        env = LocalSearch(tasks=world.questions, retriever=retriever, max_turns=8)
        env.reset(seed=0, options={"task": task})
        step = [env.step(action) for action in env.expert() or ()][-1]
        assert (step.reward, step.terminated) == (1.0, True), task.question


def test_the_seed_draws_the_task_and_stands_in_the_context_of_queries() -> None:
    recorder = Recorder()
    env = LocalSearch(tasks=(TASK, CHINA), retriever=recorder)
    drawn = {env.reset(seed=seed)[1]["task_id"] for seed in range(12)}
    assert drawn == {"q1", "q2"}
    episodes = set()
    for seed in (3, 4):
        env.reset(seed=seed, options={"task": Task("q", "Who?", ("Ada",), "dev")})
        search(env, "Ada")
        asked = recorder.asked[-1][0]
        assert isinstance(asked, Query)
        assert asked.context is not None
        assert (asked.context.split, asked.context.seed) == ("dev", seed)
        episodes.add(asked.context.episode)
    assert len(episodes) == 2


def test_a_turn_asks_no_more_queries_than_it_may() -> None:
    recorder = Recorder()
    env = begun(retriever=recorder, queries=1)
    search(env, "Ada", "London")
    assert [len(asked) for asked in recorder.asked] == [1]
    assert env.state.queries == ["Ada"]
    with pytest.raises(ConfigurationError, match="queries=0"):
        begun(queries=0)


def test_what_was_found_before_can_still_be_read() -> None:
    env = begun(k=1)
    search(env, "Ada wrote")
    search(env, "Beijing")
    assert env.step("<read>Ada Lovelace</read>").info["valid"]
    assert len(env.state.pages) == 3


def test_only_an_action_that_is_none_counts_as_a_mistake_of_form() -> None:
    env = begun(found_reward=0.5)
    env.step("nothing")
    step = env.step("<read>London</read>")  # never found, and the page that says so names the answer
    assert (env.state.mistakes, env.state.turns, step.reward) == (1, 2, 0.0)
    last = env.step("<answer>Rome</answer>")
    assert (last.info["answer"], env.state.answer) == ("Rome", "Rome")


def test_the_anchor_is_of_one_question() -> None:
    env, other = begun(k=1), begun(Task("q9", "Where?", ("London",)), k=1)
    search(env, "Thames")
    search(other, "Thames")
    assert env.anchor_key() != other.anchor_key()


def test_the_expert_searches_in_as_many_turns_as_there_are() -> None:
    path = tuple({"query": query, "answer": "-"} for query in ("Ada", "London", "Thames"))
    task = Task("q", "Who?", ("Ada",), data={"path": path})
    assert len(begun(task, max_turns=2).expert() or ()) == 3
    assert (begun(task, max_turns=2, queries=8).expert() or ())[
        0
    ] == "<search> Ada\n London\n Thames </search>"


def test_the_expert_needs_every_supporting_document_on_its_pages() -> None:
    """Two passages of one document share a title: each has to be shown, whole."""
    parts = (Document("a", "Ada", "Ada wrote."), Document("b", "Ada", "Ada lived."), DOCUMENTS[2])
    task = Task("q", "Who?", ("Ada",), data={"supporting_ids": ("a", "b")})
    env = begun(task, retriever=InMemoryRetriever(parts), k=1)
    search(env, "Ada wrote")
    assert env.expert_gives_up() == "<answer></answer>"
    search(env, "Ada lived")
    assert env.expert_gives_up() is None
    short = begun(task, retriever=InMemoryRetriever(parts), k=2, snippet_words=1)
    search(short, "Ada wrote lived")
    assert short.expert_gives_up() is None  # as whole as this environment shows a passage


def test_without_supporting_documents_yes_and_no_alone_need_no_page_that_holds_them() -> None:
    for answers, query, knows in (
        (("yes",), "Thames", True),
        (("yes",), "xyzzy", False),
        (("no", "Oslo"), "Thames", False),
    ):
        env = begun(Task("q", "Is it?", answers))
        search(env, query)
        assert (env.expert_gives_up() is None) is knows


def test_what_was_asked_and_found_adds_up_over_turns() -> None:
    env = begun(k=1)
    search(env, "Ada wrote")
    search(env, "Beijing")
    assert env.state.queries == ["Ada wrote", "Beijing"]
    assert env.state.retrieved == [["d1"], ["d3"]]


def test_an_answer_that_was_shown_before_is_not_found_again() -> None:
    env = begun(k=1, found_reward=0.5)
    assert [search(env, query).reward for query in ("Thames", "Beijing", "Thames")] == [0.5, 0.0, 0.0]


def test_the_expert_asks_one_query_a_turn_where_nothing_else_is_said() -> None:
    path = tuple({"query": query, "answer": "-"} for query in ("Ada", "London"))
    env = begun(Task("q", "Who?", ("Ada",), data={"path": path}))
    assert env.expert() == ("<search> Ada </search>", "<search> London </search>", "<answer> Ada </answer>")
    assert env.expert_gives_up() == "<answer></answer>"  # it has a path and has shown nothing yet
    with pytest.raises(ConfigurationError, match="'q1'"):
        begun().expert_gives_up()  # no path, and nothing was searched


def test_a_supporting_document_that_was_cut_away_was_not_shown() -> None:
    task = Task("q", "Who?", ("Ada",), data={"supporting_ids": ("d2",)})
    for room, given in ((500, None), (4, "<answer></answer>")):
        env = begun(task, k=1, observation_tokens=room)
        search(env, "Thames")
        assert env.state.retrieved == [["d2"]]
        assert env.expert_gives_up() == given


def test_the_small_world_fills_what_is_not_given() -> None:
    recorder = Recorder()
    assert LocalSearch(tasks=(TASK,)).held_tasks() == (TASK,)
    env = LocalSearch(retriever=recorder)
    assert len(env.held_tasks()) == 50
    env.reset(seed=0)
    search(env, "Ada")
    assert len(recorder.asked) == 1


def test_queries_that_wait_for_no_answer_go_together() -> None:
    hops = [
        {"query": "Halvik year", "answer": "1200"},
        {"query": "Ketterby year", "answer": "1300"},
        {"query": "1300 events", "answer": "a fair"},
        {"query": "Rome"},
    ]
    assert as_turns(hops, 1) == [["Halvik year"], ["Ketterby year"], ["1300 events"], ["Rome"]]
    assert as_turns(hops, 8) == [["Halvik year", "Ketterby year"], ["1300 events", "Rome"]]
    assert as_turns((), 8) == []


def test_a_query_that_was_asked_before_is_answered_with_a_notice_and_not_searched() -> None:
    env = begun(repeat_notice=True)
    first = search(env, "London")
    step = search(env, "  london ", "Beijing", "beijing")
    (result,) = step.info["tool_results"]
    assert [ranked[0] for ranked in result.data["ids"]] == ["d3"]
    page = step.observation[0].text
    assert "Query 1(repeated)" in page
    assert "Query 2" not in page
    assert "Query 3(repeated)" in page
    assert "Doc 1(Title: Beijing)" in page
    again = search(env, "London")
    assert "Doc 1" in first.observation[0].text
    assert "Doc 1" not in again.observation[0].text
    assert again.info["tool_results"][0].data["ids"] == []
    assert env.state.lookups == 2


def test_without_the_notice_a_repeated_query_is_searched_again() -> None:
    env = begun()
    assert search(env, "London").observation == search(env, "London").observation


PARTS = [
    Document("p1", "Oslo", "Oslo lies in Norway."),
    Document("p2", "Oslo", "Its mayor is Ada Stone."),
]


def test_parts_of_a_document_are_kept_apart_although_they_share_a_title() -> None:
    """Of two passages of one title only the one that was found last was known: it was read, and the other was not."""
    env = begun(retriever=InMemoryRetriever(PARTS), k=1)
    first = search(env, "Oslo Norway")
    one = env.anchor_key()
    assert "Norway" in first.observation[0].text
    search(env, "Oslo mayor Ada")
    read = env.step("<read>Oslo</read>")
    assert read.observation[0].text.strip() == (
        "<information>Doc 1(Title: Oslo) Oslo lies in Norway.\nDoc 2(Title: Oslo) Its mayor is Ada Stone.</information>"
    )
    assert read.info["tool_results"][0].data["ids"] == [["p1", "p2"]]
    assert env.state.lookups == 3
    other = begun(retriever=InMemoryRetriever(PARTS), k=1)
    search(other, "Oslo mayor Ada")
    assert env.anchor_key() not in (one, other.anchor_key())
