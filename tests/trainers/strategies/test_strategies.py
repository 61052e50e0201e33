"""Rollout strategies: the registry and its options, slots, groups of any size, plain play as it always was.

Whatever the strategy and however long environments take, the batches of a step are the same.
"""

import asyncio
import random
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agentenv.core.chat import InlineFormat
from agentenv.core.concurrency.batching import Batcher
from agentenv.core.env import AsyncEnv
from agentenv.core.rollout import EpisodeSpec, RolloutConfig, rollout
from agentenv.core.trajectory import Origin, Trajectory
from agentenv.core.types import (
    Completion,
    EndReason,
    Info,
    Message,
    Observation,
    Sampling,
    Step,
    Task,
    ToolResult,
    ToolStatus,
)
from agentenv.envs.calculator import Calculator
from agentenv.errors import ConfigurationError, EnvFault, PolicyFault, UnknownName
from agentenv.policies.fakes import ByteTokenizer
from agentenv.policies.scripted import ScriptedPolicy, complete
from agentenv.trainers.config.config_files import override
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.strategies.rollout_context import RolloutContext
from agentenv.trainers.strategies.strategies import STRATEGIES, RolloutStrategy, get_strategy, play_groups

TOKENIZER = ByteTokenizer()
TASK = Task("sum", "2 * 3 - 1", ("5",))
CALL = '<tool_call>{"name": "calculate", "arguments": {"expression": "2 * 3"}}</tool_call>'


def context(policy: object, **config: object) -> RolloutContext:
    settings = RolloutConfig(**({"context_tokens": 4000, "turn_tokens": 500} | config))
    return RolloutContext(policy, InlineFormat(TOKENIZER), settings, TOKENIZER.decode)  # type: ignore[arg-type]


def starts(n: int, group: str = "g") -> list[EpisodeSpec]:
    return [EpisodeSpec(Calculator(), TASK, seed, group) for seed in range(n)]


def play(
    groups: Sequence[Sequence[EpisodeSpec]], on: RolloutContext, strategy: RolloutStrategy | None = None
) -> list[list[Trajectory]]:
    return asyncio.run(play_groups(groups, strategy or get_strategy("plain"), on))


class SeededPolicy:
    """Calls the calculator or answers, as the seed of the turn decides; remembers who asked in which order."""

    version = 0
    tokenizer = TOKENIZER

    def __init__(self) -> None:
        self.asked: list[str | None] = []

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
    ) -> Completion:
        self.asked.append(episode)
        text = CALL if random.Random(sampling.seed).random() < 0.5 else str(sampling.seed % 7)
        return complete(text, TOKENIZER, sampling)

    def release(self, episode: str) -> None: ...

    async def score(self, ids: Sequence[int], *, temperature: float = 1.0) -> Sequence[float]:
        return [0.0] * len(ids)


def test_plain_plays_each_start_once_as_the_episode_loop_does() -> None:
    """The groups of one step, end to end, are the episodes of one rollout."""
    together = play([starts(3, "a"), starts(2, "b")], context(SeededPolicy()))
    alone = asyncio.run(
        rollout(
            [*starts(3, "a"), *starts(2, "b")],
            SeededPolicy(),
            InlineFormat(TOKENIZER),
            RolloutConfig(turn_tokens=500, context_tokens=4000),
            name="e",
        )
    )
    assert [[t.id for t in group] for group in together] == [["e-0", "e-1", "e-2"], ["e-3", "e-4"]]
    for played, expected in zip([t for group in together for t in group], alone, strict=True):
        assert played.segments == expected.segments
        assert played.group_id == expected.group_id
        assert played.reward == expected.reward


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_every_strategy_is_built_from_its_name_alone(name: str) -> None:
    assert callable(get_strategy(name).play)


def test_an_unknown_strategy_or_option_is_one_sentence() -> None:
    with pytest.raises(UnknownName, match=r"'plian'.*'plain'"):
        get_strategy("plian")
    with pytest.raises(UnknownName, match="'plain'"):
        get_strategy("plain", {"retries": 3})


def test_the_configuration_checks_the_strategy_when_it_is_loaded() -> None:
    assert TrainConfig().rollout.strategy == "plain"
    with pytest.raises(ConfigurationError, match="'plain'"):
        override(TrainConfig(), ["--rollout.strategy", "plai"])
    with pytest.raises(ConfigurationError, match="'width'"):
        override(TrainConfig(), ["--rollout.strategy_options.width", "2"])


@dataclass(frozen=True, kw_only=True)
class Half:
    """A strategy with a group of another size: plays every other start."""

    async def play(self, specs: Sequence[EpisodeSpec], context: RolloutContext) -> list[Trajectory]:
        return await get_strategy("plain").play(specs[::2], context)


def test_a_group_may_have_another_size_than_its_starts() -> None:
    groups = play([starts(3), starts(4)], context(SeededPolicy()), Half())
    assert [len(group) for group in groups] == [2, 2]


def test_a_question_that_fits_no_context_fails_alone_under_every_strategy() -> None:
    endless = replace(TASK, question="why " * 5000)
    for name, options in (("tree", {}), ("rollback", {}), ("reflect_retry", {"reflector": "rule"})):
        groups = [
            [EpisodeSpec(Calculator(), task, seed, task.id) for seed in range(4)] for task in (TASK, endless)
        ]
        good, bad = play(groups, context(SeededPolicy()), get_strategy(name, options))
        assert all(t.valid for t in good), name
        assert {t.valid for t in bad} == {False}, name
        assert all("4000" in t.error for t in bad), name


class Refused(ScriptedPolicy):
    """Cannot be asked."""

    async def generate(self, *args: Any, **more: Any) -> Any:
        raise ConfigurationError("no such model")


def test_bad_input_comes_out_as_it_was_raised() -> None:
    with pytest.raises(ConfigurationError, match="no such model"):
        play([starts(2), starts(2)], context(Refused({})))


def test_a_lane_is_one_live_episode() -> None:
    @dataclass(frozen=True)
    class Twice:
        async def play(self, specs: Sequence[EpisodeSpec], context: RolloutContext) -> list[Trajectory]:
            async with context.slot(0), context.slot(0):
                return []

    with pytest.raises(ConfigurationError, match=r"\b0\b"):
        play([starts(1)], context(SeededPolicy()), Twice())
    assert play([starts(1)], context(SeededPolicy(), deterministic=False), Twice()) == [[]]


class BatchingPolicy:
    """Says a word, "oops" or a number, as the seed of the turn decides, in batches that it remembers."""

    version = 0
    tokenizer = TOKENIZER

    def __init__(self) -> None:
        self.batches: list[list[tuple[str | None, int]]] = []
        self._batcher = Batcher(self._run, rank=1)

    def _run(self, asked: list[tuple[str | None, int, Sampling]]) -> list[Completion]:
        self.batches.append([(episode, length) for episode, length, _ in asked])
        return [complete(self._word(sampling.seed), TOKENIZER, sampling) for _, _, sampling in asked]

    def _word(self, seed: int) -> str:
        return random.Random(seed).choice(["oops", "oops", "word", "word", "word", "1", "2"])

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
    ) -> Completion:
        return await self._batcher.submit((episode, len(prompt_ids), sampling))

    def release(self, episode: str) -> None: ...

    async def score(self, ids: Sequence[int], *, temperature: float = 1.0) -> Sequence[float]:
        return [0.0] * len(ids)


@dataclass
class MoodyState:
    turns: int = 0


class Moody(AsyncEnv[MoodyState]):
    """Takes its time or none, by a clock that is none of the episode's; "oops" fails and a number ends the episode."""

    def __init__(self, clock: random.Random) -> None:
        super().__init__()
        self.clock = clock

    async def dawdle(self) -> None:
        if self.clock.random() < 0.5:
            await asyncio.sleep(self.clock.random() / 200)

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        await super().areset(seed=seed)
        await self.dawdle()
        self.state = MoodyState()
        return (Message("user", "Go"),), {"task_id": options["task"].id} if options else {}

    async def astep(self, action: str) -> Step:
        await self.dawdle()
        self.state.turns += 1
        if action.isdigit():
            return self.result((), reward=float(action), end=EndReason.ANSWERED)
        over = EndReason.TURN_LIMIT if self.state.turns == 5 else None
        result = ToolResult("search", ToolStatus.ERROR if action == "oops" else ToolStatus.OK)
        said = (Message("tool", f"[{action}]"),)
        return self.result(said, end=over, truncated=over is not None, tool_results=(result,))

    def expert(self) -> Sequence[str]:
        return ("word", "word", "1")


VARIANTS: list[tuple[str, dict[str, Any]]] = [
    # `selfplay/test_strategy.py` has its environment.
    *((name, {}) for name in sorted(STRATEGIES) if name not in ("self_play", "vm_mcts")),
    ("vm_mcts", {"iterations": 2, "samples": 2}),
    ("rollback", {"retries": 2, "commit": "on_success", "roll_probability": 0.8}),
    ("judge", {"verdict": "word"}),
    ("judge", {"verdict": "word", "split": True}),
    ("tree", {"roots": 1, "depth": 3}),
    ("tree", {"fork_at": "failure", "depth": 3}),
    ("reflect_retry", {"reflector": "rule"}),
    ("adaptive_hint", {"rounds": 3}),
    ("critique", {"critic": "self"}),
]


@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=[f"{n}-{len(o)}" for n, o in VARIANTS])
def test_batches_do_not_depend_on_how_long_anything_takes(name: str, options: dict[str, Any]) -> None:
    def batches(clock: int) -> tuple[Any, Any]:
        policy, ticks = BatchingPolicy(), random.Random(clock)
        groups = [
            [EpisodeSpec(Moody(ticks), TASK, 100 * g + i, str(g)) for i in range(n)]
            for g, n in enumerate((4, 6, 3))
        ]
        played = play(groups, context(policy), get_strategy(name, options))
        # "0/..." is a group beside "0".
        own = [{t.group_id.partition("/")[0] for t in group} for group in played]
        assert own == [{"0"}, {"1"}, {"2"}]
        records = [(t.id, t.parent_id, t.fork_turn, t.segments, t.info) for group in played for t in group]
        return policy.batches, records

    first = batches(0)
    assert max(map(len, first[0])) >= 3
    ids = [record[0] for record in first[1]]
    assert len(set(ids)) == len(ids)
    assert all(batches(clock) == first for clock in range(1, 6))


class Faulty(Moody):
    """Fails now and then: when it is reset, stepped or forked, as an infrastructure and by a mistake of its own."""

    def __init__(self, chance: random.Random, forks: list["Faulty"]) -> None:
        super().__init__(random.Random(0))
        self.chance, self.forks, self.closed = chance, forks, False

    async def dawdle(self) -> None:
        drawn = self.chance.random()
        if drawn < 0.1:
            raise EnvFault("away") if drawn < 0.05 else ValueError("a mistake")

    def fork(self, n: int = 1) -> Any:
        if self.chance.random() < 0.1:
            raise ValueError("no room")
        made = super().fork(n)
        self.forks += made
        return made

    def close(self) -> None:
        self.closed = True
        super().close()


class FaultyPolicy(BatchingPolicy):
    """Fails now and then; counts what it samples, and for whom something is still kept."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.chance, self.sampled = chance, 0
        self.kept: set[str | None] = set()

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
    ) -> Completion:
        if self.chance.random() < 0.04:
            raise PolicyFault("away")
        done = await super().generate(prompt_ids, sampling, episode=episode)
        self.sampled += len(done.ids)
        self.kept.add(episode)
        return done

    def release(self, episode: str) -> None:
        self.kept.discard(episode)


@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=[f"{n}-{len(o)}" for n, o in VARIANTS])
def test_whatever_fails_every_fork_is_closed_and_every_token_counted(
    name: str, options: dict[str, Any]
) -> None:
    """And what the policy keeps for an episode is released; no failure ends the other groups."""
    ends = set()
    for seed in range(3):
        chance, forks = random.Random(seed), list[Faulty]()
        policy = FaultyPolicy(chance)
        groups = [
            [EpisodeSpec(Faulty(chance, forks), TASK, 100 * g + i, str(g)) for i in range(n)]
            for g, n in enumerate((4, 6, 3))
        ]
        played = [t for group in play(groups, context(policy), get_strategy(name, options)) for t in group]
        assert all(env.closed for env in forks)
        assert not policy.kept
        counted = (t.info.get("strategy", {}).get("sampled_tokens", t.response_tokens) for t in played)
        assert sum(counted) == policy.sampled
        ends |= {t.valid for t in played}
    assert ends == {True, False}


def test_the_documented_example_is_a_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its code and its row are taken from ``docs/rollouts.md``."""
    page = (Path(__file__).resolve().parents[3] / "docs" / "rollouts.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    ((name, row),) = re.findall(r'^    "(\w+)": "([\w.]+:\w+)",$', page, re.MULTILINE)
    module = ModuleType(row.partition(":")[0])
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(code, vars(module))
    monkeypatch.setitem(STRATEGIES, name, row)
    settings = override(TrainConfig(), ["--rollout.strategy", name, "--rollout.strategy_options.enough", "1"])
    strategy = get_strategy(name, settings.rollout.strategy_options)
    (group,) = play([starts(2)], context(ScriptedPolicy({"e-0": ("4",), "e-1": ("5",)})), strategy)
    assert [(t.reward, t.origin) for t in group] == [(0.0, Origin.RETRY), (1.0, Origin.BASE)]
    # A digit and an end mark, twice.
    assert group[0].info["strategy"] == {"sampled_tokens": 4, "second_chances": 1}


class BriefPolicy(BatchingPolicy):
    """Says a word, then a number."""

    def _word(self, seed: int) -> str:
        return "1" if seed % 1_000_003 else "word"


def test_branches_are_there_before_the_one_they_left_can_end() -> None:
    """Each root forks in a thread and ends at once; all branches still meet in one batch."""
    still = random.Random()
    still.random = lambda: 0.9  # type: ignore[method-assign]  # nobody dawdles
    for _ in range(5):
        policy = BriefPolicy()
        groups = [[EpisodeSpec(Moody(still), TASK, 2 * g + i, str(g)) for i in range(2)] for g in range(12)]
        play(groups, context(policy), get_strategy("tree", {"roots": 1, "depth": 1}))
        assert [len(batch) for batch in policy.batches] == [12, 12, 12]
