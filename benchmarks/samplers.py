"""Nine samplers from one start on the same tasks of one to three hops, by class: who helps the hardest one?

    python benchmarks/samplers.py --threads 1

The comparisons that were planned of three methods, as one study. DRIVE (arXiv:2511.06307): its hard focus against uniform
sampling and against as many tasks chosen at random in place of the hardest. GDRO (arXiv:2601.19280): classes by hops and
by pass rate, rollouts by variance, and DARS (arXiv:2508.13755). ReST-RL (arXiv:2508.19576): partial states against DAPO.

A start is made first, by imitation in worlds of its own. Every arm then trains on the same 48 tasks, 70 % of one hop, 20 %
of two and 10 % of three, and plays the same number of episodes, to the nearest step: an arm that leaves half of one unspent
gets another. The arms differ in the sampler alone. Each is tested on the same unseen tasks of another split, as many of each
class, greedily and by one episode at the temperature of the training. Differences between arms are those of tasks, each the
mean over seeds, with intervals over tasks, and the p-values of either test are corrected together (Holm). The variance of
the mean reward with the sizes of ``rollout_gdro`` is compared with what its formula promises. A run that is finished is not
repeated, and the result is written again after each. What was expected stands in the log.
"""

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from agentenv.core.io.files import new_folder
from agentenv.core.scoring.scorers import get_scorer
from agentenv.core.types import Task
from agentenv.data.world import FictionalWorld, WorldConfig
from agentenv.evaluation.records import read_json
from agentenv.evaluation.statistics.significance import estimate, holm, paired_bootstrap
from agentenv.trainers.config.config_files import config_of, load_config, merged
from agentenv.trainers.config.train_config import TrainConfig

from common import Silent, common_arguments, finish, interval, load, run_script, without_faults, write  # isort: skip
from sampler_steps import hops_of, played_figures, steps_of, variance_check  # isort: skip

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
LESSON_BATCH = 16
LESSONS: Sequence[tuple[Json, int]] = (
    ({"seed": 11, "hops": [1, 3], "documents": 2000, "questions": 1200}, 110),
    ({"seed": 12, "hops": [2, 3], "families": ["bridge"], "documents": 2000, "questions": 1200}, 70),
)
"""What the expert shows the start: worlds of its own, one after the other, and the steps on episodes in each."""
_FOCUS = {"phases": [[2, 24], [2, 16], [2, 8]], "group_size": 32}
_GAME = {"rule": "closed", "solved": "mean", "fewest": 2, "most": 16}
ARMS: Mapping[str, Json] = {
    "uniform": {"sampler": "uniform"},
    "hard_focus": {"sampler": "hard_focus", "sampler_options": _FOCUS},
    "random_focus": {"sampler": "hard_focus", "sampler_options": {**_FOCUS, "keep": "random"}},
    "gdro": {"sampler": "gdro", "sampler_options": {"by": "hops", "strength": 3.0, "floor": 0.1}},
    "prompt_gdro": {
        "sampler": "prompt_gdro",
        "sampler_options": {"apply": "weight", "solved": "mean", "strength": 1.0, "bound": 1.0},
    },
    "rollout_gdro": {"sampler": "rollout_gdro", "sampler_options": _GAME},
    "dars": {"sampler": "dars", "sampler_options": {"scale": "std"}},
    "dapo": {"sampler": "dapo"},
    "partial_states": {"sampler": "partial_states"},
}
"""The sampler of each arm, with the options of its preset but for sizes, and ``scale``, which suits the estimator of all
arms."""
EVEN = ("uniform", "rollout_gdro")
"""Arms that draw tasks uniformly, in whose groups the variance is measured."""
COMPARED = (
    *((name, "uniform") for name in ARMS if name != "uniform"),
    ("hard_focus", "random_focus"),
    ("partial_states", "dapo"),
)
"""Which arm is compared with which."""


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
    dials = WorldConfig(documents=400, hops=(1, 3), families=("lookup", "bridge"), questions=500)
    worlds = (
        (replace(dials, seed=1, split="train"), TRAINED),
        (replace(dials, seed=3, split="test"), TESTED),
    )
    for config, counts in worlds:
        if not (folder / config.split).exists():
            world = FictionalWorld.generate(config)
            rows = [
                {"id": task.id, "question": task.question, "answers": task.answers, **task.data}
                for task in drawn_tasks(world, counts)
            ]
            folder.mkdir(parents=True, exist_ok=True)
            with new_folder(folder / config.split) as part:
                for name, lines in (("questions", rows), ("corpus", map(asdict, world.documents))):
                    text = "".join(json.dumps(line) + "\n" for line in lines)
                    (part / f"{name}.jsonl").write_text(text, encoding="utf-8")
    train, test = ({"dataset": str(folder / name / "questions.jsonl")} for name in ("train", "test"))
    # A run of its own evaluations plays one task: all are played once it has spent its episodes.
    return {"train": train, "dev": {**test, "limit": 1}, "test": {**test, "limit": 1}}


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


def make_start(folder: Path) -> str:
    """The policy that every arm begins with, made where it is not there: what the shipped one is after all lessons."""
    from agentenv.trainers.warmstart.expert_warmstart import expert_warmstart
    from agentenv.trainers.warmstart.learning import LearningSettings

    policy = "tiny"
    for number, (world, steps) in enumerate(LESSONS):
        out = folder / f"lesson-{number}"
        if not out.exists():
            lesson = base_of({"policy": policy, "train": {"world": world}})
            learning = LearningSettings(steps=steps, batch=LESSON_BATCH)
            expert_warmstart([lesson], Silent(), out, learning=learning)
        policy = f"hf:{out}"
    return policy


def arm_of(name: str, seed: int, folder: Path, start: str) -> TrainConfig:
    """The run of an arm."""
    changed: Json = write_tasks(folder / "tasks") | {
        "policy": start,
        "seed": seed,
        "optimizer": {"steps": STEPS, "learning_rate": RATE},
        "rollout": ARMS[name],
        "trajectories_every": 1,
    }
    return base_of(changed)


def scores_of(config: TrainConfig, policy: str) -> dict[str, Json]:
    """By the id of a test task its class and whether ``policy`` answers it, greedily and sampled as in training."""
    from agentenv.trainers.loop.evaluate import play_under

    everything = config.test.model_copy(update={"limit": None})
    asked = config.model_copy(update={"policy": policy, "test": everything})
    exact_match = get_scorer("em_squad")
    found: dict[str, Json] = {}
    for how, temperature in (("greedy", 0.0), ("sampled", config.rollout.temperature)):
        for one in without_faults(play_under(asked, temperature=temperature)):
            row = found.setdefault(one.task.id, {"hops": one.task.data["hops"]})
            row[how] = exact_match(one.info.get("answer") or "", one.task.answers).value
    return found


def outcome(config: TrainConfig, path: Path) -> Json:
    """Trains an arm until it has played as many episodes as all, unless that is done, and tests it."""
    from agentenv.trainers.grpo import train
    from agentenv.trainers.run_folder.folder import RunFolder

    kept = path.with_suffix(".json")
    if kept.exists():
        return read_json(kept)
    folder = RunFolder.open(path) if (path / "config.toml").exists() else RunFolder.create(path, config)
    results = train(folder, Silent())
    budget = QUESTIONS * GROUP
    # To the nearest step: one more for the few episodes that a sampler leaves over would be more than the others have.
    while (more := round(STEPS - sum(line["rollouts"] for line in folder.history()) / budget)) > 0:
        steps = results["steps"] + more
        longer = config.optimizer.model_copy(update={"steps": steps})
        folder = RunFolder.open(path, config.model_copy(update={"optimizer": longer}))
        results = train(folder, Silent())
    found = played_figures(steps_of(path), hops_of(Path(config.train.dataset)))
    found["tested"] = scores_of(config, f"hf:{path / 'policy'}")
    kept.write_text(json.dumps(found) + "\n", encoding="utf-8")
    return found


Tested = Mapping[str, Json]


def by_class(tested: Sequence[Tested], how: str) -> dict[str, dict[str, float]]:
    """For each class, for those below the hardest and for all, the mean score of each test task over ``tested``."""
    means = {task: fmean(one[task][how] for one in tested) for task in sorted(tested[0])}
    hops = {task: row["hops"] for task, row in tested[0].items()}
    parts = {str(one): (one,) for one in CLASSES} | {"easier": CLASSES[:-1], "all": CLASSES}
    return {name: {t: m for t, m in means.items() if hops[t] in part} for name, part in parts.items()}


def difference(ours: Sequence[Tested], base: Sequence[Tested], how: str) -> dict[str, Json]:
    """By part the mean difference of ``ours`` to ``base``, paired by task, that of each seed, and an interval over seeds."""
    of_seeds = [{p: fmean(v.values()) for p, v in by_class([one], how).items()} for one in (*ours, *base)]
    found = {}
    for part, scores in by_class(ours, how).items():
        pair = paired_bootstrap([*by_class(base, how)[part].values()], [*scores.values()])
        seeds = [a[part] - b[part] for a, b in zip(of_seeds, of_seeds[len(ours) :], strict=False)]
        row = {"difference": pair.difference, "ci95": pair.ci95, "p": pair.p_value}
        found[part] = row | {"of_seeds": seeds, "over_seeds": interval(seeds)}
    return found


def summary(runs: Mapping[str, Sequence[Json]], start: Tested, how: str) -> Json:
    """Scores by class of the start and of each arm, and differences over the seeds that both arms have."""
    tested = {name: [run["tested"] for run in mine] for name, mine in runs.items()}
    differences: dict[str, Json] = {}
    for name, other in ((name, other) for name, other in COMPARED if name in tested and other in tested):
        seeds = min(len(tested[name]), len(tested[other]))
        differences[f"{name} over {other}"] = difference(tested[name][:seeds], tested[other][:seeds], how)
    rows = [row for pair in differences.values() for row in pair.values()]
    for row, p_holm in zip(rows, holm([row["p"] for row in rows]), strict=True):
        row["p_holm"] = p_holm
    scores = {name: _scores(by_class(mine, how)) for name, mine in {"start": [start], **tested}.items()}
    return {"scores": scores, "differences": differences, "comparisons": len(rows)}


def _scores(classes: Mapping[str, Mapping[str, float]]) -> Json:
    """Mean and interval over tasks for each class."""
    found = {name: estimate([*scores.values()]) for name, scores in classes.items()}
    return {name: {"mean": one.mean, "ci95": one.ci95, "n": one.n} for name, one in found.items()}


def main() -> None:
    """Makes the start, trains every arm and writes ``results/samplers_by_class.json``."""
    parser: argparse.ArgumentParser = common_arguments(__doc__)
    parser.add_argument("--runs", type=Path, default=Path("runs/samplers"), help="folder of start and runs")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each arm")
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=list(ARMS), help="these arms alone")
    parser.add_argument("--finished", action="store_true", help="report what is finished, and train nothing")
    args = parser.parse_args()
    folder: Path = args.runs.absolute()
    start = make_start(folder)
    kept = folder / "start.json"
    if not kept.exists():
        kept.write_text(json.dumps(scores_of(arm_of("uniform", 0, folder, start), start)) + "\n")
    figures: Json = {**load(), "steps": STEPS, "lessons": LESSONS, "trained": TRAINED, "arms": ARMS}
    runs: dict[str, list[Json]] = {}

    def report() -> None:
        shown = {
            arm: [{key: run[key] for key in run if key != "tested"} for run in mine]
            for arm, mine in runs.items()
        }
        tests = {how: summary(runs, read_json(kept), how) for how in ("greedy", "sampled")}
        figures.update({"runs": shown} | tests)
        write(NAME, args, figures)

    for seed in range(args.seeds):
        for name in args.arms:
            path = folder / f"{name}-{seed}"
            known = path.with_suffix(".json").exists()
            if known or not args.finished:
                runs.setdefault(name, []).append(outcome(arm_of(name, seed, folder, start), path))
            if not known and not args.finished:
                report()
    report()
    steps = {
        name: [steps_of(folder / f"{name}-{n}") for n in range(len(runs.get(name, ())))] for name in EVEN
    }
    figures["variance"] = {name: variance_check(mine, _GAME, GROUP) for name, mine in steps.items() if mine}
    lines = [f"{pair}: {row}" for pair, row in figures["sampled"]["differences"].items()]
    finish(NAME, args, figures, lines)


if __name__ == "__main__":
    run_script(main)
