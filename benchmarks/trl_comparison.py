"""Seconds of one GRPO step, against TRL's GRPOTrainer on the same model, task, batch and number of sampled tokens.

(a) one turn with the gold passages in the prompt; (b) three turns with a passage after each of the first two, TRL
through ``rollout_func`` with its own generation. Both sides sample exactly ``--tokens`` tokens a turn: the end-of-turn
token is one that the model cannot produce, and there are no stop strings.

    python benchmarks/trl_comparison.py --policy tiny --steps 7
"""

import argparse
import asyncio
import importlib.util
import statistics
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from common import arguments, finish
from reading import Reading, questions

from agentenv.core.chat import InlineFormat
from agentenv.core.rollout import RolloutConfig, Start, rollout
from agentenv.core.types import Task
from agentenv.policies.hf import HFPolicy
from agentenv.policies.spec import make_policy
from agentenv.trainers.advantages import group_relative
from agentenv.trainers.learner import Learner, Objective, rows_of

_BAR = 1.5
_LEARNING_RATE = 1e-5  # both sides
_NEVER = "<|never|>"


@dataclass(frozen=True)
class Setting:
    """What both sides do in one step."""

    policy: str
    tasks: list[Task]
    group_size: int
    tokens: int  # sampled in each turn
    steps: int  # warm-up included


@dataclass
class Measured:
    """What one side did."""

    ends: list[float] = field(default_factory=list)
    """When each step ended."""
    tokens: dict[str, int] = field(default_factory=dict)
    """Of the last step: episodes, and their prompt, sampled and observed tokens."""

    def summary(self, warmup: int) -> dict[str, Any]:
        """Seconds of each measured step, their median, and the counts."""
        pairs = zip(self.ends[warmup:-1], self.ends[warmup + 1 :], strict=True)
        seconds = [round(after - before, 4) for before, after in pairs]
        return {"median_seconds": statistics.median(seconds), "seconds": seconds, "tokens": self.tokens}


def load(spec: str) -> HFPolicy:
    """The policy with an end-of-turn token beyond its vocabulary: every row samples its full length."""
    policy = make_policy(spec)
    tokenizer, model = policy.tokenizer, policy.model
    unused = model.config.vocab_size - len(tokenizer)
    tokenizer.add_tokens([f"<|unused{i}|>" for i in range(unused)])
    tokenizer.add_special_tokens({"eos_token": _NEVER})
    model.generation_config.eos_token_id = None
    return HFPolicy(model, tokenizer)


def run_ours(setting: Setting) -> Measured:
    """The rollout loop, the group-relative estimator and the learner, as the trainer calls them."""
    policy = load(setting.policy)
    chat = InlineFormat(policy.tokenizer)
    learner = Learner(policy.model, Objective(), learning_rate=_LEARNING_RATE)
    config = RolloutConfig(
        context_tokens=policy.model.config.max_position_embeddings, turn_tokens=setting.tokens
    )
    size, measured = setting.group_size, Measured([time.perf_counter()])
    for step in range(setting.steps):
        starts = [
            Start(Reading(), task, seed=1000 * step + place * size + i, group_id=task.id)
            for place, task in enumerate(setting.tasks)
            for i in range(size)
        ]
        played = asyncio.run(rollout(starts, policy, chat, config, name=f"step-{step}"))
        groups = [played[i : i + size] for i in range(0, len(played), size)]
        rows = [row for group in groups for row in rows_of(group, group_relative(group))]
        learner.step(rows)
        policy.updated()
        measured.ends.append(time.perf_counter())
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


def compare(args: argparse.Namespace, *, in_prompt: bool) -> dict[str, Any]:
    """Both sides on one setting."""
    tasks = questions(args.questions, in_prompt=in_prompt)
    setting = Setting(args.policy, tasks, args.group, args.tokens, args.warmup + args.steps)
    ours = run_ours(setting).summary(args.warmup)
    trl = run_trl(setting, args.trl_batch).summary(args.warmup)
    if ours["tokens"] != trl["tokens"]:
        sys.exit(f"the two sides did different work: {ours['tokens']} against {trl['tokens']} tokens a step")
    return {"agentenv": ours, "trl": trl, "ratio": trl["median_seconds"] / ours["median_seconds"]}


def main() -> None:
    """Measures and reports."""
    parser = arguments(__doc__ or "", steps=7)
    parser.add_argument("--questions", type=int, default=16, help="questions a step")
    parser.add_argument("--group", type=int, default=8, help="episodes a question")
    parser.add_argument("--tokens", type=int, default=9, help="tokens sampled in each turn")
    parser.add_argument("--trl-batch", type=int, default=128, help="rows that TRL puts through at once")
    args = parser.parse_args()
    missing = [name for name in ("trl", "datasets") if importlib.util.find_spec(name) is None]
    if missing:
        sys.exit(
            f"{' and '.join(missing)} must be installed for this comparison: pip install 'trl>=1.16' datasets"
        )
    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)
    figures = {
        "threads": args.threads,
        "trl_batch": args.trl_batch,
        "one_turn": compare(args, in_prompt=True),
        "three_turns": compare(args, in_prompt=False),
    }
    figures["bar"] = {"one_turn": _BAR, "met": figures["one_turn"]["ratio"] >= _BAR}
    finish("trl_comparison", args, figures, table(figures))


def table(figures: dict[str, Any]) -> list[str]:
    """The comparison in words."""
    lines = []
    for name in ("one_turn", "three_turns"):
        case = figures[name]
        lines.append(f"{name}: {case['agentenv']['tokens']} tokens a step on both sides")
        for side in ("agentenv", "trl"):
            lines.append(f"  {side:<10}{case[side]['median_seconds']:8.3f} s a step")
        lines.append(f"  {case['ratio']:.2f} times faster")
    verdict = "met" if figures["bar"]["met"] else "missed"
    return [*lines, f"at least {_BAR} times faster in one turn: {verdict}"]


if __name__ == "__main__":
    main()
