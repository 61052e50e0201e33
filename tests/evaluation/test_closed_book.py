"""A policy whose every turn begins with a given text: what it is asked, what it returns, and what is handed on to it."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from agentenv.core.types import Completion, FinishReason, Sampling
from agentenv.evaluation.closed_book import AnsweringPolicy
from agentenv.policies.fakes import ByteTokenizer

OPENING = "<answer>"
OPENED = tuple(ByteTokenizer().encode(OPENING))


class Recorded:
    """Answers "Rome", and remembers what it was asked."""

    version = 3

    def __init__(self, versions: tuple[int, ...] = ()) -> None:
        self.tokenizer = ByteTokenizer()
        self.versions = versions
        self.asked: list[tuple[Sequence[int], Sampling, str | None]] = []
        self.released: list[str] = []

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
    ) -> Completion:
        self.asked.append((list(prompt_ids), sampling, episode))
        ids = tuple(self.tokenizer.encode("Rome"))
        logprobs = (-0.5, -0.25, -1.0, -2.0)
        return Completion(ids, "Rome", logprobs, FinishReason.STOP, version=3, versions=self.versions)

    def release(self, episode: str) -> None:
        self.released.append(episode)

    async def score(self, ids: Sequence[int], *, temperature: float = 1.0) -> Sequence[float]:
        return [temperature * one for one in ids]


def test_a_turn_begins_with_the_opening_and_goes_on_with_what_is_sampled() -> None:
    policy = Recorded()
    answering = AnsweringPolicy(policy, OPENING)
    sampling = Sampling(max_tokens=20, temperature=0.0)
    done = asyncio.run(answering.generate([1, 2], sampling, episode="e"))
    assert policy.asked == [([1, 2, *OPENED], replace(sampling, max_tokens=20 - len(OPENED)), "e")]
    assert done.text == "<answer>Rome"
    assert done.ids == (*OPENED, *ByteTokenizer().encode("Rome"))
    assert done.logprobs == (*[0.0] * len(OPENED), -0.5, -0.25, -1.0, -2.0)
    assert (done.version, done.versions, answering.version) == (3, (), 3)


@pytest.mark.parametrize("most", [1, len(OPENED), len(OPENED) + 1])
def test_one_token_is_sampled_where_the_opening_leaves_no_room(most: int) -> None:
    policy = Recorded()
    asyncio.run(AnsweringPolicy(policy, OPENING).generate([], Sampling(max_tokens=most)))
    assert policy.asked[0][1].max_tokens == 1


def test_versions_of_tokens_count_the_opening_where_they_are_told() -> None:
    done = asyncio.run(AnsweringPolicy(Recorded((2, 2, 3, 3)), OPENING).generate([], Sampling(max_tokens=20)))
    assert done.versions == (*[3] * len(OPENED), 2, 2, 3, 3)


def test_scores_and_ends_of_episodes_are_the_policy_s() -> None:
    policy = Recorded()
    answering = AnsweringPolicy(policy, OPENING)
    answering.release("e")
    assert policy.released == ["e"]
    assert list(asyncio.run(answering.score([1, 2], temperature=0.5))) == [0.5, 1.0]
    assert list(asyncio.run(answering.score([1, 2]))) == [1.0, 2.0]
