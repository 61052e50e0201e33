"""Our environments in the released SkyRL-gym, through its own registry."""

from typing import Any

import pytest

from agentenv.core.types import Task
from agentenv.errors import ConfigurationError, EnvFault, EpisodeOver, RetrieverFault
from agentenv.serving.rows import rows

skyrl_gym = pytest.importorskip("skyrl_gym", reason="skyrl-gym is not installed; .ci/peers tests against it")

from agentenv.serving.skyrl import register  # noqa: E402

CALL = '<tool_call>{"name": "calculate", "arguments": {"expression": "20 * 3"}}</tool_call>'


def made(**extras: Any) -> Any:
    register("agentenv/SQL-v0")
    register("agentenv/Calculator-v0")
    (row,) = rows(tasks=[Task("t", "20 * 3", ("60",))])
    return skyrl_gym.make("agentenv", env_config={}, extras={**row, **extras})


def test_an_episode() -> None:
    with made() as env:
        assert isinstance(env, skyrl_gym.Env)
        messages, info = env.init([{"role": "user", "content": "of the data set"}])
        assert [message["role"] for message in messages] == ["user"]
        assert "what is 20 * 3?" in messages[0]["content"]
        assert info == {"task_id": "t"}
        first = env.step(CALL)
        assert set(first) == {"observations", "reward", "done", "metadata", "postprocessed_action"}
        assert (first["reward"], first["done"]) == (0.0, False)
        assert first["observations"] == [
            {"role": "user", "content": "\n<tool_response>\n60\n</tool_response>\n"}
        ]
        last = env.step("60")
        assert (last["observations"], last["reward"], last["done"]) == ([], 1.0, True)
        assert last["metadata"]["end_reason"] == "answered"
        assert env.get_metrics() == {"turns": 2, "invalid_turns": 0, "truncated": 0.0}
        assert env.aggregate_metrics([env.get_metrics()])["turns"] == 2
        with pytest.raises(EpisodeOver):
            env.step("60")
        env.init([])
        assert env.get_metrics()["turns"] == 0


def test_skyrls_bound_of_turns_ends_an_episode() -> None:
    with made(max_turns=1) as env:
        env.init([])
        step = env.step(CALL)
        assert (step["done"], step["metadata"]["truncated"], step["metadata"]["terminated"]) == (
            True,
            True,
            False,
        )


def test_a_fault_is_raised_and_not_a_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    with made() as env:
        env.init([])

        def broken(action: str) -> Any:
            raise RetrieverFault("the index is gone")

        monkeypatch.setattr(env._env, "step", broken)
        with pytest.raises(RetrieverFault):
            env.step("60")


def test_who_is_cut_gets_what_giving_up_earns(monkeypatch: pytest.MonkeyPatch) -> None:
    with made(max_turns=2) as env:
        env.init([])
        monkeypatch.setattr(env._env, "cut_reward", lambda: -0.5)
        assert [env.step(CALL)["reward"] for _ in range(2)] == [0.0, -0.5]
        env.init([])
        assert env.step("60")["reward"] == 1.0


def test_a_reward_that_is_no_number_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    with made() as env:
        env.init([])
        monkeypatch.setattr(env._env, "answer", lambda text: env._env.result((), reward=float("nan")))
        with pytest.raises(EnvFault, match="nan"):
            env.step("60")


def test_a_row_without_an_episode_is_refused() -> None:
    register("agentenv/Calculator-v0")
    with pytest.raises(ConfigurationError, match="max_turns"):
        skyrl_gym.make("agentenv", env_config={}, extras={"max_turns": 3})


def test_a_row_that_chooses_its_environment_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="unsafe-local"):
        made(arguments='{"executor": "unsafe-local"}')
    with pytest.raises(ConfigurationError, match="SQL-v0"):
        made(env="agentenv/SQL-v0")
