"""Folders that hold half of a policy are refused with the half that is missing."""

import re
from pathlib import Path
from typing import Any

import pytest

from agentenv.errors import CheckpointMismatch, UnknownName
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


def test_a_folder_that_is_named_without_its_kind_and_a_run_say_what_to_write(tmp_path: Path) -> None:
    (tmp_path / "policy").mkdir()
    with pytest.raises(UnknownName, match=re.escape(f"'hf:{tmp_path}'")):
        make_policy(str(tmp_path))
    with pytest.raises(CheckpointMismatch, match=re.escape(str(tmp_path / "policy"))):
        make_policy(f"hf:{tmp_path}")
