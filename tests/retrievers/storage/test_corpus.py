"""Corpora: the layouts that are read, the fingerprint, and one clear sentence for whatever is wrong."""

import csv
import gzip
import io
import json
import subprocess
import sys
from itertools import islice
from pathlib import Path
from random import Random

import pytest

from agentenv.core.types import Document
from agentenv.errors import CorpusError
from agentenv.retrievers.storage.corpus import Corpus, as_corpus, load_corpus, parse_document, read_documents
from agentenv.retrievers.storage.mapped_corpus import link_corpus

DOCUMENTS = [Document("a", "Ärger", 'He said "no".\nThen left.'), Document("b", "", "Plain.")]
GOOD = '{"id": "a", "title": "A", "text": "one"}\n'


def test_saved_corpus_comes_back_equal(tmp_path: Path) -> None:
    corpus = Corpus(DOCUMENTS)
    corpus.save(tmp_path / "corpus.jsonl")
    for path in (tmp_path, tmp_path / "corpus.jsonl"):
        again = load_corpus(path)
        assert list(again) == DOCUMENTS
        assert again.fingerprint == corpus.fingerprint


def test_gzip_file_and_folder_are_read(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "corpus.jsonl.gz", "wt") as file:
        file.write(GOOD + "\n")  # a blank line is no document
    assert list(load_corpus(tmp_path)) == [Document("a", "A", "one")]
    assert list(load_corpus(tmp_path / "corpus.jsonl.gz")) == [Document("a", "A", "one")]


def test_search_r1_layout_is_read(tmp_path: Path) -> None:
    rows = [
        {"id": 7, "contents": '"The Title"\nBody, line 1\nline 2'},
        {"id": "8", "contents": "No title here"},
        {"id": "9", "text": "Nor here"},
    ]
    path = tmp_path / "wiki.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    assert list(load_corpus(path)) == [
        Document("7", "The Title", "Body, line 1\nline 2"),
        Document("8", "", "No title here"),
        Document("9", "", "Nor here"),
    ]


@pytest.mark.parametrize(
    ("record", "document"),
    [
        (
            {"id": "1", "title": "Mill", "contents": "It stands at the river."},
            ("Mill", "It stands at the river."),
        ),
        (
            {"id": "1", "title": "Mill", "contents": "It is old.\nIt is tall."},
            ("Mill", "It is old.\nIt is tall."),
        ),
        ({"id": "1", "title": "Mill", "contents": '"Mill"\nIt is old.'}, ("Mill", "It is old.")),
        (
            {"id": "1", "title": '"Mill" (song)', "contents": '""Mill" (song)"\nIt is old.'},
            ('"Mill" (song)', "It is old."),
        ),
        ({"id": "1", "title": "", "contents": '"Mill"\nIt is old.'}, ("Mill", "It is old.")),
        ({"id": "1", "title": "Mill", "contents": "Mill"}, ("Mill", "Mill")),
    ],
    ids=["one line", "two lines", "title repeated", "quotes in it", "empty title", "title alone"],
)
def test_a_title_beside_contents_is_kept(record: dict[str, str], document: tuple[str, str]) -> None:
    assert parse_document(json.dumps(record), "here") == Document("1", *document)


def test_the_corpus_of_beir_is_read() -> None:
    record = {"_id": "d1", "title": "Mill", "text": "It is old.", "metadata": {}}
    assert parse_document(json.dumps(record), "here") == Document("d1", "Mill", "It is old.")
    assert parse_document(json.dumps(record | {"_id": 7}), "here").id == "7"
    assert parse_document(json.dumps(record | {"id": "own"}), "here").id == "own"


def test_the_fields_of_an_error_are_those_of_the_file() -> None:
    with pytest.raises(CorpusError) as caught:
        parse_document('{"id": "b", "passage": "t"}', "here")
    assert "'title'" not in str(caught.value)


def test_rows_and_slices() -> None:
    corpus = Corpus(DOCUMENTS)
    assert (len(corpus), corpus[1], corpus[:1]) == (2, DOCUMENTS[1], DOCUMENTS[:1])
    assert corpus.row_of("b") == 1
    assert as_corpus(corpus) is corpus
    with pytest.raises(KeyError):
        corpus.row_of("c")


def test_fingerprint_depends_on_content_and_order_alone() -> None:
    first, second = DOCUMENTS
    prints = {
        Corpus(documents).fingerprint
        for documents in (
            [first, second],
            [second, first],
            [first],
            [first, Document("b", "Plain.", "")],  # the same characters in another field
        )
    }
    assert len(prints) == 4
    assert Corpus(iter(DOCUMENTS), source="x").fingerprint == Corpus(DOCUMENTS).fingerprint


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "corpus.jsonl"),
        ("\n\n", "corpus.jsonl"),
        (GOOD + '{"id": "b", ', "line 2"),
        (GOOD + "[1, 2]", r"line 2.*'\[1, 2\]'"),
        (GOOD + '{"id": "b", "title": "B"}', "line 2.*'text'"),
        ('{"title": "B", "text": "t"}', "line 1.*'id'"),
        ('{"id": "b", "title": null, "text": "t"}', "line 1.*'title'.*None"),
        ('{"id": "", "title": "", "text": "t"}', "line 1.*'id'.*''"),
        ('{"id": "b", "contents": ["x"]}', r"line 1.*'contents'.*\['x'\]"),
        (GOOD + "\n" + GOOD, r"'a'.*\b1\b.*\b2\b"),
    ],
)
def test_a_bad_corpus_is_refused_in_one_sentence(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text(text)
    with pytest.raises(CorpusError, match=named) as caught:
        load_corpus(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"nowhere\.jsonl"):
        load_corpus(tmp_path / "nowhere.jsonl")
    with pytest.raises(CorpusError, match=r"corpus\.jsonl.*corpus\.jsonl\.gz"):
        load_corpus(tmp_path)
    rows = "".join(GOOD.replace('"a"', f'"{n}"') for n in range(1000))
    whole = gzip.compress(rows.encode())
    (tmp_path / "corpus.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CorpusError, match=r"corpus\.jsonl\.gz"):
        load_corpus(tmp_path)
    (tmp_path / "latin.jsonl").write_bytes('{"id": "é"}'.encode("latin-1"))
    with pytest.raises(CorpusError, match=r"latin\.jsonl.*\b0\b"):
        load_corpus(tmp_path / "latin.jsonl")


def test_no_documents_at_all_are_refused() -> None:
    with pytest.raises(CorpusError):
        Corpus([])


def write_table(path: Path, text: str) -> Path:
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("name", ["passages.tsv", "passages.tsv.gz"])
def test_a_table_of_passages_is_read(tmp_path: Path, name: str) -> None:
    """In DPR's layout: fields with quotation marks are quoted, and may hold line ends."""
    text = 'id\ttext\ttitle\n7\t"He said ""no"".\nTwice."\tA [SEP] Life\n\n8\tshort\tB\n'
    assert list(load_corpus(write_table(tmp_path / name, text))) == [
        Document("7", "A [SEP] Life", 'He said "no".\nTwice.'),
        Document("8", "B", "short"),
    ]


def test_the_ids_of_topiocqa_are_those_that_its_questions_name(tmp_path: Path) -> None:
    path = write_table(tmp_path / "full_wiki_segments.tsv", "title\tid\ttext\nThe Tower\t7\thigh\n")
    assert list(load_corpus(path)) == [Document("wiki:7", "The Tower", "high")]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("7\thigh\tThe Tower\n8\tlow\tThe Mill\n", "line 2.*'7'.*first line of a table"),
        ("", "is empty"),
        ("id\ttext\ttitle\n7\thigh\n", "line 2 has 2"),
        ("id\ttext\ttitle\n\thigh\tThe Tower\n", "line 2"),
        ("id\ttext\ttitle\n", "is empty"),
        ("id\ttext\ttitle\n7\ta\tA\n7\tb\tB\n", "'7'"),
    ],
    ids=["no head line", "empty", "a column less", "no id", "no row", "an id twice"],
)
def test_a_bad_table_is_named(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(CorpusError, match=named):
        load_corpus(write_table(tmp_path / "passages.tsv", text))


def write_parquet(path: Path, rows: list[dict[str, object]]) -> Path:
    pyarrow = pytest.importorskip("pyarrow", reason="needs the eval extra")
    pyarrow.parquet = pytest.importorskip("pyarrow.parquet", reason="needs the eval extra")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=2)
    return path


ROWS: list[dict[str, object]] = [
    {"id": "7", "title": "The Tower", "text": 'high, and "old"\nindeed', "year": "1200"},
    {"id": "8", "title": "", "text": "low", "year": ""},
    {"id": "9", "title": "The Mill", "text": "round", "year": "1900"},
]


@pytest.mark.parametrize("name", ["passages.csv", "passages.csv.gz", "passages.tsv", "passages.parquet"])
def test_every_table_holds_the_documents_of_the_same_lines_of_json(tmp_path: Path, name: str) -> None:
    lines = tmp_path / "corpus.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    if name.endswith(".parquet"):
        table = write_parquet(tmp_path / name, ROWS)
    else:
        file = io.StringIO()
        writer = csv.DictWriter(file, list(ROWS[0]), delimiter="\t" if ".tsv" in name else ",")
        writer.writeheader()
        writer.writerows(ROWS)
        table = write_table(tmp_path / name, file.getvalue())
    assert load_corpus(table) == load_corpus(lines)


@pytest.mark.parametrize(
    "row",
    [
        {"_id": "7", "title": "A", "text": "b"},
        {"id": "7", "text": "b"},
        {"id": "7", "contents": '"A"\nb'},
        {"id": 7, "title": "A", "text": "b"},
    ],
)
def test_columns_are_called_as_fields_of_lines_of_json_are(tmp_path: Path, row: dict[str, object]) -> None:
    lines = tmp_path / "corpus.jsonl"
    lines.write_text(json.dumps(row))
    cells = ",".join('"' + str(value).replace('"', '""') + '"' for value in row.values())
    comma = write_table(tmp_path / "corpus.csv", f"{','.join(row)}\n{cells}\n")
    columns = write_parquet(tmp_path / "corpus.parquet", [row])
    assert load_corpus(comma) == load_corpus(columns) == load_corpus(lines)


def test_a_bad_row_of_columns_is_named_in_one_sentence(tmp_path: Path) -> None:
    bad: list[tuple[dict[str, object], str]] = [
        ({"id": "7", "title": "A", "text": None}, r"row 2 has no field 'text' or 'contents'"),
        ({"id": None, "title": "A", "text": "b"}, r"row 2 has no field 'id' or '_id'"),
        ({"id": "", "title": "A", "text": "b"}, "row 2: 'id' is ''"),
    ]
    for row, said in bad:
        path = write_parquet(tmp_path / "passages.parquet", [{"id": "6", "title": "", "text": "a"}, row])
        documents = read_documents(path)
        assert next(documents).id == "6"
        with pytest.raises(CorpusError, match=said) as caught:
            next(documents)
        assert "\n" not in str(caught.value)
    (tmp_path / "passages.parquet").write_bytes(b"id,text\n")
    with pytest.raises(CorpusError, match="cannot be read"):
        load_corpus(tmp_path / "passages.parquet")


@pytest.mark.parametrize(("head", "said"), [
    ("Id,text", "write 'id' in place of 'Id'"),
    ("id;text", "by commas"),
    ("id,id", "two columns 'id'"),
    ("id,body", "'body'"),
])  # fmt: skip
def test_what_is_wrong_with_a_head_line_is_said(tmp_path: Path, head: str, said: str) -> None:
    cells = "7,a" if "," in head else "7;a"
    with pytest.raises(CorpusError, match=said):
        load_corpus(write_table(tmp_path / "passages.csv", f"{head}\n{cells}\n"))


def test_a_table_is_read_row_by_row(tmp_path: Path) -> None:
    """A row that is wrong at the end is told of after all those before it were given."""
    path = write_table(tmp_path / "passages.csv", "id,text\n" + "7,a\n" * 1000 + "8\n")
    documents = read_documents(path)
    assert [document.id for document in islice(documents, 1000)] == ["7"] * 1000
    with pytest.raises(CorpusError, match="line 1002 has 1"):
        next(documents)


PEAK = """
import re, sys
from pathlib import Path
import pyarrow.parquet
from agentenv.retrievers.storage.corpus import read_documents
def peak():  # that of this process alone: what getrusage says begins with that of the one that started it
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
before = peak()
rows = sum(1 for _ in read_documents(sys.argv[1]))
print(rows, (peak() - before) // 1024)
"""


def test_a_large_parquet_file_is_not_held_in_memory(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="needs the eval extra")
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs the eval extra")
    random, path = Random(1), tmp_path / "passages.parquet"
    ids = pyarrow.array([str(row) for row in range(60_000)])
    texts = pyarrow.array([random.randbytes(1500).hex() for _ in range(60_000)])
    parquet.write_table(
        pyarrow.table({"id": ids, "text": texts}), path, row_group_size=20_000, compression=None
    )
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(path)], capture_output=True, text=True, check=True, timeout=120
    )
    rows, mebibytes = map(int, done.stdout.split())
    assert rows == 60_000
    assert path.stat().st_size > 170 << 20
    assert mebibytes < 170


@pytest.mark.parametrize("name", ["passages.tsv", "passages.csv", "passages.parquet"])
def test_a_table_is_not_opened_where_it_lies(tmp_path: Path, name: str) -> None:
    path = write_table(tmp_path / name, "id\ttext\ttitle\n7\ta\tA\n")
    with pytest.raises(CorpusError, match="is a table"):
        link_corpus(path, tmp_path)
