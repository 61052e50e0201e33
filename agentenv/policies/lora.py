"""LoRA: W x + alpha / rank * B (A x), where W stays and the small A and B are trained (Hu et al. 2021, eq. 3).

B begins as 0, so an adapted model begins as its base. Adapters are peft's, in its file format; peft is imported where one is
made. Names of weights are those of ``state_dict``: peft's files leave out the name of the adapter.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from hashlib import file_digest, sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentenv.core.io.model_files import ADAPTER_CONFIG, check_adapter_files
from agentenv.errors import CheckpointMismatch, ConfigurationError, check_known, first_line, needs_extra

if TYPE_CHECKING:
    from torch import Tensor

WRAPPED = "base_model.model."
"""What names of weights begin with in a model that peft has wrapped."""
ADAPTER_WEIGHTS = "adapter_model.safetensors"
_WEIGHTS = "model.safetensors"


def adapt(model: Any, *, rank: int, alpha: int, modules: Sequence[str] = (), seed: int = 0) -> Any:
    """``model`` with adapters, which alone are trained; its layers are changed in place.

    Args:
        model: A transformers causal language model.
        rank: Rows of A and columns of B.
        alpha: The product is multiplied by alpha / rank.
        modules: Last names of the linear layers that get one, such as ``q_proj``; none named is all but the output layer. A
            vision tower, experts and what chooses among them get none and stay as they are.
        seed: Of A; B is 0.

    Raises:
        MissingExtra: peft is not installed.
        UnknownName: the model has no linear layer of that name.
        ConfigurationError: it is a name by which peft adapts experts, or there are no linear layers, as in GPT-2.
    """
    import torch

    with needs_extra("train"):
        from peft import LoraConfig, get_peft_model
        from peft.tuners.lora import LoraLayer

        from agentenv.policies.lora_layer import AdaptedLinear
    layers = {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, torch.nn.Linear) and layer is not model.get_output_embeddings()
    }
    ours = {layer for layer in language_part(model).modules() if not _is_router(layer)}
    linear = {name.rpartition(".")[2] for name, layer in layers.items() if layer in ours}
    others = [name for name, layer in layers.items() if layer not in ours]
    for name in modules:
        check_known("linear layer", name, linear)
    of_experts = {name for name in modules or linear if _names_experts(model, name)}
    if taken := sorted(of_experts & {*modules}):
        raise ConfigurationError(
            f"lora.modules names {taken[0]!r}, by which peft adapts the experts of {model.config.model_type!r}; they get no "
            f"adapters: name some of {', '.join(sorted(linear - of_experts))}, or set lora.rank=0"
        )
    targets = sorted(modules or linear - of_experts)
    if not targets:
        raise ConfigurationError(
            f"models of the type {model.config.model_type!r} have no linear layer that could get an adapter: set lora.rank=0"
        )
    settings = LoraConfig(r=rank, lora_alpha=alpha, target_modules=targets, exclude_modules=others or None)
    # With a generator state of its own, so that making adapters moves nobody else's draws.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        adapted = get_peft_model(model, settings, autocast_adapter_dtype=False)
    # In the number format of the model, also above layers in 4 bits: products in float32 would not be computed by the fast
    # units of a card. The optimizer holds float32 copies of weights in bfloat16.
    for name, weight in adapted.named_parameters():
        if "lora_" in name:
            weight.data = weight.data.to(model.dtype)
    for layer in adapted.modules():
        if isinstance(layer, LoraLayer):
            layer.__class__ = AdaptedLinear
    return adapted.eval()


def _is_router(layer: Any) -> bool:
    """Whether a layer is one of those that choose experts and give more than a product, as in Llama 4.

    Other classes of transformers' own, as in Falcon, compute what a linear layer does.
    """
    import torch

    own = type(layer).__module__.startswith("transformers.models.")
    if not (own and isinstance(layer, torch.nn.Linear)) or type(layer).forward is torch.nn.Linear.forward:
        return False
    with torch.no_grad():
        return not isinstance(layer(layer.weight[:1]), torch.Tensor)


def _names_experts(model: Any, name: str) -> bool:
    """Whether peft adapts the experts of ``model`` where a linear layer ``name`` is asked for.

    Experts that were linear layers once are arrays in transformers 5. For some types peft takes the names of those layers
    for the arrays, also where dense layers and shared experts still have them.
    """
    from peft import LoraConfig

    try:
        from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers
    except ImportError:  # older ones adapt the layers of that name
        return False
    settings = LoraConfig(target_modules=[name])
    try:
        convert_peft_config_for_transformers(settings, model=model, conversions=None)
    except ValueError:  # the name is that of a part of a fused array
        return True
    return bool(settings.target_parameters)


def language_part(model: Any) -> Any:
    """What of ``model`` reads tokens: its decoder where it has a vision tower, and else all of it."""
    return model if getattr(model.config, "vision_config", None) is None else model.get_decoder()


def is_adapted(model: Any) -> bool:
    """Whether ``model`` has adapters; the model that peft has wrapped has their layers, and is none itself."""
    return hasattr(model, "peft_config") and hasattr(model, "get_base_model")


def without_adapters(model: Any) -> AbstractContextManager[Any]:
    """In it ``model`` computes what its base does."""
    context: AbstractContextManager[Any] = model.disable_adapter() if is_adapted(model) else nullcontext()
    return context


def trained_state(model: Any) -> "dict[str, Tensor]":
    """What training changes, by name: the adapters where there are any, else the whole state."""
    state = model.state_dict()
    return {name: value for name, value in state.items() if not is_adapted(model) or "lora_" in name}


def load_weights(model: Any, weights: "Mapping[str, Tensor]") -> list[str]:
    """Loads what ``trained_state`` gave.

    Returns:
        Names that are missing or unexpected.

    Raises:
        RuntimeError: a weight is of another shape.
    """
    _, unexpected = model.load_state_dict(weights, strict=False)
    return [*sorted(trained_state(model).keys() - weights.keys()), *unexpected]


def write_model(
    model: Any,
    folder: Path,
    state: "Mapping[str, Tensor] | None" = None,
    *,
    shard_gib: float = 5.0,
    own_names: bool = False,
) -> None:
    """Writes a transformers model, or ``state`` under its configuration; weights pass through the memory of the host.

    Args:
        model: What is written.
        folder: Where to.
        state: Weights in place of the model's own.
        shard_gib: Weights larger than this become several files, at most as large, and an index of them.
        own_names: Whether weights are named as in ``state_dict``; published folders of some types have other names.
    """
    if state is not None or model.device.type != "cpu":
        state = on_host(state or model.state_dict(keep_vars=True))
    most = int(shard_gib * 2**30)
    model.save_pretrained(folder, state_dict=state, max_shard_size=most, save_original_format=not own_names)


def on_host(state: Any) -> Any:
    """``state`` with its tensors, also those within mappings and lists, in the memory of the host; one stays one."""
    import torch

    copies: dict[int, Any] = {}

    def moved(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            # By identity, so that tied weights stay one tensor and are written once.
            return copies.setdefault(id(value), value.detach().cpu())
        if isinstance(value, dict):
            return {key: moved(held) for key, held in value.items()}
        return type(value)(map(moved, value)) if isinstance(value, list | tuple) else value

    return moved(state)


def write_trained(model: Any, folder: Path, *, shard_gib: float = 5.0) -> None:
    """Writes what training changes: an adapter in peft's format, or the whole model.

    Args:
        model: What is trained.
        folder: Where to.
        shard_gib: A model larger than this is written as several files, at most as large, and an index of them.
    """
    if not is_adapted(model):
        write_model(model, folder, shard_gib=shard_gib, own_names=True)
        return
    from safetensors.torch import save_file

    # safetensors writes contiguous tensors alone.
    held = {_short(name): value.cpu().contiguous() for name, value in trained_state(model).items()}
    save_file(held, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
    model.peft_config["default"].save_pretrained(folder)


def read_trained(folder: Path) -> "dict[str, Tensor]":
    """What ``write_trained`` wrote, by the names of ``trained_state``."""
    from safetensors.torch import load_file

    adapter = (folder / ADAPTER_CONFIG).is_file()
    held: dict[str, Tensor] = {}
    for name in [ADAPTER_WEIGHTS] if adapter else _weight_files(folder):
        held |= load_file(folder / name)
    return {_long(name): value for name, value in held.items()} if adapter else held


def _weight_files(folder: Path) -> list[str]:
    """The files of a whole model's weights: one, or those that its index names (transformers cuts large models)."""
    index = folder / f"{_WEIGHTS}.index.json"
    if not index.is_file():
        return [_WEIGHTS]
    return sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))


def base_and_adapter(folder: Path) -> tuple[Path, Path | None]:
    """The folder of the model, and that of the LoRA adapter where ``folder`` is one.

    Raises:
        CheckpointMismatch: an adapter that names no base in a folder here, or whose settings name code or files.
    """
    if not (folder / ADAPTER_CONFIG).is_file():
        return folder, None
    base = check_adapter_files(folder).get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise CheckpointMismatch(f"the adapter in {folder} names no model that it is to be added to")
    if not Path(base).is_dir():  # the libraries would look for it on the network
        raise CheckpointMismatch(
            f"{folder} holds an adapter of the model {base!r:.200}, and there is no such folder"
        )
    if not (folder / ADAPTER_WEIGHTS).is_file():  # so that nothing looks for pickled ones, or on the network
        raise CheckpointMismatch(f"the adapter in {folder} has no file {ADAPTER_WEIGHTS}")
    return Path(base), folder


def merged_into(model: Any, adapter: Path) -> Any:
    """``model`` with the adapter in the folder ``adapter`` added to its weights.

    Raises:
        MissingExtra: peft is not installed.
        CheckpointMismatch: the adapter is damaged or of another architecture, or lacks weights that its settings name.
    """
    with needs_extra("train"):
        from peft import PeftModel, get_peft_model_state_dict
        from safetensors import safe_open
    try:
        with safe_open(adapter / ADAPTER_WEIGHTS, "pt") as file:
            held = set(file.keys())
        adapted = PeftModel.from_pretrained(model, str(adapter), local_files_only=True)
    except Exception as error:  # a damaged file makes each library raise something of its own
        raise CheckpointMismatch(
            f"the adapter in {adapter} is damaged or of another architecture than its base: {first_line(error)}"
        ) from error
    # peft warns of what is missing and leaves it as it is made, with which the layer computes what its base does.
    wanted = set(get_peft_model_state_dict(adapted, save_embedding_layers=False))
    if odd := sorted(wanted - held) + sorted(name for name in held - wanted if "lora_" in name):
        raise CheckpointMismatch(
            f"the adapter in {adapter} does not hold the weights that its settings name for this base: {odd[0]} is missing "
            "or has no place"
        )
    return adapted.merge_and_unload()


def weights_digest(folder: Path) -> str:
    """SHA-256 over the weight files of the model in ``folder``, of its base too where it is an adapter."""
    base, adapter = base_and_adapter(folder)
    digests = []
    for path in sorted({*base.glob("*.safetensors"), *(adapter or base).glob("*.safetensors")}):
        with path.open("rb") as file:
            digests.append(f"{path.name} {file_digest(file, 'sha256').hexdigest()}")
    return sha256("\n".join(digests).encode()).hexdigest()


def _short(name: str) -> str:
    return name.replace(".default.weight", ".weight")


def _long(name: str) -> str:
    place, part, leaf = name.rpartition(".weight")
    return f"{place}.default{part}{leaf}"
