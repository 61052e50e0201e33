"""Every architecture: sampler, learner and ``score`` give the log-probs of ``model.forward``, or it is refused by name.

Models are random, of two layers, with windows of six tokens and sequences of twenty and more; the sampler's cache is kept
across turns and rewound, the learner's rows share a prompt.
"""

from typing import Any

import pytest
import torch

from agentenv.errors import ConfigurationError
from agentenv.policies.compute import multiplies_bfloat16
from agentenv.policies.fake_architectures import CONTEXT, VOCABULARY, WINDOW, architectures, tiny_model
from agentenv.policies.fakes import ByteTokenizer
from agentenv.policies.hf import HFPolicy
from agentenv.trainers.learner.logprob_agreement import logprob_gaps
from agentenv.trainers.warmstart.supervised import _weighted_loss

FAMILIES = [
    *(
        "qwen2",
        "qwen3",
        "qwen3_moe",
        "llama",
        "llama4_text",
        "granite",
        "cohere",
        "cohere2",
        "gemma2",
        "gemma3_text",
    ),
    *("gemma3", "mistral", "gpt_oss", "gpt2", "gptj", "opt", "olmo3", "smollm3", "exaone4"),
]
RECURRENT = ["mamba", "jamba", "bamba", "falcon_h1", "qwen3_next", "recurrent_gemma", "rwkv"]
ENCODERS = ["bart", "pegasus", "marian"]
REFUSED = [*RECURRENT, *ENCODERS, "bloom", "deepseek_v3", "roberta", "moshi", "modernbert-decoder"]
WINDOWED = {"use_sliding_window": True, "sliding_window": WINDOW}
NATS = 1e-3


def policy_of(model_type: str, **changes: Any) -> HFPolicy:
    return HFPolicy(tiny_model(model_type, **changes), ByteTokenizer(), context_tokens=CONTEXT)


@pytest.mark.parametrize("model_type", ["mistral", "mixtral", "phi3", "starcoder2"])
def test_windows_that_no_list_of_layers_names_are_followed(model_type: str) -> None:
    found = logprob_gaps(policy_of(model_type, sliding_window=WINDOW), vocabulary=VOCABULARY)
    assert max(found.values()) < NATS, found


@pytest.mark.parametrize(
    "changes",
    [
        WINDOWED | {"layer_types": ["full_attention", "sliding_attention"]},
        WINDOWED | {"layer_types": ["sliding_attention"] * 2},
        {"attn_implementation": "eager"},
        {"tie_word_embeddings": True},
    ],
)
def test_a_model_in_another_configuration(changes: dict[str, Any]) -> None:
    assert max(logprob_gaps(policy_of("qwen2", **changes), vocabulary=VOCABULARY).values()) < NATS


def test_layers_that_keep_no_keys_and_windows_within_a_layer_are_refused() -> None:
    local = {"attention_types": [[["global", "local"], 1]], "num_layers": 2, "window_size": WINDOW}
    with pytest.raises(ConfigurationError, match=f"window_size={WINDOW}"):
        policy_of("gpt_neo", **local)
    with pytest.raises(ConfigurationError, match="lfm2"):
        policy_of("lfm2", layer_types=["conv", "full_attention"])


def test_the_check_leaves_the_model_as_it_was() -> None:
    model = tiny_model("gemma2")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.random.get_rng_state()
    HFPolicy(model, ByteTokenizer(), context_tokens=CONTEXT)
    assert model.config.sliding_window == WINDOW
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(random, torch.random.get_rng_state())
    assert not model.lm_head._forward_pre_hooks


@pytest.mark.parametrize("model_type", ["granite", "cohere", "gemma2"])
def test_supervised_steps_see_the_logits_of_the_model(model_type: str) -> None:
    """Cross-entropy of the model's own logits; both multiply in bfloat16 where the processor has it."""
    model = tiny_model(model_type)
    ids = torch.tensor([[5, 6, 7, 8, 9]])
    weights = torch.tensor([[0.0, 1.0, 1.0, 0.0, 1.0]])
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=multiplies_bfloat16("cpu")):
        logprobs = torch.log_softmax(model(input_ids=ids, use_cache=False).logits[0].float(), -1)
    wanted = -sum(float(logprobs[t - 1, ids[0, t]]) for t in (1, 2, 4)) / 3
    assert _weighted_loss(model, ids, weights, 3) == pytest.approx(wanted, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("model_type", sorted({*architectures(), *FAMILIES, *REFUSED}))
def test_every_architecture_of_transformers_is_right_or_refused(model_type: str) -> None:
    """Those of ``FAMILIES`` are right, and those of ``REFUSED`` are refused by name."""
    try:
        model = tiny_model(model_type)
    except Exception as error:
        if model_type in (*FAMILIES, *REFUSED):
            raise
        pytest.skip(f"it cannot be made small by the general rule: {type(error).__name__}")
    policy: HFPolicy | None = None
    why = ""
    try:
        policy = HFPolicy(model, ByteTokenizer(), context_tokens=CONTEXT)
    except ConfigurationError as error:
        why = str(error)
    if model_type in REFUSED:
        assert model_type in why
    if policy is None:
        assert model_type not in FAMILIES, why
        return
    found = logprob_gaps(policy, vocabulary=VOCABULARY)
    assert max(found.values()) < NATS, found
