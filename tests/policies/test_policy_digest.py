"""The digest of a policy: all files that decide what it does count, and nothing that only tells how it was made."""

import json
from pathlib import Path

import pytest

from agentenv.core.io.model_files import ADAPTER_CONFIG
from agentenv.core.io.weight_digests import DIGESTS
from agentenv.policies.lora import ADAPTER_WEIGHTS
from agentenv.policies.policy_spec import START_RECORD, WARMSTART_RECORD, policy_digest

DECIDING = (
    "model.safetensors",
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "episode.json",
    "simulator.json",
    "modeling_own.py",
    f"earlier/{START_RECORD}",  # only the record of this folder itself is known to be one
)
TELLING = ("README.md", WARMSTART_RECORD, START_RECORD, DIGESTS)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a policy that was made in 12 minutes."""
    folder = tmp_path / "policy"
    for name in (*DECIDING, *TELLING):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps({"minutes": 12.5}))
    return folder


@pytest.mark.parametrize("name", TELLING)
def test_a_policy_that_took_other_minutes_has_the_same_digest(folder: Path, name: str) -> None:
    before = policy_digest(f"hf:{folder}")
    (folder / name).write_text(json.dumps({"minutes": 47.1}))
    assert policy_digest(f"hf:{folder}") == before
    (folder / name).unlink()
    assert policy_digest(f"hf:{folder}") == before


@pytest.mark.parametrize("name", DECIDING)
def test_a_policy_with_another_file_has_another_digest(folder: Path, name: str) -> None:
    before = policy_digest(f"hf:{folder}")
    (folder / name).write_text(json.dumps({"minutes": 47.1}))
    changed = policy_digest(f"hf:{folder}")
    (folder / name).unlink()
    assert len({before, changed, policy_digest(f"hf:{folder}")}) == 3


def test_of_an_adapter_the_weights_count_of_its_base_and_of_itself_and_no_record(
    folder: Path, tmp_path: Path
) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    settings = {"base_model_name_or_path": str(folder), "peft_type": "LORA", "target_modules": ["q_proj"]}
    (adapter / ADAPTER_CONFIG).write_text(json.dumps(settings))
    (adapter / ADAPTER_WEIGHTS).write_bytes(b"changes")
    found = [policy_digest(f"hf:{adapter}")]
    for place in (folder, adapter):
        (place / WARMSTART_RECORD).write_text("other minutes")
    assert policy_digest(f"hf:{adapter}") == found[0]
    (folder / "model.safetensors").write_bytes(b"other weights")
    found.append(policy_digest(f"hf:{adapter}"))
    (adapter / ADAPTER_WEIGHTS).write_bytes(b"other changes")
    found.append(policy_digest(f"hf:{adapter}"))
    assert len(set(found)) == 3
