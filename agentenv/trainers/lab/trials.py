"""The runs of a comparison: which are finished, what they decide, which are needed next, and how one is made.

Every run of an arm under a seed is a training run in a folder of its own: it resumes singly, and one that is finished is
never repeated. After each interim analysis of a group sequential test (``evaluation/statistics/sequential.py``) an arm whose
comparisons are all decided runs no more. A sitting may end anywhere.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from agentenv.core.io.digests import value_digest
from agentenv.core.io.files import discard_folder, write_text
from agentenv.errors import ConfigurationError
from agentenv.evaluation.records import RESULTS, read_json
from agentenv.evaluation.report.report import METRICS, read_lines
from agentenv.evaluation.statistics.equivalence import equivalence_p
from agentenv.evaluation.statistics.sequential import Decision, Verdict, compare_sequentially
from agentenv.trainers.config.config_files import config_of, dump_config, merged
from agentenv.trainers.config.identity import flatten_config
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.lab.lab import Equivalence, Experiment
from agentenv.trainers.lab.measures import MEASURES, Json
from agentenv.trainers.lab.probes import play_besides
from agentenv.trainers.lab.provenance import (
    configured,
    keep_foundations,
    read_foundations,
    refuse_mixture,
    stands_on,
)

TESTS, PLAYED, STARTS = "tests.json", "played.json", "starts.json"
"""What ``Experiment.tests`` gave of a result, what was played besides, and both of the start of each arm."""
Scores = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Trial:
    """One run: an arm under a seed."""

    arm: str
    seed: int

    def folder(self, out: Path) -> Path:
        """The folder of the run."""
        return out / self.arm / f"seed-{self.seed}"


@dataclass(frozen=True)
class Shown:
    """Where a test of equivalence stands."""

    verdict: str
    """``equivalent``, ``not shown`` after the last interim analysis, or ``undecided``."""
    p: float | None
    """The p-value at the interim analysis that decided it, or at the last one made."""
    interims: int
    """Interim analyses made, up to that one."""
    more_seeds: int
    """Seeds of each arm that the next interim analysis needs in all; 0 where enough have been run."""


def finished(experiment: Experiment, out: Path) -> dict[str, list[Json]]:
    """The finished runs of each arm by seed, from 0 up to the first that is missing: results and metrics."""
    most = experiment.per_interim * experiment.interims
    runs: dict[str, list[Json]] = {}
    needed = (RESULTS, *([TESTS] if experiment.tests else []), *([PLAYED] if _besides(experiment) else []))
    for arm in experiment.arms:
        folders = (Trial(arm, seed).folder(out) for seed in range(most))
        done = takewhile(lambda folder: all((folder / name).is_file() for name in needed), folders)
        runs[arm] = [
            read_json(folder / RESULTS)
            | {"metrics": read_lines(folder / METRICS, "step")}
            | ({"tests": read_json(folder / TESTS)} if experiment.tests else {})
            | ({"played": read_json(folder / PLAYED)} if _besides(experiment) else {})
            for folder in done
        ]
    return runs


def score(experiment: Experiment, run: Json, measure: str = "") -> float:
    """What a run has by a measure, which is that of the experiment where none is named."""
    return MEASURES[measure or experiment.measure].of(run, experiment.level)


def scores_of(experiment: Experiment, runs: Mapping[str, Sequence[Json]], measure: str = "") -> Scores:
    """What every run has by a measure, by arm."""
    return {arm: [score(experiment, run, measure) for run in mine] for arm, mine in runs.items()}


def decide(experiment: Experiment, scores: Scores) -> list[Decision]:
    """The sequential test of each family."""
    return [
        compare_sequentially(
            {arm: scores[arm] for arm in family},
            per_interim=experiment.per_interim,
            interims=experiment.interims,
            alpha=experiment.level_of_one,
        )
        for family in experiment.compared
    ]


def show_equivalence(experiment: Experiment, one: Equivalence, scores: Scores) -> Shown:
    """Two one-sided tests at each interim analysis, which have equal parts of the error level."""
    each, level = experiment.per_interim, experiment.level_of_one / experiment.interims
    first, second = (scores[arm] for arm in one.arms)
    looks = min(len(first), len(second), each * experiment.interims) // each
    p = None
    for look in range(1, looks + 1):
        p = equivalence_p(first[: look * each], second[: look * each], one.margin)
        if p <= level:
            return Shown("equivalent", p, look, 0)
    if looks == experiment.interims:
        return Shown("not shown", p, looks, 0)
    return Shown("undecided", p, looks, (looks + 1) * each)


def pending_runs(experiment: Experiment, runs: Mapping[str, Sequence[Json]]) -> list[Trial]:
    """The runs that are still needed before the next interim analysis, the lowest seeds first; none where all is decided."""
    scores = scores_of(experiment, runs)
    wanted = dict.fromkeys(experiment.arms, 0)
    for decision in decide(experiment, scores):
        if decision.enough:
            continue
        open_pairs = (pair for pair in decision.pairs if pair.verdict is Verdict.UNDECIDED)
        for arm in {name for pair in open_pairs for name in (pair.first, pair.second)}:
            wanted[arm] = max(wanted[arm], (decision.interims + 1) * experiment.per_interim)
    for one in experiment.equivalences:
        tested = show_equivalence(experiment, one, scores_of(experiment, runs, one.measure))
        wanted |= {arm: max(wanted[arm], tested.more_seeds) for arm in one.arms}
    needed = [Trial(arm, seed) for arm, most in wanted.items() for seed in range(len(runs[arm]), most)]
    order = list(experiment.arms)
    return sorted(needed, key=lambda trial: (trial.seed, order.index(trial.arm)))


def next_trial(experiment: Experiment, out: Path) -> Trial | None:
    """The run to do next, or None where enough have been done."""
    return next(iter(pending_runs(experiment, finished(experiment, out))), None)


def run_trial(experiment: Experiment, trial: Trial, out: Path, display: Any) -> None:
    """Plays one run from where it stands to its end, and keeps what pages are made of.

    Raises:
        ConfigurationError: its folder holds a run of another configuration, or a run of the comparison stands on other
            weights, files or versions than this one would, or was begun under another plan or configuration.
        AgentEnvError: what the training raises.
    """
    from agentenv.trainers.grpo import train
    from agentenv.trainers.run_folder.folder import RunFolder

    config, path = experiment.run_of(trial.arm, trial.seed), trial.folder(out)
    begun = path / "config.toml"
    if begun.is_file() and begun.read_text(encoding="utf-8") != dump_config(config):
        raise ConfigurationError(f"{path} holds a run of another configuration: choose another --out")
    others = foundations(out)
    for arm in experiment.arms:  # an arm that needs no run any more may have been configured otherwise
        refuse_mixture(others, configured(arm, experiment.run_of(arm, 0), experiment.conditions(arm)))
    found = stands_on(trial.arm, config, experiment.conditions(trial.arm)) | _plan(experiment)
    keep_foundations(found, path, others)
    train(RunFolder.open(path) if begun.is_file() else RunFolder.create(path, config), display)
    _test_starts(experiment, out)
    values = merged(experiment.values_of(trial.arm), {"policy": f"hf:{path / 'policy'}", "seed": trial.seed})
    trained = config_of(values, f"arm {trial.arm}")
    if besides := _besides(experiment):
        _write(path / PLAYED, _played(besides, trained, path))
    if experiment.tests:
        _write(path / TESTS, _tested(experiment.conditions(trial.arm, trained.policy)))
    _drop_weights(path)


def drop_left_weights(experiment: Experiment, out: Path) -> None:
    """Removes the weights of finished runs that a killed process was removing."""
    for arm, runs in finished(experiment, out).items():
        for seed in range(len(runs)):
            _drop_weights(Trial(arm, seed).folder(out))


def _drop_weights(path: Path) -> None:
    for name in ("checkpoints", "policy", "policy-second", "league"):
        with suppress(OSError):  # the numbers of the run are written
            discard_folder(path / name)


def refuse_other_plan(experiment: Experiment, out: Path) -> None:
    """Refuses runs that were begun under another plan: error levels hold only for one that is fixed before the first look.

    Raises:
        ConfigurationError: the number of seeds, the error level, the measure, the pairs or what the claim expects of
            them are other ones than for a run that has begun.
    """
    held = {folder: one for folder, one in foundations(out).items() if one is not None}
    refuse_mixture(held, _plan(experiment))


def _plan(experiment: Experiment) -> dict[str, str]:
    """Digests of what has to be fixed before the first interim analysis."""
    fixed = {
        name: getattr(experiment, name) for name in ("per_interim", "interims", "alpha", "measure", "level")
    }
    pairs = [one.model_dump(mode="json") for one in experiment.equivalences]
    families = [list(family) for family in experiment.compared]
    # By itself, so that runs that were begun when this was not kept yet still go on. The tests do not depend on it, and the
    # verdict does: a pair that is left out after a look would turn "not shown" into "holds".
    expected = value_digest([list(pair) for pair in experiment.expects])
    return {
        "plan of the comparison": value_digest([fixed, pairs, families]),
        "expectation of the claim": expected,
    }


def foundations(out: Path) -> dict[Path, dict[str, str] | None]:
    """What each run that has begun stands on, by its folder; None where it does not say.

    Runs of arms that the experiment does not have count as well.
    """
    begun = sorted(path.parent for path in out.glob("*/seed-*/config.toml"))
    return {folder: read_foundations(folder) for folder in begun}


def _besides(experiment: Experiment) -> list[Any]:
    """What has to be played besides the runs."""
    return list(dict.fromkeys(kind for name in experiment.measured if (kind := MEASURES[name].needs)))


def _played(besides: Sequence[Any], config: TrainConfig, folder: Path | None) -> Json:
    return {name: value for kind in besides for name, value in play_besides(kind, config, folder).items()}


def _tested(conditions: Mapping[str, TrainConfig]) -> Json:
    from agentenv.trainers.loop.evaluate import score_under

    return {name: score_under(config) for name, config in conditions.items()}


def _test_starts(experiment: Experiment, out: Path) -> None:
    """Evaluates the start of every arm in every column in which its results are; starts that are played alike only once."""
    if (out / STARTS).is_file():
        return
    besides = _besides(experiment)
    known: dict[str, Json] = {}
    starts = {}
    for arm in experiment.arms:
        config, conditions = experiment.run_of(arm, 0), experiment.conditions(arm)
        alike = value_digest([_played_values(run, besides) for run in (config, *conditions.values())])
        if alike not in known:
            on_dev = config.model_copy(update={"test": config.dev})
            known[alike] = {
                "dev_mean": _tested({"dev": on_dev})["dev"],
                "tests": _tested(conditions),
                "played": _played(besides, config, None),
            }
        starts[arm] = known[alike]
    _write(out / STARTS, starts)


def _played_values(config: TrainConfig, besides: Sequence[Any]) -> Json:
    """The settings of a run that decide how its start plays its test tasks."""
    budgets = ["loss.estimator", "rollout."] if besides else ["rollout.turn_tokens", "rollout.context_tokens"]
    parts = ("policy", "env.", "search.", "dev.", "test.", "format", "chat.", "evaluation.scorers", *budgets)
    return {key: value for key, value in flatten_config(config).items() if key.startswith(parts)}


def _write(path: Path, figures: Json) -> None:
    write_text(path, json.dumps(figures, indent=1) + "\n")
