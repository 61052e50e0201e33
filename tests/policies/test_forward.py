"""Forward passes of the sampler and the learner: what they give beside passes of other threads."""

import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the train extra")

from agentenv.policies.fake_architectures import tiny_model  # noqa: E402
from agentenv.policies.forward import logits_at  # noqa: E402


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
