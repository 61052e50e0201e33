"""Turns in segments: what is asked for, what is joined, and where a stop string that two segments share ends a turn."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from agentenv.core.types import Completion, FinishReason, Sampling
from agentenv.errors import ContextTooSmall
from agentenv.policies.fakes import ByteTokenizer
from agentenv.trainers.workers.recorded_policy import RecordedPolicy
from agentenv.trainers.workers.segmented_policy import SegmentedPolicy

TOKENIZER = ByteTokenizer()


class Writing:
    """Goes on with ``text`` from what of it stands behind the prompt; ends where a stop string stands in its own answer."""

    def __init__(self, text: str, room: int = 1000) -> None:
        self.text, self.room = text, room
        self.version = 0
        self.requests: list[tuple[int, int]] = []

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
    ) -> Completion:
        if len(prompt_ids) >= self.room:
            raise ContextTooSmall("full")
        written = TOKENIZER.decode(list(prompt_ids))[1:]
        self.requests.append((sampling.max_tokens, sampling.seed))
        said = self.text[len(written) : len(written) + sampling.max_tokens]
        finish = FinishReason.LENGTH if len(written) + len(said) < len(self.text) else FinishReason.EOS
        for stop in sampling.stop:
            if stop in said:
                said, finish = said[: said.index(stop) + len(stop)], FinishReason.STOP
        ids = tuple(TOKENIZER.encode(said))
        return Completion(ids, said, (-0.5,) * len(ids), finish, self.version)

    def release(self, episode: str) -> None: ...

    async def score(self, ids: Sequence[int], *, temperature: float = 1.0) -> Sequence[float]:
        return [0.0] * len(ids)


def turn(policy: Any, tokens: int, most: int = 50, stop: tuple[str, ...] = ()) -> Completion:
    segmented = SegmentedPolicy(policy, tokens, TOKENIZER.decode)
    return asyncio.run(
        segmented.generate(TOKENIZER.encode("?"), Sampling(most, stop=stop, seed=7), episode="e")
    )


def test_a_turn_is_the_same_in_segments() -> None:
    whole, cut = Writing("abcdefg"), Writing("abcdefg")
    one, joined = turn(whole, 50), turn(cut, 3)
    assert (joined.ids, joined.text, joined.logprobs) == (one.ids, one.text, one.logprobs)
    assert (one.finish, joined.finish) == (FinishReason.EOS, FinishReason.EOS)
    assert [count for count, _ in cut.requests] == [3, 3, 3]
    assert cut.requests[0] == (3, 7)
    assert len({seed for _, seed in cut.requests}) == 3


def test_the_limit_of_a_turn_holds_over_its_segments() -> None:
    policy = Writing("abcdefgh")
    cut = turn(policy, 3, most=5)
    assert (cut.text, cut.finish) == ("abcde", FinishReason.LENGTH)
    assert [count for count, _ in policy.requests] == [3, 2]


@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5, 6, 9])
def test_a_stop_string_ends_a_turn_wherever_the_segments_part(tokens: int) -> None:
    """The stop string stands at 2 to 5; no engine sees it whole where a segment ends within it."""
    cut = turn(Writing("ab</s>cd"), tokens, stop=("</s>",))
    assert (cut.text, cut.finish, len(cut.ids), len(cut.logprobs)) == ("ab</s>", FinishReason.STOP, 6, 6)


@pytest.mark.parametrize("tokens", [1, 2, 3, 6, 9])
def test_the_token_that_ends_a_turn_is_none_of_its_text(tokens: int) -> None:
    """As with every engine: the end is among the ids, which are trained, and the environment does not see it."""

    class Ending(Writing):
        async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, **options: Any) -> Completion:
            if len(prompt_ids) <= len(self.text):
                return replace(await super().generate(prompt_ids, sampling), finish=FinishReason.LENGTH)
            return Completion((TOKENIZER.eos_token_id,), "", (-0.5,), FinishReason.EOS)

    joined = turn(Ending("abcdef"), tokens)
    assert (joined.text, joined.finish) == ("abcdef", FinishReason.EOS)
    assert joined.ids == (*b"abcdef", TOKENIZER.eos_token_id)
    assert len(joined.logprobs) == 7


def test_what_a_token_holds_behind_a_stop_string_is_none_of_the_text() -> None:
    pieces = {0: "?", 1: "<a>x</", 2: "a>\n\n", 3: "more"}

    class Pieces(Writing):
        async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, **options: Any) -> Completion:
            at = len(prompt_ids)
            return Completion((at,), pieces[at], (-0.5,), FinishReason.LENGTH)

    segmented = SegmentedPolicy(Pieces(""), 1, lambda ids: "".join(pieces[i] for i in ids))
    done = asyncio.run(segmented.generate([0], Sampling(9, stop=("</a>",)), episode="e"))
    assert (done.ids, done.text, done.finish) == ((1, 2), "<a>x</a>", FinishReason.STOP)


def test_every_token_keeps_the_version_that_sampled_it() -> None:
    class Moving(Writing):
        async def generate(self, *args: Any, **options: Any) -> Completion:
            answer = await super().generate(*args, **options)
            self.version += 1
            return answer

    assert turn(Moving("abcde"), 2).versions == (0, 0, 1, 1, 2)


def test_a_full_context_ends_a_turn_that_has_begun_and_no_other() -> None:
    cut = turn(Writing("abcdef", room=4), 3)  # the prompt is one token
    assert (cut.text, cut.finish) == ("abc", FinishReason.LENGTH)
    with pytest.raises(ContextTooSmall):
        turn(Writing("abcdef", room=1), 3)


def test_a_stopped_turn_keeps_its_whole_segments() -> None:
    """Two segments are recorded; after the stop only the third is asked for, of newer weights."""

    class Stopping(Writing):
        async def generate(self, *args: Any, **options: Any) -> Completion:
            if len(self.requests) == 2:
                raise asyncio.CancelledError
            return await super().generate(*args, **options)

    recorded = RecordedPolicy(Stopping("abcdef"))
    with pytest.raises(asyncio.CancelledError):
        turn(recorded, 2)
    later = Writing("abcdef")
    later.version = 3
    joined = turn(RecordedPolicy(later, recorded.state_dict()), 2)
    assert (joined.text, joined.versions) == ("abcdef", (0, 0, 0, 0, 3, 3))
    assert len(later.requests) == 1


def test_the_end_of_a_long_turn_is_found_without_decoding_each_of_its_beginnings() -> None:
    decoded: list[int] = []

    def decode(ids: Sequence[int]) -> str:
        decoded.append(len(ids))
        return TOKENIZER.decode(list(ids))

    segmented = SegmentedPolicy(Writing("a" * 1500 + "</s>", room=5000), 1000, decode)
    asked = segmented.generate(TOKENIZER.encode("?"), Sampling(4000, stop=("</s>",)), episode="e")
    assert len(asyncio.run(asked).ids) == 1504
    assert len(decoded) < 20
