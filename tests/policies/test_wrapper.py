"""What a wrapped policy forwards: its version, its scores, its releases and every attribute of its own."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from agentenv.core.types import Completion, Sampling
from agentenv.policies.wrapper import PolicyWrapper


class Inner:
    """Remembers which episodes it released."""

    version = 4
    tokenizer = "its tokenizer"

    def __init__(self) -> None:
        self.released: list[str] = []

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
    ) -> Completion:
        raise NotImplementedError

    def release(self, episode: str) -> None:
        self.released.append(episode)

    async def score(
        self, ids: Sequence[int], *, temperature: float = 1.0, images: Sequence[Any] = ()
    ) -> Sequence[float]:
        return [temperature, len(images)]


def test_what_the_wrapper_lacks_is_the_policy_s() -> None:
    inner = Inner()
    wrapper = PolicyWrapper(inner)
    assert wrapper.tokenizer == "its tokenizer"
    assert not hasattr(wrapper, "image_reader")
    inner.version = 5
    assert wrapper.version == 5
    wrapper.release("e")
    assert inner.released == ["e"]


@pytest.mark.parametrize(("given", "count"), [({}, 0), ({"images": ("one", "two")}, 2)])
def test_scores_are_the_policy_s_with_the_images_that_are_given(given: dict[str, Any], count: int) -> None:
    assert list(asyncio.run(PolicyWrapper(Inner()).score([1], temperature=0.5, **given))) == [0.5, count]
