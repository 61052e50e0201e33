"""Examples of a simulator on the disk: what is written is read again, whatever its text holds."""

from pathlib import Path

import pytest

from agentenv.errors import DatasetError
from agentenv.retrievers.simulation.simulation_data import Example, read_examples, write_examples


def test_examples_are_read_as_they_were_written(tmp_path: Path) -> None:
    """Texts of the web hold separators of lines of their own, which JSON leaves as they are."""
    odd = "one\u2028two\u2029three\x85four\nfive"
    examples = [
        Example(f"query {n}", "Who?", odd, (odd,), (("title", odd),), ((odd, "text"),)) for n in range(2)
    ]
    assert write_examples(tmp_path / "examples.jsonl", examples) == 2
    assert read_examples(tmp_path / "examples.jsonl") == examples


def test_a_file_without_examples_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n", encoding="utf-8")
    with pytest.raises(DatasetError, match="no examples"):
        read_examples(tmp_path / "empty.jsonl")
