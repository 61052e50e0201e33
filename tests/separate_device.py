"""A torch device ``fake`` for tests of code that is meant for a GPU. Importing this module registers it.

Its tensors compute on the processor, and they behave as those of a GPU do where programs are usually wrong: an operator
that is given a tensor of the processor beside them fails, ``numpy()`` fails, and a tensor that was made without
``device=`` is not one of them. Only numbers (tensors without a dimension) and indices may come from the processor.

A copy to the processor that is not waited for fails as well.

``WAITS`` counts by operator how often a program had to wait for the device because it read values, or shapes that depend on
values, and under ``upload`` how often it sent values there, for which torch waits as well where the memory is not pinned.
What it does not show: kernels, streams, memory, rounding, and more than one card.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "fake"
WAITS: Counter[str] = Counter()

_aten = torch.ops.aten
_MOVES = (_aten._to_copy, _aten.copy_, _aten._copy_from, _aten._copy_from_and_resize)
_INDEXED = (_aten.index, _aten.index_put, _aten.index_put_, _aten._index_put_impl_)
_READS = (
    _aten._local_scalar_dense,
    _aten.equal,
    _aten.nonzero,
    _aten.masked_select,
    _aten.repeat_interleave,
    _aten._unique2,
)


class _Backend:
    """What torch asks of ``torch.fake``."""

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        """Random numbers are those of the processor, which has its own seed."""

    def get_rng_state(self, device: Any = 0) -> Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: Tensor, device: Any = 0) -> None:
        torch.set_rng_state(state)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def synchronize(self, device: Any = 0) -> None:
        """Everything is computed at once."""


_setup_privateuseone_for_python_backend(NAME, backend_module=_Backend())
_DEVICE = torch.device(NAME, 0)


class SeparateTensor(torch.Tensor):
    """Says that it is on the device, and keeps its values in ``held``, a tensor of the processor."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "SeparateTensor":
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            layout=held.layout,
            device=_DEVICE,
        )
        made.held = held
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"{NAME}:{self.held!r}"

    def tolist(self) -> Any:
        WAITS["tolist"] += 1
        return self.held.tolist()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.held.__reduce_ex__(protocol)  # type: ignore[no-untyped-call] # a file holds no device

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _compute(func, args, kwargs or {})


def _compute(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Computes an operator on what its tensors hold; the outcome is on the device unless the processor was asked for."""
    leaves = tree_leaves((args, kwargs))
    here = [leaf for leaf in leaves if isinstance(leaf, SeparateTensor)]
    others = [leaf for leaf in leaves if isinstance(leaf, Tensor) and not isinstance(leaf, SeparateTensor)]
    _refuse_mixture(func, args, here, others)
    _refuse_unfinished(func, args, kwargs, here)
    asked = [leaf.type for leaf in leaves if isinstance(leaf, torch.device)]
    to_host = asked[0] == "cpu" if asked else not (here or others)
    if here and (to_host or func.overloadpacket in _READS or _fills_host(func, args) or _by_mask(func, args)):
        WAITS[func.overloadpacket.__name__] += 1
    elif not to_host and any(other.dim() for other in others):
        WAITS["upload"] += 1
    known = {id(tensor.held): tensor for tensor in here}

    def wrapped(tensor: Tensor) -> Tensor:
        if to_host or isinstance(tensor, SeparateTensor) or tensor is (args[0] if args else None):
            return tensor
        return known[id(tensor)] if id(tensor) in known else SeparateTensor(tensor)

    options = {name: value for name, value in kwargs.items() if name != "pin_memory"}
    with torch.inference_mode(False), torch.no_grad():  # views of plain tensors stay plain in inference
        return tree_map_only(Tensor, wrapped, func(*_on_processor(args), **_on_processor(options)))


def _refuse_mixture(func: Any, args: Sequence[Any], here: Sequence[Tensor], others: Sequence[Tensor]) -> None:
    indices = {id(leaf) for leaf in tree_leaves(args[1])} if func.overloadpacket in _INDEXED else set()
    strange = [tensor for tensor in others if tensor.dim() > 0 and id(tensor) not in indices]
    if here and strange and func.overloadpacket not in _MOVES:
        raise RuntimeError(
            f"{func} got a tensor of {NAME} and one of {strange[0].device} with the shape {tuple(strange[0].shape)}: all "
            "must be on one device"
        )


def _refuse_unfinished(
    func: Any, args: Sequence[Any], kwargs: dict[str, Any], here: Sequence[Tensor]
) -> None:
    """Refuses a copy to the processor that nobody waits for: on a GPU its values may be read before they are there."""
    unawaited = kwargs.get("non_blocking") or (func.overloadpacket is _aten.copy_ and True in args[2:3])
    asked = [one.type for one in tree_leaves(kwargs) if isinstance(one, torch.device)]
    if here and unawaited and ("cpu" in asked or _fills_host(func, args)):
        raise RuntimeError(
            f"{func} copies to the processor with non_blocking=True, and its values may not be there yet"
        )


def _fills_host(func: Any, args: Sequence[Any]) -> bool:
    """Whether values of the device are written into a tensor of the processor."""
    target = {_aten.copy_: 0, _aten._copy_from: 1, _aten._copy_from_and_resize: 1}.get(func.overloadpacket)
    return target is not None and not isinstance(args[target], SeparateTensor)


def _by_mask(func: Any, args: Sequence[Any]) -> bool:
    """Whether a mask says which values are meant: their number is then read from the device."""
    masked = func.overloadpacket in _INDEXED
    return masked and any(isinstance(one, Tensor) and one.dtype == torch.bool for one in tree_leaves(args[1]))


def _on_processor(values: Any) -> Any:
    values = tree_map_only(SeparateTensor, lambda tensor: tensor.held, values)
    return tree_map_only(torch.device, lambda _: torch.device("cpu"), values)


def _served(op: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: _compute(op, args, kwargs)


# Operators without a tensor of the device among their arguments come here: factories, above all.
_ANY: Any = torch.library.Library("_", "IMPL")  # type: ignore[no-untyped-call]
_ANY.fallback(lambda op, *args, **kwargs: _compute(op, args, kwargs), "PrivateUse1")
# ``torch.tensor(numbers, device=...)`` calls the first of these below where a fallback is looked for. The others would
# otherwise be made empty and then resized, which the outer tensor does not notice.
_OPERATORS: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
_op: Any
for _op in (
    *(_aten.copy_.default, _aten._to_copy.default, _aten.detach.default, _aten.alias.default),
    *(_aten.lift_fresh.default, _aten.arange.default, _aten.arange.start, _aten.arange.start_step),
    *(_aten.linspace.default, _aten.eye.default, _aten.eye.m),
    *(_aten.randperm.default, _aten.randperm.generator),
):
    _OPERATORS.impl(_op.name().removeprefix("aten::"), _served(_op), "PrivateUse1")
