"""Folders that hold half of a policy are refused with the half that is missing; attention is that of the model."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from agentenv.errors import CheckpointMismatch, ConfigurationError, UnknownName
from agentenv.policies.compute import ComputeSettings
from agentenv.policies.fakes import random_policy
from agentenv.policies.policy_spec import make_policy
from agentenv.policies.tokenizer_files import read_tokenizer


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


def test_a_model_that_caps_its_attention_scores_is_computed_with_the_caps(tmp_path: Path) -> None:
    # Before 5.24 transformers loads Gemma 2 with sdpa, which leaves the caps out; the oracle computes attention in steps.
    torch = pytest.importorskip("torch", reason="needs the train extra")
    from agentenv.policies.fake_architectures import tiny_model
    from agentenv.policies.hf import HFPolicy

    _, tokenizer = random_policy(str(tmp_path), ["some words"])
    model = tiny_model("gemma2", attn_logit_softcapping=0.5, vocab_size=len(tokenizer))
    model.save_pretrained(tmp_path)
    ids = [i % len(tokenizer) for i in range(3, 24)]
    model.set_attn_implementation("eager")
    with torch.no_grad():
        wanted = torch.log_softmax(model(torch.tensor([ids])).logits[0].float(), -1)
    scores = asyncio.run(HFPolicy.load(tmp_path).score(ids))
    assert scores[1:] == pytest.approx(
        [float(wanted[place - 1, i]) for place, i in enumerate(ids) if place], abs=1e-4
    )
    with pytest.raises(ConfigurationError, match="'sdpa'"):
        HFPolicy.load(tmp_path, ComputeSettings(attention="sdpa"))
    model.config._attn_implementation = "sdpa"  # transformers refuses to set it from 5.24 on
    with pytest.raises(ConfigurationError, match="eager"):
        HFPolicy(model, tokenizer)


def test_a_text_is_decoded_as_it_was_sampled_whatever_the_folder_asks_for(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pieces = [("<unk>", 0.0), ("▁", -2.0), *((chr(code), -3.0) for code in range(33, 127))]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="never")
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", clean_up_tokenization_spaces=True
    ).save_pretrained(tmp_path)
    read = read_tokenizer(tmp_path)
    said = "print( ' a ' ) , [1 , 2] ; don 't !"
    assert read.decode(read.encode(said)) == said
    read.save_pretrained(tmp_path / "exported")
    assert read_tokenizer(tmp_path / "exported").decode(read.encode(said)) == said


def test_a_folder_that_is_named_without_its_kind_and_a_run_say_what_to_write(tmp_path: Path) -> None:
    (tmp_path / "policy").mkdir()
    with pytest.raises(UnknownName, match=re.escape(f"'hf:{tmp_path}'")):
        make_policy(str(tmp_path))
    with pytest.raises(CheckpointMismatch, match=re.escape(str(tmp_path / "policy"))):
        make_policy(f"hf:{tmp_path}")
