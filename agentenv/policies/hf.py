"""``HFPolicy``: any transformers causal model, sampled in batches with its key/value cache kept across turns.

Shapes: B episodes of one batch, Q new tokens, C tokens that the cache of an episode has room for, V vocabulary, L layers,
H key/value heads, D size of a head, S slots.
"""

import itertools
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from agentenv.core.chat import TEXT_ALONE, ends_of_turn
from agentenv.core.concurrency.batching import Batcher
from agentenv.core.images import PlacedImage
from agentenv.core.types import Completion, FinishReason, Sampling
from agentenv.errors import ConfigurationError, ContextTooSmall, PolicyFault
from agentenv.policies.attention import for_any_shape, serve_masks
from agentenv.policies.compute import ComputeSettings, process_compute
from agentenv.policies.decoding import Draws, Request, Row, Vocabulary, draw, fetched, shared_prompts
from agentenv.policies.episode_cache import EpisodeCache, copy_slots
from agentenv.policies.forward import CacheShape, RowCache, require_support, step, text_config
from agentenv.policies.fused_decoder import FusedDecoder, fused_decoder
from agentenv.policies.loading import compile_layers, load_model
from agentenv.policies.lora import base_and_adapter, load_weights
from agentenv.policies.output_head import logits_after
from agentenv.policies.recorded_steps import CudaRecorder, RecordedSteps
from agentenv.policies.side_by_side import parts_at_once, side_by_side
from agentenv.policies.vision import PixelReader, require_images, shift_of

T = TypeVar("T")

_TOGETHER = 2048  # tokens that a fused decoder is fed at once: what its layers pass on then stays in the processor's cache
_TOGETHER_ON_A_CARD = (
    32_768  # tokens that a model is fed at once there: masks and layers take memory for each
)
_ROWS_OF_A_PART = 16  # fewer rows are decoded together, because Python takes the longer part of their steps
_COMPACT_BELOW = 0.5  # share of unfinished rows under which a decoding batch is cut down to them
_WORTH_RECORDING = 64
"""Tokens that some row may still sample where a batch of recorded steps is cut down. On an H200 fewer rows spare such a step
1 to 3 ms, and to record it anew takes 40 ms and more, with the step before that."""


class HFPolicy:
    """Samples from ``model`` with ``tokenizer``; the model may be trained in place between rollouts.

    Log-probs are those of the distribution that is sampled: logits divided by the temperature, softmax over the whole
    vocabulary (over the kept tokens where ``top_p`` is below 1). A temperature of 0 takes the most likely token and
    reports its log-prob at temperature 1.
    """

    broken = False
    """Whether an engine has died; the policy samples in this process, and ends with it."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        context_tokens: int | None = None,
        image_reader: PixelReader | None = None,
    ) -> None:
        """Wraps a model.

        Args:
            model: A transformers causal language model, or a vision-language model.
            tokenizer: Its tokenizer.
            context_tokens: Longest sequence; None takes the model's own limit.
            image_reader: Of its images; None reads text alone.

        Raises:
            ConfigurationError: models of this type cannot be sampled from here; see ``require_support``.
        """
        self.model = model
        self.tokenizer = tokenizer
        self.context_tokens = context_tokens or _longest(model)
        serve_masks("sdpa")
        self._shape = self._supported(model)
        self.image_reader = image_reader
        if image_reader is not None:
            require_images(model, image_reader, self._shape)
        self.ends = ends_of_turn(tokenizer, getattr(model, "generation_config", None))
        """Ids that end a turn."""
        self.version = 0
        self.forward_seconds = 0.0
        """Seconds spent in the model's forward passes so far."""
        self._cache = EpisodeCache(self._shape, self.context_tokens)
        self._decoder: FusedDecoder | None = None
        self.recorded: RecordedSteps | None = None
        """Takes the steps of a batch; None where each operation of a step is launched by itself."""
        if torch.device(model.device).type == "cuda" and image_reader is None:
            self.recorded = RecordedSteps(self._step, CudaRecorder(model.device))
        self._passes: list[float] = []  # seconds of each forward pass of a batch, of several threads
        # It is held while a batch reads the weights, and while they are exchanged.
        self._weights = threading.Lock()
        self._batcher: Batcher[Request, Completion] = Batcher(self._results, rank=1)
        # A model may have more rows than its tokenizer has tokens; untrained, it samples them.
        spare = max(int(text_config(model).vocab_size) - len(tokenizer), 0)
        self._pieces = [tokenizer.decode([i]) for i in range(len(tokenizer))] + [""] * spare

    @classmethod
    def load(cls, path: Path | str, compute: ComputeSettings | None = None) -> "HFPolicy":
        """A policy from a local folder; a LoRA adapter's weights are added to those of its base.

        Args:
            path: The folder.
            compute: Where and how it computes; None is ``process_compute``.

        Raises:
            CheckpointMismatch: the folder holds no model, weights of another architecture, or some that are not finite.
            ConfigurationError: it cannot compute as ``compute`` says.
            MissingExtra: the folder holds an adapter, and peft is not installed.
        """
        settings = compute or process_compute()
        model, tokenizer = load_model(Path(path), settings)
        policy = cls(
            model, tokenizer, image_reader=PixelReader.load(base_and_adapter(Path(path))[0], model.config)
        )
        if settings.compile:  # after the passes that look at the model, which would be compiled by themselves
            compile_layers(model)
        return policy

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        *,
        episode: str | None = None,
        images: Sequence[PlacedImage] = (),
    ) -> Completion:
        """Samples one chunk after ``prompt_ids``, some of which may stand for ``images``.

        Raises:
            PolicyFault: the model failed, or its log-probs are not finite.
            ContextTooSmall: the prompt alone fills the context.
            ConfigurationError: there are images, and the policy reads text alone.
        """
        if images and self.image_reader is None:
            raise ConfigurationError(f"an observation holds an image, and {TEXT_ALONE}")
        if len(prompt_ids) >= self.context_tokens:
            raise ContextTooSmall(
                f"a prompt of {len(prompt_ids)} tokens fills the context of {self.context_tokens}"
            )
        try:
            done = await self._batcher.submit(Request(list(prompt_ids), sampling, episode, tuple(images)))
        except Exception as error:
            raise PolicyFault(f"generation failed: {error}") from error
        if done.finish is FinishReason.ABORT:
            raise self._diverged()
        return done

    def _supported(self, model: Any) -> CacheShape:
        """What ``model`` keeps of a token, once it has been seen to compute here what it does elsewhere."""
        return require_support(model, self.context_tokens)

    def _diverged(self) -> PolicyFault:
        return PolicyFault(
            f"the model's log-probs are not finite: its weights (version {self.version}) have diverged or overflow"
        )

    def release(self, episode: str) -> None:
        """Drops the cache of ``episode``."""
        self._cache.release(episode)

    def set_weights(self, weights: Mapping[str, Tensor] | None = None, version: int | None = None) -> None:
        """Tells that the weights changed: the version grows and every cache is dropped, between two batches.

        Args:
            weights: Those to take over; None where this policy's own were trained in place.
            version: Their number; None is the next.
        """
        with self._weights:
            if weights is not None:
                load_weights(self.model, weights)
            self.version = self.version + 1 if version is None else version
            self._drop_caches()

    def resumed(self, version: int) -> None:
        """Tells that the weights are those of a checkpoint."""
        self.version = version
        self._drop_caches()

    def close(self) -> None:
        """Drops every cache."""
        self._drop_caches()

    def _drop_caches(self) -> None:
        """Drops whatever was computed with weights that may not be those of the next batch."""
        self._cache.clear()

    async def score(
        self, ids: Sequence[int], *, temperature: float = 1.0, images: Sequence[PlacedImage] = ()
    ) -> Sequence[float]:
        """Log-probability of every token of ``ids`` given the ones before it, at a temperature; the first is 0.

        Raises:
            PolicyFault: they are not finite.
        """
        # In the thread of the batches, because on the event loop the pass would keep every other episode waiting.
        return await self._batcher.between_batches(partial(self._scores, ids, temperature, images))

    def _scores(self, ids: Sequence[int], temperature: float, images: Sequence[PlacedImage]) -> list[float]:
        """Does the work of ``score``."""
        with self._weights, torch.inference_mode():
            wanted, found = self._ids([list(ids)])[0, 1:], []
            for logits in self._logits(ids, 1, temperature, images):
                tokens, wanted = wanted[: len(logits)], wanted[len(logits) :]
                found.append(torch.log_softmax(logits, dim=-1).gather(-1, tokens[:, None])[:, 0])
            picked = torch.cat(found)
        if not bool(picked.isfinite().all()):
            raise self._diverged()
        return [0.0, *picked.tolist()]

    def _results(self, requests: list[Request]) -> Sequence[Completion | Exception]:
        """What each request gets: its completion, or why it alone has none."""
        return self._batch(requests)

    def _batch(self, requests: list[Request]) -> list[Completion]:
        with self._weights:
            return self._run(requests)

    async def top_two(
        self,
        ids: Sequence[int],
        first: int,
        *,
        temperature: float = 1.0,
        images: Sequence[PlacedImage] = (),
    ) -> list[tuple[tuple[int, float], tuple[int, float]]]:
        """The two most likely tokens at each place of ``ids`` from ``first`` (at least 1) on, with their log-probs."""

        def ranked() -> list[tuple[tuple[int, float], tuple[int, float]]]:
            rows: list[tuple[list[int], list[float]]] = []
            with self._weights, torch.inference_mode():
                for logits in self._logits(ids, first, temperature or 1.0, images):
                    best = torch.log_softmax(logits, dim=-1).topk(2)
                    rows += zip(best.indices.tolist(), best.values.tolist(), strict=True)
            return [((a, p), (b, q)) for (a, b), (p, q) in rows]

        return await self._batcher.between_batches(ranked)

    def _logits(
        self, ids: Sequence[int], first: int, temperature: float, images: Sequence[PlacedImage]
    ) -> Iterator[Tensor]:
        """Logits over the temperature, float32[n, V], for ``ids`` from ``first`` on, from one pass without a cache.

        For a few tokens at a time where those of all would be a large matrix.
        """
        fed, vision = self._fed(self._ids([list(ids)]), [(len(ids), images)], [0])
        inputs: dict[str, Any] = {**vision}
        places = torch.arange(first - 1, len(ids) - 1, device=self.model.device)
        with for_any_shape(self.model.device):
            chunks = logits_after(self.model, fed, places, temperature, **inputs)
            if chunks is None:
                logits = self.model(input_ids=fed, use_cache=False, **inputs).logits[0, first - 1 : -1]
                chunks = iter([logits.float() / temperature])
        return chunks

    def _fed(
        self, ids: Tensor, rows: Sequence[tuple[int, Sequence[PlacedImage]]], starts: Sequence[int]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """See ``PixelReader.batch``; a policy of text feeds ids as they are."""
        return (ids, {}) if self.image_reader is None else self.image_reader.batch(ids, rows, starts)

    @torch.inference_mode()
    def _run(self, requests: list[Request]) -> list[Completion]:
        vocabulary = Vocabulary(self._pieces, self.ends, self.tokenizer.decode)
        rows = [Row(request, self.context_tokens, vocabulary, self._cache.held) for request in requests]
        self._decoder = fused_decoder(self.model)
        slots, logits = self._prefill(rows)
        cuts = _cuts(rows, 1 if self._decoder is None else parts_at_once(len(rows) // _ROWS_OF_A_PART))

        def decode(part: slice) -> None:
            self._decode(slots[:, :, part], rows[part], logits[part])

        try:
            self._all_of(side_by_side(decode, cuts, len(cuts)), len(cuts))
        finally:
            if self.recorded is not None:
                self.recorded.forget()
        self._cache.close(rows, slots)
        return [self._completion(row) for row in rows]

    @torch.inference_mode()
    def _decode(self, slots: Tensor, rows: list[Row], logits: Tensor) -> None:
        """Samples until all ``rows`` are finished; they have ``slots``, and their next tokens ``logits`` [B, V]."""
        whole = cache = RowCache(slots, shared_prompts(rows))
        places = list(range(len(rows)))  # of the batch in ``whole``
        batch, draws = rows, Draws.of(rows, self.model.device)
        shifts = self._ids([[shift_of(row.images)] for row in rows]) if any(r.images for r in rows) else None
        positions = moving = logits.new_empty(0, dtype=torch.long)
        running = 0  # rows that were not finished a token ago: while they stay the same, positions are counted on the device
        for count in itertools.count():
            chosen, logprobs = draw(logits, draws, count)
            for row, token, logprob in zip(batch, *fetched(chosen, logprobs), strict=True):
                row.take(token, logprob)
            going = [place for place, row in enumerate(batch) if row.finish is None]
            if not going:
                break
            if len(going) < _COMPACT_BELOW * len(batch) and self._worth_cutting(
                batch[place] for place in going
            ):
                _write_back(whole, places, cache, batch)
                batch, places = [batch[place] for place in going], [places[place] for place in going]
                room = max(row.longest for row in batch)
                cache, chosen = RowCache(cache.kv[:, :, going, :, :room].contiguous()), chosen[going]
                draws = draws.picked(going, batch)
                shifts = shifts[going] if shifts is not None else None
            if len(going) == running:
                positions = positions + moving
            else:
                # Each behind the other and not beside it: compiled layers would take a version for such steps.
                places_now = [row.length - 1 for row in batch]
                pair = self._ids([places_now, [int(row.finish is None) for row in batch]])
                positions, moving = pair[0, :, None], pair[1, :, None]
            running = len(going)
            vision = {"position_ids": (positions + shifts).expand(3, -1, -1)} if shifts is not None else None
            fed = chosen[:, None] if self.image_reader is None else self.image_reader.fed(chosen[:, None])
            logits = self._forward(cache, fed, positions, max(row.length for row in batch), vision=vision)
        _write_back(whole, places, cache, batch)

    def _worth_cutting(self, going: Iterable[Row]) -> bool:
        """Whether a batch is cut down to the rows that go on: recorded steps take longer to record than they spare."""
        return self.recorded is None or max(row.longest - row.length for row in going) >= _WORTH_RECORDING

    def _all_of(self, parts: Iterator[T], at_once: int) -> list[T]:
        """What ``parts`` gives, ``at_once`` of them at a time; the seconds of their forward passes are counted."""
        self._passes.clear()
        found = list(parts)
        self.forward_seconds += sum(self._passes) / at_once
        return found

    def _ids(self, values: list[list[int]]) -> Tensor:
        return torch.tensor(values, device=self.model.device)

    def _prefill(self, rows: list[Row]) -> tuple[Tensor, Tensor]:
        """Slots [L, 2, S, H, C, D] after what each row's cache lacked was fed, and logits [B, V] after that.

        Rows with equal prompts and no cache are fed once.
        """
        first: dict[tuple[Any, ...], int] = {}
        unique: list[int] = []
        source: list[int] = []
        for i, row in enumerate(rows):
            key = (*row.ids, *row.images) if row.start == 0 else (-1 - i,)
            if key not in first:
                first[key] = len(unique)
                unique.append(i)
            source.append(first[key])
        fed = [rows[i] for i in unique]
        width = max(len(row.ids) - row.start for row in fed)
        slots = self._cache.opened(rows, fed, max(row.longest for row in rows), self.model)
        rows_at_once = max(1, self._tokens_at_once(len(fed) * width) // width)
        starts = range(0, len(fed), rows_at_once)

        def feed(at: int) -> Tensor:
            return self._feed(slots, fed[at : at + rows_at_once], at)

        at_once = 1 if self._decoder is None else parts_at_once(len(starts))
        logits = torch.cat(self._all_of(side_by_side(feed, starts, at_once), at_once))
        if len(fed) < len(rows):
            copies = [(fed_at, place) for place, fed_at in enumerate(source) if fed_at != place]
            copy_slots(slots, copies, max(len(row.ids) for row in fed))
            logits = logits[source]
        return slots, logits

    def _tokens_at_once(self, tokens: int) -> int:
        """Tokens that are fed in one pass, where as many as ``tokens`` are to be fed."""
        if self._decoder is not None:
            return _TOGETHER
        return tokens if self.model.device.type == "cpu" else _TOGETHER_ON_A_CARD

    @torch.inference_mode()
    def _feed(self, slots: Tensor, rows: Sequence[Row], first: int) -> Tensor:
        """Feeds what the cache lacks of ``rows``, whose slots begin with ``first``; logits [B, V] after that."""
        new = [row.ids[row.start :] for row in rows]
        width = max(map(len, new))
        ids = self._ids([[*tokens, *[0] * (width - len(tokens))] for tokens in new])
        # What fills a row up stands behind its last token and no further: some rotary embeddings change the frequencies of
        # the whole batch once a position is beyond the context. The first token that is sampled takes the place.
        places = [[min(p, len(row.ids)) for p in range(row.start, row.start + width)] for row in rows]
        positions = self._ids(places)
        last = torch.tensor([len(tokens) - 1 for tokens in new], device=ids.device)
        ids, vision = self._fed(
            ids, [(len(row.ids), row.images) for row in rows], [row.start for row in rows]
        )
        seen = max(row[-1] for row in places) + 1
        cache = RowCache(slots[:, :, first : first + len(rows)])
        return self._forward(cache, ids, positions, seen, last, vision=vision)

    def _forward(
        self,
        cache: RowCache,
        ids: Tensor,
        positions: Tensor,
        seen: int,
        last: Tensor | None = None,
        *,
        vision: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        """Feeds ids [B, Q]; see ``step``. The seconds that are counted end when the device has its orders."""
        began = time.perf_counter()
        if self.recorded is not None and last is None:
            logits = self.recorded(cache, ids, positions, seen)
        else:
            with for_any_shape(self.model.device):
                logits = self._step(cache, ids, positions, seen, last=last, vision=vision)
        self._passes.append(time.perf_counter() - began)
        return logits

    def _step(self, cache: RowCache, ids: Tensor, positions: Tensor, seen: int, **more: Any) -> Tensor:
        """``step`` of this model, float32[B, V]."""
        return step(self.model, cache, ids, positions, seen=seen, decoder=self._decoder, **more).float()

    def _completion(self, row: Row) -> Completion:
        assert row.finish is not None
        return Completion(
            ids=tuple(row.sampled),
            text=row.text,
            logprobs=tuple(row.logprobs),
            finish=row.finish,
            version=self.version,
        )


def _cuts(rows: Sequence[Row], parts: int) -> list[slice]:
    """``rows`` in up to ``parts`` parts of about one size; neighbours with equal prompts stay together."""
    edges = [0]
    ends = list(
        itertools.accumulate(len(list(group)) for _, group in itertools.groupby(rows, lambda row: row.ids))
    )
    for part in range(1, parts):
        edges.append(min(ends, key=lambda end: abs(end - len(rows) * part / parts)))
    edges = sorted({*edges, len(rows)})
    return [slice(first, last) for first, last in itertools.pairwise(edges)]


def _write_back(whole: RowCache, places: Sequence[int], cache: RowCache, rows: Sequence[Row]) -> None:
    """Brings what finished rows sampled to their slots, where they were decoded in a batch that was cut down.

    Args:
        whole: The slots of the batch before that.
        places: Of the rows among these.
        cache: In which the rows were decoded.
        rows: Those of ``cache``.
    """
    if cache is whole:
        return
    for place, (slot, row) in enumerate(zip(places, rows, strict=True)):
        if row.finish is not None:
            new = slice(len(row.ids), row.length - 1)
            whole.kv[:, :, slot, :, new] = cache.kv[:, :, place, :, new]


def _longest(model: Any) -> int:
    """Tokens that the model can read.

    Raises:
        ConfigurationError: its configuration does not say.
    """
    longest = getattr(text_config(model), "max_position_embeddings", None)
    if longest is None:
        raise ConfigurationError(
            f"the configuration of this {model.config.model_type!r} does not say how many tokens it reads: add "
            "max_position_embeddings to its config.json"
        )
    return int(longest)
