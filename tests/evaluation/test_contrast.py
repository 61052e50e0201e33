"""Which capabilities are lacking: contrast and agreement by hand, labels by programme and by a model, unreadable replies."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from agentenv.errors import ContextTooSmall, EndpointFault, JudgeFault
from agentenv.evaluation.capabilities import Skill
from agentenv.evaluation.contrast import (
    Labels,
    contrasts,
    label_by_model,
    label_by_skills,
    propose,
    transcript,
)
from agentenv.evaluation.records import EpisodeRecord
from agentenv.policies.wires import Reply


def record(number: int, **changes: Any) -> EpisodeRecord:
    return {  # type: ignore[return-value]
        "id": str(number),
        "question": f"question {number}?",
        "answers": ["a"],
        "prediction": "a",
        "valid": True,
        "end_reason": "answered",
        "searches": 1,
        "turns": [{"action": "<search>x</search>", "observation": "page"}],
    } | changes


def test_a_transcript_holds_the_question_the_turns_and_the_end() -> None:
    turns = [{"action": f"<search>{n}</search>", "observation": f"page {n}"} for n in range(2)]
    shown = transcript(record(1, turns=turns))
    assert "<search>0</search>\npage 0\n<search>1</search>\npage 1" in shown
    assert "question 1?" in shown
    bare = record(1)
    del bare["turns"]
    assert "<search>" not in transcript(bare)


def test_contrast_and_agreement_by_hand() -> None:
    labels = [
        Labels(False, {"chain": 1.0, "form": 0.5}),
        Labels(False, {"chain": 0.8, "form": 0.5}),
        Labels(False, {"form": 0.0}),  # it does not call for chaining
        Labels(True, {"chain": 0.3, "form": 0.0}),
    ]
    chain, form = contrasts(labels)
    assert (chain.capability, chain.episodes, chain.kept) == ("chain", 3, True)
    assert (chain.in_failures, chain.in_successes) == pytest.approx((0.9, 0.3))
    assert chain.contrast == pytest.approx(0.6)
    assert chain.agreement == pytest.approx((1.0 + 0.8 + 0.7) / 3)
    assert form.contrast == pytest.approx(1 / 3)  # wide enough
    assert form.agreement == pytest.approx((0.5 + 0.5 + 1 + 1) / 4)
    assert form.kept
    assert not contrasts(labels, least_agreement=0.8)[1].kept


def test_what_succeeds_lacks_as_well_is_not_lacking() -> None:
    labels = [Labels(False, {"a": 1.0, "b": 0.2}), Labels(True, {"a": 1.0, "b": 0.0})]
    kept = {one.capability: one.kept for one in contrasts(labels)}
    assert kept == {"a": False, "b": True}  # .2 is enough
    assert not any(one.kept for one in contrasts(labels, least_contrast=0.25))


def test_what_hardly_an_episode_lacks_that_calls_for_it_is_not_lacking() -> None:
    """Both explain all failures of their tasks; the one is lacking in one of ten episodes, the other in one of five."""
    labels = [Labels(False, {"rare": 1.0})] + [Labels(True, {"rare": 0.0})] * 9
    labels += [Labels(False, {"often": 1.0})] + [Labels(True, {"often": 0.0})] * 4
    assert {one.capability: one.in_all for one in contrasts(labels)} == {"rare": 0.1, "often": 0.2}
    assert {one.capability: one.contrast for one in contrasts(labels)} == {"rare": 1.0, "often": 1.0}
    assert [one.capability for one in contrasts(labels) if one.kept] == ["often", "rare"]
    assert [one.capability for one in contrasts(labels, least_lacked=0.2) if one.kept] == ["often"]


def test_at_most_so_many_are_kept_those_with_the_widest_contrast() -> None:
    labels = [Labels(False, dict(zip("abc", (0.8, 1.0, 0.9), strict=True)))]
    assert [one.capability for one in contrasts(labels, most=2) if one.kept] == ["b", "c"]


def test_labels_by_programme() -> None:
    skills = {
        "search": Skill("searches", lambda r: True, lambda r: bool(r["searches"]), ""),
        "long": Skill("long", lambda r: r["id"] == "1", lambda r: False, ""),
    }
    records = [record(0, searches=0), record(1), record(2, valid=False)]
    labels = label_by_skills(records, [0.0, 1.0, 0.0], skills)
    assert [one.solved for one in labels] == [False, True]
    assert [dict(one.lacks) for one in labels] == [{"search": 1.0}, {"search": 0.0, "long": 1.0}]


class Replies:
    """Replies in turn; an exception among them is raised."""

    model = "labeller"

    def __init__(self, replies: Sequence[Any]) -> None:
        self.replies, self.asked = list(replies), list[str]()

    async def complete(self, messages: Any, **_: Any) -> Reply:
        self.asked.append(messages[0]["content"])
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return Reply(reply, "stop")


CAPABILITIES = {"chain": "It chains.", "form": "It writes well."}


def test_votes_that_cannot_be_read_are_none() -> None:
    replies = [
        '["chain"]',
        "I think it lacks chain.",
        EndpointFault("gone"),
        'So: ["chain", "form", "unknown"].',
    ]
    chat = Replies([*replies, *["no"] * 4])
    labels = asyncio.run(label_by_model(chat, [record(0), record(1)], [0.0, 0.0], CAPABILITIES, passes=4))
    # Of the second nothing is known.
    assert [dict(one.lacks) for one in labels] == [{"chain": 1.0, "form": 0.5}]
    assert "It chains." in chat.asked[0]
    assert '"a"' not in chat.asked[0]


def test_a_model_that_says_nothing_readable_is_a_fault_and_no_label() -> None:
    with pytest.raises(JudgeFault, match="labeller"):
        asyncio.run(label_by_model(Replies(["no"] * 2), [record(0)], [0.0], CAPABILITIES, passes=2))


def test_an_episode_that_fits_no_context_is_left_out_and_ends_nothing() -> None:
    """A context that is too small is that of one episode: what was paid for the others is kept."""
    long = ContextTooSmall("The messages do not fit the context of labeller")
    replies = [long, long, '["chain"]', "[]"]
    labels = asyncio.run(
        label_by_model(Replies(replies), [record(0), record(1)], [0.0, 0.0], CAPABILITIES, passes=2)
    )
    assert [dict(one.lacks) for one in labels] == [{"chain": 0.5, "form": 0.0}]
    with pytest.raises(JudgeFault, match="do not fit the context"):
        asyncio.run(label_by_model(Replies([long] * 2), [record(0)], [0.0], CAPABILITIES, passes=2))


def test_proposed_capabilities_are_new_and_few() -> None:
    rows = [{"name": n, "description": n * 2} for n in ("chain", "a", "b", "c")] + [{"name": "d"}, "e"]
    chat = Replies([f"Here: {json.dumps(rows)}"])
    found = asyncio.run(propose(chat, [record(0), record(1)], [0.0, 1.0], ["chain"], most=3))
    assert found == {"a": "aa", "b": "bb"}
    assert "This episode failed:\nTask: question 0?" in chat.asked[0]
    assert "This episode succeeded:\nTask: question 1?" in chat.asked[0]
    with pytest.raises(JudgeFault, match='"nothing"'):
        asyncio.run(propose(Replies(["nothing"]), [record(0)], [0.0], []))
