"""Files of HumanEval and MBPP that are damaged: one sentence that names the line."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from agentenv.data.code_sets import load_code_set
from agentenv.errors import DatasetError
from agentenv.sandbox.fakes import FakeExecutor

GOOD = b'{"task_id": "HumanEval/0"}\n'


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (gzip.compress(GOOD + b"[" * 100_000), "line 2"),
        (gzip.compress(GOOD + b'{"task_id": "HumanEval/1", "prompt": "\\ud83d"}\n'), "line 2"),
        (gzip.compress(GOOD + b"{}\n"), "task_id"),
        (gzip.compress(GOOD + b"[1]\n"), "line 2"),
        (gzip.compress(GOOD + b'{"task_id": "one"}\n'), "line 2"),
        (gzip.compress(GOOD + b"\xff\n"), "HumanEval.jsonl.gz"),
        (gzip.compress(GOOD * 1000)[:-9], "HumanEval.jsonl.gz"),
        (b"no gzip at all", "HumanEval.jsonl.gz"),
        (gzip.compress(GOOD * 2), "line 2"),
    ],
    # Compressed bytes hold the time of day, and the names of tests must be the same in every process.
    ids=["nested", "half escape", "no id", "list", "no prompt", "no text", "cut off", "no gzip", "twice"],
)
def test_a_damaged_file_is_one_sentence(content: bytes, named: str, tmp_path: Path) -> None:
    (tmp_path / "HumanEval.jsonl.gz").write_bytes(content)
    executor: Any = None  # nothing is run before the whole file is read
    with pytest.raises(DatasetError, match=named):
        load_code_set("humaneval", tmp_path, executor, split="test")


RECORD = {
    "task_id": "HumanEval/0",
    "prompt": "def f(x):\n",
    "entry_point": "f",
    "canonical_solution": "    return x\n",
    "test": "def check(candidate):\n    assert candidate(1) == 1\n",
}


@pytest.mark.parametrize("form", ["jsonl", "jsonl.gz", "json", "parquet"])
def test_a_set_is_read_in_any_form(form: str, tmp_path: Path) -> None:
    """Its authors' file, uncompressed, with a byte order mark and blank lines, and the hub's table."""
    path = tmp_path / f"HumanEval.{form}"
    if form == "parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pytest.importorskip("pyarrow").Table.from_pylist([RECORD]), path)
    else:
        content = json.dumps([RECORD] if form == "json" else RECORD)
        text = f"\ufeff{content}\r\n\r\n".encode()
        path.write_bytes(gzip.compress(text) if form.endswith("gz") else text)
    for place in (tmp_path, path):
        (task,) = load_code_set("humaneval", place, FakeExecutor()).tasks
        assert (task.id, task.data["function"]) == ("humaneval/0", "f")
