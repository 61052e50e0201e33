"""``kind:rest`` for policies."""

from pathlib import Path
from typing import TYPE_CHECKING

from agentenv.errors import MissingExtra, UnknownName
from agentenv.policies.tiny import shipped_weights

if TYPE_CHECKING:
    from agentenv.policies.hf import HFPolicy

KINDS = ("scripted", "scripted:extractive", "tiny", "hf:PATH")


def make_policy(spec: str) -> "HFPolicy":
    """The policy that ``spec`` names.

    ``tiny`` is the shipped policy, ``hf:PATH`` a local transformers folder. ``scripted`` (the expert of each
    environment) needs the episodes and is made by the evaluation.

    Raises:
        UnknownName: no such kind of policy.
        MissingExtra: torch or transformers is not installed.
        CheckpointMismatch: the folder holds no model that can be loaded.
    """
    folder = policy_folder(spec)
    try:
        from agentenv.policies.hf import HFPolicy
    except ModuleNotFoundError as error:
        raise MissingExtra.of(error.name or "torch", "train") from error
    return HFPolicy.load(folder)


def policy_folder(spec: str) -> Path:
    """The folder with the weights that ``spec`` names.

    Raises:
        UnknownName: no such kind of policy, or one without a folder.
    """
    kind, _, rest = spec.partition(":")
    if spec == "tiny":
        return shipped_weights()
    if kind == "hf" and rest:
        return Path(rest)
    raise UnknownName.among("policy", spec, KINDS)
