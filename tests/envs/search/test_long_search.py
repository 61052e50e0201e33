"""Long search: pages part by part, and an episode of forty turns as one row of tokens."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from agentenv.core.chat import InlineFormat
from agentenv.core.rollout import EpisodeSpec, RolloutConfig, rollout
from agentenv.core.types import Completion, Document, EndReason, Message, Sampling, Step, Task, ToolStatus
from agentenv.envs.search.long_search import (
    CERTAIN,
    DOUBTFUL,
    FORCED,
    LongSearch,
    doubts_question,
    is_certain,
    is_well_formed,
)
from agentenv.envs.search.page_history import CUT, SHORTENED, last_chars, short_form
from agentenv.envs.search.page_reading import GO_ON
from agentenv.errors import ConfigurationError, UnknownName
from agentenv.policies.scripted import ScriptedPolicy
from agentenv.retrievers.fakes import FaultyRetriever, InMemoryRetriever

TEXT = "".join(f"{n:04d}" for n in range(25))  # 100 characters
DOCUMENTS = [Document("d0", "Halvik", TEXT), Document("d1", "Ketterby", "a lighthouse")]
TASK = Task("q", "Where is Halvik?", ("Norland",))


def begun(**options: Any) -> LongSearch:
    given: dict[str, Any] = {"tasks": [TASK], "retriever": InMemoryRetriever(DOCUMENTS)} | options
    env = LongSearch(**given)
    env.reset(seed=0)
    return env


def shown(step: Step) -> str:
    return step.observation[0].text.strip().removeprefix("<information>").removesuffix("</information>")


def test_a_search_shows_addresses() -> None:
    assert shown(begun().step("<search>lighthouse</search>")) == "[Doc 1](d1): Ketterby. a lighthouse"


def test_a_page_is_read_part_by_part_and_ends() -> None:
    env = begun(part_chars=60)
    page = f"Halvik\n{TEXT}"
    first, second, third = (env.step("<access>d0</access>") for _ in range(3))
    assert shown(first) == f"Part 1 of 2 of d0:\n{page[:60]}"
    assert shown(second) == f"Part 2 of 2 of d0:\n{page[60:]}"
    assert shown(third) == "Every part was shown of the page at 'd0'."
    assert [s.info["tool_results"][0].status for s in (first, third)] == [ToolStatus.OK, ToolStatus.ERROR]
    assert shown(env.step("<access>https://wiki.example/wiki/Ketterby</access>")).endswith(
        "Ketterby\na lighthouse"
    )
    assert shown(env.step("<access>nowhere</access>")) == "There is no page at 'nowhere'."


def test_a_part_that_an_observation_cannot_hold_goes_on_in_the_next_one() -> None:
    """Of 60 characters 31 are the frame's and 21 at most the head's, so a part has two words of three letters."""
    words = "one two six ten"
    env = begun(
        retriever=InMemoryRetriever([Document("d0", "Box", words)]), observation_tokens=60, count_tokens=len
    )
    parts = [shown(env.step("<access>d0</access>")) for _ in range(4)]
    texts = [part.partition("\n")[2] for part in parts if part.startswith("Part ")]
    assert texts == ["Box\none", "two six", "ten"]
    assert parts[len(texts)].startswith("Every part was shown")


def test_no_more_parts_than_allowed() -> None:
    env = begun(part_chars=10, parts=2)
    assert [shown(env.step("<access>d0</access>"))[:11] for _ in range(3)] == [
        "Part 1 of 2",
        "Part 2 of 2",
        "Every part ",
    ]


def test_without_the_corpus_a_page_is_what_searches_have_shown() -> None:
    env = begun(retriever=FaultyRetriever(InMemoryRetriever(DOCUMENTS), fail_on=()))
    assert shown(env.step("<access>d1</access>")) == "There is no page at 'd1'."
    env.step("<search>lighthouse</search>")
    assert shown(env.step("<access>d1</access>")) == "Part 1 of 1 of d1:\na lighthouse"


def test_a_page_comes_from_the_server_that_is_searched() -> None:
    for module in ("fastapi", "orjson", "prometheus_client"):
        pytest.importorskip(module, reason=f"{module} is not installed")
    import httpx

    from agentenv.retrievers.remote import RemoteRetriever
    from agentenv.retrievers.service.app import make_app
    from agentenv.retrievers.service.service import Service, ServiceLimits

    service = Service(ServiceLimits())
    service.open({"corpus": InMemoryRetriever(DOCUMENTS)})
    env = begun(retriever=RemoteRetriever("http://test", transport=httpx.ASGITransport(make_app(service))))
    assert shown(env.step("<access>d1</access>")) == "Part 1 of 1 of d1:\nKetterby\na lighthouse"
    assert shown(env.step("<access>d7</access>")) == "There is no page at 'd7'."


def test_time_travel_takes_reading_back() -> None:
    env = begun(part_chars=60)
    snapshot = env.snapshot()
    env.step("<access>d0</access>")
    env.restore(snapshot)
    assert shown(env.step("<access>d0</access>")).startswith("Part 1 of 2")


def test_forty_turns_are_one_row_in_which_only_actions_are_trained() -> None:
    """Each prompt extends the one before, so the samples of all turns merge into one sequence."""
    env = begun(part_chars=10, max_turns=50)
    actions = ["<search>Halvik</search>", "<access>d0</access>"] * 20 + ["<answer>Norland</answer>"]
    policy = ScriptedPolicy({"e-0": actions})
    config = RolloutConfig(context_tokens=1 << 17, turn_tokens=99, stop=LongSearch.stop)
    (played,) = asyncio.run(
        rollout([EpisodeSpec(env, TASK, 0)], policy, InlineFormat(policy.tokenizer), config, name="e")
    )
    assert (played.reward, played.end_reason, len(played.turns)) == (1.0, EndReason.ANSWERED, 41)
    assert len(played.row_slices) == 1
    assert policy.tokenizer.decode([int(i) for i in played.ids[played.loss_mask]]) == "".join(actions)


def test_the_token_budget_ends_a_long_episode() -> None:
    env = begun()
    policy = ScriptedPolicy({"e-0": ["<search>Halvik</search>"] * 60})
    config = RolloutConfig(context_tokens=3000, turn_tokens=99, stop=LongSearch.stop)
    (played,) = asyncio.run(
        rollout([EpisodeSpec(env, TASK, 0)], policy, InlineFormat(policy.tokenizer), config, name="e")
    )
    assert played.end_reason is EndReason.TOKEN_LIMIT
    assert len(played.ids) <= 3000


def test_the_short_form_of_a_page_by_hand() -> None:
    """Its heading and the first three of six characters; what is not longer stays as it is."""
    page = "\n\n<information>Part 1 of 2 of d0:\nabcdef</information>\n\n"
    assert short_form(page, 3) == "\n\n<information>Part 1 of 2 of d0:\nabc ...</information>\n\n"
    assert short_form(page, 6) == page


def test_a_page_is_seen_whole_once_and_then_by_its_beginning() -> None:
    """Only what comes after the turn that reads it is shortened; searches stay whole."""
    env = begun(kept_chars=12)
    search, read = env.step("<search>Ketterby</search>"), env.step("<access>d0</access>")
    assert shown(read) == f"Part 1 of 1 of d0:\nHalvik\n{TEXT}"
    context = env.step("<think>noted</think><access>d1</access>").observation
    assert [(message.role, message.text) for message in context] == [
        ("system", SHORTENED),
        ("user", env.parts.opening(TASK)),
        ("assistant", "<search>Ketterby</search>"),
        ("tool", search.observation[0].text),
        ("assistant", "<access>d0</access>"),
        ("tool", "\n\n<information>Part 1 of 1 of d0:\nHalvik\n00000 ...</information>\n\n"),
        ("assistant", "<think>noted</think><access>d1</access>"),
        ("tool", "\n\n<information>Part 1 of 1 of d1:\nKetterby\na lighthouse</information>\n\n"),
    ]
    assert len(env.step("what?").observation) == 10  # the page at d1 had 21 characters


def test_a_page_that_is_short_opens_no_context() -> None:
    env = begun(kept_chars=100)
    env.step("<access>d1</access>")
    assert len(env.step("<search>Halvik</search>").observation) == 1


def test_a_turn_is_trained_in_the_context_in_which_it_was_sampled() -> None:
    """Each shortened context is a row; what the policy wrote before is prompt there, so every turn is trained once."""
    env = begun(kept_chars=10, max_turns=50, k=1)
    actions = [
        "<access>d0</access>",
        "<search>lighthouse</search>",
        "<access>d1</access>",
        "<answer>Norland</answer>",
    ]
    policy = ScriptedPolicy({"e-0": actions})
    config = RolloutConfig(context_tokens=1 << 14, turn_tokens=99, stop=LongSearch.stop)
    (played,) = asyncio.run(
        rollout([EpisodeSpec(env, TASK, 0)], policy, InlineFormat(policy.tokenizer), config, name="e")
    )
    text = policy.tokenizer.decode
    first, second = (text(played.ids[row].tolist()) for row in played.row_slices)
    assert (TEXT in first, TEXT in second) == (True, False)
    assert played.reward == 1.0
    assert text([int(i) for i in played.ids[played.loss_mask]]) == "".join(actions)


def test_time_travel_takes_a_shortened_context_back() -> None:
    env = begun(kept_chars=10)
    env.step("<access>d0</access>")
    snapshot = env.snapshot()
    (twin,) = env.fork()
    whole = env.step("<search>Halvik</search>").observation
    env.restore(snapshot)
    assert env.step("<search>Halvik</search>").observation == whole
    assert twin.step("<search>Halvik</search>").observation == whole


def test_a_model_that_calls_tools_in_its_own_form_is_refused() -> None:
    env = begun(kept_chars=10)
    env.native = True
    with pytest.raises(ConfigurationError, match="kept_chars=10"):
        env.reset(seed=0)


def reading(**options: Any) -> LongSearch:
    """The page at d0 has three parts, of 40, 40 and 27 characters."""
    return begun(reads_on=True, k=1, part_chars=40, **options)


def test_the_parts_of_a_page_follow_each_other_each_to_a_thought_of_its_own() -> None:
    """After the last part, and after a search, the policy is told to act; it may act in place of a thought at any time."""
    env = reading()
    assert env.turn_stop(("</search>",)) == ("</search>",)  # the first turn follows no result
    env.step("<think>where?</think><search>Halvik</search>")
    assert env.turn_stop(("</search>",)) == ("</search>", "</think>")
    assert env.step("<think>there</think>").observation[0].text == GO_ON
    assert env.turn_stop(("</search>",)) == ("</search>",)
    parts = [shown(env.step("<access>d0</access>"))]
    for _ in range(2):
        parts.append(shown(env.step("<think>noted</think>")))
    assert [part.partition(":")[0] for part in parts] == [f"Part {n} of 3 of d0" for n in (1, 2, 3)]
    assert env.step("<think>all read</think>").observation[0].text == GO_ON
    assert env.step("<think>so</think><answer>Norland</answer>").reward == 1


@pytest.mark.parametrize(
    "options", [{"max_turns": 1}, {"force_turns": 1}, {"force_documents": 1}], ids=lambda one: next(iter(one))
)
def test_where_only_an_answer_is_taken_it_follows_the_thought_of_a_result(options: dict[str, int]) -> None:
    """Cut off behind its thought, the turn would hold no answer, and there is no other turn for one."""
    env = reading(**options)
    env.step("<think>where?</think><search>Halvik</search>")
    assert env.turn_stop(("</search>",)) == ("</search>",)
    assert env.step("<think>there</think><answer>Norland</answer>").reward == 1


@pytest.mark.parametrize("ends", [True, False])
def test_a_thought_that_follows_no_result_is_no_action(ends: bool) -> None:
    env = reading(ends_without_action=ends)
    step = env.step("<think>hm</think>")
    assert (step.terminated, step.info["valid"]) == (ends, False)
    if not ends:
        env.step("<search>Halvik</search>")
        env.step("<think>there</think>")
        assert env.step("<think>again</think>").info["valid"] is False
        assert env.step("<think>x</think><search></search>").info["valid"] is False


def test_a_part_is_shortened_after_the_thought_that_has_read_it() -> None:
    """As published: the thought on the first part sees it whole, the thought on the second one its beginning alone."""
    env = reading(kept_chars=3)
    first = shown(env.step("<access>d0</access>"))
    context = [message.text for message in env.step("<think>noted</think>").observation]
    assert context[2:4] == [
        "<access>d0</access>",
        f"\n\n<information>Part 1 of 3 of d0:\n{first.partition(chr(10))[2][:3]} ...</information>\n\n",
    ]
    assert context[4] == "<think>noted</think>"
    assert "Part 2 of 3 of d0" in context[5]
    assert len(context) == 6


def test_a_rollout_stops_at_the_thought_after_a_result_and_trains_every_turn() -> None:
    stops: list[bool] = []

    class Noting(ScriptedPolicy):
        async def generate(
            self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
        ) -> Completion:
            stops.append("</think>" in sampling.stop)
            return await super().generate(prompt_ids, sampling, episode=episode)

    actions = [
        "<think>look</think><access>d0</access>",
        "<think>one</think>",
        "<think>two</think>",
        "<think>three</think>",
        "<answer>Norland</answer>",
    ]
    policy = Noting({"e-0": actions})
    config = RolloutConfig(context_tokens=1 << 14, turn_tokens=99, stop=LongSearch.stop)
    (played,) = asyncio.run(
        rollout(
            [EpisodeSpec(reading(kept_chars=5), TASK, 0)],
            policy,
            InlineFormat(policy.tokenizer),
            config,
            name="e",
        )
    )
    assert stops == [False, True, True, True, False]
    assert played.reward == 1.0
    assert policy.tokenizer.decode([int(i) for i in played.ids[played.loss_mask]]) == "".join(actions)


def test_reading_on_is_refused_to_a_model_that_calls_tools_in_its_own_form() -> None:
    env = reading()
    env.native = True
    with pytest.raises(ConfigurationError, match="reads_on"):
        env.reset(seed=0)


def test_the_end_of_the_history_is_kept_with_the_latest_page_whole() -> None:
    """The second action has 28 characters, so that of the page before it the last 32 stay."""
    env = begun(k=1, history_chars=60)
    first = env.step("<search>lighthouse</search>").observation[0].text
    context = env.step("<search>Halvik yes!</search>").observation
    action = "<search>Halvik yes!</search>"
    assert [message.role for message in context] == ["system", "user", "tool", "assistant", "tool"]
    assert context[0].text == CUT
    assert context[2].text == first[-(60 - len(action)) :]
    assert context[3].text == action
    assert TEXT in context[4].text


def test_a_history_that_is_short_enough_opens_no_context() -> None:
    env = begun(k=1, history_chars=1000)
    assert len(env.step("<search>Halvik</search>").observation) == 1
    assert len(env.step("<search>Ketterby</search>").observation) == 1


@pytest.mark.parametrize(
    ("chars", "kept"),
    [(9, ["aaa", "bbb", "ccc"]), (7, ["a", "bbb", "ccc"]), (6, ["bbb", "ccc"]), (2, ["cc"])],
)
def test_the_last_characters_of_messages(chars: int, kept: list[str]) -> None:
    messages = [Message("tool", text) for text in ("aaa", "bbb", "ccc")]
    assert [message.text for message in last_chars(messages, chars)] == kept


def test_bounds_below_one_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="kept_chars=0"):
        LongSearch(kept_chars=0)
    with pytest.raises(ConfigurationError, match="history_chars=0"):
        LongSearch(history_chars=0)
    with pytest.raises(ConfigurationError, match="part_chars=0"):
        LongSearch(part_chars=0)
    with pytest.raises(ConfigurationError, match="force_turns=0"):
        LongSearch(force_turns=0)


def test_the_expert_opens_what_the_search_did_not_show() -> None:
    path = [
        {"query": "Halvik", "answer": "0012", "document": "d0"},
        {"query": "Ketterby", "answer": "a lighthouse", "document": "d1"},
    ]
    task = Task("q", "Where is Halvik?", ("a lighthouse",), data={"path": path})
    env = begun(tasks=[task], k=1, observation_tokens=90, part_chars=24, count_tokens=len)
    actions = env.expert()
    assert actions == [
        "<search> Halvik </search>",
        *["<access> d0 </access>"] * 3,
        "<search> Ketterby </search>",
        "<answer> a lighthouse </answer>",
    ]
    assert env.state.parts == {}
    assert [env.step(action).reward for action in actions][-1] == 1


def test_the_expert_stops_reading_where_two_parts_hold_the_answer_together() -> None:
    """Parts of 24 characters: ``Halvik``, a line break and 17 digits, then 24 digits, which end with ``0009`` and a ``0``.

    The search shows 38 digits of them.
    """
    path = [{"query": "Halvik", "answer": "00090010", "document": "d0"}]
    task = Task("q", "Where is Halvik?", ("00090010",), data={"path": path})
    env = begun(tasks=[task], k=1, observation_tokens=90, part_chars=24, count_tokens=len)
    assert env.expert() == [
        "<search> Halvik </search>",
        *["<access> d0 </access>"] * 3,
        "<answer> 00090010 </answer>",
    ]


def test_the_expert_neither_opens_nor_answers_what_it_was_not_shown() -> None:
    path = [{"query": "lighthouse", "answer": "0012", "document": "d0"}]
    task = Task("q", "Where is Halvik?", ("0012",), data={"path": path})
    env = begun(tasks=[task], k=1)
    assert env.expert() == ["<search> lighthouse </search>", "<answer>  </answer>"]


@pytest.mark.parametrize(
    ("actions", "well_formed"),
    [
        (["<think>a</think><search>b</search>", "<think>c</think><answer>d</answer>"], True),
        (["I do not know."], True),
        (["<search>a</search><search>b</search>"], False),
        (["<search>a</search><answer>b</answer>"], False),
        (["<search>a", "<answer>d</answer>"], False),
        (["a</access>", "<answer>d</answer>"], False),
        (["<think>a</think><think>b</think><search>c</search>"], False),
        (["<search>a</search>\nAssistant: <think>"], False),
        (["assistant", "<answer>d</answer>"], False),
    ],
)
def test_the_format_gate_by_hand(actions: list[str], well_formed: bool) -> None:
    assert is_well_formed(actions) is well_formed


@pytest.mark.parametrize(
    ("answer", "doubts"),
    [
        ("The question is invalid.", True),
        ("not APPROPRIATE", True),
        ("Validus", False),  # a substring, which the published program takes for a doubt
        ("Norland", False),
        ("Question Time", False),  # as the accepted answer says
        ("Question Time is invalid", True),
    ],
)
def test_a_doubt_is_a_word_that_no_accepted_answer_holds(answer: str, doubts: bool) -> None:
    assert doubts_question(answer, ("Question Time",)) is doubts


@pytest.mark.parametrize(
    ("options", "asked"),
    [({}, 9), ({"force_turns": 2}, 2), ({"force_documents": 2}, 2), ({"force_documents": 1}, 1)],
    ids=["never", "turns", "documents", "one document"],
)
def test_an_answer_is_asked_for_after_documents_or_turns(options: dict[str, int], asked: int) -> None:
    """Turn 1 shows d1, turn 2 reads it and d0 is shown by turn 3; each document counts once."""
    searches = ["<search>lighthouse</search>", "<search>Halvik</search>", "<search>Halvik</search>"]
    env = begun(k=1, **options)
    pages = [env.step(action) for action in searches]
    assert [FORCED in page.observation[0].text for page in pages] == [turn >= asked for turn in (1, 2, 3)]
    refused = [page.info["tool_results"][0].status is ToolStatus.ERROR for page in pages]
    assert refused == [turn > asked for turn in (1, 2, 3)]
    assert env.step("<answer>Norland</answer>").reward == 1.0


def test_a_document_that_is_searched_and_read_counts_once_and_reading_is_refused_too() -> None:
    env = begun(k=1, force_documents=2)
    env.step("<search>lighthouse</search>")
    assert FORCED not in env.step("<access>d1</access>").observation[0].text
    assert FORCED in env.step("<access>d0</access>").observation[0].text
    assert env.step("<access>d0</access>").observation[0].text == FORCED


def ended(*actions: str, **options: Any) -> float:
    env = begun(**options)
    return sum(env.step(action).reward for action in actions)


def test_the_reward_is_gated_and_a_doubt_costs_half() -> None:
    """F1 of "Norland coast" against "Norland": precision 1/2, recall 1, so 2/3."""
    answer, doubt = "<answer>Norland coast</answer>", "<answer>The question is invalid</answer>"
    assert ended("<search>Halvik</search>", answer) == pytest.approx(2 / 3)
    assert ended("<search>Halvik</search>assistant", answer) == 0.0
    assert ended("<search>Halvik</search>", doubt, certain_share=1.0) == -0.5
    assert ended("<search>Halvik</search>assistant", doubt, certain_share=1.0) == -0.5
    assert ended("<search>Halvik</search>", doubt, certain_share=0.0) == 0.0
    assert ended("<search>Halvik</search>", doubt, certain_share=1.0, prompt="{question}") == 0.0
    assert ended("<search>Halvik</search>", answer, certain_share=1.0) == pytest.approx(2 / 3)


def test_a_turn_without_an_action_ends_the_episode_as_published_or_is_corrected() -> None:
    corrected, ended_there = begun(), begun(ends_without_action=True)
    assert not corrected.step("I think of Norland.").terminated
    assert corrected.step("<answer>Norland</answer>").reward == 1.0
    step = ended_there.step("I think of Norland.")
    assert (step.terminated, step.reward, step.info["end_reason"]) == (True, 0.0, EndReason.PARSE_ERROR)
    going_on = begun(ends_without_action=True)
    assert not going_on.step("I think.<search>Halvik</search>").terminated


def test_augmented_answers_weigh_three_tenths() -> None:
    """.7 * 0 + .3 * 1, and never less than the score itself."""
    task = Task("q", "Where?", ("Norland",), data={"augmented_answers": ("the far north",)})
    assert ended("<answer>the far north</answer>", tasks=[task]) == pytest.approx(0.3)
    assert ended("<answer>Norland</answer>", tasks=[task]) == 1.0
    assert ended("what?", tasks=[task], max_turns=0) == 0.0


def test_a_share_of_the_tasks_is_said_to_have_an_answer() -> None:
    tasks = [Task(f"q-{n}", "Where?", ("Norland",)) for n in range(200)]
    certain = [is_certain(task, 0.3) for task in tasks]
    assert 40 <= sum(certain) <= 80
    assert not any(is_certain(task, 0.0) for task in tasks)
    assert all(is_certain(task, 1.0) for task in tasks)
    env = begun()
    for task, sure in zip(tasks[:20], certain, strict=False):
        for native in (False, True):
            env.native = native
            opening = env.reset(seed=0, options={"task": task})[0][0].text
            assert ((CERTAIN in opening), (DOUBTFUL in opening)) == (sure, not sure)


def test_a_share_above_one_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"certain_share=1\.5"):
        LongSearch(certain_share=1.5)


def test_the_published_rule_takes_a_substring_for_a_doubt() -> None:
    answer = "<answer>Validus</answer>"
    options: dict[str, Any] = {"certain_share": 1.0}
    assert ended("<search>Halvik</search>", answer, **options) == 0.0
    assert ended("<search>Halvik</search>", answer, doubt="substring", **options) == -0.5
    assert ended("<search>Halvik</search>", "<answer>Norland</answer>", doubt="substring", **options) == 1.0
    with pytest.raises(UnknownName, match="'word'"):
        begun(doubt="word")


def test_a_search_shows_5000_characters_of_a_document() -> None:
    long = Document("d9", "Keep", "tower " + "x" * 6000)
    env = LongSearch(tasks=[Task("q", "Where?", ("a",))], retriever=InMemoryRetriever([long]), k=1)
    env.reset(seed=0)
    shown = env.step("<search>tower</search>").observation[0].text
    assert shown.count("x") == 5000 - len("tower ")
    assert env.step("<access>d9</access>").observation[0].text.count("x") == 6000
