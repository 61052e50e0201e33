"""A vLLM server as an engine: what is sent and read, refusals, failures; and the released server itself, where installed."""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from agentenv.core.types import Sampling
from agentenv.errors import ConfigurationError, PolicyFault
from agentenv.policies.engine import EngineConfig, EngineRequest, Sampled
from agentenv.policies.hf import HFPolicy
from agentenv.policies.policy_spec import make_engine_policy
from agentenv.policies.tiny import shipped_weights
from agentenv.policies.vllm import VLLMPolicy
from agentenv.policies.vllm_remote import RemoteEngine

# One position of three tokens: p = (.5, .25, .25), at temperature 2 proportional to (.7071, .5, .5).
TABLE = {"0": -0.693147, "1": -1.386294, "2": -1.386294}
SCALED = -1.227947  # ln(.5 / 1.7071)
_SWITCHES = ("--enforce-eager", "--enable-scale-out", "--no-enable-chunked-prefill")


class Server:
    """Answers as vLLM's routes do, and keeps what it was asked."""

    def __init__(self, logprob: float = SCALED, status: int = 200) -> None:
        self.logprob, self.status = logprob, status
        self.calls: list[tuple[str, Any]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content) if request.content else dict(request.url.params)
        self.calls.append((request.url.path, body))
        if self.status != 200:
            return httpx.Response(self.status, text="no\nroom")
        if request.url.path != "/inference/v1/generate":
            return httpx.Response(200, json={})
        entry = {name: {"logprob": value, "rank": 1} for name, value in TABLE.items()}
        choice = {
            "token_ids": [1],
            "logprobs": {"content": [{"token_id": 1, "logprob": self.logprob}]},
            "weight_versions": [{"version": "5", "start": 0, "end": 1}],
        }
        places = [None] + [entry] * (len(body["token_ids"]) - 1)
        return httpx.Response(200, json={"choices": [choice], "prompt_logprobs": places})


def asked(server: Callable[[httpx.Request], httpx.Response], work: Callable[[RemoteEngine], Any]) -> Any:
    async def run() -> Any:
        return await work(RemoteEngine("http://somewhere:8000/", httpx.MockTransport(server)))

    return asyncio.run(run())


def test_ids_go_out_and_come_back_with_versions() -> None:
    server = Server()
    request = EngineRequest((7, 8), Sampling(4, temperature=2.0, stop=("x",), seed=3), ends=(2,))
    assert asked(server, lambda engine: engine.sample(request)) == Sampled((1,), (SCALED,), (5,))
    ((path, body),) = server.calls
    assert (path, body["token_ids"]) == ("/inference/v1/generate", [7, 8])
    assert body["sampling_params"]["seed"] == 3


def test_a_server_whose_log_probs_are_from_before_temperature_is_refused() -> None:
    asked(Server(), lambda engine: engine.check())
    with pytest.raises(ConfigurationError, match="--logprobs-mode processed_logprobs"):
        asked(Server(logprob=TABLE["1"]), lambda engine: engine.check())


def test_new_weights_hold_requests_drop_caches_and_set_the_version() -> None:
    server = Server()
    asked(server, lambda engine: engine.load(Path("/weights"), 6))
    assert server.calls == [
        ("/pause", {"mode": "keep", "clear_cache": "true"}),
        ("/collective_rpc", {"method": "take_up_weights", "args": ["/weights"]}),
        ("/update_weight_version", {"new_version": "6"}),
        ("/resume", {}),
    ]


def test_failures_are_typed() -> None:
    with pytest.raises(PolicyFault, match=r"\b503\b"):
        asked(Server(status=503), lambda engine: engine.logprobs((1, 2), 1.0))

    def odd(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"choices": []})

    with pytest.raises(PolicyFault, match="somewhere:8000"):
        asked(odd, lambda engine: engine.sample(EngineRequest((1,), Sampling(1), ends=(2,))))
    with pytest.raises(PolicyFault, match="somewhere:8000"):
        asked(odd, lambda engine: engine.logprobs((1, 2), 1.0))
    with pytest.raises(PolicyFault, match="somewhere:8000"):
        asked(lambda _: httpx.Response(200, text="<html>"), lambda engine: engine.logprobs((1, 2), 1.0))
    with pytest.raises(PolicyFault, match="gives no sample"):
        asked(
            Server(logprob=-(10**400)),
            lambda engine: engine.sample(EngineRequest((1,), Sampling(1), ends=(2,))),
        )
    with pytest.raises(PolicyFault, match="does not answer"):
        make_engine_policy(f"vllm:tiny@http://127.0.0.1:{free_port()}")


def free_port() -> int:
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return int(place.getsockname()[1])


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """The address of a released server with the shipped policy."""
    pytest.importorskip("vllm", reason="vLLM is not installed")
    port = free_port()
    flags = {
        "model": shipped_weights(),
        "port": port,
        "host": "127.0.0.1",
        "dtype": "float32",
        "kv-cache-memory-bytes": 2**28,
        "logprobs-mode": "processed_logprobs",
        "max-logprobs": -1,
        "generation-config": "vllm",
        "worker-extension-cls": "agentenv.policies.vllm_worker.EngineWorker",
    }
    words = [f"--{name}={value}" for name, value in flags.items()]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *_SWITCHES, *words]
    extra = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    with (tmp_path / "log").open("wb") as log:
        environment = os.environ | extra | {"OMP_NUM_THREADS": "1"}
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        address = f"http://127.0.0.1:{port}"
        wait_for(address, server, tmp_path / "log")
        yield address
    finally:
        for signal in (15, 9):
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(server.pid, signal)
                server.wait(20)


def wait_for(address: str, server: "subprocess.Popen[bytes]", log: Path, seconds: float = 600) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and server.poll() is None:
        try:
            if httpx.get(f"{address}/health", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.5)
    pytest.fail(f"the server did not come up: {log.read_text()[-2000:]}")


def test_the_released_server_agrees_with_the_trainer_before_and_after_new_weights(url: str) -> None:
    hf = HFPolicy.load(shipped_weights())
    prompt = hf.tokenizer.encode("Who wrote Zodkalo Opera?", add_special_tokens=False)
    sampling = Sampling(16, temperature=0.7, seed=1, stop=("</answer>",))
    config = EngineConfig(kind="vllm", urls=(url,))
    with VLLMPolicy.load(shipped_weights(), config, hf.model) as policy:
        for version in (0, 1):
            if version:
                with torch.no_grad():
                    for parameter in hf.model.parameters():
                        parameter.mul_(1.05)
                policy.set_weights()
            done = asyncio.run(policy.generate(prompt, sampling))
            scores = asyncio.run(hf.score([*prompt, *done.ids], temperature=0.7))[len(prompt) :]
            assert done.version == version
            np.testing.assert_allclose(done.logprobs, scores, atol=1e-4)
