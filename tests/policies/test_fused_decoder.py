"""The fused pass of small Llama-like models: logits and gradients as of their own modules; other models are left alone."""

import random
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the train extra")

from agentenv.core.types import Sampling  # noqa: E402
from agentenv.policies.decoding import Request, Row, Vocabulary, shared_prompts  # noqa: E402
from agentenv.policies.fake_architectures import tiny_model  # noqa: E402
from agentenv.policies.forward import RowCache, SharedPrompts, autocast, step  # noqa: E402
from agentenv.policies.fused_decoder import fused_decoder  # noqa: E402
from agentenv.policies.loading import compile_layers  # noqa: E402
from agentenv.trainers.learner.logprobs import checkpoint_layers  # noqa: E402

IDS = torch.arange(24).reshape(2, 12) % 90
ROWS, PLACES = torch.tensor([0, 1, 1, 0, 0]), torch.tensor([11, 3, 8, 0, 5])


# In float64 the models' own norms and rotary embeddings still compute in float32.
close = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-5)


def decoder_of(model: Any) -> Any:
    decoder = fused_decoder(model)
    assert decoder is not None
    return decoder


def equal_heads() -> Any:
    """A model whose queries and keys have as many heads; the biases are not 0, as they are in a new one."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(3)
    config = Qwen2Config(
        vocab_size=90,
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=3,
        num_key_value_heads=3,
    )
    model = Qwen2ForCausalLM(config).double().eval()
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(weight)
    return model


@pytest.mark.parametrize("family", ["qwen2", "llama"])
def test_logits_and_gradients_are_those_of_the_models_own_pass(family: str) -> None:
    model = tiny_model(family).double().eval()
    found = decoder_of(model).logits_at(IDS, ROWS, PLACES)
    wanted = model(input_ids=IDS, use_cache=False).logits[ROWS, PLACES]
    close(found, wanted)
    slopes = torch.randn_like(wanted)
    weights = dict(model.named_parameters())
    ours = torch.autograd.grad((found * slopes).sum(), list(weights.values()))
    theirs = torch.autograd.grad((wanted * slopes).sum(), list(weights.values()))
    for name, mine, its in zip(weights, ours, theirs, strict=True):
        assert (mine - its).norm() <= 1e-5 * its.norm(), name


ROPES: list[dict[str, Any]] = [
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 2.0},
    {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 12},
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 12,
    },
]


def drawn_model(rng: random.Random) -> Any:
    """A Llama or Qwen2 of sizes that hardly anybody would choose."""
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    keys, heads, width = rng.choice([1, 2, 3]), rng.choice([1, 3]), rng.choice([2, 6, 10, 16])
    sizes: dict[str, Any] = {
        "vocab_size": 90,
        "hidden_size": keys
        * heads
        * rng.choice([4, 5, 12]),  # the configuration wants a multiple of the heads
        "intermediate_size": rng.choice([7, 24]),
        "num_hidden_layers": rng.choice([1, 3]),
        "num_key_value_heads": keys,
        "num_attention_heads": keys * heads,
        "head_dim": width,
        "max_position_embeddings": 48,
        "tie_word_embeddings": rng.random() < 0.5,
        "rms_norm_eps": rng.choice([1e-6, 1e-2]),
        "rope_parameters": {**rng.choice(ROPES), "rope_theta": rng.choice([100.0, 1e4])},
    }
    torch.manual_seed(rng.randrange(99))
    kind, form = rng.choice([(Qwen2ForCausalLM, Qwen2Config), (LlamaForCausalLM, LlamaConfig)])
    model: Any = kind(form(**sizes))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1 or name.endswith("bias"):
                weight.normal_(0, 0.3)
            else:
                weight.uniform_(-0.5, 1.5)
    return model.eval()


@pytest.mark.parametrize("seed", range(8))
def test_models_of_odd_sizes_have_their_own_values_and_slopes(seed: int) -> None:
    """Shared heads, wide and narrow ones, biases, tied embeddings and every rotary embedding, in either precision."""
    rng = random.Random(seed)
    model = drawn_model(rng).to(rng.choice([torch.float32, torch.float64]))
    ids = torch.randint(0, 90, (rng.randint(1, 3), rng.randint(2, 20)))
    rows = torch.randint(0, len(ids), (7,))
    places = torch.randint(0, ids.shape[1], (7,))
    found = decoder_of(model).logits_at(ids, rows, places)
    wanted = model(input_ids=ids, use_cache=False).logits[rows, places]
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3 * float(wanted.detach().abs().max()))
    weights = dict(model.named_parameters())
    slopes = torch.randn_like(wanted)
    ours, theirs = (
        torch.autograd.grad((logits * slopes).sum(), list(weights.values())) for logits in (found, wanted)
    )
    # Some slopes are 0 but for rounding, so all are compared with the largest.
    largest = max(float(its.norm()) for its in theirs)
    for name, mine, its in zip(weights, ours, theirs, strict=True):
        assert float((mine - its).norm()) <= 1e-3 * float(its.norm()) + 1e-5 * largest, name


def test_frequencies_that_every_pass_sets_anew_are_left_to_the_modules() -> None:
    """LongRoPE takes those of the longest row, and parts that are computed at once would take each other's."""
    from transformers import LlamaConfig, LlamaForCausalLM

    factors = {"short_factor": [1.0, 1.0], "long_factor": [2.0, 4.0], "original_max_position_embeddings": 12}
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "factor": 4.0, **factors}
    sizes = {"vocab_size": 90, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 48}
    model = LlamaForCausalLM(LlamaConfig(**sizes, **heads, rope_parameters=rope)).eval()
    assert fused_decoder(model) is None


def test_masks_and_positions_are_those_that_are_given() -> None:
    """Two tails of one prompt in a line: neither sees the other, and both count from the end of the prompt."""
    model = equal_heads()
    ids = torch.tensor([[5, 6, 7, 8, 9, 7, 8]])
    owners = torch.tensor([-1, -1, -1, 0, 0, 1, 1])
    visible = ((owners == -1) | (owners == owners[:, None])).tril()[None, None]
    found = decoder_of(model).logits_at(
        ids,
        torch.tensor([0, 0]),
        torch.tensor([4, 6]),
        attention_mask=visible,
        position_ids=torch.tensor([[0, 1, 2, 3, 4, 3, 4]]),
    )
    for row, tail in zip(found, ([8, 9], [7, 8]), strict=True):
        alone = model(input_ids=torch.tensor([[5, 6, 7, *tail]]), use_cache=False).logits[0, -1]
        close(row, alone)


def test_prompts_that_neighbours_share_are_read_once_with_the_same_result() -> None:
    """Four rows, two of each prompt; the second prompt is longer than what is read once."""
    model = equal_heads()
    prompts = [[1, 2, 3, 4], [1, 2, 3, 4], [9, 8, 7, 6, 5], [9, 8, 7, 6, 5]]
    tails = [[10, 11], [12, 13], [14, 15], [16, 17]]
    kv = torch.zeros((2, 2, 4, 3, 8, 8), dtype=torch.float64)
    with torch.no_grad():
        decoder = decoder_of(model)
        width = 5
        fed = torch.tensor([[*prompt, *[0] * (width - len(prompt))] for prompt in prompts])
        last = torch.tensor([len(prompt) - 1 for prompt in prompts])
        step(model, RowCache(kv), fed, torch.arange(width).expand(4, -1), last, seen=width)
        cache = RowCache(kv, SharedPrompts(rows=2, tokens=4))
        for count in range(2):
            ids = torch.tensor([[tail[count]] for tail in tails])
            positions = last[:, None] + 1 + count
            found = step(model, cache, ids, positions, seen=int(positions.max()) + 1, decoder=decoder)
        for row, prompt, tail in zip(found, prompts, tails, strict=True):
            alone = model(input_ids=torch.tensor([[*prompt, *tail]]), use_cache=False).logits[0, -1]
            close(row, alone)


def rows_of(*prompts: list[int]) -> list[Row]:
    vocabulary = Vocabulary([""] * 99, (), str)
    return [Row(Request(ids, Sampling(max_tokens=4), None), 64, vocabulary, {}) for ids in prompts]


def test_prompts_are_shared_where_groups_are_of_one_size_and_long_enough() -> None:
    one, two = list(range(40)), list(range(1, 36))
    assert shared_prompts(rows_of(one, one, two, two)) == SharedPrompts(rows=2, tokens=35)
    assert shared_prompts(rows_of(one, one, one, two, two)) is None
    assert shared_prompts(rows_of(one, two, one, two)) is None
    assert shared_prompts(rows_of(one[:5], one[:5])) is None


def test_models_that_compute_otherwise_are_left_alone() -> None:
    assert fused_decoder(tiny_model("gemma3_text").eval()) is None
    assert fused_decoder(tiny_model("mistral").eval()) is None
    assert fused_decoder(tiny_model("qwen2").bfloat16().eval()) is None
    with autocast(torch.device("cpu")):
        assert fused_decoder(tiny_model("qwen2").eval()) is None


# What torch imports to compile warns about itself.
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("change", [checkpoint_layers, compile_layers, "hook", "adapter", "norm", "eager"])
def test_models_that_were_changed_are_left_alone(change: Any) -> None:
    model = tiny_model("qwen2").eval()
    assert fused_decoder(model) is not None
    if change == "hook":
        model.model.register_forward_pre_hook(lambda *_: None)
    elif change == "adapter":
        model.model.layers[1].mlp.up_proj = torch.nn.Sequential(model.model.layers[1].mlp.up_proj)
    elif change == "norm":
        model.model.layers[1].input_layernorm = torch.nn.RMSNorm(32)
    elif change == "eager":
        model.set_attn_implementation("eager")
    else:
        change(model)
    assert fused_decoder(model) is None


def test_the_decoder_of_a_later_moment_has_the_weights_of_that_moment() -> None:
    model = equal_heads()
    before = decoder_of(model).logits_at(IDS, ROWS, PLACES)
    with torch.no_grad():
        model.model.layers[0].self_attn.k_proj.weight.mul_(2)
    after = decoder_of(model).logits_at(IDS, ROWS, PLACES)
    assert not torch.allclose(before, after)
    close(after, model(input_ids=IDS, use_cache=False).logits[ROWS, PLACES])


def test_no_places_have_no_logits() -> None:
    from agentenv.policies.forward import logits_at

    model, nothing = equal_heads(), torch.zeros(0, dtype=torch.long)
    assert logits_at(model, IDS, nothing, nothing).shape == (0, 90)


def _fewer_layers(model: Any) -> None:
    model.config.num_hidden_layers = 1


def _other_activation(model: Any) -> None:
    model.model.layers[0].mlp.act_fn = torch.nn.GELU()


def _other_scale(model: Any) -> None:
    model.model.layers[1].self_attn.scaling = 1.0


@pytest.mark.parametrize("change", [_fewer_layers, _other_activation, _other_scale])
def test_what_a_model_computes_otherwise_than_its_family_is_not_fused(change: Any) -> None:
    model = equal_heads()
    assert fused_decoder(model) is not None
    change(model)
    assert fused_decoder(model) is None
