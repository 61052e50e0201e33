"""How a policy is asked is the same with an environment at a server: tools, turns in the model's own form, stop strings."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

for module in ("fastapi", "uvicorn", "orjson", "prometheus_client", "websockets"):
    pytest.importorskip(module, reason=f"{module} is not installed")
pytest.importorskip("trl", reason="needs the interop extra, which brings the chat templates")

import agentenv  # noqa: E402
from agentenv.core.assistant_turns import AssistantTurn, MalformedCall, NativeCall  # noqa: E402
from agentenv.core.chat import ends_of_turn  # noqa: E402
from agentenv.core.chat_formats import make_chat_format  # noqa: E402
from agentenv.core.env import Env  # noqa: E402
from agentenv.core.rollout import EpisodeSpec, RolloutConfig, fork, open_episode, play, rollout  # noqa: E402
from agentenv.core.trajectory import Trajectory, to_record  # noqa: E402
from agentenv.core.types import Completion, EndReason, Message, Sampling, Task  # noqa: E402
from agentenv.envs.agent_program.env import AgentProgram  # noqa: E402
from agentenv.envs.calculator import Calculator  # noqa: E402
from agentenv.envs.search.local_search import LocalSearch  # noqa: E402
from agentenv.envs.search.long_search import LongSearch  # noqa: E402
from agentenv.envs.search.native_tools import NOT_MADE, TOGETHER  # noqa: E402
from agentenv.envs.search.self_search import SelfSearch  # noqa: E402
from agentenv.errors import ConfigurationError  # noqa: E402
from agentenv.policies.scripted import ScriptedPolicy  # noqa: E402
from agentenv.serving.asking import turn_in, turn_out  # noqa: E402
from agentenv.trainers.strategies.demonstrations import expert_actions, spell  # noqa: E402
from agentenv.trainers.strategies.rollout_context import RolloutContext  # noqa: E402
from tests.core.test_native_families import MODELS  # noqa: E402

TOKENIZER = MODELS["Qwen2.5"].tokenizer()
SUM = Task("sum", "What is 2 + 3?", ("5",))
HARD = (
    '<tool_call>\n{"name": "nobody", "arguments": {"a": NaN}}\n</tool_call>',
    '<tool_call>\n{"name": "nobody", "arguments": {"a": "\\ud83d"}}\n</tool_call>',
    "<tool_call>\n{broken\n</tool_call>",
    f"<tool_call>\n{'[' * 3000}\n</tool_call>",
)
"""Turns of which a server that reads them otherwise would make a failure of its own, or another answer."""


def called(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


class Asked(ScriptedPolicy):
    """Keeps how it was asked."""

    def __init__(self, actions: Sequence[str]) -> None:
        super().__init__({"e-0": actions}, TOKENIZER)
        self.samplings: list[Sampling] = []

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
    ) -> Completion:
        self.samplings.append(sampling)
        return await super().generate(prompt_ids, sampling, episode=episode)


def played(
    env: Env[Any], task: Task, actions: Sequence[str], form: str, stop: Sequence[str] = ()
) -> tuple[Trajectory, list[Sampling]]:
    """The episode, and how the policy was asked for each turn."""
    policy, chat = Asked(actions), make_chat_format(form, TOKENIZER, ends_of_turn(TOKENIZER))
    config = RolloutConfig(turn_tokens=4000, context_tokens=30_000, stop=tuple(stop))
    (trajectory,) = asyncio.run(rollout([EpisodeSpec(env, task, 7)], policy, chat, config, name="e"))
    return trajectory, policy.samplings


def check_same(serving: Any, make: Callable[[], Env[Any]], actions: Sequence[str], form: str) -> Trajectory:
    """Plays ``actions`` here and at a server; gives the record, which has to be the same."""
    here = make()
    task = next(iter(here.held_tasks()), SUM)
    with serving(make, client_tasks=True) as served:
        there = agentenv.make(f"remote:{served.url}")
        near, far = (played(env, task, actions, form, type(here).stop) for env in (here, there))
        there.close()
    here.close()
    assert near[0].valid, near[0].error
    assert to_record(near[0]) == to_record(far[0])
    assert [turn.observation for turn in near[0].turns] == [turn.observation for turn in far[0].turns]
    assert near[1] == far[1]
    return near[0]


def test_tools_are_declared_and_called_in_the_models_form(serving: Any) -> None:
    thinks = f"<think>\nhm\n</think>\n\n{called('calculate', expression='2 + 3')}"
    record = check_same(
        serving, Calculator, (thinks, *HARD, called("calculate", expression="1") * 2, "5"), "native"
    )
    assert (record.reward, len(record.turns)) == (1.0, 7)
    assert record.turns[0].observation == (Message("tool", "5", name="calculate", call_id="call00000"),)


def test_the_searches_of_a_turn_are_answered_as_here(serving: Any) -> None:
    turn = "\n".join(called("search", query=text) for text in ("society", "chess", " "))
    record = check_same(serving, LocalSearch, (turn, called("answer", answer="x")), "native")
    assert [message.text for message in record.turns[0].observation][1:] == [TOGETHER, NOT_MADE]


@pytest.mark.parametrize(
    ("agent", "actions"),
    [
        ("with_tools", [called("add", a=2, b=3), "5"]),
        ("changing", [called("add", a=2, b=3), "5"]),
        ("changing", [HARD[0], "5"]),
        ("forgetful", ["one", "two", "5"]),
    ],
)
def test_contexts_of_an_agent_travel_with_their_calls_and_tools(
    serving: Any, monkeypatch: pytest.MonkeyPatch, agent: str, actions: Sequence[str]
) -> None:
    monkeypatch.chdir(Path(__file__).parents[1] / "envs" / "agent_program")
    record = check_same(serving, lambda: AgentProgram(agent=f"python:agents:{agent}"), actions, "native")
    assert record.end_reason is EndReason.ANSWERED


def test_stop_strings_of_a_turn_travel(serving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[1] / "envs" / "agent_program")
    record = check_same(
        serving,
        lambda: AgentProgram(agent="python:agents:react"),
        ["It is Observation: rain", "5"],
        "template",
    )
    assert record.turns[0].action == "It is Observation:"
    search = "<search> it </search>"
    last = f"{search}<information> 5 </information><answer> 5 </answer>"
    check_same(serving, lambda: SelfSearch(max_turns=1), [search, last], "inline")
    record = check_same(
        serving,
        lambda: LongSearch(reads_on=True),
        [search, "<think> so </think><answer> x </answer>", "<answer> x </answer>"],
        "inline",
    )
    assert record.turns[1].action == "<think> so </think>"


def test_a_fork_at_a_server_goes_on_in_the_models_form(serving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[1] / "envs" / "agent_program")
    chat = make_chat_format("native", TOKENIZER, ends_of_turn(TOKENIZER))
    config = RolloutConfig(turn_tokens=400, context_tokens=4000)

    async def forked(env: Env[Any]) -> list[Any]:
        policy = ScriptedPolicy(
            {"e": [called("add", a=2, b=3), "5"], "f": [called("add", a=2, b=3), "5"]}, TOKENIZER
        )
        state = await open_episode(EpisodeSpec(env, SUM, 0), policy, chat, config, episode="e")
        (twin,) = await fork(state, 1, 60)
        other = state.copy()
        other.spec, other.episode = replace(state.spec, env=twin), "f"
        ended = [await play(one, policy, chat, config) for one in (state, other)]
        twin.close()
        return [to_record(one) | {"id": ""} for one in ended]

    def make() -> Env[Any]:
        return AgentProgram(agent="python:agents:changing")

    here = make()
    with serving(make, client_tasks=True) as served:
        there = agentenv.make(f"remote:{served.url}")
        near, far = asyncio.run(forked(here)), asyncio.run(forked(there))
        there.close()
    here.close()
    assert near[0]["reward"] == 1
    assert near[0] == near[1] == far[0] == far[1]


def test_every_turn_travels() -> None:
    calls = (NativeCall("a", {"x": [float("inf"), "\ud83d"]}, "1"), MalformedCall("{", "it is cut", "2"))
    for turn in (AssistantTurn("hm", "so", calls, closed=False), AssistantTurn(None, "")):
        assert turn_in(json.loads(json.dumps(turn_out(turn), allow_nan=False))) == turn


def test_a_turn_that_is_none_costs_nothing(serving: Any, house: Any) -> None:
    with serving(lambda: house) as served, served.call() as line:
        line.ask("reset", native=True)
        for turn in ({}, {"content": 3}, {"content": "", "calls": [{}]}, {"content": "", "calls": "no"}):
            assert line.ask("step", text="", turn=turn)["data"]["code"] == "VALIDATION_ERROR"
        deep = {"id": "", "function": {"name": "a", "arguments": "[" * 100_000}}
        said = line.ask("step", text="", turn={"content": "hello", "calls": [deep]})
        assert said["data"]["observation"]["text"] == "hello after 0"


def test_a_server_that_says_nothing_of_tools_is_refused(
    serving: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of an earlier version, at which every call of the policy would be lost."""
    monkeypatch.setattr("agentenv.serving.env_session.asking_out", lambda env, *, opens: {})
    with serving(Calculator, client_tasks=True) as served:
        env = agentenv.make(f"remote:{served.url}")
        assert played(env, SUM, ["5"], "template")[0].reward == 1
        with pytest.raises(ConfigurationError, match=r"127\.0\.0\.1"):
            played(env, SUM, ["5"], "native")
        env.close()


@pytest.mark.parametrize("make", [Calculator, LongSearch])
def test_an_expert_is_shown_natively_as_here(serving: Any, make: Callable[[], Env[Any]]) -> None:
    """Its actions come in tags, and are written as calls of the tools that the server names."""
    here = make()
    task = next(iter(here.held_tasks() or type(here).make_tasks(1, seed=1)))
    chat = make_chat_format("native", TOKENIZER, ends_of_turn(TOKENIZER))
    config = RolloutConfig(turn_tokens=4000, context_tokens=30_000)
    context = RolloutContext(ScriptedPolicy({}, TOKENIZER), chat, config, TOKENIZER.decode)
    with serving(make, client_tasks=True, expert=True) as served:
        there = agentenv.make(f"remote:{served.url}")
        near, far = (
            asyncio.run(spell(EpisodeSpec(env, task, 7), context, expert_actions)) for env in (here, there)
        )
        there.close()
    here.close()
    assert (near.reward, near.end_reason) == (1.0, EndReason.ANSWERED)
    assert to_record(near) == to_record(far)
    assert near.turns[0].action.startswith("<tool_call>")
