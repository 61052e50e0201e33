"""Tree decoding: what is shared is sampled and executed once, and the majority of what answers give decides."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from agentenv.core.chat import InlineFormat
from agentenv.core.rollout import EpisodeSpec, RolloutConfig
from agentenv.core.trajectory import Segment, SegmentKind, Trajectory
from agentenv.core.types import Completion, EndReason, Sampling, Task
from agentenv.envs.calculator import Calculator
from agentenv.errors import ConfigurationError, PolicyFault
from agentenv.policies.fakes import ByteTokenizer
from agentenv.policies.scripted import complete
from agentenv.trainers.strategies.rollout_context import RolloutContext
from agentenv.trainers.strategies.strategies import get_strategy, play_groups
from agentenv.trainers.strategies.tree_decode import elected

TOKENIZER = ByteTokenizer()
TASK = Task("sum", "2 * 3 - 1", ("5",))
TURN = (1 << 52) - 1
"""The bits of a seed of an episode with the seed 0 that say which turn it is; those above say which attempt."""
CALL = '<tool_call>{{"name": "calculate", "arguments": {{"expression": "{}"}}}}</tool_call>'


def leaf(vote: str | None, logprob: float = -1.0, **changes: Any) -> Trajectory:
    segment = Segment(SegmentKind.POLICY, (1, 2), 0, logprobs=(logprob, logprob))
    info = {"vote": vote} if vote != "none" else {}
    return replace(Trajectory(TASK, (segment,), (), 0.0, EndReason.SUBMITTED, info=info), **changes)


def test_the_majority_wins_and_its_likeliest_leaf_is_kept() -> None:
    leaves = [leaf("a", -0.1), leaf("b", -2.0), leaf("b", -1.0), leaf(None, 0.0)]
    assert elected(leaves) == (leaves[2], 2)


def test_a_tie_goes_to_the_likeliest() -> None:
    leaves = [leaf("a", -2.0), leaf("b", -1.0), leaf("a", -2.0), leaf("b", -3.0)]
    assert elected(leaves) == (leaves[1], 2)


def test_faults_do_not_vote() -> None:
    broken: Any = {"valid": False, "end_reason": EndReason.ENV_FAULT}
    leaves = [leaf("a", **broken), leaf("a", **broken), leaf("b", -5.0)]
    assert elected(leaves) == (leaves[2], 1)
    assert not elected(leaves[:2])[0].valid
    assert elected([leaf(None, -3.0), leaf(None, -2.0)])[0].logprobs[0] == -2.0


def test_an_answer_is_a_vote_where_nothing_else_is() -> None:
    leaves = [leaf("none", info={"answer": "x"}), leaf("none", -9.0, info={"answer": "y"})]
    leaves.append(replace(leaves[1], id="z"))
    assert elected(leaves) == (leaves[1], 2)


class Branching:
    """Writes what the attempt says in the first turn, and in the second an answer that depends on what it was shown."""

    version = 0
    tokenizer = TOKENIZER

    def __init__(self, first: Sequence[str]) -> None:
        self.first, self.asked = first, 0

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
    ) -> Completion:
        self.asked += 1
        turn, attempt = sampling.seed & TURN, sampling.seed >> 52
        if turn == 0:
            return complete(self.first[attempt], TOKENIZER, sampling)
        called = TOKENIZER.decode(prompt_ids).rpartition('"expression": "')[2]
        return complete("5" if called.startswith("2 * 3 - 1") else "6", TOKENIZER, sampling)

    def release(self, episode: str) -> None: ...


def decoded(policy: Any, **options: Any) -> Trajectory:
    settings = RolloutConfig(context_tokens=4000, turn_tokens=500, temperature=0.0)
    context = RolloutContext(policy, InlineFormat(TOKENIZER), settings, TOKENIZER.decode)
    strategy = get_strategy("tree_decode", options)
    ((played,),) = asyncio.run(play_groups([[EpisodeSpec(Calculator(), TASK, 0, "g")]], strategy, context))
    return played


def test_two_first_actions_are_two_branches_and_equal_ones_are_one() -> None:
    first = [CALL.format("2 * 3"), CALL.format("2 * 3 - 1"), CALL.format("2 * 3")]
    policy = Branching(first)
    played = decoded(policy, width=3, leaves=3)
    assert played.info["strategy"]["tree_leaves"] == 2
    # First turns; answers, drafted once where one leaf is left and twice where two are.
    assert policy.asked == 3 + 1 + 2
    assert played.valid


def test_equal_drafts_all_the_way_are_one_plain_episode() -> None:
    policy = Branching([CALL.format("2 * 3 - 1")] * 2)
    played = decoded(policy, leaves=4)
    assert played.reward == 1.0
    figures = played.info["strategy"]
    assert figures["tree_leaves"] == figures["tree_votes"] == 1
    assert figures["sampled_tokens"] == 2 * played.response_tokens  # each turn was drafted twice
    assert figures["tree_saved_tokens"] == -played.response_tokens


class Diverse(Branching):
    """A mostly right first answer."""

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
    ) -> Completion:
        self.asked += 1
        if sampling.seed & TURN == 0:
            return complete(CALL.format("2 * 3") + " " * (sampling.seed >> 52), TOKENIZER, sampling)
        return complete(random.Random(sampling.seed).choice(["5", "5", "5", "4", "3"]), TOKENIZER, sampling)


def test_shared_turns_are_sampled_once() -> None:
    policy = Diverse([])
    played = decoded(policy, leaves=8)
    figures = played.info["strategy"]
    assert 2 <= figures["tree_leaves"] <= 8
    assert figures["sampled_tokens"] > 0
    again = decoded(Diverse([]), leaves=8)
    assert (again.segments, again.info) == (played.segments, played.info)


class Failing(Branching):
    """The engine fails in one of the branches."""

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
    ) -> Completion:
        if (
            sampling.seed & TURN
            and TOKENIZER.decode(prompt_ids).rpartition('"expression": "')[2][:9] == "2 * 3 + 1"
        ):
            raise PolicyFault("gone")
        return await super().generate(prompt_ids, sampling, episode=episode)


def test_a_fault_of_one_branch_leaves_the_others() -> None:
    played = decoded(Failing([CALL.format("2 * 3 + 1"), CALL.format("2 * 3 - 1")]), leaves=2)
    assert (played.valid, played.reward) == (True, 1.0)
    lost = decoded(Failing([CALL.format("2 * 3 + 1")] * 2), leaves=2)
    assert (lost.valid, lost.end_reason) == (False, EndReason.POLICY_FAULT)


@pytest.mark.parametrize("options", [{"width": 1}, {"leaves": 0}, {"temperature": 0.0}], ids=str)
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        get_strategy("tree_decode", options)
