"""``kind:rest`` for policies."""

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from pydantic import ValidationError

from agentenv.core.io.digests import PathState, file_digests, path_state, value_digest
from agentenv.core.io.model_files import check_model_folder
from agentenv.core.io.weight_digests import DIGESTS
from agentenv.core.options import own_part
from agentenv.core.validation import sentence
from agentenv.errors import ConfigurationError, UnknownName, check_known, needs_extra
from agentenv.policies.compute import ComputeSettings, process_compute
from agentenv.policies.endpoint_spec import ANYLLM, OPENAI
from agentenv.policies.lora import base_and_adapter
from agentenv.policies.tiny import shipped_weights

if TYPE_CHECKING:
    from agentenv.policies.hf import HFPolicy
    from agentenv.policies.openai import OpenAIPolicy
    from agentenv.policies.program import ProgramPolicy
    from agentenv.policies.router import RouterPolicy
    from agentenv.policies.vllm import VLLMPolicy

KINDS = (
    "scripted",
    "scripted:extractive",
    "scripted:original",
    "scripted:all_history",
    "tiny",
    "hf:PATH",
    "router:FOLDER",
    "vllm:PATH",
    "vllm:PATH@URL",
    "openai:MODEL@URL",
    "anyllm:PROVIDER/MODEL",
)
PROGRAM = "python:"
"""Begins the name of a Python function that plays a role, ``python:MODULE:NAME``."""
_ENGINE, _ROUTER = "vllm:", "router:"
START_RECORD, WARMSTART_RECORD = "start.json", "warmstart.json"
"""Files in the folder of a policy that tell how it was made, with the minutes that this took."""


def is_endpoint(spec: str) -> bool:
    """Whether ``spec`` names a model behind an HTTP address or of a service."""
    return spec.startswith((OPENAI, ANYLLM))


def is_program(spec: str) -> bool:
    """Whether ``spec`` names a Python function."""
    return spec.startswith(PROGRAM)


def is_engine(spec: str) -> bool:
    """Whether ``spec`` names weights that vLLM samples from."""
    return spec.startswith(_ENGINE)


def is_router(spec: str) -> bool:
    """Whether ``spec`` names several policies of which a model chooses one for each episode."""
    return spec.startswith(_ROUTER)


def router_parts(spec: str) -> list[str]:
    """The specs of the policies that a router chooses among, its base first.

    Raises:
        CheckpointMismatch: the folder holds no router.
    """
    from agentenv.policies.router import read_router

    card = read_router(Path(spec.removeprefix(_ROUTER)))
    return [card.base, *(route.policy for route in card.routes)]


def check_policy(spec: str) -> None:
    """Refuses a spec that names no policy; nothing is loaded and nothing is sent.

    Raises:
        UnknownName: no such kind of policy; carries the nearest.
        ConfigurationError: an endpoint that is not written as one.
        CheckpointMismatch: there is no such folder.
    """
    if is_endpoint(spec):
        make_endpoint_policy(spec)
    elif is_router(spec):
        for part in router_parts(spec):
            check_policy(part)
    elif spec not in KINDS or spec == "tiny":
        compute_of(spec, ComputeSettings())
        folder = policy_folder(spec)
        check_model_folder(folder, folder)


def check_reached(spec: str) -> None:
    """Refuses a model behind an address at which nobody takes a connection, before work begins that needs it.

    Nothing is sent. A model of another kind, and a service whose address a library knows, is taken for granted.

    Raises:
        ConfigurationError: nobody is there.
    """
    from agentenv.policies.endpoint_spec import Endpoint
    from agentenv.web.reach import refuse_unreachable

    if is_endpoint(spec) and (url := Endpoint.of(spec).url):
        refuse_unreachable(url)


def check_trainable(spec: str) -> None:
    """Refuses a policy that has no weights to train; nothing is loaded and nothing is sent.

    Raises:
        ConfigurationError: it has none, or those of several policies; says what to name.
    """
    if is_endpoint(spec):
        raise ConfigurationError(
            f"{spec!r} gives text and no token ids: it can be evaluated and not trained on. Train with hf:PATH."
        )
    if is_engine(spec):
        raise ConfigurationError(
            f"{spec!r} only samples and cannot be trained or changed: name hf:PATH; to sample with vLLM in training, set "
            "engine.kind='vllm'"
        )
    if is_router(spec):
        raise ConfigurationError(
            f"{spec!r} is several policies: it can be evaluated and not trained. Train one of them with hf:PATH."
        )
    if spec in KINDS and spec.startswith("scripted"):
        raise ConfigurationError(
            f"{spec!r} has no weights: it can be evaluated and not trained. Train with hf:PATH."
        )


def make_policy(spec: str, compute: ComputeSettings | None = None) -> "HFPolicy":
    """The policy that ``spec`` names, whose tokens can be trained on.

    ``tiny`` is the shipped policy, ``hf:PATH`` a local transformers folder, and ``hf:PATH#device=cuda:1&dtype=float32`` one
    with settings of its own. ``scripted`` (the expert of each environment) needs the episodes and is made by the evaluation.

    Args:
        spec: Its name.
        compute: Where and how it computes, unless the name says so; None is ``process_compute``.

    Raises:
        UnknownName: no such kind of policy, or no such setting.
        ConfigurationError: an endpoint, which can be evaluated only, or settings that cannot be had.
        MissingExtra: torch or transformers is not installed.
        CheckpointMismatch: the folder holds no model that can be loaded.
    """
    check_trainable(spec)
    folder = policy_folder(spec)
    with needs_extra("train"):
        from agentenv.policies.hf import HFPolicy
        from agentenv.policies.reading import is_reader

        kind: type[HFPolicy] = HFPolicy
        if is_reader(folder):
            from agentenv.policies.reader import ReaderPolicy

            kind = ReaderPolicy
    return kind.load(folder, compute_of(spec, compute or process_compute()))


def make_router_policy(spec: str) -> "RouterPolicy":
    """The policy of ``router:FOLDER``, all its parts loaded.

    Raises:
        CheckpointMismatch: the folder holds no router, or a part holds no model that can be loaded.
        MissingExtra: torch or transformers is not installed.
    """
    from agentenv.policies.card import read_card
    from agentenv.policies.router import RouterPolicy, read_router

    card = read_router(Path(spec.removeprefix(_ROUTER)))
    base = make_policy(card.base)
    routes = {route.name: (route.description, make_policy(route.policy)) for route in card.routes}
    chat = read_card(policy_folder(card.base)).chat_format(base.tokenizer, base.ends)
    return RouterPolicy(base, routes, chat)


def make_endpoint_policy(spec: str) -> "OpenAIPolicy":
    """The policy behind ``openai:MODEL@URL#options`` or ``anyllm:PROVIDER/MODEL#options``; nothing is sent yet.

    Raises:
        ConfigurationError: no such address, service or option.
        MissingExtra: any-llm is not installed.
    """
    from agentenv.policies.endpoint import ChatClient
    from agentenv.policies.endpoint_spec import Endpoint
    from agentenv.policies.openai import OpenAIPolicy

    return OpenAIPolicy(ChatClient(Endpoint.of(spec)))


def make_program_policy(spec: str) -> "ProgramPolicy":
    """The policy of ``python:MODULE:NAME``; the module is looked for in the current folder first.

    Raises:
        UnknownName: it is not of that form.
        ConfigurationError: the module cannot be imported, or has no function of that name; shows the nearest.
    """
    from agentenv.policies.program import ProgramPolicy

    name = spec.removeprefix(PROGRAM)
    return ProgramPolicy(name, own_part("function", name, (f"{PROGRAM}MODULE:NAME",)))


def make_engine_policy(spec: str) -> "VLLMPolicy":
    """The policy of ``vllm:PATH``, sampled by an engine started here, or of ``vllm:PATH@URL[,URL...]`` by running servers.

    Raises:
        MissingExtra: vLLM or transformers is not installed.
        CheckpointMismatch: the folder holds no model that can be loaded.
        PolicyFault: no engine came up, or a server does not answer.
    """
    from agentenv.policies.engine import EngineConfig

    with needs_extra("train"):
        from agentenv.policies.vllm import VLLMPolicy
    _, _, urls = _split(spec)[0].partition("@")
    config = EngineConfig(kind="vllm", urls=tuple(urls.split(",")) if urls else ())
    rounds = compute_of(spec, process_compute()).rounds
    return VLLMPolicy.load(policy_folder(spec), config.resolved(rounds=rounds))


def compute_of(spec: str, usual: ComputeSettings) -> ComputeSettings:
    """``usual`` with the settings that ``spec`` names behind a ``#``.

    Raises:
        UnknownName: no such setting; carries the nearest.
        ConfigurationError: a setting has no such value.
    """
    options = dict(parse_qsl(_split(spec)[1], keep_blank_values=True))
    for name in options:
        check_known("setting of a policy", name, ComputeSettings.model_fields)
    try:
        return usual.changed(options)
    except ValidationError as error:
        raise ConfigurationError(f"{spec!r}: {sentence(error)}") from error


def _split(spec: str) -> tuple[str, str]:
    """What names the policy, and the settings behind the last ``#``; a ``#`` without ``=`` behind it is part of a path."""
    name, _, options = spec.rpartition("#")
    return (name, options) if name and "=" in options and not is_endpoint(spec) else (spec, "")


def policy_digest(spec: str) -> str:
    """A digest of the files that decide what the policy ``spec`` does, of the base too where it is an adapter.

    All files of its folder count (weights, settings, tokenizer, chat template, the form of its episodes), but for texts for
    people (``*.md``), records of how it was made and the digests of its weights, so that a policy that is made again to the
    byte has the same digest.

    Raises:
        UnknownName: no such kind of policy, or one without a folder.
        CheckpointMismatch: an adapter that names no base.
    """
    if is_router(spec):
        return value_digest([policy_digest(part) for part in router_parts(spec)])
    base, adapter = base_and_adapter(policy_folder(spec))
    held = [file_digests(folder) for folder in (base, adapter) if folder is not None]
    return value_digest(
        [{name: digest for name, digest in files.items() if _decides(name)} for files in held]
    )


def _decides(name: str) -> bool:
    """Whether the file ``name`` in the folder of a policy may decide what the policy does."""
    return not name.endswith(".md") and name not in (START_RECORD, WARMSTART_RECORD, DIGESTS)


def policy_state(spec: str) -> PathState:
    """What tells the files that ``spec`` names from those that stood there before; nothing is read but an adapter's card.

    Raises:
        UnknownName: no such kind of policy, or one without a folder.
        CheckpointMismatch: an adapter that names no base.
    """
    if is_router(spec):
        return tuple(state for part in router_parts(spec) for state in policy_state(part))
    folders = base_and_adapter(policy_folder(spec))
    return tuple(state for folder in folders if folder is not None for state in path_state(folder))


def policy_folder(spec: str) -> Path:
    """The folder with the weights that ``spec`` names.

    Raises:
        UnknownName: no such kind of policy, or one without a folder.
    """
    spec = _split(spec)[0]
    kind, _, rest = spec.partition(":")
    if spec == "tiny":
        return shipped_weights()
    if kind == "hf" and rest:
        return Path(rest)
    if is_engine(spec) and rest:
        path = rest.partition("@")[0]
        return shipped_weights() if path == "tiny" else Path(path)
    if Path(spec).is_dir():
        raise UnknownName(f"No policy {spec!r}: the folder of a model stands behind hf:, as in 'hf:{spec}'.")
    raise UnknownName.among("policy", spec, KINDS)
