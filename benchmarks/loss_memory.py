"""Memory of the loss at the end of a forward and backward pass: all logits at once, or a chunk of tokens at a time.

    python benchmarks/loss_memory.py

The loss is the sum of the log-probs of ``--tokens`` tokens over ``--words`` words, from hidden states of width ``--width``;
the output layer is in bfloat16 and trained. ``counted`` runs it without numbers and adds up the tensors that are
alive after each operation, at full size. ``measured`` runs it in a process of its own and reads the peak of its resident
memory from the kernel; all logits at once are measured at ``--whole-tokens``, as the full size may not fit into memory.
Both say how many bytes there are at most beside the weights, the hidden states and the targets. Gradients are counted: that
of the weights is as large as the weights themselves.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agentenv.policies.output_head import WHOLE, LogitTail
from agentenv.trainers.learner.chunked import chunked_logprobs, whole_logprobs

from common import common_arguments, finish, load, run_script  # isort: skip  # sibling script

WAYS = ("whole", "chunked")
_DEADLINE_S = 1800.0
_MIB = 2**20


class Alive(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the storages that operations made and that are still alive."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.held: dict[int, tuple[StorageWeakRef, int]] = {}
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs the operation and looks what there is after it."""
        made = func(*args, **(kwargs or {}))
        before = {
            one.untyped_storage()._cdata for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)
        }
        for one in tree_leaves(made):
            if isinstance(one, Tensor) and (storage := one.untyped_storage())._cdata not in before:
                self.held[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())  # type: ignore[no-untyped-call]
        self.held = {place: pair for place, pair in self.held.items() if not pair[0].expired()}  # type: ignore[no-untyped-call]
        self.most = max(self.most, sum(size for _, size in self.held.values()))
        return made


def given(tokens: int, words: int, width: int) -> tuple[Tensor, Tensor, nn.Linear]:
    """Hidden states, targets and an output layer, in bfloat16."""
    layer = nn.Linear(width, words, bias=False, dtype=torch.bfloat16)
    hidden = torch.randn(tokens, width, dtype=torch.bfloat16).requires_grad_()
    return hidden, torch.randint(words, (tokens,)), layer


def passed(way: str, hidden: Tensor, targets: Tensor, layer: nn.Linear) -> None:
    """The forward and the backward pass."""
    if way == "whole":
        logprobs = whole_logprobs(layer(hidden), targets, 1.0)[0]
    else:
        chunk = max(1, WHOLE // layer.out_features)
        logprobs = chunked_logprobs(hidden, targets, layer, LogitTail(), 1.0, chunk=chunk)[0]
    logprobs.sum().backward()  # type: ignore[no-untyped-call]


def counted(way: str, tokens: int, words: int, width: int) -> dict[str, Any]:
    """Most bytes of tensors, computed without numbers."""
    with FakeTensorMode():
        inputs = given(tokens, words, width)
        with Alive() as alive:
            passed(way, *inputs)
    return {"tokens": tokens, "mib": round(alive.most / _MIB)}


def resident(name: str) -> int:
    """Bytes of resident memory of this process, now (``VmRSS``) or at most (``VmHWM``)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def measured_here(way: str, tokens: int, words: int, width: int) -> dict[str, Any]:
    """Peak of the resident memory of this process, once a few tokens have loaded what the libraries need."""
    hidden, targets, layer = given(tokens, words, width)
    passed(way, hidden[:8].detach().requires_grad_(), targets[:8], layer)
    layer.zero_grad(set_to_none=True)
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # sets the peak back
    began = time.perf_counter()
    passed(way, hidden, targets, layer)
    return {
        "tokens": tokens,
        "mib": round((resident("VmHWM") - before) / _MIB),
        "seconds": round(time.perf_counter() - began, 1),
    }


def measured(way: str, tokens: int, args: argparse.Namespace) -> dict[str, Any]:
    """The same in a process of its own."""
    sizes = ["--words", str(args.words), "--width", str(args.width), "--threads", str(args.threads)]
    command = [sys.executable, __file__, "--child", way, "--tokens", str(tokens), *sizes]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=_DEADLINE_S)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    """Counts, measures and reports."""
    parser = common_arguments(__doc__ or "")
    parser.add_argument("--tokens", type=int, default=8192, help="trained tokens of a micro-batch")
    parser.add_argument("--words", type=int, default=151_936, help="words of the vocabulary")
    parser.add_argument("--width", type=int, default=896, help="width of the hidden states")
    parser.add_argument(
        "--whole-tokens", type=int, default=2048, help="tokens at which all logits are measured"
    )
    parser.add_argument("--child", choices=WAYS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    if args.child:
        print(json.dumps(measured_here(args.child, args.tokens, args.words, args.width)))
        return
    sizes = {"words": args.words, "width": args.width, "dtype": "bfloat16", "whole_values": WHOLE}
    figures: dict[str, Any] = sizes | load()
    figures["weights_mib"] = round(args.words * args.width * 2 / _MIB)
    figures["counted"] = {way: counted(way, args.tokens, args.words, args.width) for way in WAYS}
    tokens = {"whole": args.whole_tokens, "chunked": args.tokens}
    figures["measured"] = {way: measured(way, tokens[way], args) for way in WAYS}
    lines = [
        f"{way:<8} {how:<9} {one['tokens']:>6} tokens {one['mib']:>7} MiB beside the weights"
        for how in ("counted", "measured")
        for way, one in figures[how].items()
    ]
    finish("loss_memory", args, figures, lines)


if __name__ == "__main__":
    run_script(main)
