"""What the starts of the laboratory can do before any training, and the minutes that each took.

    agentenv lab starts
    python benchmarks/starts.py

Each start plays the test tasks of its experiment greedily, as an arm there does. ``tiny-advice`` also retries failures of
its own in an unseen world with advice, without, and with advice for another question (``advice.py``). A start is left out
where it has not been made, or would be made otherwise by now. A row stays while its start would be made in the same way,
whether it lies there or not.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import factorial
from pathlib import Path
from typing import Any

from agentenv.evaluation.bounds import bound_of
from agentenv.evaluation.records import read_json
from agentenv.evaluation.results import score_tables
from agentenv.evaluation.runner import to_record
from agentenv.policies.policy_spec import START_RECORD, policy_digest
from agentenv.trainers.config.config_files import config_of, load_config, merged
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.lab.lab import load_experiment
from agentenv.trainers.lab.starts import STARTS, digest_of, is_made
from agentenv.trainers.loop.evaluate import play_under
from agentenv.trainers.loop.parts import with_declared_scorers
from agentenv.trainers.strategies.step_verifiers import EvidenceVerifier
from agentenv.trainers.warmstart.expert_pool import open_expert_run

from advice import of_unseen_world, retry_failures, summed  # isort: skip  # a sibling script
from common import RESULTS, common_arguments, finish, run_script  # isort: skip  # a sibling script

SEED, QUESTIONS = 101, 400
"""The unseen world in which failures are retried. No configuration was chosen by what was found in it."""
TRAINED = "questions on which the arms train"
"""Much better than on unseen ones, where a start has learned their answers by heart."""
_SIMULATED = "simulated:noise_end=0,temperature=0,tokens=256@hf:{folder}"


@dataclass(frozen=True)
class Measurement:
    """One thing that a start is measured by."""

    what: str
    """In words."""
    experiment: str
    arm: str
    condition: str = ""
    """One of the tests of the experiment; empty plays what the arm is trained on."""
    known: bool = False
    """Whether the training tasks are played, of which a start may know the answers."""
    simulated: bool = False
    """Whether the start is what is searched, and the shipped policy searches."""
    listed: bool = False
    """Whether an answer lists several names with their values, which can be right one by one."""


MEASUREMENTS: Mapping[str, Sequence[Measurement]] = {
    "tiny-advice": (Measurement("two and three hops, without advice", "r3l", "grpo"),),
    "tiny-chains": (
        Measurement("three and four hops", "turn-credit", "outcome"),
        Measurement(TRAINED, "turn-credit", "outcome", known=True),
    ),
    "tiny-steps": (Measurement("programs of four steps", "cleaner", "grpo"),),
    "tiny-verdicts": (
        Measurement("drops pages", "reseek", "reseek"),
        Measurement("pages stay", "reseek", "pages-stay"),
    ),
    "tiny-planner": (
        Measurement("refined evidence", "hiersearch", "refined"),
        Measurement("whole evidence", "hiersearch", "everything"),
        Measurement(TRAINED, "hiersearch", "refined", known=True),
    ),
    "tiny-hybrid": (
        Measurement("several queries a turn", "hybrid-search", "parallel", listed=True),
        Measurement("one query a turn", "hybrid-search", "sequential", listed=True),
    ),
    "tiny-ikea": (Measurement("half of the answers known", "ikea", "answer"),),
    "tiny-pages": (
        Measurement("pages opened part by part", "asearcher", "grpo"),
        Measurement(TRAINED, "asearcher", "grpo", known=True),
    ),
    "tiny-rewriter": (Measurement("reward by rank, of 2", "convsearch-r1", "by-rank", "rank"),),
    "tiny-self": (
        Measurement("its own memory of the world that it knows", "sim2real", "self", known=True),
        Measurement("its own memory of an unseen world", "sim2real", "self"),
    ),
    "simulator": (
        Measurement(
            "searched by the shipped policy, answers told", "sim2real", "real", known=True, simulated=True
        ),
        Measurement("an index in its place", "sim2real", "real", known=True),
    ),
}
"""What each start is measured by."""


def config_under(one: Measurement, folder: Path) -> TrainConfig:
    """The run whose test tasks the start in ``folder`` plays."""
    experiment = load_experiment(one.experiment)
    values = experiment.values_of(one.arm)
    values = merged(values, experiment.tests[one.condition] if one.condition else {})
    if one.simulated:
        values = merged(values, {"search": {"retriever": _SIMULATED.format(folder=folder)}})
    elif values.get("policy", "").startswith("hf:"):
        values = merged(values, {"policy": f"hf:{folder}"})
    config = config_of(values | {"name": one.arm}, one.what)
    known = config.train.model_copy(update={"limit": config.test.limit})
    return config.model_copy(update={"test": known}) if one.known else config


def score_under(config: TrainConfig, *, listed: bool = False) -> dict[str, Any]:
    """Mean, interval and number of the test tasks, and the same by hops, by the first scorer; of lists also `of_lists`."""
    scorer = with_declared_scorers(config).evaluation.scorers[0]
    records = [*map(to_record, play_under(config, with_strategy=True))]
    by_hops = score_tables([one for one in records if one["valid"]], [scorer])["by_hops"]
    found = dict(bound_of(records, scorer)) | {"scorer": scorer} | (of_lists(records) if listed else {})
    return found | {"by_hops": {hops: row["scores"][scorer] for hops, row in by_hops.items()}}


def of_lists(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Share of the listed values that stand behind their name, and what guessing gives.

    Who guesses has found and read every value, and does not know to which of the names it belongs: of lists of n names, one
    in n! is right then, and one value in n.
    """
    lists = [dict(pair.split(": ") for pair in record["answers"][0].split(", ")) for record in records]
    said = [f", {record['prediction'] or ''}, " for record in records]
    right = [
        sum(f", {name}: {value}, " in text for name, value in values.items())
        for values, text in zip(lists, said, strict=True)
    ]
    count = sum(map(len, lists))
    return {
        "values_in_their_place": {"mean": sum(right) / count, "n": count},
        "guessing": {
            "all": sum(1 / factorial(len(one)) for one in lists) / len(lists),
            "each": len(lists) / count,
        },
    }


def advice_figures(folder: Path) -> dict[str, Any]:
    """What advice does for failures of the start in ``folder``, in an unseen world."""
    config = load_config("lab-advice").model_copy(update={"policy": f"hf:{folder}"})
    task_env, context = open_expert_run(of_unseen_world(config, QUESTIONS, SEED), "advice")
    found = asyncio.run(retry_failures(task_env, context, EvidenceVerifier(), 1))
    return {"world": SEED, "questions": QUESTIONS} | summed(found)


def measured(name: str, folder: Path) -> dict[str, Any]:
    """What ``folder`` says of the start, and every score."""
    record = read_json(folder / START_RECORD)
    kept = {key: record[key] for key in ("commands", "digest", "source", "minutes", "core_minutes")}
    scores = {
        one.what: score_under(config_under(one, folder), listed=one.listed) for one in MEASUREMENTS[name]
    }
    advice = {"advice": advice_figures(folder)} if name == "tiny-advice" else {}
    return kept | {"scores": scores} | advice


def main() -> None:
    """Plays, prints and writes ``results/starts.json``."""
    parser = common_arguments(__doc__ or "")
    parser.add_argument("names", nargs="*", help="which are measured in any case")
    parser.add_argument("--starts", type=Path, default=Path("runs"), help="folder of the starts")
    args = parser.parse_args()
    path = args.out or RESULTS / "starts.json"
    held = read_json(path)["starts"] if path.is_file() else {}
    rows = {}
    for name in STARTS:
        if name not in args.names and name in held and held[name]["digest"] == digest_of(name):
            rows[name] = held[name]
        elif is_made(name, folder := args.starts / name):
            rows[name] = measured(name, folder)
    figures = {
        "shipped_weights": policy_digest("tiny"),
        "starts": rows,
        "not_made": sorted(STARTS.keys() - rows.keys()),
    }
    lines = [
        f"{name}, {what}: {one['mean']:.3f} [{one['ci95'][0]:.3f}, {one['ci95'][1]:.3f}] of {one['n']}"
        for name, row in rows.items()
        for what, one in row["scores"].items()
    ]
    finish("starts", args, figures, lines)


if __name__ == "__main__":
    run_script(main)
