"""Self-written information out of the loss by token positions (D4), entropies of queries, and pass@k by hand."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentenv.core.chat import InlineFormat
from agentenv.core.rollout import EpisodeSpec, RolloutConfig
from agentenv.core.trajectory import Segment, SegmentKind, Trajectory
from agentenv.core.types import Completion, Document, EndReason, FinishReason, Task
from agentenv.envs.search.self_search import SelfSearch
from agentenv.policies.fakes import ByteTokenizer
from agentenv.policies.scripted import ScriptedPolicy
from agentenv.retrievers.fakes import InMemoryRetriever
from agentenv.trainers.strategies.rollout_context import RolloutContext
from agentenv.trainers.strategies.self_search import entropy_of_query, mask_information, prefix_lengths
from agentenv.trainers.strategies.strategies import get_strategy, play_groups

TASK = Task("q", "Where is Halvik?", ("Norland",))
DOCUMENTS = [Document("d", "Halvik", "In Norland.")]
BYTES = ByteTokenizer()


def of_bytes(*parts: tuple[SegmentKind, str]) -> Trajectory:
    segments = []
    for turn, (kind, text) in enumerate(parts):
        ids = tuple(BYTES.encode(text))
        logprobs = (-0.5,) * len(ids) if kind is SegmentKind.POLICY else ()
        segments.append(Segment(kind, ids, turn, logprobs=logprobs))
    return Trajectory(TASK, tuple(segments), (), 0.0, EndReason.ANSWERED)


def trained(trajectory: Trajectory) -> str:
    return BYTES.decode([int(i) for i in trajectory.ids[trajectory.loss_mask]])


POLICY, ENV, PROMPT = SegmentKind.POLICY, SegmentKind.ENV, SegmentKind.PROMPT


def test_blocks_of_several_lines_and_blocks_that_repeat_are_masked() -> None:
    """D4: the published mask misses a block with a newline and the second of two equal blocks."""
    text = (
        "<search>é</search><information>one\ntwo</information><think>x</think>"
        "<information>same</information><information>same</information><answer>same</answer>"
    )
    masked = mask_information(of_bytes((PROMPT, "q"), (POLICY, text)), BYTES.decode)
    assert trained(masked) == (
        "<search>é</search><information></information><think>x</think>"
        "<information></information><information></information><answer>same</answer>"
    )
    assert BYTES.decode([int(i) for i in masked.ids]) == "q" + text  # no id has changed


def test_a_block_may_go_through_several_turns_and_only_the_policys_tokens_count() -> None:
    parts = (
        (PROMPT, "between <information> and"),
        (POLICY, "<search>a</search>"),
        (POLICY, "<information>b<search>c</search>"),
        (ENV, "<information>real</information>"),
        (POLICY, "d</information><answer>e</answer>"),
    )
    masked = mask_information(of_bytes(*parts), BYTES.decode)
    assert trained(masked) == "<search>a</search><information></information><answer>e</answer>".replace(
        "</information>", "d</information>"
    )


def test_an_open_block_stays_in_the_loss() -> None:
    text = "<information>never closed <answer>e</answer>"
    assert trained(mask_information(of_bytes((POLICY, text)), BYTES.decode)) == text


def test_rows_are_looked_at_apart() -> None:
    one = of_bytes((PROMPT, "<information>"), (POLICY, "a</information>b<information>c"))
    other = [
        replace(segment, row=1) for segment in of_bytes((PROMPT, "p"), (POLICY, "d</information>")).segments
    ]
    both = replace(one, segments=(*one.segments, *other))
    assert trained(mask_information(both, BYTES.decode)) == "a</information>b<information>cd</information>"


WORDS = st.text(alphabet="aé日😀\n ", max_size=6)


@given(st.lists(WORDS, min_size=1, max_size=5), st.lists(WORDS, min_size=1, max_size=5))
def test_what_is_masked_is_the_content_of_the_blocks_whatever_they_hold(
    inside: list[str], outside: list[str]
) -> None:
    pairs = list(zip(inside, outside, strict=False))
    text = "".join(f"{out}<information>{content}</information>" for content, out in pairs)
    left = "".join(f"{out}<information></information>" for _, out in pairs)
    assert trained(mask_information(of_bytes((POLICY, text)), BYTES.decode)) == left


def test_a_token_with_a_piece_of_tag_and_content_counts_as_content() -> None:
    pieces = ["<information", ">ab", "c<", "/information>", "!"]

    def decode(ids: object) -> str:
        return "".join(pieces[i] for i in ids)  # type: ignore[attr-defined]

    segment = Segment(POLICY, (0, 1, 2, 3, 4), 0, logprobs=(0.0,) * 5)
    masked = mask_information(Trajectory(TASK, (segment,), (), 0.0, EndReason.ANSWERED), decode)
    assert masked.loss_mask.tolist() == [True, False, False, True, True]


@given(st.lists(WORDS, max_size=80))
def test_prefixes_that_are_read_in_windows_have_the_lengths_of_whole_ones(words: list[str]) -> None:
    """Characters of up to four tokens lie across the borders of windows."""
    ids = BYTES.encode("".join(words))
    length = prefix_lengths(ids, BYTES.decode)
    assert [length(n) for n in range(len(ids) + 1)] == [
        len(BYTES.decode(ids[:n])) for n in range(len(ids) + 1)
    ]


def test_the_work_of_masking_grows_with_the_text_and_not_with_its_square() -> None:
    def decoded(blocks: int) -> int:
        """Tokens that were decoded in all."""
        counts = []

        def decode(ids: Sequence[int]) -> str:
            counts.append(len(ids))
            return BYTES.decode(ids)

        mask_information(of_bytes((POLICY, "<information>a</information>" * blocks)), decode)
        return sum(counts)

    assert decoded(160) < 5 * decoded(40)  # the square would be 16 times as much


def test_the_entropy_is_that_of_the_querys_own_tokens() -> None:
    """Two query tokens at p = 1/2 and 1/4: -p log2 p is 1/2 for both; the tags' own probabilities do not count."""
    ids = tuple(BYTES.encode("<search>ab</search>"))
    logprobs = [-9.0] * len(ids)
    logprobs[8:10] = [math.log(0.5), math.log(0.25)]
    completion = Completion(ids, "", tuple(logprobs), FinishReason.STOP)
    assert entropy_of_query(completion, BYTES.decode) == pytest.approx(0.5)
    assert entropy_of_query(Completion((97,), "a", (0.0,), FinishReason.EOS), BYTES.decode) == 0.0


def roll(real: str, *actions: str) -> Trajectory:
    env = SelfSearch(
        tasks=[TASK],
        retriever=InMemoryRetriever(DOCUMENTS),
        real=real,  # type: ignore[arg-type]
    )
    policy = ScriptedPolicy({"e-0": actions})
    config = RolloutConfig(context_tokens=9999, turn_tokens=999, stop=SelfSearch.stop)
    context = RolloutContext(policy, InlineFormat(policy.tokenizer), config, policy.tokenizer.decode)
    groups = asyncio.run(play_groups([[EpisodeSpec(env, TASK, 0)]], get_strategy("self_search"), context))
    return groups[0][0]


def test_the_strategy_plays_an_uninterrupted_text_and_masks_it() -> None:
    played = roll(
        "never",
        "<think>a</think><search>Halvik</search>",
        "<information>In\nNorland</information><think>b</think><answer>Norland</answer>",
    )
    assert (played.reward, played.end_reason) == (1.0, EndReason.ANSWERED)
    assert {segment.kind for segment in played.segments} == {PROMPT, POLICY}
    assert trained(played) == (
        "<think>a</think><search>Halvik</search>"
        "<information></information><think>b</think><answer>Norland</answer>"
    )


def test_the_strategy_tells_entropies_and_real_pages_stay_observations() -> None:
    search = "<think>a</think><search>Halvik</search>"
    played = roll(
        "entropy", search, search, "<information>x</information><think>b</think><answer>Norland</answer>"
    )
    assert [result.name for turn in played.turns for result in turn.tool_results] == ["search", "self_search"]
    assert [segment.kind for segment in played.segments].count(ENV) == 1
    assert "Doc 1" not in trained(played)
