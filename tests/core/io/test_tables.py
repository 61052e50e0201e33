"""Compressed files: unpacked up to a bound, and what is wrong with one is an error of its own file."""

import gzip
import sys
from pathlib import Path

import pytest

from agentenv.core.io.tables import open_text
from agentenv.data.dataset_files import read_records
from agentenv.errors import ConfigurationError, CorpusError, DatasetError
from agentenv.retrievers.storage.corpus import load_corpus
from agentenv.trainers.learner.value_training import recorded_episodes


@pytest.fixture(scope="module")
def bomb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of 2 MB that unpacks to one line of 2 GB."""
    folder = tmp_path_factory.mktemp("run") / "trajectories"
    folder.mkdir()
    path = folder / "step-000001.jsonl.gz"
    million = gzip.compress(b" " * 2**20)
    path.write_bytes(million * 2**11)
    return path


def test_a_file_that_unpacks_to_far_more_than_its_size_is_refused(bomb: Path) -> None:
    with open_text(bomb) as file, pytest.raises(OSError, match="200 times"):
        file.readline()


def test_every_reader_refuses_it_in_one_sentence(bomb: Path) -> None:
    with pytest.raises(DatasetError, match="200 times"):
        list(read_records(bomb))
    with pytest.raises(CorpusError, match="200 times"):
        load_corpus(bomb)
    with pytest.raises(ConfigurationError, match="200 times"):
        recorded_episodes(bomb.parents[1])


def test_what_repeats_itself_much_is_read_up_to_a_bound(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"a": 1}\n' * 1_000_000))
    assert (tmp_path / "a.jsonl.gz").stat().st_size * 200 < 9_000_000
    with open_text(tmp_path / "a.jsonl.gz") as file:
        assert sum(1 for _ in file) == 1_000_000


@pytest.mark.parametrize("place", [9, 40, -1])
def test_a_damaged_file_is_one_sentence(tmp_path: Path, place: int) -> None:
    """The unpacker has errors of its own, which those who read corpora did not expect."""
    content = bytearray(
        gzip.compress("".join(f'{{"id": "{n}", "text": "t{n}"}}\n' for n in range(500)).encode())
    )
    content = content[:-20] if place < 0 else content[:place] + b"\xff\xff\xff" + content[place + 3 :]
    (tmp_path / "corpus.jsonl.gz").write_bytes(content)
    with pytest.raises(CorpusError, match=r"corpus\.jsonl\.gz"):
        load_corpus(tmp_path / "corpus.jsonl.gz")


def test_memory_is_that_of_the_bound(bomb: Path) -> None:
    resource = pytest.importorskip("resource", reason="a system without counts of memory")
    scale = 1 if sys.platform == "darwin" else 1024
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale
    with open_text(bomb) as file, pytest.raises(OSError, match="200 times"):
        file.readline()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale - before < 1.5 * 2**30
