"""``agentenv lab``: controlled comparisons. Arms share warm start, tasks, evaluations and rollout budget; seeds decide.

An experiment is a TOML file. Every run of an arm under a seed is a training run in a folder of its own: it resumes singly,
and one that is finished is never repeated. After each interim analysis of a group sequential test
(``evaluation/statistics/sequential.py``) an arm whose comparisons are all decided runs no more. A sitting may end anywhere.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import accumulate, takewhile
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from agentenv.core.io.files import write_text
from agentenv.core.io.toml_files import read_toml
from agentenv.core.validation import Frozen, sentence
from agentenv.errors import ConfigurationError, UnknownName
from agentenv.evaluation.records import RESULTS, read_json
from agentenv.evaluation.report.report import METRICS, read_lines
from agentenv.evaluation.statistics.sequential import Decision, Verdict, compare_sequentially
from agentenv.trainers.config.config_files import config_of, dump_config, merged
from agentenv.trainers.config.train_config import TrainConfig

TESTS = "tests.json"
"""What ``Experiment.tests`` gave: of a result beside it, of the start in the folder of the experiment."""
Json = dict[str, Any]
Scores = Mapping[str, Sequence[float]]


class Experiment(Frozen):
    """One controlled comparison."""

    title: str
    """What is compared, in one line."""
    claim: str
    """What is claimed of it, by whom."""
    setup: str = ""
    """What a reader must know of how it is tried here."""
    measure: Literal["after", "tested", "dev_mean", "steps_to", "tokens_to", "dev_at_tokens"] = "after"
    """What the sequential test compares: the score on the test tasks afterwards, as the arm is rewarded, or under the first
    of ``tests``, which is the same for all arms; the mean of the dev scores; steps, or sampled tokens, until a dev score
    reaches ``level`` (all of them where none does); the dev score after ``level`` sampled tokens."""
    level: float = Field(0.0, ge=0)
    """See ``measure``."""
    per_interim: int = Field(3, ge=2)
    """Seeds of each arm between two interim analyses."""
    interims: int = Field(2, ge=1)
    """Looks at most."""
    alpha: float = Field(0.05, gt=0, lt=1)
    """Probability of telling apart any two arms that are alike, over all families."""
    budget: Literal["rollouts", "tokens"] = "rollouts"
    """What arms have in common: episodes asked for, which is checked, or sampled tokens, which ``dev_at_tokens`` sees to."""
    families: tuple[tuple[str, ...], ...] = ()
    """Arms that are compared with each other; none named compares all."""
    base: dict[str, Any]
    """The run that arms change; ``base`` in it names a preset to start from."""
    arms: dict[str, dict[str, Any]]
    """For each arm what it changes in ``base``."""

    tests: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Conditions under which the start and every result are tested besides, on the test tasks: each by what it changes in
    the run of the arm, such as another retriever or environment."""

    @model_validator(mode="after")
    def _comparable(self) -> Self:
        unknown = {name for family in self.families for name in family} - set(self.arms)
        if len(self.arms) < 2 or unknown or any(len(family) < 2 for family in self.families):
            raise ValueError(f"needs two arms or more, in families too, and knows no {sorted(unknown)}")
        if self.measure == "tested" and not self.tests:
            raise ValueError("measure = 'tested' needs tests")
        for arm in self.arms:  # a misspelt name would be found after the training otherwise
            for name, values in self._conditions(merged(self.base, self.arms[arm])).items():
                config_of(values, f"test {name} of arm {arm}")
        budgets = {rollouts_of(self.run_of(arm, 0)) for arm in self.arms}
        if self.budget == "rollouts" and len(budgets) > 1:
            raise ValueError(f"arms must ask for equally many episodes, not {sorted(budgets)}")
        return self

    @property
    def compared(self) -> tuple[tuple[str, ...], ...]:
        """The families of arms."""
        return self.families or (tuple(self.arms),)

    def run_of(self, arm: str, seed: int) -> TrainConfig:
        """The training run of an arm under a seed.

        Raises:
            ConfigurationError: the run cannot be configured so.
            UnknownName: a key or the preset does not exist.
        """
        values = merged(self.base, self.arms[arm])
        return config_of(values | {"name": f"{arm}-{seed}", "seed": seed}, f"arm {arm}")

    def tested(self, values: Mapping[str, Any], policy: str) -> Json:
        """The score of ``policy`` under each of ``tests``, in a run of these ``values``."""
        from agentenv.trainers.evaluate import score_under

        conditions = self._conditions(merged(values, {"policy": policy}))
        return {name: score_under(config_of(changed, f"test {name}")) for name, changed in conditions.items()}

    def _conditions(self, values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Each of ``tests`` as the values of a run."""
        return {name: merged(values, changes) for name, changes in self.tests.items()}


def rollouts_of(config: TrainConfig) -> int:
    """Episodes that a run asks for."""
    return config.optimizer.steps * config.rollout.questions * config.rollout.group_size


def experiments() -> dict[str, Path]:
    """The shipped experiments by name."""
    folder = Path(str(files("agentenv.trainers") / "experiments"))
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def load_experiment(name: str) -> Experiment:
    """A shipped experiment, or one of a TOML file.

    Raises:
        UnknownName: neither; carries the nearest.
        ConfigurationError: a key or value of it is wrong.
    """
    path = experiments().get(name) or Path(name)
    if not path.is_file():
        raise UnknownName.among("experiment or TOML file", name, experiments())
    try:
        return Experiment.model_validate(read_toml(path))
    except ValidationError as error:
        raise ConfigurationError(f"{path}: {sentence(error)}") from error


@dataclass(frozen=True)
class Trial:
    """One run: an arm under a seed."""

    arm: str
    seed: int

    def folder(self, out: Path) -> Path:
        """Where it lies."""
        return out / self.arm / f"seed-{self.seed}"


def finished(experiment: Experiment, out: Path) -> dict[str, list[Json]]:
    """The finished runs of each arm by seed, from 0 up to the first that is missing: results and metrics."""
    most = experiment.per_interim * experiment.interims
    runs: dict[str, list[Json]] = {}
    needed = (RESULTS, TESTS) if experiment.tests else (RESULTS,)
    for arm in experiment.arms:
        folders = (Trial(arm, seed).folder(out) for seed in range(most))
        done = takewhile(lambda folder: all((folder / name).is_file() for name in needed), folders)
        runs[arm] = [
            read_json(folder / RESULTS)
            | {"metrics": read_lines(folder / METRICS, "step")}
            | ({"tests": read_json(folder / TESTS)} if experiment.tests else {})
            for folder in done
        ]
    return runs


def curve(run: Json) -> list[tuple[int, int, float]]:
    """Steps, tokens sampled up to there, and dev score, wherever there is one.

    Raises:
        ConfigurationError: nowhere.
    """
    spent = accumulate(int(line["sampled_tokens"] + line.get("pruned_tokens", 0)) for line in run["metrics"])
    lines = zip(run["metrics"], spent, strict=True)
    seen = [(line["step"], used, line["dev_score"]) for line, used in lines if "dev_score" in line]
    if not seen:
        raise ConfigurationError(f"run {run['name']!r} has no dev scores: set evaluation.every")
    return seen


def score(experiment: Experiment, run: Json) -> float:
    """What the test compares of a run; see ``Experiment.measure``."""
    if experiment.measure == "after":
        return float(run["after"]["mean"])
    if experiment.measure == "tested":
        return float(run["tests"][next(iter(experiment.tests))])
    seen = curve(run)
    if experiment.measure == "dev_mean":
        return sum(value for _, _, value in seen) / len(seen)
    if experiment.measure == "dev_at_tokens":
        return next((value for _, used, value in reversed(seen) if used <= experiment.level), 0.0)
    reached = next(((step, used) for step, used, value in seen if value >= experiment.level), seen[-1][:2])
    return float(reached[experiment.measure == "tokens_to"])


def decide(experiment: Experiment, scores: Scores) -> list[Decision]:
    """The sequential test of each family; the error level is divided between them."""
    return [
        compare_sequentially(
            {arm: scores[arm] for arm in family},
            per_interim=experiment.per_interim,
            interims=experiment.interims,
            alpha=experiment.alpha / len(experiment.compared),
        )
        for family in experiment.compared
    ]


def pending_runs(experiment: Experiment, scores: Scores) -> list[Trial]:
    """The runs that are still needed before the next interim analysis, the lowest seeds first; none where all is decided."""
    needed: dict[Trial, None] = {}
    for decision in decide(experiment, scores):
        if decision.enough:
            continue
        open_pairs = (pair for pair in decision.pairs if pair.verdict is Verdict.UNDECIDED)
        waiting = {name for pair in open_pairs for name in (pair.first, pair.second)}
        for arm in waiting:
            seeds = range(len(scores[arm]), (decision.interims + 1) * experiment.per_interim)
            needed |= dict.fromkeys(Trial(arm, seed) for seed in seeds)
    order = list(experiment.arms)
    return sorted(needed, key=lambda trial: (trial.seed, order.index(trial.arm)))


def next_trial(experiment: Experiment, out: Path) -> Trial | None:
    """The run to do next, or None where enough have been done."""
    runs = finished(experiment, out)
    scores = {arm: [score(experiment, run) for run in of_arm] for arm, of_arm in runs.items()}
    return next(iter(pending_runs(experiment, scores)), None)


def run_trial(experiment: Experiment, trial: Trial, out: Path, display: Any) -> None:
    """Plays one run from where it stands to its end, and keeps what pages are made of.

    Raises:
        ConfigurationError: its folder holds a run of another configuration.
        AgentEnvError: what the training raises.
    """
    from agentenv.trainers.grpo import train
    from agentenv.trainers.run_folder.folder import RunFolder

    config, path = experiment.run_of(trial.arm, trial.seed), trial.folder(out)
    begun = path / "config.toml"
    if begun.is_file() and begun.read_text(encoding="utf-8") != dump_config(config):
        raise ConfigurationError(f"{path} holds a run of another configuration: choose another --out")
    train(RunFolder.open(path) if begun.is_file() else RunFolder.create(path, config), display)
    if experiment.tests:
        if not (out / TESTS).is_file():
            start = str(config_of(experiment.base, "base").policy)
            _write(out / TESTS, experiment.tested(experiment.base, start))
        values = merged(experiment.base, experiment.arms[trial.arm])
        _write(path / TESTS, experiment.tested(values, f"hf:{path / 'policy'}"))
    for name in ("checkpoints", "policy", "policy-second", "league"):
        shutil.rmtree(path / name, ignore_errors=True)


def _write(path: Path, figures: Json) -> None:
    write_text(path, json.dumps(figures, indent=1) + "\n")
