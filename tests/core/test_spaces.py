"""Spaces of text and messages: membership, byte limit, seeded samples, equality."""

import pytest
from gymnasium.vector.utils import batch_space

from agentenv.core.spaces import FreeText, Messages
from agentenv.core.types import Message


@pytest.mark.parametrize("text", ["", " ", "Zoë", "日本", "a\nb", "\ud800"])
def test_any_string_is_free_text(text: str) -> None:
    assert text in FreeText()


def test_the_limit_counts_bytes() -> None:
    assert "éé" in FreeText(max_bytes=4)
    assert "ééa" not in FreeText(max_bytes=4)
    assert b"a" not in FreeText()


@pytest.mark.parametrize("max_bytes", [0, 1, 5, 100])
def test_samples_are_members(max_bytes: int) -> None:
    space = FreeText(max_bytes, seed=0)
    assert all(space.sample() in space for _ in range(50))


def test_equal_seeds_give_equal_samples() -> None:
    for one, other in ((FreeText(seed=5), FreeText(seed=5)), (Messages(seed=5), Messages(seed=5))):
        assert [one.sample() for _ in range(5)] == [other.sample() for _ in range(5)]
    space = Messages()
    space.seed(7)
    first = space.sample()
    space.seed(7)
    assert space.sample() == first


def test_messages_are_tuples_of_message() -> None:
    space = Messages(seed=0)
    assert () in space
    assert (Message("tool", "x"),) in space
    assert [Message("tool", "x")] not in space
    assert ("x",) not in space
    assert space.sample() in space
    assert {len(space.sample()) for _ in range(50)} == {1, 2}


def test_equality_and_names() -> None:
    assert FreeText(5) == FreeText(5) != FreeText(6)
    assert Messages() == Messages() != FreeText()
    assert (repr(FreeText(5)), repr(Messages())) == ("FreeText(max_bytes=5)", "Messages()")
    assert len({FreeText(5), FreeText(5), Messages(), Messages()}) == 2
    assert not FreeText().is_np_flattenable
    assert not Messages().is_np_flattenable


def test_batches_hold_one_space_each() -> None:
    batch = batch_space(FreeText(), 3)
    assert ("a", "", "é") in batch


def test_samples_hold_every_letter_and_what_actions_are_written_with() -> None:
    """A sample that misses a character would leave an environment's treatment of it unchecked."""
    space = FreeText(seed=0)
    assert set("".join(space.sample() for _ in range(300))) == set("abcdefghijklmnopqrstuvwxyz <>/?.,é")
