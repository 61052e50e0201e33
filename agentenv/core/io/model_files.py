"""Checks a model folder before any library opens it: it may contain settings and weights, but nothing that is executed.

The folder may come from another author. Model libraries import classes and load compiled kernels that a settings file names,
and unpickle weights; each of these can run code. This check reads the settings itself and refuses them first, so it does not
depend on a library's version.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentenv.core.io.named_paths import is_folder_name
from agentenv.core.io.weight_digests import check_weight_digests
from agentenv.errors import CheckpointMismatch

LOCAL = {"local_files_only": True, "trust_remote_code": False}
"""Arguments with which every library opens a folder: without the network, and without running code from the folder."""
MODULES = "modules.json"
ADAPTER_CONFIG = "adapter_config.json"
_MODULE_TYPES = re.compile(
    r"sentence_transformers(\.[a-z_]+)*"
    r"\.(Transformer|Pooling|Normalize|Dense|LayerNorm|Dropout|WeightedLayerPooling|StaticEmbedding|LogitScore)"
)
_ACTIVATION = re.compile(
    r"torch\.nn(\.modules)?\.(activation|linear)\.[A-Za-z]+|torch\.nn\.[A-Z][A-Za-z]+|\w+"
)
"""Matches a class of torch, which sentence-transformers imports, or a plain word such as ``gelu_new`` of GPT-2."""
_CLASS_KEYS = ("activation_function", "activation_fn", "sbert_ce_default_activation_function")
_KERNEL_KEYS = ("attn_implementation", "_attn_implementation", "experts_implementation")
_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".h5", ".msgpack")
_READ_FIRST = ("model.safetensors", "model.safetensors.index.json")
"""Weight files that libraries prefer to pickled ones: a single file, or the index of several."""
_LORA_NUMBERS = {"alpha_pattern", "layers_to_transform", "lora_alpha", "lora_dropout", "r", "rank_pattern"}
_LORA_SWITCHES = {"fan_in_fan_out", "inference_mode", "lora_bias", "use_dora", "use_rslora"}
_LORA_LAYERS = {"exclude_modules", "layers_pattern", "modules_to_save", "target_modules"}
_LORA_NAMES = {
    "base_model_name_or_path",
    "bias",
    "init_lora_weights",
    "peft_type",
    "peft_version",
    "revision",
    "task_type",
}
# `megatron_config` is missing here because it is refused.
_LORA_UNREAD = {"auto_mapping", "megatron_core", "qalora_group_size"}
_LORA_KEYS = _LORA_NUMBERS | _LORA_SWITCHES | _LORA_LAYERS | _LORA_NAMES | _LORA_UNREAD
"""The settings that an adapter may have. Other settings of peft name modules to import or files to open."""
_LAYERS = re.compile(r"[\w.]*|all-linear")


def read_settings(path: Path) -> dict[str, Any]:
    """Returns the JSON object in a settings file.

    Raises:
        CheckpointMismatch: the file contains something else.
    """
    found = _parsed(path)
    if not isinstance(found, dict):
        raise CheckpointMismatch(f"{path} is no file of settings: it does not hold a JSON object")
    return found


def _parsed(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointMismatch(f"{path} is no file of settings: {str(error)[:120]}") from error


def check_model_folder(named: Path, folder: Path) -> None:
    """Raises an error if a folder does not exist. The libraries would otherwise search for it on the network.

    Args:
        named: The folder that the user named: the model, or an adapter that refers to it.
        folder: The folder of the model.

    Raises:
        CheckpointMismatch: the folder does not exist.
    """
    if not folder.is_dir():
        raise CheckpointMismatch(
            f"{named} holds no model that can be loaded: there is no folder {folder}. Nothing is downloaded here; "
            "`hf download NAME --local-dir FOLDER` fetches a model of the Hugging Face Hub."
        )


def check_model_files(folder: Path) -> None:
    """Checks the settings and the weights in ``folder`` and in the folders of its modules.

    Raises:
        CheckpointMismatch: a settings file names code to run or is damaged, or the weights are pickled, differ from their
            recorded digests, or have an adapter beside them.
    """
    parts = [folder, *_module_folders(folder)]
    for part in parts:
        for path in sorted(part.glob("*.json")):
            if path.name.endswith(("config.json", "_args.json")):
                _check_values(path, _parsed(path))
    check_weight_digests(folder)
    for part in parts:
        _check_weights(part)


def _check_weights(part: Path) -> None:
    """Checks that the weights are in safetensors files under the names that libraries load first.

    Raises:
        CheckpointMismatch: the weights are pickled or have other names, or an adapter is beside them.
    """
    # Libraries would ignore weights of any other name, and load the pickled ones.
    pickled = sorted(path for path in part.iterdir() if path.suffix in _PICKLED)
    if pickled and not any((part / name).is_file() for name in _READ_FIRST):
        raise CheckpointMismatch(
            f"{pickled[0]} holds pickled weights, which may run code when they are read; convert them to safetensors"
        )
    for path in sorted(part.glob("*.safetensors.index.json")):
        names = read_settings(path).get("weight_map", {})
        for name in names.values() if isinstance(names, dict) else [names]:
            if not isinstance(name, str) or not is_folder_name(name):
                raise CheckpointMismatch(f"{path} names {name!r:.80}, which is no file beside it")
    # An adapter's base model and settings are checked only if the adapter itself is named, but libraries load it silently.
    if (part / ADAPTER_CONFIG).is_file():
        raise CheckpointMismatch(
            f"{part} holds an adapter ({ADAPTER_CONFIG}) where a whole model is needed; merge it into its base, or delete "
            "the file there"
        )


def check_adapter_files(folder: Path) -> dict[str, Any]:
    """Checks the LoRA adapter in ``folder`` and returns its settings.

    Raises:
        CheckpointMismatch: it is another kind of adapter, a setting names code, a file or a pattern, or the weights differ
            from their recorded digests.
    """
    check_weight_digests(folder)
    path = folder / ADAPTER_CONFIG
    settings = read_settings(path)
    if settings.get("peft_type") != "LORA":
        raise CheckpointMismatch(
            f"{path} is an adapter of the kind {settings.get('peft_type')!r:.60}, not LORA"
        )
    strange = [name for name, value in settings.items() if value and name not in _LORA_KEYS]
    if strange:
        raise CheckpointMismatch(
            f"{path} sets {strange[0][:60]!r}, which this version does not load from a file"
        )
    if settings.get("init_lora_weights", True) not in (True, False, "gaussian"):
        raise CheckpointMismatch(
            f"{path} sets init_lora_weights={settings['init_lora_weights']!r:.60}; it must be true, false or 'gaussian'"
        )
    for name in sorted(_LORA_LAYERS):
        value = settings.get(name)
        for layer in value if isinstance(value, list) else [value or ""]:
            if not isinstance(layer, str) or not _LAYERS.fullmatch(layer):
                raise CheckpointMismatch(f"{path}: {name} must hold names of layers, and holds {layer!r:.60}")
    return settings


def _module_folders(folder: Path) -> Iterator[Path]:
    """Yields the folders of the modules of a sentence encoder, each of which is within ``folder``."""
    path = folder / MODULES
    if not path.is_file():
        return
    try:
        named = [(module["type"], module["path"]) for module in _parsed(path)[:]]
    except (KeyError, TypeError) as error:
        raise CheckpointMismatch(f"{path} is no list of modules: {str(error)[:120]}") from error
    for kind, place in named:
        if not isinstance(kind, str) or not _MODULE_TYPES.fullmatch(kind):
            raise CheckpointMismatch(
                f"{path} names the module {kind!r:.80}, which is not one of sentence-transformers' own; its code would run"
            )
        inner = folder / str(place)
        try:
            outside = not inner.resolve().is_relative_to(folder.resolve())
            found = inner.is_dir()
        except (OSError, ValueError) as error:  # not a valid file name
            raise CheckpointMismatch(
                f"{path} names the folder {place!r:.80}, which is no valid name of a folder"
            ) from error
        if outside:
            raise CheckpointMismatch(f"{path} names the folder {place!r:.80} outside of {folder}")
        if place and found:
            yield inner


def _check_values(path: Path, values: Any) -> None:
    """Raises an error if the settings name a class, a kernel or code, at any depth."""
    for key, value in _items(values):
        if key in _CLASS_KEYS and isinstance(value, str) and not _ACTIVATION.fullmatch(value):
            raise CheckpointMismatch(f"{path}: {key} names {value!r:.80}, which is no activation of torch")
        if key in _KERNEL_KEYS and isinstance(value, str) and not re.fullmatch(r"\w+", value):
            raise CheckpointMismatch(f"{path}: {key} names {value!r:.80}, code that would be fetched and run")
        if key == "trust_remote_code" and value:
            raise CheckpointMismatch(f"{path} asks for its own code to be run (trust_remote_code)")


def _items(values: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    if depth > 20:
        return
    if isinstance(values, dict):
        for key, value in values.items():
            yield key, value
            yield from _items(value, depth + 1)
    elif isinstance(values, list):
        for value in values:
            yield from _items(value, depth + 1)
