"""Checksums: what was damaged on the disk is refused when it is opened, and encoded again when a build goes on."""

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from agentenv.cli.main import main
from agentenv.core.types import Document
from agentenv.errors import AgentEnvError, ConfigurationError, IndexMismatch
from agentenv.retrievers.bm25 import BM25Retriever
from agentenv.retrievers.building.builder import JOURNAL, build_folder
from agentenv.retrievers.building.index_import import import_index
from agentenv.retrievers.encoder import HashEncoder, Vectors
from agentenv.retrievers.faiss import INDEX_FILE, FaissRetriever
from agentenv.retrievers.hybrid import HybridRetriever
from agentenv.retrievers.retriever_spec import open_retriever
from agentenv.retrievers.storage import checksums
from agentenv.retrievers.storage.mapped_corpus import CORPUS_FILE
from agentenv.retrievers.storage.retriever_folder import CARD_FILE, check_folder

pytest.importorskip("faiss", reason="faiss-cpu is not installed")
pytest.importorskip("bm25s", reason="bm25s is not installed")

DOCUMENTS = [Document(str(n), f"Town {n}", f"Town {n} lies on river {n % 7}.") for n in range(60)]
ENCODER = HashEncoder(dim=64)
ROWS = 3000
PART = 1024 * 64 * 4


class CountingEncoder(HashEncoder):
    """Counts the passages, and stops when it has encoded some."""

    def __init__(self, stop_after: int = 10**9) -> None:
        super().__init__(dim=64)
        self.encoded, self.stop_after = 0, stop_after

    def encode_passages(self, texts: Any) -> Vectors:
        if self.encoded >= self.stop_after:
            raise KeyboardInterrupt
        self.encoded += len(texts)
        return super().encode_passages(texts)


def flip(path: Path, place: int | None = None) -> None:
    """Turns one bit of a file over, in the middle where no place is named."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2 if place is None else place] ^= 4
    path.write_bytes(content)


def write_corpus(folder: Path) -> Path:
    path = folder / "source.jsonl"
    rows = ({"id": str(n), "title": "", "text": f"Town {n} on river {n % 7}."} for n in range(ROWS))
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: PART + 1000])


def zeros(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:PART] + bytes(PART))


DAMAGES: dict[str, tuple[Callable[[Path], object], int]] = {
    "cut off within the second part": (cut, 1024),
    "empty": (lambda path: path.write_bytes(b""), 0),
    "gone": (Path.unlink, 0),
    "zeros where the second part was": (zeros, 1024),
    "a bit of the first part": (lambda path: flip(path, 77), 0),
    "bytes that nobody recorded": (lambda path: path.write_bytes(path.read_bytes() + b"more"), 2048),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_build_that_goes_on_encodes_again_what_was_lost(tmp_path: Path, damage: str) -> None:
    source = write_corpus(tmp_path)
    build_folder(source, tmp_path / "whole", CountingEncoder(), "Flat")
    with pytest.raises(KeyboardInterrupt):
        build_folder(source, tmp_path / "out", CountingEncoder(stop_after=2048), "Flat")
    harm, intact = DAMAGES[damage]
    harm(tmp_path / ".out.building" / "work" / "vectors.f32")
    encoder = CountingEncoder()
    built = build_folder(source, tmp_path / "out", encoder, "Flat")
    assert (built.resumed_rows, built.damaged_rows, encoder.encoded) == (intact, 2048 - intact, ROWS - intact)
    for path in (tmp_path / "whole").iterdir():
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes(), path.name


@pytest.mark.parametrize("line", ['[2048, "12', "[null, 3]\n", '[1000, "1"]\n', "\x00\x00\x00"])
def test_a_damaged_journal_costs_no_more_than_what_follows_the_damage(tmp_path: Path, line: str) -> None:
    source = write_corpus(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        build_folder(source, tmp_path / "out", CountingEncoder(stop_after=2048), "Flat")
    journal = tmp_path / ".out.building" / "work" / JOURNAL
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(lines[:2]) + line)
    assert build_folder(source, tmp_path / "out", CountingEncoder(), "Flat").resumed_rows == 1024


@pytest.mark.parametrize("harm", [flip, lambda path: path.write_bytes(b""), Path.unlink])
def test_a_damaged_unfinished_index_is_filled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: Callable[[Path], None]
) -> None:
    monkeypatch.setattr("agentenv.retrievers.indexes._ADD_ROWS", 1000)
    source = write_corpus(tmp_path)
    build_folder(source, tmp_path / "whole", ENCODER, "SQ8")

    def stop(name: str, done: int, total: int) -> None:
        if (name, done) == ("indexing", 2000):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_folder(source, tmp_path / "out", ENCODER, "SQ8", report=stop, checkpoint_s=0)
    harm(tmp_path / ".out.building" / "work" / "index.partial")
    seen: list[tuple[str, int]] = []
    build_folder(
        source, tmp_path / "out", ENCODER, "SQ8", report=lambda name, done, _: seen.append((name, done))
    )
    assert [done for name, done in seen if name == "indexing"] == [0, 1000, 2000, 3000]
    assert (tmp_path / "out" / INDEX_FILE).read_bytes() == (tmp_path / "whole" / INDEX_FILE).read_bytes()


def save(kind: str, folder: Path) -> Path:
    """A saved retriever of every kind, ``adopted`` being links to files that lie elsewhere."""
    if kind == "bm25":
        BM25Retriever.build(DOCUMENTS).save(folder)
    elif kind == "hybrid":
        HybridRetriever.build(DOCUMENTS, HashEncoder()).save(folder)
    else:
        FaissRetriever.build(DOCUMENTS, HashEncoder()).save(folder)
    return folder


KINDS = ("faiss", "bm25", "hybrid")


@pytest.mark.parametrize("kind", KINDS)
def test_one_bit_anywhere_in_a_saved_retriever_is_refused(tmp_path: Path, kind: str) -> None:
    folder = save(kind, tmp_path / kind)
    draw = random.Random(0)
    open_retriever(folder)
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    assert len(files) >= 5 or kind == "bm25"
    for path in files:
        whole = path.read_bytes()
        for place in {0, len(whole) - 1, *(draw.randrange(len(whole)) for _ in range(3))}:
            if path.name == CARD_FILE and whole[place : place + 1].isspace():
                continue  # white space of the card says nothing
            flip(path, place)
            with pytest.raises(AgentEnvError, match=path.parent.name):
                open_retriever(folder)
            path.write_bytes(whole)
    open_retriever(folder)


@pytest.mark.parametrize("harm", [Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-2])])
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_gone_or_cut_off_is_refused(
    tmp_path: Path, kind: str, harm: Callable[[Path], None]
) -> None:
    folder = save(kind, tmp_path / kind)
    for path in [path for path in sorted(folder.rglob("*")) if path.is_file()]:
        whole = path.read_bytes()
        harm(path)
        with pytest.raises(AgentEnvError):
            open_retriever(folder)
        path.write_bytes(whole)


def test_an_index_swapped_for_another_of_the_same_size_is_refused(tmp_path: Path) -> None:
    one, other = save("faiss", tmp_path / "one"), tmp_path / "other"
    FaissRetriever.build(list(reversed(DOCUMENTS)), HashEncoder()).save(other)
    (one / INDEX_FILE).write_bytes((other / INDEX_FILE).read_bytes())
    with pytest.raises(IndexMismatch, match=INDEX_FILE):
        FaissRetriever.load(one)


def test_an_adopted_index_is_checked_where_it_lies(tmp_path: Path) -> None:
    faiss = pytest.importorskip("faiss")
    lines = (json.dumps({"id": str(n), "contents": f'"Town {n}"\nOn river {n % 7}.'}) for n in range(50))
    (tmp_path / "wiki.jsonl").write_text("\n".join(lines))
    index = faiss.IndexFlatIP(512)
    index.add(HashEncoder().encode_passages([f'"Town {n}"\nOn river {n % 7}.' for n in range(50)]))
    faiss.write_index(index, str(tmp_path / "theirs.index"))
    import_index(tmp_path / "theirs.index", tmp_path / "wiki.jsonl", tmp_path / "wiki", HashEncoder())
    assert check_folder(tmp_path / "wiki")[0] == 4
    flip(tmp_path / "theirs.index")
    with pytest.raises(IndexMismatch, match=INDEX_FILE):
        FaissRetriever.load(tmp_path / "wiki")


def test_of_a_large_index_a_part_is_read_at_opening_and_all_of_it_by_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(checksums, "BLOCK_BYTES", 500)
    monkeypatch.setattr(checksums, "WHOLE_BYTES", 10_000)
    folder = save("faiss", tmp_path / "wiki")
    size = (folder / INDEX_FILE).stat().st_size
    assert size > 120_000
    read: list[int] = []
    digests = checksums._digests

    def counting(blocks: Sequence[checksums._Block]) -> list[str]:
        read.append(len(blocks))
        return digests(blocks)

    monkeypatch.setattr(checksums, "_digests", counting)
    open_retriever(folder)
    assert read == [2 + 16 + 2 * 2]  # the ends and 16 blocks of the index, the ends of both tables
    for place in (3, size - 3):
        flip(folder / INDEX_FILE, place)
        with pytest.raises(IndexMismatch):
            open_retriever(folder)
        flip(folder / INDEX_FILE, place)
    assert main(["retriever", "check", str(folder)]) == 0
    flip(folder / INDEX_FILE)
    assert main(["retriever", "check", str(folder)]) != 0
    out = capsys.readouterr()
    assert "as they were written" in out.out
    assert INDEX_FILE in out.err


def test_a_retriever_without_checksums_opens_and_check_says_so(
    tmp_path: Path, forget_checksums: Callable[[Path], None]
) -> None:
    folder = save("faiss", tmp_path / "wiki")
    forget_checksums(folder)
    retriever = open_retriever(folder)
    assert asyncio.run(retriever.search(["Town 7"], 1))[0]
    with pytest.raises(ConfigurationError, match="checksums"):
        check_folder(folder)


def test_only_the_place_of_the_encoder_may_be_edited_in_a_card(tmp_path: Path) -> None:
    folder = save("faiss", tmp_path / "wiki")
    text = (folder / CARD_FILE).read_text()
    (folder / CARD_FILE).write_text(text.replace('"encoder_spec": "hash"', '"encoder_spec": "hash:moved"'))
    FaissRetriever.load(folder, encoder=HashEncoder())
    (folder / CARD_FILE).write_text(text.replace('"rows": 60', '"rows": 61'))
    with pytest.raises(ConfigurationError, match=CARD_FILE):
        FaissRetriever.load(folder)


def test_check_reads_the_parts_of_a_hybrid_and_their_corpora(tmp_path: Path) -> None:
    folder = save("hybrid", tmp_path / "both")
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != CARD_FILE]
    assert check_folder(folder) == (len(files), sum(path.stat().st_size for path in files))
    flip(folder / "dense" / CORPUS_FILE)
    with pytest.raises(IndexMismatch, match="dense"):
        check_folder(folder)


@pytest.mark.parametrize("name", ["/etc/hostname", "../folder/a", "./a", ".", "b//a", "a\0", ""])
def test_a_card_names_no_file_outside_of_its_folder(tmp_path: Path, name: str) -> None:
    """Somebody else may have written it, and it is read before anything else of a folder."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a").write_bytes(b"whole")
    (sums,) = checksums.file_sums(folder).values()
    checksums.verify_files(folder, {"a": sums})
    with pytest.raises(IndexMismatch):
        checksums.verify_files(folder, {name: sums})


@pytest.mark.parametrize("listed", [[], ["0", "1"]])
def test_a_card_with_too_few_or_too_many_checksums_is_refused(tmp_path: Path, listed: list[str]) -> None:
    (tmp_path / "a").write_bytes(b"whole")
    with pytest.raises(IndexMismatch, match="checksums"):
        checksums.verify_files(tmp_path, {"a": checksums.FileSums(bytes=5, sha256=listed)})
