"""HFPolicy: the contract, caches across turns, rewinding, batches, sampling, ends of a chunk, versions, bad folders.

The reference everywhere is the model itself, asked for the whole sequence without any cache.
"""

import asyncio
import json
import threading
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch

from agentenv.core.protocols import Policy
from agentenv.core.types import Completion, FinishReason, Sampling
from agentenv.errors import CheckpointMismatch, ContextTooSmall, PolicyFault, UnknownName
from agentenv.policies.decoding import Request, Row, Vocabulary
from agentenv.policies.fake_architectures import tiny_model
from agentenv.policies.fakes import ByteTokenizer, random_model
from agentenv.policies.hf import HFPolicy
from agentenv.policies.output_head import logits_after
from agentenv.policies.policy_contract import PolicyContract
from agentenv.policies.policy_spec import make_policy
from agentenv.policies.tiny import build_tokenizer, shipped_weights

T = TypeVar("T")
GREEDY = Sampling(8, temperature=0.0)


def qwen(*, vocabulary: int = 257, layers: int = 2, seed: int = 0) -> Any:
    return random_model(vocabulary, layers=layers, seed=seed, context=64, spread=0.2)


def fresh(**changes: Any) -> HFPolicy:
    return HFPolicy(qwen(), ByteTokenizer(), **changes)


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def ask(
    policy: HFPolicy, prompt: Sequence[int], sampling: Sampling, episode: str | None = None
) -> Completion:
    return run(policy.generate(prompt, sampling, episode=episode))


def together(
    policy: HFPolicy, requests: Sequence[tuple[Sequence[int], Sampling, str | None]]
) -> list[Completion]:
    async def all_of_them() -> list[Completion]:
        return await asyncio.gather(*(policy.generate(p, s, episode=e) for p, s, e in requests))

    return run(all_of_them())


def plainly(model: Any, ids: Sequence[int], temperature: float = 1.0) -> torch.Tensor:
    """Log-probs [T, V] after each token, from one forward pass without a cache."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0]
    return torch.log_softmax(logits / temperature, dim=-1)


def assert_log_probs(
    policy: HFPolicy, prompt: Sequence[int], done: Completion, temperature: float = 1.0
) -> None:
    table = plainly(policy.model, [*prompt, *done.ids], temperature)[len(prompt) - 1 : -1]
    expected = table.gather(1, torch.tensor(done.ids)[:, None])[:, 0].tolist()
    assert done.logprobs == pytest.approx(expected, abs=1e-5)


class TestHFPolicy(PolicyContract):
    tolerance = 1e-5

    def make(self) -> Policy:
        return fresh()


def test_greedy_takes_the_most_likely_token_and_reports_its_log_prob_at_temperature_one() -> None:
    policy, ids = fresh(), [72, 101, 121]
    done = ask(policy, ids, GREEDY)
    for token in done.ids:
        assert token == int(plainly(policy.model, ids)[-1].argmax())
        ids.append(token)
    assert_log_probs(policy, [72, 101, 121], done)


def test_turns_with_a_cache_equal_turns_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three turns, greedy and sampled; with a cache only what is new is fed."""
    policy, fed = fresh(), []
    forward = policy._forward

    def counting(cache: Any, ids: torch.Tensor, *rest: Any, **more: Any) -> torch.Tensor:
        fed.append(ids.shape[1])
        return forward(cache, ids, *rest, **more)

    monkeypatch.setattr(policy, "_forward", counting)
    for sampling in (GREEDY, Sampling(5, temperature=0.8, seed=5)):
        ids = list(range(60, 72))
        for turn in range(3):
            fed.clear()
            kept = ask(policy, ids, sampling, f"kept {sampling.seed}")
            # From the second turn on: the last sampled token, which was never fed, and the 4 observed ones.
            assert fed[0] == (12 if turn == 0 else 5)
            anew = ask(fresh(), ids, sampling)
            assert kept.ids == anew.ids
            assert kept.logprobs == pytest.approx(anew.logprobs, abs=1e-5)
            assert_log_probs(policy, ids, kept, sampling.temperature or 1.0)
            ids += [*kept.ids, 10, 11, 12, 13]


@pytest.mark.parametrize(
    "prompt",
    [
        [65, 66, 67],  # shorter than what is kept
        [65, 66, 67, 68, 69],  # exactly the first prompt again
        [65, 66, 99, 68, 69, 70, 71],  # another history from the third token on
        [99, 98],  # another history from the first
        [65],  # one token
    ],
)
def test_a_rewound_episode_is_as_if_it_were_new(prompt: list[int]) -> None:
    policy = fresh()
    ask(policy, [65, 66, 67, 68, 69], Sampling(6, seed=1), "e")
    for sampling in (GREEDY, Sampling(6, seed=2)):
        rewound = ask(policy, prompt, sampling, "e")
        assert rewound.ids == ask(fresh(), prompt, sampling).ids
        assert_log_probs(policy, prompt, rewound)


def test_a_batch_of_many_lengths_equals_one_by_one() -> None:
    """Prompts of 1 to 20 tokens, budgets of 1 to 12, some with a cache, temperatures and seeds of their own."""
    policy = fresh()
    first = [([80 + i] * (1 + i), Sampling(1 + i, temperature=0.4 * i, seed=i), f"e{i}") for i in range(6)]
    firsts = together(policy, first)
    second = [
        ([*prompt, *done.ids, 32, 33], Sampling(12 - 2 * i, temperature=0.4 * i, seed=70 + i), episode)
        for i, ((prompt, _, episode), done) in enumerate(zip(first, firsts, strict=True))
    ]
    second[2] = ([90, 91, 92], second[2][1], "e2")  # rewound in the middle of the batch
    second.append(([1] * 20, Sampling(3, seed=9), "new"))
    for requests, found in ((first, firsts), (second, together(policy, second))):
        for (prompt, sampling, _), done in zip(requests, found, strict=True):
            alone = ask(fresh(), prompt, sampling)
            assert (done.ids, done.text, done.finish) == (alone.ids, alone.text, alone.finish)
            assert done.logprobs == pytest.approx(alone.logprobs, abs=1e-5)


def test_equal_prompts_are_fed_once_and_sampled_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group of 8 asks the same question: one row of prefill, 8 samples."""
    policy, rows = fresh(), []
    forward = policy._forward

    def counting(cache: Any, ids: torch.Tensor, *rest: Any, **more: Any) -> torch.Tensor:
        rows.append(len(ids))
        return forward(cache, ids, *rest, **more)

    monkeypatch.setattr(policy, "_forward", counting)
    prompts = [[65, 66, 67]] * 8 + [[68, 69]]
    done = together(policy, [(p, Sampling(6, seed=i), f"e{i}") for i, p in enumerate(prompts)])
    assert rows[0] == 2
    assert len({c.ids for c in done[:8]}) > 1
    for i, (prompt, completion) in enumerate(zip(prompts, done, strict=True)):
        assert completion.ids == ask(fresh(), prompt, Sampling(6, seed=i)).ids
    longer = [*prompts[3], *done[3].ids, 70]
    again = ask(policy, longer, GREEDY, "e3")  # each member of the group has its own cache
    assert again.ids == ask(fresh(), longer, GREEDY).ids


def test_samples_follow_the_distribution() -> None:
    """2,000 first tokens against the model's probabilities; 4 standard errors are 4 sqrt(p (1 - p) / 2000)."""
    policy, prompt, count = fresh(), [72, 105], 2000
    done = together(policy, [(prompt, Sampling(1, temperature=0.7, seed=i), None) for i in range(count)])
    chance = plainly(policy.model, prompt, 0.7)[-1].exp()
    for token in chance.topk(5).indices.tolist():
        p = float(chance[token])
        share = sum(c.ids[0] == token for c in done) / count
        assert abs(share - p) < 4 * (p * (1 - p) / count) ** 0.5


def test_top_p_keeps_the_fewest_tokens_that_reach_it() -> None:
    policy, prompt, top_p = fresh(), [72, 105], 0.8
    chance = plainly(policy.model, prompt)[-1].exp()
    kept: dict[int, float] = {}
    for token in chance.argsort(descending=True).tolist():
        kept[token] = float(chance[token])
        if sum(kept.values()) >= top_p:
            break
    assert 1 < len(kept) < 200
    requests = [(prompt, Sampling(1, top_p=top_p, seed=i), None) for i in range(300)]
    # The second is 0 in float32.
    requests += [(prompt, Sampling(1, top_p=narrow, seed=1), None) for narrow in (1e-9, 1e-308)]
    requests.append((prompt, Sampling(1, seed=3), None))
    *nucleus, narrow, narrowest, whole = together(policy, requests)
    assert {c.ids[0] for c in nucleus} <= set(kept)
    for completion in nucleus:  # renormalised over what is kept
        expected = kept[completion.ids[0]] / sum(kept.values())
        assert completion.logprobs[0] == pytest.approx(float(torch.tensor(expected).log()), abs=1e-4)
    for one in (narrow, narrowest):
        assert one.ids[0] == int(chance.argmax())
        assert one.logprobs[0] == pytest.approx(0, abs=1e-6)
    assert_log_probs(policy, prompt, whole)


def test_an_id_without_a_token_is_sampled_as_any_other() -> None:
    """Output layers are often wider than the vocabulary."""
    policy = HFPolicy.load(shipped_weights())
    hot = Sampling(64, temperature=1e4, stop=("</answer>",))
    done = next(
        c for c in (ask(policy, [5], replace(hot, seed=s)) for s in range(3, 60)) if has_odd(policy, c)
    )
    assert len(done.ids) == len(done.logprobs)


def has_odd(policy: HFPolicy, done: Completion) -> bool:
    return any(i >= len(policy.tokenizer) for i in done.ids)


def test_a_stop_string_is_cut_at_the_token_that_completes_it() -> None:
    """The tokens are longer than the stop string: the last one stays whole in the ids, the text ends with the stop."""
    tokenizer = build_tokenizer(["ab</answer> cd </answer>x " * 20])
    policy = HFPolicy(qwen(vocabulary=len(tokenizer)), tokenizer)
    policy.model.config.eos_token_id = tokenizer.eos_token_id
    free = next(
        c
        for c in (ask(policy, [5, 6], Sampling(16, seed=s)) for s in range(50))
        if any(len(tokenizer.decode([i])) > 1 for i in c.ids[:-2])
    )
    place = next(i for i, token in enumerate(free.ids) if len(tokenizer.decode([token])) > 1)
    stop = tokenizer.decode([free.ids[place]])[0]
    head = tokenizer.decode(free.ids[: place + 1])
    end = head.index(stop) + 1
    seed = next(s for s in range(50) if ask(policy, [5, 6], Sampling(16, seed=s)).ids == free.ids)
    done = ask(policy, [5, 6], Sampling(16, seed=seed, stop=(stop,)))
    assert done.finish is FinishReason.STOP
    assert done.text == head[:end]
    assert done.ids == free.ids[: len(done.ids)]
    assert len(done.logprobs) == len(done.ids) <= place + 1


@pytest.mark.parametrize("stop", ["»", "</回答>", "終"])
def test_a_stop_string_may_end_with_a_character_of_several_tokens(stop: str) -> None:
    tokenizer = ByteTokenizer()
    pieces = [tokenizer.decode([i]) for i in range(len(tokenizer))]
    vocabulary = Vocabulary(pieces, (tokenizer.eos_token_id,), tokenizer.decode)
    row = Row(Request([65], Sampling(40, stop=(stop,)), None), 64, vocabulary, {})
    for token in tokenizer.encode(f"é{stop} and more"):
        row.take(token, -1.0)
    assert (row.finish, row.text) == (FinishReason.STOP, f"é{stop}")
    assert row.sampled == tokenizer.encode(f"é{stop}")


def biased(token: int, strength: float = 1e4) -> HFPolicy:
    """A policy that always writes ``token``."""
    policy = fresh()
    head = torch.nn.Linear(32, 257)
    with torch.no_grad():
        head.weight.copy_(policy.model.lm_head.weight)
        head.bias.zero_()
        head.bias[token] = strength
    policy.model.lm_head = head
    return policy


def test_the_end_of_turn_token_ends_a_chunk_and_is_recorded() -> None:
    done = ask(biased(256), [65], Sampling(9))
    assert (done.ids, done.text, done.finish) == ((256,), "", FinishReason.EOS)


@pytest.mark.parametrize("named", [97, [97], [256, 98, 97]])
def test_every_end_that_the_model_names_ends_a_chunk(named: int | list[int]) -> None:
    """Llama 3 names <|eom_id|> and <|eot_id|> beside the end of a text."""
    model = qwen()
    model.generation_config.eos_token_id = named
    model.lm_head = biased(97).model.lm_head
    done = ask(HFPolicy(model, ByteTokenizer()), [65], Sampling(9))
    assert (done.ids, done.text, done.finish) == ((97,), "", FinishReason.EOS)


def test_the_token_limit_and_the_context_end_a_chunk() -> None:
    policy = biased(97)
    assert ask(policy, [65], Sampling(4)).finish is FinishReason.LENGTH
    assert ask(policy, [65], Sampling(4)).text == "aaaa"
    cut = ask(policy, [65] * 62, Sampling(9))
    assert (cut.ids, cut.finish) == ((97, 97), FinishReason.LENGTH)


@pytest.mark.parametrize(("context", "prompt"), [(None, 64), (None, 99), (10, 10)])
def test_a_prompt_that_fills_the_context_is_refused(context: int | None, prompt: int) -> None:
    with pytest.raises(ContextTooSmall, match=rf"\b{prompt}\b.*\b{context or 64}\b"):
        ask(fresh(context_tokens=context), [65] * prompt, Sampling(1))


def test_an_update_grows_the_version_and_drops_every_cache() -> None:
    policy = fresh()
    ids = [65, 66, 67]
    ids += [*ask(policy, ids, GREEDY, "e").ids, 68]
    other = qwen(seed=1)
    policy.model.load_state_dict(other.state_dict())
    policy.set_weights()
    done = ask(policy, ids, GREEDY, "e")
    assert done.version == policy.version == 1
    assert done.ids == ask(HFPolicy(other, ByteTokenizer()), ids, GREEDY).ids
    assert_log_probs(policy, ids, done)


def test_a_broken_engine_is_a_fault_of_ours() -> None:
    """Whatever the model raises: an id outside its vocabulary, or a tensor of the wrong shape."""
    with pytest.raises(PolicyFault, match="index out of range"):
        ask(fresh(), [65, 100_000], Sampling(1))
    policy = fresh()
    policy.model.lm_head = torch.nn.Linear(3, 3)
    with pytest.raises(PolicyFault, match="shapes"):
        ask(policy, [65], Sampling(1))
    policy.model.lm_head = qwen().lm_head
    assert len(ask(policy, [65], Sampling(2)).ids) == 2  # and the next request is served


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tokenizer = build_tokenizer(["Where was Zoë born?"])
    qwen(vocabulary=len(tokenizer)).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_a_saved_policy_comes_back(folder: Path) -> None:
    policy = make_policy(f"hf:{folder}")
    done = ask(policy, [5, 6, 7], GREEDY)
    assert_log_probs(policy, [5, 6, 7], done)
    assert policy.tokenizer.decode(policy.tokenizer.encode("Zoë")) == "Zoë"
    assert policy.model.dtype == torch.float32
    assert not policy.model.training


def test_a_loaded_tokenizer_cuts_text_as_the_built_one_did(tmp_path: Path) -> None:
    text = "'Birthday gifts'.\n\n[12] it's 2021, e.g. ana.kaya@example.org (\"Zoë\")  \n"
    built = build_tokenizer([text * 50])
    qwen(vocabulary=len(built)).save_pretrained(tmp_path)
    built.save_pretrained(tmp_path)
    loaded = make_policy(f"hf:{tmp_path}").tokenizer
    assert built.tokenize(text) == loaded.tokenize(text)
    assert "2" in loaded.tokenize(text)  # digits stay apart
    assert loaded.decode(loaded.encode(text)) == text


def _truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])


def _no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def _other_depth(folder: Path) -> None:
    _change(folder, num_hidden_layers=3)


def _other_width(folder: Path) -> None:
    _change(folder, intermediate_size=64)


def _no_json(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def _unknown_kind(folder: Path) -> None:
    _change(folder, model_type="abacus")


def _change(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text()) | values
    config.pop("layer_types", None)  # transformers derives it from the depth
    path.write_text(json.dumps(config))


@pytest.mark.parametrize(
    "harm", [_truncate, _no_weights, _other_depth, _other_width, _no_json, _unknown_kind]
)
def test_a_folder_that_cannot_be_loaded_is_one_sentence(
    folder: Path, harm: Any, caplog: pytest.LogCaptureFixture
) -> None:
    harm(folder)
    with pytest.raises(CheckpointMismatch) as caught:
        make_policy(f"hf:{folder}")
    message = str(caught.value)
    assert str(folder) in message
    assert "\n" not in message
    assert len(message) < 400


def test_no_folder_at_all(tmp_path: Path) -> None:
    with pytest.raises(CheckpointMismatch, match="nowhere"):
        make_policy(f"hf:{tmp_path / 'nowhere'}")


@pytest.mark.parametrize(("spec", "hint"), [("tinny", "'tiny'"), ("hf:", "hf:PATH"), ("jax:x", "tiny")])
def test_an_unknown_policy_names_what_there_is(spec: str, hint: str) -> None:
    with pytest.raises(UnknownName, match=hint):
        make_policy(spec)


def test_a_short_prompt_beside_a_long_episode_stays_within_the_context() -> None:
    """Dynamic rotary embeddings turn by other frequencies as soon as any position of the batch is beyond the context."""
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10_000.0}
    model = tiny_model("llama", vocab_size=257, max_position_embeddings=64, rope_parameters=rope).eval()
    policy, sampling = HFPolicy(model, ByteTokenizer()), Sampling(3, seed=1)
    long = list(range(100, 150))
    (first,) = together(policy, [(long, sampling, "long")])
    prompts = [*long, *first.ids, 7], list(range(40))
    done = together(policy, [(prompts[0], sampling, "long"), (prompts[1], sampling, "new")])
    for ids, one in zip(prompts, done, strict=True):
        assert_log_probs(policy, ids, one)


@pytest.mark.parametrize("what", ["score", "top_two"])
def test_others_go_on_while_a_sequence_is_scored(what: str) -> None:
    """The forward pass waits for a coroutine of the same event loop."""
    policy, let_go = fresh(), threading.Event()
    policy.model.register_forward_pre_hook(lambda *_: seen.append(let_go.wait(5)))
    seen: list[bool] = []

    async def others() -> None:
        let_go.set()

    async def play() -> None:
        work = policy.score([1, 2, 3]) if what == "score" else policy.top_two([1, 2, 3], 1)
        await asyncio.gather(work, others())

    run(play())
    assert seen == [True]


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_logits_of_a_long_sequence_are_made_for_a_few_tokens_at_a_time(
    temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, ids = fresh(), [1, 5, 3, 8, 2, 9, 4, 7]
    scores = run(policy.score(ids, temperature=temperature))
    ranked = run(policy.top_two(ids, 3, temperature=temperature))
    made: list[int] = []
    policy.model.lm_head.register_forward_hook(lambda _, __, logits: made.append(logits.numel() // 257))
    monkeypatch.setattr("agentenv.policies.hf.logits_after", partial(logits_after, whole=2 * 257))
    assert run(policy.score(ids, temperature=temperature)) == pytest.approx(scores, abs=1e-5)
    found = run(policy.top_two(ids, 3, temperature=temperature))
    assert [[i for i, _ in pair] for pair in found] == [[i for i, _ in pair] for pair in ranked]
    for pair, wanted in zip(found, ranked, strict=True):
        assert [p for _, p in pair] == pytest.approx([p for _, p in wanted], abs=1e-5)
    assert max(made) == 2
