"""What a sampling engine is: token ids in, token ids out, weights replaced while it runs. Needs no engine to import.

An engine keeps weights of its own, apart from those that are trained. It says for every id which version of the weights
sampled it, because an update may come while a request is under way.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, Self

from pydantic import Field

from agentenv.core.images import PlacedImage
from agentenv.core.types import Sampling
from agentenv.core.validation import Frozen

COLDEST, HOTTEST = 0.01, 2.0
"""Temperatures between which vLLM samples as it is asked to; it takes 0 as well, which is greedy."""


class EngineConfig(Frozen):
    """What samples the episodes of a run."""

    kind: Literal["hf", "vllm"] = "hf"
    """``hf`` samples with the trained model itself; ``vllm`` with engines that take up its weights after every update."""
    replicas: int = Field(1, ge=1)
    """Engines started here; an episode stays with the one that it began on, where its prefix is cached."""
    urls: tuple[str, ...] = ()
    """Addresses of running vLLM servers, used in place of engines started here."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Number format of the engine's weights; ``auto`` is that of the policy in training (``compute.dtype``). The further it
    is from the trainer's, the further their log-probs are apart."""
    threads: int = Field(1, ge=1)
    """Threads of an engine that computes on the CPU; more than there are idle cores make it slower by far."""
    kv_gib: float = Field(1.0, gt=0)
    """Memory for keys and values, in GiB, of each engine started here."""
    block_tokens: int = Field(32, ge=1)
    """Tokens of one block of keys and values; a shared prefix is reused in whole blocks."""
    max_sequences: int = Field(128, ge=1)
    """Requests that one engine decodes at a time."""
    weights_dir: Path | None = None
    """Folder through which weights go to the engines, seen by all of them; None is memory of this machine."""
    start_s: float = Field(600.0, gt=0)
    """Seconds in which an engine must be up."""
    deadline_s: float = Field(300.0, gt=0)
    """Seconds for one request or one update of the weights."""

    def resolved(self, *, rounds: bool) -> Self:
        """These settings without ``auto``; ``rounds`` says that the policy in training is in bfloat16."""
        usual = "bfloat16" if rounds else "float32"
        return self.model_copy(update={"dtype": usual}) if self.dtype == "auto" else self


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """What is asked of an engine."""

    ids: tuple[int, ...]
    """The prompt."""
    sampling: Sampling
    """``max_tokens`` fits the context."""
    ends: tuple[int, ...]
    """The end-of-turn tokens: the first that is sampled ends the sample and is its last id."""
    images: tuple[PlacedImage, ...] = ()
    """What some of ``ids`` stand for."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """What an engine sampled: at least up to the end of the first stop string."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Of each id under the distribution that was sampled from."""
    versions: tuple[int, ...]
    """Version of the weights that sampled each id."""


class Engine(Protocol):
    """One replica. Its methods run on one event loop, in any number at a time."""

    @property
    def dead(self) -> bool:
        """Whether it can never answer again."""

    async def sample(self, request: EngineRequest) -> Sampled:
        """Samples after a prompt; a cancelled call ends the request.

        Raises:
            PolicyFault: the engine failed.
            ConfigurationError: it takes no images.
        """

    async def logprobs(
        self,
        ids: tuple[int, ...],
        temperature: float,
        images: tuple[PlacedImage, ...] = (),
        *,
        fed: tuple[int, ...] | None = None,
    ) -> tuple[float, ...]:
        """Log-prob of every id but the first given those before it.

        Args:
            ids: T tokens.
            temperature: Log-probs are those at it.
            images: What some of the ids stand for.
            fed: The T tokens that the model reads; None where they are ``ids``.

        Raises:
            PolicyFault: the engine failed.
            ConfigurationError: it takes no images.
        """

    async def load(self, folder: Path, version: int) -> None:
        """Takes up the weights in ``folder``; requests under way go on with them, on keys and values made anew."""

    async def close(self) -> None:
        """Ends the engine."""
