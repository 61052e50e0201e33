"""Where models compute, in which precision, and with which attention. Importable without torch."""

import importlib
import importlib.util
import inspect
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

from agentenv.core.validation import Frozen
from agentenv.errors import ConfigurationError, first_line, needs_extra

if TYPE_CHECKING:
    import torch

Attention = Literal["auto", "sdpa", "varlen", "flash_attention_2", "flash_attention_3", "flex", "eager"]
BEST_FIRST = ("flash_attention_3", "flash_attention_2", "varlen")
"""Attention kernels that ``auto`` takes on a CUDA device where they are installed and run; otherwise it takes ``sdpa``."""
_HOPPER = 9
"""First number of the compute capability that FlashAttention-3 was written for; it does not run on Blackwell (10, 12)."""
_COMPILES_ON_CPU = "2.12"
"""The lowest torch whose compiled layers learn on a CPU."""


class ComputeSettings(Frozen):
    """Where models compute, and how."""

    device: str = "auto"
    """``cpu``, ``cuda``, ``cuda:1`` or any other device that torch knows. ``auto`` is a CUDA device where there is one, and
    otherwise the CPU. Under ``torchrun``, ``auto`` and ``cuda`` are the device of the process."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Number format of the weights and of the cache. ``auto`` is bfloat16 on a CUDA device that multiplies in it, and
    float32 elsewhere. Encoders and rerankers use bfloat16 only where it is named."""
    attention: Attention = "auto"
    """How attention is computed. ``auto`` is the best that is installed on a CUDA device in bfloat16 (flash_attention_3 on
    cards of compute capability 9, flash_attention_2, and varlen, which comes with torch), and sdpa elsewhere. Flash, varlen
    and flex attention serve the learner, which then packs rows into one line; the passes of the sampler have a mask of their
    own and use sdpa."""
    compile: bool = False
    """Whether torch compiles the layers of a policy, for sampling and learning alike. The first passes take a minute or
    more, and log-probs change in the last digits."""

    @property
    def rounds(self) -> bool:
        """Whether weights are in bfloat16 with these settings on this machine."""
        if self.dtype != "auto":
            return self.dtype == "bfloat16"
        if self.device.partition(":")[0] not in ("auto", "cuda"):
            return False
        return multiplies_bfloat16("cuda" if self.device == "auto" else self.device)

    @property
    def on_processor(self) -> bool:
        """Whether models compute on the CPU with these settings on this machine."""
        if self.device != "auto":
            return self.device.partition(":")[0] == "cpu"
        import torch

        return not torch.cuda.is_available()

    def precise(self) -> Self:
        """These settings with float32 in place of an automatic number format.

        For supervised learning, whose small steps weights in bfloat16 would round away, and for encoders, whose vectors are
        compared with those of an index that another machine may have made.
        """
        return self.model_copy(update={"dtype": "float32"}) if self.dtype == "auto" else self

    def changed(self, options: dict[str, str]) -> Self:
        """These settings with other values for some fields.

        Raises:
            ValueError: a field has no such value; pydantic's.
        """
        return self.model_validate(self.model_dump() | options)

    def resolved(self) -> "Compute":
        """What these settings are on this machine.

        Raises:
            ConfigurationError: the device, or the attention on it, cannot be used here.
            MissingExtra: torch is not installed.
        """
        with needs_extra("train"):
            import torch
        device = _usable(self.device)
        dtype = torch.bfloat16 if self.dtype == "bfloat16" or self._automatic_bf16(device) else torch.float32
        attention = _attention(self.attention, device, rounds=dtype is torch.bfloat16)
        if self.compile:
            _require_compiler(device)
        return Compute(device, dtype, attention, self.compile)

    def _automatic_bf16(self, device: "torch.device") -> bool:
        return self.dtype == "auto" and device.type == "cuda" and multiplies_bfloat16(str(device))


AUTOMATIC = ComputeSettings()
"""Everything as suits the machine."""


@dataclass(frozen=True)
class Compute:
    """The resolved settings, in which no value is ``auto``."""

    device: "torch.device"
    dtype: "torch.dtype"
    attention: str
    """As in ``ComputeSettings``."""
    compile: bool = False

    @property
    def rounds(self) -> bool:
        """Whether weights are in bfloat16."""
        return str(self.dtype) == "torch.bfloat16"


def multiplies_bfloat16(device: str) -> bool:
    """Whether the processor, or a CUDA device, multiplies in bfloat16 itself.

    NVIDIA's cards do from compute capability 8.0 (Ampere) on; older ones emulate it, slower than float32. Processors without
    AVX-512 take seventy times as long as in float32. False where torch is not installed or was built without oneDNN, which
    knows the processor, or there is no such device.
    """
    try:
        import torch

        if device == "cpu":
            return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
        if not torch.cuda.is_available():
            return False
        return torch.version.hip is not None or torch.cuda.get_device_properties(device).major >= 8
    except (ModuleNotFoundError, AttributeError, RuntimeError, AssertionError):
        return False


def _usable(name: str) -> "torch.device":
    """The device of that name, on which a tensor could be made."""
    import torch

    rank = os.environ.get("LOCAL_RANK")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and rank is not None:
        name = f"cuda:{rank}"
    try:
        # A tensor is made, because a device may be listed and refuse to work.
        device = torch.zeros(1, device=name).device
    except (RuntimeError, AssertionError, NotImplementedError, ImportError, ValueError) as error:
        raise ConfigurationError(
            f"the device {name!r} (compute.device) cannot be used here: {first_line(error)}"
        ) from error
    if device.type == "meta":
        raise ConfigurationError("the device 'meta' (compute.device) computes nothing: name another one")
    return device


def _attention(name: str, device: "torch.device", *, rounds: bool) -> str:
    flash = [kind for kind in BEST_FIRST if device.type == "cuda" and rounds and is_installed(kind)]
    if flash and not _is_hopper(device):
        flash = [kind for kind in flash if kind != "flash_attention_3"]
    # torch's own kernel is for Ampere and newer cards, and fails in its first pass on others.
    if flash and not multiplies_bfloat16(str(device)):
        flash = [kind for kind in flash if kind != "varlen"]
    if name == "auto":
        return (*flash, "sdpa")[0]
    if name in BEST_FIRST and not is_installed(name):
        raise ConfigurationError(
            f"compute.attention={name!r} is not installed for this machine: install it, or set it to 'auto'"
        )
    if name == "flash_attention_3" and device.type == "cuda" and not _is_hopper(device):
        raise ConfigurationError(
            f"compute.attention={name!r} runs on cards of compute capability {_HOPPER} (Hopper) alone, and {str(device)!r} "
            "is another one: set it to 'auto'"
        )
    if name in BEST_FIRST and name not in flash:
        raise ConfigurationError(
            f"compute.attention={name!r} needs a CUDA device that multiplies in bfloat16, and weights in it; "
            f"the device is {str(device)!r} with "
            f"{'bfloat16' if rounds else 'float32'}: set it to 'auto'"
        )
    if name == "flex" and device.type != "cuda":
        raise ConfigurationError(
            f"compute.attention='flex' trains on a CUDA device alone, and the device is {str(device)!r}: set it to 'auto'"
        )
    return name


def _is_hopper(device: "torch.device") -> bool:
    """Whether a CUDA device is of the generation that FlashAttention-3 runs on."""
    import torch

    return bool(torch.cuda.get_device_properties(str(device)).major == _HOPPER)


def _require_compiler(device: "torch.device") -> None:
    """Raises ConfigurationError where torch could not compile for the device."""
    import torch

    if device.type not in ("cpu", "cuda"):
        raise ConfigurationError(
            f"compute.compile compiles for 'cpu' and 'cuda', not for {str(device)!r}: set it to false"
        )
    if device.type == "cpu" and torch.__version__ < _COMPILES_ON_CPU:  # versions compare by their numbers
        raise ConfigurationError(
            f"compute.compile on a CPU needs torch {_COMPILES_ON_CPU} or newer, and this is {torch.__version__}, whose "
            "compiled layers end the process when they learn: set it to false"
        )
    if device.type == "cpu" and not any(map(shutil.which, (os.environ.get("CXX", "g++"), "clang++"))):
        raise ConfigurationError(
            "compute.compile on a CPU needs a C++ compiler, and neither g++ nor clang++ is installed: install one, or set "
            "compute.compile to false"
        )


def is_installed(attention: str) -> bool:
    """Whether the kernels of flash attention by that name are installed and fit the GPU of this machine."""
    if attention == "varlen":
        return _has_varlen()
    utils = importlib.import_module("transformers.utils.import_utils")
    known = {
        "flash_attention_2": "is_flash_attn_2_available",
        "flash_attention_3": "is_flash_attn_3_available",
    }
    look = getattr(utils, known[attention], None)  # transformers may be older than the kernel
    return look is not None and bool(look())


def _has_varlen() -> bool:
    """Whether torch has an attention to rows of a line that knows windows and scales (from 2.11 on), built for CUDA."""
    torch = importlib.import_module("torch")
    if torch.version.hip is not None or importlib.util.find_spec("torch.nn.attention.varlen") is None:
        return False
    if not importlib.import_module("torch.backends.cuda").is_flash_attention_available():
        return False
    taken = inspect.signature(importlib.import_module("torch.nn.attention.varlen").varlen_attn).parameters
    return {"scale", "window_size"}.issubset(taken)


_process = AUTOMATIC


def process_compute() -> ComputeSettings:
    """The settings of models that are loaded without settings of their own, such as those that a retriever opens."""
    return _process


def set_process_compute(settings: ComputeSettings) -> None:
    """Changes ``process_compute`` for good, in a process that serves one run."""
    global _process
    _process = settings


@contextmanager
def use_compute(settings: ComputeSettings) -> Iterator[None]:
    """Within the block ``process_compute`` gives ``settings``, in every thread of this process."""
    before = _process
    set_process_compute(settings)
    try:
        yield
    finally:
        set_process_compute(before)
