"""The chat server and tools: clients of OpenAI's library and of ours declare tools, read calls and answer them."""

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest

for module in ("fastapi", "uvicorn", "httptools", "transformers"):
    pytest.importorskip(module, reason=f"{module} is not installed")

from agentenv.core.rollout import EpisodeSpec, RolloutConfig, rollout  # noqa: E402
from agentenv.core.types import Completion, EndReason, Sampling, Task  # noqa: E402
from agentenv.envs.calculator import Calculator  # noqa: E402
from agentenv.policies.chat_server import make_chat_app  # noqa: E402
from agentenv.policies.endpoint import ChatClient  # noqa: E402
from agentenv.policies.endpoint_spec import Endpoint  # noqa: E402
from agentenv.policies.fakes import chat_tokenizer  # noqa: E402
from agentenv.policies.openai import OpenAIPolicy  # noqa: E402
from agentenv.policies.scripted import complete  # noqa: E402
from agentenv.web.gate import Gate  # noqa: E402
from agentenv.web.server import address_of, listen, run_app  # noqa: E402

TEMPLATE = """{%- if tools -%}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}{% endfor %}{"arguments": <tool_call>}<|im_end|>{{ '\\n' }}{%- endif -%}
{%- for m in messages -%}{{ '<|im_start|>' + ('user' if m.role == 'tool' else m.role) + '\\n' }}
{%- if m.reasoning_content -%}{{ '<think>' + m.reasoning_content + '</think>' }}{%- endif -%}
{{ m.content }}{%- for c in m.tool_calls or [] -%}
{{ '<tool_call>' + {'name': c.function.name, 'arguments': c.function.arguments} | tojson + '</tool_call>' }}
{%- endfor -%}{{ '<|im_end|>\\n' }}{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"""
TOOL = {
    "type": "function",
    "function": {
        "name": "calculate",
        "description": "Computes.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string"}},
            "required": ["expression"],
        },
    },
}
CALL = '<tool_call>{"name": "calculate", "arguments": {"expression": "2 * 3"}}</tool_call>'


class Script:
    """Says one text after the other, and keeps the prompts."""

    version = 0

    def __init__(self, *texts: str, template: str | None = TEMPLATE) -> None:
        self.tokenizer = chat_tokenizer(TEMPLATE, eos="<|im_end|>", special=["<|im_start|>"])
        self.tokenizer.chat_template = template
        self.texts, self.prompts = [*texts], list[str]()

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, **_: Any) -> Completion:
        self.prompts.append(self.tokenizer.decode(prompt_ids))
        return complete(self.texts.pop(0), self.tokenizer, sampling)


def ask(policy: Script, messages: list[Any], **fields: Any) -> httpx.Response:
    async def sent() -> httpx.Response:
        transport = httpx.ASGITransport(app=make_chat_app(policy, "model"))  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://local") as client:
            return await client.post("/v1/chat/completions", json={"messages": messages, **fields})

    return asyncio.run(sent())


def test_a_client_of_openais_library_calls_a_tool_and_answers_the_call() -> None:
    openai = pytest.importorskip("openai", reason="comes with the providers extra")
    policy = Script(f"I compute.{CALL}", "It is 6.")

    async def talk() -> tuple[Any, Any]:
        transport = httpx.ASGITransport(app=make_chat_app(policy, "model"))  # type: ignore[arg-type]
        http = httpx.AsyncClient(transport=transport)
        async with openai.AsyncOpenAI(api_key="none", base_url="http://local/v1", http_client=http) as client:
            messages: list[Any] = [{"role": "user", "content": "What is 2 * 3?"}]
            options: Any = {"model": "model", "tools": [TOOL], "tool_choice": "auto"}
            first = (await client.chat.completions.create(messages=messages, **options)).choices[0]
            messages.append(first.message.model_dump(exclude_none=True))
            (called,) = first.message.tool_calls
            messages.append({"role": "tool", "tool_call_id": called.id, "content": "six"})
            last = (await client.chat.completions.create(messages=messages, **options)).choices[0]
            return first, last

    first, last = asyncio.run(talk())
    (called,) = first.message.tool_calls
    assert (first.finish_reason, first.message.content) == ("tool_calls", "I compute.")
    assert called.function.name == "calculate"
    assert json.loads(called.function.arguments) == {"expression": "2 * 3"}
    assert (last.finish_reason, last.message.content, last.message.tool_calls) == ("stop", "It is 6.", None)
    assert '"name": "calculate"' in policy.prompts[0]
    assert policy.prompts[1].startswith(policy.prompts[0])
    assert CALL in policy.prompts[1]
    assert "six" in policy.prompts[1]


@pytest.fixture
def served() -> Iterator[tuple[Script, str]]:
    policy, gate = Script(CALL, "5"), Gate()
    app: Any = make_chat_app(policy, "model", gate)  # type: ignore[arg-type]
    with listen("127.0.0.1", 0) as listening:
        thread = threading.Thread(target=run_app, args=(app, gate, gate.ready, listening), daemon=True)
        thread.start()
        yield policy, address_of(listening)
        gate.stop()
        thread.join(60)


def test_a_policy_of_ours_in_the_format_native_plays_an_episode_against_the_server(
    served: tuple[Script, str],
) -> None:
    script, address = served
    client = ChatClient(Endpoint("model", f"{address}/v1", retries=0))
    policy = OpenAIPolicy(client).in_format("native", "", {})
    specs = [EpisodeSpec(Calculator(), Task("sum", "2 * 3 - 1", ("5",)), 0)]
    config = RolloutConfig(turn_tokens=200, context_tokens=4096, deterministic=False)
    (played,) = asyncio.run(rollout(specs, policy, policy.chat, config, name="e"))
    assert (played.error, played.end_reason, played.reward) == ("", EndReason.ANSWERED, 1.0)
    assert played.turns[0].tool_results[0].text == "6"
    assert "6" in script.prompts[1].removeprefix(script.prompts[0])


def test_a_call_that_cannot_be_read_is_content() -> None:
    message = ask(
        Script('<tool_call>{"name": </tool_call>'), [{"role": "user", "content": "Hi"}], tools=[TOOL]
    ).json()["choices"][0]["message"]
    assert '{"name": ' in message["content"]
    assert "tool_calls" not in message


def test_one_call_at_most_where_the_client_asks_so_and_thoughts_apart() -> None:
    reply = ask(
        Script(f"<think>Twice.</think>{CALL}{CALL}"),
        [{"role": "user", "content": "Hi"}],
        tools=[TOOL],
        parallel_tool_calls=False,
    ).json()["choices"][0]
    assert (len(reply["message"]["tool_calls"]), reply["message"]["content"]) == (1, None)
    assert reply["message"]["reasoning_content"] == "Twice."


def test_a_model_without_a_form_for_tools_refuses_them() -> None:
    reply = ask(Script("Hi", template=None), [{"role": "user", "content": "Hi"}], tools=[TOOL])
    assert reply.status_code == 400
    assert "no chat template" in reply.json()["error"]["message"]


def test_tools_that_may_not_be_called_are_not_shown() -> None:
    policy = Script(CALL)
    reply = ask(policy, [{"role": "user", "content": "Hi"}], tools=[TOOL], tool_choice="none")
    assert reply.json()["choices"][0]["message"]["content"] == CALL
    assert "calculate" not in policy.prompts[0]


def test_the_calls_of_a_conversation_are_shown_where_no_more_may_be_called() -> None:
    """Clients that want a last answer send the whole conversation without tools, or with tool_choice='none'."""
    call = {"name": "calculate", "arguments": '{"expression": "2 * 3"}'}
    asked = {"id": "a2b4c6d8e", "type": "function", "function": call}
    talk = [
        {"role": "user", "content": "What is 2 * 3?", "tool_call_id": None},
        {"role": "assistant", "content": None, "tool_calls": [asked]},
        {"role": "tool", "tool_call_id": "a2b4c6d8e", "content": "six"},
    ]
    for fields in ({}, {"tools": [TOOL], "tool_choice": "none"}):
        policy = Script(CALL)
        assert ask(policy, talk, **fields).json()["choices"][0]["message"]["content"] == CALL
        assert CALL in policy.prompts[0]


def test_a_conversation_that_the_template_refuses_is_the_fault_of_the_request() -> None:
    """As a failure of the model it would be asked for again and again."""
    refusing = "{{ raise_exception('No system, please.') }}<|im_end|>"
    reply = ask(Script("Hi", template=refusing), [{"role": "system", "content": "Be brief."}])
    assert reply.status_code == 400
    assert "No system, please." in reply.json()["error"]["message"]


@pytest.mark.parametrize("parameters", [[1], "none", {"properties": 5}, {"properties": None}])
def test_parameters_that_are_no_schema_are_the_fault_of_the_request(parameters: Any) -> None:
    tool = {"type": "function", "function": {"name": "now", "parameters": parameters}}
    reply = ask(Script("Hi"), [{"role": "user", "content": "Hi"}], tools=[tool])
    assert reply.status_code == 400
    assert "parameters" in reply.json()["error"]["message"]


def test_a_tool_whose_parameters_are_null_has_none() -> None:
    tool = {"type": "function", "function": {"name": "now", "parameters": None}}
    policy = Script('<tool_call>{"name": "now", "arguments": {}}</tool_call>')
    reply = ask(policy, [{"role": "user", "content": "Hi"}], tools=[tool])
    (called,) = reply.json()["choices"][0]["message"]["tool_calls"]
    assert called["function"] == {"name": "now", "arguments": "{}"}
