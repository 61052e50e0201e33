"""The figures of a training step: means over valid episodes, and what faults and empty episodes do to them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from agentenv.core.trajectory import Origin, SegmentKind, Trajectory, Turn
from agentenv.core.types import EndReason, ToolResult, ToolStatus
from agentenv.data.sources import Source
from agentenv.policies.fakes import ByteTokenizer
from agentenv.trainers.loop.metrics import lost_episodes, retokenized_share, rollout_metrics, set_metrics

Episode = Callable[..., Trajectory]

SEARCHED = Turn("<search>a</search>", tool_results=(ToolResult("search", ToolStatus.OK),) * 2)
ANSWERED = Turn("<answer>b</answer>")
GARBLED = Turn("hmm", valid=False)


@pytest.fixture
def right(episode: Episode) -> Trajectory:
    """Two prompt tokens, two sampled, one observed, one sampled: log-probs -1, -2 and -3."""
    parts = [
        (SegmentKind.PROMPT, (1, 2)),
        (SegmentKind.POLICY, (3, 4)),
        (SegmentKind.ENV, (5,)),
        (SegmentKind.POLICY, (6,)),
    ]
    return episode(parts, 1.0, logprobs=(-1.0, -2.0, -3.0), turns=(SEARCHED, ANSWERED))


@pytest.fixture
def wrong(episode: Episode) -> Trajectory:
    """One prompt token and one sampled with log-prob -6; it ran out of turns."""
    parts = [(SegmentKind.PROMPT, (1,)), (SegmentKind.POLICY, (2,))]
    return episode(parts, 0.0, logprobs=(-6.0,), turns=(GARBLED,), end_reason=EndReason.TURN_LIMIT)


@pytest.fixture
def fault(episode: Episode) -> Trajectory:
    parts = [(SegmentKind.PROMPT, (1,)), (SegmentKind.POLICY, (2, 2, 2))]
    return episode(parts, 0.0, valid=False, turns=(SEARCHED,), end_reason=EndReason.ENV_FAULT)


def test_lost_episodes_are_counted_with_their_reasons(right: Trajectory, fault: Trajectory) -> None:
    gone = replace(fault, error="EnvFault: the server is gone")
    assert lost_episodes([[right, right], [right]]) == ""
    said = lost_episodes([[right, gone, fault], [gone]])
    assert "3 of 4 episodes" in said
    assert "the server is gone (2)" in said


def test_means_are_over_episodes_turns_or_tokens(right: Trajectory, wrong: Trajectory) -> None:
    metrics = rollout_metrics([[right, wrong]])
    assert metrics["reward_mean"] == 0.5
    assert metrics["reward_std"] == 0.5  # of the population {1, 0}
    assert metrics["entropy"] == 3.0  # (1 + 2 + 3 + 6) / 4 sampled tokens
    assert metrics["format_rate"] == pytest.approx(2 / 3)  # two of three turns
    assert metrics["answer_rate"] == 0.5
    assert metrics["response_tokens"] == 2.0  # (3 + 1) / 2
    assert metrics["episode_tokens"] == 4.0  # (6 + 2) / 2
    assert metrics["searches_per_episode"] == 1.0  # (2 + 0) / 2
    assert metrics["extra_rows"] == 0
    assert (metrics["end_answered"], metrics["end_turn_limit"]) == (1, 1)
    assert "end_aborted" not in metrics


def test_of_an_episode_that_was_given_up_only_its_tokens_count(right: Trajectory, wrong: Trajectory) -> None:
    given_up = replace(wrong, valid=False, end_reason=EndReason.ABORTED)
    without, with_it = rollout_metrics([[right]]), rollout_metrics([[right]], [given_up])
    assert with_it == without | {"sampled_tokens": 3 + 1}


def test_each_set_has_its_own_mean_over_the_episodes_that_count(
    right: Trajectory, wrong: Trajectory, fault: Trajectory
) -> None:
    def of(name: str, trajectory: Trajectory, **changes: Any) -> Trajectory:
        task = replace(trajectory.task, id=f"{name}:1", data={"set": name})
        return replace(trajectory, task=task, **changes)

    sets = Source("one+two+three", "train", (), None, None, parts=("one", "two", "three"))
    groups = [
        [of("one", right), of("one", wrong), of("one", wrong), of("one", right, origin=Origin.REFLECTION)],
        [of("two", fault), of("two", right)],
        [of("three", fault)],
        [right],  # of none of the sets
    ]
    assert set_metrics(groups, sets) == {
        "episodes/one": 3,
        "reward_mean/one": pytest.approx(1 / 3),
        "episodes/two": 1,
        "reward_mean/two": 1.0,
        "episodes/three": 0,
    }
    assert set_metrics(groups, Source("one", "train", (), None, None)) == {}


def test_entropy_is_absent_where_every_token_was_sampled_in_another_context_or_at_another_temperature(
    right: Trajectory, wrong: Trajectory
) -> None:
    """A tree's window samples so; 0 nats would be the sign of a policy that repeats itself."""

    def elsewhere(trajectory: Trajectory) -> Trajectory:
        segments = (replace(s, context_mismatch=s.kind is SegmentKind.POLICY) for s in trajectory.segments)
        return replace(trajectory, segments=tuple(segments))

    assert "entropy" not in rollout_metrics([[elsewhere(right), elsewhere(wrong)]])
    assert rollout_metrics([[elsewhere(right), wrong]])["entropy"] == 6.0


def test_a_fault_is_counted_and_in_no_mean(right: Trajectory, wrong: Trajectory, fault: Trajectory) -> None:
    with_fault, without = rollout_metrics([[right, fault, wrong]]), rollout_metrics([[right, wrong]])
    assert (with_fault.pop("faults"), without.pop("faults")) == (1, 0)
    assert with_fault.pop("end_env_fault") == 1
    # It was sampled all the same.
    assert (with_fault.pop("sampled_tokens"), without.pop("sampled_tokens")) == (7, 4)
    assert with_fault == without


def test_groups_of_equal_rewards_are_flat(right: Trajectory, wrong: Trajectory, fault: Trajectory) -> None:
    groups = [[right, wrong], [right, right], [wrong, fault], [wrong, wrong]]
    assert rollout_metrics(groups)["zero_variance_share"] == 0.75  # one member alone has no variance either


def test_a_group_lost_to_faults_is_not_called_flat(
    right: Trajectory, wrong: Trajectory, fault: Trajectory
) -> None:
    assert rollout_metrics([[right, wrong], [fault, fault]])["zero_variance_share"] == 0.0


def test_episodes_without_a_turn_have_means_of_zero(episode: Episode) -> None:
    stuck = episode([(SegmentKind.PROMPT, (1, 2))], end_reason=EndReason.TOKEN_LIMIT)
    metrics = rollout_metrics([[stuck, stuck]])
    assert (metrics["format_rate"], metrics["response_tokens"]) == (0.0, 0.0)
    assert "entropy" not in metrics


def test_the_log_prob_of_what_was_rewarded(right: Trajectory, wrong: Trajectory, fault: Trajectory) -> None:
    """Over the tokens of episodes above their group's mean; of equal rewards, and of faults, none is."""
    assert rollout_metrics([[right, wrong, fault]])["rewarded_logprob"] == -2.0  # (-1 - 2 - 3) / 3
    assert "rewarded_logprob" not in rollout_metrics([[right, right], [wrong, fault]])


def test_figures_of_a_strategy_are_summed_and_lists_of_them_averaged(
    right: Trajectory, wrong: Trajectory
) -> None:
    one = replace(right, info={"strategy": {"retries": 2, "sampled_tokens": 9, "similarity": [0.5, 1.0]}})
    two = replace(wrong, info={"strategy": {"retries": 1, "similarity": []}})
    metrics = rollout_metrics([[one, two, right]])
    assert metrics["retries"] == 3
    assert metrics["sampled_tokens"] == 9 + 1 + 3
    assert metrics["similarity"] == 0.75
    assert "similarity" not in rollout_metrics([[two, two]])


def test_tokens_of_another_context_are_in_no_mean_log_prob(right: Trajectory, wrong: Trajectory) -> None:
    *rest, last = right.segments
    spliced = replace(right, segments=(*rest, replace(last, context_mismatch=True)))
    metrics = rollout_metrics([[spliced, wrong]])
    assert metrics["entropy"] == 3.0  # (1 + 2 + 6) / 3
    assert metrics["rewarded_logprob"] == -1.5


def test_means_are_over_what_the_policy_did_unaided(episode: Episode, wrong: Trajectory) -> None:
    """A retry of another trajectory, a reflection and a demonstration are in the sums, and in their group's variance."""
    parts = [(SegmentKind.PROMPT, (1,)), (SegmentKind.POLICY, (2, 3))]
    aided = [
        episode(parts, 1.0, turns=(ANSWERED,), origin=origin, parent_id=parent)
        for origin, parent in (
            (Origin.RETRY, "wrong"),
            (Origin.REFLECTION, "wrong"),
            (Origin.DEMONSTRATION, None),
        )
    ]
    metrics = rollout_metrics([[wrong, aided[0]], *([t] for t in aided[1:])])
    assert (metrics["reward_mean"], metrics["format_rate"], metrics["response_tokens"]) == (0.0, 0.0, 1.0)
    assert metrics["zero_variance_share"] == 0.0
    assert metrics["sampled_tokens"] == 7
    assert "end_answered" not in metrics
    alone = episode(parts, 1.0, turns=(ANSWERED,), origin=Origin.RETRY)  # the only try that its strategy kept
    assert rollout_metrics([[alone]])["reward_mean"] == 1.0


def test_the_share_of_right_verdicts(right: Trajectory, wrong: Trajectory) -> None:
    said = [replace(right, info={"verdicts_right": share}) for share in (1.0, 0.5)]
    assert rollout_metrics([[*said, wrong]])["verdicts_right"] == 0.75
    assert "verdicts_right" not in rollout_metrics([[right, wrong]])


def test_the_share_of_right_answers_that_are_flawed(right: Trajectory, wrong: Trajectory) -> None:
    said = [replace(right, info={"flawed": flawed}) for flawed in (True, False, False, False)]
    assert rollout_metrics([[*said, wrong]])["flawed_share"] == 0.25
    assert "flawed_share" not in rollout_metrics([[right, wrong]])


def test_how_many_turns_would_change_if_their_text_were_encoded_again(episode: Episode) -> None:
    """Of four turns one ends within a character, whose bytes no text gives back; a turn may have several segments."""
    whole, half, end = tuple("né".encode()), tuple("né".encode()[:2]), (256,)
    parts = [
        (SegmentKind.PROMPT, half),
        (SegmentKind.POLICY, whole + end),
        (SegmentKind.ENV, half),
        (SegmentKind.POLICY, half),
    ]
    played = episode(parts)
    split = episode(
        [(SegmentKind.POLICY, whole[:2]), (SegmentKind.POLICY, whole[2:]), (SegmentKind.ENV, half)]
    )
    joined = replace(split, segments=tuple(replace(s, turn=0) for s in split.segments))
    assert retokenized_share([[played], [joined, joined]], ByteTokenizer()) == {"retokenized_share": 0.25}
    assert retokenized_share([[], [episode([(SegmentKind.PROMPT, half)])]], ByteTokenizer()) == {}
