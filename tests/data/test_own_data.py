"""Covers a user's own questions: every format and name of a field, ids that are made, several sets over merged corpora."""

import bz2
import csv
import gzip
import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from agentenv.core.types import Task
from agentenv.data.datasets import load_dataset
from agentenv.data.sources import SourceConfig, check_source, open_source, set_names
from agentenv.errors import ConfigurationError, DatasetError, UnknownName
from agentenv.evaluation.built_retrievers import corpus_of
from agentenv.evaluation.task_env import EnvConfig, SearchConfig, open_task_env

ROWS: list[dict[str, Any]] = [
    {"id": "a", "question": "Who founded Velandra?", "answers": ["Oda Kest", "Oda"]},
    {"id": "b", "question": "Who founded Mirwick?", "answers": ["Tor Eth"]},
]
TASKS = (
    Task("a", "Who founded Velandra?", ("Oda Kest", "Oda")),
    Task("b", "Who founded Mirwick?", ("Tor Eth",)),
)


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    name = path.name.removesuffix(".gz")
    if name.endswith(".parquet"):
        table = pytest.importorskip("pyarrow", reason="needs the extra 'eval'").Table.from_pylist(rows)
        pytest.importorskip("pyarrow.parquet").write_table(table, path)
        return path
    if name.endswith(".json"):
        text = json.dumps(rows)
    elif name.endswith(".jsonl"):
        text = "".join(json.dumps(row) + "\n" for row in rows)
    else:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, rows[0], delimiter="\t" if name.endswith(".tsv") else ",")
            writer.writeheader()
            plain = ({k: json.dumps(v) if isinstance(v, list) else v for k, v in row.items()} for row in rows)
            writer.writerows(plain)
        text = path.read_text(encoding="utf-8")
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize(
    "name", ["q.jsonl", "q.jsonl.gz", "q.json", "q.csv", "q.csv.gz", "q.tsv", "q.parquet"]
)
def test_every_format_gives_the_same_tasks(name: str, tmp_path: Path) -> None:
    file = write(tmp_path / name, ROWS)
    source = open_source(SourceConfig(dataset=str(file)))
    assert source.tasks == TASKS
    assert source.name == "q"


@pytest.mark.parametrize("field", ["supporting_ids", "gold"])
@pytest.mark.parametrize(
    ("name", "none"), [("q.csv", ""), ("q.tsv", ""), ("q.parquet", None), ("q.jsonl", None), ("q.json", "")]
)
def test_a_question_may_lack_the_passages_that_others_name(
    name: str, none: str | None, field: str, tmp_path: Path
) -> None:
    """A table has the column in every row, and a cell that holds nothing names no passage."""
    rows: list[dict[str, Any]] = [
        {"id": "1", "question": "Who?", "answer": "Ada", field: ["d1", "d2"]},
        {"id": "2", "question": "When?", "answer": "1843", field: none},
    ]
    named, bare = load_dataset("jsonl", write(tmp_path / name, rows)).tasks
    assert named.data["supporting_ids"] == ("d1", "d2")
    assert not {"supporting_ids", "gold"} & bare.data.keys()


@pytest.mark.parametrize("name", ["q.csv", "q.tsv.gz", "q.parquet", "q.jsonl"])
def test_relevant_passages_stand_beside_any_format(name: str, tmp_path: Path) -> None:
    file = write(tmp_path / name, ROWS)
    (tmp_path / "q.qrels.tsv").write_text("a\td1\t1\n")
    first, second = open_source(SourceConfig(dataset=str(file))).tasks
    assert (first.data, second.data) == ({"supporting_ids": ("d1",)}, {})


@pytest.mark.parametrize(
    "row",
    [
        {"question": "How many?", "answer": 2},
        {"query": "How many?", "answers": [2]},
        {"problem": "How many?", "golden_answers": "2"},
        {"question": "How many?", "gold_answers": ["2"]},
        {"question": " How many? ", "ground_truth": ["2", 2]},
        {"question": "How many?", "target": "2", "note": "other fields stay"},
    ],
)
def test_fields_have_their_usual_names_and_an_id_is_made_of_what_is_asked(
    row: dict[str, Any], tmp_path: Path
) -> None:
    (task,) = load_dataset("jsonl", write(tmp_path / "q.jsonl", [row])).tasks
    assert (task.question, task.answers) == ("How many?", ("2",))
    (same,) = load_dataset(
        "jsonl", write(tmp_path / "p.json", [{"question": "How many?", "answer": "2"}])
    ).tasks
    assert task.id == same.id
    for nothing in (None, ""):
        (blank,) = load_dataset("jsonl", write(tmp_path / "b.jsonl", [row | {"id": nothing}])).tasks
        assert blank.id == task.id
    for name in ("_id", "qid", "question_id", "id"):
        (named,) = load_dataset("jsonl", write(tmp_path / "r.jsonl", [row | {name: 7}])).tasks
        assert named.id == "7"


@pytest.mark.parametrize(
    ("row", "answers"),
    [
        ({"question": "q", "answer": "a", "answer_aliases": ["b", "a"]}, ("a", "b")),  # MuSiQue
        ({"question": "q", "answer": "a", "answer_aliases": []}, ("a",)),
        (
            {"question": "q", "answers": {"text": ["a", "b", "a"], "answer_start": [0, 1, 0]}},
            ("a", "b"),
        ),  # SQuAD
        ({"question": "q", "answer": {"value": "a", "aliases": ["b"], "type": "t"}}, ("a", "b")),  # TriviaQA
        (
            {"extra_info": {"question": "q"}, "reward_model": {"ground_truth": "a"}, "prompt": ["p"]},
            ("a",),
        ),  # verl
        (
            {"question": "q", "reward_model": {"ground_truth": {"target": ["a", "b"]}}},
            ("a", "b"),
        ),  # Search-R1
        ({"question": "q", "answer": "a", "reward_model": {"ground_truth": "other"}}, ("a",)),
    ],
)
@pytest.mark.parametrize("name", ["q.jsonl", "q.parquet"])
def test_answers_are_read_where_other_libraries_nest_them(
    name: str, row: dict[str, Any], answers: tuple[str, ...], tmp_path: Path
) -> None:
    """Aliases that stayed unread made right answers wrong, and nobody was told."""
    (task,) = load_dataset("jsonl", write(tmp_path / name, [row])).tasks
    assert (task.question, task.answers) == ("q", answers)


@pytest.mark.parametrize(
    "row",
    [
        {"question": "q", "answers": {"text": [], "answer_start": []}},
        {"question": "q", "answer": {"label": "a"}},
        {"question": "q", "reward_model": {"style": "rule"}},
        {"extra_info": {"question": {"text": "q"}}, "reward_model": {"ground_truth": "a"}},
    ],
)
def test_an_object_without_answers_is_refused_with_its_line(row: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"q\.jsonl, line 1"):
        load_dataset("jsonl", write(tmp_path / "q.jsonl", [row]))


def test_made_ids_depend_on_neither_order_nor_neighbours(tmp_path: Path) -> None:
    rows = [{"question": f"What is {n}?", "answer": str(n)} for n in range(5)]
    rows.append({"question": "What is 0?", "answer": "zero"})  # another answer: another question
    ids = {
        t.question + t.answers[0]: t.id
        for t in load_dataset("jsonl", write(tmp_path / "a.jsonl", rows)).tasks
    }
    assert len(set(ids.values())) == 6
    part = load_dataset("jsonl", write(tmp_path / "b.jsonl", rows[:2:-1])).tasks
    assert {t.question + t.answers[0]: t.id for t in part}.items() <= ids.items()
    with pytest.raises(DatasetError, match="twice"):
        load_dataset("jsonl", write(tmp_path / "c.jsonl", [rows[0], rows[0]]))


@pytest.mark.parametrize("answer", [None, [], [None], [["x"]], True, "", {"text": "x"}, float("nan")])
def test_an_answer_that_cannot_be_scored_is_refused_with_its_line(answer: Any, tmp_path: Path) -> None:
    file = write(
        tmp_path / "q.jsonl",
        [{"question": "Who?", "answer": "Ann"}, {"question": "Where?", "answer": answer}],
    )
    with pytest.raises(DatasetError, match="line 2"):
        load_dataset("jsonl", file)


@pytest.mark.parametrize("content", [b"", b"no parquet", b"PAR1 cut"])
def test_a_file_that_is_no_parquet_is_refused(content: bytes, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="needs the extra 'eval'")
    (tmp_path / "q.parquet").write_bytes(content)
    with pytest.raises(DatasetError, match=r"q\.parquet"):
        load_dataset("jsonl", tmp_path / "q.parquet")


@pytest.fixture
def sets(tmp_path: Path) -> tuple[Path, Path]:
    """Two files of questions with the same ids, over two corpora with the same ids."""
    for name, who in (("first", "Oda Kest"), ("second", "Tor Eth")):
        rows = [{"id": "1", "question": f"Who is {who}?", "answer": who, "gold": ["d1"], "cluster": "c"}]
        write(tmp_path / name / f"{name}.jsonl", rows)
        write(tmp_path / name / "corpus.jsonl", [{"id": "d1", "title": name, "text": f"{who} is here."}])
    return tmp_path / "first" / "first.jsonl", tmp_path / "second" / "second.jsonl"


def test_several_sets_are_one_over_all_corpora_with_ids_apart(sets: tuple[Path, Path]) -> None:
    source = open_source(SourceConfig(dataset=f"{sets[0]},{sets[1]}"))
    assert [task.id for task in source.tasks] == ["first:1", "second:1"]
    assert [dict(task.data) for task in source.tasks] == [
        {"set": name, "cluster": f"{name}:c", "supporting_ids": (f"{name}:d1",)}
        for name in ("first", "second")
    ]
    corpus = corpus_of(source)
    assert corpus is not None
    assert [(d.id, d.text) for d in corpus] == [
        ("first:d1", "Oda Kest is here."),
        ("second:d1", "Tor Eth is here."),
    ]
    assert [source.set_of(task) for task in source.tasks] == ["first", "second"]
    assert len(open_source(SourceConfig(dataset=f"{sets[0]},{sets[1]}", limit=1)).tasks) == 1


def test_each_question_finds_its_own_passage_in_the_merged_corpus(sets: tuple[Path, Path]) -> None:
    pytest.importorskip("bm25s", reason="needs the extra 'retrieval'")
    from agentenv.evaluation.task_env import index_recall

    task_env = open_task_env(
        SourceConfig(dataset=f"{sets[0]},{sets[1]}"), SearchConfig(retriever="bm25"), EnvConfig(), len
    )
    assert task_env.searched.info().documents == 2
    assert index_recall(task_env)["recall@2"] == 1.0


def test_sets_over_one_corpus_share_it(sets: tuple[Path, Path]) -> None:
    other = write(
        sets[0].parent / "other.jsonl", [{"id": "1", "question": "Who?", "answer": "x", "gold": ["d1"]}]
    )
    source = open_source(SourceConfig(dataset=f"{sets[0]},{other}"))
    assert [task.data["supporting_ids"] for task in source.tasks] == [("first:d1",)] * 2
    corpus = corpus_of(source)
    assert corpus is not None
    assert len(corpus) == 1


def test_the_names_of_many_files_may_be_longer_than_a_name_can_be(tmp_path: Path) -> None:
    """Together they have more than 255 letters without a slash, which no file can be called."""
    names = [f"questions-of-part-number-{number}.jsonl" for number in range(12)]
    assert set_names(",".join(names)) == names


def test_a_file_whose_name_holds_a_comma_is_one_file(tmp_path: Path) -> None:
    file = write(tmp_path / "a,b.jsonl", ROWS)
    assert open_source(SourceConfig(dataset=str(file))).tasks == TASKS


@pytest.mark.parametrize(
    ("dataset", "data", "name"),
    [
        ("FIRST,FIRST", None, "first"),
        ("hotpotqa,hotpotqa", None, "hotpotqa"),
        ("hotpotqa,env", None, "env"),
        ("hotpotqa,humaneval", None, "humaneval"),
        ("hotpotqa,musiqe", None, "musiqe"),
        ("FIRST", "FOLDER", "first"),
    ],
)
def test_sets_that_do_not_go_together_are_refused_before_any_is_read(
    dataset: str, data: str | None, name: str, sets: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = None if data is None else sets[0].parent
    with pytest.raises(ConfigurationError, match=name):
        check_source(dataset.replace("FIRST", str(sets[0])), None, folder)
    with pytest.raises(UnknownName, match="devv"):
        check_source("hotpotqa,musique", "devv", None)
    monkeypatch.chdir(sets[0].parent)
    Path("questions.txt").write_text("{}")
    with pytest.raises(DatasetError, match=r"'questions\.txt'.*\.jsonl"):  # a file, and not the name of a set
        check_source("hotpotqa,questions.txt", None, None)
    Path("mine").mkdir()
    with pytest.raises(DatasetError, match="'mine' is a folder"):
        check_source("hotpotqa,mine", None, None)
    with pytest.raises(ConfigurationError, match="'world' cannot be asked together"):
        check_source("hotpotqa,world", None, None)  # and not: did you mean 'world'?
    with pytest.raises(DatasetError, match="nowhere"):
        open_source(SourceConfig(dataset="nowhere/q.jsonl"))


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("q.csv", b"Question;Answer\nWho?;Ann\n", "'Question;Answer'"),  # the fields that are there
        ("q.csv", "question,answer\nWer übt?,Ann\n".encode("latin-1"), "UTF-8"),
        ("q.csv", b"question,answer\nWhich, of these?,Ann\n", "quotes"),
        ("q.txt", b"Who?\tAnn\n", ".csv, .tsv"),
        ("q.json", b"[{]", "q.json is no valid JSON"),
    ],
)
def test_a_file_of_another_form_says_what_would_help(
    name: str, content: bytes, told: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DatasetError) as caught:
        open_source(SourceConfig(dataset=str(tmp_path / name)))
    assert told in str(caught.value)
    assert name.endswith(".txt") == ("format: .jsonl" in str(caught.value))


def test_an_id_with_a_separator_of_lines_is_one_id(tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text('{"id": "a\u2028b", "question": "Who?", "answer": "Ada"}\n', "utf-8")
    (tmp_path / "q.qrels.tsv").write_text("a\u2028b\td1\t1\n", "utf-8")
    (task,) = load_dataset("jsonl", tmp_path / "q.jsonl").tasks
    assert task.data["supporting_ids"] == ("d1",)


@pytest.mark.parametrize("text", ["['Rome', 'Roma']", "['Rome' 'Roma']", "['Rome']", "[\"Rome\", 'Roma']"])
@pytest.mark.parametrize("name", ["q.csv", "q.jsonl"])
def test_a_list_that_was_written_as_text_is_no_answer(name: str, text: str, tmp_path: Path) -> None:
    """Pandas writes lists into a table as ``str`` does, and no prediction would ever equal one."""
    file = write(tmp_path / name, [{"question": "Where?", "answer": text}])
    with pytest.raises(DatasetError, match=r"q\.(csv|jsonl), line (2|1).*Rome"):
        load_dataset("jsonl", file)


@pytest.mark.parametrize(
    "text", ["[1, 2]", "[Fe(CN)6]", "[", "['a'] and more", "[]x", "[{[]: 1}]", r"['\d']?"]
)
def test_an_answer_in_brackets_stays_an_answer(text: str, tmp_path: Path) -> None:
    file = write(tmp_path / "q.jsonl", [{"question": "Which?", "answers": [text]}])
    (task,) = load_dataset("jsonl", file).tasks
    assert task.answers == (text,)


def test_two_fields_with_different_accepted_answers_are_refused(tmp_path: Path) -> None:
    """In files of other tools ``answer`` is what a system said, and ``ground_truth`` what is right."""
    row = {"question": "Where?", "answer": "Paris", "ground_truth": "Rome"}
    with pytest.raises(DatasetError, match=r"line 1.*'answer' and 'ground_truth'"):
        load_dataset("jsonl", write(tmp_path / "q.jsonl", [row]))
    for others in ({"target": "Rome"}, {"target": None}, {"target": ["Rome"], "answer": ""}):
        file = write(tmp_path / "q.jsonl", [{"question": "Where?", "ground_truth": "Rome"} | others])
        (task,) = load_dataset("jsonl", file).tasks
        assert task.answers == ("Rome",)


@pytest.mark.parametrize(
    ("head", "advice"),
    [
        ("Question,answers", "write 'question' in place of 'Question'"),
        ("question, Answers", "write 'answers' in place of ' Answers'"),
        ("question;answers", "commas"),
    ],
)
def test_a_head_line_that_is_written_otherwise_gets_advice(head: str, advice: str, tmp_path: Path) -> None:
    file = tmp_path / "q.csv"
    file.write_text(f"{head}\nWho?{';' if ';' in head else ','}Oda\n", encoding="utf-8")
    with pytest.raises(DatasetError, match=advice):
        load_dataset("jsonl", file)


def test_a_question_that_stands_twice_is_named_by_its_text_where_it_has_no_id(tmp_path: Path) -> None:
    file = write(tmp_path / "q.jsonl", [{"question": "Who is it?", "answer": "Oda"}] * 2)
    with pytest.raises(DatasetError, match=r"line 2: the question 'Who is it\?'"):
        load_dataset("jsonl", file)


@pytest.mark.parametrize(
    ("name", "text", "advice"),
    [
        (
            "dpr.tsv",
            "Who wrote Emma?\t['Jane Austen']\nWho wrote Ulysses?\t['James Joyce']\n",
            "first line of a table",
        ),
        (
            "verl.jsonl",
            '{"prompt": [], "reward_model": {"ground_truth": "Rome"}}\n',
            "a prompt is no question",
        ),
    ],
)
def test_a_file_of_another_library_gets_advice(name: str, text: str, advice: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DatasetError, match=advice):
        load_dataset("jsonl", tmp_path / name)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        ("1990.0", "1990"),
        ("2.50", "2.5"),
        ("1e-7", "0.0000001"),
        ("1e22", "1" + "0" * 22),
        ("-0.0", "0"),
        ("7", "7"),
    ],
)
def test_a_number_is_read_as_somebody_would_answer_it(number: str, text: str, tmp_path: Path) -> None:
    """Pandas makes 1990.0 of the year 1990 where another row of the column is empty; no exact match would ever be found."""
    file = tmp_path / "q.jsonl"
    file.write_text(f'{{"question": "When?", "answer": {number}, "hops": 2.0}}\n')
    (task,) = load_dataset("jsonl", file).tasks
    assert task.answers == (text,)
    assert (task.data["hops"], type(task.data["hops"])) == (2, int)


@pytest.mark.parametrize(
    ("name", "content", "program"),
    [
        ("q.jsonl", gzip.compress(b"{}"), "gzip"),
        ("q.jsonl.zst", b"\x28\xb5\x2f\xfd\x04\x00", "zstd"),
        ("q.jsonl.bz2", bz2.compress(b"{}"), "bzip2"),
        ("q.json.xz", lzma.compress(b"{}"), "xz"),
        ("q.csv", b"PK\x03\x04\x14\x00", "zip"),
        ("q.jsonl.gz", b"PK\x03\x04\x14\x00", "zip"),
    ],
)
def test_a_file_that_is_compressed_otherwise_says_how(
    name: str, content: bytes, program: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DatasetError, match=f"compressed by {program}"):
        load_dataset("jsonl", tmp_path / name)


def test_a_column_that_stands_twice_is_refused(tmp_path: Path) -> None:
    """One of its accepted answers would be lost without a word."""
    (tmp_path / "q.csv").write_text("id,question,answer,answer\n1,Who?,Ann,Anna\n")
    with pytest.raises(DatasetError, match="'answer'"):
        load_dataset("jsonl", tmp_path / "q.csv")
    (tmp_path / "q.csv").write_text(
        ",id,question,answer,\n0,1,Who?,Ann,\n"
    )  # without names, as pandas writes them
    assert load_dataset("jsonl", tmp_path / "q.csv").tasks[0].answers == ("Ann",)
