"""The chat server and clients that leave: what they asked for is given up, and their places are free again."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest

for module in ("fastapi", "uvicorn", "httptools"):
    pytest.importorskip(module, reason=f"{module} is not installed")

from agentenv.core.types import Completion, FinishReason, Sampling  # noqa: E402
from agentenv.policies.chat_server import make_chat_app  # noqa: E402
from agentenv.policies.fakes import ByteTokenizer  # noqa: E402
from agentenv.web.gate import Gate  # noqa: E402
from agentenv.web.server import address_of, listen, run_app  # noqa: E402


class SlowOnce:
    """A policy whose first sample never ends."""

    tokenizer = ByteTokenizer()

    def __init__(self) -> None:
        self.asked = 0
        self.cancelled = threading.Event()

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, **_: Any) -> Completion:
        self.asked += 1
        if self.asked == 1:
            try:
                await asyncio.sleep(120)
            finally:
                self.cancelled.set()
        return Completion((104, 105), "hi", (-0.1, -0.1), FinishReason.LENGTH)


@pytest.fixture
def policy() -> SlowOnce:
    return SlowOnce()


@pytest.fixture
def address(policy: SlowOnce) -> Iterator[str]:
    """The address of a server with one place."""
    gate = Gate()
    app: Any = make_chat_app(policy, "model", gate, at_once=1)  # type: ignore[arg-type]
    with listen("127.0.0.1", 0) as listening:
        thread = threading.Thread(target=run_app, args=(app, gate, gate.ready, listening), daemon=True)
        thread.start()
        yield address_of(listening)
        gate.stop()
        thread.join(60)
        assert not thread.is_alive()


def test_the_request_of_a_client_that_has_left_is_given_up(policy: SlowOnce, address: str) -> None:
    body = {"messages": [{"role": "user", "content": "Halvik"}]}
    with httpx.Client(base_url=address, timeout=30) as client:
        with pytest.raises(httpx.ReadTimeout):
            client.post("/v1/chat/completions", json=body, timeout=httpx.Timeout(30, read=0.5))
        assert policy.cancelled.wait(20)
        reply = client.post("/v1/chat/completions", json=body)
    assert reply.json()["choices"][0]["message"]["content"] == "hi"
