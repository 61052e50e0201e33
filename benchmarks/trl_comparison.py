"""Seconds of one GRPO step, against TRL's GRPOTrainer on the same model, task, batch and number of sampled tokens.

The comparison is a grid: tokens sampled in a turn; one turn with the gold passages in the prompt, or three turns with a
passage after each of the first two; and a prompt that the episodes of a group share, or one of its own for each episode.
TRL generates by itself where it can (one turn, shared prompts) and through ``rollout_func`` elsewhere. Both sides sample
exactly ``--tokens`` tokens a turn: the end-of-turn token is one that the model cannot produce, and no text stops a turn.
TRL gets the number of rows a pass that is fastest for it in each cell, out of ``--trl-batch``.

    python benchmarks/trl_comparison.py --policy tiny
"""

import argparse
import asyncio
import dataclasses
import importlib.util
import itertools
import statistics
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from common import arguments, finish, run_script, write
from common import load as load_of_machine
from reading import Reading, questions

from agentenv.core.chat import InlineFormat
from agentenv.core.rollout import EpisodeSpec, RolloutConfig, rollout
from agentenv.core.types import Task
from agentenv.policies.hf import HFPolicy
from agentenv.policies.policy_spec import make_policy
from agentenv.trainers.credit.outcome import group_relative
from agentenv.trainers.learner.learner import Learner, Objective, rows_of

_LEARNING_RATE = 1e-5  # both sides
_NEVER = "<|never|>"


@dataclass(frozen=True)
class Setting:
    """What both sides do in one step."""

    policy: str
    tasks: list[Task]
    """One for each group where its episodes share a prompt, otherwise one for each episode."""
    groups: int
    group_size: int
    tokens: int
    """Sampled in each turn."""
    steps: int
    """Warm-up included."""

    def task(self, group: int, member: int) -> Task:
        """The task of one episode."""
        shared = len(self.tasks) == self.groups
        return self.tasks[group if shared else group * self.group_size + member]

    @property
    def own_prompts(self) -> bool:
        """Whether every episode has a prompt of its own."""
        return len(self.tasks) > self.groups


@dataclass
class Measured:
    """What one side did."""

    ends: list[tuple[float, float]] = field(default_factory=list)
    """When each step ended: by the clock, and in seconds of the processor that this process had taken."""
    tokens: dict[str, int] = field(default_factory=dict)
    """Of the last step: episodes, and their prompt, sampled and observed tokens."""

    def mark(self) -> None:
        """A step ends, or the first one begins."""
        self.ends.append((time.perf_counter(), time.process_time()))

    def summary(self, warmup: int) -> dict[str, Any]:
        """Seconds of each measured step by the clock and of the processor, their medians, and the counts."""
        steps = list(zip(self.ends[warmup:-1], self.ends[warmup + 1 :], strict=True))
        seconds, processor = (
            [round(after[kind] - before[kind], 4) for before, after in steps] for kind in (0, 1)
        )
        return {
            "median_seconds": statistics.median(seconds),
            "median_processor_seconds": statistics.median(processor),
            "seconds": seconds,
            "processor_seconds": processor,
            "tokens": self.tokens,
        }


def load(spec: str) -> HFPolicy:
    """The policy with an end-of-turn token beyond its vocabulary: every row samples its full length."""
    policy = make_policy(spec)
    tokenizer, model = policy.tokenizer, policy.model
    unused = model.config.vocab_size - len(tokenizer)
    tokenizer.add_tokens([f"<|unused{i}|>" for i in range(unused)])
    tokenizer.add_special_tokens({"eos_token": _NEVER})
    model.generation_config.eos_token_id = None
    policy = HFPolicy(model, tokenizer)
    # Without the end of the chat template, which the model can sample.
    policy.ends = (tokenizer.eos_token_id,)
    return policy


def run_ours(setting: Setting) -> Measured:
    """The rollout loop, the group-relative estimator and the learner, as the trainer calls them."""
    policy = load(setting.policy)
    chat = InlineFormat(policy.tokenizer)
    learner = Learner(policy.model, Objective(), learning_rate=_LEARNING_RATE)
    config = RolloutConfig(
        context_tokens=policy.model.config.max_position_embeddings, turn_tokens=setting.tokens
    )
    size, measured = setting.group_size, Measured()
    measured.mark()
    for step in range(setting.steps):
        specs = [
            EpisodeSpec(
                Reading(), setting.task(group, i), seed=1000 * step + group * size + i, group_id=str(group)
            )
            for group in range(setting.groups)
            for i in range(size)
        ]
        played = asyncio.run(rollout(specs, policy, chat, config, name=f"step-{step}"))
        groups = [played[i : i + size] for i in range(0, len(played), size)]
        rows = [row for group in groups for row in rows_of(group, group_relative(group))]
        learner.step(rows)
        policy.set_weights()
        measured.mark()
    sampled = sum(int(row.mask.sum()) for row in rows)
    prompts = sum(len(trajectory.segments[0].ids) for trajectory in played)
    seen = sum(len(row.ids) for row in rows) - sampled - prompts
    measured.tokens = {"episodes": len(rows), "prompt": prompts, "sampled": sampled, "observed": seen}
    return measured


def run_trl(setting: Setting, batch: int) -> Measured:
    """``GRPOTrainer`` with the prompts rendered beforehand; ``batch`` rows a forward and backward pass."""
    from trl_side import train

    measured = Measured()
    train(setting, load(setting.policy), batch, measured)
    return measured


def compare(args: argparse.Namespace, tokens: int, turns: int, *, own_prompts: bool) -> dict[str, Any]:
    """Both sides on one cell of the grid."""
    count = args.questions * args.group if own_prompts else args.questions
    tasks = questions(count, in_prompt=turns == 1)
    setting = Setting(args.policy, tasks, args.questions, args.group, tokens, args.warmup + args.steps)
    ours = run_ours(setting).summary(args.warmup)
    trials = {}
    if len(args.trl_batch) > 1:
        trial = dataclasses.replace(setting, steps=2)
        trials = {str(batch): run_trl(trial, batch).summary(1)["median_seconds"] for batch in args.trl_batch}
    batch = int(min(trials, key=lambda name: float(trials[name]))) if trials else args.trl_batch[0]
    trl = run_trl(setting, batch).summary(args.warmup)
    if ours["tokens"] != trl["tokens"]:
        sys.exit(f"the two sides did different work: {ours['tokens']} against {trl['tokens']} tokens a step")
    return {
        "tokens_a_turn": tokens,
        "turns": turns,
        "prompts": "own" if own_prompts else "shared",
        "agentenv": ours,
        "trl": trl | {"rows_a_pass": batch, "trials_seconds": trials},
        "ratio": trl["median_seconds"] / ours["median_seconds"],
        "processor_ratio": trl["median_processor_seconds"] / ours["median_processor_seconds"],
    }


def main() -> None:
    """Measures and reports; the result file is written after every cell."""
    parser = arguments(__doc__ or "", steps=3)
    parser.add_argument("--questions", type=int, default=16, help="groups a step")
    parser.add_argument("--group", type=int, default=8, help="episodes a group")
    parser.add_argument(
        "--tokens", type=int, nargs="+", default=[9, 64, 256], help="tokens sampled in each turn"
    )
    parser.add_argument("--turns", type=int, nargs="+", default=[1, 3], choices=(1, 3))
    parser.add_argument("--prompts", nargs="+", default=["shared", "own"], choices=("shared", "own"))
    parser.add_argument(
        "--trl-batch",
        type=int,
        nargs="+",
        default=[128, 32],
        help="rows that TRL puts through at once; the fastest counts",
    )
    parser.set_defaults(warmup=1)
    args = parser.parse_args()
    missing = [name for name in ("trl", "datasets") if importlib.util.find_spec(name) is None]
    if missing:
        sys.exit(
            f"{' and '.join(missing)} must be installed for this comparison: pip install 'trl>=1.16' datasets"
        )
    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)
    before, cells = load_of_machine(), []
    for tokens, turns, prompts in itertools.product(args.tokens, args.turns, args.prompts):
        cells.append(compare(args, tokens, turns, own_prompts=prompts == "own"))
        print(line(cells[-1]), file=sys.stderr, flush=True)
        figures = {**before, "threads": args.threads, "episodes": args.questions * args.group, "cells": cells}
        write("trl_comparison", args, figures)
    finish("trl_comparison", args, figures, [line(cell) for cell in cells])


def line(cell: dict[str, Any]) -> str:
    """One cell in one line."""
    return (
        f"{cell['tokens_a_turn']:>4} tokens a turn, {cell['turns']} turns, {cell['prompts']:<6} prompts: "
        f"agentenv {cell['agentenv']['median_seconds']:7.2f} s, TRL {cell['trl']['median_seconds']:7.2f} s "
        f"({cell['trl']['rows_a_pass']} rows a pass), {cell['ratio']:.2f} times; "
        f"in processor time {cell['processor_ratio']:.2f} times"
    )


if __name__ == "__main__":
    run_script(main)
