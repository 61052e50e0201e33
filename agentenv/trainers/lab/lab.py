"""``agentenv lab``: controlled comparisons. Arms share warm start, tasks, evaluations and rollout budget; seeds decide.

An experiment is a TOML file, which says what is claimed, which measure tests it, and what arms change in one run. How its
runs are made is in ``trials.py``.
"""

from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from agentenv.core.io.named_paths import is_folder_name
from agentenv.core.io.toml_files import read_toml
from agentenv.core.validation import Frozen, sentence
from agentenv.errors import ConfigurationError, UnknownName
from agentenv.evaluation.statistics.power import least_p
from agentenv.trainers.config.config_files import config_of, merged
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.lab.measures import MEASURES, Measure

MeasureName = Literal[
    "after", "after_with_strategy", "tested", "dev_mean", "steps_to", "tokens_to", "dev_at_tokens", "turns", "searches",
    "turns_per_right", "searches_per_right", "tokens_per_right", "agreement", "sign_flips", "accepted_true",
]  # fmt: skip
"""The keys of ``MEASURES``."""
_ROOM = 0.8  # of the error level: permutations are drawn, so that the least p-value is met up to chance


class Equivalence(Frozen):
    """Two arms of which the claim says that they are as good as each other."""

    arms: tuple[str, str]
    """The two arms."""
    measure: MeasureName = "after"
    """In what they are as good."""
    margin: float = Field(gt=0)
    """The smallest difference that would matter."""


class Experiment(Frozen):
    """One controlled comparison."""

    title: str
    """What is compared, in one line."""
    method: str = ""
    """The method's name."""
    paper: str = ""
    """Authors, year and arXiv id of the paper that claims it."""
    claim: str
    """What the paper claims of it, in one sentence."""
    setup: str = ""
    """What a reader must know of how it is tried here."""
    measure: MeasureName = "after"
    """What the sequential test compares, and so what tests the claim; see ``MEASURES``."""
    level: float = Field(0.0, ge=0)
    """The dev score, or the number of sampled tokens, that some measures take."""
    expects: tuple[tuple[str, str], ...] = ()
    """Pairs of arms of which the claim says that the first is better than the second by ``measure``."""
    equivalences: tuple[Equivalence, ...] = ()
    """Pairs of arms of which the claim says that they are as good as each other."""
    front: tuple[MeasureName, MeasureName] | None = None
    """A cost and a benefit, of whose trade-off the page shows which arms are on the Pareto front."""
    per_interim: int = Field(5, ge=2)
    """Seeds of each arm between two interim analyses."""
    interims: int = Field(2, ge=1)
    """Looks at most."""
    alpha: float = Field(0.05, gt=0, lt=1)
    """Probability of a wrong finding, over all families and equivalences, which have equal parts of it."""
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
    def _within(self) -> Self:
        if outside := [name for name in self.arms if not is_folder_name(name)]:
            raise ValueError(
                f"the arm {outside[0]!r:.80} needs a name that a folder can have, as its runs are written there"
            )
        return self

    @model_validator(mode="after")
    def _comparable(self) -> Self:
        unknown = {name for family in self.families for name in family} - set(self.arms)
        if len(self.arms) < 2 or unknown or any(len(family) < 2 for family in self.families):
            raise ValueError(
                "an experiment and each of its families need two arms or more; families name arms that the experiment "
                f"does not have: {sorted(unknown)}"
            )
        for pair in self.expects:
            if not any(set(pair) <= set(family) for family in self.compared):
                raise ValueError(
                    f"expects names the pair {list(pair)}, which no family compares: add both arms to one of families"
                )
        if apart := {name for one in self.equivalences for name in one.arms} - set(self.arms):
            raise ValueError(f"equivalences names {sorted(apart)}, and the arms are {sorted(self.arms)}")
        if "tested" in self.measured and not self.tests:
            raise ValueError("measure = 'tested' needs at least one table [tests.NAME]")
        return self

    @model_validator(mode="after")
    def _runs(self) -> Self:
        runs = {arm: self.run_of(arm, 0) for arm in self.arms}
        for arm in self.arms:  # a misspelt name would be found after the training otherwise
            self.conditions(arm)
        budgets = {rollouts_of(run) for run in runs.values()}
        if self.budget == "rollouts" and len(budgets) > 1:
            raise ValueError(f"arms must ask for equally many episodes, not {sorted(budgets)}")
        stepwise = [name for name in self.measured if MEASURES[name].every_step]
        if stepwise and (seldom := [arm for arm, run in runs.items() if run.evaluation.every != 1]):
            raise ValueError(
                f"measure = {stepwise[0]!r} needs evaluation.every = 1 in every arm, not in {seldom} alone"
            )
        return self

    @model_validator(mode="after")
    def _decidable(self) -> Self:
        if least_p(self.per_interim) > _ROOM * self.level_of_one / self.interims:
            raise ValueError(
                f"{self.per_interim} seeds an analysis cannot tell apart even arms that do not overlap: their p-value is "
                f"{least_p(self.per_interim):.4f}, and the first analysis has an error level of "
                f"{self.level_of_one / self.interims:.4f}; raise per_interim"
            )
        return self

    @property
    def compared(self) -> tuple[tuple[str, ...], ...]:
        """The families of arms."""
        return self.families or (tuple(self.arms),)

    @property
    def level_of_one(self) -> float:
        """The error level of each family and of each equivalence."""
        return self.alpha / (len(self.compared) + len(self.equivalences))

    @property
    def measured(self) -> tuple[MeasureName, ...]:
        """Everything that is measured of a run, the measure of the claim first."""
        names = (self.measure, *(one.measure for one in self.equivalences), *(self.front or ()))
        return tuple(dict.fromkeys(names))

    @property
    def claimed(self) -> Measure:
        """The measure that tests the claim."""
        return MEASURES[self.measure]

    def values_of(self, arm: str) -> dict[str, Any]:
        """What the run of an arm sets, under any seed."""
        return merged(self.base, self.arms[arm])

    def run_of(self, arm: str, seed: int) -> TrainConfig:
        """The training run of an arm under a seed.

        Raises:
            ConfigurationError: the run cannot be configured so.
            UnknownName: a key or the preset does not exist.
        """
        return config_of(self.values_of(arm) | {"name": f"{arm}-{seed}", "seed": seed}, f"arm {arm}")

    def conditions(self, arm: str, policy: str = "") -> dict[str, TrainConfig]:
        """The runs whose evaluations are ``tests`` for an arm; of ``policy``, where that is not the start of the arm."""
        values = merged(self.values_of(arm), {"policy": policy} if policy else {})
        return {
            name: config_of(merged(values, changes), f"test {name} of arm {arm}")
            for name, changes in self.tests.items()
        }


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
