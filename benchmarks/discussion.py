"""A discussion of sums: what is a solution paid best by, its scores, the majority, or the truth?

    python benchmarks/discussion.py --threads 1

From one start (`sums.py`) the miniature of CoMAS (Xue et al. 2025, arXiv:2510.08529; `examples/comas.toml` with two agents)
is trained on as many games about the same sums in each arm. The arms differ in what a solution is paid, and in nothing else:
by its scores (CoMAS), 1 for the most frequent answer of its game (majority), or 1 for the right one (truth, the ceiling).
Critiques and scores are paid as in CoMAS in all of them. Measured are exact match on unseen sums, greedy; and in games about
unseen sums at the temperature of the training the share of right answers in the first round and in all, the mean value that
scores give right and wrong answers, and how far they lie apart within a game that has both, how far value and truth agree,
the entropy of the scores in bits, and how often a critic objects to a right answer. A score of 1 to 3 has the value
(score - 1) / 2.

Expected before the first training. The start as its program: greedy .51, a share of .66 right in the first round and .80 in
all, values of .93 and .20 for right and wrong answers and .60 apart within a game, an agreement of .90, an entropy of 1.2
bits, an objection to one right answer in fourteen, and a majority that is right in .85 of the games of four. After training:
truth above .95 in the first round, majority about .9, CoMAS between the start and majority, at .8. Critics are paid for low
scores and are expected to object to most right answers by then, so that values lie nearer together than at the start. A
score earns 0 where the mean of all roles is .3 to .5, so that every score is below the mean of its agent's batch: entropy
rises and agreement falls in every arm. CoMAS is not expected to beat the majority.
"""

import argparse
import asyncio
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, cast

os.environ.setdefault("OMP_NUM_THREADS", "1")

from agentenv.core.rollout import EpisodeSpec
from agentenv.core.scoring.scorers import get_scorer
from agentenv.core.trajectory import Trajectory
from agentenv.evaluation.records import read_json
from agentenv.trainers.config.config_files import merged
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.selfplay.game_state import GameState, field_of
from agentenv.trainers.selfplay.games import GAMES, Game, get_game
from agentenv.trainers.selfplay.role_rewards import REWARDS, Rule, read_score

from common import Silent, common_arguments, finish, interval, run_script, write  # isort: skip  # sibling scripts
from miniatures import make_start, own_questions, own_values, presets, small  # isort: skip
from sums import AGENTS, NO_FLAW  # isort: skip

Json = dict[str, Any]
GAME = "comas_history"
ARMS = {"comas": GAME, "majority": "comas_majority", "truth": "comas_truth"}
"""The game of each arm."""
TASKS, SLOTS = 40, 2
"""Unseen sums about which games are played for the measures, and discussions of each."""
_AT_ONCE = 20
"""Games that are played together."""
EVERY_SCORE = ("1", "2", "3")


def by_majority(state: GameState, move: str, place: int) -> float:
    """1 for the most frequent answer of the game, shared where several are; 0 for any other and for none."""
    written = [
        answer
        for name, played in state.plays.items()
        if name.startswith("solve_")
        for answer in (field_of(one, "answer") for one in played)
        if answer
    ]
    counts = Counter(written)
    most = [answer for answer, count in counts.items() if count == max(counts.values())]
    return (field_of(state.plays[move][place], "answer") in most) / max(len(most), 1)


def by_truth(state: GameState, move: str, place: int) -> float:
    """1 for an answer that the sum has, else 0."""
    return float(is_right(state.plays[move][place], state.seed.answers))


def is_right(solution: Trajectory, answers: Sequence[str]) -> bool:
    """Whether a solution's answer is one of ``answers`` by exact match."""
    return get_scorer("em_squad")(field_of(solution, "answer"), answers).value == 1.0


def register() -> None:
    """Makes the games of the other arms known: that of CoMAS with another payment of solutions."""
    game = get_game(GAME, agents=AGENTS)
    for name, rule in {"majority": by_majority, "truth": by_truth}.items():
        turns = [replace(turn, reward=name) if turn.reward == "scored" else turn for turn in game.turns]
        # A rule or a game of one's own has no name by which a run could load it, so that the registries are written to.
        cast("dict[str, Rule]", REWARDS)[name] = rule
        cast("dict[str, Game]", GAMES)[ARMS[name]] = replace(game, turns=tuple(turns))


def arm_of(name: str, seed: int, steps: int, folder: Path) -> TrainConfig:
    """The run of an arm: the miniature with its game, seed and steps."""
    own = merged(own_values("comas"), own_questions("comas", folder))
    changed = {
        "policy": make_start("discussion", folder),
        "seed": seed,
        "optimizer": {"steps": steps},
        "rollout": {"strategy_options": {"game": ARMS[name]}},
    }
    return small(presets()["comas"], f"{name}-{seed}", merged(own, changed))


def discussed(config: TrainConfig, policy_spec: str) -> Json:
    """The measures of a policy, in games of CoMAS about the test sums of ``config``."""
    from agentenv.trainers.loop.parts import make_chat_format, open_questions, rollout_config, trained_policy
    from agentenv.trainers.strategies.rollout_context import RolloutContext
    from agentenv.trainers.strategies.strategies import get_strategy, play_groups

    policy = trained_policy(policy_spec, config.lora, config.compute, seed=config.seed)
    task_env = open_questions(config.test, config.search, config.env, policy)
    strategy = get_strategy("self_play", {**config.rollout.strategy_options, "game": GAME})
    budgets = rollout_config(config.rollout, config.env, temperature=config.rollout.temperature)
    chat = make_chat_format(config.format, config.chat, policy)
    context = RolloutContext(policy, chat, budgets, policy.tokenizer.decode, name="discussed")
    games: list[list[Trajectory]] = []
    tasks = task_env.source.tasks[:TASKS]
    for first in range(0, len(tasks), _AT_ONCE):
        starts = [
            [EpisodeSpec(task_env.make_env(), task, SLOTS * number + slot, task.id) for slot in range(SLOTS)]
            for number, task in enumerate(tasks[first : first + _AT_ONCE], first)
        ]
        games += asyncio.run(play_groups(starts, strategy, context))
    return measured(games, [task.answers for task in tasks])


def measured(games: Sequence[Sequence[Trajectory]], answers: Sequence[Sequence[str]]) -> Json:
    """What games say of solvers, critics and scorers.

    Args:
        games: Their episodes, round after round; of a move that of each slot.
        answers: What is right in each of them.
    """
    first: list[bool] = []
    rows: list[tuple[bool, str, str]] = []  # right?, critique, score
    apart: list[float] = []
    for game, gold in zip(games, answers, strict=True):
        of_tag = {tag: [one for one in game if one.info["writes"] == (tag,)] for tag in _TAGS}
        right = [is_right(one, gold) for one in of_tag["answer"]]
        first += right[:SLOTS]
        said = ([field_of(one, tag) for one in of_tag[tag]] for tag in ("critique", "score"))
        mine = list(zip(right, *said, strict=True))
        worth, worthless = values_of(mine)
        apart += [fmean(worth) - fmean(worthless)] if worth and worthless else []
        rows += mine
    worth, worthless = values_of(rows)
    scores = Counter(score.strip() for _, _, score in rows if read_score(score, 3) is not None)
    return {
        "answers": len(rows),
        "first_round": fmean(first),
        "all_rounds": fmean(right for right, _, _ in rows),
        "value_of_right": mean_or_none(worth),
        "value_of_wrong": mean_or_none(worthless),
        "within_games": mean_or_none(apart),
        "games_with_both": len(apart),
        "agreement": mean_or_none([*worth, *(1 - value for value in worthless)]),
        "scores": {score: scores[score] for score in EVERY_SCORE},
        "unread": len(rows) - len(worth) - len(worthless),
        "entropy": entropy([scores[score] for score in EVERY_SCORE]),
        "objections": mean_or_none([NO_FLAW not in critique for right, critique, _ in rows if right]),
    }


def values_of(rows: Sequence[tuple[bool, str, str]]) -> tuple[list[float], list[float]]:
    """The values that can be read, of right answers and of wrong ones."""
    read = [(right, read_score(score, 3)) for right, _, score in rows]
    known = [(right, value) for right, value in read if value is not None]
    return [value for right, value in known if right], [value for right, value in known if not right]


_TAGS = ("answer", "critique", "score")


def mean_or_none(values: Sequence[float]) -> float | None:
    """The mean; None of nothing."""
    return fmean(values) if values else None


def entropy(counts: Sequence[int]) -> float:
    """Of a distribution by its counts, in bits; 0 of nothing."""
    shares = [count / sum(counts) for count in counts if count]
    return -sum(share * math.log2(share) for share in shares) + 0.0


def outcome(config: TrainConfig, path: Path) -> Json:
    """Trains one arm, unless that is done, and returns its scores and measures."""
    from agentenv.trainers.grpo import train
    from agentenv.trainers.run_folder.folder import RunFolder

    opened = RunFolder.open(path) if (path / "config.toml").exists() else RunFolder.create(path, config)
    results = (
        read_json(path / "results.json") if (path / "results.json").exists() else train(opened, Silent())
    )
    lines = opened.history()
    return {
        "before": results["before"]["mean"],
        "after": results["after"]["mean"],
        "episodes": sum(line.get("rollouts", 0) for line in lines),
        "reward": [line.get("reward_mean") for line in lines],
        "discussed": discussed(config, f"hf:{path / 'policy'}"),
    }


COMPARED = ("first_round", "all_rounds", "within_games", "agreement", "entropy", "objections")


def over_seeds(values: Sequence[float | None]) -> Json | None:
    """Mean and interval of those that are numbers; None where there is none."""
    numbers = [value for value in values if value is not None]
    return interval(numbers) if numbers else None


def summary(runs: Mapping[str, Sequence[Json]]) -> Json:
    """Means of each arm over seeds with intervals, and the differences of seeds between arms."""
    table: Json = {}
    for name, mine in runs.items():
        table[name] = {"after": interval([run["after"] for run in mine])}
        table[name] |= {key: over_seeds([run["discussed"][key] for run in mine]) for key in COMPARED}
    for better, worse in (("comas", "majority"), ("truth", "majority"), ("truth", "comas")):
        pairs = list(zip(runs.get(better, ()), runs.get(worse, ()), strict=False))
        if pairs:
            table[f"{better} over {worse}"] = {
                "after": interval([a["after"] - b["after"] for a, b in pairs]),
                "first_round": interval(
                    [a["discussed"]["first_round"] - b["discussed"]["first_round"] for a, b in pairs]
                ),
            }
    return table


def main() -> None:
    """Makes the start, trains every arm and writes ``results/discussion.json``."""
    parser: argparse.ArgumentParser = common_arguments(__doc__)
    parser.add_argument("--runs", type=Path, default=Path("runs/discussion"), help="folder of start and runs")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each arm")
    parser.add_argument("--steps", type=int, default=12, help="optimiser steps of each run")
    args = parser.parse_args()
    register()
    folder: Path = args.runs.absolute()
    start = make_start("discussion", folder)
    figures: Json = {"steps": args.steps, "start": discussed(arm_of("comas", 0, args.steps, folder), start)}
    runs: dict[str, list[Json]] = {}
    for seed in range(args.seeds):
        for name in ARMS:
            found = outcome(arm_of(name, seed, args.steps, folder), folder / f"{name}-{seed}")
            runs.setdefault(name, []).append(found)
            figures |= {"runs": runs, "summary": summary(runs)}
            write("discussion", args, figures)
    lines = [f"{name}: {metrics}" for name, metrics in summary(runs).items()]
    finish("discussion", args, figures, lines)


if __name__ == "__main__":
    run_script(main)
