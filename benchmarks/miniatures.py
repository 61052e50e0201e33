"""The preset of every method, made small: does it run, and does a tiny policy learn?

    python benchmarks/miniatures.py
    python benchmarks/miniatures.py --only dapo vade
    python benchmarks/miniatures.py --part 0 3

`miniatures.toml` says what makes a preset small and which policy it starts from; the settings of the method stay. What it
said when a figure was made stands as ``table`` beside the figures. A start that does not come with the package is made
first. Each run is evaluated before and after on the same unseen tasks, and the paired difference gets the 95 % interval of
`agentenv compare`. What fails is written down with its error, and the others go on.

A run that is finished is not repeated, and the result file, with the day of each run, is written again after each. With
``--part I N`` this process takes each N-th preset only, so that several can share the folder of the runs. A run that was
interrupted is done again once its folder has been deleted. `miniatures_page.py` writes the figures into `docs/methods.md`.
"""

import argparse
import json
import os
import sys
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agentenv.evaluation.compare import compare
from agentenv.evaluation.report.report import METRICS, read_lines
from agentenv.policies.tiny import shipped_weights
from agentenv.trainers.config.config_files import config_of, load_config, merged
from agentenv.trainers.config.train_config import TrainConfig

from common import Silent, common_arguments, load, run_script, write  # isort: skip  # sibling scripts

Json = dict[str, Any]
ROOT = Path(__file__).resolve().parents[1]
TABLE: Json = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
OF_PACKAGE = ("own-env", "dart")
"""Presets of the package that a table of methods names."""
MOST_QUESTIONS, MOST_MEMBERS = 8, 8
"""Questions of a step and episodes of a group."""


def presets() -> dict[str, str]:
    """The names of all presets that are run, and what `agentenv train` calls them."""
    examples = {path.stem: f"examples/{path.name}" for path in sorted((ROOT / "examples").glob("*.toml"))}
    known = examples | {name: name for name in OF_PACKAGE}
    return {name: run for name, run in known.items() if name not in TABLE["not_run"]}


def place_of(run: str) -> str:
    """A preset of the package by its name, an example by its path."""
    return str(ROOT / run) if "/" in run else run


def small(run: str, name: str, own: Mapping[str, Any]) -> TrainConfig:
    """The run called ``run``, made small; ``own`` are values of its own."""
    config = load_config(place_of(run))
    kind = "tasks" if config.train.dataset == "env" else "worlds"
    rollout = {
        "questions": min(MOST_QUESTIONS, config.rollout.questions),
        "group_size": min(MOST_MEMBERS, config.rollout.group_size),
    }
    values = config.model_dump(mode="json")
    for part in (TABLE["small"], TABLE[kind], {"rollout": rollout}, own):
        values = merged(values, part)
    if kind == "worlds" and not config.train.world.questions:
        values["train"]["world"]["questions"] = 0
    return config_of(values, name)


def own_values(name: str) -> Json:
    """What differs in the run of one preset, without its start and its questions."""
    return {
        key: value
        for key, value in TABLE["presets"].get(name, {}).items()
        if key not in ("start", "questions")
    }


def own_questions(name: str, folder: Path) -> Json:
    """The sections of the questions of one preset, which are written into ``folder`` where the table names some."""
    if TABLE["presets"].get(name, {}).get("questions") != "sums":
        return {}
    from sums import write_questions

    return write_questions(folder / "sums")


def make_start(name: str, folder: Path) -> str:
    """The spec of a start, which is made if it is not there."""
    out = folder / "starts" / name
    if not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        _make_start(TABLE["starts"][name], out)
    return f"hf:{out}"


def _make_start(how: Mapping[str, Any], out: Path) -> None:
    steps, episodes = how["steps"], how.get("episodes", 8)
    if "imitate" in how:
        from agentenv.trainers.warmstart.expert_warmstart import expert_warmstart
        from agentenv.trainers.warmstart.learning import LearningSettings

        policy = make_start(how["from"], out.parents[1]) if "from" in how else "tiny"
        runs = [
            small(presets()[name], "start", own_values(name) | {"policy": policy}) for name in how["imitate"]
        ]
        expert_warmstart(runs, Silent(), out, learning=LearningSettings(steps=steps, batch=episodes))
    elif how["env"] == "roles":
        from agentenv.trainers.warmstart.search_warmstart import WarmstartConfig, warmstart

        roles = WarmstartConfig(index_steps=0, mixture_steps=0, role_steps=steps, episodes=episodes)
        warmstart(roles, Silent(), out, init_from=shipped_weights())
    elif how["env"] == "code":
        from agentenv.trainers.warmstart.code_warmstart import CodeWarmstartConfig, code_warmstart

        tried = {key: how[key] for key in ("difficulty", "stateful", "careless") if key in how}
        code_warmstart(CodeWarmstartConfig(steps=steps, episodes=episodes, **tried), Silent(), out)
    elif how["env"] == "sql":
        from agentenv.trainers.warmstart.sql_warmstart import SqlWarmstartConfig, sql_warmstart

        sql_warmstart(SqlWarmstartConfig(steps=steps, episodes=episodes), Silent(), out)
    elif how["env"] == "discussion":
        from sums import discussion_start

        from agentenv.trainers.warmstart.small_policies import SmallPolicyConfig

        shown = SmallPolicyConfig(tasks=how["tasks"], steps=steps, episodes=episodes)
        discussion_start(shown, Silent(), out)
    else:
        from agentenv.trainers.warmstart.desktop_warmstart import DesktopWarmstartConfig, desktop_warmstart

        desktop_warmstart(DesktopWarmstartConfig(steps=steps, episodes=episodes), Silent(), out)


def run_miniature(name: str, run: str, folder: Path) -> None:
    """Trains one preset and keeps its figures, or its error, and the day in ``folder``."""
    from agentenv.trainers.grpo import train
    from agentenv.trainers.run_folder.folder import RunFolder

    own, start = own_values(name), TABLE["presets"].get(name, {}).get("start", "")
    own = merged(own, own_questions(name, folder))
    began = time.perf_counter()
    try:
        policy = make_start(start, folder) if start else "tiny"
        out = folder / name
        config = small(run, name, merged(own, {"policy": policy}))
        results = train(RunFolder.create(out, config), Silent())
        figures = figures_of(out, results) | {"start": start or "tiny"}
    except Exception as error:
        figures = {"error": f"{type(error).__name__}: {error}", "start": start or "tiny"}
    figures |= {"date": time.strftime("%Y-%m-%d"), "seconds": round(time.perf_counter() - began)}
    (folder / f"{name}.json").write_text(json.dumps(figures, indent=1) + "\n")


def figures_of(out: Path, results: Mapping[str, Any]) -> Json:
    """What a finished run is reported by."""
    scorer = results["scorer"]
    evaluations = out / "evaluation"
    row = compare(evaluations / "before", evaluations / "after", scorer=scorer)["scores"][scorer]
    steps = read_lines(out / METRICS, "step")
    return {
        "scorer": scorer,
        "n": row["n"],
        "before": row["mean_a"],
        "after": row["mean_b"],
        "difference": row["difference"],
        "ci95": row["ci95"],
        "steps": results["steps"],
        "episodes": sum(line.get("rollouts", 0) for line in steps),
        "faults": results["faults"],
        "grad_norm": fmean(line.get("grad_norm") or 0.0 for line in steps),
        "equal_groups": fmean(line.get("zero_variance_share") or 0.0 for line in steps),
        "reward": [line.get("reward_mean") for line in steps],
    }


def summary(rows: Mapping[str, Json]) -> Json:
    """How many rose and fell with an interval that excludes zero, did neither, and are not measured yet."""
    known = [row["ci95"] for row in rows.values() if "ci95" in row]
    rose, fell = sum(low > 0 for low, _ in known), sum(high < 0 for _, high in known)
    neither, still_open = len(known) - rose - fell, len(presets().keys() - rows.keys())
    return {"runs": len(known), "rose": rose, "fell": fell, "neither": neither, "open": still_open}


def main() -> None:
    """Runs what is not finished."""
    parser: argparse.ArgumentParser = common_arguments(__doc__)
    parser.add_argument("--runs", type=Path, default=Path("runs/miniatures"), help="folder of the runs")
    parser.add_argument("--only", nargs="+", choices=sorted(presets()), help="these presets alone")
    parser.add_argument(
        "--part", nargs=2, type=int, default=[0, 1], metavar=("I", "N"), help="a share of them"
    )
    parser.set_defaults(threads=1)
    args = parser.parse_args()
    runs: Path = args.runs.absolute()
    runs.mkdir(parents=True, exist_ok=True)
    part, parts = args.part
    asked = args.only or list(presets())
    for name in asked[part::parts]:
        if not (runs / f"{name}.json").is_file() and not (runs / name).exists():
            print(f"{time.strftime('%H:%M:%S')} {name}", flush=True)
            run_miniature(name, presets()[name], runs)
        rows = {path.stem: json.loads(path.read_text()) for path in sorted(runs.glob("*.json"))}
        write("miniatures", args, {**load(), "summary": summary(rows), "table": TABLE, "miniatures": rows})
    print(json.dumps(summary(rows)))


if __name__ == "__main__":
    run_script(main)
