"""Nine samplers from one start on the same tasks of one to three hops, by class: who helps the hardest one?

    python benchmarks/samplers.py --threads 1

The comparisons that were planned of three methods, as one study. DRIVE (arXiv:2511.06307): its hard focus against uniform
sampling and against as many tasks chosen at random in place of the hardest. GDRO (arXiv:2601.19280): classes by hops and
by pass rate, rollouts by variance, and DARS (arXiv:2508.13755). ReST-RL (arXiv:2508.19576): partial states against DAPO.

A start is made first, by imitation in a world of its own. Every arm then trains on the same 48 tasks, 70 % of one hop, 20 %
of two and 10 % of three, and plays the same number of episodes (an arm that leaves some of a step unspent gets more steps).
The arms differ in the sampler alone. Each is tested greedily on the same unseen tasks of another split, as many of each
class. Differences to the arm ``uniform`` are those of tasks, each the mean over seeds, with intervals over tasks;
their p-values are corrected for all of them (Holm). Of ``rollout_gdro`` the variance of the mean reward is compared with
what its formula promises. A run that is finished is not repeated, and the result is written again after each.
"""

import argparse
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from statistics import fmean, pvariance, variance
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from agentenv.core.io.files import new_folder
from agentenv.core.io.tables import open_text
from agentenv.core.scoring.scorers import get_scorer
from agentenv.core.trajectory import Trajectory, from_record
from agentenv.core.types import Task
from agentenv.data.world import FictionalWorld, WorldConfig
from agentenv.evaluation.records import read_json
from agentenv.evaluation.statistics.significance import estimate, holm, paired_bootstrap
from agentenv.trainers.config.config_files import config_of, load_config, merged
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.task_sampling.difficulty_games import RolloutGame
from agentenv.trainers.task_sampling.step_budget import Group

from common import Silent, common_arguments, finish, load, write  # isort: skip  # sibling scripts

Json = dict[str, Any]
NAME = "samplers_by_class"
CLASSES = (1, 2, 3)
"""Hops of a task."""
TRAINED = {1: 34, 2: 9, 3: 5}
"""Tasks of each class that are trained on: 70, 20 and 10 %."""
TESTED = {1: 100, 2: 100, 3: 100}
QUESTIONS, GROUP = 8, 8
"""Groups of a step and episodes of a group."""
STEPS = 12
"""Steps of an arm that spends its whole budget; the first half of ``hard_focus`` plays every task once."""
RATE = 2e-4
START_STEPS, START_BATCH = 110, 16
_FOCUS = {"phases": [[2, 24], [2, 16], [2, 8]], "group_size": 32}
_GAME = {"rule": "closed", "solved": "mean", "fewest": 2, "most": 16}
ARMS: Mapping[str, Json] = {
    "uniform": {"sampler": "uniform"},
    "hard_focus": {"sampler": "hard_focus", "sampler_options": _FOCUS},
    "random_focus": {"sampler": "hard_focus", "sampler_options": {**_FOCUS, "keep": "random"}},
    "gdro": {"sampler": "gdro", "sampler_options": {"by": "hops", "strength": 3.0, "floor": 0.1}},
    "prompt_gdro": {
        "sampler": "prompt_gdro",
        "sampler_options": {"apply": "weight", "strength": 1.0, "bound": 1.0, "floor": 0.15, "rate": 0.1},
    },
    "rollout_gdro": {"sampler": "rollout_gdro", "sampler_options": _GAME},
    "dars": {"sampler": "dars", "sampler_options": {"scale": "std"}},
    "dapo": {"sampler": "dapo"},
    "partial_states": {"sampler": "partial_states"},
}
"""The sampler of each arm, with the options of its preset but for sizes; ``scale`` suits the estimator of all arms."""


def drawn_tasks(world: FictionalWorld, counts: Mapping[int, int]) -> list[Task]:
    """The first tasks of each class, as many as ``counts`` says, shuffled."""
    chosen: list[Task] = []
    for hops, count in counts.items():
        mine = [task for task in world.questions if task.data["hops"] == hops]
        if len(mine) < count:
            raise SystemExit(f"The world has {len(mine)} tasks of {hops} hops, not {count}: ask it for more.")
        chosen += mine[:count]
    Random(0).shuffle(chosen)
    return chosen


def write_tasks(folder: Path) -> Json:
    """Writes questions and passages of both splits; the sections ``train``, ``dev`` and ``test`` of a run that asks them."""
    for split, seed, counts in (("train", 1, TRAINED), ("test", 3, TESTED)):
        if not (folder / split).exists():
            dials = WorldConfig(
                seed=seed, documents=400, hops=(1, 3), families=("lookup", "bridge"), questions=500
            )
            world = FictionalWorld.generate(replace(dials, split=split))  # type: ignore[arg-type]
            folder.mkdir(parents=True, exist_ok=True)
            with new_folder(folder / split) as part:
                tasks = [
                    {"id": task.id, "question": task.question, "answers": task.answers, **task.data}
                    for task in drawn_tasks(world, counts)
                ]
                _write_lines(part / "questions.jsonl", tasks)
                _write_lines(part / "corpus.jsonl", [asdict(document) for document in world.documents])
    train, test = ({"dataset": str(folder / name / "questions.jsonl")} for name in ("train", "test"))
    # A run of its own evaluations plays one task: all are played once it has spent its episodes.
    return {"train": train, "dev": {**test, "limit": 1}, "test": {**test, "limit": 1}}


def hops_of(questions: Path) -> dict[str, int]:
    """The class of each task in a file of questions, by its id."""
    rows = map(json.loads, questions.read_text(encoding="utf-8").splitlines())
    return {row["id"]: row["hops"] for row in rows}


def _write_lines(path: Path, rows: Sequence[Json]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def base_of(changed: Json) -> TrainConfig:
    """The small search run of the laboratory with four turns, changed."""
    common: Json = {
        "env": {"options": {"max_turns": 4, "observation_tokens": 192}},
        "rollout": {"questions": QUESTIONS, "group_size": GROUP, "context_tokens": 1000},
        "evaluation": {"every": 0},
        "checkpoint_every": 1000,
    }
    values = load_config("lab-search").model_dump(mode="json")
    return config_of(merged(merged(values, common), changed), NAME)


def make_start(folder: Path, steps: int) -> str:
    """The policy that every arm begins with, made where it is not there: taught by the expert in a world of its own."""
    from agentenv.trainers.warmstart.expert_warmstart import expert_warmstart
    from agentenv.trainers.warmstart.learning import LearningSettings

    out = folder / "start"
    if not out.exists():
        world = {"seed": 11, "hops": [1, 3], "documents": 2000, "questions": 1200}
        learning = LearningSettings(steps=steps, batch=START_BATCH)
        expert_warmstart([base_of({"train": {"world": world}})], Silent(), out, learning=learning)
    return f"hf:{out}"


def arm_of(name: str, seed: int, steps: int, folder: Path, start: str) -> TrainConfig:
    """The run of an arm."""
    changed: Json = write_tasks(folder / "tasks") | {
        "policy": start,
        "seed": seed,
        "optimizer": {"steps": steps, "learning_rate": RATE},
        "rollout": ARMS[name],
        "trajectories_every": 1,
    }
    return base_of(changed)


def test_scores(config: TrainConfig, policy: str) -> dict[str, Json]:
    """By the id of a test task its class and whether ``policy`` answers it, greedily."""
    from agentenv.trainers.loop.evaluate import play_under

    everything = config.test.model_copy(update={"limit": None})
    exact_match = get_scorer("em_squad")
    return {
        one.task.id: {
            "hops": one.task.data["hops"],
            "score": exact_match(one.info.get("answer") or "", one.task.answers).value,
        }
        for one in play_under(config.model_copy(update={"policy": policy, "test": everything}))
        if one.valid
    }


def outcome(config: TrainConfig, path: Path) -> Json:
    """Trains an arm until it has played as many episodes as all, unless that is done, and tests it."""
    from agentenv.trainers.grpo import train
    from agentenv.trainers.run_folder.folder import RunFolder

    kept = path.with_suffix(".json")
    if kept.exists():
        return read_json(kept)
    target = config.optimizer.steps * QUESTIONS * GROUP
    folder = RunFolder.open(path) if (path / "config.toml").exists() else RunFolder.create(path, config)
    results = train(folder, Silent())
    while (left := target - sum(line["rollouts"] for line in folder.history())) > 0:
        optimizer = config.optimizer.model_copy(
            update={"steps": results["steps"] + math.ceil(left / (QUESTIONS * GROUP))}
        )
        folder = RunFolder.open(path, config.model_copy(update={"optimizer": optimizer}))
        results = train(folder, Silent())
    steps = steps_of(path)
    found = played_figures(steps, hops_of(Path(config.train.dataset)))
    if config.rollout.sampler == "rollout_gdro":
        found["variance"] = variance_check(steps, _GAME)
    found["tested"] = test_scores(config, f"hf:{path / 'policy'}")
    kept.write_text(json.dumps(found) + "\n", encoding="utf-8")
    return found


Step = list[list[Trajectory]]
"""The groups of a step, in the order in which they were opened."""


def steps_of(path: Path) -> list[Step]:
    """The groups of every step of a run, also of those that were not trained."""
    steps: list[Step] = []
    for file in sorted((path / "trajectories").glob("step-*.jsonl.gz")):
        groups: dict[str, list[Trajectory]] = {}
        with open_text(file) as lines:
            for record in map(json.loads, lines):
                task = Task(record["task"]["id"], record["task"]["question"])
                groups.setdefault(record["group_id"], []).append(from_record(record, task))
        steps.append([*groups.values()])
    return steps


def played_figures(steps: Sequence[Step], classes: Mapping[str, int]) -> Json:
    """What an arm played: steps, episodes, groups and those of unequal rewards, in all and by class."""
    groups = [Group(0, 0, group) for step in steps for group in step]
    unequal = [group for group in groups if not group.zero_variance]
    by_class = {
        str(hops): {
            "episodes": sum(len(g.members) for g in groups if classes[g.members[0].task.id] == hops),
            "unequal": sum(classes[g.members[0].task.id] == hops for g in unequal),
        }
        for hops in CLASSES
    }
    return {
        "steps": len(steps),
        "episodes": sum(len(group.members) for group in groups),
        "groups": len(groups),
        "unequal": len(unequal),
        "reward": [fmean(t.reward for group in step for t in group) for step in steps],
        "by_class": by_class,
    }


def variance_check(steps: Sequence[Step], options: Json) -> Json:
    """The variance of a step's mean reward under ``rollout_gdro``, as a share of what groups of one size would leave.

    n rollouts of a task leave its mean reward a variance of v / n. The game is played once more over the recorded groups, so
    that v is known as the sampler knew it before each step. ``formula`` is GDRO's n_b = mean n sqrt(v_b) / sum q_j sqrt(v_j)
    put into sum q v / n, in real numbers and without bounds: (sum sqrt v)^2 / (G sum v) over G groups. ``sizes`` is the same
    for the sizes that were played. ``measured`` takes the unbiased variances s^2 of the groups themselves, which are not
    known when the sizes are chosen. Steps in which nothing is known yet count as well, with a share of 1.
    """
    game = RolloutGame(**options)
    places: dict[str, int] = {}
    even = formula = played = measured_even = measured = 0.0
    for step in steps:
        groups = [Group(places.setdefault(one[0].task.id, len(places)), 0, one) for one in step]
        unknown = max(game.means.values(), default=1.0)
        known = [game.means.get(game.class_of(group.task), unknown) for group in groups]
        sizes = [len(group.members) for group in groups]
        found = [variance(group.rewards) for group in groups]
        formula += sum(map(math.sqrt, known)) ** 2 / sum(sizes)
        even += sum(known) * len(sizes) / sum(sizes)
        played += sum(v / n for v, n in zip(known, sizes, strict=True))
        measured_even += sum(found) * len(sizes) / sum(sizes)
        measured += sum(v / n for v, n in zip(found, sizes, strict=True))
        game.learn(groups, {i: pvariance(group.rewards) for i, group in enumerate(groups)})
    return {"formula": formula / even, "sizes": played / even, "measured": measured / measured_even}


Tested = Mapping[str, Json]


def by_class(tested: Sequence[Tested]) -> dict[str, dict[str, float]]:
    """For each class, and for all of them, the mean score of each test task over ``tested``."""
    ids = sorted(set.intersection(*(set(one) for one in tested)))
    means = {task: fmean(one[task]["score"] for one in tested) for task in ids}
    classes = {str(hops): {t: means[t] for t in ids if tested[0][t]["hops"] == hops} for hops in CLASSES}
    return {name: scores for name, scores in classes.items() if scores} | {"all": means}


def summary(runs: Mapping[str, Sequence[Json]], start: Tested) -> Json:
    """Scores by class of the start and of each arm, and the differences to ``uniform`` over the seeds that both have."""
    table: Json = {"start": _scores(by_class([start]))}
    rows: list[Json] = []
    for name, mine in runs.items():
        table[name] = {"scores": _scores(by_class([run["tested"] for run in mine]))}
        if name == "uniform":
            continue
        seeds = min(len(mine), len(runs["uniform"]))
        ours, base = (by_class([run["tested"] for run in some[:seeds]]) for some in (mine, runs["uniform"]))
        table[name]["over_uniform"] = {"seeds": seeds}
        for part, scores in ours.items():
            shared = sorted(scores.keys() & base[part].keys())
            pair = paired_bootstrap([base[part][task] for task in shared], [scores[task] for task in shared])
            row = {"difference": pair.difference, "ci95": pair.ci95, "p": pair.p_value}
            row["of_seeds"] = [
                fmean(a["tested"][task]["score"] - b["tested"][task]["score"] for task in shared)
                for a, b in zip(mine[:seeds], runs["uniform"], strict=False)
            ]
            table[name]["over_uniform"][part] = row
            rows.append(row)
    for row, p_holm in zip(rows, holm([row["p"] for row in rows]), strict=True):
        row["p_holm"] = p_holm
    return {**table, "comparisons": len(rows)}


def _scores(classes: Mapping[str, Mapping[str, float]]) -> Json:
    """Mean and interval over tasks for each class."""
    found = {}
    for name, scores in classes.items():
        one = estimate([*scores.values()])
        found[name] = {"mean": one.mean, "ci95": one.ci95, "n": one.n}
    return found


def main() -> None:
    """Makes the start, trains every arm and writes ``results/samplers_by_class.json``."""
    parser: argparse.ArgumentParser = common_arguments(__doc__)
    parser.add_argument("--runs", type=Path, default=Path("runs/samplers"), help="folder of start and runs")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each arm")
    parser.add_argument(
        "--steps", type=int, default=STEPS, help="steps of an arm that spends its whole budget"
    )
    parser.add_argument("--start-steps", type=int, default=START_STEPS, help="supervised steps of the start")
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=list(ARMS), help="these arms alone")
    args = parser.parse_args()
    folder: Path = args.runs.absolute()
    start = make_start(folder, args.start_steps)
    tested = folder / "start.json"
    if not tested.exists():
        found = test_scores(arm_of("uniform", 0, args.steps, folder, start), start)
        tested.write_text(json.dumps(found) + "\n", encoding="utf-8")
    figures: Json = {**load(), "steps": args.steps, "start_steps": args.start_steps, "trained": TRAINED}
    runs: dict[str, list[Json]] = {}
    # Arm after arm, so that what is finished when the time is over is whole.
    for name in args.arms:
        for seed in range(args.seeds):
            config = arm_of(name, seed, args.steps, folder, start)
            runs.setdefault(name, []).append(outcome(config, folder / f"{name}-{seed}"))
            shown = {
                arm: [{k: v for k, v in run.items() if k != "tested"} for run in mine]
                for arm, mine in runs.items()
            }
            figures |= {"arms": ARMS, "runs": shown, "summary": summary(runs, read_json(tested))}
            write(NAME, args, figures)
    print_lines = [f"{name}: {row}" for name, row in figures["summary"].items()]
    finish(NAME, args, figures, print_lines)


if __name__ == "__main__":
    main()
