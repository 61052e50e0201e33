"""Facts of passages: by rule, from a file, and by the command."""

import json
from pathlib import Path
from typing import Any

import pytest

from agentenv.cli.main import main
from agentenv.core.types import Document
from agentenv.data.synthesis.facts import Fact, facts_line, facts_of_titles, read_facts
from agentenv.errors import DatasetError
from agentenv.policies.fake_endpoint import Answer, FakeEndpoint

DOCUMENTS = [
    Document("1", "Halvik", "Halvik was built by Ada Stone. It is old."),
    Document("2", "Ada Stone", "She left for Ulm."),
]


def test_a_title_in_a_sentence_of_another_page_is_a_fact() -> None:
    assert list(facts_of_titles(DOCUMENTS)) == [Fact("1", "Halvik", "was built by", "Ada Stone")]


def test_facts_come_back_as_they_were_written(tmp_path: Path) -> None:
    facts = [Fact("1", "Halvik", "was built by", "Ada Stone"), Fact("1", "Halvik", "is", "alt")]
    path = tmp_path / "facts.jsonl"
    path.write_text(facts_line(DOCUMENTS[0], facts) + facts_line(DOCUMENTS[1], []))
    assert read_facts(path) == facts


@pytest.mark.parametrize("bad", ["no", None, [["a", "b"]], [["a", "b", " "]], [["a", "b", 3]]], ids=repr)
def test_what_is_no_triple_is_named(tmp_path: Path, bad: Any) -> None:
    path = tmp_path / "facts.jsonl"
    path.write_text(json.dumps({"id": "1", "facts": bad}) + "\n")
    with pytest.raises(DatasetError, match="line 1"):
        read_facts(path)


def model(body: Any) -> Answer:
    """States a fact of the first passage, with a line that is none, and nothing that can be read of the second."""
    asked = body["messages"][0]["content"]
    lines = ["Halvik | was built by | Ada Stone", "Halvik is old", "Halvik | was built by | Ada Stone"]
    return Answer(json.dumps({"facts": lines}) if "titled Halvik" in asked else "no idea")


def test_the_command_writes_what_a_model_finds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus, out = tmp_path / "corpus.jsonl", tmp_path / "facts.jsonl"
    corpus.write_text(
        "".join(json.dumps({"id": d.id, "title": d.title, "text": d.text}) + "\n" for d in DOCUMENTS)
    )
    with FakeEndpoint(model) as server:
        words = ["retriever", "facts", str(corpus), "--editor", f"openai:m@{server.url}", "--out", str(out)]
        assert main(words) == 0
        assert read_facts(out) == [Fact("1", "Halvik", "was built by", "Ada Stone")]
        assert "failed: 1 passages" in capsys.readouterr().out
        assert main(words) != 0  # the file is there
    assert str(out) in capsys.readouterr().err


def test_the_command_writes_nothing_where_there_is_no_fact(tmp_path: Path) -> None:
    corpus, out = tmp_path / "corpus.jsonl", tmp_path / "facts.jsonl"
    corpus.write_text(json.dumps({"id": "2", "title": "Ulm", "text": "A town."}) + "\n")
    with FakeEndpoint(model) as server:
        words = ["retriever", "facts", str(corpus), "--editor", f"openai:m@{server.url}", "--out", str(out)]
        assert main(words) != 0
    assert not out.exists()
