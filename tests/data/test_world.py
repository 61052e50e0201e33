"""Documents and files of invented worlds.

Behaviours covered: a world is the same in every process; documents keep their bounds and hold the answers;
splits share no word; names occur in no real corpus; files round-trip and bad ones are named; bad dials are
refused.
"""

import gzip
import hashlib
import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentenv.core.types import Document
from agentenv.data.world import FictionalWorld, WorldConfig, read_world, write_world
from agentenv.data.world_config import SPLITS
from agentenv.data.world_documents import write_documents
from agentenv.data.world_facts import generate_facts
from agentenv.data.world_names import HEADS, MIDDLES, NOUNS, TAILS, NameGenerator, split_of
from agentenv.errors import AgentEnvError, ConfigurationError, CorpusError, DatasetError, UnknownName


def documents_of(config: WorldConfig) -> Iterator[Document]:
    """The documents of a world, one at a time."""
    return write_documents(generate_facts(config))


SMALL = WorldConfig(documents=300, questions=150)


@pytest.fixture(scope="module")
def world() -> FictionalWorld:
    return FictionalWorld.generate(SMALL)


def fingerprint(config: WorldConfig) -> str:
    world = FictionalWorld.generate(config)
    return hashlib.sha256(repr((world.documents, world.questions)).encode()).hexdigest()


def test_another_process_with_another_hash_seed_makes_the_same_world() -> None:
    code = (
        "import hashlib; from agentenv.data.world import *; w = FictionalWorld.generate(WorldConfig("
        "documents=300, questions=150)); "
        "print(hashlib.sha256(repr((w.documents, w.questions)).encode()).hexdigest())"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "77", "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == fingerprint(SMALL)


def test_another_seed_or_split_is_another_world(world: FictionalWorld) -> None:
    titles = {document.title for document in world.documents}
    other_seed = {document.title for document in documents_of(replace(SMALL, seed=1))}
    other_split = {document.title for document in documents_of(replace(SMALL, split="train"))}
    assert not titles & other_split
    assert len(titles & other_seed) < 0.03 * len(titles)  # towns of one word may meet


def test_questions_do_not_change_documents(world: FictionalWorld) -> None:
    other = replace(SMALL, questions=3, hops=(2, 3), families=("bridge",))
    assert FictionalWorld.generate(other).documents == world.documents


@pytest.mark.parametrize("documents", [200, 333, 1000])
def test_streaming_equals_generating(documents: int) -> None:
    config = WorldConfig(seed=5, documents=documents, questions=0)
    streamed = tuple(documents_of(config))
    assert streamed == FictionalWorld.generate(config).documents
    assert len(streamed) == documents


def test_ids_are_unique_and_no_two_entities_share_a_title(world: FictionalWorld) -> None:
    assert len({document.id for document in world.documents}) == len(world.documents)
    pages = Counter(document.title for document in world.documents)
    assert set(pages.values()) == {1, 2}
    names = [name for names in generate_facts(SMALL).names.values() for name in names]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("words", [24, 40, 60])
def test_documents_keep_the_word_bound_and_name_their_subject(words: int) -> None:
    for document in documents_of(WorldConfig(seed=2, documents=2000, words=words)):
        assert len(document.text.split()) <= words
        assert document.title in document.text
        assert document.text.count(".") >= 2
        assert document.text.isascii()


def test_default_documents_have_two_or_three_facts_in_15_to_28_words_on_average() -> None:
    documents = list(documents_of(WorldConfig()))
    assert 15 <= sum(len(document.text.split()) for document in documents) / len(documents) <= 28
    assert {document.text.count(".") for document in documents} == {2, 3}


@pytest.mark.parametrize("family", ["lookup", "bridge"])
def test_every_hop_is_answered_verbatim_by_its_document(family: str) -> None:
    world = FictionalWorld.generate(WorldConfig(seed=3, hops=(1, 4), families=(family,), questions=300))
    documents = {document.id: document for document in world.documents}
    for task in world.questions:
        path = task.data["path"]
        for hop in path:
            text = documents[hop["document"]].text
            assert hop["answer"] in text
            assert hop["entity"] in documents[hop["document"]].title + text
            assert hop["entity"] in hop["query"]
        assert task.answers[0] == path[-1]["answer"]
        assert task.data["supporting_ids"] == tuple(dict.fromkeys(hop["document"] for hop in path))
        # each hop starts from what the one before it found, the first from a name in the question
        assert path[0]["entity"] in task.question
        assert [hop["answer"] for hop in path[:-1]] == [hop["entity"] for hop in path[1:]]


def test_a_hidden_entity_is_described_on_the_page_of_another() -> None:
    facts = generate_facts(WorldConfig(indirect=0.05))
    stated = sum((column > 0).sum() for columns in facts.where.values() for column in columns.values())
    assert len(facts.guests) / stated == pytest.approx(0.05, abs=0.005)
    assert not generate_facts(WorldConfig(indirect=0)).guests


def test_distractors_share_a_word_with_a_neighbour() -> None:
    def shared(share: float) -> float:
        names = generate_facts(WorldConfig(distractors=share)).names["person"]
        words = Counter(word for name in names for word in name.split())
        return sum(any(words[word] > 1 for word in name.split()) for name in names) / len(names)

    # 10 % of the people get a neighbour, which makes 20 % of 1.1 people that have one, here and there a third
    assert shared(0.0) < 0.02
    assert 0.14 < shared(0.1) < 0.22


def test_a_world_with_more_distractors_than_neighbours_still_comes_to_an_end() -> None:
    # Of this world's nineteen towns one has a noun that can be exchanged: ten neighbours are five too many.
    dials = WorldConfig(seed=70_000_504, documents=200, distractors=0.5, questions=0, split="train")
    assert len(FictionalWorld.generate(dials).documents) == 200


def test_splits_share_no_invented_word() -> None:
    common = {noun for nouns in NOUNS.values() for noun in nouns}
    words = {}
    for split in SPLITS:
        facts = generate_facts(WorldConfig(documents=5000, split=split))
        kinds = ("person", "organisation", "place", "work", "event", "region")
        words[split] = {
            word for kind in kinds for name in facts.names[kind] for word in name.split()
        } - common
        assert {split_of(word) for word in words[split]} == {split}
    assert not words["train"] & words["test"]


def test_namer_never_repeats_even_when_crowded() -> None:
    namer = NameGenerator(random.Random(0), "dev")
    names = [namer.name("event") for _ in range(30_000)]
    assert len(set(names)) == len(names)
    assert max(len(name.split()) for name in names) == 3


def test_invented_words_occur_in_no_real_corpus() -> None:
    root = os.environ.get("AGENTENV_DATA")
    if not root:
        pytest.skip("AGENTENV_DATA is not set")
    real: set[str] = set()
    for path in sorted(Path(root).rglob("*.json*")):
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
        real.update(word.lower() for word in re.findall(r"[A-Za-z]+", text))
    assert {"paris", "london"} <= real, f"no text under {root}"
    words = {
        head + middle + tail for head in HEADS for middle in MIDDLES for tail in TAILS if head[2] != middle[0]
    }
    assert not {word for word in words if word.lower() in real}


def test_files_round_trip_with_their_card(tmp_path: Path, world: FictionalWorld) -> None:
    card = write_world(SMALL, tmp_path / "w")
    assert read_world(tmp_path / "w") == world
    assert json.loads((tmp_path / "w" / "world.json").read_text()) == json.loads(json.dumps(card))
    assert card["questions"] == 150
    assert sum(card["families"].values()) == 150
    assert [path.name for path in tmp_path.iterdir()] == ["w"]


def test_a_failed_world_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"\b200\b.*\b100000\b"):
        write_world(WorldConfig(documents=200, families=("lookup",), questions=100_000), tmp_path / "w")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("precious")
    with pytest.raises(ConfigurationError, match="full"):
        write_world(SMALL, tmp_path / "full")
    assert [path.name for path in tmp_path.rglob("*")] == ["full", "mine.txt"]


def spoil(folder: Path, name: str, change: dict[str, Any]) -> None:
    lines = (folder / name).read_text().splitlines()
    lines[1] = json.dumps({**json.loads(lines[1]), **change})
    (folder / name).write_text("\n".join(lines))


@pytest.mark.parametrize(
    ("name", "change", "error", "words"),
    [
        ("corpus.jsonl", {"id": "test-0-d0"}, CorpusError, "'test-0-d0'"),
        ("corpus.jsonl", {"text": None}, CorpusError, "corpus.jsonl:2"),
        ("questions.jsonl", {"answers": []}, DatasetError, "answers"),
        ("questions.jsonl", {"answers": None}, DatasetError, "answers"),
        ("questions.jsonl", {"answers": [["x"]]}, DatasetError, "answers"),
        ("questions.jsonl", {"id": "test-0-q0"}, DatasetError, "'test-0-q0'"),
        ("questions.jsonl", {"path": 3}, DatasetError, "questions.jsonl:2"),
        ("questions.jsonl", {"supporting_ids": ["nowhere"]}, DatasetError, "'nowhere'"),
    ],
)
def test_spoilt_files_are_named(
    tmp_path: Path, name: str, change: dict[str, Any], error: type[AgentEnvError], words: str
) -> None:
    write_world(WorldConfig(documents=200, questions=5), tmp_path / "w")
    spoil(tmp_path / "w", name, change)
    with pytest.raises(error, match=words):
        read_world(tmp_path / "w")


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("corpus.jsonl", "", CorpusError),
        ("corpus.jsonl", "{", CorpusError),
        ("corpus.jsonl", "[]", CorpusError),
        ("questions.jsonl", "nonsense", DatasetError),
        ("world.json", "{}", CorpusError),
    ],
)
def test_corrupt_files_are_named(tmp_path: Path, name: str, text: str, error: type[AgentEnvError]) -> None:
    write_world(WorldConfig(documents=200, questions=5), tmp_path / "w")
    (tmp_path / "w" / name).write_text(text)
    with pytest.raises(error, match=re.escape(name)):
        read_world(tmp_path / "w")
    (tmp_path / "w" / name).unlink()
    with pytest.raises(error, match=re.escape(name)):
        read_world(tmp_path / "w")


@pytest.mark.parametrize(
    ("dials", "words"),
    [
        ({"hops": (3, 2)}, "3-2"),
        ({"hops": (0, 2)}, "0-2"),
        ({"hops": (1, 5)}, "1-5"),
        ({"documents": 0}, "0"),
        ({"documents": 1_000_001}, "1000001"),
        ({"words": 10}, "10"),
        ({"paraphrase": 0}, "0"),
        ({"distractors": 0.9}, "0.9"),
        ({"indirect": -0.1}, "-0.1"),
        ({"questions": -1}, "-1"),
        ({"seed": -1}, "-1"),
        ({"families": ("lookup",), "hops": (2, 3)}, "lookup"),
    ],
)
def test_bad_dials_are_refused_with_their_value(dials: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        WorldConfig(**dials)


def test_unknown_names_are_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match="'bridge'"):
        WorldConfig(families=("brigde",))
    with pytest.raises(UnknownName, match="'train'"):
        WorldConfig(split="trian")  # type: ignore[arg-type]
