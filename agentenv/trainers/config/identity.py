"""What a run is made of: its configuration and the content that it names, so that a resumed run cannot be half of another.

A run keeps both in ``identity.json``, and every checkpoint has a copy. On ``--resume`` they are compared with what stands in
``config.toml`` and on the disk now. Keys of ``FREE`` may change, and each change is written down; keys of ``PLACES`` may
name another place with the same content; any other change is refused.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

from agentenv.core.io.digests import path_digest
from agentenv.core.io.named_paths import named_content, texts_in
from agentenv.core.io.strict_json import read_json_text
from agentenv.core.trust import names_module
from agentenv.errors import ConfigurationError
from agentenv.policies.policy_spec import PROGRAM
from agentenv.trainers.config.train_config import TrainConfig

IDENTITY = "identity.json"
FREE = (
    "name",
    "threads",
    "compute",
    "checkpoint_every",
    "checkpoints_kept",
    "checkpoint_shard_gib",
    "trajectories_every",
    "tracker",
    "monitor",
    "cluster",
    "evaluation.every",
    "evaluation.keep_best",
    "rollout.workers",
    "rollout.deadline_s",
    "asynchronous.concurrent",
    "second.learning_rate",
    *(
        f"engine.{name}"
        for name in ("replicas", "urls", "threads", "kv_gib", "block_tokens", "max_sequences", "weights_dir")
    ),
    *(f"engine.{name}" for name in ("start_s", "deadline_s")),
    *(
        f"optimizer.{name}"
        for name in (
            *("steps", "learning_rate", "warmup_steps", "schedule", "final_rate"),
            *("max_grad_norm", "supervised_rate"),
        )
    ),
    *(
        f"memory.{name}"
        for name in ("micro_tokens", "padding", "gradient_checkpointing", "offload_activations")
    ),
)
"""Keys, or tables of keys, that change how fast, how long or how far a run learns, and neither its tasks nor its measure."""
PLACES = (
    "policy",
    "second.policy",
    "train.data",
    "dev.data",
    "test.data",
    "search.retriever",
    "search.corpus",
    "simulation.retriever",
    "rollout.strategy_options.pool",
)
"""Keys that say where something lies whose content is compared."""

_FURTHER = re.compile(r"^environments\.[^.]+\.")


class Change(NamedTuple):
    """A configuration key whose value has changed."""

    key: str
    old: Any
    new: Any


@dataclass(frozen=True)
class Identity:
    """The configuration of a run by dotted keys, and digests of what it names."""

    config: Mapping[str, Any]
    contents: Mapping[str, str]

    def text(self) -> str:
        """The content of the file."""
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """What a file holds; None where there is no such file, or a damaged one."""
        try:
            held = read_json_text(path.read_text(encoding="utf-8"))
            return cls(dict(held["config"]), dict(held["contents"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    @classmethod
    def of_run(cls, folder: Path) -> Self | None:
        """What the run in ``folder`` keeps, in its own file or else in a checkpoint; None where nothing is readable."""
        checkpoints = sorted((folder / "checkpoints").glob("step-*"), reverse=True)
        found = (cls.read(place / IDENTITY) for place in (folder, *checkpoints))
        return next((identity for identity in found if identity is not None), None)

    def changes(self, now: Mapping[str, Any]) -> list[Change]:
        """The keys of ``now``, a flat configuration, that differ; a key that was not known then had its default."""
        usual = flatten_config(TrainConfig())
        pairs = (
            Change(key, self.config.get(key, usual.get(key)), now.get(key))
            for key in sorted({*self.config, *now})
        )
        return [change for change in pairs if change.old != change.new]

    def nested(self) -> dict[str, Any]:
        """The configuration table by table, without what is None."""
        tables: dict[str, Any] = {}
        for key, value in self.config.items():
            *path, name = key.split(".")
            table = tables
            for part in path:
                table = table.setdefault(part, {})
            if value is not None:
                table[name] = value
        return tables


def without_environment(key: str) -> str:
    """``key`` as it would be of the run's own environment: ``train.data`` for ``environments.code.train.data``."""
    return _FURTHER.sub("", key)


def flatten_config(config: TrainConfig) -> dict[str, Any]:
    """The configuration by dotted keys, as JSON has its values."""
    return dict(_flattened(config.model_dump(mode="json")))


def _flattened(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flattened(value, f"{above}{key}.")
        else:
            yield above + key, value


def refuse_changes(held: Identity, config: TrainConfig, place: Path) -> list[Change]:
    """The changes that a resumed run may have.

    Args:
        held: What the run was made of.
        config: What it is to go on with.
        place: The run's folder, for the sentence.

    Raises:
        ConfigurationError: another key has changed; names it with both values.
    """
    changes = held.changes(flatten_config(config))
    for key, old, new in changes:
        if without_environment(key) not in PLACES and not any(
            key == free or key.startswith(f"{free}.") for free in FREE
        ):
            raise ConfigurationError(
                f"{place} was begun with {key} = {_value_text(old)}, and its configuration now says {_value_text(new)}: "
                "put it back, or begin another run with another --out"
            )
    return changes


def refuse_other_contents(held: Mapping[str, str], now: Mapping[str, str], place: Path) -> None:
    """Compares digests of what a run's configuration names.

    Raises:
        ConfigurationError: one of them has changed; names it.
    """
    for name in sorted(held.keys() & now.keys()):
        if held[name] != now[name]:
            raise ConfigurationError(
                f"the {name} have another content than when the run in {place} began: put the old ones back, or begin "
                "another run with another --out"
            )


def named_files(config: TrainConfig) -> dict[str, str]:
    """Digests of the files and of the folders of models that options of the configuration name.

    Such a folder is a cross-encoder of a reranker, or the encoder behind ``encoder:bge:FOLDER``. Other folders are not
    looked at: one may be written to. Policies have digests of their own (`named_policies`).
    """
    policies, texts = named_policies(config), _texts_of_options(config)
    paths = {key: named_content(value) for key, value in texts.items() if key not in policies}
    return {f"contents of {key}": path_digest(path) for key, path in paths.items() if path is not None}


def named_policies(config: TrainConfig) -> dict[str, str]:
    """The policies in folders that options of the configuration name, such as another role's or a reflector."""
    return {key: value for key, value in _texts_of_options(config).items() if value.startswith("hf:")}


def named_parts(config: TrainConfig) -> dict[str, str]:
    """The estimator, objective, player of a role and so on that the configuration names as ``module:name``, by key."""
    texts = {key: value for key, value in flatten_config(config).items() if isinstance(value, str)}
    parts = {
        key: value
        for key, value in texts.items()
        if without_environment(key) != "env.id" and names_module(key, value)
    }
    players = {key: value for key, value in texts.items() if ".role_policies." in key}
    return parts | {
        key: value.removeprefix(PROGRAM) for key, value in players.items() if value.startswith(PROGRAM)
    }


def _texts_of_options(config: TrainConfig) -> dict[str, str]:
    options = {
        key: value
        for key, value in flatten_config(config).items()
        if "_options." in key or ".options." in key
    }
    return {key: text for key, text in texts_in(options) if text}


def _value_text(value: Any) -> str:
    return "no value" if value is None else repr(value)
