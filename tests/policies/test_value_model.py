"""The value model: states of an episode in one pass or apart, saved heads, heads of other language models, long episodes."""

import asyncio
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from agentenv.core.chat import InlineFormat
from agentenv.core.trajectory import Turn
from agentenv.core.types import Message
from agentenv.errors import CheckpointMismatch
from agentenv.policies.fakes import random_policy
from agentenv.policies.hf import HFPolicy
from agentenv.policies.output_head import hidden_at, logits_of
from agentenv.policies.policy_spec import make_policy
from agentenv.policies.value_model import (
    ValueModel,
    features_of,
    load_value_model,
    save_value_model,
    state_pieces,
)

PIECES = [
    ("", "Who founded it?"),
    ("<search> it </search>", " It was founded."),
    ("<answer> me </answer>", ""),
]
TEXTS = ["".join(piece) for piece in PIECES]


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random model with a context of 64 tokens."""
    folder = tmp_path_factory.mktemp("policy")
    random_policy(folder, TEXTS, context=96, spread=0.5)
    return f"hf:{folder}"


@pytest.fixture(scope="module")
def policy(spec: str) -> HFPolicy:
    return make_policy(spec)


def test_the_text_of_a_state_is_the_question_and_each_action_with_its_observation() -> None:
    turns = (
        Turn("look", (Message("tool", "a"), Message("user", "b")), (), 0.0, True),
        Turn("end", (), (), 1.0, True),
    )
    assert state_pieces("Q", turns) == [("", "Q"), ("look", "ab"), ("end", "")]


def test_one_pass_reads_what_passes_for_each_state_read(policy: HFPolicy) -> None:
    found = features_of(policy, PIECES)
    apart = [features_of(policy, PIECES[: end + 1])[-1] for end in range(3)]
    assert found.shape == (3, 18)
    assert found == pytest.approx(np.stack(apart), abs=1e-6)
    assert abs(found[0] - found[1]).max() > 1e-3


def test_what_exceeds_the_context_is_cut_at_the_beginning(policy: HFPolicy) -> None:
    """The states that fit are read as they are, and the last one by its end."""
    long = [*PIECES, ("and so on" * 60, "")]
    found = features_of(policy, long)
    assert found[:3] == pytest.approx(features_of(policy, PIECES), abs=1e-6)
    ids = policy.tokenizer.encode("and so on" * 60, add_special_tokens=False)[-policy.context_tokens :]
    assert len(ids) == policy.context_tokens
    place = torch.tensor([len(ids) - 1])
    hidden = hidden_at(policy.model, torch.tensor([ids]), torch.tensor([0]), place)
    assert found[3, :16] == pytest.approx(hidden[0].detach().numpy(), abs=1e-6)
    scores = asyncio.run(policy.score(ids))[1:]
    assert found[3, 16:] == pytest.approx([np.mean(scores), min(scores)], abs=1e-5)


def test_likely_actions_are_told_from_unlikely_ones(policy: HFPolicy) -> None:
    """Mean and least log-prob of the action before the state, as the policy scores them behind the opened chat."""
    found = features_of(policy, PIECES)[:, 16:]
    ids = [policy.tokenizer.encode(text, add_special_tokens=False) for piece in PIECES for text in piece]
    ids[:2] = [InlineFormat(policy.tokenizer).prompt((Message("user", "Who founded it?"),)), []]
    scores = asyncio.run(policy.score([i for part in ids for i in part]))
    starts = np.cumsum([0, *map(len, ids)])
    actions = [scores[starts[n] : starts[n + 1]] for n in (2, 4)]
    wanted = [[0.0, 0.0], *([np.mean(said), min(said)] for said in actions)]
    assert found == pytest.approx(np.array(wanted), abs=1e-5)


def test_logits_of_many_words_are_made_for_a_few_tokens_at_a_time(
    policy: HFPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, made = features_of(policy, PIECES), list[int]()
    layer = policy.model.get_output_embeddings()
    handle = layer.register_forward_hook(lambda _, __, logits: made.append(logits.numel()))
    few = partial(logits_of, whole=3 * layer.out_features)
    monkeypatch.setattr("agentenv.policies.output_head.logits_of", few)
    try:
        assert features_of(policy, PIECES) == pytest.approx(wanted, abs=1e-6)
    finally:
        handle.remove()
    assert max(made) == 3 * layer.out_features


def test_an_empty_question_has_a_state_too(policy: HFPolicy) -> None:
    assert features_of(policy, [("", ""), ("x", "")]).shape == (2, 18)


def test_a_value_is_the_head_times_the_hidden_state_plus_the_bias(policy: HFPolicy) -> None:
    weight = np.linspace(-1, 1, 18)
    wanted = features_of(policy, PIECES) @ weight + 0.25
    assert ValueModel(policy, weight, 0.25).values(PIECES) == pytest.approx(wanted.tolist())


@pytest.mark.parametrize(("size", "value"), [(17, 0.0), (18, np.nan), (18, np.inf)])
def test_a_head_that_does_not_fit_is_refused(policy: HFPolicy, size: int, value: float) -> None:
    with pytest.raises(CheckpointMismatch, match="18"):
        ValueModel(policy, np.full(size, value), 0.0)


def test_a_saved_head_comes_back_and_goes_along_with_its_policy(tmp_path: Path) -> None:
    """The file names the folder as seen from itself, so both may be moved together."""
    (tmp_path / "run").mkdir()
    random_policy(tmp_path / "run" / "policy", TEXTS)
    spec = f"hf:{tmp_path / 'run' / 'policy'}"
    save_value_model(tmp_path / "run" / "v.safetensors", spec, np.arange(18.0), 0.5)
    (tmp_path / "run").rename(tmp_path / "moved")
    loaded = load_value_model(str(tmp_path / "moved" / "v.safetensors"))
    assert (loaded.weight_F.tolist(), loaded.bias) == ([*map(float, range(18))], 0.5)


def test_a_head_of_other_weights_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "v.safetensors"
    random_policy(tmp_path / "policy", TEXTS)
    save_value_model(file, f"hf:{tmp_path / 'policy'}", np.zeros(18), 0.0)
    random_policy(tmp_path / "policy", TEXTS, seed=1)
    with pytest.raises(CheckpointMismatch, match=r"v\.safetensors"):
        load_value_model(str(file))
    for path in (tmp_path / "policy").iterdir():
        path.unlink()
    (tmp_path / "policy").rmdir()
    with pytest.raises(CheckpointMismatch, match="policy"):
        load_value_model(str(file))


def test_what_is_no_value_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("no head")
    for name in ("x", "gone"):
        with pytest.raises(CheckpointMismatch, match=name):
            load_value_model(str(tmp_path / name))


def test_the_shipped_one_prefers_an_answer_that_was_looked_up() -> None:
    """A search that finds the passage, and a guess; both are of the form of the shipped policy's episodes."""
    model, question = load_value_model("tiny"), ("", "What is the founding year of Fogjute Ford?")
    shown = "\n<information>Doc 1(Title: Fogjute Ford) Fogjute Ford was founded in 1909.</information>\n"
    looked = model.values(
        [question, ("<search> Fogjute Ford founding year </search>", shown), ("<answer> 1909 </answer>", "")]
    )
    assert looked[-1] > model.values([question, ("<answer> 1909 </answer>", "")])[-1] + 0.1
