"""``HFPolicy``: any transformers causal model, sampled in batches with its key/value cache kept across turns.

Shapes: B episodes of one batch, Q new tokens, S cached plus new tokens, V vocabulary, L layers, H key/value heads,
D size of a head.
"""

import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agentenv.core.chat import cut_at_stop, ends_of_turn
from agentenv.core.concurrency.batching import Batcher
from agentenv.core.io.model_files import LOCAL, check_model_files
from agentenv.core.types import Completion, FinishReason, Sampling
from agentenv.errors import CheckpointMismatch, ConfigurationError, ContextTooSmall, PolicyFault
from agentenv.policies.forward import RowCache, require_support, step, text_config
from agentenv.policies.lora import base_and_adapter, load_weights, merged_into
from agentenv.policies.soundness import first_not_finite, not_finite

_COMPACT_BELOW = 0.5  # share of unfinished rows under which a decoding batch is cut down to them


@dataclass
class _Cached:
    """What is kept for one episode between its turns."""

    ids: list[int]
    kv: Tensor  # [L, 2, H, len(ids), D]


@dataclass
class _Request:
    ids: list[int]
    sampling: Sampling
    episode: str | None


class HFPolicy:
    """Samples from ``model`` with ``tokenizer``; the model may be trained in place between rollouts.

    Log-probs are those of the distribution that is sampled: logits divided by the temperature, softmax over the whole
    vocabulary (over the kept tokens where ``top_p`` is below 1). A temperature of 0 takes the most likely token and
    reports its log-prob at temperature 1.
    """

    broken = False
    """It samples in this process, and ends with it."""

    def __init__(self, model: Any, tokenizer: Any, *, context_tokens: int | None = None) -> None:
        """Wraps a model.

        Args:
            model: A transformers causal language model.
            tokenizer: Its tokenizer.
            context_tokens: Longest sequence; None takes the model's own limit.

        Raises:
            ConfigurationError: models of this type cannot be sampled from here; see ``require_support``.
        """
        self.model = model
        self.tokenizer = tokenizer
        self.context_tokens = context_tokens or _longest(model)
        self._shape = require_support(model, self.context_tokens)
        self.ends = ends_of_turn(tokenizer, getattr(model, "generation_config", None))
        """Ids that end a turn."""
        self.version = 0
        self.forward_seconds = 0.0
        """Seconds spent in the model's forward passes so far."""
        self._cache: dict[str, _Cached] = {}
        self._memory = torch.empty(0, dtype=model.dtype)
        self._weights = (
            threading.Lock()
        )  # held by whoever reads them for a batch, and by whoever exchanges them
        self._batcher: Batcher[_Request, Completion] = Batcher(self._batch, rank=1)
        # A model may have more rows than its tokenizer has tokens; untrained, it samples them.
        spare = max(int(text_config(model).vocab_size) - len(tokenizer), 0)
        self._pieces = [tokenizer.decode([i]) for i in range(len(tokenizer))] + [""] * spare

    @classmethod
    def load(cls, path: Path | str) -> "HFPolicy":
        """A policy from a local folder, weights in float32; a LoRA adapter's are added to those of its base.

        Raises:
            CheckpointMismatch: the folder holds no model, weights of another architecture, or some that are not finite.
            MissingExtra: the folder holds an adapter, and peft is not installed.
        """
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils import logging

        logging.disable_progress_bar()
        base, adapter = base_and_adapter(Path(path))
        if not base.is_dir():  # the libraries would look for it on the network
            raise CheckpointMismatch(f"{path} holds no model that can be loaded: there is no folder {base}")
        check_model_files(base)
        try:
            model, report = AutoModelForCausalLM.from_pretrained(
                str(base), dtype=torch.float32, output_loading_info=True, use_safetensors=True, **LOCAL
            )
            tokenizer = AutoTokenizer.from_pretrained(str(base), **LOCAL)
        except Exception as error:  # a damaged file makes each library raise something of its own
            reason = str(error).partition("\n")[0][:200]
            raise CheckpointMismatch(f"{path} holds no model that can be loaded: {reason}") from error
        if report["missing_keys"] or report["unexpected_keys"]:
            odd = sorted(report["missing_keys"] or report["unexpected_keys"])[:3]
            raise CheckpointMismatch(
                f"the weights in {path} are of another architecture than its config: {odd}"
            )
        model = merged_into(model, adapter) if adapter else model
        if (name := first_not_finite(model.named_parameters())) is not None:
            raise not_finite(path, name)
        return cls(model.eval(), tokenizer)

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
    ) -> Completion:
        """Samples one chunk after ``prompt_ids``.

        Raises:
            PolicyFault: the model failed, or its log-probs are not finite.
            ContextTooSmall: the prompt alone fills the context.
        """
        if len(prompt_ids) >= self.context_tokens:
            raise ContextTooSmall(
                f"a prompt of {len(prompt_ids)} tokens fills the context of {self.context_tokens}"
            )
        try:
            done = await self._batcher.submit(_Request(list(prompt_ids), sampling, episode))
        except Exception as error:
            raise PolicyFault(f"generation failed: {error}") from error
        if done.finish is FinishReason.ABORT:
            raise self._diverged()
        return done

    def _diverged(self) -> PolicyFault:
        return PolicyFault(
            f"the model's log-probs are not finite: its weights (version {self.version}) have diverged or overflow"
        )

    def release(self, episode: str) -> None:
        """Drops the cache of ``episode``."""
        self._cache.pop(episode, None)

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
            self._cache.clear()

    def resumed(self, version: int) -> None:
        """Tells that the weights are those of a checkpoint."""
        self.version = version
        self._cache.clear()

    def close(self) -> None:
        """Drops every cache."""
        self._cache.clear()

    async def score(self, ids: Sequence[int], *, temperature: float = 1.0) -> Sequence[float]:
        """Log-probability of every token of ``ids`` given the ones before it, at a temperature; the first is 0.

        Raises:
            PolicyFault: they are not finite.
        """
        with self._weights, torch.inference_mode():
            tokens = torch.tensor([list(ids)])
            logits = self.model(input_ids=tokens, use_cache=False).logits[0].float()
            logprobs = torch.log_softmax(logits / temperature, dim=-1)
            picked = logprobs[:-1].gather(-1, tokens[0, 1:, None])[:, 0]
        if not bool(picked.isfinite().all()):
            raise self._diverged()
        return [0.0, *picked.tolist()]

    def _batch(self, requests: list[_Request]) -> list[Completion]:
        with self._weights:
            return self._run(requests)

    async def top_two(
        self, ids: Sequence[int], first: int, *, temperature: float = 1.0
    ) -> list[tuple[tuple[int, float], tuple[int, float]]]:
        """The two most likely tokens at each place of ``ids`` from ``first`` (at least 1) on, with their log-probs."""
        with self._weights, torch.inference_mode():
            logits = self.model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[
                0, first - 1 : -1
            ]
            found = torch.log_softmax(logits.float() / (temperature or 1.0), dim=-1).topk(2)
        rows = zip(found.indices.tolist(), found.values.tolist(), strict=True)
        return [((a, p), (b, q)) for (a, b), (p, q) in rows]

    @torch.inference_mode()
    def _run(self, requests: list[_Request]) -> list[Completion]:
        rows = [_Row(self, request) for request in requests]
        cache, logits = self._prefill(rows)
        alive = list(range(len(rows)))  # index into rows of each batch row
        while True:
            chosen, logprobs = _sample(logits, [rows[i] for i in alive])
            for place, i in enumerate(alive):
                rows[i].take(int(chosen[place]), float(logprobs[place]))
            places = [place for place, i in enumerate(alive) if rows[i].finish is None]
            if not places:
                break
            if len(places) < _COMPACT_BELOW * len(alive):
                for place, i in enumerate(alive):
                    if rows[i].finish is not None:
                        rows[i].kv = cache.kv[:, :, place]
                cache = RowCache(cache.kv[:, :, places].contiguous())
                alive = [alive[place] for place in places]
                chosen = chosen[places]
            logits = self._forward(cache, chosen[:, None], [[rows[i].length - 1] for i in alive])
        for place, i in enumerate(alive):
            rows[i].kv = cache.kv[:, :, place]
        return [self._finish(row) for row in rows]

    def _prefill(self, rows: "list[_Row]") -> tuple[RowCache, Tensor]:
        """Feeds what each row's cache lacks; rows with equal prompts and no cache are fed once."""
        first: dict[tuple[int, ...], int] = {}
        unique: list[int] = []
        source: list[int] = []
        for i, row in enumerate(rows):
            key = tuple(row.ids) if row.start == 0 else (-1 - i,)
            if key not in first:
                first[key] = len(unique)
                unique.append(i)
            source.append(first[key])
        fed = [rows[i] for i in unique]
        width = max(len(row.ids) - row.start for row in fed)
        size = max(max(row.start + width, row.length + row.sampling.max_tokens) for row in rows)
        cache = RowCache(self._stack(fed, size))
        ids = torch.zeros((len(fed), width), dtype=torch.long)
        for place, row in enumerate(fed):
            ids[place, : len(row.ids) - row.start] = torch.tensor(row.ids[row.start :])
        positions = [list(range(row.start, row.start + width)) for row in fed]
        last = torch.tensor([len(row.ids) - row.start - 1 for row in fed])
        logits = self._forward(cache, ids, positions, last)
        if len(fed) < len(rows):
            cache = RowCache(cache.kv[:, :, source].contiguous())
            logits = logits[source]
        return cache, logits

    def _stack(self, rows: "list[_Row]", size: int) -> Tensor:
        kv = self._cleared((self._shape.layers, 2, len(rows), self._shape.heads, size, self._shape.width))
        for place, row in enumerate(rows):
            if row.cached is not None:
                kv[:, :, place, :, : row.start] = row.cached.kv[..., : row.start, :]
        return kv

    def _cleared(self, shape: tuple[int, ...]) -> Tensor:
        """Zeros in memory that is kept from batch to batch: clearing known pages is cheaper than mapping fresh ones."""
        count = math.prod(shape)
        if len(self._memory) < count:
            self._memory = torch.empty(count, dtype=self.model.dtype)
        return self._memory[:count].view(shape).zero_()

    def _forward(
        self, cache: RowCache, ids: Tensor, positions: list[list[int]], last: Tensor | None = None
    ) -> Tensor:
        """Feeds ids [B, Q] at positions [B, Q]; logits [B, V] after each row's token ``last``, the final one if None."""
        began = time.perf_counter()
        logits = step(self.model, cache, ids, torch.tensor(positions), last).float()
        self.forward_seconds += time.perf_counter() - began
        return logits

    def _finish(self, row: "_Row") -> Completion:
        episode = row.request.episode
        if episode is not None and row.kv is not None and row.finish is not FinishReason.ABORT:
            held = row.length - 1  # the last sampled token was never fed
            self._cache[episode] = _Cached((row.ids + row.sampled)[:held], row.kv[:, :, :, :held].clone())
        assert row.finish is not None
        return Completion(
            ids=tuple(row.sampled),
            text=row.text,
            logprobs=tuple(row.logprobs),
            finish=row.finish,
            version=self.version,
        )


class _Row:
    """One request while it is decoded."""

    def __init__(self, policy: HFPolicy, request: _Request) -> None:
        self.request = request
        self.ids = request.ids
        room = policy.context_tokens - len(request.ids)
        self.limit = min(request.sampling.max_tokens, room)
        self.sampling = request.sampling
        self.cached = policy._cache.get(request.episode) if request.episode is not None else None
        self.start = _common_prefix(self.cached.ids, self.ids) if self.cached else 0
        self.sampled: list[int] = []
        self.logprobs: list[float] = []
        self.text = ""
        self.finish: FinishReason | None = None
        self.kv: Tensor | None = None
        self.uniforms = np.random.Generator(np.random.Philox(request.sampling.seed % 2**64)).random(
            self.limit
        )
        self._ends = policy.ends
        self._decode = policy.tokenizer.decode
        self._pieces = policy._pieces
        self._stop_ends = {stop[-1] for stop in request.sampling.stop}

    @property
    def length(self) -> int:
        """Tokens of prompt and sample together."""
        return len(self.ids) + len(self.sampled)

    def take(self, token: int, logprob: float) -> None:
        """Records one sampled token and decides whether the row is finished."""
        if self.finish is not None:
            return
        if not math.isfinite(logprob):
            self.finish = FinishReason.ABORT
            return
        self.sampled.append(token)
        self.logprobs.append(logprob)
        if token in self._ends:
            self.finish, self.text = FinishReason.EOS, self._decode(self.sampled[:-1])
        elif self._stop_ends.intersection(self._pieces[token]) and (
            cut := cut_at_stop(self.sampled, self._decode, self.sampling.stop)
        ):
            self.finish, self.text = FinishReason.STOP, cut[1]
        elif len(self.sampled) == self.limit:
            self.finish, self.text = FinishReason.LENGTH, self._decode(self.sampled)


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


def _common_prefix(cached: list[int], ids: list[int]) -> int:
    """Cached tokens that ``ids`` starts with, at most all but its last: one token must be fed to get logits."""
    limit = min(len(cached), len(ids) - 1)
    if cached[:limit] == ids[:limit]:
        return limit
    return next(i for i in range(limit) if cached[i] != ids[i])


def _sample(logits: Tensor, rows: Sequence[_Row]) -> tuple[Tensor, Tensor]:
    """One token a row from logits [B, V]: inverse transform of the row's own uniform number, or the argmax."""
    temperature = torch.tensor([row.sampling.temperature for row in rows])
    greedy = temperature == 0
    logprobs = torch.log_softmax(logits / torch.where(greedy, 1.0, temperature)[:, None], dim=-1)
    top_p = torch.tensor([row.sampling.top_p for row in rows])
    if bool((top_p < 1).any()):
        logprobs = _keep_top_p(logprobs, top_p)
    uniform = torch.tensor(
        [row.uniforms[min(len(row.sampled), row.limit - 1)] for row in rows], dtype=torch.float64
    )
    cumulative = logprobs.exp().double().cumsum(-1)
    drawn = torch.searchsorted(cumulative, (uniform * cumulative[:, -1])[:, None], right=True)[:, 0]
    chosen = torch.where(greedy, logprobs.argmax(-1), drawn.clamp(max=logits.shape[-1] - 1))
    return chosen, logprobs.gather(-1, chosen[:, None])[:, 0]


def _keep_top_p(logprobs: Tensor, top_p: Tensor) -> Tensor:
    """Log-probs [B, V] renormalised over the smallest set of tokens whose probability reaches ``top_p`` [B]."""
    ordered, order = logprobs.sort(-1, descending=True)
    before = ordered.exp().cumsum(-1) - ordered.exp()
    ordered = ordered.masked_fill(before >= top_p[:, None], float("-inf"))
    kept = torch.empty_like(logprobs).scatter(-1, order, ordered)
    return torch.log_softmax(kept, dim=-1)
