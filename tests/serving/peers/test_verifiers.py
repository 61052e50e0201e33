"""Our environments in the released verifiers (v1): as a plug-in, and as its taskset for OpenEnv servers calls them."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

vf = pytest.importorskip("verifiers.v1", reason="verifiers is not installed; .ci/peers tests against it")

from agentenv.envs.calculator import Calculator  # noqa: E402
from agentenv.policies.fake_endpoint import Answer, FakeEndpoint  # noqa: E402

TASK = {"id": "t", "question": "20 * 3", "answers": ["60"]}
CALL = '<tool_call>{"name": "calculate", "arguments": {"expression": "20 * 3"}}</tool_call>'
PLUGIN = '''
"""What a user writes, and a harness that asks the model from within this process."""

import httpx
import verifiers.v1 as vf
from verifiers.v1.dialects.chat import message_to_wire

from agentenv.serving.verifiers import AgentenvEnv, AgentenvTaskset


class Asking(vf.Harness[vf.HarnessConfig]):
    SUPPORTS_RESUME, EXECUTES_CODE, NEEDS_CONTAINER = True, False, False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        body = {"model": ctx.model, "messages": [message_to_wire(message) for message in data.prompt]}
        async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
            headers = {"Authorization": f"Bearer {secret}"}
            reply = await client.post(f"{endpoint}/chat/completions", json=body, headers=headers)
            reply.raise_for_status()
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


__all__ = ["AgentenvEnv", "AgentenvTaskset", "Asking"]
'''


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The id of a taskset module."""
    (tmp_path / "agentenv_calculator.py").write_text(PLUGIN, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "agentenv_calculator", raising=False)
    monkeypatch.setenv("NO_KEY", "none")
    return "agentenv-calculator"


def said(replies: list[str]) -> FakeEndpoint:
    """A model that says ``replies``, one after the other."""

    def answer(body: Any) -> Answer:
        text = replies[sum(message["role"] == "assistant" for message in body["messages"])]
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        reply = {"id": "1", "object": "chat.completion", "created": 1, "model": "any", "choices": [choice]}
        return Answer(raw=json.dumps(reply), headers={"Content-Type": "application/json"})

    return FakeEndpoint(answer)


def play(replies: list[str], env_id: str = "", **taskset: Any) -> tuple[Any, FakeEndpoint]:
    """One episode of verifiers' own runner."""
    from verifiers.v1.env import Env
    from verifiers.v1.utils.generic import concrete_type
    from verifiers.v1.utils.loaders import environment_class, load_environment

    async def scene(url: str) -> Any:
        kind = concrete_type(environment_class(taskset["id"], env_id), vf.EnvConfig, origin=Env)
        player = {"harness": {"id": "agentenv-calculator"}, "runtime": {"type": "subprocess"}}
        env = load_environment(kind(taskset=taskset, player=player))
        client = vf.EvalClientConfig(base_url=url, api_key_var="NO_KEY")
        async with env.serving():
            return await env.run_episode(next(iter(env.taskset)), vf.ModelContext(model="any", client=client))

    with said(replies) as model:
        return asyncio.run(scene(model.url)), model


def test_an_episode_of_the_plugin(plugin: str) -> None:
    episode, model = play([CALL, "60"], id=plugin, env="agentenv/Calculator-v0", tasks=[TASK])
    assert (episode.ok, episode.errors) == (True, [])
    (trace,) = episode.traces
    assert trace.rewards["agentenv"].score == 1.0
    assert (trace.metrics["turns"], trace.metrics["invalid_turns"]) == (2, 0)
    assert trace.num_turns == 2
    last = [(message["role"], message["content"]) for message in model.bodies[-1]["messages"]]
    assert [role for role, _ in last] == ["user", "assistant", "user"]
    assert "what is 20 * 3?" in last[0][1]
    assert "60" in last[2][1]


def test_a_reward_that_is_no_number_fails_the_episode(plugin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Calculator, "answer", lambda self, text: self.result((), reward=float("nan")))
    episode, _ = play(["60"], id=plugin, env="agentenv/Calculator-v0", tasks=[TASK])
    assert not episode.ok
    assert "nan" in episode.errors[0].message
    assert all("agentenv" not in trace.rewards for trace in episode.traces)


def test_one_task_a_seed(plugin: str) -> None:
    from verifiers.v1.utils.loaders import load_taskset, taskset_config_type

    config = taskset_config_type(plugin)(id=plugin, env="agentenv/Calculator-v0", seeds=[4, 5])
    assert [task.data.row.seed for task in load_taskset(config)] == [4, 5]


def test_a_fault_fails_the_episode_and_gives_no_reward(plugin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from agentenv.errors import RetrieverFault

    async def broken(self: Calculator, action: str) -> Any:
        raise RetrieverFault("the index is gone")

    monkeypatch.setattr(Calculator, "astep", broken)
    episode, _ = play(["60"], id=plugin, env="agentenv/Calculator-v0", tasks=[TASK])
    assert not episode.ok
    assert "the index is gone" in episode.errors[0].message
    assert all("agentenv" not in trace.rewards for trace in episode.traces)


@pytest.mark.parametrize("reply", ["60", CALL, "```\n60\n```", "two words"])
def test_what_the_taskset_for_openenv_servers_sends_is_an_action_of_ours(serving: Any, reply: str) -> None:
    """That taskset needs OpenEnv's package, whose pins exclude those of verifiers: its part that parses is run here."""
    from verifiers.v1.tasksets.openenv.taskset import parse_action

    from agentenv.serving.app import schemas

    with serving(Calculator, client_tasks=True) as served, served.call() as line:
        line.ask("reset", options={"task": TASK})
        step = line.ask("step", **parse_action(reply, schemas()["action"]))["data"]
        assert (step["reward"], step["done"]) == {"60": (1.0, True), CALL: (0.0, False)}.get(
            reply.strip("`\n"), (0.0, True)
        )
