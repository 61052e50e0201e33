"""``VLLMPolicy``: samples with vLLM engines, which take up the weights of a trained model without a restart."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from agentenv.core.chat import TEXT_ALONE, cut_at_stop, ends_of_turn
from agentenv.core.concurrency.background import BackgroundLoop
from agentenv.core.concurrency.deadlines import within
from agentenv.core.images import PlacedImage, without_strays
from agentenv.core.io.files import os_errors
from agentenv.core.io.model_files import LOCAL, check_model_files
from agentenv.core.io.temporary import temporary_folder
from agentenv.core.types import Completion, FinishReason, Sampling
from agentenv.errors import CheckpointMismatch, ConfigurationError, ContextTooSmall, PolicyFault, first_line
from agentenv.policies.compute import process_compute
from agentenv.policies.engine import COLDEST, HOTTEST, Engine, EngineConfig, EngineRequest, Sampled
from agentenv.policies.export import write_weights
from agentenv.policies.lora import base_and_adapter, load_weights
from agentenv.policies.replicas import Replicas
from agentenv.policies.soundness import refuse_not_finite
from agentenv.policies.vllm_local import LocalEngine
from agentenv.policies.vllm_remote import RemoteEngine

if TYPE_CHECKING:
    from agentenv.policies.vision import PixelReader

T = TypeVar("T")

_log = logging.getLogger(__name__)

_SHARED_MEMORY = Path("/dev/shm")
_CLOSE_S = 20.0
_RETURN_S = 30.0  # in which an engine that was left out must take up weights


class VLLMPolicy:
    """Samples from engines of equal weights. An episode stays with one of them, which keeps its prefix.

    Log-probs are those of the distribution that is sampled, as with ``HFPolicy``. Requests meet in batches as they arrive,
    so that equal seeds give equal samples up to the rounding of another batch. Close it: engines are processes.
    """

    def __init__(
        self,
        tokenizer: Any,
        context_tokens: int,
        config: EngineConfig,
        engines: Sequence[Callable[[], Coroutine[Any, Any, Engine]]],
        model: Any = None,
        *,
        ends: Sequence[int] = (),
        image_reader: "PixelReader | None" = None,
    ) -> None:
        """Opens engines; ``load`` says which.

        Args:
            tokenizer: A transformers tokenizer.
            context_tokens: Longest sequence.
            config: Deadlines, and the folder through which weights travel.
            engines: What opens each replica.
            model: The model in training, with the weights that the engines begin with; None where nothing is trained.
            ends: Ids that end a turn; those of the tokenizer where none is named.
            image_reader: Of the model's images; None where it reads text alone.

        Raises:
            AgentEnvError: an engine did not open.
        """
        self.model = model
        self.tokenizer = tokenizer
        self.context_tokens = context_tokens
        self.ends = tuple(ends) or ends_of_turn(tokenizer)
        """Ids that end a turn."""
        self.image_reader = image_reader
        self.version = 0
        self.forward_seconds = 0.0
        """What this process spends in forward passes; those of the engines are in their own."""
        self._config = config
        self._engines: list[Engine] = []
        # Engines belong to the loop on which they were opened, and callers come from several.
        self._background = BackgroundLoop()
        try:
            for opened in engines:
                self._engines.append(self._wait(opened(), config.start_s, "come up"))
        except BaseException:
            self.close()
            raise
        self.replicas = Replicas(len(self._engines), _log.warning)
        """Says which engine answers which episode."""

    @classmethod
    def load(
        cls,
        folder: Path | str,
        config: EngineConfig | None = None,
        model: Any = None,
        *,
        context_tokens: int | None = None,
    ) -> "VLLMPolicy":
        """Starts engines on the weights in ``folder``, or on the LoRA adapter there; or takes the servers of ``config``.

        Args:
            folder: A transformers folder, or that of an adapter which names one.
            config: Which engines; None is one of our own.
            model: The model in training, whose weights are at first those in ``folder``.
            context_tokens: Longest sequence that will be asked for, and one token more where it is scored; engines started
                here need memory for no longer one. None is what the model can read.

        Raises:
            MissingExtra: vLLM or transformers is not installed.
            CheckpointMismatch: the folder holds no model that can be loaded, or weights that are not finite.
            PolicyFault: an engine did not come up, or a server does not answer.
        """
        config, path = config or EngineConfig(kind="vllm"), Path(folder)
        config = config.resolved(rounds=process_compute().rounds)
        tokenizer, most, ends, reader = _read(path)
        if model is None and not config.urls:  # one in training was checked when it was loaded
            refuse_not_finite(path)
        context_tokens = min(most, context_tokens or most)
        engines: list[Callable[[], Coroutine[Any, Any, Engine]]]
        engines = [partial(RemoteEngine.open, url) for url in config.urls]
        if not engines:
            engines = [partial(LocalEngine.open, path, config, context_tokens)] * config.replicas
        policy = cls(tokenizer, context_tokens, config, engines, model, ends=ends, image_reader=reader)
        if model is not None and config.urls:  # nobody knows what a running server was given before
            try:
                policy.resumed(0)
            except BaseException:
                policy.close()
                raise
        return policy

    def __enter__(self) -> "VLLMPolicy":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        *,
        episode: str | None = None,
        images: Sequence[PlacedImage] = (),
    ) -> Completion:
        """Samples one chunk after ``prompt_ids``, some of which may stand for ``images``.

        Where the engine of the episode fails, the episode goes on with another one.

        Raises:
            PolicyFault: every engine has failed lately, or missed its deadline.
            ContextTooSmall: the prompt alone fills the context.
            ConfigurationError: a temperature that vLLM would change or refuse, or images for a server or a model of text.
        """
        if sampling.temperature and not COLDEST <= sampling.temperature <= HOTTEST:
            raise ConfigurationError(
                f"vLLM samples at a temperature of 0 or from {COLDEST} to {HOTTEST:g}, not {sampling.temperature}"
            )
        room = self.context_tokens - len(prompt_ids)
        if room <= 0:
            raise ContextTooSmall(
                f"a prompt of {len(prompt_ids)} tokens fills the context of {self.context_tokens}"
            )
        bounded = replace(sampling, max_tokens=min(sampling.max_tokens, room))
        home: int | None = self.replicas.home(episode)
        while home is not None:
            given = self.replicas.versions[home]
            asked = self._sample(self._engines[home], prompt_ids, bounded, tuple(images))
            try:
                sampled = await self._within(asked)
                self.replicas.check_versions(home, given, sampled.versions)
                return self._completion(sampled, bounded)
            except PolicyFault as error:
                home, fault = self.replicas.next_home(home, episode), error
        raise fault

    async def _sample(
        self, engine: Engine, prompt_ids: Sequence[int], sampling: Sampling, images: tuple[PlacedImage, ...]
    ) -> Sampled:
        """One sample; where the policy sampled the placeholder of images, it goes on as the learner feeds that token."""
        fed = self._fed(prompt_ids, images)
        reader = self.image_reader
        if reader is None:
            return await engine.sample(EngineRequest(fed, sampling, self.ends))
        ends, done = (*self.ends, reader.placeholder), Sampled((), (), ())
        while True:
            left = replace(
                sampling, max_tokens=sampling.max_tokens - len(done.ids), seed=sampling.seed + len(done.ids)
            )
            more = await engine.sample(
                EngineRequest(self._fed([*fed, *done.ids], images), left, ends, images)
            )
            done = Sampled(done.ids + more.ids, done.logprobs + more.logprobs, done.versions + more.versions)
            stopped = cut_at_stop(done.ids, self.tokenizer.decode, sampling.stop) is not None
            if more.ids[-1] != reader.placeholder or stopped or len(done.ids) >= sampling.max_tokens:
                return done

    def release(self, episode: str) -> None:
        """Forgets which engine the episode stayed with."""
        self.replicas.release(episode)

    async def score(
        self, ids: Sequence[int], *, temperature: float = 1.0, images: Sequence[PlacedImage] = ()
    ) -> Sequence[float]:
        """Log-probability of every token of ``ids`` given the ones before it, at a temperature; the first is 0.

        At another temperature than 1 the log-probs of the whole vocabulary travel: score with the trainer where you can.

        Raises:
            PolicyFault: the engine failed or missed its deadline.
            ContextTooSmall: ``ids`` leave no room for one more token, which an engine insists on.
        """
        if len(ids) >= self.context_tokens:
            raise ContextTooSmall(f"{len(ids)} tokens leave no room in the context of {self.context_tokens}")
        engine = self._engines[self.replicas.home(None)]
        asked = engine.logprobs(tuple(ids), temperature, tuple(images), fed=self._fed(ids, images))
        return [0.0, *await self._within(asked)]

    def _fed(self, ids: Sequence[int], images: Sequence[PlacedImage]) -> tuple[int, ...]:
        """``ids`` as the learner feeds them.

        Raises:
            ConfigurationError: there are images, and the model reads text alone.
        """
        if self.image_reader is not None:
            return tuple(without_strays(ids, images, self.image_reader.placeholder))
        if images:
            raise ConfigurationError(f"an observation holds an image, and {TEXT_ALONE}")
        return tuple(ids)

    @property
    def broken(self) -> bool:
        """Whether an engine has died: the episodes that stay with it fail."""
        return any(engine.dead for engine in self._engines)

    def set_weights(self, weights: Mapping[str, Any] | None = None, version: int | None = None) -> None:
        """Gives every engine the weights of the model in training; requests under way go on with them.

        An engine that does not take them up is left out, with a warning, and tried again at the next update.

        Args:
            weights: Taken over by the model first; None where it was trained in place.
            version: Their number; None is the next.

        Raises:
            PolicyFault: every engine failed or missed its deadline.
        """
        if weights is not None:
            load_weights(self.model, weights)
        self._follow(self.version + 1 if version is None else version)

    def resumed(self, version: int) -> None:
        """Gives every engine the weights that were loaded from a checkpoint, with their number."""
        self._follow(version)

    def close(self) -> None:
        """Ends the engines and their processes."""
        for engine in self._engines:
            with contextlib.suppress(Exception):  # it may have failed already
                self._background.run(engine.close(), _CLOSE_S)
        self._engines = []
        self._background.close()

    def _follow(self, version: int) -> None:
        # In memory where there is a file system for that: weights of gigabytes pass through it after every update.
        parent = self._config.weights_dir or (_SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None)
        with temporary_folder("weights", parent) as folder:
            try:
                with os_errors():
                    write_weights(self.model, folder)
            except OSError as error:
                said = f"{error.strerror} where weights are handed to the engines (engine.weights_dir names another folder)"
                raise OSError(error.errno, said, str(folder.parent)) from error
            self._background.run(self._load(folder, version))  # which has a deadline for each engine
        self.version = version

    async def _load(self, folder: Path, version: int) -> None:
        places = range(len(self._engines))
        faults = await asyncio.gather(*(self._give(place, folder, version) for place in places))
        failed = {place: fault for place, fault in enumerate(faults) if fault is not None}
        if len(failed) == len(faults):
            raise failed[0]
        for place in places:
            if place in failed:
                self.replicas.leave_out(place, failed[place])
            else:
                self.replicas.take_in(place, version)

    async def _give(self, place: int, folder: Path, version: int) -> PolicyFault | None:
        """Gives one engine the weights in ``folder``; why it did not take them up."""
        seconds = self._config.deadline_s
        if self.replicas.is_left_out(place):  # every update would wait for one that hangs
            seconds = min(seconds, _RETURN_S)
        try:
            await within(
                seconds, self._engines[place].load(folder, version), PolicyFault("to take up weights")
            )
        except PolicyFault as fault:
            return fault
        except Exception as error:  # of vLLM in this process
            return PolicyFault(
                f"an engine did not take up weights: {type(error).__name__} {first_line(error)}"
            )
        return None

    async def _within(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return await self._background.join(work, self._config.deadline_s)
        except TimeoutError as error:
            raise PolicyFault(f"the engine took longer than {self._config.deadline_s:g} s") from error

    def _wait(self, work: Coroutine[Any, Any, T], seconds: float, what: str) -> T:
        try:
            return self._background.run(work, seconds)
        except TimeoutError as error:
            raise PolicyFault(f"an engine did not {what} within {seconds:g} s") from error

    def _completion(self, sampled: Sampled, sampling: Sampling) -> Completion:
        """The sample up to the token that completes its first stop string.

        Engines decode piece by piece and may notice a stop one token late.
        """
        ids, decode = sampled.ids, self.tokenizer.decode
        cut = cut_at_stop(ids, decode, sampling.stop)
        if cut is not None:
            finish, (count, text) = FinishReason.STOP, cut
        elif ids[-1] in self.ends:
            finish, count, text = FinishReason.EOS, len(ids), decode(ids[:-1])
        else:
            finish, count, text = FinishReason.LENGTH, len(ids), decode(ids)
        versions = sampled.versions[:count]
        mixed = versions if len(set(versions)) > 1 else ()
        return Completion(ids[:count], text, sampled.logprobs[:count], finish, min(versions), versions=mixed)


def _read(folder: Path) -> "tuple[Any, int, tuple[int, ...], PixelReader | None]":
    """The tokenizer in ``folder``, the longest sequence of its model, the ids that end its turns, who reads its images."""
    from transformers import AutoConfig, GenerationConfig

    from agentenv.policies.tokenizer_files import read_tokenizer
    from agentenv.policies.vision import PixelReader

    base, _ = base_and_adapter(folder)
    check_model_files(base)
    try:
        config = AutoConfig.from_pretrained(str(base), **LOCAL)
        tokenizer = read_tokenizer(base)
        named = (base / "generation_config.json").is_file()
        generation = GenerationConfig.from_pretrained(str(base), local_files_only=True) if named else config
    except Exception as error:  # a damaged file makes each library raise something of its own
        raise CheckpointMismatch(
            f"{folder} holds no model that can be loaded: {first_line(error)}"
        ) from error
    longest = int(config.get_text_config(decoder=True).max_position_embeddings)
    return tokenizer, longest, ends_of_turn(tokenizer, generation), PixelReader.load(base, config)
