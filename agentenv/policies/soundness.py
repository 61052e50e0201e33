"""Whether weights, and what a model computes with them, are finite numbers.

A run that diverged computes NaN. A policy of NaN still writes some token, and would score as one that knows nothing.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentenv.errors import CheckpointMismatch, Diverged
from agentenv.policies.lora import base_and_adapter

if TYPE_CHECKING:
    from torch import Tensor

_PROBE_TOKENS = 8


def first_not_finite(weights: "Iterable[tuple[str, Tensor]]") -> str | None:
    """The name of the first weight that holds NaN or an infinity; None where there is none."""
    return next((name for name, value in weights if not _is_finite(value)), None)


def _is_finite(value: "Tensor") -> bool:
    if not value.is_floating_point():
        return True
    wide = value.float() if value.element_size() == 1 else value  # 8-bit floats have no such test
    return bool(wide.isfinite().all())


def refuse_diverged(model: Any, what: str) -> None:
    """Does nothing where the weights of ``model`` and its logits on a few tokens are finite.

    Args:
        model: A transformers causal language model, with adapters or without.
        what: How the error calls the weights.

    Raises:
        Diverged: they are not.
    """
    import torch

    # Buffers may hold infinities, as masks do.
    if (name := first_not_finite(model.named_parameters())) is not None:
        raise Diverged(f"{what} hold numbers that are not finite ({name})")
    device = next(model.parameters()).device
    ids = torch.arange(
        min(_PROBE_TOKENS, int(model.config.get_text_config(decoder=True).vocab_size)), device=device
    )[None]
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits
    if not bool(logits.float().logsumexp(-1).isfinite().all()):
        raise Diverged(f"{what} are finite and so large that the model's logits are not")


def refuse_not_finite(folder: Path) -> None:
    """Does nothing where every weight in the safetensors files of ``folder``, and of its adapter's base, is finite.

    Raises:
        CheckpointMismatch: one is not.
    """
    from safetensors import safe_open

    base, adapter = base_and_adapter(folder)
    for path in sorted({*base.glob("*.safetensors"), *(adapter or base).glob("*.safetensors")}):
        with safe_open(path, framework="pt") as file:
            name = first_not_finite((name, file.get_tensor(name)) for name in file.keys())  # noqa: SIM118
        if name is not None:
            raise not_finite(folder, name)


def not_finite(folder: Path | str, name: str) -> CheckpointMismatch:
    """The error for a folder whose weight ``name`` holds NaN or an infinity."""
    return CheckpointMismatch(
        f"the weights in {folder} hold numbers that are not finite ({name}): they are those of a run that diverged, "
        "or damaged; take an earlier checkpoint"
    )
