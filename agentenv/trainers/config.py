"""The configuration of a training run: a TOML preset plus dotted overrides. Importable without torch."""

import tomllib
from collections.abc import Iterator, Sequence
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from agentenv.data.sources import Frozen, SourceConfig
from agentenv.errors import ConfigurationError, UnknownName
from agentenv.evaluation.ground import EnvConfig, SearchConfig


class RolloutSettings(Frozen):
    """How episodes are sampled in training."""

    questions: int = Field(16, ge=1)
    """Questions an optimiser step."""
    group_size: int = Field(8, ge=2)
    """Episodes a question; at least 2, or every advantage is 0."""
    temperature: float = Field(1.0, gt=0)
    """Sampling temperature; the loss divides logits by the same number."""
    turn_tokens: int = Field(48, ge=1)
    """Tokens that the policy may sample in one turn."""
    context_tokens: int = Field(512, ge=2)
    """Tokens of prompt, actions and observations together; an episode ends before it overflows."""
    deterministic: bool = True
    """Batches are formed by episode index: equal seed, machine and thread count give equal files."""
    deadline_s: float = Field(600.0, gt=0)
    """Seconds that one call of policy or environment may take."""


class OptimizationConfig(Frozen):
    """How the weights are moved."""

    steps: int = Field(100, ge=1)
    """Optimiser steps; one for each batch of rollouts."""
    learning_rate: float = Field(1e-4, gt=0)
    """Adam step size, constant after the warm-up."""
    warmup_steps: int = Field(0, ge=0)
    """Steps of linear warm-up; 0 starts at full size."""
    weight_decay: float = Field(0.0, ge=0)
    """Decoupled weight decay."""
    max_grad_norm: float = Field(1.0, gt=0)
    """The gradient is scaled down to this norm."""
    estimator: str = "group_relative"
    """Name of the advantage estimator."""
    clip_low: float = Field(0.2, ge=0)
    """How far the ratio may fall below 1."""
    clip_high: float = Field(0.28, ge=0)
    """How far the ratio may rise above 1."""
    kl_coefficient: float = Field(0.0, ge=0)
    """Weight of the k3 penalty towards the initial policy; 0 keeps no reference model."""
    micro_tokens: int = Field(8192, ge=1)
    """Padded tokens of one forward pass; bounds memory."""


class EvaluationSettings(Frozen):
    """Evaluation during and around training; always greedy."""

    every: int = Field(10, ge=0)
    """Steps between two evaluations on the dev questions; 0 makes none."""
    scorers: tuple[str, ...] = ("em_squad", "f1_squad")
    """Scorers of the evaluations before and after; the first is the headline."""
    bounds: bool = True
    """Whether closed book, oracle passages and the scripted expert are measured on the test questions."""


class TrainConfig(Frozen):
    """A training run."""

    name: str = "run"
    """What the run is called in its report."""
    seed: int = 0
    """Seeds question draws and sampling."""
    threads: int = Field(2, ge=1)
    """Threads of torch; results depend on it in the last digits."""
    policy: str = "tiny"
    """Where the policy starts: ``tiny`` or ``hf:PATH``."""
    format: Literal["inline", "template"] = "inline"
    """Inline tags within one assistant turn (Search-R1), or the chat template with tool messages."""
    env: EnvConfig = EnvConfig()
    """The environment."""
    search: SearchConfig = SearchConfig()
    """Its retriever."""
    train: SourceConfig = SourceConfig()
    """Questions to learn from."""
    dev: SourceConfig = SourceConfig()
    """Questions of the evaluations during training."""
    test: SourceConfig = SourceConfig()
    """Questions of the evaluations before and after."""
    rollout: RolloutSettings = RolloutSettings()
    """Sampling."""
    optimization: OptimizationConfig = OptimizationConfig()
    """Learning."""
    evaluation: EvaluationSettings = EvaluationSettings()
    """Evaluation."""
    checkpoint_every: int = Field(25, ge=1)
    """Steps between two checkpoints; the last two are kept."""
    trajectories_every: int = Field(10, ge=0)
    """Steps between two dumps of all trajectories of a step; 0 keeps none."""
    tracker: str = ""
    """``tensorboard:DIR``, ``wandb:PROJECT`` or ``mlflow:EXPERIMENT``; empty tracks nowhere else."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        rollout = self.rollout
        if rollout.turn_tokens >= rollout.context_tokens:
            raise ValueError(
                f"rollout.turn_tokens={rollout.turn_tokens} must be below rollout.context_tokens="
                f"{rollout.context_tokens}, or no prompt fits beside one turn"
            )
        return self


def presets() -> dict[str, Path]:
    """The shipped presets by name."""
    folder = Path(str(files("agentenv.trainers") / "presets"))
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def load_config(name: str) -> TrainConfig:
    """The configuration of a preset or of a TOML file.

    Raises:
        UnknownName: neither a preset nor a file.
        ConfigurationError: the file is no TOML, or a key or value of it is wrong.
    """
    path = presets().get(name) or Path(name)
    if not path.is_file():
        raise UnknownName.among("preset or TOML file", name, presets())
    try:
        return parse_config(tomllib.loads(path.read_text(encoding="utf-8")), str(path))
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{path} is no TOML: {error}.") from error


def resume_config(folder: Path) -> TrainConfig:
    """The configuration of the run in ``folder``.

    Raises:
        ConfigurationError: it holds no run.
    """
    if not (folder / "config.toml").is_file():
        raise ConfigurationError(f"{folder} holds no run to resume: it has no config.toml")
    return load_config(str(folder / "config.toml"))


def parse_config(values: dict[str, Any], place: str) -> TrainConfig:
    """A configuration from plain values.

    Raises:
        UnknownName: a key that does not exist; carries the nearest.
        ConfigurationError: names the first wrong key with what is wrong about it.
    """
    _check_keys(values, TrainConfig().model_dump(), place)
    try:
        return TrainConfig.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "the configuration"
        message = first["msg"].removeprefix("Value error, ").rstrip(".")
        shown = "" if isinstance(first["input"], dict) else f"; got {first['input']!r}"
        raise ConfigurationError(f"{place}: {key}: {message}{shown}.") from error


def _check_keys(values: dict[str, Any], known: dict[str, Any], place: str, above: str = "") -> None:
    """Nested data classes would drop a misspelt key without a word; the options of an environment are its own."""
    for key, value in values.items():
        if key not in known:
            raise UnknownName.among(f"key in {place}:", above + key, (above + name for name in known))
        if isinstance(value, dict) and isinstance(known[key], dict) and above + key != "env.options":
            _check_keys(value, known[key], place, f"{above}{key}.")


def override(base: TrainConfig, words: Sequence[str]) -> TrainConfig:
    """``base`` with command-line overrides such as ``--optimization.steps 60``.

    Args:
        base: Where values that are not named come from.
        words: Each key after ``--``, dotted, followed by its value in TOML; text needs no
            quotes, a list is several words.

    Raises:
        UnknownName: no such key; carries the nearest.
        ConfigurationError: a value that is missing or wrong.
    """
    values = base.model_dump(mode="json")
    for flag, given in _flags(words):
        *tables, key = flag.removeprefix("--").replace("-", "_").split(".")
        table = values
        for name in tables:
            if not isinstance(table.get(name), dict):
                table[name] = {}  # what stands there is no table; the checks below say so
            table = table[name]
        before = table.get(key)
        after = given if isinstance(before, str) else [_value(word) for word in given]
        listed = len(after) > 1 or (isinstance(before, list) and not isinstance(after[0], list))
        table[key] = after if listed else after[0]
    return parse_config(values, "the command line")


def _flags(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Each ``--key`` with the words up to the next one."""
    starts = [i for i, word in enumerate(words) if word.startswith("--")]
    if words and (not starts or starts[0] > 0):
        raise ConfigurationError(f"{words[0]!r} follows no key; write --key.path value")
    for begin, end in pairwise([*starts, len(words)]):
        flag, _, joined = words[begin].partition("=")
        given = [*([joined] if joined else []), *words[begin + 1 : end]]
        if not given:
            raise ConfigurationError(f"{flag} needs a value")
        yield flag, given


def _value(word: str) -> Any:
    """``word`` as a TOML value where it is one, and as text where it is not."""
    try:
        return tomllib.loads(f"value = {word.lower() if word in ('True', 'False') else word}")["value"]
    except tomllib.TOMLDecodeError:
        return word


def dump_config(config: TrainConfig) -> str:
    """The configuration as TOML; reading it back gives an equal one."""
    import tomli_w

    return tomli_w.dumps(config.model_dump(mode="json", exclude_none=True))
