"""Files of HumanEval and MBPP that are damaged: one sentence that names the line."""

import gzip
from pathlib import Path
from typing import Any

import pytest

from agentenv.data.code_sets import load_code_set
from agentenv.errors import DatasetError

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
    ],
    # Compressed bytes hold the time of day, and the names of tests must be the same in every process.
    ids=["nested", "half escape", "no id", "list", "no prompt", "no text", "cut off", "no gzip"],
)
def test_a_damaged_file_is_one_sentence(content: bytes, named: str, tmp_path: Path) -> None:
    (tmp_path / "HumanEval.jsonl.gz").write_bytes(content)
    executor: Any = None  # nothing is run before the whole file is read
    with pytest.raises(DatasetError, match=named):
        load_code_set("humaneval", tmp_path, executor, split="test")
