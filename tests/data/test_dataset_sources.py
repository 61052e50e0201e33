"""Official files of the open sets, encrypted questions, every malformed record at once, and the hub.

The hub is stood in for by local folders in its layout, read by the library ``datasets`` itself in a process
of its own without network.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentenv.core.scoring.scorers import SCORERS
from agentenv.data.datasets import SETS, load_dataset
from agentenv.data.hub import Hub, hub_source, is_hub
from agentenv.data.sealed import seal, unseal
from agentenv.errors import DatasetError

ROOT = Path(__file__).resolve().parents[2]


def refused(name: str, path: Path) -> list[str]:
    with pytest.raises(DatasetError) as error:
        load_dataset(name, path)
    return str(error.value).split("\n")


def test_the_cipher_is_sha256_of_the_canary_repeated() -> None:
    import base64
    import hashlib

    key = hashlib.sha256(b"canary").digest()
    text = "Zürich " * 9  # 72 bytes: the key is used three times
    data = text.encode()
    wanted = bytes(byte ^ key[place % 32] for place, byte in enumerate(data))
    assert base64.b64decode(seal(text, "canary")) == wanted
    assert unseal(seal(text, "canary"), "canary") == text
    for cipher, canary in ((seal(text, "canary"), "another"), ("no base64!", "canary")):
        with pytest.raises(ValueError, match="canary"):
            unseal(cipher, canary)


def browsecomp(path: Path, *rows: tuple[str, str, str]) -> Path:
    lines = ["problem,answer,problem_topic,canary"]
    lines += [f"{seal(q, c)},{seal(a, c)},Made up,{c}" for q, a, c in rows]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_browsecomp_is_decrypted_in_memory_and_marked(tmp_path: Path) -> None:
    file = browsecomp(
        tmp_path / "browse_comp_test_set.csv", ("Who made it?", "Zo Tarn", "c-1"), ("Where?", "Ödön", "c-2")
    )
    found = load_dataset("browsecomp", tmp_path)
    assert [(t.question, t.answers) for t in found.tasks] == [
        ("Who made it?", ("Zo Tarn",)),
        ("Where?", ("Ödön",)),
    ]
    assert found.tasks[0].data == {"canary": "c-1", "topic": "Made up"}
    assert found.tasks[0].id != found.tasks[1].id
    assert "Zo Tarn" not in repr(found)
    assert b"Zo Tarn" not in file.read_bytes()


def test_a_wrong_canary_is_said_without_the_text(tmp_path: Path) -> None:
    file = browsecomp(
        tmp_path / "browsecomp.csv", ("Who made it all, and when?", "Zo Tarn of Velandra", "c-1")
    )
    file.write_text(file.read_text().replace(",c-1", ",c-9"))
    (error,) = refused("browsecomp", file)
    assert str(file) in error
    assert "line 2" in error
    assert "Velandra" not in error


def test_simpleqa_reads_its_metadata(tmp_path: Path) -> None:
    metadata = "{'topic': 'Art', 'answer_type': 'Person', 'urls': ['https://a', 'https://b']}"
    (tmp_path / "simple_qa_test_set.csv").write_text(
        f'metadata,problem,answer\n"{metadata}","Who, in 1901, won?",Ann Lee\n'
    )
    (task,) = load_dataset("simpleqa", tmp_path).tasks
    assert (task.question, task.answers) == ("Who, in 1901, won?", ("Ann Lee",))
    assert task.data == {"topic": "Art", "answer_type": "Person", "urls": ["https://a", "https://b"]}
    bad = tmp_path / "bad.csv"
    for written in ("open('x')", "{[]: 1}", "{{}: 1}"):  # a call, and keys that cannot be any
        bad.write_text(f'metadata,problem,answer\n"{written}",Who?,Ann\n')
        assert "line 2: metadata" in refused("simpleqa", bad)[0]


def test_popqa_takes_the_authors_table(tmp_path: Path) -> None:
    head = "id\tsubj\tprop\tobj\ts_pop\to_pop\tquestion\tpossible_answers"
    row = '42\tGeorge Rankin\toccupation\tpolitician\t142\t25692\tWhat is it?\t"[""politician"", ""pol""]"'
    (tmp_path / "popqa.tsv").write_text(f"{head}\n{row}\n")
    (task,) = load_dataset("popqa", tmp_path).tasks
    assert (task.id, task.answers) == ("42", ("politician", "pol"))
    assert task.data["s_pop"] == 142
    bad = tmp_path / "bad.tsv"
    bad.write_text(f"{head}\n{row.replace('[', '')}\n")
    assert "line 2: possible_answers" in refused("popqa", bad)[0]


def test_triviaqa_takes_every_name_of_an_answer(tmp_path: Path) -> None:
    answer = {
        "Value": "Sunset Boulevard",
        "Aliases": ["Sunset Blvd", "Sunset Boulevard", "Spider-Man"],
        "NormalizedAliases": ["sunset blvd", "spider man"],
        "HumanAnswers": ["sunset bd."],
    }
    item = {"Question": "Which musical?", "QuestionId": "tc_33", "Answer": answer, "EntityPages": []}
    (tmp_path / "unfiltered-web-dev.json").write_text(json.dumps({"Data": [item], "Domain": "Web"}))
    found = load_dataset("triviaqa", tmp_path, split="dev")
    (task,) = found.tasks
    assert task.id == "tc_33"
    assert task.answers == ("Sunset Boulevard", "Sunset Blvd", "Spider-Man", "sunset bd.")
    # The official scorer compares with NormalizedAliases; em_triviaqa makes the same of the aliases.
    assert SCORERS["em_triviaqa"]("spider man", task.answers).value == 1.0
    del item["Answer"]
    (tmp_path / "unfiltered-web-dev.json").write_text(json.dumps({"Data": [item]}))
    assert "'Answer'" in refused("triviaqa", tmp_path / "unfiltered-web-dev.json")[0]


def test_bamboogle_and_frames_take_their_authors_tables(tmp_path: Path) -> None:
    (tmp_path / "bamboogle.csv").write_text("Question,Answer\nWho was president?,James Madison\n")
    (task,) = load_dataset("bamboogle", tmp_path).tasks
    assert (task.question, task.answers) == ("Who was president?", ("James Madison",))
    (tmp_path / "frames.tsv").write_text(
        "\tPrompt\tAnswer\twikipedia_link_1\treasoning_types\n0\tHow many?\t37\thttps://a\tNumerical reasoning\n"
    )
    (frames,) = load_dataset("frames", tmp_path).tasks
    assert (frames.question, frames.answers) == ("How many?", ("37",))
    assert frames.data == {"wiki_links": ("https://a",), "reasoning_types": ("Numerical reasoning",)}


def test_every_malformed_record_has_its_sentence_with_file_and_line(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    good = json.dumps({"id": "a", "question": "Who?", "answers": ["Ann"]})
    lines = [
        good,
        "{broken",
        json.dumps({"id": "b", "question": "", "answers": ["x"]}),
        json.dumps({"id": "c", "question": "Who?", "answers": [["x"]]}),
        good,
        json.dumps({"id": "d", "question": "Who?", "answers": [None]}),
        json.dumps({"id": "e", "question": "Who?"}),
        json.dumps([1]),
    ]
    file.write_text("\n".join(lines))
    sentences = refused("jsonl", file)
    assert len(sentences) == 7
    at = {line: next(s for s in sentences if s.startswith(f"{file}, line {line}")) for line in range(2, 9)}
    assert "no valid JSON" in at[2]
    assert "question is empty" in at[3]
    assert "a list inside the list" in at[4]
    assert "'a' occurs twice" in at[5]
    assert "null" in at[6]
    assert "has no field" in at[7]
    assert "must be a JSON object" in at[8]


def test_many_malformed_records_are_counted_and_not_all_listed(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text("[]\n" * 50)
    sentences = refused("jsonl", file)
    assert len(sentences) == 21
    assert "30" in sentences[-1]


def test_a_table_says_which_row_has_other_columns(tmp_path: Path) -> None:
    file = tmp_path / "bamboogle.csv"
    file.write_text('Question,Answer\n"Who,\nthen?",Ann\nWho?,Ann,Bea\n')
    (told,) = refused("bamboogle", file)
    assert told.startswith(f"{file}, line 4 has 3 columns and the head line 2")
    assert "quotes" in told
    file.write_text("Question,Answer\nWho?\n")
    (told,) = refused("bamboogle", file)
    assert told.startswith(f"{file}, line 2 has 1 column and the head line 2")
    assert "quotes" not in told  # nothing is quoted wrongly where a cell is missing
    file.write_text('Question,Answer\n"open,Ann\n')
    assert file.name in refused("bamboogle", file)[0]


def test_a_place_on_the_hub_is_told_from_a_path() -> None:
    own = Hub("owner/own", "config", {"dev": "test"})
    assert is_hub(Path("hub:")) is is_hub(Path("hub:owner/name")) is True
    assert is_hub(None) is is_hub(Path("hub")) is False
    assert hub_source(Path("hub:"), own, "nq") == own
    assert hub_source(Path("hub:owner/own"), own, "nq") == own
    assert hub_source(Path("hub:other/name"), own, "nq") == Hub("other/name", splits={"dev": "test"})
    with pytest.raises(DatasetError, match="jsonl"):
        hub_source(Path("hub:"), None, "jsonl")


@pytest.mark.parametrize(
    "name", [name for name, kind in SETS.items() if kind.hub and "FlashRAG" in kind.hub.repository]
)
def test_a_set_reads_the_rows_of_the_repository_that_it_names(tmp_path: Path, name: str) -> None:
    """FlashRAG has one layout for all of its sets, which is not that of their authors."""
    row = {
        "id": "dev_0",
        "question": "Who?",
        "golden_answers": ["Ann", "Anna"],
        "metadata": {"type": "bridge"},
    }
    (tmp_path / "dev.jsonl").write_text(json.dumps(row))
    (task,) = load_dataset(name, tmp_path / "dev.jsonl").tasks
    assert (task.id, task.question, task.answers) == ("dev_0", "Who?", ("Ann", "Anna"))
    assert task.data["type"] == "bridge"


def test_nq_takes_the_files_of_dpr(tmp_path: Path) -> None:
    row = {
        "dataset": "nq_dev_psgs_w100",
        "question": "who sings",
        "answers": ["Linda Davis"],
        "positive_ctxs": [],
    }
    (tmp_path / "nq-dev.json").write_text(json.dumps([row]))
    (task,) = load_dataset("nq", tmp_path / "nq-dev.json").tasks
    assert (task.question, task.answers) == ("who sings", ("Linda Davis",))


def test_a_withheld_answer_of_triviaqa_is_none(tmp_path: Path) -> None:
    """The test split on the hub has ``<unk>`` for every answer; each prediction would be wrong without a word."""
    row = {"question": "Which?", "question_id": "tc_1", "answer": {"value": "<unk>", "aliases": []}}
    (tmp_path / "test.jsonl").write_text(json.dumps(row))
    (said,) = refused("triviaqa", tmp_path / "test.jsonl")
    assert "'<unk>'" in said
    assert "line 1" in said


HUB_ROWS: dict[str, list[dict[str, Any]]] = {
    "hotpotqa": [
        {
            "id": "h",
            "question": "Who?",
            "answer": "Ann",
            "type": "bridge",
            "level": "hard",
            "supporting_facts": {"title": ["A", "B"], "sent_id": [0, 2]},
            "context": {"title": ["A"], "sentences": [["s"]]},
        }
    ],
    "nq": [{"question": "who", "answer": ["A", "B"]}],
    "squad": [
        {
            "id": "s",
            "title": "T",
            "context": "c",
            "question": "Q?",
            "answers": {"text": ["x", "x"], "answer_start": [0, 0]},
        }
    ],
    "triviaqa": [
        {
            "question": "Which?",
            "question_id": "tc_1",
            "answer": {"value": "V", "aliases": ["W"], "normalized_aliases": ["v", "w"]},
        }
    ],
    "musique": [{"id": "m", "question": "Q?", "golden_answers": ["G"], "metadata": {"hop": 2}}],
    "browsecomp": [
        {"problem": seal("Q?", "c"), "answer": seal("A", "c"), "problem_topic": "t", "canary": "c"}
    ],
}

SCRIPT = """
import json, sys
from pathlib import Path
from agentenv.data.datasets import SETS, load_dataset
from agentenv.errors import DatasetError
out = {}
for name in json.loads(sys.argv[2]):
    found = load_dataset(name, Path("hub:" + sys.argv[1] + "/" + name), split="test")
    out[name] = [[task.id, task.question, task.answers, dict(task.data)] for task in found.tasks]
for name, place in (("absent", "hub:nobody/nothing"), ("bad", "hub:" + sys.argv[1] + "/bad")):
    try:
        load_dataset("nq", Path(place), split="test")
    except DatasetError as error:
        out[name] = str(error)
print(json.dumps(out))
"""


def test_sets_come_from_the_hub_and_its_absence_is_one_sentence(tmp_path: Path) -> None:
    for name, rows in {**HUB_ROWS, "bad": [{"question": "who", "answer": [""]}]}.items():
        (tmp_path / "hub" / name).mkdir(parents=True)
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / "hub" / name / "test.jsonl").write_text(text)
    environment = {
        **os.environ,
        "HF_HOME": str(tmp_path / "cache"),
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "hub"), json.dumps(list(HUB_ROWS))],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # no progress bars, no log of retries
    found = json.loads(done.stdout)
    ((_, question, answers, data),) = found["hotpotqa"]
    assert (question, answers) == ("Who?", ["Ann"])
    assert data["supporting_facts"] == [["A", 0], ["B", 2]]
    assert "context" not in data
    assert found["nq"][0][1:3] == ["who", ["A", "B"]]
    assert found["squad"][0][2] == ["x"]
    assert found["squad"][0][3]["cluster"].startswith("paragraph_")
    assert found["triviaqa"] == [["tc_1", "Which?", ["V", "W"], {}]]
    assert found["musique"] == [["m", "Q?", ["G"], {"hop": 2}]]
    assert found["browsecomp"][0][1:3] == ["Q?", ["A"]]
    assert "nobody/nothing" in found["absent"]
    assert "\n" not in found["absent"]
    assert "row 0: the gold answer is blank" in found["bad"]
