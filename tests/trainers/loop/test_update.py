"""What a batch teaches: its parts, the order of optimiser steps, figures of several, episodes that a limit cut off."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch

from agentenv.core.trajectory import Origin, SegmentKind, Trajectory
from agentenv.core.types import EndReason
from agentenv.errors import ConfigurationError
from agentenv.trainers.config.config_files import override
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.credit.estimators import get_estimator
from agentenv.trainers.credit.outcome import LOG_RATIOS, MEASURED
from agentenv.trainers.credit.progress import progress_info
from agentenv.trainers.learner.learner import Learner, Objective, TrainingRow
from agentenv.trainers.loop.update import (
    Credited,
    assign_credit,
    mean_metrics,
    measured_group,
    split_batch,
    update_weights,
    with_log_ratios,
)

Make = Callable[..., Trajectory]
PROMPT, POLICY = SegmentKind.PROMPT, SegmentKind.POLICY


def credit_of(
    config: TrainConfig, groups: Sequence[list[Trajectory]]
) -> tuple[list[Credited], dict[str, float]]:
    """What ``assign_credit`` makes of them under a configuration; rows without credit are dropped."""
    sections = config.loss, config.reward_shaping, config.rollout
    return assign_credit(*sections, groups, 0, keep_zero_variance=False)


@dataclass
class Noting:
    """A learner that notes what it is told; its loss is the number of its steps."""

    objective: Objective = field(default_factory=lambda: Objective(proximal="recompute"))
    model: Any = None
    said: list[tuple[str, Any]] = field(default_factory=list)

    reads_proximal = Learner.reads_proximal

    def set_learning_rate(self, rate: float) -> None:
        self.said.append(("rate", rate))

    def with_proximal(self, rows: Sequence[TrainingRow]) -> list[TrainingRow]:
        self.said.append(("proximal", lengths(rows)))
        return list(rows)

    def step(self, rows: Sequence[TrainingRow], **counts: float) -> dict[str, float]:
        self.said.append(("step", (lengths(rows), counts)))
        return {"loss": float(counts["update"]), "trained_tokens": float(counts["tokens"])}


class Taking:
    """A policy that takes a new version."""

    version, model = 0, None

    def set_weights(self, weights: Any) -> None:
        self.version += 1


def lengths(rows: Sequence[TrainingRow]) -> list[int]:
    return [len(row.ids) for row in rows]


def group(episode: Make, ends: Sequence[EndReason] = (EndReason.ANSWERED,) * 4) -> list[Trajectory]:
    """Episodes of 1, 2, ... sampled tokens behind a prompt of one, every second one rewarded."""
    return [
        episode([(PROMPT, (0,)), (POLICY, (1,) * (n + 1))], float(n % 2), end_reason=end)
        for n, end in enumerate(ends)
    ]


def updated(
    config: TrainConfig, groups: list[list[Trajectory]], step: int = 1
) -> tuple[Noting, dict[str, Any]]:
    learner = Noting()
    figures = update_weights(config, step, groups, Taking(), learner, rate=0.5)  # type: ignore[arg-type]
    return learner, figures


def test_one_step_on_all_rows_in_their_order(episode: Make) -> None:
    learner, figures = updated(TrainConfig(), [group(episode)])
    counts = {"tokens": 10, "sequences": 4, "update": 0}
    assert learner.said == [("rate", 0.5), ("step", ([2, 3, 4, 5], counts))]
    assert figures == {"loss": 0.0, "trained_tokens": 10.0, "learning_rate": 0.5}


def test_mini_batches_of_every_pass_are_scored_before_the_first_step(episode: Make) -> None:
    config = override(TrainConfig(), ["--optimizer.mini_batches", "2", "--optimizer.updates", "3"])
    learner, figures = updated(config, [group(episode)])
    kinds = [kind for kind, _ in learner.said]
    assert kinds == ["rate", "proximal", "proximal", *["step"] * 6]
    steps = [told for kind, told in learner.said if kind == "step"]
    parts = [rows for rows, _ in steps[:2]]
    assert sorted(parts[0] + parts[1]) == [2, 3, 4, 5]
    assert [rows for rows, _ in steps] == parts * 3
    # All six together are one version, in which the ages of tokens are counted.
    assert [counts["update"] for _, counts in steps] == [n / 6 for n in range(6)]
    assert [counts["tokens"] for _, counts in steps[:2]] == [sum(part) - len(part) for part in parts]
    assert [counts["sequences"] for _, counts in steps] == [2] * 6
    assert [one["loss"] for one in figures["updates"]] == [n / 6 for n in range(6)]
    assert (figures["loss"], figures["trained_tokens"]) == (4.5 / 6, 10)


@pytest.mark.parametrize(
    ("proximal", "off_context", "spliced", "scored"),
    [
        ("recompute", "recompute", False, True),
        ("sampler", "recompute", False, False),  # the recorded ones stand in every ratio
        ("interpolate", "recompute", False, False),  # AReaL: without a forward pass
        ("interpolate", "recompute", True, True),
        ("sampler", "ratio", True, False),
    ],
)
def test_log_probs_are_computed_before_several_steps_only_where_a_ratio_reads_them(
    episode: Make, proximal: Any, off_context: Any, spliced: bool, scored: bool
) -> None:
    config = override(TrainConfig(), ["--optimizer.mini_batches", "2"])
    correction = TrainConfig().loss.correction.model_copy(update={"off_context": off_context})
    learner = Noting(Objective(proximal=proximal, correction=correction))
    played = group(episode)
    if spliced:
        played = [
            replace(t, segments=tuple(replace(s, context_mismatch=s.kind is POLICY) for s in t.segments))
            for t in played
        ]
    update_weights(config, 1, [played], Taking(), learner, rate=0.5)  # type: ignore[arg-type]
    assert ("proximal" in [kind for kind, _ in learner.said]) is scored


def test_parts_are_drawn_anew_for_every_step_and_again_alike() -> None:
    credited = [Credited((), tokens) for tokens in range(20)]
    drawn = {
        tuple(one.tokens for part in split_batch(credited, 3, (0, step)) for one in part) for step in range(8)
    }
    assert len(drawn) == 8
    assert split_batch(credited, 3, (0, 5)) == split_batch(credited, 3, (0, 5))
    assert [len(part) for part in split_batch(credited, 3, (0, 5))] == [7, 7, 6]
    assert Counter(one.tokens for part in split_batch(credited, 3, (0, 5)) for one in part) == Counter(
        range(20)
    )
    assert split_batch(credited, 1, (0, 5)) == [credited]


def test_figures_of_several_steps_are_means_and_tokens_a_sum() -> None:
    steps = [{"loss": 1.0, "trained_tokens": 3.0}, {"loss": 2.0, "trained_tokens": 4.0}]
    assert mean_metrics(steps) == {"loss": 1.5, "trained_tokens": 7.0}
    assert mean_metrics(steps[:1]) == steps[0]
    empty = {"loss": 0.0, "trained_tokens": 0.0}  # a mini-batch of which nothing is trained
    for parts in ([empty, {**steps[1], "policy_entropy": 0.5}], [{**steps[1], "policy_entropy": 0.5}, empty]):
        assert mean_metrics(parts) == {"loss": 1.0, "trained_tokens": 4.0, "policy_entropy": 0.5}


def test_episodes_that_a_limit_cut_off_are_left_out_and_counted(episode: Make) -> None:
    """Their rewards still make the mean that the others are compared with."""
    ends = (EndReason.ANSWERED, EndReason.TURN_LIMIT, EndReason.TOKEN_LIMIT, EndReason.ANSWERED)
    played = [group(episode, ends)]
    config = override(TrainConfig(), ["--loss.mask_truncated", "true"])
    all_of_them, none = credit_of(TrainConfig(), played)
    kept, masked = credit_of(config, played)
    assert (len(all_of_them), none, len(kept), masked) == (4, {}, 2, {"truncated_masked": 2})
    assert [one.tokens for one in kept] == [1, 4]
    for one, same in zip(kept, (all_of_them[0], all_of_them[3]), strict=True):
        np.testing.assert_array_equal(one.rows[0].advantages, same.rows[0].advantages)
    assert updated(config, played)[1]["truncated_masked"] == 2
    assert "truncated_masked" not in updated(TrainConfig(), played)[1]


def test_weights_and_norms_are_measured_where_outcomes_differ(
    table: Callable[..., Any], episode: Make
) -> None:
    """One token of probability p: the gradient in two logits is (1 - p) and -(1 - p), so its norm is (1 - p) sqrt 2."""
    model = table(4)
    learner = Learner(model, Objective(), learning_rate=0.1)
    played = [episode([(PROMPT, (0,)), (POLICY, (1,))], reward, logprobs=[-0.5]) for reward in (0.0, 1.0)]
    first, second = measured_group(played, learner, 0)
    with torch.no_grad():
        logprob = model.logprob([0], 1).item()
    expected = [math.exp(logprob + 0.5), (1 - math.exp(logprob)) * math.sqrt(2)]
    assert first.info[MEASURED] == pytest.approx(expected, abs=1e-6)
    assert second.info[MEASURED] == first.info[MEASURED]
    assert model.head.weight.grad is None
    config = override(
        TrainConfig(), ["--loss.estimator", "optimal_baseline", "--loss.estimator_options.norm", "gradient"]
    )
    figures = update_weights(config, 1, [played], Taking(), learner, rate=0.5)  # type: ignore[arg-type]
    assert figures["grad_norm"] > 0


def test_equal_outcomes_that_shaping_makes_differ_are_measured_as_well(
    table: Callable[..., Any], episode: Make
) -> None:
    learner = Learner(table(4), Objective(), learning_rate=0.1)
    one = episode([(PROMPT, (0,)), (POLICY, (1,))], 0.0, logprobs=[-0.5])
    played = [replace(one, end_reason=end) for end in (EndReason.ANSWERED, EndReason.TURN_LIMIT)]
    config = override(
        TrainConfig(),
        [
            *("--loss.estimator", "optimal_baseline", "--loss.estimator_options.norm", "gradient"),
            *("--reward_shaping.answer_penalty", "0.5"),
        ],
    )
    policy: Any = Taking()
    figures = update_weights(config, 1, [played], policy, learner, rate=0.1)
    assert figures["trained_tokens"] == 2


def test_credit_is_multiplied_by_the_weight_of_the_task_sampler(episode: Make) -> None:
    played = group(episode)
    weighed = [replace(trajectory, info={"credit_weight": 3.0}) for trajectory in played]
    (plain, _), (heavy, _) = (credit_of(TrainConfig(), [g]) for g in (played, weighed))
    for one, other in zip(plain, heavy, strict=True):
        np.testing.assert_allclose(other.rows[0].advantages, 3 * one.rows[0].advantages)


def test_the_penalty_in_the_return_is_measured_against_the_reference(
    table: Callable[..., Any], episode: Make
) -> None:
    """Of each trained token log pi - log ref, by the two models; a demonstration and a failed episode are left alone."""
    model, reference = table(4), table(4, seed=1)
    learner = Learner(model, Objective(), learning_rate=0.1, reference=reference)
    one = episode([(PROMPT, (0,)), (POLICY, (1, 0)), (SegmentKind.ENV, (1,)), (POLICY, (1,))], 1.0)
    two = episode([(PROMPT, (0,)), (POLICY, (0,))], 0.0)
    shown = replace(two, origin=Origin.DEMONSTRATION)
    (first, second), (third, lost) = with_log_ratios(
        [[one, two], [shown, replace(one, valid=False)]], learner
    )
    wanted = [0.0] * 5
    with torch.no_grad():
        for place, history, token in ((1, [0], 1), (2, [0, 1], 0), (4, [0, 1, 0, 1], 1)):
            wanted[place] = (model.logprob(history, token) - reference.logprob(history, token)).item()
        last = (model.logprob([0], 0) - reference.logprob([0], 0)).item()
    assert first.info[LOG_RATIOS] == pytest.approx(wanted, abs=1e-6)
    assert second.info[LOG_RATIOS] == pytest.approx([0.0, last], abs=1e-6)
    assert LOG_RATIOS not in third.info | lost.info
    words = ["--loss.estimator", "reinforce_pp", "--loss.estimator_options.kl_coefficient", "0.5"]
    figures = update_weights(override(TrainConfig(), words), 1, [[one, two]], Taking(), learner, rate=0.5)  # type: ignore[arg-type]
    assert figures["grad_norm"] > 0
    with pytest.raises(ConfigurationError, match="reference"):
        with_log_ratios([[one]], Learner(model, Objective(), learning_rate=0.1))


def test_the_deviation_of_the_whole_batch_scales_every_group(episode: Make) -> None:
    """Rewards 1, 0 and 3, 0 have the mean 1 and the deviation sqrt((0 + 1 + 4 + 1) / 3) = sqrt 2: +-.5 and +-1.5 over it.

    A failed episode is in no deviation.
    """
    groups = [
        [episode([(PROMPT, (0,)), (POLICY, (1,))], reward) for reward in rewards]
        for rewards in ((1.0, 0.0), (3.0, 0.0))
    ]
    groups[0].append(replace(groups[0][0], reward=90.0, valid=False))
    config = override(TrainConfig(), ["--loss.estimator_options.scale", "batch"])
    credited, _ = credit_of(config, groups)
    values = [one.rows[0].advantages[-1] for one in credited]
    assert values == pytest.approx([s / math.sqrt(2) for s in (0.5, -0.5, 1.5, -1.5)], abs=1e-5)
    plain, _ = credit_of(TrainConfig(), groups)
    assert [one.rows[0].advantages[-1] for one in plain] == pytest.approx(
        [math.sqrt(0.5), -math.sqrt(0.5)] * 2, abs=1e-5
    )
    with pytest.raises(ConfigurationError, match="scale='batch'"):
        get_estimator("group_relative", {"scale": "batch"})(groups[0])


def test_each_penalty_of_a_step_is_a_figure_of_its_own(episode: Make) -> None:
    """Episodes of 2, 3, 4 and 5 tokens, rewarded 0, 1, 0 and 1; the last has no answer, and a buffer of 4 ends at 6."""
    ends = (EndReason.ANSWERED,) * 3 + (EndReason.TURN_LIMIT,)
    words = (
        "--rollout.context_tokens 6 --rollout.turn_tokens 2 --reward_shaping.overlong_buffer 4 "
        "--reward_shaping.answer_penalty 0.2 --reward_shaping.relative_length 0.1"
    )
    _, figures = credit_of(override(TrainConfig(), words.split()), [group(episode, ends)])
    # 0, 1/4, 2/4 and 3/4 over the buffer; 4 tokens sampled are 1 above the mean of 2 and 4, in deviations of root 2
    expected = {"overlong_penalty": 1.5 / 4, "answer_penalty": 0.2 / 4, "length_penalty": 0.1 / 2**0.5 / 4}
    assert figures == pytest.approx(expected)
    assert credit_of(TrainConfig(), [group(episode, ends)])[1] == {}


def test_how_many_episodes_got_a_bonus_for_novelty_is_a_figure(episode: Make) -> None:
    """Two of four are right, and one of these was less likely than the group."""
    played = [
        episode([(PROMPT, (0,)), (POLICY, (1,))], reward, logprobs=[logprob])
        for reward, logprob in ((1.0, -2.0), (1.0, -0.1), (0.0, -1.0), (0.0, -1.0))
    ]
    config = override(TrainConfig(), ["--reward_shaping.novelty", "2.5"])
    assert credit_of(config, [played])[1] == {"novelty_share": 0.25}


def test_progress_towards_the_expert_is_credit_and_widens_the_bound_of_its_group(turns: Make) -> None:
    """Half of the group succeeds, so lambda 2 is 1: progress -1 and -3 is +-.7071 a turn, the margin .08, and no more."""
    played = [
        progress_info(turns([1.0], id="a"), {0: -3.0}, success_rate=0.5),
        progress_info(turns([0.0], id="b"), {0: -1.0}, success_rate=0.5),
    ]
    words = (
        "--rollout.strategy tree --rollout.strategy_options.window 2 --rollout.strategy_options.progress true"
    )
    config = override(TrainConfig(), [*words.split(), "--reward_shaping.progress", "2"])
    plain, _ = credit_of(TrainConfig(), [played])
    led, figures = credit_of(config, [played])
    assert figures == {"progress_share": 1.0}
    assert [one.rows[0].clip_margin for one in (*plain, *led)] == [None, None, 0.08, 0.08]
    added = [led[i].rows[0].advantages[-1] - plain[i].rows[0].advantages[-1] for i in (0, 1)]
    assert added == pytest.approx([-0.70711, 0.70711], abs=1e-4)


@pytest.mark.parametrize(
    ("option", "shared"), [([], 0.0), (["--rollout.strategy_options.shared", "each"], -0.5)]
)
def test_the_leaf_that_trains_a_shared_turn_has_the_credit_of_all_leaves(
    turns: Make, option: list[str], shared: float
) -> None:
    """Outcomes 0 and 1 less their mean are -1/2 and 1/2; the turn that both begin with is trained in the first leaf."""
    played = [turns([0.0, 0.0], id="a"), turns([0.0, 1.0], id="b", parent_id="a", fork_turn=1)]
    words = ["--rollout.strategy", "tree", "--loss.estimator", "dr_grpo", *option]
    credited, _ = credit_of(override(TrainConfig(), words), [played])
    values = credited[0].rows[0].advantages[played[0].loss_mask]
    assert (values[0], values[-1]) == (shared, -0.5)


def test_turns_that_lead_back_get_no_credit_and_are_counted(turns: Make) -> None:
    """The first action of the success changed nothing; that of the failure did not either, and is blamed all the same."""

    def looped(reward: float, name: str) -> Trajectory:
        made = turns([0.0, reward], id=name)
        return replace(made, turns=tuple(replace(turn, anchor_key="A") for turn in made.turns))

    played = [looped(1.0, "a"), looped(0.0, "b")]
    config = override(TrainConfig(), ["--loss.mask_redundant", "true"])
    plain, _ = credit_of(TrainConfig(), [played])
    masked, _ = credit_of(config, [played])
    trained = [np.flatnonzero(one.rows[0].mask) for one in plain]
    first = [int(places[0]) for places in trained]
    assert masked[0].rows[0].advantages[first[0]] == 0.0
    assert masked[0].rows[0].advantages[trained[0][-1]] == plain[0].rows[0].advantages[trained[0][-1]] > 0
    assert masked[1].rows[0].advantages[first[1]] == plain[1].rows[0].advantages[first[1]] < 0
    assert [one.tokens for one in masked] == [one.tokens for one in plain]
    _, figures = updated(config, [played])
    assert figures["redundant_masked"] == 2


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        ("--loss.estimator anchor_state", "anchor_state"),
        ("--loss.mask_redundant true", "mask_redundant"),
        ("--loss.estimator anchor_state --loss.estimator_options.turn_weight 0.0", ""),
        ("--loss.estimator dr_grpo", ""),
    ],
)
def test_what_compares_states_is_refused_where_no_turn_names_one(
    turns: Make, words: str, refused: str
) -> None:
    """It would be plain GRPO, or mask nothing, without a word."""
    played = [turns([0.0, 1.0], id="a"), turns([0.0, 0.0], id="b")]
    keyless = [replace(t, turns=tuple(replace(turn, anchor_key=None) for turn in t.turns)) for t in played]
    keyed = [replace(t, turns=tuple(replace(turn, anchor_key="s") for turn in t.turns)) for t in played]
    config = override(TrainConfig(), words.split())
    updated(config, [keyed])
    updated(config, [[replace(t, valid=False) for t in keyless]])  # of a lost batch nothing is known
    if not refused:
        updated(config, [keyless])
        return
    with pytest.raises(ConfigurationError, match=refused):
        updated(config, [keyless])


def test_a_batch_of_which_nothing_is_left_makes_a_step_without_a_gradient(episode: Make) -> None:
    config = override(TrainConfig(), ["--loss.mask_truncated", "true"])
    learner, _ = updated(config, [group(episode, (EndReason.TURN_LIMIT,) * 4)])
    assert learner.said[-1] == ("step", ([], {"tokens": 0, "sequences": 0, "update": 0}))


def test_the_step_size_follows_warm_up_schedule_and_the_guard(episode: Make) -> None:
    """Of 8 steps 2 are warm-up: half of .5 in the first; after 2 more, 4 of 6 are left: 2/3 of it, times the guard's .1."""
    words = "--optimizer.steps 8 --optimizer.warmup_steps 2 --optimizer.schedule linear"
    config = override(TrainConfig(), words.split())
    assert updated(config, [group(episode)], step=1)[1]["learning_rate"] == 0.25
    broad = override(config, ["--optimizer.reference_batch", "32"])  # 16 questions of 8: twice the root
    assert updated(broad, [group(episode)], step=1)[1]["learning_rate"] == 0.5
    learner = Noting()
    policy: Any = Taking()
    found = update_weights(config, 5, [group(episode)], policy, learner, rate=0.5, factor=0.1)  # type: ignore[arg-type]
    assert found["learning_rate"] == pytest.approx(0.5 * 2 / 3 * 0.1)
    assert policy.version == 1
