"""ReSeek's JUDGE: an observation that is judged useless leaves the record; what the environment knows stays."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from agentenv.core.chat import InlineFormat
from agentenv.core.rollout import EpisodeSpec, RolloutConfig
from agentenv.core.trajectory import Origin, Trajectory
from agentenv.core.types import Completion, Document, Message, MessagePart, Sampling, Task
from agentenv.envs.search.judged_search import verdict_in
from agentenv.envs.search.local_search import STOP, LocalSearch
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


class Recorder(ScriptedPolicy):
    """Notes the prompts that it is given."""

    def __init__(self, script: Sequence[str]) -> None:
        super().__init__({"e-0": script})
        self.seen: list[str] = []

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
    ) -> Completion:
        self.seen.append(TOKENIZER.decode(prompt_ids))
        return await super().generate(prompt_ids, sampling, episode=episode)


def play(
    *script: str, room: int = 4096, turn: int = 500, policy: ScriptedPolicy | None = None, **options: Any
) -> tuple[Trajectory, LocalSearch]:
    env = LocalSearch(tasks=[TASK], retriever=InMemoryRetriever(PAGES), k=1)
    context = RolloutContext(
        policy or ScriptedPolicy({"e-0": script}),
        InlineFormat(TOKENIZER),
        RolloutConfig(context_tokens=room, turn_tokens=turn, stop=STOP if options.get("split") else ()),
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


VERDICT = "<judge>no</judge>"


@pytest.mark.parametrize(("drop", "page"), [("note", NOTE), ("mark", MARK)])
def test_a_split_turn_acts_from_the_context_without_the_page(drop: str, page: str) -> None:
    """C_t = tau_{t-1} + [j_t is not bad] o_t: what follows the verdict has not seen the page, and is of its own context."""
    policy = Recorder(
        ["<search>Eve</search>", f"{VERDICT} never", "<search>Ada</search>", "<answer>Ada</answer>"]
    )
    played, env = play(policy=policy, drop=drop, split=True)
    judging, acting, answering = policy.seen[1:]
    assert "Eve was not" in judging
    assert acting.endswith(page + VERDICT)
    assert ("Eve was not" in acting) == ("Eve was not" in answering) == (drop == "mark")
    assert played.turns[1].action == VERDICT + "<search>Ada</search>"
    assert [s.context_mismatch for s in played.segments if s.logprobs] == [False, True, False, False]
    assert (played.reward, env.state.turns, played.info["strategy"]) == (1.0, 2, {"judge_dropped": 1})


def test_a_split_turn_goes_on_where_the_page_is_useful() -> None:
    policy = Recorder(["<search>Eve</search>", "<judge>yes</judge> never", "<answer>Ada</answer>"])
    played, _ = play(policy=policy, split=True)
    assert policy.seen[2] == policy.seen[1] + "<judge>yes</judge>"
    assert (played.turns[1].action, played.reward) == ("<judge>yes</judge><answer>Ada</answer>", 1.0)
    assert not played.context_mismatch.any()


def test_both_parts_of_a_split_turn_share_its_budget() -> None:
    """20 tokens are a search; 17 are a verdict, after which 3 are left, or none."""
    script = ("<search>Eve</search>", VERDICT, "<answer>Ada</answer>", "<answer>Ada</answer>")
    played, _ = play(*script, turn=20, split=True)
    assert played.turns[1].action == VERDICT + "<an"
    whole, _ = play(script[0], f"So {VERDICT}", *script[2:], turn=20, split=True)
    assert whole.turns[1].action == f"So {VERDICT}"


def test_the_verdict_is_an_option_and_may_not_be_empty() -> None:
    played, _ = play(
        "<search>Eve</search>", "useless <search>Ada</search>", "<answer>Ada</answer>", verdict="useless"
    )
    assert played.info["strategy"]["judge_dropped"] == 1
    with pytest.raises(ConfigurationError, match="verdict"):
        JudgeStrategy(verdict="")
    with pytest.raises(UnknownName, match="'hide'"):
        JudgeStrategy(drop="hide")
