"""How much faster than TRL's step any step could be that does the same arithmetic in float32 on this machine.

The matrix products that a step cannot avoid are counted for every cell of ``trl_comparison.json``: each token once forward
in sampling, and once forward and twice backward in the update, where a prompt that a group shares counts once. They are
divided by the rates at which this machine multiplies matrices of the policy's shapes: thousands of rows at once for what is
read and trained, and one row an episode for what is sampled token by token. Attention, norms, the optimizer, tokenization
and Python are left out, so no program reaches this limit.

    python benchmarks/trl_limit.py
    python benchmarks/trl_limit.py --threads 1 --compared trl_comparison_one_thread.json
"""

import json
import time
from typing import Any

import torch
from common import RESULTS, common_arguments, finish, run_script
from common import load as load_of_machine
from model_flops import ModelShape

_READ_ROWS = 2048
POLICY = ModelShape(hidden=192, layers=4, heads=6, key_value_heads=6, inner=512, vocabulary=1040)
"""The policy that comes with the package."""


def rate(shape: ModelShape, rows: int, seconds: float) -> float:
    """Operations a second of one layer's products with ``rows`` rows: of each product the fastest within ``seconds``."""
    h, i = shape.hidden, shape.inner
    spent, work = 0.0, 0
    for inputs, outputs, count in ((h, h, 4), (h, i, 2), (i, h, 1)):
        spent += count * fastest(rows, inputs, outputs, seconds)
        work += count * 2 * rows * inputs * outputs
    return work / spent


def fastest(rows: int, inputs: int, outputs: int, seconds: float) -> float:
    """Seconds of one product of [rows, inputs] and [inputs, outputs], into memory that exists already."""
    left, right, out = torch.randn(rows, inputs), torch.randn(inputs, outputs), torch.empty(rows, outputs)
    # The processor time of one thread is what the thread took, whatever else the machine does.
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    best, end = float("inf"), clock() + seconds
    while clock() < end:
        begin = clock()
        torch.mm(left, right, out=out)
        best = min(best, clock() - begin)
    return best


def minimum_flops(shape: ModelShape, cell: dict[str, Any], group: int) -> tuple[int, int]:
    """Operations of one step: of what is read or trained, and of what is sampled token by token.

    A matrix of P entries takes 2 P operations a token forward and 4 P backward. The output layer is applied to sampled
    tokens alone.

    Args:
        shape: Of the policy.
        cell: Of ``trl_comparison.json``: ``prompts`` and the counts of tokens of a step.
        group: Episodes of a group.
    """
    tokens = cell["agentenv"]["tokens"]
    prompt = tokens["prompt"] // (group if cell["prompts"] == "shared" else 1)
    read, sampled = prompt + tokens["observed"], tokens["sampled"]
    head = shape.vocabulary * shape.hidden
    together = 2 * shape.layer_parameters * (4 * read + 3 * sampled) + 6 * head * sampled
    return together, 2 * (shape.layer_parameters + head) * sampled


def main() -> None:
    """Measures the rates and prints the limit of every cell."""
    parser = common_arguments(__doc__ or "")
    parser.add_argument("--group", type=int, default=8, help="episodes a group, as the comparison had")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each matrix product is repeated")
    published = sorted(path.name for path in RESULTS.glob("trl_comparison*.json"))
    parser.add_argument(
        "--compared", default="trl_comparison.json", choices=published, help="result file of the comparison"
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    before = load_of_machine()
    compared = json.loads((RESULTS / args.compared).read_text(encoding="utf-8"))
    # On one thread a step takes the processor alone, and other programs do not count.
    taken = "median_processor_seconds" if compared["threads"] == 1 else "median_seconds"
    together = rate(POLICY, _READ_ROWS, args.seconds)
    singly = rate(POLICY, compared["episodes"], args.seconds)
    cells = []
    for cell in compared["cells"]:
        many, one_by_one = minimum_flops(POLICY, cell, args.group)
        seconds = many / together + one_by_one / singly
        cells.append(
            {
                "tokens_a_turn": cell["tokens_a_turn"],
                "turns": cell["turns"],
                "prompts": cell["prompts"],
                "limit_seconds": round(seconds, 4),
                "agentenv_over_limit": cell["agentenv"][taken] / seconds,
                "largest_ratio": cell["trl"][taken] / seconds,
            }
        )
    rates = {"many_rows": round(together / 1e9, 1), "one_row_an_episode": round(singly / 1e9, 1)}
    figures = {**before, "threads": args.threads, "compared": args.compared, "gflops": rates, "cells": cells}
    finish("trl_limit", args, figures, [f"{rates} billion operations a second", *map(line, cells)])


def line(cell: dict[str, Any]) -> str:
    """One cell in one line."""
    return (
        f"{cell['tokens_a_turn']:>4} tokens a turn, {cell['turns']} turns, {cell['prompts']:<6} prompts: "
        f"at least {cell['limit_seconds']:.2f} s; agentenv takes {cell['agentenv_over_limit']:.2f} times that; "
        f"nothing is faster than TRL by more than {cell['largest_ratio']:.2f} times"
    )


if __name__ == "__main__":
    run_script(main)
