"""Services with wire forms of their own, asked through any-llm as released, each against a server that speaks its form."""

import asyncio
import importlib.util
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import psutil
import pytest

from agentenv.core.rollout import EpisodeSpec, RolloutConfig, rollout
from agentenv.core.trajectory import Trajectory
from agentenv.core.types import EndReason, Task
from agentenv.envs.calculator import Calculator
from agentenv.errors import ConfigurationError, ContextTooSmall, EndpointFault, EndpointRefusal
from agentenv.policies.endpoint import ChatClient
from agentenv.policies.endpoint_spec import Endpoint
from agentenv.policies.openai import OpenAIPolicy

if (
    importlib.util.find_spec("any_llm") is None
):  # importing it takes seconds, in each process that collects the tests
    pytest.skip("needs the providers extra", allow_module_level=True)

ASK = [{"role": "user", "content": "Who?"}]
SUM = Task("sum", "2 * 3 - 1", ("5",))
USAGE = {
    "anthropic": {"usage": {"input_tokens": 7, "output_tokens": 3}},
    "gemini": {"usageMetadata": {"promptTokenCount": 7, "candidatesTokenCount": 3, "totalTokenCount": 10}},
    "bedrock": {"usage": {"inputTokens": 7, "outputTokens": 3, "totalTokens": 10}},
}
ARGUMENTS = {"expression": "2 * 3 - 1"}
CALLS: dict[str, dict[str, Any]] = {
    "anthropic": {
        "id": "m", "type": "message", "role": "assistant", "model": "any", "stop_reason": "tool_use",
        "content": [
            {"type": "thinking", "thinking": "why", "signature": "c2lnbmVk"},
            {"type": "tool_use", "id": "t1", "name": "calculate", "input": ARGUMENTS},
        ],
    },
    "gemini": {
        "candidates": [{
            "finishReason": "STOP",
            "content": {"role": "model", "parts": [
                {"functionCall": {"name": "calculate", "args": ARGUMENTS, "id": "t1"}, "thoughtSignature": "c2lnbmVk"}
            ]},
        }],
    },
    "bedrock": {
        "stopReason": "tool_use",
        "output": {"message": {"role": "assistant", "content": [
            {"reasoningContent": {"reasoningText": {"text": "why", "signature": "c2lnbmVk"}}},
            {"toolUse": {"toolUseId": "t1", "name": "calculate", "input": ARGUMENTS}},
        ]}},
    },
}  # fmt: skip
TEXTS: dict[str, dict[str, Any]] = {
    "anthropic": CALLS["anthropic"] | {"stop_reason": "end_turn", "content": [{"type": "text", "text": "5"}]},
    "gemini": {
        "candidates": [{"finishReason": "STOP", "content": {"role": "model", "parts": [{"text": "5"}]}}]
    },
    "bedrock": {
        "stopReason": "end_turn",
        "output": {"message": {"role": "assistant", "content": [{"text": "5"}]}},
    },
}
SERVICES = ("anthropic", "gemini", "bedrock")


@dataclass
class Service:
    url: str = ""
    paths: list[str] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)


@contextmanager
def serving(answer: Callable[[int], tuple[int, Mapping[str, str], Any]]) -> Iterator[Service]:
    """A server that gives ``answer`` to the first, the second, ... request."""
    service = Service()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # connections stay open

        def do_POST(self) -> None:
            service.paths.append(self.path)
            service.headers.append({name.lower(): value for name, value in self.headers.items()})
            service.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            status, headers, body = answer(len(service.bodies))
            content = json.dumps(body).encode()
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", **headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: tests print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    service.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield service
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_API_KEY", "GEMINI_API_KEY", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "sk-secret-7")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")


def client(service: str, server: Service, **options: Any) -> ChatClient:
    given = {"backoff_s": 0.001, "deadline_s": 30.0, "retries": 2, **options}
    return ChatClient(Endpoint("any", server.url, service, **given))


def play(asked: ChatClient) -> Trajectory:
    policy = OpenAIPolicy(asked).in_format("native", "", {})
    config = RolloutConfig(turn_tokens=500, context_tokens=9000, temperature=0.5, deterministic=False)
    return asyncio.run(rollout([EpisodeSpec(Calculator(), SUM, 5)], policy, policy.chat, config, name="e"))[0]


@pytest.mark.parametrize("service", SERVICES)
def test_an_episode_calls_a_tool_and_what_the_service_signed_comes_back(service: str) -> None:
    answers = [CALLS[service] | USAGE[service], TEXTS[service] | USAGE[service]]
    with serving(lambda n: (200, {}, answers[n - 1])) as server:
        asked = client(service, server, prompt_price=1e6, reply_price=1e7)
        played = play(asked)
    assert (played.error, played.reward, played.end_reason) == ("", 1.0, EndReason.ANSWERED)
    first, second = (json.dumps(body) for body in server.bodies)
    assert '"calculate"' in first
    assert "Integers, parentheses" in first  # the schema's words
    assert ("c2lnbmVk" in second) is (service != "bedrock")  # any-llm drops the signatures of Bedrock
    assert second.count("2 * 3 - 1") >= 2  # the question and the call
    usage = asked.usage
    assert (usage.requests, usage.prompt_tokens, usage.completion_tokens, usage.cost) == (2, 14, 6, 74.0)


@pytest.mark.parametrize("service", SERVICES)
def test_a_rate_limit_is_waited_for_and_counted_once(service: str) -> None:
    limited = (429, {"Retry-After": "0.05"}, {"error": {"message": "slow down"}, "message": "slow down"})
    with serving(lambda n: limited if n == 1 else (200, {}, TEXTS[service] | USAGE[service])) as server:
        asked = client(service, server)
        assert asyncio.run(asked.complete(ASK, max_tokens=9)).text == "5"
    assert len(server.bodies) == asked.usage.requests == 2


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize(
    ("status", "said", "kind"),
    [
        (401, "bad key sk-secret-7", ConfigurationError),
        (400, "prompt is too long: 9 tokens", ContextTooSmall),
        (400, "blocked by the content filter policy", EndpointRefusal),
        (500, "oops", EndpointFault),
    ],
    ids=["key", "context", "filter", "failure"],
)
def test_errors_of_services_are_told_apart(
    service: str, status: int, said: str, kind: type[Exception]
) -> None:
    body = {"type": "error", "error": {"type": "x", "message": said, "code": status}, "message": said}
    with serving(lambda n: (status, {}, body)) as server, pytest.raises(kind) as found:
        asyncio.run(client(service, server, retries=0).complete(ASK, max_tokens=9))
    assert "sk-secret-7" not in str(found.value)


def test_a_refusal_of_the_model_is_its_answer() -> None:
    refused = TEXTS["anthropic"] | {"stop_reason": "refusal", "content": []}
    with serving(lambda n: (200, {}, refused | USAGE["anthropic"])) as server:
        reply = asyncio.run(client("anthropic", server).complete(ASK, max_tokens=9))
    assert reply.finish == "content_filter"
    assert reply.text


@pytest.mark.parametrize(
    "odd", [{"content": None}, {"content": [{"type": "tool_use", "id": None, "name": "f", "input": {}}]}]
)
def test_an_answer_that_cannot_be_read_is_asked_for_again(odd: dict[str, Any]) -> None:
    whole = TEXTS["anthropic"] | USAGE["anthropic"]
    with serving(lambda count: (200, {}, whole | odd if count == 1 else whole)) as server:
        asked = client("anthropic", server)
        assert asyncio.run(asked.complete(ASK, max_tokens=9)).text == "5"
    assert (asked.usage.requests, asked.usage.retries) == (2, 1)


def test_a_picture_reaches_a_service_in_its_form() -> None:
    shown = [
        {"type": "text", "text": "See"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBOR"}},
    ]
    with serving(lambda n: (200, {}, TEXTS["anthropic"] | USAGE["anthropic"])) as server:
        asyncio.run(client("anthropic", server).complete([{"role": "user", "content": shown}], max_tokens=9))
    (message,) = server.bodies[0]["messages"]
    assert message["content"][1]["source"] == {"type": "base64", "media_type": "image/png", "data": "iVBOR"}


def test_a_service_that_is_unknown_or_has_no_key_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="'nobody'"):
        ChatClient(Endpoint.of("anyllm:nobody/x"))
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    with pytest.raises(ConfigurationError, match="ANTHROPIC_API_KEY"):
        ChatClient(Endpoint.of("anyllm:anthropic/x"))


@pytest.mark.parametrize(
    ("service", "variable", "header"),
    [("anthropic", "ANTHROPIC_API_KEY", "x-api-key"), ("gemini", "GEMINI_API_KEY", "x-goog-api-key")],
)
def test_a_key_is_sent_without_the_white_space_around_it_or_refused_in_one_sentence(
    service: str, variable: str, header: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, " sk-secret-8\n")
    with serving(lambda n: (200, {}, TEXTS[service] | USAGE[service])) as server:
        asyncio.run(client(service, server).complete(ASK, max_tokens=9))
    assert server.headers[0][header] == "sk-secret-8"
    monkeypatch.setenv(variable, "schlüssel-8")
    with pytest.raises(ConfigurationError, match=variable) as refused:
        client(service, server)
    assert "schlüssel" not in str(refused.value)


def test_nobody_listening_is_a_fault() -> None:
    with serving(lambda n: (500, {}, {})) as server:
        pass
    with pytest.raises(EndpointFault, match=r"\b2\b"):
        asyncio.run(client("anthropic", server, retries=1).complete(ASK, max_tokens=9))


@pytest.mark.parametrize("name", SERVICES)
def test_connections_are_closed_with_the_event_loop(name: str) -> None:
    """Each evaluation has a loop of its own, and a connection left in each would use up the files of the process."""
    with serving(lambda _: (200, {}, TEXTS[name] | USAGE[name])) as service:
        chat = client(name, service)

        def connections() -> int:
            port = httpx.URL(service.url).port
            found = psutil.Process().net_connections("tcp")
            return sum(
                1 for one in found if one.raddr and one.raddr.port == port and one.status != "CLOSE_WAIT"
            )

        async def asked() -> int:
            await chat.complete(ASK, max_tokens=5)
            return connections()

        assert asyncio.run(asked()) == 1
        assert connections() == 0
