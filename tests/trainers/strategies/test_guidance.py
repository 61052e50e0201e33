"""Guidance in and out of a context: exact places for every format, flags, masks; nothing is ever encoded again."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from agentenv.core.chat import InlineFormat, TemplateFormat
from agentenv.core.env import Env
from agentenv.core.protocols import ChatFormat
from agentenv.core.rollout import EpisodeSpec
from agentenv.core.trajectory import Segment, SegmentKind, Trajectory
from agentenv.core.types import EndReason, Message, Task
from agentenv.errors import ConfigurationError
from agentenv.policies.endpoint_formats import MessageFormat
from agentenv.policies.fakes import ByteTokenizer
from agentenv.trainers.strategies.guidance import (
    guide,
    is_guided,
    place_guidance,
    reopened,
    unguided,
)

Turns = Callable[..., Trajectory]
K = SegmentKind
START = EpisodeSpec(Env(), Task("t", "q"), 0, "g")


def tiny() -> TemplateFormat:
    pytest.importorskip("transformers", reason="needs the train extra")
    from agentenv.policies.tiny import build_tokenizer

    return TemplateFormat(build_tokenizer(["who is it?\n\n searched and found. " * 20]))


def tiny_inline() -> InlineFormat:
    return InlineFormat(tiny()._tokenizer)


@pytest.mark.parametrize(
    "make",
    [
        lambda: InlineFormat(ByteTokenizer()),
        lambda: InlineFormat(ByteTokenizer(chat=True)),
        lambda: TemplateFormat(ByteTokenizer(chat=True)),
        MessageFormat,
        tiny,
        tiny_inline,
    ],
)
def test_every_format_takes_guidance_at_the_opening_and_after_an_observation(
    make: Callable[[], ChatFormat],
) -> None:
    chat = make()
    opening = chat.prompt((Message("user", "Who is it?"),))
    acted = [*opening, 65, 66, *chat.closing([*opening, 65, 66])]
    later = chat.extend(acted, (Message("tool", "searched and found.\n"),))
    for row in (opening, later):
        at, ids = place_guidance(chat, row, "Be careful.")
        guided = [*row[:at], *ids, *row[at:]]
        # What the policy sees ends as if the format had been given the guidance as a message.
        assert guided[-len(ids) - (len(row) - at) :] == chat.extend([], (Message("user", "Be careful.\n"),))
        assert guided[:at] + guided[at + len(ids) :] == row


def test_a_template_keeps_the_head_of_the_turn_behind_the_guidance() -> None:
    chat = TemplateFormat(ByteTokenizer(chat=True))
    row = chat.prompt((Message("user", "Who?"),))
    at, ids = place_guidance(chat, row, "Look.")
    assert ByteTokenizer().decode([*row[:at], *ids, *row[at:]]) == (
        "<|im_start|>user\nWho?<|im_end|>\n<|im_start|>user\nLook.\n<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_row_that_does_not_end_with_the_head_of_a_turn_is_refused() -> None:
    chat = TemplateFormat(ByteTokenizer(chat=True))
    with pytest.raises(ConfigurationError):
        place_guidance(chat, list(b"no head"), "Look.")


def test_a_record_is_opened_again_as_it_stood(turns: Turns) -> None:
    base = turns([0.0, 0.0, 0.0], id="base")
    state = reopened(base, 2, START)
    assert state.ids == [1, 2, 3, 4, 5, 3, 4, 5]
    assert [s.kind for s in state.segments] == [K.PROMPT, K.POLICY, K.ENV, K.POLICY, K.ENV]
    assert (len(state.turns), state.episode) == (2, "base")
    assert reopened(base, 0, START).ids == [1, 2]


def test_only_the_present_row_is_what_the_policy_reads(turns: Turns) -> None:
    base = turns([0.0, 0.0])
    second = (Segment(K.PROMPT, (8, 9), 1, row=1), replace(base.segments[-1], row=1))
    base = replace(base, segments=(*base.segments[:-1], *second))
    state = reopened(base, 1, START)
    assert (state.ids, state.row) == ([8, 9], 1)
    guide(state, InlineFormat(ByteTokenizer()), "x")
    assert [(s.kind, s.row) for s in state.segments[-2:]] == [(K.PROMPT, 1), (K.INJECTED, 1)]


def guided_retry(base: Trajectory, turn: int, chat: ChatFormat, ids: Sequence[int]) -> Trajectory:
    """A retry that says ``ids`` in one turn and ends."""
    state = reopened(base, turn, START)
    guide(state, chat, "SECRET")
    state.add(K.POLICY, ids, turn, logprobs=(-1.0,) * len(ids), version=4)
    state.turns.append(replace(base.turns[0], reward=1.0))
    state.close(1.0, EndReason.ANSWERED, {"answer": "b"})
    assert state.ended is not None
    return state.ended


@pytest.mark.parametrize("turn", [0, 1, 2])
def test_cutting_the_guidance_leaves_every_other_id_where_it_was(turns: Turns, turn: int) -> None:
    base = turns([0.0, 0.0, 0.0], id="base", group_id="g")
    guided = guided_retry(base, turn, InlineFormat(ByteTokenizer()), (7, 7))
    assert guided.ids.tolist() == [*base.cut(turn).ids, *b"SECRET\n", 7, 7]
    clean = unguided(guided)
    assert clean.ids.tolist() == [*base.cut(turn).ids, 7, 7]
    assert (is_guided(guided), is_guided(clean)) == (True, False)
    assert clean == replace(guided, segments=clean.segments)
    # Flagged is what was sampled under the guidance, and nothing else; its log-probs are the sampler's.
    assert clean.context_mismatch.tolist() == [False] * (len(clean.ids) - 2) + [True] * 2
    assert clean.logprobs[-2:].tolist() == [-1.0, -1.0]
    assert not guided.context_mismatch.any()


def test_a_split_head_is_joined_again(turns: Turns) -> None:
    """A template has the head of the turn behind the guidance, so the last segment is cut in two."""
    chat = TemplateFormat(ByteTokenizer(chat=True))
    base = turns([0.0])
    prompt = tuple(chat.prompt((Message("user", "Who?"),)))
    base = replace(base, segments=(Segment(K.PROMPT, prompt, 0), base.segments[1]))
    guided = guided_retry(base, 0, chat, (7,))
    assert [s.kind for s in guided.segments] == [K.PROMPT, K.INJECTED, K.PROMPT, K.POLICY]
    assert [(s.kind, s.ids) for s in unguided(guided).segments] == [(K.PROMPT, prompt), (K.POLICY, (7,))]


def test_a_retry_without_guidance_stands_where_it_was_sampled(turns: Turns) -> None:
    retry = turns([0.0, 1.0])
    assert unguided(retry) == retry


def test_guidance_in_a_rewritten_row_cannot_be_cut_out(turns: Turns) -> None:
    guided = guided_retry(turns([0.0, 0.0]), 1, InlineFormat(ByteTokenizer()), (7,))
    late = replace(guided, segments=(*guided.segments, Segment(K.PROMPT, (1,), 2, row=1)))
    with pytest.raises(ConfigurationError):
        unguided(late)


def test_a_context_of_its_own_never_held_the_guidance(turns: Turns) -> None:
    guided = guided_retry(turns([0.0, 0.0]), 1, InlineFormat(ByteTokenizer()), (7,))
    shown = (Message("system", ""), Message("user", "Go on from your notes."))
    context = replace(guided.turns[1], observation=shown)
    later = (Segment(K.PROMPT, (8, 9), 2, row=1), Segment(K.POLICY, (6,), 2, row=1, logprobs=(-2.0,)))
    clean = unguided(replace(guided, segments=(*guided.segments, *later), turns=(guided.turns[0], context)))
    assert clean.segments[-2:] == later
    assert [s.context_mismatch for s in clean.segments if s.kind is K.POLICY] == [False, True, False]
