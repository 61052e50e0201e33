"""Folders that hold half of a policy are refused with the half that is missing."""

from pathlib import Path
from typing import Any

import pytest

from agentenv.errors import CheckpointMismatch
from agentenv.policies.fakes import random_policy
from agentenv.policies.policy_spec import make_policy


@pytest.mark.parametrize("damaged", [False, True])
def test_a_folder_without_a_tokenizer_says_so(tmp_path: Path, damaged: bool) -> None:
    random_policy(str(tmp_path), ["some words"])
    policy: Any = make_policy(f"hf:{tmp_path}")
    assert policy.tokenizer.encode("some words")
    if damaged:
        (tmp_path / "tokenizer.json").write_text("{")
    else:
        for file in [*tmp_path.glob("*token*"), *tmp_path.glob("*.jinja")]:
            file.unlink()
    with pytest.raises(CheckpointMismatch, match="holds no tokenizer that can be loaded"):
        make_policy(f"hf:{tmp_path}")
