"""Files that people give may begin with a byte order mark and have the line ends of Windows, as spreadsheets write them."""

import gzip
from codecs import BOM_UTF8
from pathlib import Path

import pytest

from agentenv.core.io.toml_files import read_toml
from agentenv.core.types import Document
from agentenv.data.dataset_files import read_qrels
from agentenv.data.datasets import load_dataset
from agentenv.retrievers.storage.corpus import load_corpus

PASSAGES = [Document("d1", "北京", "北京是中国的首都。"), Document("d2", "Café", "It opened in 1912.")]
LINES = "".join(f'{{"id": "{one.id}", "title": "{one.title}", "text": "{one.text}"}}\r\n' for one in PASSAGES)
TABLE = "id\ttitle\ttext\r\n" + "".join(f"{one.id}\t{one.title}\t{one.text}\r\n" for one in PASSAGES)


@pytest.mark.parametrize(
    ("name", "text"),
    [("corpus.jsonl", LINES), ("corpus.jsonl.gz", LINES), ("corpus.tsv", TABLE), ("corpus.tsv.gz", TABLE)],
)
def test_a_corpus_from_a_spreadsheet_is_read(name: str, text: str, tmp_path: Path) -> None:
    content = BOM_UTF8 + text.encode() + b"\r\n"
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert list(load_corpus(tmp_path / name)) == PASSAGES


def test_questions_and_their_relevant_passages_are_read(tmp_path: Path) -> None:
    table = tmp_path / "q.csv"
    table.write_bytes(BOM_UTF8 + "id,question,answers\r\n7,中国的首都是哪里,北京\r\n\r\n".encode())
    (tmp_path / "q.qrels.tsv").write_bytes(BOM_UTF8 + b"7\td1\t1\r\n\r\n7\td2\t0\r\n\r\n")
    (task,) = load_dataset("jsonl", table).tasks
    assert (task.id, task.question, task.answers) == ("7", "中国的首都是哪里", ("北京",))
    assert read_qrels(table) == {"7": ("d1",)}


def test_a_configuration_is_read(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_bytes(BOM_UTF8 + b'name = "mine"\r\n')
    assert read_toml(file) == {"name": "mine"}
