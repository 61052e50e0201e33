"""Vector environment: concurrency, partial steps, no autoreset, faults of one episode, seeds and masks."""

import asyncio
import math
import re
import time
from typing import Any

import gymnasium
import numpy as np
import pytest

import agentenv
from agentenv.core.env import AsyncEnv
from agentenv.core.types import EndReason, Info, Message, Observation, Step
from agentenv.core.vector import VectorEnv
from agentenv.errors import ConfigurationError, EnvFault, EpisodeOver


class Counter(AsyncEnv[int]):
    """Counts its steps; ``bye`` ends, ``fault`` and ``bug`` fail."""

    def __init__(self, wait_s: float = 0.0) -> None:
        super().__init__()
        self.wait_s = wait_s
        self.closed = 0

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        await super().areset(seed=seed)
        self.state = 0
        return (Message("user", f"{seed} {options}"),), {"seed": seed}

    async def astep(self, action: str) -> Step:
        self.check_running()
        await asyncio.sleep(self.wait_s)
        if action == "fault":
            raise EnvFault("down")
        if action == "bug":
            raise ZeroDivisionError
        self.state += 1
        observation = (Message("user", f"{action} {self.state}"),)
        if action == "bye":
            return self.result(observation, reward=1.0, end=EndReason.ANSWERED)
        return self.result(observation, reward=0.5)

    def close(self) -> None:
        self.closed += 1
        super().close()


def begun(n: int = 3, wait_s: float = 0.0) -> VectorEnv:
    envs = VectorEnv([Counter(wait_s) for _ in range(n)])
    envs.reset(seed=10)
    return envs


def test_reset_spreads_the_seed() -> None:
    envs = VectorEnv([Counter() for _ in range(3)])
    observations, infos = envs.reset(seed=10)
    assert [info["seed"] for info in infos] == [10, 11, 12]
    assert observations[2] == (Message("user", "12 None"),)
    assert [info["seed"] for info in envs.reset(seed=[4, None, 6])[1]] == [4, None, 6]


def test_options_go_to_all_or_to_each() -> None:
    envs = VectorEnv([Counter() for _ in range(2)])
    assert envs.reset(options={"a": 1})[0][1] == (Message("user", "None {'a': 1}"),)
    assert envs.reset(options=[None, {"b": 2}])[0][1] == (Message("user", "None {'b': 2}"),)


def test_a_mask_resets_some() -> None:
    envs = begun()
    envs.step(["bye", "x", "x"])
    observations, infos = envs.reset(seed=20, options={"reset_mask": np.array([True, False, False])})
    assert [info.get("seed") for info in infos] == [20, None, None]
    assert observations[1:] == ((), ())
    _, _, terminated, _, infos = envs.step(["x", "y", "z"])
    assert [info["turn"] for info in infos] == [1, 2, 2]
    assert not terminated.any()


def test_none_leaves_an_episode_alone() -> None:
    envs = begun()
    observations, rewards, terminated, truncated, infos = envs.step(["a", None, "bye"])
    assert observations == ((Message("user", "a 1"),), (), (Message("user", "bye 1"),))
    assert rewards.tolist() == [0.5, 0.0, 1.0]
    assert terminated.tolist() == [False, False, True]
    assert not truncated.any()
    assert infos[1] == {}
    assert infos[2]["end_reason"] is EndReason.ANSWERED
    _, _, terminated, _, infos = envs.step(["a", "a", None])
    assert [info.get("turn") for info in infos] == [2, 1, None]
    assert terminated.tolist() == [False, False, True], "an ended episode stays ended"


def test_nothing_is_reset_by_itself_and_an_ended_episode_refuses() -> None:
    envs = begun()
    assert envs.metadata["autoreset_mode"] is gymnasium.vector.AutoresetMode.DISABLED
    envs.step(["bye", "a", "a"])
    with pytest.raises(EpisodeOver, match=r"\[0\]"):
        envs.step(["a", "a", "a"])
    assert envs.step([None, "a", None])[4][1]["turn"] == 2, "the refused step stepped nothing"
    with pytest.raises(EpisodeOver):
        VectorEnv([Counter()]).step(["a"])


def test_a_fault_is_its_own_episode_s_and_no_reward() -> None:
    envs = begun()
    envs.step(["a", "a", "a"])
    observations, rewards, _, truncated, infos = envs.step(["a", "fault", "bye"])
    assert math.isnan(rewards[1])
    assert rewards[[0, 2]].tolist() == [0.5, 1.0]
    assert truncated.tolist() == [False, True, False]
    assert observations[1] == ()
    assert infos[1] == {
        "turn": 2,
        "tool_results": (),
        "valid": False,
        "end_reason": EndReason.ENV_FAULT,
        "error": "down",
    }
    with pytest.raises(EpisodeOver):
        envs.step([None, "a", None])


def test_a_bug_is_raised_after_the_others_are_done() -> None:
    envs = begun(wait_s=0.01)
    with pytest.raises(ZeroDivisionError):
        envs.step(["a", "bug", "a"])
    assert [env.state for env in envs.envs] == [1, 0, 1]


def test_episodes_step_concurrently() -> None:
    envs = begun(40, wait_s=0.5)
    start = time.perf_counter()
    envs.step(["a"] * 40)
    assert time.perf_counter() - start < 10, "one after the other would take 20 s"


def test_the_async_twins() -> None:
    async def play() -> list[float]:
        envs = VectorEnv([Counter(), Counter()])
        await envs.areset(seed=1)
        rewards: list[float] = (await envs.astep(["a", "bye"]))[1].tolist()
        return rewards

    assert asyncio.run(play()) == [0.5, 1.0]


@pytest.mark.parametrize("actions", [["a"], ["a"] * 4, "abc"])
def test_another_number_of_actions_is_refused(actions: Any) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(repr(actions))):
        begun().step(actions)


def test_close_closes_all_once() -> None:
    envs = begun()
    envs.close()
    envs.close()
    assert [env.closed for env in envs.envs if isinstance(env, Counter)] == [1, 1, 1]


def test_actions_of_the_space_can_be_played() -> None:
    envs = agentenv.make_vec("agentenv/Calculator-v0", 2)
    envs.reset(seed=0)
    envs.action_space.seed(0)
    actions = envs.action_space.sample()
    assert actions in envs.action_space
    observations, *_ = envs.step(list(actions))
    assert observations in envs.observation_space


def test_what_is_shared_is_loaded_once() -> None:
    envs = agentenv.make_vec("agentenv/LocalSearch-v0", 3)
    assert len({id(vars(env)["search"].retriever) for env in envs.envs}) == 1
    observations, _ = envs.reset(seed=0)
    alone, _ = agentenv.make("agentenv/LocalSearch-v0").reset(seed=1)
    assert observations[1] == alone
    assert len(envs.render()) == 3


def test_flags_are_truth_values_and_seeds_are_each_environment_s_own() -> None:
    envs = begun()
    _, rewards, terminated, truncated, _ = envs.step(["a", None, "bye"])
    assert [array.dtype for array in (rewards, terminated, truncated)] == [np.float64, np.bool_, np.bool_]
    terminated[0] = True  # a copy: what the caller does with it changes nothing
    assert envs.step(["a", "a", None])[2].tolist() == [False, False, True]
    _, infos = envs.reset(seed=None, options={"reset_mask": [False, True, False]})
    assert [info.get("seed", "untouched") for info in infos] == ["untouched", None, "untouched"]
    assert envs.num_envs == 3
    assert envs.render_mode is None
    assert envs.single_action_space == envs.envs[0].action_space


@pytest.mark.parametrize("seeds", [[1], [1, 2, 3, 4]])
def test_another_number_of_seeds_or_options_is_refused(seeds: list[int]) -> None:
    with pytest.raises(ConfigurationError, match=rf"{re.escape(repr(seeds))}.*\b3\b"):
        begun().reset(seed=seeds)
    with pytest.raises(ConfigurationError, match=r"\b3\b"):
        begun().reset(options=[None])


def test_flags_and_rewards_have_the_types_that_gymnasium_names() -> None:
    _, rewards, terminated, truncated, _ = begun(2).step(["a", None])
    assert [flags.dtype.kind for flags in (rewards, terminated, truncated)] == ["f", "b", "b"]
    with pytest.raises(EpisodeOver):  # no episode has begun
        VectorEnv([Counter(), Counter()]).step(["a", None])


def test_episodes_that_are_not_begun_again_keep_their_turns() -> None:
    envs = begun(2)
    envs.step(["a", "a"])
    envs.reset(options={"reset_mask": np.array([True, False])})
    infos = envs.step(["fault", "fault"])[-1]
    assert [info["turn"] for info in infos] == [1, 2]
