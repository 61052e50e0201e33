"""Decoding steps recorded as CUDA graphs.

A step of one token launches hundreds of small kernels, and Python takes far longer to launch them than the card to compute
them. A graph launches all of them at once. It reads and writes at fixed addresses and in fixed shapes, so a recorded step
reads further than the rows are filled, up to the next multiple of ``REACH`` positions; the attention mask hides what stands
there. A step is recorded again for the next multiple, and for the rows that are left when a batch is cut down.

Shapes: B rows, V vocabulary.
"""

import functools
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from agentenv.errors import first_line
from agentenv.policies.forward import RowCache

logger = logging.getLogger(__name__)

REACH = 256
"""Positions that a recorded step goes on by; recording takes about as long as one step that is not recorded."""

Work = Callable[[], Tensor]
Recorder = Callable[[Work], Work]
"""Makes of work, whose inputs stay where they are, a function that does it again and gives the tensor with the result."""
Step = Callable[[RowCache, Tensor, Tensor, int], Tensor]
"""Feeds a cache ids int64[B, 1] at positions int64[B, 1], all of them below a number; logits [B, V]."""


_recording = threading.Lock()
"""Held while work is recorded: the stream is one for all policies, and another thread would end a recording on it."""


@functools.cache
def _stream(device: torch.device) -> Any:
    """One of a device for all recordings, because libraries keep memory for each stream that they were used on."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class CudaRecorder:
    """Records work on a CUDA device; only the work that was recorded last may be done again."""

    def __init__(self, device: torch.device) -> None:
        """Has recorded nothing yet.

        Args:
            device: Where the work is done, which need not be torch's current device.
        """
        self._device = device
        # One for all recordings, and a graph that stays in it until the next: torch uses the memory of a pool without a
        # graph for nothing else until the card has no other left.
        self._pool = torch.cuda.graph_pool_handle()
        self._graph: Any = None

    def __call__(self, work: Work) -> Work:
        """Records ``work``, which is not done by that. After an error nothing more can be recorded.

        Raises:
            RuntimeError: something in it cannot be recorded, such as an operation that waits for the device.
        """
        # Not torch.cuda.graph(), which collects garbage and gives the memory of the process back to the card first.
        with _recording, torch.cuda.device(self._device):
            graph, stream = torch.cuda.CUDAGraph(), _stream(self._device)
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                result = self._captured(graph, work)
            torch.cuda.current_stream().wait_stream(stream)
        self._graph = graph

        def replay() -> Tensor:
            graph.replay()
            return result

        return replay

    def _captured(self, graph: Any, work: Work) -> Tensor:
        """The result of ``work``, which ``graph`` holds then."""
        try:
            # Other threads may compute on the card meanwhile, such as the encoder of a search.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                result = work()
            except BaseException:
                with suppress(RuntimeError):  # which says no more than that something failed before
                    graph.capture_end()
                raise
            graph.capture_end()
        except BaseException:
            self._give_up()
            raise
        return result

    def _give_up(self) -> None:
        """Tells torch's allocator that a recording that failed is over, which ``capture_end`` does not where it fails too.

        The allocator would otherwise keep all memory that it has ever taken from the card: it gives none back while
        something is recorded, not even where a learner has no other left.
        """
        self._graph = None
        allocator: Any = torch.cuda.memory  # by the functions that ``torch.cuda.use_mem_pool`` calls
        device = torch.cuda.current_device()
        with suppress(RuntimeError):  # it knows
            allocator._cuda_endAllocateToPool(device, self._pool)
            allocator._cuda_releasePool(device, self._pool)


class RecordedSteps:
    """The decoding steps of a batch; those that cannot be recorded are taken without that."""

    def __init__(self, take: Step, recorder: Recorder) -> None:
        """Has recorded nothing yet.

        Args:
            take: A step.
            recorder: What records steps.
        """
        self._take = take
        self._recorder = recorder
        self._can_record = True
        self.forget()

    def forget(self) -> None:
        """Gives up what was recorded: weights, adapters and the memory of the cache may be others in the next batch."""
        self._begin(None, 0)

    def _begin(self, cache: RowCache | None, reach: int) -> None:
        self._cache, self._reach = cache, reach
        self._inputs: tuple[Tensor, Tensor] | None = None
        self._replay: Work | None = None

    def __call__(self, cache: RowCache, ids: Tensor, positions: Tensor, seen: int) -> Tensor:
        """Logits [B, V] after ``ids``, which the next call may write over; see ``Step``."""
        if not self._can_record:
            return self._take(cache, ids, positions, seen)
        reach = min(-(-seen // REACH) * REACH, cache.kv.shape[4])
        if self._cache is not cache or self._reach != reach:
            # Not recorded, because libraries choose and prepare their kernels in the first step of a shape.
            self._begin(cache, reach)
            return self._take(cache, ids, positions, reach)
        if self._inputs is None or self._replay is None:
            self._record(cache, ids.clone(), positions.clone(), reach)
        if self._inputs is None or self._replay is None:
            return self._take(cache, ids, positions, reach)
        for held, new in zip(self._inputs, (ids, positions), strict=True):
            held.copy_(new)
        return self._replay()

    def _record(self, cache: RowCache, ids: Tensor, positions: Tensor, reach: int) -> None:
        """Records the step, where that can be done."""
        try:
            self._replay = self._recorder(lambda: self._take(cache, ids, positions, reach))
            self._inputs = ids, positions
        except RuntimeError as error:  # the model waits for the device in the middle of a step
            self._can_record = False
            logger.warning(
                "the steps of this model cannot be recorded as CUDA graphs, so that sampling is slower: %s",
                first_line(error),
            )
