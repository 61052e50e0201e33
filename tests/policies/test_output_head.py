"""The output layer apart from the rest: it gives the logits of the model, or says that they are not known."""

import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the train extra")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

from agentenv.policies.fake_architectures import tiny_model  # noqa: E402
from agentenv.policies.lora import adapt  # noqa: E402
from agentenv.policies.output_head import (  # noqa: E402
    LogitTail,
    hidden_at,
    logit_tail,
    logits_after,
    output_layer,
)

FAMILIES = [
    ("qwen2", {}),
    ("qwen2", {"tie_word_embeddings": True}),
    ("gptj", {}),
    ("granite", {"logits_scaling": 8.0}),
    ("cohere", {"logit_scale": 0.25}),
    ("gemma2", {"final_logit_softcapping": 0.5}),
    ("gemma3_text", {"final_logit_softcapping": 0.5}),
]
IDS = torch.arange(1, 13).reshape(2, 6)
ROWS, PLACES = torch.tensor([0, 1, 1]), torch.tensor([5, 2, 0])


@pytest.mark.parametrize(("kind", "changes"), FAMILIES, ids=str)
def test_hidden_states_layer_and_tail_make_the_logits_of_the_model(
    kind: str, changes: dict[str, Any]
) -> None:
    model = tiny_model(kind, **changes).eval()
    tail = logit_tail(model)
    assert tail is not None
    with torch.no_grad():
        wanted = model(input_ids=IDS, use_cache=False).logits[ROWS, PLACES]
        found = tail.apply_(output_layer(model)(hidden_at(model, IDS, ROWS, PLACES, use_cache=False)))
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


class Rows(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes how many rows of so many words a tensor has at most."""

    def __init__(self, words: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.words, self.most = words, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for one in tree_leaves(made):
            if isinstance(one, torch.Tensor) and one.shape[-1:] == (self.words,):
                self.most = max(self.most, one.numel() // self.words)
        return made


@pytest.mark.parametrize(("kind", "changes"), FAMILIES, ids=str)
def test_logits_of_a_long_text_are_made_a_few_tokens_at_a_time(kind: str, changes: dict[str, Any]) -> None:
    model = tiny_model(kind, **changes).eval()
    ids, places = (torch.arange(1, 40) * 7 % 50)[None], torch.arange(38)
    with torch.inference_mode():
        wanted = model(input_ids=ids, use_cache=False).logits[0, :-1].float() / 0.7
        words = wanted.shape[-1]
        logit_tail(model)
        with Rows(words) as rows:
            found = logits_after(model, ids, places, 0.7, whole=5 * words)
            assert found is not None
            chunks = [one.clone() for one in found]
        assert logits_after(model, ids, places, 0.7, whole=38 * words) is None  # no more than that
    torch.testing.assert_close(torch.cat(chunks), wanted, rtol=1e-5, atol=1e-5)
    assert rows.most == 5


def test_the_cap_is_what_bends() -> None:
    """2 tanh(3 x 1 / 2) by hand."""
    found = LogitTail(scale=3.0, cap=2.0).apply_(torch.tensor([1.0, 0.0], dtype=torch.float64))
    assert found.tolist() == pytest.approx([2 * 0.9051482536448664, 0.0])


def test_logits_that_are_made_in_another_way_are_not_known() -> None:
    model = tiny_model("qwen2").eval()
    plain = model.forward

    def shifted(*args: Any, **inputs: Any) -> Any:
        made = plain(*args, **inputs)
        made.logits = made.logits + 0.5
        return made

    model.forward = shifted
    assert logit_tail(model) is None


def test_an_adapter_of_the_output_layer_is_part_of_it() -> None:
    model = tiny_model("qwen2").eval()
    base = model.get_output_embeddings()
    adapted = adapt(model, rank=2, alpha=4)
    assert output_layer(adapted) is base
    assert logit_tail(adapted) == LogitTail()


def test_a_pass_of_another_thread_gets_all_its_logits() -> None:
    model = tiny_model("qwen2").eval()
    with torch.no_grad():
        wanted = model(input_ids=IDS).logits
    others = list[Any]()

    def pass_of_another_thread() -> None:
        with torch.no_grad():
            others.append(model(input_ids=IDS).logits)

    def between(module: Any, args: Any) -> None:
        if not others:
            thread = threading.Thread(target=pass_of_another_thread)
            others.append(thread)
            thread.start()
            thread.join(30)

    with torch.no_grad(), model.model.register_forward_pre_hook(between):
        found = hidden_at(model, IDS, ROWS, PLACES)
    torch.testing.assert_close(others[1], wanted)
    torch.testing.assert_close(model.lm_head(found), wanted[ROWS, PLACES])
    assert not model.lm_head._forward_pre_hooks
