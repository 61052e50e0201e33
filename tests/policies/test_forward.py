"""Forward passes of the sampler and the learner: what they give beside passes of other threads."""

import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the train extra")

from agentenv.policies.fake_architectures import tiny_model  # noqa: E402
from agentenv.policies.forward import cache_argument, logits_at, require_support  # noqa: E402


def test_a_pass_of_another_thread_gets_all_its_logits() -> None:
    """A checkpoint is looked at while episodes that were given up still sample."""
    model = tiny_model("qwen2").eval()
    one, two = torch.arange(8)[None], torch.arange(12).reshape(2, 6)
    with torch.no_grad():
        plain, wanted = model(input_ids=one).logits, model(input_ids=two).logits
    others = list[Any]()

    def pass_of_another_thread() -> None:
        with torch.no_grad():
            others.append(model(input_ids=one).logits)

    def between(module: Any, args: Any) -> None:
        if not others:
            thread = threading.Thread(target=pass_of_another_thread)
            others.append(thread)
            thread.start()
            thread.join(30)

    # The decoder runs while the head is already set to pick places.
    with torch.no_grad(), model.model.register_forward_pre_hook(between):
        found = logits_at(model, two, torch.tensor([0, 1]), torch.tensor([5, 2]))
    assert len(others) == 2
    torch.testing.assert_close(others[1], plain)
    torch.testing.assert_close(found, wanted[[0, 1], [5, 2]])


def test_the_cache_is_handed_over_under_whichever_name_a_model_has_for_it() -> None:
    """Transformers calls it ``cache`` from 5.24 on, and before that ``past_key_values``."""
    model = tiny_model("llama").eval()
    home: Any = type(model)

    class Cache(home):  # type: ignore[misc]
        def forward(self, cache: Any = None, **inputs: Any) -> Any:
            return super().forward(**{cache_argument(home): cache}, **inputs)

    class PastKeyValues(home):  # type: ignore[misc]
        def forward(self, past_key_values: Any = None, **inputs: Any) -> Any:
            return super().forward(**{cache_argument(home): past_key_values}, **inputs)

    for kind in (Cache, PastKeyValues):
        model.__class__ = kind
        assert require_support(model, 32).layers == model.config.num_hidden_layers
