"""Episodes with a model behind an endpoint that calls tools natively: both wire forms, pictures, refusals, bad input."""

import asyncio
import base64
import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agentenv.api import evaluate
from agentenv.cli.main import main
from agentenv.core.assistant_turns import CUT_OFF
from agentenv.core.env import AsyncEnv, Env
from agentenv.core.rollout import EpisodeSpec, RolloutConfig, rollout
from agentenv.core.tools import Tool, ToolEnv
from agentenv.core.trajectory import SegmentKind, Trajectory
from agentenv.core.types import Document, EndReason, Info, Message, MessagePart, Observation, Step, Task
from agentenv.envs.calculator import Calculator
from agentenv.envs.search.local_search import LocalSearch
from agentenv.envs.search.native_tools import TOGETHER
from agentenv.errors import ConfigurationError, PolicyFault
from agentenv.policies.endpoint import ChatClient
from agentenv.policies.endpoint_formats import MessageFormat, ToolFormat
from agentenv.policies.endpoint_spec import Endpoint
from agentenv.policies.fake_endpoint import Answer, Body, FakeEndpoint
from agentenv.policies.openai import OpenAIPolicy
from agentenv.retrievers.fakes import InMemoryRetriever

SUM = Task("sum", "2 * 3 - 1", ("5",))
WIRES = ("chat", "responses")
FORMS = [(wire, stream) for wire in WIRES for stream in (False, True)]
FILTERED = Answer(status=400, raw=json.dumps({"error": {"code": "content_filter", "message": "bad words"}}))


def play(
    env: Env[Any], answers: Sequence[Answer], task: Task = SUM, *, native: bool = True, **options: Any
) -> tuple[Trajectory, list[dict[str, Any]]]:
    """The episode, and the requests that were made."""
    left = iter(answers)
    with FakeEndpoint(lambda body: next(left)) as server:
        client = ChatClient(Endpoint("any", server.url, retries=0, **options))
        policy = OpenAIPolicy(client).in_format("native" if native else "inline", "", {})
        config = RolloutConfig(turn_tokens=500, context_tokens=9000, deterministic=False)
        spec = EpisodeSpec(env, task, 5)
        (played,) = asyncio.run(rollout([spec], policy, policy.chat, config, name="e"))
        return played, server.bodies


def calculate(expression: str, id_: str = "a") -> tuple[str, str, str]:
    return id_, "calculate", json.dumps({"expression": expression})


def results_of(wire: str, body: Body) -> list[tuple[str, str]]:
    """The results of tools in a request, by the ids of their calls."""
    if wire == "chat":
        return [(m["tool_call_id"], m["content"]) for m in body["messages"] if m["role"] == "tool"]
    return [(i["call_id"], i["output"]) for i in body["input"] if i.get("type") == "function_call_output"]


@pytest.mark.parametrize(("wire", "stream"), FORMS)
def test_tools_are_declared_called_and_answered(wire: Any, stream: bool) -> None:
    calls = (calculate("2 * 3", "x1"), calculate("6 - 1", "x2"))
    played, (first, second) = play(
        Calculator(), [Answer("Let me see.", calls=calls), Answer("5")], wire=wire, stream=stream
    )
    assert (played.reward, played.end_reason, len(played.turns)) == (1.0, EndReason.ANSWERED, 2)
    (tool,) = first["tools"]
    declared = tool["function"] if wire == "chat" else tool
    assert declared["name"] == "calculate"
    assert list(declared["parameters"]["properties"]) == ["expression"]
    assert "stop" not in first
    assert "<tool_call>" not in json.dumps(first)  # the environment's own way of calling
    assert results_of(wire, second) == [("x1", "6"), ("x2", "5")]
    assert played.turns[0].action.startswith('Let me see.<tool_call>{"name": "calculate"')
    assert {segment.row for segment in played.segments} == {0}
    with pytest.raises(ConfigurationError, match="sum"):
        _ = played.loss_mask


@pytest.mark.parametrize("wire", WIRES)
def test_calls_that_are_malformed_unknown_or_refused_by_the_schema_are_told_so_and_the_episode_goes_on(
    wire: Any,
) -> None:
    bad = (("m", "calculate", '{"expression": '), ("u", "calculat", "{}"), ("w", "calculate", '{"x": 1}'))
    played, bodies = play(
        Calculator(), [Answer(calls=bad), Answer(calls=(calculate("2 * 3 - 1"),)), Answer("5")], wire=wire
    )
    assert (played.reward, played.valid) == (1.0, True)
    said = dict(results_of(wire, bodies[1]))
    assert list(said) == ["m", "u", "w"]
    assert "JSON" in said["m"]
    assert "'calculate'" in said["u"]
    assert "expression" in said["w"]
    assert [turn.valid for turn in played.turns] == [False, True, True]


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(("arguments", "finish", "said"), [
    ('{"expression": "2', "length", CUT_OFF),
    ('{"expression": "2', "", "not JSON"),
    ('{"expression": "2"} 3', "length", "not JSON"),
])  # fmt: skip
def test_a_call_that_the_length_limit_of_a_service_cut_off_is_told_so(
    wire: Any, arguments: str, finish: str, said: str
) -> None:
    cut = (calculate("1 + 1", "x1"), ("x2", "calculate", arguments))
    answers = [Answer(calls=cut, finish=finish), Answer("5")]
    played, bodies = play(Calculator(), answers, wire=wire)
    told = dict(results_of(wire, bodies[1]))
    assert told["x1"] == "2"
    assert said in told["x2"]
    assert said in played.turns[0].tool_results[1].text


def test_calls_beyond_the_bound_are_told_so_in_the_users_name() -> None:
    calls = tuple(calculate("1", f"c{i}") for i in range(40))
    played, bodies = play(Calculator(), [Answer(calls=calls), Answer("5")])
    assert len(results_of("chat", bodies[1])) == 32
    last = bodies[1]["messages"][-1]
    assert (last["role"], "40" in last["content"]) == ("user", True)
    assert played.valid


@pytest.mark.parametrize("wire", WIRES)
def test_search_environments_offer_their_actions(wire: Any) -> None:
    task = Task("t", "Who wrote it?", ("Ada",))
    env = LocalSearch(tasks=[task], retriever=InMemoryRetriever([Document("d", "It", "Ada wrote it.")]))
    answers = [
        Answer(calls=(("s", "search", '{"query": "it"}'), ("t", "search", '{"query": "him"}'))),
        Answer("I think it was Ada."),
        Answer(calls=(("r", "answer", '{"answer": "Ada"}'),)),
    ]
    played, bodies = play(env, answers, task, wire=wire)
    assert (played.end_reason, played.info["answer"], played.reward) == (EndReason.ANSWERED, "Ada", 1.0)
    names = [(tool.get("function") or tool)["name"] for tool in bodies[0]["tools"]]
    assert names == ["search", "read", "answer"]
    (_, page), (_, other) = results_of(wire, bodies[1])
    assert "Ada wrote it." in page
    assert "<information>" not in page
    assert other == TOGETHER


def test_thinking_opens_a_row_where_it_is_not_sent_back() -> None:
    thought = Answer(calls=(calculate("2 * 3"),), reasoning="a long thought")
    for options, rows in ((dict[str, Any](), {0, 1}), ({"send_reasoning": True}, {0})):
        played, bodies = play(Calculator(), [thought, Answer("5")], **options)
        assert {segment.row for segment in played.segments} == rows
        assert ("a long thought" in json.dumps(bodies[1])) is (rows == {0})
        assert "a long thought" in played.turns[0].action
        sampled = [segment for segment in played.segments if segment.kind is SegmentKind.POLICY]
        assert all(not segment.exact_tokens for segment in sampled)


@pytest.mark.parametrize("wire", WIRES)
def test_a_refusal_of_the_model_is_its_answer(wire: Any) -> None:
    played, _ = play(Calculator(), [Answer(refusal="I will not.")], wire=wire)
    assert (played.valid, played.reward, played.turns[0].action) == (True, 0.0, "I will not.")


@pytest.mark.parametrize("wire", WIRES)
def test_what_a_filter_cuts_off_is_the_policys_own(wire: Any) -> None:
    """The turn counts as far as it came; an empty one goes nowhere, and the episode goes on."""
    cut = Answer("", finish="content_filter")
    task = Task("t", "Who?", ("Ada",))
    env = LocalSearch(tasks=[task], retriever=InMemoryRetriever([Document("d", "It", "Ada wrote it.")]))
    answered = Answer(calls=(("r", "answer", '{"answer": "Ada"}'),))
    played, bodies = play(env, [cut, answered], task, wire=wire)
    assert (played.end_reason, played.valid) == (EndReason.ANSWERED, True)
    sent = bodies[1]["messages" if wire == "chat" else "input"]
    assert [message["role"] for message in sent] == ["user", "user"]


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("before", [0, 1])
def test_a_content_filter_ends_the_episode_without_masking_it(native: bool, before: int) -> None:
    calls = (
        Answer(calls=(calculate("2 * 3"),))
        if native
        else Answer('<tool_call>{"name": "calculate"}</tool_call>')
    )
    played, bodies = play(Calculator(), [*[calls] * before, FILTERED], native=native)
    assert (played.end_reason, played.valid, played.reward) == (EndReason.REFUSED, True, 0.0)
    assert "bad words" in played.error
    assert len(bodies) == before + 1


@pytest.mark.parametrize("wire", WIRES)
def test_a_failure_of_the_service_masks_it_still(wire: Any) -> None:
    played, _ = play(Calculator(), [Answer(status=500, raw="")], wire=wire)
    assert (played.end_reason, played.valid) == (EndReason.POLICY_FAULT, False)


def png(width: int, height: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + b"\0\0\0\rIHDR" + struct.pack(">II", width, height)


class Pictures(AsyncEnv[int]):
    """Shows a picture with each message."""

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        await super().areset(seed=seed, options=options)
        self.state = 0
        return (self._shown("Look"),), {"task_id": "sum"}

    async def astep(self, action: str) -> Step:
        self.state += 1
        return self.result((self._shown("Again"),), end=EndReason.ANSWERED if self.state == 2 else None)

    def _shown(self, text: str) -> Message:
        return Message(
            "user", (MessagePart("text", text), MessagePart("image", image=png(750, 2 + self.state)))
        )


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("wire", WIRES)
def test_pictures_are_sent(wire: Any, native: bool) -> None:
    played, bodies = play(Pictures(), [Answer("one"), Answer("two")], native=native, wire=wire)
    assert played.end_reason is EndReason.ANSWERED
    sent = bodies[1]["messages" if wire == "chat" else "input"]
    shown = [message["content"] for message in sent if message.get("role") == "user"]
    urls = [part["image_url"]["url"] if wire == "chat" else part["image_url"] for _, part in shown]
    assert urls == [f"data:image/png;base64,{base64.b64encode(png(750, 2 + i)).decode()}" for i in range(2)]
    assert [part["text"] for part, _ in shown] == ["Look", "Again"]
    # a token for each 750 points of a picture, and marks and pieces of text: role, Look, end, role (and the conversation)
    assert len(played.segments[0].ids) == 2 + 4 + native


@pytest.mark.parametrize("native", [True, False])
def test_a_picture_for_a_model_without_eyes_is_refused_before_anything_is_sent(native: bool) -> None:
    with FakeEndpoint(lambda body: Answer("never")) as server:
        policy = OpenAIPolicy(ChatClient(Endpoint("any", server.url, images=False)))
        policy = policy.in_format("native" if native else "inline", "", {})
        spec = EpisodeSpec(Pictures(), SUM, 5)
        with pytest.raises(ConfigurationError, match="images=0"):
            asyncio.run(rollout([spec], policy, policy.chat, RolloutConfig(deterministic=False), name="e"))
        assert server.bodies == []


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    "reason", ["image_url is only supported by certain models", "At most 0 images may be provided"]
)
def test_a_service_that_takes_no_pictures_makes_a_fault_that_says_so(wire: Any, reason: str) -> None:
    answer = Answer(status=400, raw=json.dumps({"error": {"message": reason, "param": "messages"}}))
    played, bodies = play(Pictures(), [answer], wire=wire)
    assert (played.end_reason, played.valid, len(bodies)) == (EndReason.POLICY_FAULT, False, 1)
    assert f"400 {reason}" in played.error


class Odd(ToolEnv[int]):
    """Has one tool, which a test gives."""

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        await super().areset(seed=seed, options=options)
        return (Message("user", "Hi"),), {"task_id": "sum"}


@pytest.mark.parametrize(
    ("name", "schema", "named"),
    [
        ("look it up", {"type": "object"}, "'look it up'"),
        ("x" * 65, {"type": "object"}, "x{65}"),
        ("look", {"type": "object", "anyOf": [{"required": ["a"]}]}, "'anyOf'"),
    ],
)
def test_a_tool_that_no_service_takes_is_refused_before_anything_is_sent(
    name: str, schema: dict[str, Any], named: str
) -> None:
    env = Odd(tools=[Tool.from_schema(name, "Looks.", schema, lambda: "")])
    with pytest.raises(ConfigurationError, match=named):
        play(env, [])


def test_a_conversation_of_an_episode_that_is_over_is_not_held() -> None:
    """What services want back can be large: it lives as long as its episode."""
    chat = ToolFormat()
    conversation, ids = chat.open((Message("user", "Hi"),), [])
    assert chat.conversation(ids) is conversation
    del conversation
    with pytest.raises(PolicyFault, match="ended"):
        chat.conversation(ids)
    table, shown = MessageFormat(), Message("user", (MessagePart("image", image=png(1, 1)),))
    ids = table.prompt((shown,))
    assert table.messages(ids)[0]["content"][0]["type"] == "image_url"
    del shown
    with pytest.raises(PolicyFault, match="ended"):
        table.messages(ids)


def test_other_formats_are_those_of_messages_and_settings_of_templates_are_checked() -> None:
    policy = OpenAIPolicy(ChatClient(Endpoint("any", "http://localhost:1")))
    for name in ("inline", "template"):
        assert isinstance(policy.in_format(name, "", {}).chat, MessageFormat)
    with pytest.raises(ConfigurationError, match="'qwen'"):
        policy.in_format("native", "qwen", {})
    responses = OpenAIPolicy(ChatClient(Endpoint("any", "http://localhost:1", wire="responses")))
    with pytest.raises(ConfigurationError, match="'enable_thinking'"):
        responses.in_format("native", "", {"enable_thinking": False})
    native = policy.in_format("native", "", {})
    with pytest.raises(ConfigurationError, match="native"):
        native.chat.prompt((Message("user", "x"),))


def test_an_evaluation_asks_natively_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[Body] = []

    def answer(body: Body) -> Answer:
        seen.append(body)
        last = body["messages"][-1]
        if last["role"] == "tool":
            return Answer(last["content"])
        expression = "".join(c for c in last["content"].split("?")[0] if c in "0123456789+-*() ").strip()
        return Answer(calls=(calculate(expression, "k"),), reasoning="I compute.")

    words = ["eval", "--env", "agentenv/Calculator-v0", "--limit", "3", "--format", "native"]
    with FakeEndpoint(answer) as server:
        policy = ["--policy", f"openai:any@{server.url}"]
        assert (
            main(
                [
                    *words,
                    *policy,
                    "--template-option",
                    "enable_thinking=false",
                    "--out",
                    str(tmp_path / "a"),
                    "--json",
                ]
            )
            == 0
        )
        results = json.loads(capsys.readouterr().out)
        assert main([*words, *policy, "--family", "qwen", "--out", str(tmp_path / "b")]) == 1
    assert "'qwen'" in capsys.readouterr().err
    assert not (tmp_path / "b").exists()
    assert results["scores"]["reward"]["mean"] == 1.0
    assert results["usage"]["reasoning_tokens"] > 0
    assert all(body["tools"] and body["chat_template_kwargs"] == {"enable_thinking": False} for body in seen)


def test_inline_and_template_ask_an_endpoint_by_messages(tmp_path: Path) -> None:
    with FakeEndpoint(lambda body: Answer("5")) as server:
        for name in ("inline", "template"):
            evaluate(
                f"openai:any@{server.url}",
                env="agentenv/Calculator-v0",
                limit=1,
                format=name,
                out=tmp_path / name,
            )
        assert [len(body["messages"]) for body in server.bodies] == [1, 1]
        assert all("tools" not in body for body in server.bodies)


@pytest.mark.parametrize("thought", ["<think>\nIt is 4.\n</think>\n\n", "It is 4.\n</think>\n\n"])
def test_thinking_that_a_server_leaves_in_the_text_is_none_of_the_answer(thought: str) -> None:
    # vLLM and llama.cpp without a reader of thinking; where the template opens it, only its end is written.
    played, _ = play(Calculator(), [Answer(f"{thought}5")])
    assert (played.turns[0].action, played.info["answer"], played.reward) == (
        f"{_thought(thought)}5",
        "5",
        1.0,
    )
    called = [Answer(f"{thought}I compute.", calls=(calculate("2 * 3 - 1"),)), Answer("5")]
    played, bodies = play(Calculator(), called)
    assert played.reward == 1.0
    assert results_of("chat", bodies[1]) == [("a", "5")]
    assert bodies[1]["messages"][1]["content"] == f"{thought}I compute."  # as the server gave it


def _thought(written: str) -> str:
    """Thinking as the record shows it."""
    return f"<think>\n{written.removeprefix('<think>').strip().removesuffix('</think>').strip()}\n</think>\n"


def test_thinking_that_does_not_end_is_no_answer() -> None:
    played, _ = play(Calculator(), [Answer("<think>\nIt is 5", finish="length")])
    assert (played.info["answer"], played.reward) == ("", 0.0)
