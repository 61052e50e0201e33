"""Five separable skills, two of them lacking: does TRACE name the two, and which training brings them back soonest?

    python benchmarks/skills.py --threads 1

The game and its policies are those of `skills_game.py`.

**Naming.** For each of the ten pairs of skills a policy is made that lacks them. It is evaluated, greedily and at
temperature 1, and its failures are contrasted with its successes as `agentenv trace --capabilities` does (TRACE,
arXiv:2604.05336). Counted is how often exactly the two are named by the contrast, among the tasks that ask for a skill
(``contrast``) or among all, where tasks of other skills count as showing it (``contrast of all``); by the contrast where a
fifth of the tasks that ask for it lack it, as the command does (``lacked``); and with an environment within the band.

**Training.** From the policy that lacks ``LACKS`` each arm plays the same number of episodes; what TRACE evaluates and
measures before it trains counts. The arms of SwS (arXiv:2506.08989) share the first steps, on the target's questions, with
``target``, which goes on with them. The others go on with as many new questions besides: of all skills alike (``uniform``),
or of each its share by what was failed so far, which is the failure rate (``mean``), F (``slope``) or F with <= (``flat``).
``merged`` trains one policy in the environments that TRACE made, ``routed`` one policy in each and lets the start choose
among them. ``oracle`` is told the two skills, and trains on tasks of theirs as long as the target's. ``hardest``, which was
added when the other arms had been seen, is ``merged`` with the hardest environments within the band in place of the easiest.
Measured are unseen tasks of the target, greedily.

A run that is finished is not repeated, and the result file is written again after each.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent))

from agentenv.cli.synthesize_sws import read_history
from agentenv.evaluation.benchmark import Benchmark, run_benchmark
from agentenv.evaluation.contrast import LEAST_CONTRAST
from agentenv.evaluation.records import Evaluation, read_evaluation
from agentenv.evaluation.statistics.significance import paired_bootstrap
from agentenv.trainers.config.config_files import changed, load_config
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.selfplay.weaknesses import Rule, failed_kinds
from agentenv.trainers.task_sampling.allocation import apportioned
from agentenv.trainers.trace import (
    BAND,
    CapabilityEnvironment,
    environment_for,
    lacking,
    variant_of,
    write_capabilities,
)

from common import Silent, common_arguments, finish, interval, load, run_script, write  # isort: skip  # sibling scripts
from skills_game import (  # isort: skip
    CAPABILITIES,
    CAPABILITIES_OF_ALL,
    ENV,
    OF_EACH,
    SKILLS,
    make_start,
    make_trunk,
    skill_of,
)

Json = dict[str, Any]
LACKS = ("reverse", "raise")
"""What the start of the arms lacks."""
STEPS, FIRST = 40, 15
"""Steps of an arm, and of them those after which SwS looks at what was failed; 64 episodes each."""
QUESTIONS, SYNTHESIZED = 40, 120
"""Questions of the target that are trained on, and new ones that SwS adds to them."""
EVALUATED, MEASURED, TESTED = 200, 64, 400
"""Episodes by which TRACE finds what is lacking, by which it measures an environment, and tasks of the test."""
EPISODES = 64
"""Episodes of a step."""
RATE = 2e-4
"""Step size."""
RULES: Mapping[str, Rule | None] = {"uniform": None, "mean": "mean", "slope": "slope", "flat": "flat"}
"""The arms of SwS by the test of failed questions."""
COMPARED = ("target", "uniform")
"""The arms from which the others differ."""
PARTS = ("all", "lacking", "others")
"""All tasks, those of the two skills that are lacking, and those of the other three."""
ARMS = ("target", *RULES, "merged", "routed", "oracle", "hardest")
EXPECTED: Json = {
    "named exactly, of ten": {
        "temperature 0": {"contrast": 6, "contrast of all": 10, "contrast, band": 7},
        "temperature 1": {"contrast": 0, "contrast of all": 10, "contrast, band": 7},
    },
    "start": {"all": 0.61, "lacking": 0.05, "others": 0.99},
    "target": {"all": 0.83, "lacking": 0.6, "others": 0.98},
    "uniform": {"all": 0.83, "lacking": 0.6, "others": 0.98},
    "mean": {"all": 0.9, "lacking": 0.85, "others": 0.93},
    "slope": {"all": 0.89, "lacking": 0.83, "others": 0.93},
    "flat": {"all": 0.9, "lacking": 0.85, "others": 0.93},
    "merged": {"all": 0.81, "lacking": 0.75, "others": 0.85},
    "routed": {"all": 0.88, "lacking": 0.75, "others": 0.97},
    "oracle": {"all": 0.91, "lacking": 0.95, "others": 0.88},
    "hardest": {"all": 0.87, "lacking": 0.8, "others": 0.92},
}
"""What was expected, written after one run of ``target`` and two of ``oracle`` with another seed, before all other runs.

That of ``hardest`` is over all starts, and was written when the other arms had been seen.
"""


def target_of(policy: Path, seed: int) -> TrainConfig:
    """The run on the target: questions of all skills alike."""
    return changed(
        load_config("own-env"),
        {
            "name": "skills",
            "seed": seed,
            "threads": 1,
            "policy": f"hf:{policy}",
            "checkpoint_every": 1000,
            "trajectories_every": 1,
            "env": {"id": ENV},
            "train.limit": QUESTIONS,
            "dev.limit": 1,
            "test.limit": 1,
            "rollout": {"questions": 8, "group_size": 8, "turn_tokens": 8, "context_tokens": 256},
            "optimizer.learning_rate": RATE,
            "evaluation": {"every": 0, "bounds": False},
        },
    )


def trained(config: TrainConfig, steps: int, path: Path) -> tuple[Path, int, int]:
    """Trains, unless that is done; returns the folder of the policy, the episodes and their sampled tokens."""
    from agentenv.trainers.grpo import train
    from agentenv.trainers.run_folder.folder import RunFolder

    config = changed(config, {"optimizer.steps": steps})
    opened = RunFolder.open(path) if (path / "config.toml").exists() else RunFolder.create(path, config)
    if not (path / "results.json").exists():
        train(opened, Silent())
    lines = opened.history()
    episodes = sum(line["rollouts"] for line in lines)
    return path / "policy", episodes, sum(line["sampled_tokens"] for line in lines)


def evaluated(policy: str, out: Path, *, split: str, tasks: int, temperature: float = 0.0) -> Evaluation:
    """An evaluation of ``policy`` on tasks of the target, as `agentenv eval` makes it."""
    asked = Benchmark(
        dataset="env",
        policy=policy,
        env=ENV,
        split=split,
        limit=tasks,
        temperature=temperature,
        bounds=False,
    )
    run_benchmark(asked, out, Silent())
    return read_evaluation(out)


def discovered(pair: Sequence[str], start: Path, folder: Path) -> Json:
    """What is named of a policy that lacks ``pair``, unless that is done."""
    kept = folder / f"named-{'-'.join(pair)}.json"
    if kept.exists():
        done: Json = json.loads(kept.read_text())
        return done
    found: Json = {"lacks": list(pair)}

    @cache
    def environment(name: str) -> CapabilityEnvironment:
        return environment_for(target_of(start, 0), name, CAPABILITIES[name], tasks=MEASURED, band=BAND)

    for temperature in (0.0, 1.0):
        out = folder / f"{start.name}-before-{temperature:g}"
        evaluation = evaluated(f"hf:{start}", out, split="dev", tasks=EVALUATED, temperature=temperature)
        right = {
            name: fmean(r["prediction"] in r["answers"] for r in evaluation.records if r["family"] == name)
            for name in SKILLS
        }
        asked, of_all = (lacking(evaluation, known)[0] for known in (CAPABILITIES, CAPABILITIES_OF_ALL))
        wide = [one for one in asked if one.contrast >= LEAST_CONTRAST]
        named = {
            "contrast": [one.capability for one in wide],
            "lacked": [one.capability for one in wide if one.kept],
            "contrast of all": [one.capability for one in of_all if one.contrast >= LEAST_CONTRAST],
        }
        within = [name for name in named["contrast"] if environment(name).config is not None]
        named |= {
            "contrast, band": within,
            "lacked, band": [name for name in named["lacked"] if name in within],
        }
        rates = {name: environment(name).rates for name in named["contrast"]}
        found[f"temperature {temperature:g}"] = {"right": right, "named": named, "rates": rates}
    kept.write_text(json.dumps(found) + "\n")
    return found


def exact(rows: Sequence[Json]) -> Json:
    """Of each way to look, in how many draws exactly the two are named, and how many skills are."""
    table: Json = {"draws": len(rows)}
    for temperature in ("temperature 0", "temperature 1"):
        named = [(sorted(row["lacks"]), row[temperature]["named"]) for row in rows]
        table[temperature] = {
            way: {
                "exactly": sum(sorted(found[way]) == lacks for lacks, found in named),
                "skills": fmean(len(found[way]) for _, found in named),
            }
            for way in named[0][1]
        }
        tried = [row[temperature]["rates"] for row in rows]
        lacks = [row["lacks"] for row in rows]
        table[temperature]["environments measured in vain"] = fmean(
            sum(len(rates) for name, rates in one.items() if name not in two)
            for one, two in zip(tried, lacks, strict=True)
        )
    return table


def budget(rule: Rule | None, run: Path) -> dict[str, int]:
    """New questions of each skill, after what a run failed; all alike where nothing is failed, or nothing is asked."""
    history = read_history(run)
    weak = [] if rule is None else failed_kinds(history.accuracies, rule, attempts=history.attempts, least=1)
    shares = {skill_of(one.kind): one.share for one in weak} or dict.fromkeys(SKILLS, 1 / len(SKILLS))
    counts = apportioned([round(share * 10**9) for share in shares.values()], SYNTHESIZED)
    return dict(zip(shares, counts, strict=True))


def sws(arm: str, start: Path, seed: int, folder: Path) -> Json:
    """An arm of SwS, or that of the target, whose first steps are shared."""
    target, first = target_of(start, seed), folder / f"first-{seed}"
    after, episodes, tokens = trained(target, FIRST, first)
    new = {} if arm == "target" else budget(RULES[arm], first)
    counts = {name: QUESTIONS // len(SKILLS) + new.get(name, 0) for name in SKILLS}
    again = {"policy": f"hf:{after}", "seed": seed + 100}
    config = changed(target, {**again, "train.options.counts": counts, "train.limit": sum(counts.values())})
    policy, more, written = trained(config, STEPS - FIRST, folder / f"{arm}-{seed}")
    return {"policy": f"hf:{policy}", "episodes": episodes + more, "tokens": tokens + written, "new": new}


def trace(arm: str, start: Path, seed: int, folder: Path) -> Json:
    """TRACE from the evaluation on: one policy in all environments that it keeps, or one in each and a router."""
    target, known = target_of(start, seed), CAPABILITIES
    if arm == "hardest":
        known = {name: replace(one, variants=one.variants[::-1]) for name, one in known.items()}
    evaluation = evaluated(f"hf:{start}", folder / "before", split="dev", tasks=EVALUATED)
    found, _ = lacking(evaluation, known)
    kept = [one.capability for one in found if one.kept]
    made = [environment_for(target, name, known[name], tasks=MEASURED, band=BAND) for name in kept]
    used = len(evaluation.records) + MEASURED * sum(len(one.rates) for one in made)
    configs = {one.capability: one.config for one in made if one.config is not None}
    report = {"rates": {one.capability: one.rates for one in made}, "environments": [*configs]}
    steps, place = STEPS - -(-used // EPISODES), folder / f"{arm}-{seed}"
    if not configs:
        return report | {"policy": f"hf:{start}", "episodes": used, "tokens": 0}
    if arm != "routed":
        options = [one.train.options for one in configs.values()]
        both = {key: {k: v for one in options for k, v in one[key].items()} for key in ("counts", "lengths")}
        changes = {"train.options": both, "train.limit": sum(both["counts"].values())}
        runs = [trained(variant_of(target, arm, changes), steps, place)]
        policy = f"hf:{runs[0][0]}"
    else:
        place.mkdir(exist_ok=True)
        write_capabilities(place, target, known, found, {}, made, rank=0)
        runs = [trained(one, steps // len(configs), place / name) for name, one in configs.items()]
        policy = f"router:{place}"
    episodes, tokens = sum(run[1] for run in runs), sum(run[2] for run in runs)
    return report | {"policy": policy, "episodes": used + episodes, "tokens": tokens}


def oracle(pair: Sequence[str], start: Path, seed: int, folder: Path) -> Json:
    """Trains on tasks of the two skills alone, as long as those of the target."""
    counts = dict.fromkeys(pair, OF_EACH)
    changes = {"train.options.counts": counts, "train.limit": sum(counts.values())}
    config = variant_of(target_of(start, seed), "oracle", changes)
    policy, episodes, tokens = trained(config, STEPS, folder / f"oracle-{seed}")
    return {"policy": f"hf:{policy}", "episodes": episodes, "tokens": tokens}


def run_arm(arm: str, pair: Sequence[str], start: Path, seed: int) -> Json:
    """Trains one arm from a policy that lacks ``pair``, unless that is done, and measures it."""
    folder = start.parent / f"runs-{'-'.join(pair)}"
    folder.mkdir(exist_ok=True)
    kept = folder / f"{arm}-{seed}.json"
    if kept.exists():
        found: Json = json.loads(kept.read_text())
        return found
    if arm in ("merged", "routed", "hardest"):
        row = trace(arm, start, seed, folder)
    elif arm == "oracle":
        row = oracle(pair, start, seed, folder)
    else:
        row = sws(arm, start, seed, folder)
    measured = solved(row.pop("policy"), folder / f"{arm}-{seed}-after")
    row = {"lacks": list(pair), "arm": arm, "seed": seed, **row, "solved": measured}
    kept.write_text(json.dumps(row) + "\n")
    return row


def solved(policy: str, out: Path) -> dict[str, int]:
    """Of each unseen task of the target whether the policy solves it."""
    records = evaluated(policy, out, split="test", tasks=TESTED).records
    return {record["question"]: int(record["prediction"] in record["answers"]) for record in records}


def parts_of(pair: Sequence[str]) -> Json:
    """The skills over which scores are taken."""
    return {"all": [*SKILLS], "lacking": [*pair], "others": [name for name in SKILLS if name not in pair]}


def over_tasks(rows: Sequence[Mapping[str, int]], skills: Sequence[str]) -> list[float]:
    """The mean over ``rows`` of every task of some skills."""
    return [fmean(row[task] for row in rows) for task in rows[0] if skill_of(task) in skills]


def mean(row: Mapping[str, int], skills: Sequence[str]) -> float:
    """The share of the tasks of some skills that is solved."""
    return fmean(over_tasks([row], skills))


def over_seeds(start: Mapping[str, int], runs: Sequence[Json]) -> Json:
    """Scores of the arms from one start, and their differences with 95 % intervals over tasks, means over seeds."""
    parts = parts_of(runs[0]["lacks"])
    table: Json = {"start": {part: mean(start, skills) for part, skills in parts.items()}}
    by_arm = {arm: rows for arm in ARMS if (rows := [run for run in runs if run["arm"] == arm])}
    for arm, rows in by_arm.items():
        mine = [row["solved"] for row in rows]
        table[arm] = {part: fmean(over_tasks(mine, skills)) for part, skills in parts.items()}
        table[arm] |= {key: fmean(row[key] for row in rows) for key in ("episodes", "tokens")}
        for other in COMPARED:
            theirs = [row["solved"] for row in by_arm.get(other, ())]
            if other == arm or len(theirs) != len(mine):
                continue
            for part, skills in parts.items():
                found = paired_bootstrap(over_tasks(theirs, skills), over_tasks(mine, skills))
                table[arm][f"{part} over {other}"] = {
                    "difference": found.difference,
                    "ci95": found.ci95,
                    "seeds": [mean(a, skills) - mean(b, skills) for a, b in zip(mine, theirs, strict=True)],
                }
    return table


def over_pairs(runs: Sequence[Json]) -> Json:
    """Scores of the arms from every start, and their differences, with 95 % intervals over starts."""
    table: Json = {}
    for arm in ARMS:
        rows = {tuple(run["lacks"]): run["solved"] for run in runs if run["arm"] == arm}
        if not rows:
            continue
        score = {
            part: {pair: mean(row, parts_of(pair)[part]) for pair, row in rows.items()} for part in PARTS
        }
        table[arm] = {part: interval([*by_pair.values()]) for part, by_pair in score.items()}
        table[arm]["starts"] = len(rows)
        for other in COMPARED:
            theirs = {tuple(run["lacks"]): run["solved"] for run in runs if run["arm"] == other}
            if other == arm or theirs.keys() != rows.keys():
                continue
            for part in PARTS:
                gains = [score[part][pair] - mean(row, parts_of(pair)[part]) for pair, row in theirs.items()]
                table[arm][f"{part} over {other}"] = interval(gains)
    return table


def main() -> None:
    """Makes the policies, names what they lack, trains every arm and writes ``results/skills.json``."""
    parser: argparse.ArgumentParser = common_arguments(__doc__)
    parser.add_argument("--folder", type=Path, help="folder of the runs; kept if it is named")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--arms", nargs="*", choices=ARMS, default=list(ARMS))
    parser.add_argument("--pairs", type=int, default=10, help="pairs of skills of which policies are made")
    parser.add_argument("--train-pairs", action="store_true", help="train the arms from each of these, too")
    parser.add_argument("--trunk-steps", type=int, default=600, help="supervised steps of all skills")
    parser.add_argument("--start-steps", type=int, default=100, help="and of three skills well and two badly")
    parser.add_argument("--lessons", type=int, default=48, help="of a supervised step")
    parser.set_defaults(threads=1)
    args = parser.parse_args()
    folder = (args.folder or Path(tempfile.mkdtemp(prefix="skills-"))).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "trunk").exists():
        make_trunk(folder / "trunk", args.trunk_steps, args.lessons, Silent())

    def start_of(pair: Sequence[str]) -> Path:
        out = folder / f"start-{'-'.join(pair)}"
        if not out.exists():
            make_start(folder / "trunk", pair, out, args.start_steps, args.lessons, Silent())
        return out

    figures: Json = {**load(), "expected": EXPECTED, "settings": settings()}
    before = solved(f"hf:{start_of(LACKS)}", folder / "start-after")
    runs: list[Json] = []
    for seed in args.seeds:
        runs += [run_arm(arm, LACKS, start_of(LACKS), seed) for arm in args.arms]
        figures |= {"one_start": over_seeds(before, runs), "runs": [in_short(run) for run in runs]}
        write("skills", args, figures)
    rows: list[Json] = []
    pairs = [*combinations(SKILLS, 2)][: args.pairs]
    for pair in pairs:
        rows.append(discovered(pair, start_of(pair), folder))
        figures |= {"named": exact(rows), "draws": rows}
        write("skills", args, figures)
    for pair in pairs if args.train_pairs else ():
        runs += [run_arm(arm, pair, start_of(pair), args.seeds[0]) for arm in args.arms if pair != LACKS]
        first = [run for run in runs if run["seed"] == args.seeds[0]]
        figures |= {"every_start": over_pairs(first), "runs": [in_short(run) for run in runs]}
        write("skills", args, figures)
    shown = ("named", "one_start", "every_start")
    finish(
        "skills", args, figures, [f"{name}: {row}" for p in shown for name, row in figures.get(p, {}).items()]
    )


def in_short(run: Json) -> Json:
    """A run with its score in each skill in place of its tasks."""
    return run | {"solved": {name: mean(run["solved"], [name]) for name in SKILLS}}


def settings() -> Json:
    """What the figures depend on besides the game."""
    return {
        "lacks": LACKS,
        "steps": STEPS,
        "first": FIRST,
        "questions": QUESTIONS,
        "synthesized": SYNTHESIZED,
        "learning_rate": RATE,
    }


if __name__ == "__main__":
    run_script(main)
