"""Forks at tokens: where they are, what a branch has from the other, what is dropped, who can do it at all."""

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from agentenv.core.chat import InlineFormat
from agentenv.core.env import Env
from agentenv.core.rollout import EpisodeSpec, RolloutConfig
from agentenv.core.trajectory import Origin, SegmentKind, Trajectory
from agentenv.core.types import (
    Completion,
    EndReason,
    FinishReason,
    Info,
    Message,
    Observation,
    Sampling,
    Step,
    Task,
)
from agentenv.errors import ConfigurationError
from agentenv.policies.fakes import ByteTokenizer
from agentenv.policies.hf import HFPolicy
from agentenv.policies.scripted import ScriptedPolicy
from agentenv.trainers.strategies.rollout_context import RolloutContext
from agentenv.trainers.strategies.strategies import play_groups
from agentenv.trainers.strategies.token_forks import AlternativeToken, Ranked, alternative_of, similarity_of
from agentenv.trainers.strategies.tree import TreeStrategy

TOKENIZER = ByteTokenizer()


def ranked(*pairs: tuple[str, float, str, float]) -> list[Ranked]:
    return [((ord(a), math.log(p)), (ord(b), math.log(q))) for a, p, b, q in pairs]


@pytest.mark.parametrize(
    ("written", "found", "expected"),
    [
        (
            "ab",
            ranked(("a", 0.9, "x", 0.1), ("b", 0.5, "y", 0.4)),
            AlternativeToken(1, ord("y"), math.log(0.4)),
        ),
        (
            "yb",
            ranked(("a", 0.5, "y", 0.4), ("b", 1.0, "z", 1e-9)),
            AlternativeToken(0, ord("a"), math.log(0.5)),
        ),
        (
            "c",
            ranked(("a", 0.4, "b", 0.3)),
            AlternativeToken(0, ord("a"), math.log(0.4)),
        ),  # neither was written
        ("a", ranked(("a", 0.3, "b", 0.14)), None),  # not likely by itself
        ("a", ranked(("a", 0.6, "b", 0.3)), None),  # .3 behind
    ],
)
def test_the_place_and_the_rival(
    written: str, found: list[Ranked], expected: AlternativeToken | None
) -> None:
    assert alternative_of([ord(c) for c in written], found) == expected


def test_likeness() -> None:
    assert similarity_of([1, 2, 3, 4], [2, 3, 4, 5]) == 0.75  # three of four in one block
    assert similarity_of([1], [2]) == 0


@dataclass
class Said:
    words: list[str] = field(default_factory=list)


class Echo(Env[Said]):
    """Two turns; the reward is 1 where the second word is "yes"."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        super().reset(seed=seed)
        self.state = Said()
        return (Message("user", "?"),), {"task_id": options["task"].id} if options else {}

    def step(self, action: str) -> Step:
        self.state.words.append(action)
        if len(self.state.words) == 2:
            return self.result(
                (), reward=float(action == "yes"), end=EndReason.ANSWERED, said=[*self.state.words]
            )
        return self.result((Message("tool", "|"),))


class Wavering:
    """Writes what ``says`` gives for the text so far; at each "n" it might as well have written "y"."""

    version = 3

    def __init__(self, says: Callable[[str], str]) -> None:
        self.says, self.asked = says, list[int]()

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
    ) -> Completion:
        text = self.says(TOKENIZER.decode(prompt_ids))
        self.asked.append(sampling.max_tokens)
        ids = tuple(TOKENIZER.encode(text))
        return Completion(ids, text, (-0.5,) * len(ids), FinishReason.STOP, self.version)

    async def top_two(self, ids: Sequence[int], first: int, *, temperature: float = 1.0) -> list[Ranked]:
        sure: Ranked = ((0, math.log(0.99)), (1, math.log(0.01)))
        near: Ranked = ((ord("n"), math.log(0.5)), (ord("y"), math.log(0.4)))
        return [near if i == ord("n") else sure for i in ids[first:]]

    def release(self, episode: str) -> None: ...

    async def score(self, ids: Sequence[int], *, temperature: float = 1.0) -> Sequence[float]:
        return [0.0] * len(ids)


def play(policy: Any, *, slots: int = 2, **options: Any) -> list[Trajectory]:
    specs = [EpisodeSpec(Echo(), Task("t", "q"), seed, "g") for seed in range(slots)]
    config = RolloutConfig(turn_tokens=20)
    context = RolloutContext(policy, InlineFormat(TOKENIZER), config, TOKENIZER.decode)
    (group,) = asyncio.run(play_groups([specs], TreeStrategy(fork_at="token", roots=1, **options), context))
    return group


def say(text: str) -> str:
    """First "go", then "no"; after a "y" in the second turn, the rest of "yes"."""
    if "|" not in text:
        return "go"
    return "es" if text.endswith("y") else "no"


def test_a_branch_goes_on_from_the_token_that_was_nearly_written() -> None:
    policy = Wavering(say)
    first, second = play(policy)
    assert [first.info["said"], second.info["said"]] == [["go", "no"], ["go", "yes"]]
    assert (second.reward, second.origin, second.parent_id, second.fork_turn) == (
        1,
        Origin.BRANCH,
        first.id,
        1,
    )
    own = [s for s in second.segments if s.kind is SegmentKind.POLICY]
    assert [TOKENIZER.decode(s.ids) for s in own] == ["go", "y", "es"]
    assert [s.turn for s in own] == [0, 1, 1]
    assert own[1].logprobs == pytest.approx([math.log(0.4)])
    assert {s.version for s in own} == {3}
    # The shared turn is trained in the first leaf, and the token of the fork was not sampled.
    assert [s.trained for s in own] == [False, False, True]
    # "go" and "no" are the first leaf's; the branch sampled "es", with one token less to spend on the turn
    assert [t.info["strategy"]["sampled_tokens"] for t in (first, second)] == [4, 2]
    assert policy.asked == [20, 20, 19]


def test_each_sampled_token_is_trained_once_and_a_forced_one_never() -> None:
    """The first leaf samples "go" and "menu"; the branch copies "me", is given "y" in place of "n", and samples "es"."""

    def long(text: str) -> str:
        return "go" if "|" not in text else "es" if text.endswith("y") else "menu"

    first, second = play(Wavering(long), max_similarity=1.1, depth=1)
    assert [first.info["said"], second.info["said"]] == [["go", "menu"], ["go", "meyes"]]
    trained = [TOKENIZER.decode(t.ids[t.loss_mask].tolist()) for t in (first, second)]
    assert trained == ["gomenu", "es"]


def test_a_branch_that_writes_the_same_is_dropped_and_counted() -> None:
    def again(text: str) -> str:
        return "gone" if text[-1] != "y" else "e"  # "gone" and "goye": all but the token itself

    (only,) = play(Wavering(lambda text: "no" if "|" in text else again(text)), max_similarity=0.4, depth=1)
    assert only.info["strategy"] == {"tree_branches": 1, "tree_dropped": 1, "sampled_tokens": 4 + 2 + 1}
    kept = play(Wavering(lambda text: "no" if "|" in text else again(text)), max_similarity=1.1, depth=1)
    assert [t.info["said"][0] for t in kept] == ["gone", "goye"]


def test_branches_of_branches_hold_the_whole_turn() -> None:
    """Each branch leaves at the first "n" that it wrote itself; the rest of the turn is sampled anew."""

    def more(text: str) -> str:
        tail = text.rpartition("|")[2] if "|" in text else text[-3:]
        return "nn" if "|" in text and tail == "" else ("n" if tail == "y" else "" if "|" in text else "go")

    leaves = play(Wavering(lambda t: more(t) or "!"), slots=4, depth=2, max_similarity=1.1)
    assert [t.info["said"][1] for t in leaves] == ["nn", "yn", "yy!"]
    second_turn = [t.ids[t.loss_mask & (t.turn_index == 1)].tolist() for t in leaves]
    assert [TOKENIZER.decode(ids) for ids in second_turn] == ["nn", "n", "!"]


def test_who_cannot_tell_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"ScriptedPolicy.*hf:PATH"):
        play(ScriptedPolicy({}))


def test_the_two_most_likely_tokens_of_a_model(qwen: Callable[..., Any]) -> None:
    policy, ids = HFPolicy(qwen(), TOKENIZER), TOKENIZER.encode("no doubt")
    found = asyncio.run(policy.top_two(ids, 3, temperature=0.7))
    assert len(found) == len(ids) - 3
    for place, ((first, high), (second, low)) in enumerate(found, start=3):
        for token, logprob in ((first, high), (second, low)):
            scored = asyncio.run(policy.score([*ids[:place], token], temperature=0.7))
            assert scored[-1] == pytest.approx(logprob, abs=1e-4)
        assert high >= low
