"""Environments that hang, raise what is no error, or return what nobody can use: one episode fails, and it is named.

Covered: every method of a plain and of an asynchronous environment hanging in 12 of 16 episodes, with and without a
deterministic batcher; SystemExit, KeyboardInterrupt, CancelledError and StopIteration; every kind of value that cannot be
used; sizes; a constructor and a ``close`` that fail.
"""

import asyncio
import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from agentenv.core.chat import InlineFormat
from agentenv.core.concurrency.batching import Batcher
from agentenv.core.env import AsyncEnv, Env, run_sync
from agentenv.core.env_calls import THREADS
from agentenv.core.env_lifecycle import UnmadeEnv, close_envs, make_envs
from agentenv.core.rollout import EpisodeSpec, RolloutConfig, rollout
from agentenv.core.trajectory import Trajectory
from agentenv.core.types import (
    EndReason,
    Info,
    Message,
    MessagePart,
    Observation,
    Step,
    Task,
    ToolResult,
    ToolStatus,
)
from agentenv.errors import ConfigurationError
from agentenv.evaluation.runner import play
from agentenv.policies.fakes import ByteTokenizer
from agentenv.policies.scripted import ScriptedPolicy

TASK = Task("t", "Who?", ("Ada",))
DEADLINE_S = 1.0

_gates: list[threading.Event] = []


@pytest.fixture(autouse=True)
def _gate() -> Iterator[None]:
    """Lets what hangs go on after the test, so that no thread outlives it."""
    _gates.append(threading.Event())
    yield
    _gates.pop().set()


def hang() -> None:
    _gates[-1].wait(20)


@dataclass
class State:
    turns: int = 0


Do = Callable[[str], None]


def nothing(where: str) -> None: ...


def at(place: str, act: Callable[[], object]) -> Do:
    def do(where: str) -> None:
        if where == place:
            act()

    return do


class Game:
    """Two turns; does ``do`` with the name of the method in each."""

    do: Do

    def open(self) -> tuple[Observation, Info]:
        self.do("reset")
        self.state = State()
        return (Message("user", "Hi"),), {"task_id": TASK.id}

    def act(self) -> Step:
        env: Env[State] = self  # type: ignore[assignment]
        env.check_running()
        self.do("step")
        self.state.turns += 1
        if self.state.turns == 2:
            return env.result((), reward=1.0, end=EndReason.ANSWERED)
        return env.result((Message("tool", "on"),), reward=0.5)

    def anchor_key(self) -> str | None:
        self.do("anchor_key")
        return None

    def close(self) -> None:
        self.do("close")


class Plain(Game, Env[State]):
    """The game in plain functions."""

    def __init__(self, do: Do = nothing) -> None:
        super().__init__()
        self.do = do

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        super().reset(seed=seed)
        return self.open()

    def step(self, action: str) -> Step:
        return self.act()


class Awaiting(Game, AsyncEnv[State]):
    """The game in coroutines; they block their loop where ``do`` does."""

    def __init__(self, do: Do = nothing) -> None:
        super().__init__()
        self.do = do

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        await super().areset(seed=seed)
        return self.open()

    async def astep(self, action: str) -> Step:
        return self.act()


class Patient(Awaiting):
    """Waits for ever without blocking, whoever cancels it."""

    async def astep(self, action: str) -> Step:
        while self.do is not nothing and not _gates[-1].is_set():
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                continue
        return await super().astep(action)


def played(envs: Sequence[Env[Any]], *, deterministic: bool = True, **config: Any) -> list[Trajectory]:
    policy = ScriptedPolicy({f"e-{i}": ("one", "two") for i in range(len(envs))})
    specs = [EpisodeSpec(env, TASK, seed) for seed, env in enumerate(envs)]
    settings = {"context_tokens": 500, "turn_tokens": 50, "deadline_s": DEADLINE_S} | config
    config_ = RolloutConfig(deterministic=deterministic, **settings)
    return asyncio.run(rollout(specs, policy, InlineFormat(ByteTokenizer()), config_, name="e"))


def alone(env: Env[Any], **config: Any) -> Trajectory:
    """The trajectory of ``env``, played beside a good environment, which must not be touched by it."""
    found, good = played([env, Plain()], **({"deadline_s": 5.0} | config))
    assert (good.valid, good.reward) == (True, 1.5)
    return found


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize(
    ("kind", "where", "hanging", "all_"),
    [
        (Plain, "reset", 12, 16),
        (Plain, "step", 12, 16),
        (Plain, "anchor_key", 12, 16),
        (Awaiting, "reset", 3, 5),  # those that block a loop are found out one after the other
        (Awaiting, "step", 3, 5),
        (Patient, "step", 12, 16),
    ],
)
def test_calls_that_hang_fail_their_own_episodes_by_name(
    kind: Any, where: str, hanging: int, all_: int, deterministic: bool
) -> None:
    envs = [kind(at(where, hang)) for _ in range(hanging)]
    first = kind()  # where no call of a class has ever returned, those that wait are given up
    got = played([first, *envs, *(kind() for _ in range(all_ - hanging - 1))], deterministic=deterministic)
    assert [t.valid for t in got] == [True] + [False] * hanging + [True] * (all_ - hanging - 1)
    for t in got[1 : 1 + hanging]:
        assert (t.end_reason, t.reward) == (EndReason.ENV_FAULT, 0.0)
        assert ("reset" if where == "reset" else "step") in t.error
        assert f"{DEADLINE_S:g} s" in t.error


def test_an_environment_that_hangs_later_is_no_reward_of_its_earlier_turns() -> None:
    turns = iter(range(9))
    t, good = played([Plain(at("step", lambda: hang() if next(turns) else None)), Plain()])
    assert [turn.reward for turn in t.turns] == [0.5]
    assert (t.valid, t.reward) == (False, 0.0)
    assert good.reward == 1.5


@pytest.mark.parametrize("kind", [Plain, Awaiting])
@pytest.mark.parametrize("where", ["reset", "step"])
@pytest.mark.parametrize(
    "error",
    [
        SystemExit(3),
        KeyboardInterrupt(),
        asyncio.CancelledError(),
        GeneratorExit(),
        StopIteration(),
        StopAsyncIteration(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_is_raised_inside_is_the_fault_of_one_episode(
    error: BaseException, where: str, kind: Any
) -> None:
    def go() -> None:
        raise error

    t = alone(kind(at(where, go)))
    assert (t.valid, t.end_reason) == (False, EndReason.ENV_FAULT)
    assert type(error).__name__ in t.error


class ChildLeaves(Awaiting):
    async def astep(self, action: str) -> Step:
        async def leave() -> None:
            raise SystemExit(3)

        await asyncio.create_task(leave())
        return await super().astep(action)


def test_a_task_of_the_environment_that_leaves_the_process_fails_one_episode() -> None:
    t = alone(ChildLeaves())
    assert not t.valid
    assert "SystemExit" in t.error


class Giving(Plain):
    """Returns ``given`` from the method ``where``."""

    def __init__(self, where: str, given: Any) -> None:
        super().__init__()
        self.where, self.given = where, given

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        good = super().reset(seed=seed, options=options)
        return self.given(good) if self.where == "reset" else good

    def step(self, action: str) -> Step:
        good = super().step(action)
        return self.given(good) if self.where == "step" else good


def field(**values: Any) -> Callable[[Step], Step]:
    return lambda step: step._replace(**values)


def entry(**values: Any) -> Callable[[Step], Step]:
    return lambda step: step._replace(info=step.info | values)


def shown(*messages: Any) -> Callable[[Any], Any]:
    return lambda good: (messages, good[1])


BAD_STEPS: dict[str, tuple[Any, str]] = {
    "reward nan": (field(reward=math.nan), "nan"),
    "reward infinite": (field(reward=-math.inf), "inf"),
    "reward none": (field(reward=None), "None"),
    "reward text": (field(reward="1.0"), "'1.0'"),
    "reward huge": (field(reward=10**400), "reward"),
    "reward beyond single precision": (field(reward=1e300), "1e+300"),
    "reward of two": (field(reward=np.zeros(2)), "array"),
    "terminated text": (field(terminated="no"), "'no'"),
    "truncated none": (field(truncated=None), "None"),
    "info none": (field(info=None), "info"),
    "info list": (field(info=[]), "[]"),
    "info empty": (field(info={}), "tool_results"),
    "valid none": (entry(valid=None), "valid"),
    "tool results text": (entry(tool_results="x"), "'x'"),
    "a tool result none": (entry(tool_results=(None,)), "None"),
    "tool result of bytes": (entry(tool_results=(ToolResult("a", ToolStatus.OK, b"x"),)), "b'x'"),  # type: ignore[arg-type]
    "tool result ids": (entry(tool_results=(ToolResult("search", ToolStatus.OK, data={"ids": 7}),)), "7"),
    "end without reason": (field(terminated=True), "end_reason"),
    "strategy": (entry(strategy="greedy"), "strategy"),
    "answer": (entry(answer="\ud800"), "surrogate"),
    "solved": (entry(solved="yes"), "'yes'"),
    "observation none": (field(observation=None), "None"),
    "observation text": (field(observation="on"), "'on'"),
    "observation of text": (field(observation=("on",)), "'on'"),
    "role": (field(observation=(Message("narrator", "x"),)), "narrator"),  # type: ignore[arg-type]
    "content none": (field(observation=(Message("tool", None),)), "None"),  # type: ignore[arg-type]
    "surrogate": (field(observation=(Message("tool", "a\udc00b"),)), "character 1"),
    "none": (lambda step: None, "None"),
    "three": (lambda step: step[:3], "step"),
}
BAD_OPENINGS: dict[str, tuple[Any, str]] = {
    "surrogate": (shown(Message("user", "\ud83d")), "character 0"),
    "empty": (shown(), "()"),
    "no text": (shown(Message("user", "")), "shows nothing"),
    "no text in parts": (shown(Message("user", (MessagePart("text", ""),))), "shows nothing"),
    "info none": (lambda good: (good[0], None), "None"),
    "observation alone": (lambda good: good[0], "reset"),
    "none": (lambda good: None, "None"),
    "too long": (shown(Message("user", "x" * 10_000_000)), "10000000"),
}


@pytest.mark.parametrize("name", BAD_STEPS)
def test_a_step_that_cannot_be_used_is_a_fault_that_names_the_value(name: str) -> None:
    given, words = BAD_STEPS[name]
    t = alone(Giving("step", given))
    assert (t.valid, t.end_reason, t.reward) == (False, EndReason.ENV_FAULT, 0.0)
    assert t.error.startswith("EnvFault: the environment's step")
    assert words in t.error
    assert len(t.error) < 400


@pytest.mark.parametrize("name", BAD_OPENINGS)
def test_an_opening_that_cannot_be_used_is_a_fault_that_names_the_value(name: str) -> None:
    given, words = BAD_OPENINGS[name]
    t = alone(Giving("reset", given))
    assert (t.valid, t.end_reason) == (False, EndReason.ENV_FAULT)
    assert words in t.error
    assert len(t.ids) == 0


@pytest.mark.parametrize("reward", [1, 1.0, True, np.float32(1), np.int64(1), np.ones(()), np.ones(1)])
def test_numbers_of_other_libraries_are_rewards(reward: Any) -> None:
    t = alone(Giving("step", field(reward=reward)))
    assert t.valid
    assert t.reward == 2.0
    assert all(type(turn.reward) in (int, float) for turn in t.turns)


class Echoing(Plain):
    """Decodes what the policy wrote as JSON, and shows it in the turn after."""

    refuses_half_escapes = True
    said = ""

    def step(self, action: str) -> Step:
        said, self.said = self.said, json.loads(action)["q"]
        step = super().step(action)
        result = ToolResult("echo", ToolStatus.OK, self.said)
        return step._replace(
            observation=(Message("tool", f"You wrote {said} and {self.said}"),),
            info=step.info | {"tool_results": (result,), "answer": self.said},
        )


def test_a_surrogate_that_the_policy_wrote_as_an_escape_is_its_own_doing() -> None:
    policy = ScriptedPolicy({"e-0": (r'{"q": "a\ud800"}', '{"q": "b"}'), "e-1": ('{"q": "a"}', '{"q": "b"}')})
    config = RolloutConfig(context_tokens=500, turn_tokens=50, deadline_s=5.0)
    specs = [EpisodeSpec(Echoing(), TASK, 0), EpisodeSpec(Giving("step", BAD_STEPS["surrogate"][0]), TASK, 1)]
    wrote, theirs = asyncio.run(rollout(specs, policy, InlineFormat(ByteTokenizer()), config, name="e"))
    assert (wrote.valid, wrote.reward, wrote.error) == (True, 1.5, "")
    assert wrote.turns[0].tool_results[0].text == "a?"
    assert wrote.turns[1].observation[0].text == "You wrote a? and b"
    assert (theirs.valid, theirs.end_reason) == (False, EndReason.ENV_FAULT)


def test_an_observation_of_ten_megabytes_is_not_encoded_and_ends_its_episode_as_too_long() -> None:
    encoded: list[int] = []

    class Counting(ByteTokenizer):
        def encode(self, text: str, **options: Any) -> list[int]:
            encoded.append(len(text))
            return super().encode(text, **options)

    big = Giving("step", field(observation=(Message("tool", "x" * 10_000_000),)))
    policy = ScriptedPolicy({"e-0": ("one", "two"), "e-1": ("one", "two")})
    config = RolloutConfig(context_tokens=500, turn_tokens=50, deadline_s=5.0)
    specs = [EpisodeSpec(big, TASK, 0), EpisodeSpec(Plain(), TASK, 1)]
    found, good = asyncio.run(rollout(specs, policy, InlineFormat(Counting()), config, name="e"))
    assert max(encoded) < 100
    assert (good.valid, good.reward) == (True, 1.5)
    # A policy can ask for such an observation: it keeps its reward and is not masked.
    assert (found.valid, found.end_reason, found.reward) == (True, EndReason.TOKEN_LIMIT, 0.5)
    assert found.info["observation_chars"] == 10_000_000
    assert len(found.turns[0].observation[0].text) == 128 * 500


class Unrenderable(InlineFormat):
    def extend(self, ids: Sequence[int], messages: Sequence[Message]) -> list[int]:
        raise TypeError("TextInputSequence must be str")


def test_a_tokenizer_that_fails_on_an_observation_fails_that_episode() -> None:
    policy = ScriptedPolicy({"e-0": ("one", "two")})
    specs = [EpisodeSpec(Plain(), TASK, 0)]
    (t,) = asyncio.run(rollout(specs, policy, Unrenderable(ByteTokenizer()), RolloutConfig(), name="e"))
    assert (t.valid, t.end_reason) == (False, EndReason.ENV_FAULT)
    assert "TextInputSequence" in t.error


@pytest.mark.parametrize("kind", [Plain, Awaiting])
@pytest.mark.parametrize("how", ["raises", "leaves", "hangs"])
def test_a_constructor_that_fails_is_one_failed_episode(how: str, kind: Any) -> None:
    count = iter(range(99))

    def make() -> Env[Any]:
        if next(count) == 1:
            if how == "hangs":
                hang()
            raise SystemExit(1) if how == "leaves" else KeyError("no such file")
        return kind()  # type: ignore[no-any-return]

    policy = ScriptedPolicy({f"eval-0-{i}": ("one", "two") for i in range(4)})
    config = RolloutConfig(deadline_s=1.0)
    got = play(policy, InlineFormat(ByteTokenizer()), make, [TASK] * 4, config)
    assert [t.valid for t in got] == [True, False, True, True]
    assert "constructor" in got[1].error


def test_a_constructor_that_refuses_its_options_ends_the_run() -> None:
    closed: list[str] = []
    made = iter([Plain(at("close", lambda: closed.append("closed")))])

    def make() -> Env[Any]:
        for env in made:
            return env
        raise ConfigurationError("k=0 must be at least 1")

    with pytest.raises(ConfigurationError, match="k=0"):
        asyncio.run(make_envs([make, make], 5.0))
    assert closed == ["closed"]


def test_an_environment_in_the_place_of_one_that_failed_has_the_traits_of_the_others() -> None:
    class Golden(Plain):
        reward_ceiling = 7.0

    def fail() -> Env[Any]:
        raise OSError("disk")

    unmade, made = asyncio.run(make_envs([fail, Golden], 5.0))
    assert isinstance(unmade, UnmadeEnv)
    assert unmade.reward_ceiling == made.reward_ceiling == 7.0


@pytest.mark.parametrize("kind", [Plain, Awaiting])
@pytest.mark.parametrize("how", ["raises", "leaves", "hangs"])
def test_a_close_that_fails_masks_its_own_episode(how: str, kind: Any) -> None:
    def fail() -> None:
        if how == "hangs":
            hang()
        raise SystemExit(1) if how == "leaves" else OSError("gone")

    envs = iter([kind(), kind(at("close", fail)), kind()])
    policy = ScriptedPolicy({f"eval-0-{i}": ("one", "two") for i in range(3)})
    config = RolloutConfig(deadline_s=1.0)
    got = play(policy, InlineFormat(ByteTokenizer()), lambda: next(envs), [TASK] * 3, config)
    assert [(t.valid, t.reward) for t in got] == [(True, 1.5), (False, 0.0), (True, 1.5)]
    assert "close" in got[1].error


def test_many_closes_that_hang_are_waited_for_together() -> None:
    envs = [Plain(at("close", hang)) for _ in range(60)]
    began = time.monotonic()
    flaws = asyncio.run(close_envs(envs, 0.3))
    assert all("close took longer" in flaw for flaw in flaws)
    assert time.monotonic() - began < 10, "one after the other would take 18 s"


class Searching(Plain):
    """Asks a batch of all episodes in each step, from the thread of its plain function."""

    def __init__(self, found: Batcher[int, int], run: Callable[[Any], int]) -> None:
        super().__init__()
        self.found, self.run = found, run

    def step(self, action: str) -> Step:
        assert self.run(self.found.submit(7)) == 8
        return super().step(action)


@pytest.mark.parametrize("run", [run_sync, asyncio.run])
def test_plain_environments_that_wait_for_each_other_need_no_more_threads_than_there_are(run: Any) -> None:
    """The episodes of a deterministic batcher wait for one batch, and those behind them for a thread: neither counts."""
    sizes: list[int] = []

    def search(items: list[int]) -> list[int]:
        sizes.append(len(items))
        return [item + 1 for item in items]

    found = Batcher(search)
    episodes = 2 * THREADS._max_workers
    got = played([Searching(found, run) for _ in range(episodes)], deadline_s=20.0)
    assert [t.reward for t in got] == [1.5] * episodes
    assert sizes == [episodes] * 2


class Hosting(Awaiting):
    """Plays an episode of another environment in its step."""

    def __init__(self, inner: Callable[[], Env[Any]]) -> None:
        super().__init__()
        self.inner = inner

    async def astep(self, action: str) -> Step:
        policy = ScriptedPolicy({"i-0": ("one", "two")})
        config = RolloutConfig(deadline_s=DEADLINE_S, deterministic=False)
        specs = [EpisodeSpec(self.inner(), TASK, 0)]
        (t,) = await rollout(specs, policy, InlineFormat(ByteTokenizer()), config, name="i")
        step = await super().astep(action)
        return step._replace(observation=(Message("tool", f"{t.valid} {t.reward} {t.error}"),))


@pytest.mark.parametrize("kind", [Plain, Awaiting])
def test_an_environment_may_play_another_one(kind: Any) -> None:
    t = alone(Hosting(kind), context_tokens=900)
    assert t.valid
    assert t.turns[0].observation[0].text == "True 1.5 "


@pytest.mark.parametrize("kind", [Plain, Patient])
def test_an_environment_that_another_one_plays_and_that_hangs_fails_alone(kind: Any) -> None:
    t = alone(Hosting(lambda: kind(at("step", hang))), context_tokens=900)
    assert t.valid
    assert "False 0.0" in t.turns[0].observation[0].text
    assert f"step took longer than {DEADLINE_S:g} s" in t.turns[0].observation[0].text
