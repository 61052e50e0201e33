"""What the key/value cache of episodes costs a turn of ``HFPolicy``: bytes that are copied, and processor time.

    python benchmarks/episode_cache.py

Episodes of one prompt play turns: some tokens are observed, some are sampled. In ``all go on`` every episode plays every
turn; in ``one ends`` the first that is left ends before each turn; in ``rewound`` each turn goes back to the end of the
first. ``copied`` and ``cleared`` are the bytes of a turn that are written to the cache beside what the model's own layers
write, in a run of its own whose operations are counted. Processor time is that of a turn in another run. The first turn,
which reads the prompt, is left out of both.
"""

import argparse
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agentenv.core.types import Sampling
from agentenv.policies.decoding import Request
from agentenv.policies.fakes import ByteTokenizer
from agentenv.policies.hf import HFPolicy

from common import common_arguments, finish, load, run_script  # isort: skip  # sibling script
from gpu_models import random_weights  # isort: skip
from model_flops import ModelShape  # isort: skip

SCENARIOS = ("all go on", "one ends", "rewound")
_MIB = 2**20
_aten = torch.ops.aten
_CLEARS = (_aten.zero_, _aten.zeros, _aten.fill_, _aten.new_zeros)


class Written(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes that are written to caches, which alone have five dimensions and more."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs the operation; what it made or filled is counted unless it is a view."""
        made = func(*args, **(kwargs or {}))
        packet = func.overloadpacket
        source = args[2] if packet in (_aten.index_put_, _aten._index_put_impl_) else made
        large = isinstance(source, Tensor) and source.dim() >= 5
        if large and packet in (*_CLEARS, _aten.copy_, _aten.clone, _aten.index, _aten.index_put_):
            self.bytes["cleared" if packet in _CLEARS else "copied"] += source.numel() * source.element_size()
        return made


def turns(
    policy: HFPolicy, scenario: str, args: argparse.Namespace, written: Written | None = None
) -> list[tuple[float, float]]:
    """Plays the turns of one scenario; of each but the first, processor seconds in all and within the model."""
    prompt, spent = [j % 250 for j in range(args.prompt)], []
    ids = dict.fromkeys(range(args.episodes), prompt)  # read once for all episodes
    for turn in range(args.turns + 1):
        asked = list(ids)[turn if scenario == "one ends" else 0 :]
        sampling = Sampling(args.sampled, 1.0, seed=turn)
        within, began = Clock.of(policy), time.process_time()
        done = policy._batch([Request(ids[i], sampling, str(i)) for i in asked])
        spent.append((time.process_time() - began, within.seconds))
        if turn == 0:
            after = {i: [*ids[i], *one.ids] for i, one in zip(asked, done, strict=True)}
            if written is not None:
                written.bytes.clear()
        for i, one in zip(asked, done, strict=True):
            before = after[i] if scenario == "rewound" or turn == 0 else [*ids[i], *one.ids]
            ids[i] = [*before, *[(turn + i + j) % 250 for j in range(args.observed)]]
        if scenario == "one ends":
            policy.release(str(asked[0]))
    return spent[1:]


class Clock:
    """Processor seconds within the forward passes of a policy."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @classmethod
    def of(cls, policy: HFPolicy) -> "Clock":
        """One that watches ``policy`` from now on."""
        clock, forward = cls(), type(policy)._forward

        def timed(*given: Any, **named: Any) -> Tensor:
            began = time.process_time()
            try:
                return forward(policy, *given, **named)
            finally:
                clock.seconds += time.process_time() - began

        policy._forward = timed  # type: ignore[method-assign]
        return clock


def measured(scenario: str, args: argparse.Namespace) -> dict[str, float]:
    """The figures of one scenario, for a turn."""
    shape = ModelShape(args.width, args.layers, args.heads, args.key_value_heads, 4 * args.width, 257)
    model = random_weights(shape, args.context, "cpu", torch.float32)
    with Written() as written:
        turns(HFPolicy(model, ByteTokenizer()), scenario, args, written)
    spent = turns(HFPolicy(model, ByteTokenizer()), scenario, args)
    whole, within = (sum(one[part] for one in spent) / len(spent) for part in (0, 1))
    return {
        "copied_mib": round(written.bytes["copied"] / args.turns / _MIB, 1),
        "cleared_mib": round(written.bytes["cleared"] / args.turns / _MIB, 1),
        "processor_seconds": round(whole, 3),
        "outside_the_model": round(whole - within, 3),
    }


def main() -> None:
    """Measures every scenario and reports."""
    parser = common_arguments(__doc__ or "")
    numbers = {"layers": 8, "width": 512, "heads": 8, "key-value-heads": 8, "context": 4096}
    numbers |= {"episodes": 4, "prompt": 1900, "observed": 100, "sampled": 16, "turns": 2}
    for name, number in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=number)
    args = parser.parse_args()
    if args.turns >= args.episodes:
        parser.error(
            f"of {args.episodes} episodes one ends before each of {args.turns} turns: take more episodes"
        )
    torch.set_num_threads(args.threads)
    figures: dict[str, Any] = {name: getattr(args, name.replace("-", "_")) for name in numbers} | load()
    figures["a_turn"] = {scenario: measured(scenario, args) for scenario in SCENARIOS}
    lines = [f"{scenario:<10} {one}" for scenario, one in figures["a_turn"].items()]
    finish("episode_cache", args, figures, lines)


if __name__ == "__main__":
    run_script(main)
