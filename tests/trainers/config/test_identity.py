"""What belongs to a run beside its configuration: the models that options of its parts name."""

from pathlib import Path

import pytest

from agentenv.trainers.config.config_files import parse_config
from agentenv.trainers.config.identity import named_files, named_policies


@pytest.mark.parametrize("spec", ["{folder}", "encoder:bge:{folder}"])
def test_the_folder_of_a_reranker_belongs_to_a_run(tmp_path: Path, spec: str) -> None:
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"first")
    options = {"reranker": spec.format(folder=tmp_path)}
    config = parse_config({"env": {"id": "agentenv/JudgedSearch-v0", "options": options}}, "a test")
    before = named_files(config)
    assert list(before) == ["contents of env.options.reranker"]
    weights.write_bytes(b"other")
    assert named_files(config) != before


def test_a_folder_without_a_model_and_a_word_do_not_belong_to_it(tmp_path: Path) -> None:
    for value in (str(tmp_path), "overlap"):
        options = {"reranker": value}
        config = parse_config({"env": {"id": "agentenv/JudgedSearch-v0", "options": options}}, "a test")
        assert named_files(config) == {}


TEXTS = {
    "here": ".",
    "here with a slash": "./",
    "here behind a colon": "sep:./",
    "a prompt": "Answer. " * 60,
    "letters of two bytes": "é" * 130,
    "a long path": "a/" * 3000,
    "a colon at the end": "Question: {question}\nAnswer:",
    "a folder": "data",
    "a file": "hf",
    "zero": "\0",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_text_names_no_file(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the current folder is that of a model, and where a file is called as the word is by chance."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    (tmp_path / "data").mkdir()
    (tmp_path / "hf").write_text("x", encoding="utf-8")
    options = {"reranker": text}
    config = parse_config({"env": {"id": "agentenv/JudgedSearch-v0", "options": options}}, "a test")
    assert named_files(config) == {}


def test_a_text_within_a_list_or_a_table_counts(tmp_path: Path) -> None:
    """Agents of a planner are tables, and their corpora may be lists."""
    facts = tmp_path / "facts.jsonl"
    facts.write_text("{}", encoding="utf-8")
    options = {"agents": {"local": {"facts": str(facts)}, "web": {"tools": ["a", str(facts)]}}}
    config = parse_config({"env": {"id": "agentenv/HierarchicalSearch-v0", "options": options}}, "a test")
    keys = ["local.facts", "web.tools.1"]
    assert list(named_files(config)) == [f"contents of env.options.agents.{key}" for key in keys]


def test_a_colon_in_the_name_of_a_file_ends_nothing(tmp_path: Path) -> None:
    named = tmp_path / "scores:first.json"
    named.write_text("{}", encoding="utf-8")
    config = parse_config(
        {"env": {"id": "agentenv/JudgedSearch-v0", "options": {"reranker": str(named)}}}, "a test"
    )
    assert list(named_files(config)) == ["contents of env.options.reranker"]


def test_a_policy_is_left_to_the_digests_of_policies(tmp_path: Path) -> None:
    """Those leave out the records of how it was made."""
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    config = parse_config(
        {"env": {"id": "agentenv/JudgedSearch-v0", "options": {"reranker": f"hf:{tmp_path}"}}}, "a test"
    )
    assert named_files(config) == {}
    assert list(named_policies(config)) == ["env.options.reranker"]
