"""ReSeek's JUDGE: an observation that is judged useless leaves the record; what the environment knows stays."""

import asyncio

import pytest

from agentenv.core.chat import InlineFormat
from agentenv.core.rollout import EpisodeSpec, RolloutConfig
from agentenv.core.trajectory import Origin, Trajectory
from agentenv.core.types import Document, Message, MessagePart, Task
from agentenv.envs.search.judged_search import verdict_in
from agentenv.envs.search.local_search import LocalSearch
from agentenv.errors import ConfigurationError, UnknownName
from agentenv.policies.fakes import ByteTokenizer
from agentenv.policies.scripted import ScriptedPolicy
from agentenv.retrievers.fakes import InMemoryRetriever
from agentenv.trainers.strategies.judge_action import MARK, NOTE, JudgeStrategy, marked
from agentenv.trainers.strategies.rollout_context import RolloutContext
from agentenv.trainers.strategies.strategies import play_groups

TOKENIZER = ByteTokenizer()
TASK = Task("q", "Who?", ("Ada",))
PAGES = [Document("1", "Ada", "Ada was first."), Document("2", "Eve", "Eve was not.")]


def play(*script: str, room: int = 4096, **options: str) -> tuple[Trajectory, LocalSearch]:
    env = LocalSearch(tasks=[TASK], retriever=InMemoryRetriever(PAGES), k=1)
    context = RolloutContext(
        ScriptedPolicy({"e-0": script}),
        InlineFormat(TOKENIZER),
        RolloutConfig(context_tokens=room, turn_tokens=500),
        TOKENIZER.decode,
    )
    ((played,),) = asyncio.run(play_groups([[EpisodeSpec(env, TASK, 0)]], JudgeStrategy(**options), context))
    return played, env


def test_a_useless_observation_leaves_the_record_and_nothing_is_done_again() -> None:
    again = "<judge>no</judge><search>Ada</search>"
    played, env = play("<search>Eve</search>", again, "<answer>Ada</answer>")
    shown = TOKENIZER.decode([i for s in played.segments[1:] for i in s.ids])
    assert shown.startswith(f"<search>Eve</search><|im_end|>{NOTE}{again}")
    assert "Eve was not" not in shown
    assert "Ada was first" in shown
    assert [s.context_mismatch for s in played.segments if s.logprobs] == [False, True, False]
    assert played.turns[0].observation[0].text == NOTE
    assert (played.origin, played.reward, len(played.turns)) == (Origin.SPLICE, 1.0, 3)
    assert played.info["strategy"] == {"judge_dropped": 1}
    assert env.state.turns == 2
    assert {passage.title for passage in env.state.by_id.values()} == {"Eve", "Ada"}


def test_a_marked_observation_stays_in_the_record() -> None:
    """Version 3: the page is still there, with a mark behind it, and the verdict stands in a context that it has changed."""
    again = "<judge>no</judge><search>Ada</search>"
    played, _ = play("<search>Eve</search>", again, "<answer>Ada</answer>", drop="mark")
    page = "\n\n<information>Doc 1(Title: Eve) Eve was not.</information>\n\n"
    assert played.turns[0].observation[0].text == page + MARK
    shown = TOKENIZER.decode([i for s in played.segments[1:] for i in s.ids])
    assert shown.startswith(f"<search>Eve</search><|im_end|>{page}{MARK}{again}")
    assert [s.context_mismatch for s in played.segments if s.logprobs] == [False, True, False]
    assert (played.origin, played.info["strategy"]) == (Origin.SPLICE, {"judge_dropped": 1})


def test_an_observation_of_parts_is_marked_behind_the_last() -> None:
    parts = (MessagePart("image", image=b"png"), MessagePart("text", "a"))
    (message,) = marked((Message("tool", parts),))
    assert message.content == (*parts, MessagePart("text", MARK))
    assert marked(()) == (Message("tool", MARK),)


@pytest.mark.parametrize(("missing", "dropped"), [(0, 1), (1, 0), (18, 0)])
def test_without_room_for_the_mark_the_episode_stays_as_it_is(missing: int, dropped: int) -> None:
    """A context that holds the page, its mark and the turn of 18 tokens after it, or lacks some tokens for that."""
    script = ("<search>Eve</search>", "<judge>no</judge>", "<answer>Ada</answer>")
    whole, _ = play(*script, drop="mark")
    room = sum(len(segment.ids) for segment in whole.segments if segment.turn < 1) + 18 - missing
    played, _ = play(*script, drop="mark", room=room)
    assert played.info["strategy"] == {"judge_dropped": dropped}
    assert (MARK in played.turns[0].observation[0].text) == bool(dropped)
    assert len(played.ids) <= room


def test_without_a_verdict_it_is_plain_play() -> None:
    played, _ = play("<judge>no</judge><search>Eve</search>", "<answer>Eve</answer>")
    assert "Eve was not" in played.turns[0].observation[0].text
    assert not played.context_mismatch.any()
    assert (played.origin, played.info["strategy"]) == (Origin.BASE, {"judge_dropped": 0})


@pytest.mark.parametrize(
    "written",
    [
        "<judge>No</judge>",
        "<judge> no\n</judge>",
        "<judge>yes<judge>NO</judge>",
        "<judge>yes</judge>",
        "<judge>no</judge> <judge>yes</judge>",
        "<judge>yes</judge> <judge>no</judge>",
        "<judge>maybe</judge>",
        "<judge>no",
    ],
)
def test_a_page_is_dropped_where_the_environment_reads_the_verdict_no(written: str) -> None:
    played, _ = play("<search>Eve</search>", f"{written}<search>Ada</search>", "<answer>Ada</answer>")
    assert played.info["strategy"] == {"judge_dropped": int(verdict_in(written) is False)}


@pytest.mark.parametrize("drop", ["note", "mark"])
def test_what_is_no_page_of_a_search_is_not_dropped(drop: str) -> None:
    """The correction after a malformed action stays; so does the page before it, whose turn is past."""
    script = ("<search>Eve</search>", "who?", "<judge>no</judge><search>Ada</search>", "<answer>Ada</answer>")
    played, _ = play(*script, drop=drop)
    assert "not valid" in played.turns[1].observation[0].text
    assert not {NOTE, MARK} & {turn.observation[0].text for turn in played.turns[:3]}
    assert played.info["strategy"] == {"judge_dropped": 0}


def test_the_verdict_is_an_option_and_may_not_be_empty() -> None:
    played, _ = play(
        "<search>Eve</search>", "useless <search>Ada</search>", "<answer>Ada</answer>", verdict="useless"
    )
    assert played.info["strategy"]["judge_dropped"] == 1
    with pytest.raises(ConfigurationError, match="verdict"):
        JudgeStrategy(verdict="")
    with pytest.raises(UnknownName, match="'hide'"):
        JudgeStrategy(drop="hide")
