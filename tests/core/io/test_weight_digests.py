"""Digests beside weights: a changed bit is noticed in whole and sharded folders, and folders of others open as before."""

import json
from pathlib import Path

import pytest

from agentenv.core.io.model_files import check_model_files
from agentenv.core.io.weight_digests import DIGESTS, check_weight_digests, write_weight_digests
from agentenv.errors import CheckpointMismatch
from agentenv.policies.fakes import random_model
from agentenv.policies.hf import HFPolicy
from agentenv.policies.lora import write_model
from agentenv.policies.policy_spec import make_policy


def flip(path: Path, place: int = -1) -> None:
    """Changes one bit, and leaves size and name as they are."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


@pytest.fixture(params=[5.0, 1e-4], ids=["whole", "sharded"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    write_model(random_model(), tmp_path, shard_gib=request.param)
    (tmp_path / "README.md").write_text("a card")
    write_weight_digests(tmp_path)
    return tmp_path


def test_every_file_of_weights_is_listed_and_nothing_else(folder: Path) -> None:
    listed = json.loads((folder / DIGESTS).read_text())
    weights = {path.name for path in folder.iterdir() if ".safetensors" in path.name}
    assert set(listed) == weights
    assert len(weights) != 2
    (folder / "README.md").write_text("another card")
    check_weight_digests(folder)


def test_a_flipped_bit_in_any_file_of_weights_is_one_sentence(folder: Path) -> None:
    for name in json.loads((folder / DIGESTS).read_text()):
        check_model_files(folder)
        flip(folder / name)
        with pytest.raises(CheckpointMismatch, match="not what was written") as caught:
            check_model_files(folder)
        assert name in str(caught.value)
        flip(folder / name)
    check_model_files(folder)


def test_a_missing_file_of_weights_is_named(folder: Path) -> None:
    gone = max(path for path in folder.glob("*.safetensors"))
    gone.unlink()
    with pytest.raises(CheckpointMismatch, match=f"{gone.name} is gone"):
        check_weight_digests(folder)


@pytest.mark.parametrize(
    "content", ["", "[1]", "[[1, 2]]", "[]", "{", '{"model.safetensors": 1}', "3", "\x00"]
)
def test_digests_that_are_damaged_are_no_digests_that_fit(folder: Path, content: str) -> None:
    (folder / "model.safetensors").touch()
    (folder / DIGESTS).write_text(content)
    with pytest.raises(CheckpointMismatch, match=r"model\.safetensors|damaged"):
        check_weight_digests(folder)


def test_a_folder_of_another_program_is_believed(folder: Path) -> None:
    (folder / DIGESTS).unlink()
    flip(next(folder.glob("*.safetensors")))
    check_model_files(folder)


def test_names_outside_of_the_folder_are_not_read(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other") / "secret.safetensors"
    other.write_text("x")
    listed = json.loads((folder / DIGESTS).read_text())
    (folder / DIGESTS).write_text(json.dumps(listed | {str(other): "0" * 64}))
    with pytest.raises(CheckpointMismatch, match="is gone"):
        check_weight_digests(folder)


def test_a_policy_that_was_written_and_changed_is_not_opened(tmp_path: Path) -> None:
    policy = make_policy("tiny")
    write_model(policy.model, tmp_path)
    policy.tokenizer.save_pretrained(tmp_path)
    write_weight_digests(tmp_path)
    HFPolicy.load(tmp_path)
    flip(tmp_path / "model.safetensors", -1000)
    with pytest.raises(CheckpointMismatch, match=r"model\.safetensors is not what was written"):
        HFPolicy.load(tmp_path)
