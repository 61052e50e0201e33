"""A vLLM server as an engine: token ids over HTTP.

A server that serves training is started with

    VLLM_SERVER_DEV_MODE=1 vllm serve PATH --enable-scale-out --logprobs-mode processed_logprobs --max-logprobs -1
        --generation-config vllm --worker-extension-cls agentenv.policies.vllm_worker.EngineWorker

on a CPU with ``--no-enable-chunked-prefill`` as well. The variable and the class let weights be replaced; without the mode
log-probs are not those of what is sampled, which ``open`` finds out.
"""

from pathlib import Path
from typing import Any

import httpx

from agentenv.core.images import PlacedImage
from agentenv.core.types import Sampling
from agentenv.errors import ConfigurationError, PolicyFault
from agentenv.policies.engine import EngineRequest, Sampled
from agentenv.policies.vllm_local import TAKE_UP, sampled, sampling_fields, scoring_fields, tempered
from agentenv.web.client import HTTPClient, Response
from agentenv.web.client import Request as HTTPRequest
from agentenv.web.retries import RetryPolicy, TryAgain
from agentenv.web.secrets import without_keys

_ONCE = RetryPolicy(timeout_s=None, connect_s=None, tries=1, connections=None)
_PROBE = EngineRequest((0, 1), Sampling(1, temperature=2.0), ends=(0,))


class RemoteEngine:
    """Asks one server; make it with ``open``. Deadlines are the caller's."""

    dead = False
    """A server may come back."""

    def __init__(self, url: str, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._client = HTTPClient(url, retry_policy=_ONCE, fault=PolicyFault, transport=transport)
        self._url = self._client.base

    @classmethod
    async def open(cls, url: str) -> "RemoteEngine":
        """Connects, and makes sure that the server's log-probs can be used.

        Raises:
            PolicyFault: the server does not answer, or not as vLLM does.
            ConfigurationError: its log-probs are those before temperature.
        """
        engine = cls(url)
        try:
            await engine.check()
        except BaseException:
            await engine.close()
            raise
        return engine

    async def check(self) -> None:
        """Samples one token at a temperature and compares its log-prob with both conventions.

        Raises:
            PolicyFault: the server does not answer, or not as vLLM does.
            ConfigurationError: its log-probs are those before temperature.
        """
        probe = await self.sample(_PROBE)
        ids = (*_PROBE.ids, probe.ids[0])
        raw, scaled = [(await self.logprobs(ids, t))[-1] for t in (1.0, _PROBE.sampling.temperature)]
        # Compared and not asked for, because a server does not say how it was started.
        if abs(probe.logprobs[0] - raw) < abs(probe.logprobs[0] - scaled):
            raise ConfigurationError(
                f"{self._url} gives log-probs from before temperature: start it with --logprobs-mode processed_logprobs"
            )

    async def sample(self, request: EngineRequest) -> Sampled:
        """Samples after a prompt; a call that is cancelled closes its connection, which ends the request."""
        self._refuse(request.images)
        answer = await self._generate(request.ids, sampling_fields(request))
        try:
            (choice,) = answer["choices"]
            logprobs = [float(entry["logprob"]) for entry in choice["logprobs"]["content"]]
            spans = [(s["version"], s["start"], s["end"]) for s in choice.get("weight_versions") or ()]
            return sampled(tuple(choice["token_ids"]), logprobs, spans)
        except (LookupError, TypeError, ValueError, OverflowError) as error:
            raise PolicyFault(f"{self._url} gives no sample of token ids: {error!r}") from error

    async def logprobs(
        self,
        ids: tuple[int, ...],
        temperature: float,
        images: tuple[PlacedImage, ...] = (),
        *,
        fed: tuple[int, ...] | None = None,
    ) -> tuple[float, ...]:
        """Log-probs of a prompt."""
        self._refuse(images)
        answer = await self._generate(fed or ids, scoring_fields(temperature, other=fed not in (None, ids)))
        try:
            tables = [
                {int(i): float(e["logprob"]) for i, e in p.items()} for p in answer["prompt_logprobs"][1:]
            ]
            return tempered(ids, tables, temperature)
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise PolicyFault(f"{self._url} gives no log-probs of a prompt: {error!r}") from error

    def _refuse(self, images: tuple[PlacedImage, ...]) -> None:
        if images:
            raise ConfigurationError(
                f"{self._url} takes token ids alone, and an observation holds an image: sample with vllm:PATH without an "
                "address, or with hf:PATH"
            )

    async def load(self, folder: Path, version: int) -> None:
        """The server reads ``folder`` itself."""
        await self._post("/pause", mode="keep", clear_cache=True)
        try:
            await self._post("/collective_rpc", {"method": TAKE_UP, "args": [str(folder)]})
            await self._post("/update_weight_version", {"new_version": str(version)})
        finally:
            await self._post("/resume")

    async def close(self) -> None:
        """Closes the connections; the server stays."""
        await self._client.close()

    async def _generate(self, ids: tuple[int, ...], fields: dict[str, Any]) -> dict[str, Any]:
        body = {"token_ids": ids, "sampling_params": fields}
        response = await self._post("/inference/v1/generate", body)
        try:
            answer = response.json()
        except ValueError as error:
            raise PolicyFault(f"{self._url} answers with something else than JSON: {error}") from error
        return answer if isinstance(answer, dict) else {}

    async def _post(self, route: str, body: Any = None, **params: Any) -> Response:
        try:
            response = await self._client.send(HTTPRequest("POST", route, body, params))
        except TryAgain as error:
            raise PolicyFault(f"{self._url} does not answer: {error}") from error
        if response.status != httpx.codes.OK:
            reason = " ".join(without_keys(response.text).split())[:200]
            raise PolicyFault(f"{self._url}{route} answers {response.status} {reason}")
        return response
