"""What ``HFPolicy`` does after each forward pass: it draws a token for every row and decides which rows are finished.

Everything that the draws of a batch need goes to the device once. Of a step the host gets the drawn tokens and their
log-probs, in one transfer, because it is text that decides where an action ends.

Shapes: B rows of one batch, V vocabulary, U tokens that a row may sample at most; of the cache L layers, S slots, H heads of
keys and values, C tokens that a slot has room for, D size of a head.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, zip_longest
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from agentenv.core.chat import cut_at_stop
from agentenv.core.images import PlacedImage
from agentenv.core.types import FinishReason, Sampling
from agentenv.policies.forward import SharedPrompts

_PART_OF_A_CHARACTER = "\ufffd"
"""What tokenizers decode to where a token holds some bytes of a character and not all."""
_WORTH_SHARING = 32  # tokens; reading fewer once costs more operations than it saves reads


@dataclass
class Cached:
    """What is kept for one episode between its turns."""

    ids: list[int]
    slots: Tensor  # [L, 2, S, H, C, D]; one slot alone where the episode has a copy of its own
    slot: int
    images: tuple[PlacedImage, ...] = ()

    @property
    def kv(self) -> Tensor:
        """[L, 2, H, C, D], of which the first len(ids) tokens are those of the episode."""
        return self.slots[:, :, self.slot]


@dataclass(frozen=True)
class Request:
    """What is asked of the policy."""

    ids: list[int]
    sampling: Sampling
    episode: str | None
    images: tuple[PlacedImage, ...] = ()


@dataclass(frozen=True)
class Vocabulary:
    """What rows must know of the tokens."""

    pieces: Sequence[str]
    """The text of each id."""
    ends: tuple[int, ...]
    """Ids that end a turn."""
    decode: Callable[[Sequence[int]], str]


class Row:
    """One request while it is decoded."""

    def __init__(
        self, request: Request, context_tokens: int, vocabulary: Vocabulary, held: Mapping[str, Cached]
    ) -> None:
        self.request = request
        self.ids = request.ids
        self.limit = min(request.sampling.max_tokens, context_tokens - len(request.ids))
        self.sampling = request.sampling
        self.cached = held.get(request.episode) if request.episode is not None else None
        self.images = request.images
        self.start = reusable(self.cached, request) if self.cached else 0
        self.sampled: list[int] = []
        self.logprobs: list[float] = []
        self.text = ""
        self.finish: FinishReason | None = None
        # A generator for each request, so that its draws depend on its seed alone and not on who shares its batch.
        # All are drawn now, because they go to the device once.
        self.uniforms = np.random.Generator(np.random.Philox(request.sampling.seed % 2**64)).random(
            self.limit
        )
        self._vocabulary = vocabulary
        self._stop_ends = {stop[-1] for stop in request.sampling.stop}
        if not all(map(str.isascii, self._stop_ends)):
            # The last byte of a stop string may be a token of its own.
            self._stop_ends.add(_PART_OF_A_CHARACTER)

    @property
    def length(self) -> int:
        """Tokens of prompt and sample together."""
        return len(self.ids) + len(self.sampled)

    @property
    def longest(self) -> int:
        """Tokens of prompt and sample together, once as many are sampled as may be."""
        return len(self.ids) + self.limit

    @property
    def valid(self) -> bool:
        """Whether its log-probs are finite so far."""
        return self.finish is not FinishReason.ABORT

    def take(self, token: int, logprob: float) -> None:
        """Records one sampled token and decides whether the row is finished."""
        if self.finish is not None:
            return
        if not math.isfinite(logprob):
            self.finish = FinishReason.ABORT
            return
        self.sampled.append(token)
        self.logprobs.append(logprob)
        decode = self._vocabulary.decode
        if token in self._vocabulary.ends:
            self.finish, self.text = FinishReason.EOS, decode(self.sampled[:-1])
        # Decoding is dear and most tokens cannot end a stop string, so that the text of the last one is looked at
        # first.
        elif self._stop_ends.intersection(self._vocabulary.pieces[token]) and (
            cut := cut_at_stop(self.sampled, decode, self.sampling.stop)
        ):
            self.finish, self.text = FinishReason.STOP, cut[1]
        elif len(self.sampled) == self.limit:
            self.finish, self.text = FinishReason.LENGTH, decode(self.sampled)


def shared_prompts(rows: Sequence[Row]) -> SharedPrompts | None:
    """What groups of neighbouring rows with equal prompts share, where all groups are of one size and share enough."""
    groups = [list(group) for _, group in groupby(rows, key=lambda row: row.ids)]
    size, tokens = len(groups[0]), min(len(group[0].ids) for group in groups)
    alike = size > 1 and all(len(group) == size for group in groups)
    return SharedPrompts(size, tokens) if alike and tokens >= _WORTH_SHARING else None


def reusable(cached: Cached, request: Request) -> int:
    """Cached tokens that a request goes on from: ids that are the same, and before the first image that is another one."""
    start = common_prefix(cached.ids, request.ids)
    for mine, theirs in zip_longest(request.images, cached.images):
        first = min(image.start for image in (mine, theirs) if image is not None)
        if mine != theirs or start < mine.end:
            return min(start, first)
    return start


def common_prefix(cached: list[int], ids: list[int]) -> int:
    """Cached tokens that ``ids`` starts with, at most all but its last: one token must be fed to get logits."""
    limit = min(len(cached), len(ids) - 1)
    # The usual case by one comparison in C; only a rewound prompt is looked through token by token.
    if cached[:limit] == ids[:limit]:
        return limit
    return next(i for i in range(limit) if cached[i] != ids[i])


@dataclass(frozen=True)
class Draws:
    """How the rows of a batch are sampled, on the device of the model."""

    temperature: Tensor  # [B]
    top_p: Tensor  # [B]
    uniforms: Tensor  # float64[B, U]; what a row draws its n-th token with, 0 beyond its limit
    cuts: bool  # whether top_p of some row is below 1

    @classmethod
    def of(cls, rows: Sequence[Row], device: Any) -> Self:
        """The draws of ``rows``, of which none has sampled yet."""
        uniforms = np.zeros((len(rows), max(row.limit for row in rows)))
        for place, row in enumerate(rows):
            uniforms[place, : row.limit] = row.uniforms
        return cls(
            torch.tensor([row.sampling.temperature for row in rows], device=device),
            torch.tensor([row.sampling.top_p for row in rows], device=device),
            torch.from_numpy(uniforms).to(device),
            any(row.sampling.top_p < 1 for row in rows),
        )

    def picked(self, places: Sequence[int], rows: Sequence[Row]) -> Self:
        """The draws of the rows at ``places``, which are ``rows``."""
        where = torch.tensor(places, device=self.top_p.device)
        return type(self)(
            self.temperature[where],
            self.top_p[where],
            self.uniforms[where],
            any(row.sampling.top_p < 1 for row in rows),
        )


def draw(logits: Tensor, draws: Draws, count: int) -> tuple[Tensor, Tensor]:
    """One token a row from logits [B, V]: inverse transform of the row's own uniform number, or the argmax.

    Args:
        logits: Of the next token.
        draws: How each row is sampled.
        count: Tokens that the rows have sampled so far.

    Returns:
        int64[B] tokens, and their log-probs [B] under the distribution that was sampled.
    """
    greedy = draws.temperature == 0
    logprobs = torch.log_softmax(logits / torch.where(greedy, 1.0, draws.temperature)[:, None], dim=-1)
    if draws.cuts:
        logprobs = keep_top_p(logprobs, draws.top_p)
    uniform = draws.uniforms[:, min(count, draws.uniforms.shape[1] - 1)]
    # In double: sums over a large vocabulary in float32 leave unlikely tokens no room at all.
    cumulative = logprobs.exp().double().cumsum(-1)
    # Times the last sum, which rounding keeps from being exactly 1; and to the right, so that a uniform of 0 draws no
    # token of probability 0.
    drawn = torch.searchsorted(cumulative, (uniform * cumulative[:, -1])[:, None], right=True)[:, 0]
    chosen = torch.where(greedy, logprobs.argmax(-1), drawn.clamp(max=logits.shape[-1] - 1))
    return chosen, logprobs.gather(-1, chosen[:, None])[:, 0]


def fetched(chosen: Tensor, logprobs: Tensor) -> tuple[list[int], list[float]]:
    """Tokens [B] and log-probs [B] on the host, in one transfer."""
    # A double holds every id exactly, so that both travel in one tensor: each transfer waits for the device.
    ids, values = torch.stack([chosen.double(), logprobs.double()]).tolist()
    return [int(i) for i in ids], values


def keep_top_p(logprobs: Tensor, top_p: Tensor) -> Tensor:
    """Log-probs [B, V] renormalised over the smallest set of tokens whose probability reaches ``top_p`` [B]."""
    ordered, order = logprobs.sort(-1, descending=True)
    # The sum before each token, so that the token that reaches `top_p` is kept with those before it, and one at
    # least, also where `top_p` is too small for float32.
    before = ordered.exp().cumsum(-1) - ordered.exp()
    ordered = ordered.masked_fill((before >= top_p[:, None]) & (before > 0), float("-inf"))
    kept = torch.empty_like(logprobs).scatter(-1, order, ordered)
    return torch.log_softmax(kept, dim=-1)
