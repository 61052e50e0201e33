"""Configurations from presets, TOML files and the command line, and back to TOML."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from agentenv.core.io.shipped_files import shipped_file
from agentenv.core.io.toml_files import read_toml
from agentenv.core.trust import confirm_file, needs_trust
from agentenv.core.values import read_value
from agentenv.data.sources import OWN
from agentenv.errors import ConfigurationError, UnknownName, check_known
from agentenv.trainers.config.identity import IDENTITY, Identity, without_environment
from agentenv.trainers.config.other_names import key_hint
from agentenv.trainers.config.sections import EnvironmentSettings
from agentenv.trainers.config.train_config import TrainConfig

CONFIG = "config.toml"
DEFAULT_PRESET = "laptop-search"
_FREE_TABLES = (
    "env.options",
    "train.options",
    "train.weights",
    "dev.options",
    "test.options",
    "chat.options",
    "rollout.strategy_options",
    "evaluation.strategy_options",
    "rollout.sampler_options",
    "loss.estimator_options",
    "loss.objective_options",
)
"""Tables whose keys are checked by the parts that they are options of."""
_OPTIONS_OF = {
    "id": "options",
    "dataset": "options",
    "strategy": "strategy_options",
    "sampler": "sampler_options",
    "estimator": "estimator_options",
    "objective": "objective_options",
}
"""What names something, and the table beside it with the options of that."""
_OF_ENVIRONMENT = EnvironmentSettings(share=0.5).model_dump(mode="json")
"""The keys of a further environment."""


def presets() -> dict[str, Path]:
    """The shipped presets by name."""
    folder = Path(str(files("agentenv.trainers") / "presets"))
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def load_config(name: str | Path) -> TrainConfig:
    """The configuration of a preset or of a TOML file; ``base = "PRESET"`` in a file takes what it does not say from there.

    The example configurations are found in every folder by their names in the repository, as they are installed with the
    package. Options of a base are left out where the file names another environment, strategy and so on than the base.

    Raises:
        UnknownName: neither a preset nor a file, or no such base.
        ConfigurationError: the file is no TOML, or a key or value of it is wrong.
    """
    path = presets().get(str(name)) or shipped_file(Path(name))
    if not path.is_file():
        raise UnknownName.among("preset or TOML file", str(name), presets())
    return config_of(read_toml(path), str(path))


def load_confirmed(name: str, *, trusted: bool) -> TrainConfig:
    """`load_config`, after the user has confirmed what a TOML file would run or contact (`confirm_file`).

    Raises:
        ConfigurationError: they are not confirmed; otherwise as `load_config`.
    """
    if name not in presets():
        confirm_file(Path(name), trusted=trusted)
    return load_config(name)


def config_of(values: Mapping[str, Any], place: str) -> TrainConfig:
    """The configuration of plain values, of which ``base`` may name the preset to start from.

    Raises:
        UnknownName: no such preset or key.
        ConfigurationError: a key or value is wrong.
    """
    return parse_config(_on_its_base(values, place), place)


def _on_its_base(values: Mapping[str, Any], place: str) -> dict[str, Any]:
    """``values`` in what they start from, which may itself start from a preset."""
    own = {key: value for key, value in values.items() if key != "base"}
    if "base" not in values:
        return own
    base = str(values["base"])
    check_known(f"preset to be the base of {place}:", base, presets())
    _check_keys(own, place)
    above = _on_its_base(read_toml(presets()[base]), f"preset {base}")
    return merged(without_inapplicable_options(above, own), own)


def merged(base: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with ``values`` in it, table by table."""
    both = dict(base)
    for key, value in values.items():
        tables = isinstance(value, dict) and isinstance(base.get(key), dict)
        both[key] = merged(base[key], value) if tables else value
    return both


def without_inapplicable_options(base: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` without the options of those parts that ``values`` replace by others.

    Options belong to the part that is named beside them. The options of one environment mean nothing to another one, and the
    same holds for strategies, samplers, estimators, objectives and data sets. The options of an environment's own tasks
    belong to the environment.
    """
    kept = _without_options_of_others(base, values, _known_tables(values))
    further = base.get("environments", {})
    for before, after in (
        (base, kept),
        *((one, kept["environments"][name]) for name, one in further.items()),
    ):
        if after.get("env") != before.get("env"):
            for name in ("train", "dev", "test"):
                if before.get(name, {}).get("dataset") == OWN:
                    after[name] = {key: value for key, value in after[name].items() if key != "options"}
    return kept


def _known_tables(values: Mapping[str, Any]) -> dict[str, Any]:
    """All keys with their defaults, table by table; those of an environment for each that ``values`` names."""
    environments = values.get("environments")
    named = environments if isinstance(environments, dict) else {}
    return TrainConfig().model_dump(mode="json") | {"environments": dict.fromkeys(named, _OF_ENVIRONMENT)}


def _without_options_of_others(
    base: Mapping[str, Any], values: Mapping[str, Any], defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """Does one table of `without_inapplicable_options`. ``defaults`` has the names that hold if ``base`` has none."""
    kept = dict(base)
    for name, options in _OPTIONS_OF.items():
        before = base.get(name, defaults.get(name))
        if name in values and before is not None and values[name] != before:
            kept.pop(options, None)
    for key, value in values.items():
        if isinstance(value, Mapping) and isinstance(kept.get(key), Mapping) and key in defaults:
            kept[key] = _without_options_of_others(base[key], value, defaults[key])
    return kept


def resume_command(folder: Path) -> str:
    """The command that goes on with the run in ``folder``, as it is to be typed."""
    trusted = " --trust-config" if needs_trust(folder / CONFIG) else ""
    return f"agentenv train --resume {shlex.quote(str(folder))}{trusted}"


def resume_config(folder: Path) -> TrainConfig:
    """The configuration of the run in ``folder``, or what it was begun with where ``config.toml`` is gone.

    Raises:
        ConfigurationError: it holds no run, or a configuration that is empty, incomplete or unreadable.
    """
    path, held = folder / CONFIG, Identity.of_run(folder)
    if not path.exists() and held is not None:
        return config_of(held.nested(), str(folder / IDENTITY))
    if not path.is_file():
        raise ConfigurationError(f"{folder} holds no run to resume: it has no {CONFIG}")
    way_out, values = _way_out(held), _read_held(path, held)
    if not values:
        raise ConfigurationError(f"{path} is empty: {way_out}")
    if held is None and not values.keys() & TrainConfig.model_fields.keys():
        raise ConfigurationError(f"{folder} holds no training run to resume: {path} has none of its keys")
    if held is not None and (missing := _missing(held.nested(), values)):
        raise ConfigurationError(f"{path} is incomplete, it lacks {missing}: {way_out}")
    return config_of(values, str(path))


def _way_out(held: Identity | None) -> str:
    return f"remove it, and --resume writes it again from {IDENTITY}" if held else "put it back"


def _read_held(path: Path, held: Identity | None) -> dict[str, Any]:
    """The tables of a run's own file, which may be damaged."""
    try:
        return read_toml(path)
    except ConfigurationError as error:
        raise ConfigurationError(f"{str(error).rstrip('.')}: {_way_out(held)}") from error


def resume_confirmed(folder: Path, *, trusted: bool) -> TrainConfig:
    """`resume_config`, after the user has confirmed the file of the run as in `load_confirmed`.

    Raises:
        ConfigurationError: it is not confirmed; otherwise as `resume_config`.
    """
    if (folder / CONFIG).is_file():
        _read_held(folder / CONFIG, Identity.of_run(folder))
    confirm_file(folder / CONFIG, trusted=trusted)
    return resume_config(folder)


def _missing(wanted: Mapping[str, Any], values: Mapping[str, Any], above: str = "") -> str:
    """The first key of ``wanted`` that ``values`` has not; empty where it has all. Options of a table are not looked at."""
    for key, value in wanted.items():
        if key not in values:
            return above + key
        below = values[key] if isinstance(value, Mapping) and not _is_free(above + key) else None
        if isinstance(below, Mapping) and (missing := _missing(value, below, f"{above}{key}.")):
            return missing
    return ""


def parse_config(values: dict[str, Any], place: str) -> TrainConfig:
    """A configuration from plain values.

    Raises:
        UnknownName: a key that does not exist; carries the nearest.
        ConfigurationError: names the first wrong key with what is wrong about it.
    """
    _check_keys(values, place)
    try:
        return TrainConfig.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "the configuration"
        message = first["msg"].removeprefix("Value error, ").rstrip(".")
        received = "" if isinstance(first["input"], dict) else f"; got {first['input']!r}"
        end = "" if not received and message.endswith("?") else "."
        raise ConfigurationError(f"{place}: {key}: {message}{received}{end}") from error


def _is_free(key: str) -> bool:
    """Whether the table at ``key`` is one of `_FREE_TABLES`, of the run's own environment or of a further one."""
    return without_environment(key) in _FREE_TABLES


def _check_keys(values: dict[str, Any], place: str) -> None:
    """Nested data classes would drop a misspelt key without a word; free tables are checked by their owners."""
    whole = _known_tables(values)

    def check(table: dict[str, Any], known: dict[str, Any], above: str) -> None:
        for key, value in table.items():
            if key not in known:
                raise UnknownName(f"No key in {place}: {above + key!r}. {key_hint(key, above, known, whole)}")
            if isinstance(value, dict) and isinstance(known[key], dict) and not _is_free(above + key):
                check(value, known[key], f"{above}{key}.")

    check(values, whole, "")


def override(base: TrainConfig, words: Sequence[str]) -> TrainConfig:
    """``base`` with command-line overrides such as ``--optimizer.steps 60``.

    Args:
        base: Where values that are not named come from.
        words: Each key after ``--``, dotted, followed by its value in TOML; text needs no quotes, a list is several words,
            and a switch may stand without a value (see `_switched`). ``--env.id`` with another environment leaves out the
            options of the present one.

    Raises:
        UnknownName: no such key; carries the nearest.
        ConfigurationError: a value that is missing or wrong.
    """
    values = without_inapplicable_options(base.model_dump(mode="json"), _names_in(words))
    commas: dict[str, list[str]] = {}  # lists of the command line with a comma in a word
    for flag, given in _flags(words):
        *tables, key = _path(flag)
        table = values
        for name in tables:
            if not isinstance(table.get(name), dict):
                table[name] = {}  # what stands there is no table; the checks below say so
            table = table[name]
        before = table.get(key)
        if not given:
            _check_keys(_nested(tables, {key.removeprefix("no_"): None}), "the command line")
            key, given = _switched(flag, key, table)
        after: list[Any] = list(given) if isinstance(before, str) else [read_value(word) for word in given]
        listed = len(after) > 1 or (isinstance(before, list) and not isinstance(after[0], list))
        table[key] = after if listed else after[0]
        if listed and any("," in word for word in given):
            commas[flag] = given
    try:
        return parse_config(values, "the command line")
    except ConfigurationError as error:
        if hint := _written_apart(commas, str(error)):
            raise ConfigurationError(f"{error} {hint}") from error
        raise


def _written_apart(commas: Mapping[str, Sequence[str]], complaint: str) -> str:
    """How the first list is written that has a comma in a word and is complained of; empty where there is none."""
    for flag, given in commas.items():
        if any("," in word and word in complaint for word in given):
            values = " ".join(" ".join(given).replace(",", " ").split())
            return f"The values of a list stand with blanks between them: {flag} {values}"
    return ""


def _path(flag: str) -> list[str]:
    """The keys that a flag such as ``--env.options.max-turns`` names."""
    return flag.removeprefix("--").replace("-", "_").split(".")


def _names_in(words: Sequence[str]) -> dict[str, Any]:
    """What the command line names that may have options, such as another environment."""
    named: dict[str, Any] = {}
    for flag, given in _flags(words):
        *tables, key = _path(flag)
        if key in _OPTIONS_OF and len(given) == 1:
            named = merged(named, _nested(tables, {key: given[0]}))
    return named


def _nested(tables: Sequence[str], values: dict[str, Any]) -> dict[str, Any]:
    """``values`` in the table at the end of a path."""
    for name in reversed(tables):
        values = {name: values}
    return values


def _flags(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Each ``--key`` with the words up to the next one."""
    starts = [i for i, word in enumerate(words) if word.startswith("--")]
    if words and (not starts or starts[0] > 0):
        raise ConfigurationError(f"{words[0]!r} follows no key; write --key.path value")
    for begin, end in pairwise([*starts, len(words)]):
        flag, _, joined = words[begin].partition("=")
        given = [*([joined] if joined else []), *words[begin + 1 : end]]
        yield flag, given


def _switched(flag: str, key: str, table: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Key and value of a flag without a value: ``--evaluation.bounds`` is true, ``--evaluation.no-bounds`` false."""
    plain = key.removeprefix("no_")
    if isinstance(table.get(key), bool):
        return key, ["true"]
    if plain != key and isinstance(table.get(plain), bool):
        return plain, ["false"]
    raise ConfigurationError(f"{flag} needs a value")


def changed(base: TrainConfig, overrides: Mapping[str, Any]) -> TrainConfig:
    """``base`` with values by dotted key, such as ``{"optimizer.steps": 60}``; a table is merged into the one there.

    Raises:
        UnknownName: no such key; carries the nearest.
        ConfigurationError: a value is wrong.
    """
    given: dict[str, Any] = {}
    for key, value in overrides.items():
        *tables, name = key.split(".")
        given = merged(given, _nested(tables, {name: _plain(value)}))
    values = base.model_dump(mode="json")
    values = merged(without_inapplicable_options(values, given), given)
    return parse_config(values, "the overrides")


def _plain(value: Any) -> Any:
    """A part of a configuration as plain values."""
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else value


def dump_config(config: TrainConfig) -> str:
    """The configuration as TOML; reading it back gives an equal one."""
    import tomli_w

    return tomli_w.dumps(config.model_dump(mode="json", exclude_none=True))
