"""What a preset minimises is what it is named after: its bounds and its rules take part in a step of the learner."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from agentenv.core.trajectory import SegmentKind, Trajectory
from agentenv.trainers.config.config_files import load_config
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.learner.learner import Learner
from agentenv.trainers.loop.parts import make_objective, trained_policy
from agentenv.trainers.loop.update import assign_credit
from agentenv.trainers.task_sampling.difficulty_games import game_weights

Make = Callable[..., Trajectory]
FOLDER = Path(__file__).resolve().parents[2] / "examples"


def preset(name: str) -> TrainConfig:
    return load_config(str(FOLDER / f"{name}.toml"))


STEPS = {
    "mt-grpo": 2, "ui-s1": 4, "cleaner": 4, "grpo-tcr": 4, "ssp": 2, "mae": 2, "sws": 4, "layer-tuning": 2, "dapo": 4,
    "think2sql": 2, "search-r1": 2, "search-r1-format": 2, "hiersearch": 4, "hiersearch-local": 4, "hiersearch-web": 4,
    "self-redteam": 4, "areal": 4, "cispo": 4,
}  # fmt: skip


@pytest.mark.parametrize(("name", "steps"), STEPS.items(), ids=STEPS)
def test_presets_make_the_steps_without_which_their_bounds_are_never_reached(name: str, steps: int) -> None:
    config = preset(name)
    assert config.optimizer.updates * config.optimizer.mini_batches == steps
    assert not config.bounds_note


def test_gdro_weighs_a_class_that_fails_clearly_more_than_one_that_succeeds() -> None:
    """By e to 1, as the published numbers do for a loss of up to their bound."""
    options = preset("gdro").rollout.sampler_options
    worst, best = game_weights([1.0, 0.0], strength=options["strength"], bound=options["bound"])
    assert worst / best == pytest.approx(math.e)
    assert worst < options["cap"]


TREES = [path.stem for path in FOLDER.glob("*.toml") if preset(path.stem).rollout.strategy == "tree"]


@pytest.mark.parametrize("name", sorted(TREES))
def test_a_tree_of_a_preset_has_leaves_to_compare_where_nothing_forks(name: str) -> None:
    """A policy that is sure of its words forks at no token, and of a single leaf nothing is learned."""
    rollout = preset(name).rollout
    assert rollout.strategy_options.get("roots", 2) >= 2
    assert rollout.group_size >= rollout.strategy_options.get("roots", 2)


@pytest.fixture(scope="module")
def learner_of() -> Callable[[TrainConfig], Learner]:
    """A learner of the untrained tiny policy with the objective of a preset."""

    def make(config: TrainConfig) -> Learner:
        policy = trained_policy("tiny", config.lora, config.compute, seed=0)
        objective = make_objective(config.resolved_loss, config.memory, config.rollout)
        return Learner(policy.model, objective, learning_rate=1e-6)

    return make


def sampled(episode: Make, reward: float, logprob: float) -> Trajectory:
    """An episode of four tokens, each sampled with ``logprob``."""
    made = episode([(SegmentKind.PROMPT, (1, 2)), (SegmentKind.POLICY, (5, 6, 7, 8))], reward)
    segments = [
        replace(s, logprobs=(logprob,) * 4) if s.kind is SegmentKind.POLICY else s for s in made.segments
    ]
    return replace(made, segments=tuple(segments))


@pytest.mark.parametrize(
    ("rewards", "spare"),
    [((0.1, 0.3, 0.5, 0.7, 1.0), 2), ((1.0, 0.0, 0.0, 1.0, 0.0), 1), ((1.0, 1.0, 1.0), 0)],
)
@pytest.mark.parametrize("keep", [True, False], ids=["penalty", "no penalty"])
def test_mc_grpo_takes_one_median_member_out_of_rows_and_counts(
    episode: Make, rewards: tuple[float, ...], spare: int, keep: bool
) -> None:
    """Exactly one of equal ones too; a penalty towards the start acts on the other members without credit."""
    group = [sampled(episode, reward, -0.5) for reward in rewards]
    config = preset("mc-grpo")
    sections = config.loss, config.reward_shaping, config.rollout
    credited, _ = assign_credit(*sections, [group], 0, keep_zero_variance=keep)
    assert sum(one.tokens for one in credited) == 4 * (len(rewards) - 1)
    middle = rewards[spare]
    expected = [keep or reward != middle for place, reward in enumerate(rewards) if place != spare]
    assert [len(one.rows) == 1 for one in credited] == expected


def test_turns_of_low_entropy_leave_the_loss_of_dart_with_its_penalty_and_its_denominator(
    episode: Make,
) -> None:
    """Of ten turns two are surer than the others; the penalty towards the start, .1 there, does not act on them either."""
    parts = [(SegmentKind.PROMPT, (1, 2)), *((SegmentKind.POLICY, (5,)) for _ in range(5))]
    group = []
    for reward, sure in ((1.0, 1), (0.0, 3)):
        made = episode(parts, reward)
        segments = [made.segments[0]]
        for turn, segment in enumerate(made.segments[1:]):
            chance = 0.9 if turn == sure else 0.5
            segments.append(replace(segment, turn=turn, logprobs=(math.log(chance),)))
        group.append(replace(made, segments=tuple(segments)))
    config = load_config("dart")
    assert config.loss.kl_coefficient == 0.1
    sections = config.loss, config.reward_shaping, config.rollout
    credited, _ = assign_credit(*sections, [group], 0, keep_zero_variance=True)
    assert [one.tokens for one in credited] == [4, 4]
    rows = [row for one in credited for row in one.rows]
    # Places of tokens: a prompt of two, then one for each turn.
    assert [row.trained.tolist() for row in rows] == [[2, 4, 5, 6], [2, 3, 4, 6]]
    assert [row.sequence_tokens for row in rows] == [4, 4]


def test_prime_rl_leaves_out_tokens_that_moved_away_from_the_sampler(
    episode: Make, learner_of: Callable[[TrainConfig], Learner]
) -> None:
    """The failure was sampled with probability .999, and is at the learner's far below: its tokens are dropped (E29)."""
    config = preset("prime-rl")
    group = [sampled(episode, 1.0, -9.0), sampled(episode, 0.0, -1e-3)]
    sections = config.loss, config.reward_shaping, config.rollout
    credited, _ = assign_credit(*sections, [group], 4, keep_zero_variance=False)
    figures = learner_of(config).step([row for one in credited for row in one.rows])
    assert figures["clip_fraction"] == pytest.approx(0.5)
    assert figures["loss"] > 0.1  # of which the squared log-ratio is a part
