"""Do trees whose forks lie in a window of turns vary more than full trees and independent episodes?

Groups of eight slots about the same unseen questions of one and two hops are played by a policy that is not trained further:
as independent episodes, as the full tree of BranchGRPO, as the tree of Dynamic-TreeRPO (arXiv:2509.23352) whose window of
two turns is sampled at temperatures of 1.2 and .8 while other turns are greedy, and as the same tree at a temperature of 1.
Measured for each group are its leaves, the tokens that were sampled for it, its different first actions and different
sequences of actions, and whether its rewards differ, without which it teaches nothing. Independent episodes are cut besides
to as many as the tokens of each tree pay for.

    agentenv train laptop-search --optimizer.steps 4 --threads 1 --out runs/four
    python benchmarks/tree_variety.py --policy hf:runs/four/policy --threads 1

Expected before this policy was played, and after ten questions with the shipped policy, which mostly guesses at once: a full
tree reaches some five of eight leaves and a window six, for a little less a leaf than an independent episode. The window has
more first actions than the full tree, because its first turn forks and is warmer. At equal tokens independent episodes have
more different first actions than either tree, since each begins anew, and as often rewards that differ.
"""

import argparse
import asyncio
import os
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from agentenv.core.rollout import EpisodeSpec
from agentenv.core.trajectory import Trajectory
from agentenv.data.sources import SourceConfig
from agentenv.data.world_config import WorldConfig
from agentenv.evaluation.statistics.significance import paired_bootstrap
from agentenv.trainers.config.config_files import load_config
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.strategies.rollout_context import RolloutContext
from agentenv.trainers.strategies.strategies import get_strategy, play_groups

from common import common_arguments, finish, interval, load, run_script  # isort: skip  # a sibling script

Json = dict[str, Any]
SLOTS = 8
TREE: Json = {"roots": 2, "width": 2, "depth": 2, "fork_at": "every_turn"}
WINDOW: Json = TREE | {
    "window": 2,
    "stride": 1,
    "hold": 20,
    "turns": 3,
    "outside_temperature": 0.0,
}
ARMS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "independent": ("plain", {}),
    "full tree": ("tree", TREE),
    "window": ("tree", WINDOW | {"temperatures": (1.2, 0.8)}),
    "window at 1": ("tree", WINDOW | {"temperatures": (1.0, 1.0)}),
}
MEASURES = ("leaves", "tokens", "first_actions", "sequences", "differ")
_AT_ONCE = 10
"""Groups that are played together."""


def unseen(questions: int, seed: int, policy: str) -> TrainConfig:
    """``laptop-search`` with that many unseen questions of one and two hops as its test, and with ``policy``."""
    config = load_config("laptop-search")
    world = WorldConfig(
        seed=seed, documents=1000, questions=questions, families=("lookup", "bridge"), split="test"
    )
    return config.model_copy(update={"policy": policy, "test": SourceConfig(limit=questions, world=world)})


def groups_of(config: TrainConfig, strategy: str, options: Mapping[str, Any]) -> list[list[Trajectory]]:
    """A group about each test question."""
    from agentenv.trainers.loop.parts import make_chat_format, open_questions, rollout_config, trained_policy

    torch.manual_seed(config.seed)
    policy = trained_policy(config.policy, config.lora, config.compute, seed=config.seed)
    task_env = open_questions(config.test, config.search, config.env, policy)
    budgets = rollout_config(config.rollout, config.env, temperature=config.rollout.temperature)
    chat = make_chat_format(config.format, config.chat, policy)
    context = RolloutContext(policy, chat, budgets, policy.tokenizer.decode, name=strategy)
    tasks, groups = task_env.source.tasks, []
    for first in range(0, len(tasks), _AT_ONCE):
        starts = [
            [EpisodeSpec(task_env.make_env(), task, SLOTS * number + slot, task.id) for slot in range(SLOTS)]
            for number, task in enumerate(tasks[first : first + _AT_ONCE], first)
        ]
        groups += asyncio.run(play_groups(starts, get_strategy(strategy, options), context))
    return groups


def measured(group: Sequence[Trajectory]) -> Json:
    """What one group has: leaves, tokens, different first actions and sequences of actions, and whether rewards differ."""
    valid = [one for one in group if one.valid]
    sequences = {tuple(turn.action for turn in one.turns) for one in valid}
    return {
        "leaves": len(valid),
        "tokens": sum(tokens_of(one) for one in group),
        "first_actions": len({actions[0] for actions in sequences if actions}),
        "sequences": len(sequences),
        "differ": float(len({round(one.reward, 9) for one in valid}) > 1),
    }


def tokens_of(trajectory: Trajectory) -> int:
    """Tokens that were sampled for ``trajectory`` and for no other of its group."""
    counted = trajectory.info.get("strategy", {}).get("sampled_tokens")
    return trajectory.response_tokens if counted is None else int(counted)


def paid_for(group: Sequence[Trajectory], tokens: float) -> list[Trajectory]:
    """The first of independent episodes of which all together have sampled at most ``tokens``; one at least."""
    kept: list[Trajectory] = []
    for one in group:
        if kept and sum(map(tokens_of, kept)) + tokens_of(one) > tokens:
            break
        kept.append(one)
    return kept


def table_of(played: Mapping[str, Sequence[Sequence[Trajectory]]]) -> Json:
    """Each arm's means, and its differences to independent episodes, of all slots and of as many tokens."""
    rows = {name: [measured(group) for group in groups] for name, groups in played.items()}
    table: Json = {
        name: {key: interval([row[key] for row in mine]) for key in MEASURES} for name, mine in rows.items()
    }
    for mine in table.values():
        mine["tokens_of_a_leaf"] = mine["tokens"]["mean"] / mine["leaves"]["mean"]
    for name in (one for one in rows if one != "independent"):
        equal = [
            measured(paid_for(group, row["tokens"]))
            for group, row in zip(played["independent"], rows[name], strict=True)
        ]
        table[name]["independent, equal tokens"] = {key: fmean(row[key] for row in equal) for key in MEASURES}
        table[name]["difference at equal tokens"] = {
            key: difference([row[key] for row in equal], [row[key] for row in rows[name]])
            for key in ("first_actions", "sequences", "differ")
        }
    return table


def difference(before: Sequence[float], after: Sequence[float]) -> Json:
    """Mean of ``after`` over that of ``before`` on the same questions, with its 95 % interval."""
    found = paired_bootstrap(before, after)
    return {"mean": found.difference, "ci95": found.ci95}


def main() -> None:
    """Plays every arm, and writes ``results/tree_variety.json``."""
    parser: argparse.ArgumentParser = common_arguments(__doc__ or "")
    parser.add_argument("--questions", type=int, default=150, help="groups of each arm")
    parser.add_argument("--policy", default="tiny", help="tiny or hf:PATH")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    before, config = load(), unseen(args.questions, 11, args.policy)
    played = {name: groups_of(config, strategy, options) for name, (strategy, options) in ARMS.items()}
    table = table_of(played)
    settings = {
        "questions": args.questions,
        "slots": SLOTS,
        "arms": {name: [*arm] for name, arm in ARMS.items()},
    }
    finish(
        "tree_variety",
        args,
        {**before, "settings": settings, "table": table},
        [f"{n}: {r}" for n, r in table.items()],
    )


if __name__ == "__main__":
    run_script(main)
