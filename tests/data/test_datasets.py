"""Question sets: every native format on files of our own, every refusal, samples, where files are found."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from agentenv.core.types import Task
from agentenv.data.dataset_formats import unescape_quotes
from agentenv.data.datasets import OTHER_NAMES, SETS, load_dataset
from agentenv.data.sources import SourceConfig, open_source
from agentenv.errors import ConfigurationError, DatasetError, UnknownName

ROW = {"id": "a", "question": " Who? ", "golden_answers": ["Ann"]}


def write(path: Path, *rows: Any) -> Path:
    """The rows as JSON lines (``.jsonl``) or as one array (``.json``), compressed where the name says gz."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    content = (lines if ".jsonl" in path.name else json.dumps(rows)).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def refused(path: Path, name: str = "jsonl") -> str:
    with pytest.raises(DatasetError) as error:
        load_dataset(name, path)
    sentence = str(error.value)
    assert "\n" not in sentence
    return sentence


def test_flat_rows_become_tasks(tmp_path: Path) -> None:
    metadata = {"type": "bridge"}
    file = write(
        tmp_path / "mine.jsonl",
        ROW,
        {"id": 2, "question": "Where?", "golden_answers": ["Rome", "Roma", "Rome"], "metadata": metadata},
        {"id": "c", "question": "When?", "answers": "1999", "supporting_ids": ["d1", "d2"], "hops": 2},
    )
    assert load_dataset("jsonl", file).tasks == (
        Task("a", "Who?", ("Ann",)),
        Task("2", "Where?", ("Rome", "Roma"), data={"type": "bridge"}),
        Task("c", "When?", ("1999",), data={"hops": 2, "supporting_ids": ("d1", "d2")}),
    )


def test_hotpotqa_reads_official_fields_and_relevance_judgements(tmp_path: Path) -> None:
    row = {
        "_id": "h1",
        "question": "Are both old?",
        "answer": "yes",
        "type": "comparison",
        "level": "hard",
        "supporting_facts": [["A", 0], ["B", 1]],
        "context": [["A", ["Old."]], ["B", ["New.", "Old."]]],
    }
    write(tmp_path / "hotpotqa" / "hotpotqa_dev_1.json.gz", row)
    (tmp_path / "hotpotqa" / "hotpotqa_dev_1.qrels.tsv").write_text(
        "h1\t7\t1\nh1\t8\t1\nh1\t9\t0\nother\t3\t1\n"
    )
    corpus = write(tmp_path / "hotpotqa" / "corpus.jsonl", {"id": "7", "title": "A", "text": "Old."})
    found = load_dataset("hotpotqa", tmp_path)
    assert (found.name, found.split, found.corpus) == ("hotpotqa", "dev", corpus)
    (task,) = found.tasks
    assert (task.id, task.answers, task.split) == ("h1", ("yes",), "dev")
    assert task.data["supporting_ids"] == ("7", "8")
    assert (task.data["type"], task.data["level"]) == ("comparison", "hard")
    assert "context" not in task.data


def test_2wiki_keeps_type_and_evidences(tmp_path: Path) -> None:
    row = {
        "_id": "w",
        "question": "Who?",
        "answer": "Ann",
        "type": "inference",
        "evidences": [["A", "mother", "Ann"]],
    }
    write(tmp_path / "2wiki_dev_1.json", {**row, "context": []})
    (task,) = load_dataset("2wiki", tmp_path).tasks
    assert task.data == {"type": "inference", "evidences": [["A", "mother", "Ann"]]}


def test_musique_counts_hops_and_takes_aliases(tmp_path: Path) -> None:
    steps = [{"id": 1, "question": "q1", "answer": "x"}, {"id": 2, "question": "q #1", "answer": "NYC"}]
    row = {"id": "2hop__1_2", "question": "Where?", "answer": "NYC", "answer_aliases": ["New York", "NYC"]}
    file = write(
        tmp_path / "musique_ans_v1.0_dev.jsonl", {**row, "question_decomposition": steps, "answerable": True}
    )
    (task,) = load_dataset("musique", tmp_path).tasks
    assert task.answers == ("NYC", "New York")
    assert task.data == {"hops": 2, "decomposition": tuple(steps)}
    write(file, {**row, "question_decomposition": steps, "answerable": False})
    assert "unanswerable" in refused(file, "musique")


def test_nq_ids_come_from_the_question_so_a_subset_keeps_them(tmp_path: Path) -> None:
    rows = [{"question": "who one", "answer": ["A"]}, {"question": "who two", "answer": ["B", "C"]}]
    whole = load_dataset("nq", write(tmp_path / "NQ-open.dev.jsonl", *rows))
    part = load_dataset("nq", write(tmp_path / "part.jsonl", rows[1]))
    assert whole.split == "dev"
    assert whole.tasks[1].id == part.tasks[0].id != whole.tasks[0].id
    assert whole.tasks[1].answers == ("B", "C")


def test_the_oracle_passages_are_supporting_documents(tmp_path: Path) -> None:
    write(
        tmp_path / "nq_open_oracle.jsonl", {"id": "o", "question": "who", "answers": ["A"], "gold": ["474"]}
    )
    (task,) = load_dataset("nq_oracle", tmp_path).tasks
    assert task.data == {"supporting_ids": ("474",), "cluster": "474"}


def test_squad_is_unnested_and_paragraphs_are_clusters(tmp_path: Path) -> None:
    def qa(id: str, *texts: str) -> dict[str, Any]:
        return {"id": id, "question": "Q?", "answers": [{"text": text, "answer_start": 0} for text in texts]}

    paragraphs = [
        {"context": "c", "qas": [qa("s1", "x", "x"), qa("s2", "y")]},
        {"context": "d", "qas": [qa("s3", "z")]},
    ]
    whole = {"version": "1.1", "data": [{"title": "T", "paragraphs": paragraphs}]}
    file = tmp_path / "xquad_en.json"
    file.write_text(json.dumps(whole))
    tasks = load_dataset("squad", tmp_path).tasks
    assert [(task.id, task.answers, task.data["cluster"]) for task in tasks] == [
        ("s1", ("x",), "0"),
        ("s2", ("y",), "0"),
        ("s3", ("z",), "1"),
    ]
    paragraphs[1]["qas"] = [qa("s3")]
    file.write_text(json.dumps(whole))
    assert file.name in refused(file, "squad")


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ('"What play is about ""star-crossed lovers""?"', 'What play is about "star-crossed lovers"?'),
        ('"""The Great Gate"" and ""Catacombs"" are what?"', '"The Great Gate" and "Catacombs" are what?'),
        ('Who sang ""Sing""?', 'Who sang "Sing"?'),
        ('"You plonka" and "Next year" are catchphrases', '"You plonka" and "Next year" are catchphrases'),
        ('"Yesterday"', '"Yesterday"'),
    ],
)
def test_quotes_doubled_by_csv_are_undone(left: str, right: str) -> None:
    assert unescape_quotes(left) == right


def test_triviaqa_undoes_quotes_in_questions_and_answers(tmp_path: Path) -> None:
    row = {"id": "t", "question": '"Who wrote ""It""?"', "answers": ['"""King"" S."', '"King" S.']}
    write(tmp_path / "triviaqa_dpr_test.jsonl", row)
    (task,) = load_dataset("triviaqa", tmp_path).tasks
    assert (task.question, task.answers) == ('Who wrote "It"?', ('"King" S.',))


def test_popqa_keeps_its_popularity(tmp_path: Path) -> None:
    write(tmp_path / "popqa.jsonl", {**ROW, "metadata": {"prop": "composer", "s_pop": 1381}})
    (task,) = load_dataset("popqa", tmp_path).tasks
    assert task.data == {"prop": "composer", "s_pop": 1381}


def test_frames_takes_links_and_kinds(tmp_path: Path) -> None:
    row = {
        "id": "1",
        "Question": "Q?",
        "Answer": "37th",
        "answer": ["37th"],
        "reasoning_types": "Tabular | Temporal",
    }
    write(tmp_path / "frames.json", {**row, "wikipedia_link_1": "https://a", "wikipedia_link_2": ""})
    (task,) = load_dataset("frames", tmp_path).tasks
    assert task.answers == ("37th",)
    assert task.data == {"wiki_links": ("https://a",), "reasoning_types": ("Tabular", "Temporal")}


def test_a_fictional_world_declares_its_split(tmp_path: Path) -> None:
    write(
        tmp_path / "questions.jsonl",
        {"id": "q", "question": "Who?", "answers": ["Zo"], "supporting_ids": ["d"]},
    )
    write(tmp_path / "corpus.jsonl", {"id": "d", "title": "Zo", "text": "Zo."})
    assert load_dataset("fictional", tmp_path).split == ""
    (tmp_path / "world.json").write_text('{"config": {"split": "train"}}')
    found = load_dataset("fictional", tmp_path)
    assert (found.split, found.tasks[0].split) == ("train", "train")
    assert found.corpus == tmp_path / "corpus.jsonl"
    with pytest.raises(DatasetError, match="'test'"):
        load_dataset("fictional", tmp_path, split="test")
    (tmp_path / "world.json").write_text("{}")
    assert "world.json" in refused(tmp_path, "fictional")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({**ROW, "golden_answers": []}, "no answers"),
        ({**ROW, "golden_answers": ""}, "no answers"),
        ({**ROW, "golden_answers": None}, "null"),
        ({**ROW, "golden_answers": ["Ann", None]}, "null"),
        ({**ROW, "golden_answers": [["Ann"]]}, "list inside the list"),
        ({**ROW, "golden_answers": [True]}, "True is no text"),
        ({**ROW, "golden_answers": {"text": "Ann"}}, "is no text"),
        ({**ROW, "golden_answers": [" "]}, "blank"),
        ({**ROW, "question": " "}, "question is empty"),
        ({**ROW, "question": ["Who?"]}, "question must be text"),
        ({**ROW, "id": True}, "id must be text"),
        ({**ROW, "id": "b", "supporting_ids": "d1"}, "supporting_ids must be a list"),
        ({**ROW, "id": "b", "supporting_ids": [1]}, "supporting_ids must be a list"),
        ({**ROW, "id": "b", "metadata": ["x"]}, "metadata must be an object"),
        ({"id": "b", "golden_answers": ["Ann"]}, "no field 'question'"),
        ({"id": "b", "question": "Who?"}, "no field 'golden_answers' or 'answers' or 'answer'"),
        (ROW, "'a' occurs twice"),
        (["a"], "must be a JSON object"),
    ],
)
def test_what_cannot_be_scored_is_refused_with_its_line(tmp_path: Path, row: Any, reason: str) -> None:
    sentence = refused(write(tmp_path / "mine.jsonl", ROW, row))
    assert reason in sentence
    assert "mine.jsonl, line 2" in sentence


def test_a_list_where_one_answer_belongs_is_refused(tmp_path: Path) -> None:
    row = {"_id": "h", "question": "Who?", "answer": ["Ann"]}
    assert "record 1: answer" in refused(write(tmp_path / "dev.json", row), "hotpotqa")


def test_wrong_nesting_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "xquad_en.json", {"data": {"paragraphs": []}})
    assert "data" in refused(file, "squad")


def test_corrupt_files_are_refused(tmp_path: Path) -> None:
    bad_line = tmp_path / "line.jsonl"
    bad_line.write_text(json.dumps(ROW) + "\n{broken\n")
    assert "line.jsonl, line 2" in refused(bad_line)
    bad_array = tmp_path / "array.json"
    bad_array.write_text("[{}")
    assert bad_array.name in refused(bad_array)
    cut = write(tmp_path / "cut.jsonl.gz", *({**ROW, "id": str(n)} for n in range(200)))
    cut.write_bytes(cut.read_bytes()[:-12])
    assert cut.name in refused(cut)
    plain = tmp_path / "plain.jsonl.gz"
    plain.write_text("not compressed")
    assert plain.name in refused(plain)
    latin = tmp_path / "latin.jsonl"
    latin.write_bytes('{"id": "é"}'.encode("latin-1"))
    assert latin.name in refused(latin)


def test_an_empty_set_is_refused(tmp_path: Path) -> None:
    empty = tmp_path / "mine.jsonl"
    empty.write_text("\n\n")
    assert empty.name in refused(empty)


def test_corrupt_judgements_are_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "mine.jsonl", ROW)
    (tmp_path / "mine.qrels.tsv").write_text("a\td1\t1\na d2 1\n")
    assert "mine.qrels.tsv, line 2" in refused(file)


def test_unknown_names_show_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match=r"'hotpot'.*'hotpotqa'"):
        load_dataset("hotpot")
    with pytest.raises(UnknownName, match=r"'devv'.*'dev'"):
        load_dataset("hotpotqa", tmp_path, split="devv")


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_a_set_is_found_by_its_name_elsewhere(name: str) -> None:
    assert OTHER_NAMES[name] in SETS
    for load in (load_dataset, lambda name: open_source(SourceConfig(dataset=name))):
        with pytest.raises(UnknownName, match=f"Did you mean '{OTHER_NAMES[name]}'"):
            load(name)


def test_a_path_that_leads_nowhere_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "absent" in refused(tmp_path / "absent", "musique")
    assert "musique" in refused(tmp_path, "musique")
    monkeypatch.delenv("AGENTENV_DATA", raising=False)
    with pytest.raises(DatasetError, match=r"musique.*AGENTENV_DATA"):
        load_dataset("musique")


def test_the_file_its_folder_its_parent_and_the_variable_are_one_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "bamboogle" / "bamboogle.jsonl", ROW)
    monkeypatch.setenv("AGENTENV_DATA", str(tmp_path))
    found = [load_dataset("bamboogle", path) for path in (file, file.parent, tmp_path, None)]
    assert found == [found[0]] * 4
    assert found[0].source == file
    assert found[0].split == "test"


def test_two_candidates_are_not_guessed_between(tmp_path: Path) -> None:
    for name in ("hotpot_dev_distractor_v1.json", "hotpot_dev_fullwiki_v1.json"):
        write(tmp_path / name, {"_id": "h", "question": "Who?", "answer": "Ann"})
    assert "hotpot_dev_fullwiki_v1.json" in refused(tmp_path, "hotpotqa")
    assert len(load_dataset("hotpotqa", tmp_path / "hotpot_dev_fullwiki_v1.json").tasks) == 1


def test_a_split_is_chosen_by_name(tmp_path: Path) -> None:
    for split in ("dev", "train"):
        write(tmp_path / f"hotpotqa_{split}_1.json", {"_id": split, "question": "Who?", "answer": "Ann"})
    assert load_dataset("hotpotqa", tmp_path).tasks[0].id == "dev"
    train = load_dataset("hotpotqa", tmp_path, split="train")
    assert (train.tasks[0].id, train.tasks[0].split) == ("train", "train")
    assert load_dataset("hotpotqa", tmp_path / "hotpotqa_train_1.json").split == "train"


def test_a_limit_is_a_seeded_sample_in_file_order(tmp_path: Path) -> None:
    file = write(tmp_path / "mine.jsonl", *({**ROW, "id": n} for n in range(100)))
    first, again, other = (load_dataset("jsonl", file, limit=10, seed=seed).tasks for seed in (1, 1, 2))
    rows = [int(task.id) for task in first]
    assert first == again != other
    assert len(rows) == 10
    assert rows == sorted(rows) != list(range(10))
    assert len(load_dataset("jsonl", file, limit=1000).tasks) == 100
    with pytest.raises(ConfigurationError, match=r"\b0\b"):
        load_dataset("jsonl", file, limit=0)


def test_every_set_names_a_reader_and_a_split() -> None:
    for name, kind in SETS.items():
        assert kind.files, name
        assert callable(kind.read), name
