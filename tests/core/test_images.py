"""Images among ids: positions by hand, placeholders, segments and rows with images, formats that cannot show one."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentenv.core.chat import InlineFormat, TemplateFormat
from agentenv.core.images import (
    PlacedImage,
    collapsed,
    expanded,
    image_digest,
    keep_image,
    placed,
    rope_positions,
    without_strays,
)
from agentenv.core.native_format import NativeFormat
from agentenv.core.rollout import EpisodeState, observe
from agentenv.core.trajectory import Segment, SegmentKind, Trajectory, Turn, from_record, to_record
from agentenv.core.types import EndReason, Message, MessagePart, Observation, Task
from agentenv.errors import ConfigurationError
from agentenv.policies.fake_vision import vision_tokenizer
from agentenv.policies.fakes import ByteTokenizer

IMAGE = Message("user", (MessagePart("text", "see "), MessagePart("image", image=b"one")))


class Grids:
    """A reader whose images say their size: ``b"23..."`` has two rows and three columns."""

    placeholder = 99

    def grid(self, image: bytes) -> tuple[int, int]:
        return int(chr(image[0])), int(chr(image[1]))


def test_positions_follow_the_grid_and_text_goes_on_behind_its_larger_side() -> None:
    """Two tokens of text, an image of 2 x 3 tokens, one token of text, one of 1 x 1, one token of text."""
    images = [PlacedImage(b"", 2, 2, 3), PlacedImage(b"", 9, 1, 1)]
    assert rope_positions(11, images).tolist() == [
        [0, 1, 2, 2, 2, 2, 2, 2, 5, 6, 7],
        [0, 1, 2, 2, 2, 3, 3, 3, 5, 6, 7],
        [0, 1, 2, 3, 4, 2, 3, 4, 5, 6, 7],
    ]
    assert np.array_equal(rope_positions(4, []), [[0, 1, 2, 3]] * 3)


def test_each_placeholder_becomes_as_many_as_its_image_has_tokens() -> None:
    ids = expanded([1, 99, 2, 99], [b"23", b"12"], Grids())
    assert ids == [1, *[99] * 6, 2, 99, 99]
    assert [(i.image, i.start, i.end) for i in placed(ids, [b"23", b"12"], Grids())] == [
        (b"23", 1, 7),
        (b"12", 8, 10),
    ]


def test_an_engine_gets_one_placeholder_for_an_image_and_none_that_was_sampled() -> None:
    images = [PlacedImage(b"", 1, 2, 1), PlacedImage(b"", 5, 1, 3)]
    fed = without_strays([1, 99, 99, 2, 99, 99, 99, 99, 3], images, 99)
    assert fed == [1, 99, 99, 2, 0, 99, 99, 99, 3]
    assert collapsed(fed, images) == [1, 99, 2, 0, 99, 3]
    assert without_strays([0, 5], [], 0) == [1, 5]


@pytest.mark.parametrize("images", [[], [b"11", b"11"]], ids=["none", "two"])
def test_a_template_that_shows_another_number_of_images_is_refused(images: Sequence[bytes]) -> None:
    with pytest.raises(ConfigurationError, match=f"{len(images)} images"):
        expanded([1, 99], images, Grids())


def segment(kind: SegmentKind, ids: Sequence[int], *images: PlacedImage, row: int = 0) -> Segment:
    logprobs = (0.0,) * len(ids) if kind is SegmentKind.POLICY else ()
    return Segment(kind, tuple(ids), 0, logprobs, images=images, row=row)


def test_a_part_of_a_segment_and_two_of_them_joined_keep_their_images_in_place() -> None:
    whole = segment(SegmentKind.ENV, range(9), PlacedImage(b"a", 1, 1, 2), PlacedImage(b"b", 5, 2, 2))
    first, second = whole.part(0, 4), whole.part(4, 9)
    assert [image.start for image in first.images] == [1]
    assert [image.start for image in second.images] == [1]
    assert first.joined(second) == whole


def test_rows_know_their_images_with_places_in_the_row() -> None:
    trajectory = Trajectory(
        Task("t", ""),
        (
            segment(SegmentKind.PROMPT, range(3), PlacedImage(b"a", 1, 1, 1)),
            segment(SegmentKind.POLICY, range(2)),
            segment(SegmentKind.ENV, range(4), PlacedImage(b"b", 1, 1, 2)),
            segment(SegmentKind.PROMPT, range(5), PlacedImage(b"b", 2, 1, 2), row=1),
        ),
        (),
        0.0,
        EndReason.TURN_LIMIT,
    )
    assert [len(trajectory.ids[part]) for part in trajectory.row_slices] == [9, 5]
    assert [[(i.image, i.start) for i in row] for row in trajectory.row_images] == [
        [(b"a", 1), (b"b", 6)],
        [(b"b", 2)],
    ]


def test_texts_next_to_each_other_make_up_no_placeholder() -> None:
    tokenizer = vision_tokenizer()
    halves = tuple(MessagePart("text", half) for half in ("<|image", "_pad|>"))
    shown = Message("user", (*halves, MessagePart("image", image=b"12")))
    reader = Grids()
    reader.placeholder = tokenizer.convert_tokens_to_ids("<|image_pad|>")
    for chat in (
        TemplateFormat(tokenizer, image_reader=reader),
        NativeFormat(tokenizer, family="qwen", image_reader=reader),
    ):
        assert chat.prompt([shown]).count(reader.placeholder) == 2
    inline = InlineFormat(tokenizer)
    quoted = inline.extend([1], [Message("user", "<|image"), Message("user", "_pad|>")])
    assert reader.placeholder not in quoted


def test_formats_without_a_reader_refuse_an_image_and_take_text() -> None:
    tokenizer = vision_tokenizer()
    inline, template = InlineFormat(ByteTokenizer()), TemplateFormat(tokenizer)
    native = NativeFormat(tokenizer, family="qwen")
    refused = (
        lambda: inline.prompt([IMAGE]),
        lambda: inline.extend([1], [IMAGE]),
        lambda: template.prompt([IMAGE]),
        lambda: template.extend([1], [IMAGE]),
        lambda: native.prompt([IMAGE]),
        lambda: native.open([IMAGE], ()),
    )
    for ask in refused:
        with pytest.raises(ConfigurationError, match="image"):
            ask()
    words = Message("user", (MessagePart("text", "see"),))
    assert template.prompt([words]) == template.prompt([Message("user", "see")])


def test_a_record_names_images_or_holds_them_and_comes_back(tmp_path: Path) -> None:
    played = Trajectory(
        Task("t", ""),
        (segment(SegmentKind.PROMPT, range(9), PlacedImage(b"a", 1, 1, 2), PlacedImage(b"b", 5, 2, 2)),),
        (),
        0.0,
        EndReason.TURN_LIMIT,
    )
    named, whole = (json.loads(json.dumps(to_record(played, whole=held))) for held in (False, True))
    assert from_record(whole, played.task).segments == played.segments
    for image in (*played.row_images[0], *played.row_images[0]):
        keep_image(image, tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    assert from_record(named, played.task, tmp_path).segments == played.segments
    digest = image_digest(b"a")
    with pytest.raises(ConfigurationError, match=digest):
        from_record(named, played.task)
    (tmp_path / f"{digest}.png").write_bytes(b"c")
    with pytest.raises(ConfigurationError, match=digest):
        from_record(named, played.task, tmp_path)
    named["segments"][0]["images"][0][-1] = "../../etc/passwd"
    with pytest.raises(ConfigurationError, match="passwd"):
        from_record(named, played.task, tmp_path)


def test_records_of_text_are_as_they_were() -> None:
    played = Trajectory(
        Task("t", ""), (segment(SegmentKind.PROMPT, range(3)),), (), 0.0, EndReason.TURN_LIMIT
    )
    record = to_record(played, whole=True)
    assert "images" not in record
    assert "images" not in record["segments"][0]


@pytest.mark.parametrize(("later", "row"), [(b"12A", 0), (b"12B", 1)], ids=["same", "other"])
def test_a_whole_context_goes_on_with_the_row_only_if_it_shows_the_same_images(
    later: bytes, row: int
) -> None:
    tokenizer = vision_tokenizer()
    reader = Grids()
    reader.placeholder = tokenizer.convert_tokens_to_ids("<|image_pad|>")
    chat = TemplateFormat(tokenizer, image_reader=reader)

    def opening(image: bytes) -> Observation:
        return Message("system", "See."), Message("user", (MessagePart("image", image=image),))

    spec: Any = None
    state = EpisodeState(spec, "e")
    ids = chat.prompt(opening(b"12A"))
    state.add(SegmentKind.PROMPT, ids, 0, images=placed(ids, [b"12A"], reader))
    said = [*tokenizer.encode("go", add_special_tokens=False), tokenizer.eos_token_id]
    state.add(SegmentKind.POLICY, said, 0, logprobs=(0.0,) * len(said))
    state.turns.append(Turn("go"))
    new = Message("user", (MessagePart("image", image=b"13C"),))
    observe(state, chat, (*opening(later), Message("assistant", "go"), new), 500)
    assert state.row == row
    assert [image.image for image in state.images] == [later, b"13C"]
    assert all(state.ids[image.start] == reader.placeholder for image in state.images)


def test_whoever_takes_text_alone_is_named_where_there_is_an_image() -> None:
    from agentenv.core.images import text_alone
    from agentenv.core.types import Message, MessagePart

    assert text_alone([Message("user", "a"), Message("tool", "b")], "the judge") == "ab"
    seen = Message("user", (MessagePart("image", image=b"\x89PNG"),))
    with pytest.raises(ConfigurationError, match=r"the judge.*pixels"):
        text_alone([seen], "the judge")
