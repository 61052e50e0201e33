"""Which reward teaches queries best? Parts of ReEx-SQL and partial pay of Think2SQL and Arctic, against right or wrong.

    python benchmarks/sql_rewards.py --threads 1

All arms begin with the start of the miniatures of SQL and play as many episodes about the same questions with the same
seeds; an arm differs from the others of its study in what an episode earns, and in nothing else. ``exploring`` is the
miniature of ReEx-SQL (arXiv:2505.12768; `examples/reex-sql.toml`) with its weights of the execution, of the entities, and of
looking, with a right answer alone or in any case. ``single`` is the miniature of Think2SQL (arXiv:2504.15077;
`examples/think2sql.toml`) without its penalty on length, which would take a paid wrong query for a success: BIRD's accuracy,
the dense reward of QATCH's measures, QATCH itself, and Arctic's tenth for a query that runs (arXiv:2505.20315).

Each policy plays unseen questions greedily and once at the temperature of the training. They are about databases of their
own, and none is worded as one that was demonstrated or trained on. Measured are the share of right queries on databases that
the policy cannot see, the reward, and the queries that were tried out; of the episodes without a right query also what they
earn, how many handed in a `SELECT *`, and how many a result that holds every cell that was asked for, which has a cell
recall of 1 as that of `SELECT *` has.
"""

import argparse
import functools
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from numpy.typing import NDArray

from agentenv.core.io.files import write_text
from agentenv.core.trajectory import Trajectory
from agentenv.core.types import Task, ToolStatus
from agentenv.envs.sql import Sql
from agentenv.envs.sql_rewards import PARTS, SqlEnding
from agentenv.evaluation.records import read_json
from agentenv.evaluation.statistics.significance import paired_bootstrap
from agentenv.sandbox.sql import shared_reader
from agentenv.sandbox.sql_grading import grade_query
from agentenv.trainers.config.config_files import merged
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.loop.evaluate import play_under
from agentenv.trainers.warmstart.sql_warmstart import SqlWarmstartConfig, demonstrated_tasks

from common import Silent, common_arguments, finish, run_script, write  # isort: skip  # sibling scripts
from miniatures import make_start, own_values, presets, small  # isort: skip
from sim2real import resampled_means  # isort: skip

Json = dict[str, Any]
TASKS, DATABASES = 400, 24
"""Questions from which those are taken that each policy answers, and databases that they are about."""
QUESTIONS = 8
"""Questions of a step in both studies."""
TEMPERATURES = {"greedy": 0.0, "sampled": 1.0}
_RESAMPLES = 10_000
_STAR = re.compile(r"\bselect\s+(?:distinct\s+)?(?:\w+\.)?\*", re.IGNORECASE)


@dataclass(frozen=True)
class Study:
    """Arms that differ in the reward alone, the first of which pays for right queries and nothing else."""

    preset: str
    arms: Mapping[str, str | Mapping[str, float]]
    """The option ``reward`` of each."""
    changed: Mapping[str, Any]
    """What differs from the miniature of the preset."""

    @property
    def baseline(self) -> str:
        """The arm with which the others are compared."""
        return next(iter(self.arms))


STUDIES: Mapping[str, Study] = {
    "exploring": Study(
        "reex-sql",
        {
            "execution": {"execution": 3.0},
            "entity": {"execution": 3.0, "entity": 1.0},
            "unconditional": {"execution": 3.0, "unconditional_exploration": 2.0},
            "conditional": {"execution": 3.0, "exploration": 2.0},
        },
        {},
    ),
    "single": Study(
        "think2sql",
        {"ex": "ex", "dense": "dense", "arctic": "arctic", "qatch": "qatch"},
        {"reward_shaping": {"relative_length": 0.0}},
    ),
}


def run_of(study: str, arm: str, seed: int, steps: int, folder: Path) -> TrainConfig:
    """The training of an arm: its miniature with its reward, seed and steps, and one test question, which counts nowhere."""
    of = STUDIES[study]
    name = f"{study}-{arm}-{seed}-{steps}"
    changed = {
        "name": name,
        "policy": make_start("sql", folder),
        "seed": seed,
        "optimizer": {"steps": steps},
        "rollout": {"questions": QUESTIONS},
        "test": {"limit": 1, "options": {"databases": DATABASES}},
        "env": {"options": {"reward": of.arms[arm]}},
    }
    own = merged(merged(own_values(of.preset), of.changed), changed)
    return small(presets()[of.preset], name, own)


def episode_row(trajectory: Trajectory) -> Json:
    """What counts of one episode.

    ``covers`` says whether the result of a wrong query holds, on every database, each cell that was asked for.
    """
    results = [result for turn in trajectory.turns for result in turn.tool_results]
    probes = [result for result in results if result.name == "sql"]
    query, right = trajectory.info.get("answer"), bool(trajectory.info.get("solved"))
    return {
        "id": trajectory.task.id,
        "right": right,
        "reward": trajectory.reward,
        "probes": len(probes),
        "probes_ran": sum(result.status is ToolStatus.OK for result in probes),
        "ran": query is not None and results[-1].error_class in ("", "WrongResult"),
        "star": query is not None and _STAR.search(query) is not None,
        "covers": query is not None and not right and _covers(query, trajectory.task.data),
    }


def _covers(query: str, data: Mapping[str, Any]) -> bool:
    grade = grade_query(shared_reader(), query, data["gold"], data["databases"], query_s=2.0)
    ending = SqlEnding(data["gold"], query, results=grade.results, matches=grade.matches)
    return PARTS["cell_recall"](ending) == 1.0


@functools.cache
def known_questions(limit: int, seed: int, levels: tuple[int, ...]) -> frozenset[str]:
    """How the questions are worded that were demonstrated to the start, and those that are trained on."""
    taught = SqlWarmstartConfig()
    tasks = Sql.make_tasks(limit, seed=seed, levels=levels)
    return frozenset(task.question for task in (*demonstrated_tasks(taught, Random(taught.seed)), *tasks))


def unseen(config: TrainConfig, tasks: Sequence[Task]) -> list[Task]:
    """The first task of each wording that is not known."""
    trained = config.train
    known = known_questions(trained.limit or 0, trained.seed, tuple(trained.options["levels"]))
    found: dict[str, Task] = {}
    for task in tasks:
        if task.question not in known:
            found.setdefault(task.question, task)
    return list(found.values())


def played(config: TrainConfig, policy: str) -> dict[str, list[Json]]:
    """The episodes of a policy on the unseen questions, at each temperature; infrastructure failures are left out."""
    test = config.test.model_copy(update={"limit": TASKS})
    asked = config.model_copy(update={"policy": policy, "test": test})
    return {
        name: [
            episode_row(one)
            for one in play_under(asked, functools.partial(unseen, config), temperature=value)
            if one.valid
        ]
        for name, value in TEMPERATURES.items()
    }


def measured(rows: Sequence[Json]) -> Json:
    """The measures of some episodes; those of wrong ones are None where none is wrong."""
    wrong = [row for row in rows if not row["right"]]
    found: Json = {key: fmean(row[key] for row in rows) for key in ("right", "reward", "ran", *PROBES)}
    found |= {"episodes": len(rows), "wrong": len(wrong)}
    for name, key in (
        ("reward_of_wrong", "reward"),
        ("star_of_wrong", "star"),
        ("covers_of_wrong", "covers"),
    ):
        found[name] = fmean(row[key] for row in wrong) if wrong else None
    return found


PROBES = ("probes", "probes_ran")


def outcome(study: str, arm: str, seed: int, steps: int, folder: Path) -> Json:
    """Trains one arm and plays its policy, unless that is done; returns the episodes and what the training was."""
    from agentenv.trainers.grpo import train
    from agentenv.trainers.run_folder.folder import RunFolder

    config = run_of(study, arm, seed, steps, folder)
    path = folder / config.name
    kept = folder / f"{config.name}.json"
    if kept.exists():
        held: Json = read_json(kept)
        return held
    opened = RunFolder.open(path) if (path / "config.toml").exists() else RunFolder.create(path, config)
    train(opened, Silent())
    lines = opened.history()
    found = {
        "training": {
            "episodes": sum(line.get("rollouts", 0) for line in lines),
            "reward": [line.get("reward_mean") for line in lines],
            "equal_groups": fmean(line.get("zero_variance_share") or 0.0 for line in lines),
        },
        "rows": played(config, f"hf:{path / 'policy'}"),
    }
    write_text(kept, json.dumps(found) + "\n")
    return found


def start_of(study: str, folder: Path) -> dict[str, list[Json]]:
    """The episodes of the start, with the reward of the baseline."""
    kept = folder / f"{study}-start.json"
    if not kept.exists():
        config = run_of(study, STUDIES[study].baseline, 0, 1, folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_text(kept, json.dumps(played(config, config.policy)) + "\n")
    held: dict[str, list[Json]] = read_json(kept)
    return held


def matrix(runs: Sequence[Sequence[Json]], key: str, ids: Sequence[str]) -> NDArray[np.float64]:
    """float64[S, N]: the values of ``key`` of S runs on the N tasks ``ids``."""
    by_id = [{row["id"]: float(row[key]) for row in rows} for rows in runs]
    return np.array([[one[name] for name in ids] for one in by_id])


def difference(arm: Sequence[Sequence[Json]], base: Sequence[Sequence[Json]], key: str) -> Json:
    """Mean of ``arm`` less ``base``, run by run on the same tasks.

    Returns:
        ``ci95`` over tasks, of the mean over runs; ``ci95_seeds_too`` where the seeds are drawn anew as well, which one run
        does not have; and ``by_seed``.
    """
    known = [{row["id"] for row in rows} for rows in (*arm, *base)]
    ids = [row["id"] for row in base[0] if all(row["id"] in one for one in known)]
    a, b = matrix(arm, key, ids), matrix(base, key, ids)
    over_tasks = paired_bootstrap(b.mean(0), a.mean(0))
    found: Json = {
        "difference": over_tasks.difference,
        "ci95": over_tasks.ci95,
        "by_seed": [float(one) for one in (a - b).mean(1)],
        "n": len(ids),
    }
    if len(a) > 1:
        rng = np.random.default_rng(0)
        draws = rng.integers(len(ids), size=(_RESAMPLES, len(ids)))
        ends = np.quantile(resampled_means(a - b, draws, rng), [0.025, 0.975])
        found["ci95_seeds_too"] = [float(end) for end in ends]
    return found


def summary(study: str, runs: Mapping[str, Sequence[Json]], start: Mapping[str, Sequence[Json]]) -> Json:
    """Of each arm the measures over all of its episodes, and the differences to the baseline and to the start."""
    base = runs[STUDIES[study].baseline]
    table: Json = {"start": {name: measured(start[name]) for name in TEMPERATURES}}
    for arm, mine in runs.items():
        table[arm] = {
            "equal_groups": fmean(run["training"]["equal_groups"] for run in mine),
            "training_reward": [
                fmean(at) for at in zip(*(run["training"]["reward"] for run in mine), strict=True)
            ],
        }
        for name in TEMPERATURES:
            rows, others = ([run["rows"][name] for run in part] for part in (mine, base[: len(mine)]))
            found = measured([row for run in rows for row in run])
            found["over_start"] = difference(rows, [start[name]] * len(rows), "right")
            if arm != STUDIES[study].baseline:
                found["over_baseline"] = difference(rows, others, "right")
                found["probes_over_baseline"] = difference(rows, others, "probes")
            table[arm][name] = found
    return table


def lines_of(study: str, table: Json) -> list[str]:
    """One line an arm and temperature."""
    lines = []
    for arm, of in table.items():
        for name in TEMPERATURES:
            shown = {
                key: round(value, 3) for key, value in of[name].items() if isinstance(value, int | float)
            }
            against = of[name].get("over_baseline", {})
            lines.append(f"{study} {arm} {name}: {shown} {against.get('difference')} {against.get('ci95')}")
    return lines


def main() -> None:
    """Trains every arm and writes ``results/sql_rewards.json``, again after each run."""
    parser: argparse.ArgumentParser = common_arguments(__doc__)
    parser.add_argument(
        "--runs", type=Path, default=Path("runs/sql-rewards"), help="folder of start and runs"
    )
    parser.add_argument("--seeds", type=int, default=5, help="runs of each arm")
    parser.add_argument("--steps", type=int, default=36, help="optimiser steps of each run")
    parser.add_argument("--studies", nargs="+", default=list(STUDIES), choices=list(STUDIES))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    folder: Path = args.runs.absolute()
    figures: Json = {"steps": args.steps, "seeds": args.seeds, "tasks": TASKS, "databases": DATABASES}
    figures["studies"] = {}
    lines: list[str] = []
    starts = {study: start_of(study, folder) for study in args.studies}
    runs: dict[str, dict[str, list[Json]]] = {study: {} for study in args.studies}
    for seed in range(args.seeds):
        for study in args.studies:
            for arm in STUDIES[study].arms:
                found = outcome(study, arm, seed, args.steps, folder)
                runs[study].setdefault(arm, []).append(found)
            figures["studies"][study] = summary(study, runs[study], starts[study])
            write("sql_rewards", args, figures)
    for study in args.studies:
        lines += lines_of(study, figures["studies"][study])
    finish("sql_rewards", args, figures, lines)


if __name__ == "__main__":
    run_script(main)
