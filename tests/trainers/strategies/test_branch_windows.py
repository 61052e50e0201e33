"""Windows of turns in which a tree branches: where they stand, how warm their turns are, what becomes of episodes."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

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
from agentenv.trainers.strategies.branch_windows import BranchWindow, window_start
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
    window = BranchWindow(1, 3, (1.2, 0.8), 0.0)
    assert [window.temperature(turn) for turn in range(5)] == pytest.approx([0.0, 1.2, 1.0, 0.8, 0.0])
    assert BranchWindow(0, 1, (1.2, 0.8), 0.5).temperature(0) == 1.2


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


def play(policy: Heated, slots: int = 4, step: int = 0, **options: Any) -> list[Trajectory]:
    specs = [EpisodeSpec(Three(), Task("t", "q"), seed, "g") for seed in range(slots)]
    config = RolloutConfig(turn_tokens=20, temperature=0.8)
    context = RolloutContext(policy, InlineFormat(TOKENIZER), config, TOKENIZER.decode, step=step)
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
        assert {int(turn) for turn in trajectory.turn_index[strange]} <= {
            0
        }  # turn 1 has the temperature of the run


def test_the_window_of_a_later_step_begins_later() -> None:
    policy = Heated()
    group = play(policy, step=1)
    assert [t.fork_turn for t in group] == [None, 2, 1, 2]
    assert sorted(policy.asked) == [(0, 0.0)] + [(1, 1.2)] * 2 + [(2, 0.8)] * 4


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
