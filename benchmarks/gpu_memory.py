"""Most memory of a learner's step as ``gpu.py`` measures it, computed without a card and without numbers.

    python benchmarks/gpu_memory.py
    python benchmarks/gpu_memory.py --cells "3B qlora"

The learner of each row of the section ``training`` is made and makes two steps, of one micro-batch and of two, with tensors
that have shapes and no numbers (``FakeTensorMode``); the storages that are alive after each operation are added up.
Attention is counted as the fused kernels of a card hold it: heads, output, and one float32 number a token and head.
Beside each figure stands what an H200 measured (``results/gpu.json``). What is not counted: workspaces of
kernels, what an operation holds within itself, and the rounding of torch's allocator. Nor are compiled layers.
"""

import argparse
import json
import re
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agentenv.policies.attention import VARLEN, serve_masks
from agentenv.trainers.learner.optimizers import MasterWeights
from agentenv.trainers.learner.packing import micro_batches

from common import RESULTS, common_arguments, finish, run_script  # isort: skip  # sibling scripts
from gpu_learner import SMALL_CARD, STEP_TOKENS, Setup, prepared_learner  # isort: skip
from gpu_models import Plan, ids_of, training_row  # isort: skip

CARD_GIB = 139.8
"""Of an H200, as torch says it: by it the kit chooses micro-batches, and where layers keep their inputs alone."""


class Peak(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the storages that operations made and that are still alive.

    A number that is read is 0, and a truth value true, since there are none.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.known: Any = WeakIdKeyDictionary()
        self.now = self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs the operation and looks what it made."""
        if func is torch.ops.aten.allclose.default:
            return True
        if func is torch.ops.aten._local_scalar_dense.default:
            return args[0].dtype == torch.bool or 0
        made = func(*args, **(kwargs or {}))
        for one in tree_leaves(made):
            if isinstance(one, Tensor) and (storage := one.untyped_storage()) not in self.known:
                self.known[storage] = size = storage.nbytes()
                weakref.finalize(storage, self._freed, size)
                self.now += size
        self.most = max(self.most, self.now)
        return made

    def _freed(self, size: int) -> None:
        self.now -= size


class _Rounded(torch.autograd.Function):
    """A product with weights in 4 bits, which stand in the number format of the product for a moment, on both ways."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, layer: "In4Bits") -> Tensor:
        ctx.layer = layer
        return inputs @ inputs.new_empty(layer.in_features, layer.out_features)

    @staticmethod
    def backward(ctx: Any, *slopes: Any) -> Any:
        return slopes[0] @ slopes[0].new_empty(ctx.layer.out_features, ctx.layer.in_features), None


class In4Bits(torch.nn.Linear):
    """What a linear layer of bitsandbytes holds, whose weights cannot be without numbers."""

    def __init__(self, layer: torch.nn.Linear) -> None:
        super().__init__(layer.in_features, layer.out_features, bias=False, device="meta")
        size = layer.weight.numel()
        held = layer.weight.new_empty(size // 2 + size // 64 + size // 64 // 64, dtype=torch.uint8)
        self.weight = torch.nn.Parameter(held, requires_grad=False)
        self.bias = layer.bias

    def forward(self, input: Tensor) -> Tensor:
        """Outputs [..., out] for inputs [..., in]."""
        found: Tensor = _Rounded.apply(input, self)  # type: ignore[no-untyped-call]
        return found if self.bias is None else found + self.bias


def in_4_bits(model: Any) -> Any:
    """As ``quantize`` does."""
    whole = model.get_output_embeddings()
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if type(layer) is torch.nn.Linear and layer is not whole:
                setattr(parent, name, In4Bits(layer))
    return model.requires_grad_(False)


class _Flash(torch.autograd.Function):
    """What a fused kernel of attention holds: queries, keys, values, the output, and a sum for each token and head."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        rows, heads, tokens, width = query.shape
        found = query.new_empty(rows, tokens, heads, width)
        sums = query.new_empty(rows, heads, tokens, dtype=torch.float32)
        ctx.save_for_backward(query, key, value, found, sums)
        return found

    @staticmethod
    def backward(ctx: Any, *slopes: Any) -> Any:
        return tuple(torch.empty_like(one) for one in ctx.saved_tensors[:3])


def _attend(_: Any, query: Tensor, key: Tensor, value: Tensor, *__: Any, **___: Any) -> tuple[Tensor, None]:
    return _Flash.apply(query, key, value), None  # type: ignore[no-untyped-call]


@contextmanager
def fused_attention() -> Iterator[None]:
    """Within the block attention to rows of one length is that of ``_Flash``."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    serve_masks(VARLEN)
    held = ALL_ATTENTION_FUNCTIONS[VARLEN]
    ALL_ATTENTION_FUNCTIONS.register(VARLEN, _attend)
    try:
        yield
    finally:
        ALL_ATTENTION_FUNCTIONS.register(VARLEN, held)


def _applied(module: torch.nn.Module, change: Any, recurse: bool = True) -> torch.nn.Module:
    """Does what ``Module._apply`` does, which swaps tensors in place and cannot do so while the mode refers to them."""
    for child in module.children() if recurse else ():
        _applied(child, change)
    for held in (module._parameters, module._buffers):
        for name, old in held.items():
            if old is None:
                continue
            new = change(old)
            if new is not old and isinstance(old, torch.nn.Parameter):
                new = torch.nn.Parameter(new, requires_grad=old.requires_grad)
            held[name] = new
    return module


def bytes_of(plan: Plan, setup: Setup, step_tokens: int) -> tuple[int, int]:
    """Bytes of the learner before its first step, and at most, of two steps on rows of one length."""
    context, words = setup.context, setup.shape.vocabulary
    rows = [
        training_row(ids_of(seed, context, words), context // 2) for seed in range(step_tokens // context)
    ]
    # With their numbers, which say how long rows are and where they begin.
    batches = list(micro_batches(rows, setup.micro_tokens, layout="rows"))
    quantized = patch("agentenv.policies.quantized.quantize", in_4_bits)
    applied = patch.object(torch.nn.Module, "_apply", _applied)
    with FakeTensorMode(allow_non_fake_inputs=True), Peak() as peak, fused_attention(), quantized, applied:
        learner = prepared_learner(plan, setup)
        made = peak.now
        # As on a card: one kernel for all that a step does to a weight.
        adam = partial(torch.optim.AdamW, lr=1e-6, fused=True)
        learner.optimizer = MasterWeights(learner._trained, adam)
        for most in (1, 2):  # with Adam's moments, and then with gradients of a micro-batch before
            learner._micro_batches = lambda _, most=most: batches[:most]
            learner.step(rows)
    return made, peak.most


def counted(plan: Plan, setup: Setup, step_tokens: int) -> dict[str, Any]:
    """The figures of a row."""
    made, most = bytes_of(plan, setup, step_tokens)
    return {
        "made_gib": round(made / 2**30, 3),
        "peak_gib": round(most / 2**30, 3),
        "micro_tokens": setup.micro_tokens,
        "gradient_checkpointing": setup.checkpointed,
    }


def setups(plan: Plan) -> list[Setup]:
    """The rows of the section ``training`` that are not compiled."""
    short, long = (64, 128) if plan.tiny else (2048, 16384)
    cells = [
        Setup(size, shape, kind, context, VARLEN, memory=CARD_GIB * 2**30)
        for size, shape in plan.shapes.items()
        for kind in ("full", "lora", "qlora")
        for context in (short, long)
    ]
    last = cells[-1]
    return [*cells, Setup(last.size, last.shape, "qlora", short, VARLEN, memory=SMALL_CARD)]


def measured(path: Path = RESULTS / "gpu.json") -> dict[str, float]:
    """GiB that a card measured, by the name of the row."""
    rows = json.loads(path.read_text(encoding="utf-8"))["sections"]["training"]
    return {name: row["peak_gib"] for name, row in rows.items() if isinstance(row, dict)}


def main() -> None:
    """Counts and reports."""
    parser = common_arguments(__doc__ or "")
    parser.add_argument("--cells", default="", help="a regular expression, for names of rows")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes, for a test")
    args: argparse.Namespace = parser.parse_args()
    plan = Plan.of(
        "cpu", tiny=args.tiny, threads=args.threads, keep=lambda _: None, cells=args.cells, held=frozenset()
    )
    card = {} if args.tiny else measured()
    figures: dict[str, Any] = {"card_gib": CARD_GIB}
    for setup in (setup for setup in setups(plan) if re.search(args.cells, setup.name)):
        figures[setup.name] = counted(plan, setup, 256 if args.tiny else STEP_TOKENS)
        if setup.name in card:
            found = figures[setup.name]["peak_gib"] / card[setup.name]
            figures[setup.name] |= {"measured_gib": card[setup.name], "share": round(found, 3)}
        print(setup.name, figures[setup.name], file=sys.stderr, flush=True)
    lines = [f"{name:<32}{row}" for name, row in figures.items()]
    finish("gpu_memory", args, figures, lines)


if __name__ == "__main__":
    run_script(main)
