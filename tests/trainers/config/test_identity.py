"""What belongs to a run beside its configuration: the models that options of its parts name."""

from pathlib import Path

import pytest

from agentenv.trainers.config.config_files import parse_config
from agentenv.trainers.config.identity import named_files


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
