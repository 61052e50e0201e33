"""Windows of turns in which a tree branches: where they stand, how warm their turns are, what is measured in them."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from agentenv.core.chat import InlineFormat
from agentenv.core.env import Env
from agentenv.core.rollout import EpisodeSpec, RolloutConfig
from agentenv.core.trajectory import Trajectory
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
from agentenv.trainers.config.config_files import load_config, override
from agentenv.trainers.credit.progress import PROGRESS
from agentenv.trainers.strategies.branch_windows import (
    LAYERS,
    BranchWindow,
    EntropyTemperatures,
    followed,
    on_line,
    window_start,
)
from agentenv.trainers.strategies.rollout_context import RolloutContext
from agentenv.trainers.strategies.strategies import play_groups
from agentenv.trainers.strategies.tree import TreeStrategy

TOKENIZER = ByteTokenizer()


def test_the_window_moves_by_its_stride_and_begins_again() -> None:
    """Five turns and a window of two: it begins at 0, 1, 2 or 3, four places, each for ten steps."""
    starts = [window_start(s, hold=10, stride=1, turns=5, width=2) for s in (0, 9, 10, 25, 39, 40)]
    assert starts == [0, 0, 1, 2, 3, 0]
    assert window_start(30, hold=10, stride=3, turns=5, width=2) == 1  # 9 mod 4
    assert window_start(99, hold=10, stride=1, turns=2, width=4) == 0


def test_temperatures_lie_on_a_line_within_the_window() -> None:
    window = BranchWindow(1, on_line((1.2, 0.8), 3), 0.0)
    assert [window.temperature(turn) for turn in range(5)] == pytest.approx([0.0, 1.2, 1.0, 0.8, 0.0])
    assert BranchWindow(0, on_line((1.2, 0.8), 1), 0.5).temperature(0) == 1.2


def test_a_temperature_follows_its_entropy_within_bounds() -> None:
    """exp(.1 (.8 - .3)) = 1.051271, exp(-.1) = .904837; far away 1.5 and .5 hold."""
    assert followed(1.0, wanted=0.8, measured=0.3, rate=0.1) == pytest.approx(1.051271, abs=1e-6)
    assert followed(1.2, wanted=0.0, measured=1.0, rate=0.1) == pytest.approx(1.2 * 0.904837, abs=1e-6)
    assert followed(1.4, wanted=9.0, measured=0.0, rate=0.1) == 1.5
    assert followed(0.6, wanted=0.0, measured=9.0, rate=0.1) == 0.5


def layered(make: Callable[..., Trajectory], *layers: list[float], valid: bool = True) -> Trajectory:
    trajectory = make([0.0])
    return replace(
        trajectory, valid=valid, info=trajectory.info | {LAYERS: [list(layer) for layer in layers]}
    )


def test_each_layer_is_led_by_the_tokens_of_all_branches(turns: Callable[..., Trajectory]) -> None:
    """Layer 0: 4 + 2 tokens with 3 nats are .5 a token, as wanted; layer 1: 2 tokens with 1 nat are .5, and 1 is wanted."""
    control = EntropyTemperatures((1.2, 0.8, 1.0), (0.5, 1.0, 0.7), 0.1)
    fault = layered(turns, [1, 9, 99.0], valid=False)
    control.learn(
        [layered(turns, [0, 4, 1.0], [1, 2, 1.0]), layered(turns, [0, 2, 2.0]), turns([1.0]), fault]
    )
    assert control.temperatures == pytest.approx((1.2, 0.8 * 1.051271, 1.0), abs=1e-6)
    assert control.metrics == pytest.approx(
        {
            "tree_entropy_0": 0.5,
            "tree_entropy_1": 0.5,
            "tree_temperature_0": 1.2,
            "tree_temperature_1": 0.841017,
            "tree_temperature_2": 1.0,
        },
        abs=1e-6,
    )
    resumed = EntropyTemperatures((1.2, 0.8, 1.0), (0.5, 1.0, 0.7), 0.1)
    resumed.load_state_dict(json.loads(json.dumps(control.state_dict())))
    assert resumed.temperatures == control.temperatures
    resumed.load_state_dict({})
    assert resumed.temperatures == control.temperatures


@dataclass
class Taken:
    turns: int = 0


class Three(Env[Taken]):
    """Three turns."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        super().reset(seed=seed)
        self.state = Taken()
        return (Message("user", "?"),), {"task_id": options["task"].id} if options else {}

    def step(self, action: str) -> Step:
        self.state.turns += 1
        if self.state.turns == 3:
            return self.result((), reward=1.0, end=EndReason.ANSWERED)
        return self.result((Message("tool", "|"),))


@dataclass
class Heated:
    """Writes "a" and notes at which temperature it was asked, by turn."""

    version: int = 0
    asked: list[tuple[int, float]] = field(default_factory=list)

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
    ) -> Completion:
        self.asked.append((TOKENIZER.decode(list(prompt_ids)).count("|"), sampling.temperature))
        return Completion(tuple(TOKENIZER.encode("a")), "a", (-0.5,), FinishReason.STOP)

    def release(self, episode: str) -> None: ...

    async def score(self, ids: Sequence[int], *, temperature: float = 1.0) -> Sequence[float]:
        return [0.0] * len(ids)


class Shown(Three):
    """Its expert writes "bcd", "ef" and "g"."""

    def expert(self) -> Sequence[str]:
        return ("bcd", "ef", "g")


class Scored(Heated):
    """Finds a token the less likely, the later it stands in the context."""

    tokenizer = TOKENIZER

    async def score(self, ids: Sequence[int], *, temperature: float = 1.0) -> Sequence[float]:
        self.asked.append((-len(ids), temperature))
        return [-float(place) for place in range(len(ids))]


def play(
    policy: Heated,
    slots: int = 4,
    step: int = 0,
    env: type[Three] = Three,
    given: tuple[float, ...] = (),
    **options: Any,
) -> list[Trajectory]:
    specs = [EpisodeSpec(env(), Task("t", "q"), seed, "g") for seed in range(slots)]
    config = RolloutConfig(turn_tokens=20, temperature=0.8)
    context = RolloutContext(
        policy, InlineFormat(TOKENIZER), config, TOKENIZER.decode, step=step, temperatures=given
    )
    strategy = TreeStrategy(roots=1, width=2, window=2, turns=3, hold=1, temperatures=(1.2, 0.8), **options)
    (group,) = asyncio.run(play_groups([specs], strategy, context))
    return group


def test_a_tree_branches_in_its_window_alone() -> None:
    """Two turns of two branches make four leaves; the turn behind the window goes on once for each, greedily."""
    policy = Heated()
    group = play(policy)
    assert [t.fork_turn for t in group] == [None, 1, 0, 1]
    assert sorted(policy.asked) == [(0, 1.2)] * 2 + [(1, 0.8)] * 4 + [(2, 0.0)] * 4
    trained = [sorted({int(turn) for turn in t.turn_index[t.loss_mask]}) for t in group]
    assert trained == [[0, 1], [1], [0, 1], [1]]  # each turn of the window once, none behind it
    for trajectory in group:
        strange = trajectory.context_mismatch & trajectory.loss_mask
        # Turn 1 has the temperature of the run.
        assert {int(turn) for turn in trajectory.turn_index[strange]} <= {0}


def test_the_window_of_a_later_step_begins_later() -> None:
    policy = Heated()
    group = play(policy, step=1)
    assert [t.fork_turn for t in group] == [None, 2, 1, 2]
    assert sorted(policy.asked) == [(0, 0.0)] + [(1, 1.2)] * 2 + [(2, 0.8)] * 4


def test_temperatures_that_follow_the_entropy_are_those_of_the_step_and_each_turn_is_counted_once() -> None:
    """Every branch writes one token of .5 nats a turn; two have their own first turn, and all four their own second one."""
    policy = Heated()
    group = play(policy, given=(1.5, 0.7), entropies=(1.0, 0.5))
    assert sorted(policy.asked) == [(0, 1.5)] * 2 + [(1, 0.7)] * 4 + [(2, 0.0)] * 4
    first = [[0, 1, 0.5], [1, 1, 0.5]]
    assert [t.info[LAYERS] for t in group] == [first, first[1:], first, first[1:]]
    strategy = TreeStrategy(window=3, entropies=(1.0, 0.5), temperatures=(1.2, 0.8), entropy_rate=0.2)
    control = strategy.temperature_control()
    assert control is not None
    assert control.temperatures == pytest.approx((1.2, 1.0, 0.8))
    assert control.entropies == pytest.approx((1.0, 0.75, 0.5))
    assert control.rate == 0.2
    assert TreeStrategy(window=3).temperature_control() is None
    assert all(LAYERS not in t.info for t in play(Heated()))


def test_progress_is_how_likely_the_expert_goes_on_where_a_turn_has_led() -> None:
    """The mean place of "ef" in the context after the first turn, and of "g" after the second; the run's temperature."""
    policy = Scored()
    group = play(policy, env=Shown, progress=True)
    assert all(temperature == 0.8 for length, temperature in policy.asked if length < 0)
    for trajectory in group:
        entry = trajectory.info[PROGRESS]
        # Its observation included.
        after = [int(np.flatnonzero(trajectory.turn_index == turn)[-1]) + 1 for turn in (0, 1)]
        assert entry["turns"] == [[0, -(after[0] + 0.5)], [1, -float(after[1])]]
        assert entry["success_rate"] == 1.0
    assert len([asked for asked in policy.asked if asked[0] < 0]) == 2 + 4  # no turn is read twice


def test_progress_needs_an_expert_and_a_tokenizer() -> None:
    assert all(PROGRESS not in t.info for t in play(Scored(), progress=True))
    with pytest.raises(ConfigurationError, match="Heated"):
        play(Heated(), env=Shown, progress=True)


@pytest.mark.parametrize(
    "options",
    [
        {"entropies": (1.0,), "window": 2},
        {"entropies": (1.0, 0.5)},
        {"progress": True},
    ],
    ids=["one entropy", "no window", "progress"],
)
def test_entropies_and_progress_are_those_of_a_window(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="window"):
        TreeStrategy(**options)


def test_progress_that_is_not_measured_is_refused() -> None:
    base = load_config("laptop-search")
    words = "--rollout.strategy tree --rollout.strategy_options.window 2 --reward_shaping.progress 1"
    with pytest.raises(ConfigurationError, match="'tree'"):
        override(base, words.split())
    measured = [*words.split(), "--rollout.strategy_options.progress", "true"]
    assert override(base, measured).reward_shaping.progress == 1
    with pytest.raises(ConfigurationError, match="'cispo'"):
        override(base, [*measured, "--loss.objective", "cispo"])


@pytest.mark.parametrize(
    "options",
    [{"window": -1}, {"hold": 0}, {"turns": 0}, {"temperatures": (1.0, -0.1)}, {"outside_temperature": -1.0}],
)
def test_windows_have_bounds(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=str(next(iter(options.values()))).strip("()")):
        TreeStrategy(**options)


def test_tokens_of_another_temperature_are_in_no_ratio() -> None:
    words = "--rollout.strategy tree --loss.proximal recompute --loss.correction.mode truncate --loss.correction.off_context"
    base = load_config("laptop-search")
    override(base, [*words.split(), "recompute"])
    windowed = [*words.split(), "recompute", "--rollout.strategy_options.window", "2"]
    with pytest.raises(ConfigurationError, match="'tree'"):
        override(base, windowed)
