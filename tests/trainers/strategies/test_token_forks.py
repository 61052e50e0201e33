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
from agentenv.trainers.strategies.token_forks import (
    AlternativeToken,
    Lookahead,
    Ranked,
    alternatives_of,
    rouge_l,
    share_at,
    similarity_of,
    suffix_match,
)
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
        # Neither was written.
        ("c", ranked(("a", 0.4, "b", 0.3)), AlternativeToken(0, ord("a"), math.log(0.4))),
        ("a", ranked(("a", 0.3, "b", 0.14)), None),  # not likely by itself
        ("a", ranked(("a", 0.6, "b", 0.3)), None),  # .3 behind
    ],
)
def test_the_place_and_the_rival(
    written: str, found: list[Ranked], expected: AlternativeToken | None
) -> None:
    assert alternatives_of([ord(c) for c in written], found) == ([expected] if expected else [])


def test_every_place_of_a_turn_counts() -> None:
    near = ranked(("a", 0.5, "x", 0.4), ("b", 0.9, "y", 0.1), ("c", 0.4, "z", 0.3))
    assert [(a.place, a.token) for a in alternatives_of([ord(c) for c in "abc"], near)] == [
        (0, ord("x")),
        (2, ord("z")),
    ]


def test_the_ends_of_two_windows() -> None:
    """Of "xabc" the end "abc" stands in "abcy": 3 of 4; of the other only "" does. Nothing of "ab" ends in "cd"."""
    assert suffix_match(list(b"xabc"), list(b"abcy")) == 0.75
    assert suffix_match(list(b"abcy"), list(b"xabc")) == 0.75
    assert suffix_match([1, 2], [3, 4]) == 0
    assert suffix_match([1, 2], [2, 2]) == 0.5
    assert suffix_match([5, 6], [5, 6]) == 1


def test_longest_common_subsequence() -> None:
    """1 3 4 of 1 2 3 4 and 1 3 4 9: three of four."""
    assert rouge_l([1, 2, 3, 4], [1, 3, 4, 9]) == 0.75
    assert rouge_l([1], [2]) == 0


def test_a_branch_is_compared_at_each_window_that_both_outlast() -> None:
    """Only the fourth of five tokens is the same in both: a window of three does not see it, one of four ends with it."""
    own, other = [1, 2, 3, 9, 5], [4, 6, 7, 9, 8]
    strict = {"max_suffix_match": 0.2, "max_rouge_l": 1.0, "max_similarity": 9.0}
    assert not Lookahead(windows=(3,), **strict).drops(own, other)
    assert Lookahead(windows=(3, 4), **strict).drops(own, other)  # 1 / 4 > .2
    assert not Lookahead(windows=(3, 5), **strict).drops(own, other)  # it ends there
    # The longest common subsequence of four is "9": 1 / 4; the edit distance is 3 of 4.
    by_rouge = Lookahead(windows=(4,), max_suffix_match=1.0, max_rouge_l=0.24)
    assert by_rouge.drops(own, other)
    assert not Lookahead(windows=(4,), max_suffix_match=1.0, max_rouge_l=0.25).drops(own, other)
    by_edits = Lookahead(windows=(4,), max_suffix_match=1.0, max_rouge_l=1.0, min_edit_distance=0.76)
    assert by_edits.drops(own, other)
    assert not Lookahead(windows=(4,), max_suffix_match=1.0, max_rouge_l=1.0, min_edit_distance=0.75).drops(
        own, other
    )


def test_the_share_of_trees_falls_with_the_steps() -> None:
    published = ((0, 1.0), (100, 0.75), (200, 0.5), (300, 0.25))
    assert [share_at(published, step) for step in (0, 99, 100, 250, 900)] == [1.0, 1.0, 0.75, 0.5, 0.25]
    assert share_at(((5, 0.5),), 1) == 0.5


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


def play(policy: Any, *, slots: int = 2, step: int = 0, **options: Any) -> list[Trajectory]:
    specs = [EpisodeSpec(Echo(), Task("t", "q"), seed, "g") for seed in range(slots)]
    config = RolloutConfig(turn_tokens=20)
    context = RolloutContext(policy, InlineFormat(TOKENIZER), config, TOKENIZER.decode, step=step)
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
    assert [t.info["said"][1] for t in leaves] == ["nn", "ny!", "yn", "yy!"]
    second_turn = [t.ids[t.loss_mask & (t.turn_index == 1)].tolist() for t in leaves]
    assert [TOKENIZER.decode(ids) for ids in second_turn] == ["nn", "!", "n", "!"]


def test_no_fork_at_a_token_beyond_the_last_place() -> None:
    """The first turn has two tokens, so the "n" of the second is the third token of the episode."""
    assert len(play(Wavering(say), last_fork=3)) == 2
    assert len(play(Wavering(say), last_fork=2)) == 1


def test_slots_outside_the_share_of_trees_play_an_episode_each() -> None:
    falling = ((0, 1.0), (10, 0.5))
    assert [t.parent_id is None for t in play(Wavering(say), slots=4, share=falling, step=9)] == [True, False]
    later = play(Wavering(say), slots=4, share=falling, step=10)
    assert [(t.id, t.parent_id) for t in later] == [
        ("e-0", None),
        ("e-1", "e-0"),
        ("e-2", None),
        ("e-3", None),
    ]
    none = play(Wavering(say), slots=2, share=((0, 0.0),))
    assert [t.parent_id for t in none] == [None, None]


def test_each_leaf_may_be_trained_as_a_whole() -> None:
    first, second = play(Wavering(say), shared="each")
    trained = [TOKENIZER.decode(t.ids[t.loss_mask].tolist()) for t in (first, second)]
    assert trained == ["gono", "goyes"]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"share": ()}, "share"),
        ({"share": ((5, 0.5), (5, 1.0))}, "share"),
        ({"share": ((0, 1.5),)}, "1.5"),
        ({"windows": (20, 0)}, "20, 0"),
    ],
)
def test_schedules_and_windows_have_bounds(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        TreeStrategy(**options)


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
