"""The learner over several processes (``torchrun``): parameters, gradients and moments sharded over them by FSDP2.

The first process plays, estimates and logs as ever; the others hold their shards and follow its orders. Every process makes
as many passes, each on micro-batches of its own; gradients are summed, and the loss is divided by the totals of the whole
step, so that they come out the same whatever the number of processes.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import wraps
from itertools import zip_longest
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

from agentenv.errors import ConfigurationError, Diverged
from agentenv.policies.lora import trained_state
from agentenv.policies.quantized import is_quantized
from agentenv.policies.vision import PixelReader
from agentenv.trainers.learner.learner import Learner, Objective
from agentenv.trainers.learner.logprobs import token_logprobs
from agentenv.trainers.learner.packing import Packed

P = ParamSpec("P")
R = TypeVar("R")
_TIMEOUT = timedelta(hours=2)  # of the processes that follow: the longest rollouts between two orders


def world_size() -> int:
    """Processes that ``torchrun`` started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_main_process() -> bool:
    """Whether this process is the first of them."""
    return int(os.environ.get("RANK", "0")) == 0


def collective(
    method: "Callable[Concatenate[ShardedLearner, P], R]",
) -> "Callable[Concatenate[ShardedLearner, P], R]":
    """A method that all processes run together: called on the first, it is an order to the others."""

    @wraps(method)
    def ordered(self: "ShardedLearner", /, *args: P.args, **kwargs: P.kwargs) -> R:
        # A method that all run may call another one (`step` calls `accumulate`). The others call it too in the course
        # of the same order, so that an order of its own would be carried out twice.
        outermost = not self.busy
        if outermost and is_main_process():
            # Before the order goes out: the others would wait for ever in a method that the first process has left
            # with an error.
            refuse_rows_with_images(args[0] if args else ())
            dist.broadcast_object_list([(method.__name__, args, kwargs)])
        self.busy = True
        try:
            return method(self, *args, **kwargs)
        finally:
            self.busy = not outermost

    return ordered


def refuse_rows_with_images(rows: Any) -> None:
    """Refuses rows with images, which a model whose weights are shared out does not take.

    Raises:
        ConfigurationError: there is one among them.
    """
    if isinstance(rows, list | tuple) and any(getattr(row, "images", ()) for row in rows):
        raise ConfigurationError("episodes with images are trained by one process: train without torchrun")


class ShardedLearner(Learner):
    """Owns the shards of ``model`` and of its optimiser that belong to this process."""

    def __init__(
        self,
        model: Any,
        objective: Objective,
        *,
        learning_rate: float,
        weight_decay: float = 0.0,
        max_grad_norm: float = 1.0,
        reference: Any | None = None,
        image_reader: PixelReader | None = None,
    ) -> None:
        """Takes what ``Learner`` takes; ``model`` is sharded in place, and equal in every process before.

        Raises:
            ConfigurationError: a setting of the section ``memory`` is for one process.
        """
        single = {
            "optimizer": objective.optimizer == "adamw_8bit",
            "offload_optimizer": objective.offload_optimizer,
        }
        for name in (name for name, wanted in single.items() if wanted):
            raise ConfigurationError(
                f"memory.{name}={getattr(objective, name)!r} is for one process: train without torchrun, or leave it out"
            )
        if any(is_quantized(layer) for layer in model.modules()):
            raise ConfigurationError(
                "lora.quantization='nf4' is for one process: train without torchrun, or leave it out"
            )
        if not dist.is_initialized():
            dist.init_process_group(_backend(model.device), timeout=_TIMEOUT)
        if model.device.type == "cuda":
            # NCCL works on the current device, which is the first card in every process unless another one is set.
            torch.cuda.set_device(model.device)
        mesh = init_device_mesh(model.device.type, (dist.get_world_size(),))
        # The layers come first: each call takes the parameters that no call before has taken, so that a forward pass
        # gathers one layer at a time, and the model the rest.
        for module in (*getattr(model.get_decoder(), "layers", ()), model):
            fully_shard(module, mesh=mesh)
            module.set_gradient_divide_factor(1.0)  # sums, not means
            module.set_force_sum_reduction_for_comms(True)  # gloo has no other, and nccl has it too
        model.sharded_logprobs = _sharded_logprobs.__get__(model)
        register_fsdp_forward_method(model, "sharded_logprobs")
        self.busy = False
        """Whether a method that all processes run together is under way."""
        super().__init__(
            model,
            objective,
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            max_grad_norm=max_grad_norm,
            reference=reference,
            image_reader=image_reader,
        )

    def follow(self) -> None:
        """Runs what the first process orders until it is done."""
        while True:
            order: list[Any] = [None]
            dist.broadcast_object_list(order)
            if order[0] is None:
                break
            name, args, kwargs = order[0]
            with suppress(Diverged):  # every process raises it at once, and the first one tells
                getattr(self, name)(*args, **kwargs)
        dist.destroy_process_group()

    def dismiss(self) -> None:
        """Ends the others' work."""
        dist.broadcast_object_list([None])
        dist.destroy_process_group()

    set_learning_rate = collective(Learner.set_learning_rate)
    with_proximal = collective(Learner.with_proximal)
    with_log_ratios = collective(Learner.with_log_ratios)
    accumulate = collective(Learner.accumulate)
    step = collective(Learner.step)

    @collective
    def weights(self) -> dict[str, Tensor]:
        """What is trained, whole tensors by name."""
        return {name: _whole(value) for name, value in trained_state(self.model).items()}

    @collective
    def optimizer_state(self) -> dict[str, Any]:
        """The optimiser's state with whole tensors, as one process has it."""
        state = self.optimizer.state_dict()
        moments = {place: {k: _whole(v) for k, v in mine.items()} for place, mine in state["state"].items()}
        return {**state, "state": moments}

    @collective
    def load(self, weights: Mapping[str, Tensor], optimizer_state: Mapping[str, Any]) -> list[str]:
        """Takes over whole tensors; see ``Learner.load``."""
        parameters = dict(self.model.state_dict())
        sharded = {name: _like(value, parameters.get(name)) for name, value in weights.items()}
        ordered = [p for group in self.optimizer.param_groups for p in group["params"]]
        moments = {
            # Adam counts its steps in a scalar, which every process holds whole.
            place: {k: v if v.dim() == 0 else _like(v, ordered[place]) for k, v in mine.items()}
            for place, mine in optimizer_state["state"].items()
        }
        return super().load(sharded, {**optimizer_state, "state": moments})

    def _dealt(self, batches: Iterable[Packed]) -> Iterator[tuple[Packed, bool]]:
        """Every n-th batch; where they do not come out even, the last ones are passed through again and count nothing."""
        # All of them, because each forward pass gathers the weights of all processes: a process that makes one pass
        # less than the others would leave them waiting.
        every = list(batches)
        rank, size = dist.get_rank(), dist.get_world_size()
        for first in range(0, len(every), size):
            place = first + rank
            yield every[min(place, len(every) - 1)], place < len(every)

    def _in_turn(self, found: list[NDArray[Any]]) -> list[NDArray[Any]]:
        gathered: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, found)
        # Batches were dealt in turn, so that taking one from each process in turn gives back their order.
        return [one for turn in zip_longest(*gathered) for one in turn if one is not None]

    def _together(
        self, sums: Mapping[str, float], ratios: Sequence[Tensor]
    ) -> tuple[dict[str, float], list[Tensor]]:
        gathered: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, (dict(sums), [ratio.cpu() for ratio in ratios]))
        names = [name for theirs, _ in gathered for name in theirs]
        total = {name: sum(theirs.get(name, 0.0) for theirs, _ in gathered) for name in names}
        return total, [ratio for _, theirs in gathered for ratio in theirs]

    def _logprobs(self, model: Any, packed: Packed, *, entropy: bool = False) -> tuple[Tensor, Tensor | None]:
        # The reference is not sharded; every process holds a whole one.
        if model is not self.model:
            return super()._logprobs(model, packed, entropy=entropy)
        taken, spread = model.sharded_logprobs(packed, self.objective.temperature, entropy, self.image_reader)
        return taken, spread


def _sharded_logprobs(
    model: Any, packed: Packed, temperature: float, entropy: bool, image_reader: PixelReader | None
) -> tuple[Tensor, Tensor | None]:
    taken, spread = token_logprobs(model, packed, temperature, entropy=entropy, image_reader=image_reader)
    return taken.clone(), spread  # FSDP hangs its hook on what is no view


def _backend(device: torch.device) -> str:
    """The backends that carry tensors of the device between processes, and orders, which are on no device."""
    return "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"


def _whole(value: Any) -> Any:
    return value.full_tensor() if isinstance(value, DTensor) else value


def _like(value: Tensor, held: Any) -> Tensor:
    return distribute_tensor(value, held.device_mesh, held.placements) if isinstance(held, DTensor) else value
