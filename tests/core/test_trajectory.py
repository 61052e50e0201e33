"""The record: arrays by hand, rows, surgery. The turn can be read off the ids: 1xx is turn 1."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from agentenv.core.images import PlacedImage
from agentenv.core.trajectory import Origin, Segment, SegmentKind, Trajectory, Turn, from_record, to_record
from agentenv.core.types import EndReason, Message, Task, ToolResult, ToolStatus

K = SegmentKind
TASK = Task("t", "Who?", ("Ada",))


def policy(turn: int, *ids: int, row: int = 0, **extra: object) -> Segment:
    logprobs = tuple(-i / 100 for i in ids)
    return Segment(K.POLICY, ids, turn, logprobs=logprobs, version=4, row=row, **extra)  # type: ignore[arg-type]


def env(turn: int, *ids: int, row: int = 0) -> Segment:
    return Segment(K.ENV, ids, turn, row=row)


def turns(*actions: str) -> tuple[Turn, ...]:
    return tuple(Turn(action) for action in actions)


def three_turns(mark: str = "", shift: int = 0) -> Trajectory:
    """Three turns; ``shift`` moves the ids of turns 1 and 2, as another sample would."""
    segments = (
        Segment(K.PROMPT, (1, 2), 0),
        policy(0, 10, 11),
        Segment(K.FORMAT, (9,), 0),
        env(0, 20),
        policy(1, 110 + shift),
        env(1, 120 + shift, 121 + shift),
        policy(2, 210 + shift),
    )
    actions = ("a", f"b{mark}", f"c{mark}")
    return Trajectory(TASK, segments, turns(*actions), 1.0 + shift, EndReason.ANSWERED, info={"answer": mark})


def test_arrays_follow_the_segments() -> None:
    t = three_turns()
    assert t.ids.tolist() == [1, 2, 10, 11, 9, 20, 110, 120, 121, 210]
    assert t.loss_mask.tolist() == [False, False, True, True, False, False, True, False, False, True]
    wanted = [0, 0, -0.1, -0.11, 0, 0, -1.1, 0, 0, -2.1]
    np.testing.assert_allclose(t.logprobs, wanted, rtol=1e-6, atol=0)
    assert t.policy_version.tolist() == [-1, -1, 4, 4, -1, -1, 4, -1, -1, 4]
    assert t.turn_index.tolist() == [0, 0, 0, 0, 0, 0, 1, 1, 1, 2]
    assert not t.context_mismatch.any()
    assert t.response_tokens == 4
    assert t.row_slices == [slice(0, 10)]
    assert [str(a.dtype) for a in (t.ids, t.logprobs, t.loss_mask)] == ["int64", "float32", "bool"]


def test_marks_of_a_segment_reach_its_tokens() -> None:
    segments = (
        Segment(K.PROMPT, (1,), 0),
        policy(0, 10, 11, context_mismatch=True),
        policy(1, 110, trained=False),
    )
    t = Trajectory(TASK, segments, turns("a", "b"), 0.0, EndReason.ANSWERED)
    assert t.context_mismatch.tolist() == [False, True, True, False]
    assert t.loss_mask.tolist() == [False, True, True, False]
    assert t.response_tokens == 3


def test_an_episode_without_tokens_has_empty_arrays_and_no_row() -> None:
    t = Trajectory(TASK, (), (), 0.0, EndReason.ENV_FAULT, valid=False)
    assert (len(t.ids), len(t.logprobs), len(t.loss_mask), t.row_slices) == (0, 0, 0, [])


@pytest.mark.parametrize(
    ("kind", "logprobs"),
    [(K.POLICY, ()), (K.POLICY, (0.0,) * 3), (K.ENV, (0.0, 0.0)), (K.PROMPT, (0.0, 0.0))],
)
def test_log_probs_belong_to_policy_ids_one_each(kind: SegmentKind, logprobs: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=rf"{kind}.*\b2\b.*\b{len(logprobs)}\b"):
        Segment(kind, (1, 2), 0, logprobs=logprobs)


def test_cut_keeps_what_came_before_a_turn() -> None:
    t = three_turns()
    assert t.cut(0).ids.tolist() == [1, 2]
    cut = t.cut(2)
    assert cut.ids.tolist() == [1, 2, 10, 11, 9, 20, 110, 120, 121]
    assert [turn.action for turn in cut.turns] == ["a", "b"]
    assert (cut.parent_id, cut.fork_turn) == (t.id, 2)
    assert cut.id != t.id


def test_splice_exchanges_one_turn() -> None:
    t = three_turns()
    spliced = t.splice(1, (policy(1, 199), env(1, 198)), Turn("better"))
    assert spliced.ids.tolist() == [1, 2, 10, 11, 9, 20, 199, 198, 210]
    assert [turn.action for turn in spliced.turns] == ["a", "better", "c"]
    assert (spliced.origin, spliced.fork_turn, spliced.parent_id) == (Origin.SPLICE, 1, t.id)
    assert t.ids.tolist() == three_turns().ids.tolist()


def two_rows(shift: int = 0) -> Trajectory:
    """The prompt of turn 1 did not extend row 0, and so row 1 opens on a prompt of its own."""
    segments = (
        Segment(K.PROMPT, (1,), 0),
        policy(0, 10),
        Segment(K.PROMPT, (101 + shift, 102 + shift), 1, row=1),
        policy(1, 110 + shift, row=1),
    )
    return Trajectory(TASK, segments, turns("a", "b"), 1.0, EndReason.ANSWERED)


def test_rows_are_slices_of_the_arrays() -> None:
    t = two_rows()
    assert t.row_slices == [slice(0, 2), slice(2, 5)]
    assert [t.ids[row].tolist() for row in t.row_slices] == [[1, 10], [101, 102, 110]]


def test_surgery_keeps_the_prompt_of_a_row_with_its_turn() -> None:
    t = two_rows()
    assert t.cut(0).ids.tolist() == [1]
    assert t.cut(1).ids.tolist() == [1, 10, 101, 102]
    assert t.splice(0, (policy(0, 19),), Turn("x")).ids.tolist() == [1, 19, 101, 102, 110]


def test_ids_are_unique() -> None:
    assert len({three_turns().id for _ in range(100)}) == 100


def test_the_json_form_has_what_decides_the_numbers() -> None:
    results = (ToolResult("search", ToolStatus.ERROR, "q", "Oops"),)
    turn = Turn("a", (Message("tool", "x"), Message("tool", "y")), results, 0.5, False, "key", 1.0, 2.0)
    segments = (Segment(K.PROMPT, (1,), 0), policy(0, 10, context_mismatch=True, trained=False))
    t = Trajectory(TASK, segments, (turn,), 0.5, EndReason.ANSWERED, id="i", group_id="g")
    record = to_record(t)
    assert record["segments"] == [
        {"kind": "prompt", "turn": 0, "row": 0, "ids": (1,), "version": -1},
        {
            "kind": "policy",
            "turn": 0,
            "row": 0,
            "ids": (10,),
            "version": 4,
            "logprobs": (-0.1,),
            "context_mismatch": True,
            "trained": False,
        },
    ]
    assert record["turns"] == [
        {
            "action": "a",
            "observation": "xy",
            "tool_results": [{"name": "search", "status": "error", "text": "q", "error_class": "Oops"}],
            "reward": 0.5,
            "valid": False,
            "anchor_key": "key",
        }
    ]
    assert (record["id"], record["group_id"], record["end_reason"]) == ("i", "g", "answered")
    assert "seconds" not in str(record)


def test_a_record_gives_back_what_credit_and_loss_read() -> None:
    """Through JSON, marks and lineage included; floats to the bit."""
    results = (ToolResult("search", ToolStatus.ERROR, "q", "Oops"),)
    first = Turn("a", (Message("tool", "x"),), results, 0.1 + 0.2, False, "key", 1.0, 2.0)
    segments = (
        Segment(K.PROMPT, (1,), 0),
        policy(0, 10, 33, context_mismatch=True, trained=False),
        env(0, 20),
        Segment(K.PROMPT, (2,), 1, row=1),
        policy(1, 110, row=1),
        Segment(K.INJECTED, (7,), 1, row=1),
    )
    lineage: dict[str, Any] = {
        "id": "i",
        "group_id": "g",
        "parent_id": "p",
        "fork_turn": 1,
        "origin": Origin.RETRY,
    }
    t = Trajectory(
        TASK, segments, (first, Turn("b")), 1 / 3, EndReason.ENV_FAULT, valid=False, error="e", **lineage
    )
    again = from_record(json.loads(json.dumps(to_record(t))), TASK)
    assert to_record(again) == to_record(t)
    assert again.segments == t.segments
    assert again.task is TASK
    for name in ("ids", "loss_mask", "logprobs", "context_mismatch", "policy_version", "turn_index"):
        np.testing.assert_array_equal(getattr(again, name), getattr(t, name))
    assert again.row_slices == t.row_slices


def test_a_record_of_text_only_stays_one() -> None:
    segments = (Segment(K.POLICY, (4, 5), 0, logprobs=(float("nan"),) * 2, exact_tokens=False),)
    t = Trajectory(TASK, segments, (), 0.0, EndReason.ANSWERED)
    again = from_record(json.loads(json.dumps(to_record(t))), TASK)
    assert np.isnan(again.segments[0].logprobs).all()
    assert to_record(again) == to_record(t)


def test_a_record_has_images_only_where_it_is_to_be_whole() -> None:
    image = PlacedImage(b"\x89PNG", 1, 1, 2)
    prompt = Segment(SegmentKind.PROMPT, (1, 9, 9), 0, images=(image,))
    trajectory = Trajectory(Task("t", "q"), (prompt,), (), 0.0, EndReason.ANSWERED)
    bare, whole = to_record(trajectory), to_record(trajectory, whole=True)
    assert "images" not in bare
    assert whole["images"] == {image.digest: "iVBORw=="}
    assert bare["segments"] == whole["segments"]
    assert bare["segments"][0]["images"] == [(1, 1, 2, image.digest)]
    assert from_record(whole, trajectory.task).segments == (prompt,)
    plain = replace(trajectory, segments=(replace(prompt, images=()),))
    assert "images" not in to_record(plain, whole=True)
    assert "images" not in to_record(plain)["segments"][0]


def test_what_had_help_is_known_by_its_origin() -> None:
    base = Trajectory(Task("t", "q"), (), (), 0.0, EndReason.ANSWERED)
    guided = {
        origin: (replace(base, origin=origin).guided, replace(base, origin=origin, parent_id="p").guided)
        for origin in Origin
    }
    assert [origin for origin, found in guided.items() if found == (True, True)] == [
        Origin.REFLECTION,
        Origin.DEMONSTRATION,
    ]
    assert guided[Origin.RETRY] == (False, True)
    assert guided[Origin.SPLICE] == (False, False)


def test_a_part_of_a_segment_has_the_log_probs_and_the_whole_images_of_its_tokens() -> None:
    images = (PlacedImage(b"a", 1, 1, 2), PlacedImage(b"b", 3, 1, 2))
    whole = Segment(K.POLICY, (5, 6, 7, 8, 9), 2, (-0.1, -0.2, -0.3, -0.4, -0.5), 3, images=images)
    assert whole.part(0, 5) == whole
    part = whole.part(1, 4)
    assert (part.ids, part.logprobs) == ((6, 7, 8), (-0.2, -0.3, -0.4))
    assert (part.kind, part.turn, part.version) == (K.POLICY, 2, 3)
    assert part.images == (PlacedImage(b"a", 0, 1, 2),)  # of the other a part is left
    assert whole.part(3, 5).images == (PlacedImage(b"b", 0, 1, 2),)
    assert whole.part(2, 2).ids == ()
