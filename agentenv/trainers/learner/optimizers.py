"""Optimizers: Adam with decoupled weight decay, over the weights or over float32 copies of them, in 32 or 8 bits.

bfloat16 has 8 bits of precision, so that a step below 1/512 of a weight is rounded away. Adam therefore moves float32 copies
("master weights", Micikevicius et al. 2018, section 3.1), and the model gets them rounded. The copies and Adam's moments may
stand in the memory of the host.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy as shallow_copy
from functools import partial
from typing import Any

import torch
from torch import Tensor

from agentenv.errors import CheckpointMismatch, needs_extra
from agentenv.policies.lora import on_host
from agentenv.trainers.learner.settings import MemorySettings

_ROUNDED = (torch.bfloat16, torch.float16)
_BUCKET = 2**27
"""Weights whose gradients are in float32 at the same time, 512 MiB."""


def make_optimizer(
    weights: Sequence[Tensor], settings: MemorySettings, *, learning_rate: float, weight_decay: float
) -> Any:
    """The optimizer of ``weights``, as ``settings`` want it.

    Raises:
        MissingExtra: bitsandbytes is not installed, and 8 bits are asked for.
    """
    host = settings.offload_optimizer and any(weight.device.type != "cpu" for weight in weights)
    # One kernel for all that a step does to a weight; on a card the others read and write each of them several times.
    fused = not host and all(weight.device.type == "cuda" for weight in weights)
    eight = settings.optimizer == "adamw_8bit"
    kind = _adamw_8bit() if eight else partial(torch.optim.AdamW, fused=fused or None)
    make = _keeping_its_kernels(partial(kind, lr=learning_rate, weight_decay=weight_decay))
    rounded = settings.master_weights and any(weight.dtype in _ROUNDED for weight in weights)
    if host or rounded:
        return MasterWeights(weights, make, device=torch.device("cpu") if host else None)
    return make(weights)


class SecondMoments:
    """A second optimizer of the same weights, for steps of another kind: its moments never mix with those of the first.

    It is made at its first step. Float32 copies of the weights are those of the first optimizer.
    """

    def __init__(self) -> None:
        self._optimizer: Any = None
        self._state: dict[str, Any] = {}

    def beside(self, first: Any, weights: Sequence[Tensor], settings: MemorySettings, rate: float) -> Any:
        """The second optimizer.

        Args:
            first: The first one, whose weight decay it has too.
            weights: What both move.
            settings: As for the first one.
            rate: Step size of the steps to come.

        Raises:
            CheckpointMismatch: the state that was loaded is of other weights.
        """
        if self._optimizer is None:
            decay = first.param_groups[0]["weight_decay"]
            if isinstance(first, MasterWeights):
                self._optimizer = first.twin()
            else:
                self._optimizer = make_optimizer(weights, settings, learning_rate=rate, weight_decay=decay)
            self._take_up()
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        return self._optimizer

    def _take_up(self) -> None:
        if not self._state:
            return
        try:
            self._moments.load_state_dict(self._state)
        except (RuntimeError, ValueError) as error:
            raise CheckpointMismatch(
                f"the second optimizer of the checkpoint does not fit: {error}"
            ) from error

    @property
    def _moments(self) -> Any:
        """What holds the moments and not the copies, which move between its steps."""
        return self._optimizer.inner if isinstance(self._optimizer, MasterWeights) else self._optimizer

    def state_dict(self) -> dict[str, Any]:
        """The moments; nothing before the first step."""
        return self._state if self._optimizer is None else on_host(self._moments.state_dict())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up where ``state_dict`` stood, when the next step is made."""
        self._optimizer, self._state = None, dict(state)


def _keeping_its_kernels(make: Callable[..., Any]) -> Callable[..., Any]:
    """``make``; a state that what it makes is given does not say by which kernels the steps to come are computed.

    torch takes them from the state, which may have been written on another device.
    """

    def own(optimizer: Any, state: dict[str, Any]) -> dict[str, Any]:
        ours = {name: optimizer.defaults[name] for name in ("fused", "foreach") if name in optimizer.defaults}
        return {**state, "param_groups": [{**group, **ours} for group in state["param_groups"]]}

    def made(weights: Any) -> Any:
        optimizer = make(weights)
        optimizer.register_load_state_dict_pre_hook(own)
        return optimizer

    return made


def _copy(targets: list[Any], sources: list[Any]) -> None:
    """Copies tensors to others of their shapes, which may have other number formats and be on another device."""
    # torch copies no list of tensors that are shared out over processes (DTensor).
    targets, sources = list(map(_held_here, targets)), list(map(_held_here, sources))
    if targets and targets[0].device == sources[0].device:
        # All at once: adapters have hundreds of small weights, and a card would wait for each copy to be asked for.
        torch._foreach_copy_(targets, sources)
        return
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)


def _held_here(tensor: Any) -> Any:
    """``tensor``, or what this process holds of one that is shared out over processes."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _adamw_8bit() -> Any:
    with needs_extra("quantized"):
        from bitsandbytes.optim import AdamW8bit
    return AdamW8bit


class MasterWeights:
    """An optimizer of float32 copies, which the weights follow; has what the learner asks of one of torch."""

    def __init__(
        self,
        weights: Sequence[Tensor],
        make: Callable[[Sequence[Tensor]], Any],
        *,
        device: torch.device | None = None,
        bucket: int = _BUCKET,
    ) -> None:
        """Copies the weights.

        Args:
            weights: What the model computes with.
            make: Makes the optimizer of the copies.
            device: Where the copies are; None is where the weights are.
            bucket: Weights whose gradients are in float32 at the same time.
        """
        self.weights = list(weights)
        # `copy=True`: weights that are in float32 on this device already would otherwise be their own copies.
        self.copies = [
            weight.detach().to(dtype=torch.float32, device=device, copy=True).requires_grad_()
            for weight in weights
        ]
        self.bucket = bucket
        self.make = make
        self.inner = make(self.copies)

    def twin(self) -> "MasterWeights":
        """Another optimizer of the same copies, with moments of its own."""
        other = shallow_copy(self)
        other.inner = self.make(self.copies)
        return other

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of the inner optimizer, with its step size."""
        groups: list[dict[str, Any]] = self.inner.param_groups
        return groups

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients of the weights."""
        for weight in self.weights:
            weight.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Moves the copies by the gradients of the weights, and the weights to the copies."""
        for pairs in self._buckets():
            # The optimizer skips what has no gradient, so that a step for each bucket moves each copy once.
            moved = [pair for pair in pairs if pair[0].grad is not None]
            for _, copy in moved:
                copy.grad = torch.empty_like(copy)
            _copy([copy.grad for _, copy in moved], [weight.grad for weight, _ in moved])
            self.inner.step()
            # Dropped at once, so that the gradients in float32 of one bucket alone exist at a time.
            for _, copy in moved:
                copy.grad = None
            _copy([weight for weight, _ in pairs], [copy for _, copy in pairs])

    def _buckets(self) -> Iterator[list[tuple[Tensor, Tensor]]]:
        bucket: list[tuple[Tensor, Tensor]] = []
        held = (
            0  # weights of the bucket; adapters have hundreds of them, which are not counted anew with each
        )
        for pair in zip(self.weights, self.copies, strict=True):
            if bucket and held + pair[0].numel() > self.bucket:
                yield bucket
                bucket, held = [], 0
            bucket.append(pair)
            held += pair[0].numel()
        yield bucket

    def state_dict(self) -> dict[str, Any]:
        """That of the inner optimizer, with each copy as ``master`` beside its moments."""
        state = self.inner.state_dict()
        held = {
            place: {**state["state"].get(place, {}), "master": copy.detach()}
            for place, copy in enumerate(self.copies)
        }
        return {**state, "state": held}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what ``state_dict`` gave; the weights follow.

        Raises:
            ValueError: it is of other parameters, or has no copies.
        """
        held = {place: dict(mine) for place, mine in state["state"].items()}
        if len(held) != len(self.copies) or any("master" not in mine for mine in held.values()):
            raise ValueError(
                "the state of the optimizer has no float32 copy of each weight, as with adapters of earlier versions: "
                "continue such a run with compute.dtype='float32'"
            )
        for place, copy in enumerate(self.copies):
            # Taken out, because what remains is the state that the inner optimizer itself would have written.
            copy.copy_(held[place].pop("master"))
            self.weights[place].copy_(copy)
        moved = {place: mine for place, mine in held.items() if mine}
        self.inner.load_state_dict({**state, "state": moved})
