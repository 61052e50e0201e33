"""A vLLM engine in processes of its own on this machine.

Measured conventions of vLLM that matter here: ``processed_logprobs`` are those after temperature and ``top_p`` (its default
is before them); log-probs of a prompt are always at temperature 1; ``generation_config`` of a model may add ends of turn
and sampling defaults, so it is not read.
"""

import contextlib
import itertools
import json
import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agentenv.core.images import PlacedImage, collapsed, opened_picture
from agentenv.core.io.model_files import ADAPTER_CONFIG
from agentenv.errors import CheckpointMismatch, PolicyFault, first_line, needs_extra
from agentenv.policies.engine import EngineConfig, EngineRequest, Sampled
from agentenv.policies.lora import base_and_adapter

TAKE_UP = "take_up_weights"
"""What a worker does with the folder of new weights."""

_WORKER = "agentenv.policies.vllm_worker.EngineWorker"
_SEEDS = 2**63
_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
_END_S = 5.0
_BATCH_TOKENS = 2048
# These stand in the names of the processes that vLLM starts.
_MARKS = ("VLLM::", "multiprocessing.spawn", "multiprocessing.resource_tracker")


class LocalEngine:
    """Runs ``AsyncLLM``; make one with ``open``."""

    def __init__(self, llm: Any, adapter: Any | None, children: "_Children") -> None:
        self._llm = llm
        self._adapter = adapter
        self._children = children
        self._numbers = itertools.count()

    @classmethod
    async def open(cls, folder: Path, config: EngineConfig, context_tokens: int) -> "LocalEngine":
        """Starts the engine on the weights in ``folder``, or on the base model and the LoRA adapter that it names.

        Raises:
            MissingExtra: vLLM is not installed.
            CheckpointMismatch: there is no model that vLLM can load.
        """
        base, adapter = base_and_adapter(folder)
        with _surroundings(config):
            with needs_extra("vllm"):
                from vllm.lora.request import LoRARequest
                from vllm.v1.engine.async_llm import AsyncLLM
            # Before the engine starts: what is there now belongs to others.
            children = _Children()
            try:
                llm = AsyncLLM.from_engine_args(_arguments(base, config, context_tokens, adapter))
            except Exception as error:
                children.note()
                children.end()
                raise CheckpointMismatch(f"vLLM starts no engine on {folder}: {first_line(error)}") from error
        children.note()
        lora = LoRARequest(adapter.name, 1, str(adapter)) if adapter else None
        return await cls(llm, lora, children).bound()

    async def bound(self) -> "LocalEngine":
        """The engine, whose processes end with this one from now on; it is closed where they do not take that.

        Raises:
            PolicyFault: the engine failed.
        """
        try:
            await self._llm.collective_rpc("end_with", args=(os.getpid(),))
        except BaseException as error:  # a missed deadline cancels
            await self.close()
            if isinstance(error, Exception):
                raise PolicyFault(f"a vLLM engine came up and failed: {first_line(error)}") from error
            raise
        return self

    @property
    def dead(self) -> bool:
        """Whether its processes have ended or failed."""
        return self._llm is None or bool(self._llm.errored)

    async def sample(self, request: EngineRequest) -> Sampled:
        """Samples after a prompt."""
        (done,) = (await self._ask(request.ids, sampling_fields(request), request.images)).outputs
        ids = tuple(done.token_ids)
        logprobs = tuple(position[i].logprob for i, position in zip(ids, done.logprobs, strict=True))
        spans = [(span.version, span.start, span.end) for span in done.weight_versions or ()]
        return sampled(ids, logprobs, spans)

    async def logprobs(
        self,
        ids: tuple[int, ...],
        temperature: float,
        images: tuple[PlacedImage, ...] = (),
        *,
        fed: tuple[int, ...] | None = None,
    ) -> tuple[float, ...]:
        """Log-probs of a prompt."""
        done = await self._ask(fed or ids, scoring_fields(temperature, other=fed not in (None, ids)), images)
        positions = [{i: entry.logprob for i, entry in place.items()} for place in done.prompt_logprobs[1:]]
        return tempered(ids, positions, temperature)

    async def load(self, folder: Path, version: int) -> None:
        """Requests under way wait, lose their keys and values, and go on with the new weights."""
        # Keys and values of the old weights must not be mixed with those of the new ones.
        await self._llm.pause_generation(mode="keep", clear_cache=True)
        try:
            await self._llm.collective_rpc(TAKE_UP, args=(str(folder),))
            await self._llm.update_weight_version(str(version))
            self._adapter = None  # what is trained has it in its weights
        finally:
            await self._llm.resume_generation()

    async def close(self) -> None:
        """Asks the processes to end, then ends what is left of them."""
        llm, self._llm = self._llm, None
        try:
            llm.shutdown(timeout=0)
        finally:
            # In any case: an engine that hung does not end its own processes.
            self._children.end()

    async def _ask(
        self, ids: tuple[int, ...], fields: Mapping[str, Any], images: tuple[PlacedImage, ...]
    ) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(**fields, output_kind=RequestOutputKind.FINAL_ONLY)
        prompt = prompt_of(ids, images)
        name = str(next(self._numbers))
        try:
            outputs = self._llm.generate(prompt, params, name, lora_request=self._adapter)
            (output,) = [output async for output in outputs]  # the finished one alone
        except Exception as error:
            raise PolicyFault(f"vLLM: {type(error).__name__} {error}".strip()) from error
        if images and list(output.prompt_token_ids) != list(ids):
            raise PolicyFault(
                f"vLLM reads {len(output.prompt_token_ids)} tokens where the prompt with its images has {len(ids)}: its "
                "image processor is set otherwise than preprocessor_config.json of the policy"
            )
        return output


def prompt_of(ids: Sequence[int], images: Sequence[PlacedImage]) -> dict[str, Any]:
    """A prompt as vLLM takes it: with images it wants one placeholder for each, and reads the pictures itself.

    Raises:
        MissingExtra: there are images, and pillow is not installed.
    """
    if not images:
        return {"prompt_token_ids": list(ids)}
    pictures = [opened_picture(image.image) for image in images]
    return {"prompt_token_ids": collapsed(ids, images), "multi_modal_data": {"image": pictures}}


def sampling_fields(request: EngineRequest) -> dict[str, Any]:
    """Sampling parameters of vLLM that give what ``HFPolicy`` would; its stop strings may be noticed a token late."""
    sampling = request.sampling
    return {
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": sampling.seed % _SEEDS,
        "stop": list(sampling.stop),
        "stop_token_ids": list(request.ends),
        "ignore_eos": True,  # the ends of a turn are those that the policy names
        "detokenize": bool(sampling.stop),
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
        "logprobs": 0,  # of the sampled id alone
    }


def scoring_fields(temperature: float, *, other: bool = False) -> dict[str, Any]:
    """Parameters that give the log-probs of a prompt, those of the whole vocabulary at a temperature other than 1.

    Args:
        temperature: That of the log-probs.
        other: Log-probs of ids are wanted that are not those of the prompt: they are found in the whole vocabulary as well.
    """
    return {
        "max_tokens": 1,
        "temperature": 0.0,
        "detokenize": False,
        "prompt_logprobs": 0 if temperature == 1.0 and not other else -1,
    }


def sampled(
    ids: tuple[int, ...], logprobs: Sequence[float], spans: Sequence[tuple[str, int, int]]
) -> Sampled:
    """The sample with the version of each id; an engine that never got other weights calls its own ``default``.

    Raises:
        PolicyFault: nothing was sampled, or its log-probs are not finite.
    """
    if not ids:
        raise PolicyFault("vLLM ended a request before its first token")
    _require_finite(logprobs)
    versions = [0] * len(ids)
    for version, start, end in spans:
        versions[start:end] = [int(version) if version.isdecimal() else 0] * (end - start)
    # Rounding gives log-probs a little above 0, of which a ratio would be wrong.
    return Sampled(ids, tuple(min(value, 0.0) for value in logprobs), tuple(versions))


def tempered(
    ids: Sequence[int], positions: Sequence[Mapping[int, float]], temperature: float
) -> tuple[float, ...]:
    """Log-probs of all ``ids`` but the first at a temperature.

    Args:
        ids: T tokens.
        positions: T - 1 tables of log-probs at temperature 1; for a temperature other than 1 of the whole vocabulary.
        temperature: log p_i / temperature is normalised anew.

    Raises:
        PolicyFault: one is not finite.
    """
    found = []
    for i, table in zip(ids[1:], positions, strict=True):
        scaled = np.fromiter(table.values(), np.float64) / temperature
        with np.errstate(invalid="ignore"):  # of NaN, which is refused below
            rest = 0.0 if temperature == 1.0 else float(np.logaddexp.reduce(scaled))
        found.append(table[i] / temperature - rest)
    _require_finite(found)
    return tuple(found)


def _require_finite(logprobs: Sequence[float]) -> None:
    if not all(map(math.isfinite, logprobs)):
        raise PolicyFault("vLLM gave log-probs that are not finite: its weights have diverged or overflow")


def _rank(adapter: Path) -> int:
    """The smallest rank that vLLM has room for and the adapter fits in."""
    rank = int(json.loads((adapter / ADAPTER_CONFIG).read_text(encoding="utf-8"))["r"])
    return next(room for room in _RANKS if room >= rank)


def _arguments(base: Path, config: EngineConfig, context_tokens: int, adapter: Path | None) -> Any:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.platforms import current_platform

    # On a CPU, vLLM 0.32 breaks on a request with a seed whose prompt is read in several pieces.
    whole = {"enable_chunked_prefill": False, "max_num_batched_tokens": max(_BATCH_TOKENS, context_tokens)}
    lora = {"enable_lora": True, "max_lora_rank": _rank(adapter)} if adapter else {}
    return AsyncEngineArgs(
        model=str(base),
        dtype=config.dtype,
        max_model_len=context_tokens,
        max_num_seqs=config.max_sequences,
        kv_cache_memory_bytes=int(config.kv_gib * 2**30),
        block_size=config.block_tokens,
        enable_prefix_caching=True,
        logprobs_mode="processed_logprobs",
        max_logprobs=-1,
        generation_config="vllm",
        worker_extension_cls=_WORKER,
        # On a card vLLM records its steps as CUDA graphs, which read new weights where the old ones were.
        enforce_eager=current_platform.is_cpu(),
        disable_log_stats=True,
        **(whole if current_platform.is_cpu() else {}),
        **lora,
    )


@contextlib.contextmanager
def _surroundings(config: EngineConfig) -> Iterator[None]:
    """What vLLM reads from the environment while it starts; what it writes there is taken back."""
    before = dict(os.environ)
    wanted = {
        "DO_NOT_TRACK": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # or it keeps cores that the learner shares with it
        "OMP_NUM_THREADS": str(config.threads),
        "VLLM_ENGINE_READY_TIMEOUT_S": str(int(config.start_s)),
    }
    os.environ.update({name: value for name, value in wanted.items() if name not in before})
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of libraries that vLLM imports
            yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


class _Children:
    """Processes that vLLM starts under this one from now on."""

    def __init__(self) -> None:
        self._others = {child.pid for child in _spawned()}
        self._ours: list[Any] = []

    def note(self) -> None:
        """Remembers those that there are: once its parent is gone, a process is nobody's child."""
        self._ours = [child for child in _spawned() if child.pid not in self._others]

    def end(self) -> None:
        """Ends those that still run, and waits for them."""
        import psutil

        for child in self._ours:
            with contextlib.suppress(psutil.Error):
                child.kill()
        psutil.wait_procs(self._ours, timeout=_END_S)


def _spawned() -> list[Any]:
    """Processes under this one that Python or vLLM spawned; psutil knows a process by its start, not by its number alone."""
    import psutil

    found = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if any(mark in " ".join(child.cmdline()) for mark in _MARKS):
                found.append(child)
    return found
