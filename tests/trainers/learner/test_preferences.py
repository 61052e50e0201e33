"""Preferences: the loss by hand, and that the step's gradient is that of direct preference optimisation."""

import copy
import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from agentenv.core.trajectory import Origin, SegmentKind, Trajectory
from agentenv.errors import ConfigurationError
from agentenv.policies.fakes import random_policy
from agentenv.policies.hf import HFPolicy
from agentenv.trainers.config.config_files import override
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.credit.preference_pairs import PAIR, preference
from agentenv.trainers.learner.learner import Learner, Objective
from agentenv.trainers.learner.preferences import one_turn, pair_loss, prefer
from agentenv.trainers.loop.update import update_weights

Make = Callable[..., Trajectory]


def test_the_loss_of_a_pair_by_hand() -> None:
    assert pair_loss(0.0, 0.0) == pytest.approx((math.log(2), 0.05))
    # m = .1 * (2 - -8) = 1: -log sigmoid(1) = .3133, .1 sigmoid(-1) = .0269
    assert pair_loss(2.0, -8.0) == pytest.approx((0.313262, 0.0268941), rel=1e-4)
    assert pair_loss(-8.0, 2.0) == pytest.approx((1.313262, 0.0731059), rel=1e-4)
    assert pair_loss(1e5, -1e5) == pytest.approx((0.0, 0.0))
    assert pair_loss(-1e5, 1e5) == pytest.approx((2e4, 0.1))


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> HFPolicy:
    folder = tmp_path_factory.mktemp("preferences")
    random_policy(folder, ["a b c d e f g h i j"])
    return HFPolicy.load(folder)


def pair(episode: Make, name: str, better: tuple[int, ...], worse: tuple[int, ...]) -> list[Trajectory]:
    """Two turns each, of which the second is compared."""
    made = []
    for said, ids in ((True, better), (False, worse)):
        parts = [
            (SegmentKind.PROMPT, (1, 2)),
            (SegmentKind.POLICY, (3, 4)),
            (SegmentKind.ENV, (5,)),
            (SegmentKind.POLICY, ids),
        ]
        trajectory = episode(parts, 0.0, id=f"{name}-{said}")
        turns = {0: 0, 1: 0, 2: 0, 3: 1}
        segments = tuple(replace(s, turn=turns[i]) for i, s in enumerate(trajectory.segments))
        made.append(replace(trajectory, segments=segments, info=preference(name, 1, better=said)))
    return made


def logprob(model: Any, ids: list[int], count: int) -> torch.Tensor:
    """Of the last ``count`` tokens."""
    logits = model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
    places = range(len(ids) - count, len(ids))
    return torch.stack([logits[at - 1, ids[at]] for at in places]).sum()


def test_the_gradient_is_that_of_the_loss(policy: HFPolicy, episode: Make) -> None:
    reference, model = copy.deepcopy(policy.model), copy.deepcopy(policy.model)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.02 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)))
    shown = [*pair(episode, "p", (6, 7), (8,)), *pair(episode, "q", (9,), (6, 6, 6))]
    head, losses = [1, 2, 3, 4, 5], []
    twin = copy.deepcopy(model)
    for better, worse in (((6, 7), (8,)), ((9,), (6, 6, 6))):
        ratios = [
            logprob(twin, [*head, *ids], len(ids)) - logprob(reference, [*head, *ids], len(ids)).detach()
            for ids in (better, worse)
        ]
        losses.append(-torch.nn.functional.logsigmoid(0.1 * (ratios[0] - ratios[1])))
    mean = torch.stack(losses).mean()
    mean.backward()  # type: ignore[no-untyped-call]
    norm = torch.nn.utils.clip_grad_norm_(twin.parameters(), math.inf)
    learner = Learner(
        model, Objective(kl_coefficient=0.1), learning_rate=1e-3, max_grad_norm=math.inf, reference=reference
    )
    before = [weight.detach().clone() for weight in model.parameters()]
    figures = prefer(learner, shown, 1e-3)
    assert figures["preference_loss"] == pytest.approx(mean.item(), rel=1e-4)
    assert figures["preference_grad_norm"] == pytest.approx(norm.item(), rel=1e-3)
    assert figures["preference_pairs"] == 2
    grads = [weight.grad for weight in model.parameters()]
    for mine, theirs in zip(grads, twin.parameters(), strict=True):
        assert mine is not None
        assert theirs.grad is not None
        torch.testing.assert_close(mine, theirs.grad, rtol=1e-3, atol=1e-6)
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_only_the_turn_in_question_is_compared(episode: Make) -> None:
    (better, _) = pair(episode, "p", (6, 7), (8,))
    assert one_turn(better, 1).loss_mask.tolist() == [False] * 5 + [True, True]
    assert one_turn(better, 0).loss_mask.tolist() == [False, False, True, True, False, False, False]


def test_what_has_no_partner_makes_no_step_and_a_reference_is_needed(policy: HFPolicy, episode: Make) -> None:
    learner = Learner(policy.model, Objective(), learning_rate=1e-3)
    better, worse = pair(episode, "p", (6,), (7,))
    assert prefer(learner, [], 1e-3) == prefer(learner, [better], 1e-3) == {}
    with pytest.raises(ConfigurationError, match="kl_coefficient"):
        prefer(learner, [better, worse], 1e-3)
    assert better.info[PAIR] == {"pair": "p", "turn": 1, "better": True}


class Kept:
    """A policy that keeps its weights."""

    version, model = 0, None

    def set_weights(self, weights: Any) -> None:
        pass


def test_the_strength_of_preferences_is_an_option_of_the_run(policy: HFPolicy, episode: Make) -> None:
    """Where weights are those of the reference, m is 0, and the gradient is beta / 2 that of the log-probs."""
    norms = []
    for beta in ("0.1", "0.5"):
        model = copy.deepcopy(policy.model)
        goal, whole = Objective(kl_coefficient=0.1), math.inf
        learner = Learner(model, goal, learning_rate=1e-12, max_grad_norm=whole, reference=policy.model)
        shown = [replace(t, origin=Origin.DEMONSTRATION) for t in pair(episode, "p", (6, 7), (8,))]
        played = [
            episode([(SegmentKind.PROMPT, (1, 2)), (SegmentKind.POLICY, (3,))], reward)
            for reward in (0.0, 1.0)
        ]
        config = override(TrainConfig(), ["--optimizer.preference_beta", beta])
        figures = update_weights(config, 1, [played, shown], Kept(), learner, rate=1e-12)  # type: ignore[arg-type]
        assert figures["preference_loss"] == pytest.approx(math.log(2), rel=1e-4)
        norms.append(figures["preference_grad_norm"])
    assert norms[1] / norms[0] == pytest.approx(5, rel=1e-3)


def test_the_seconds_in_which_both_models_score_are_counted(policy: HFPolicy, episode: Make) -> None:
    """Two episodes and two models make four passes without a gradient, each of which is held up for a tenth of a second."""
    model, reference = copy.deepcopy(policy.model), copy.deepcopy(policy.model)
    passes = 0

    def hold_up(*_: Any) -> None:
        nonlocal passes
        if not torch.is_grad_enabled():
            passes += 1
            time.sleep(0.1)

    for one in (model, reference):
        one.model.embed_tokens.register_forward_pre_hook(hold_up)
    learner = Learner(model, Objective(kl_coefficient=0.1), learning_rate=1e-3, reference=reference)
    prefer(learner, pair(episode, "p", (6, 7), (8,)), 1e-12)
    assert passes == 4
    assert learner.compute_seconds >= 0.4
