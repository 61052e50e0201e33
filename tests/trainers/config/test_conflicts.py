"""Settings that a run would ignore, count twice or stop at are refused with one sentence when they are read."""

import inspect

import pytest

from agentenv.errors import ConfigurationError
from agentenv.trainers.config.config_files import override
from agentenv.trainers.config.conflicts import UNCLIPPED
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.learner.losses import OBJECTIVES

AHEAD = "--asynchronous.staleness 1 --rollout.deterministic false"
MASK = "--loss.objective probability_mask"
TRL = "--loss.objective cispo --loss.objective_options.convention trl"
PLAYED = "--rollout.strategy self_play --rollout.strategy_options.temperatures.proposer"
HEATED = f"{PLAYED} 0.8"
WEIGHED = "--loss.proximal recompute --loss.correction.mode truncate --loss.correction.off_context"
PENALISED = "--loss.estimator reinforce_pp --loss.estimator_options.kl_coefficient 0.01"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (f"{MASK} {AHEAD}", r"proximal='recompute'.*'sampler'"),
        (f"{MASK} --loss.proximal interpolate", "proximal='interpolate'"),
        ("--rollout.sampler arrol --rollout.strategy tree", "'arrol'.*'plain'.*'tree'"),
        ("--rollout.sampler arrol --rollout.strategy guide", "'arrol'.*'plain'.*'guide'"),
        (f"{PENALISED} --loss.kl_coefficient 0.02", r"kl_coefficient=0\.01.*kl_coefficient=0\.02"),
        ("--rollout.strategy critical_step", r"critical_step.*kl_coefficient=0\b"),
        ("--loss.objective opmd --loss.clip_low 0.2", r"clip_low=0\.2.*'opmd'"),
        ("--optimizer.supervised_batch 8", r"supervised_batch=8.*'plain'"),
        ("--optimizer.supervised_batch 8 --rollout.strategy guide", "'guide'"),
        ("--loss.objective guided_clip", "guided_clip.*'plain'"),
        ("--loss.correction.off_context ratio", "off_context='ratio'.*'plain'"),
        ("--loss.correction.off_context ratio --rollout.strategy tree", "off_context='ratio'.*'tree'"),
        ("--rollout.sampler self_play", "'self_play'.*'plain'"),
        (f"{HEATED} {WEIGHED} recompute", "'self_play'.*'recompute'"),
        (f"{PLAYED} 1.0 --loss.correction.off_context ratio", "off_context='ratio'.*'self_play'"),
        (f"{MASK} --loss.clip_high 0.3", r"clip_high=0\.3.*'probability_mask'"),
        (f"{TRL} --loss.clip_high 0.28", r"clip_high=0\.28.*'trl'"),
        (f"{TRL} --loss.objective_options.clip_high 0.5", r"clip_high=0\.5.*'trl'"),
        (f"{TRL} --loss.clip_low 0.2", "clip_low.*'trl'"),
    ],
)
def test_what_does_not_go_together_is_refused(words: str, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named) as caught:
        override(TrainConfig(), words.split())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "words",
    [
        f"{MASK} {AHEAD} --loss.proximal sampler",
        f"{MASK} {AHEAD} --optimizer.mini_batches 2",
        f"{MASK} {AHEAD} --optimizer.updates 2",
        MASK,
        "--rollout.sampler arrol",
        "--rollout.sampler uniform --rollout.strategy tree",
        PENALISED,
        "--loss.estimator reinforce_pp --loss.kl_coefficient 0.02",
        "--rollout.strategy critical_step --loss.kl_coefficient 1e-3",
        "--rollout.strategy critical_step --loss.ace_alpha 1",
        f"--rollout.strategy critical_step {PENALISED}",
        "--loss.objective opmd",
        "--optimizer.supervised_batch 8 --rollout.strategy demonstrate",
        "--loss.objective guided_clip --rollout.strategy critique",
        "--loss.objective guided_clip --rollout.sampler xrpo",
        "--loss.correction.off_context ratio --rollout.strategy guide",
        "--loss.correction.off_context ratio --rollout.strategy tree --rollout.strategy_options.window 2",
        f"{HEATED} --loss.correction.off_context ratio",
        f"{HEATED} {WEIGHED} weight",
        f"{PLAYED} 1.0 {WEIGHED} recompute",
        "--loss.objective gspo --loss.clip_low 3e-4",
        TRL,
        f"{TRL} --loss.clip_high 4",
        "--loss.objective cispo --loss.clip_low 0.2 --loss.clip_high 0.28",
    ],
)
def test_what_goes_together_is_accepted(words: str) -> None:
    override(TrainConfig(), words.split())


@pytest.mark.parametrize(
    ("words", "noted"),
    [
        ("--loss.clip_low 0.2", True),
        ("--loss.clip_high 0.3 --loss.proximal recompute", True),
        (f"--loss.clip_low 0.2 {AHEAD}", True),
        ("", False),
        ("--loss.clip_low 0.2 --optimizer.mini_batches 2", False),
        ("--loss.clip_low 0.2 --optimizer.updates 2", False),
        (f"--loss.clip_low 0.2 {AHEAD} --loss.proximal sampler", False),
        ("--loss.clip_low 0.2 --rollout.sampler dots", False),
        ("--loss.clip_low 0.2 --rollout.strategy guide --loss.correction.off_context ratio", False),
    ],
)
def test_bounds_that_no_ratio_can_reach_are_noted(words: str, noted: bool) -> None:
    note = override(TrainConfig(), words.split()).bounds_note
    assert ("optimizer.mini_batches" in note) is noted


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_objectives_without_bounds_are_those_that_take_none(name: str) -> None:
    assert (name in UNCLIPPED) is ("clip_low" not in inspect.signature(OBJECTIVES[name].function).parameters)
