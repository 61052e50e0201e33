"""Recorded decoding steps, with a recorder of the tests: like a CUDA graph it reads and writes at fixed addresses.

The reference is the same policy without a recorder.
"""

import asyncio
import gc
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from agentenv.core.types import Completion, FinishReason, Sampling
from agentenv.policies.fakes import ByteTokenizer, random_model
from agentenv.policies.forward import RowCache
from agentenv.policies.hf import HFPolicy
from agentenv.policies.recorded_steps import REACH, CudaRecorder, RecordedSteps, _stream


class Tape:
    """Does recorded work again into one tensor, and counts what it recorded and played."""

    def __init__(self) -> None:
        self.recorded = self.played = 0

    def __call__(self, work: Callable[[], Tensor]) -> Callable[[], Tensor]:
        self.recorded += 1
        held = work()

        def replay() -> Tensor:
            self.played += 1
            return held.copy_(work())

        return replay


class Refuses:
    """A device on which the step waits for something."""

    calls = 0

    def __call__(self, work: Callable[[], Tensor]) -> Callable[[], Tensor]:
        self.calls += 1
        raise RuntimeError("operation not permitted when stream is capturing\nMore words")


def policy(recorder: Any = None) -> HFPolicy:
    made = HFPolicy(random_model(257, layers=2, seed=0, context=1024, spread=0.2), ByteTokenizer())
    if recorder is not None:
        made.recorded = RecordedSteps(made._step, recorder)
    return made


def turns(made: HFPolicy, asked: Sequence[Sequence[tuple[Sequence[int], int, str]]]) -> list[Completion]:
    """What the policy gives for batches of prompt, tokens and name of the episode, one batch after the other."""

    async def batch(requests: Sequence[tuple[Sequence[int], int, str]]) -> list[Completion]:
        work = (
            made.generate(ids, Sampling(tokens, seed=len(ids) + place), episode=name)
            for place, (ids, tokens, name) in enumerate(requests)
        )
        return list(await asyncio.gather(*work))

    return [done for requests in asked for done in asyncio.run(batch(requests))]


def ids(count: int, start: int = 5) -> list[int]:
    return [(start + 7 * place) % 250 + 3 for place in range(count)]


# Rows of several lengths, of which more than half end early, so that the batch is cut down; across a multiple of REACH;
# then a second turn, an episode that is rewound, and one that is new.
ASKED = [
    [(ids(REACH - 6), 12, "a"), (ids(3), 2, "b"), (ids(9), 3, "c")],
    [(ids(REACH - 6), 12, "a"), (ids(2), 6, "b"), (ids(5, 8), 6, "d")],
]


@pytest.fixture
def always_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches are cut down however few tokens are left."""
    monkeypatch.setattr("agentenv.policies.hf._WORTH_RECORDING", 0)


def test_a_batch_with_few_tokens_left_is_not_cut_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """To record a step for fewer rows would take longer than such steps spare."""
    counts = []
    for left in (64, 9):  # after three tokens a row of twelve has nine left
        monkeypatch.setattr("agentenv.policies.hf._WORTH_RECORDING", left)
        tape, plain = Tape(), policy()
        asked = [[(ids(20), 12, "a"), (ids(3), 2, "b"), (ids(9), 3, "c")]]
        assert [one.ids for one in turns(policy(tape), asked)] == [one.ids for one in turns(plain, asked)]
        counts.append(tape.recorded)
    assert counts == [1, 2]


@pytest.mark.usefixtures("always_cut")
def test_recorded_steps_sample_what_others_do() -> None:
    tape = Tape()
    plain, recorded = turns(policy(), ASKED), turns(policy(tape), ASKED)
    for one, other in zip(plain, recorded, strict=True):
        assert one.ids == other.ids
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)
        assert one.finish is other.finish is FinishReason.LENGTH
    # First batch, passes after the token of the prompt: 11, of which two are for all rows (lengths up to 252), and of those
    # for the row that is left four more below 256, then five beyond. Second batch: five for all rows, then one below 257 and
    # five beyond. The first of each shape is not recorded.
    assert (tape.recorded, tape.played) == (3 + 2, 11 - 3 + 11 - 3)


def test_a_step_that_cannot_be_recorded_is_taken_without_that(caplog: pytest.LogCaptureFixture) -> None:
    refuses = Refuses()
    with caplog.at_level(logging.WARNING):
        found = turns(policy(refuses), ASKED)
    assert [one.ids for one in found] == [one.ids for one in turns(policy(), ASKED)]
    assert refuses.calls == 1  # it is not tried again
    assert [record.getMessage() for record in caplog.records] == [
        "the steps of this model cannot be recorded as CUDA graphs, so that sampling is slower: "
        "operation not permitted when stream is capturing"
    ]


def test_a_failed_batch_leaves_nothing_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    made = policy(Tape())
    assert made.recorded is not None

    def draw(*_: Any) -> Any:
        raise RuntimeError("no token")

    monkeypatch.setattr("agentenv.policies.hf.draw", draw)
    with pytest.raises(Exception, match="no token"):
        turns(made, ASKED)
    assert made.recorded._cache is None


@pytest.mark.usefixtures("always_cut")
def test_a_recorded_step_is_given_tensors_in_the_form_of_the_step_before() -> None:
    """Where rows end too: compiled layers take a version for each form, and none can be compiled within a recording."""
    made = policy(Tape())
    assert made.recorded is not None
    take, forms = made.recorded._take, dict[int, set[Any]]()

    def noting(cache: RowCache, ids: Tensor, positions: Tensor, seen: int) -> Tensor:
        form = (ids.stride(), positions.stride(), cache.kv.stride()[2:])
        forms.setdefault(id(cache), set()).add(form)
        return take(cache, ids, positions, seen)

    made.recorded._take = noting
    turns(made, ASKED)
    assert len(forms) == 4  # two batches, each cut down once
    assert all(len(seen) == 1 for seen in forms.values())


def test_a_policy_on_the_processor_records_nothing() -> None:
    assert policy().recorded is None


def test_a_cache_that_is_shorter_than_a_multiple_is_read_to_its_end() -> None:
    """Of 40 slots a step at the third position reads all 40, and not 256."""
    seen: list[int] = []

    def take(cache: Any, ids: Tensor, positions: Tensor, reach: int) -> Tensor:
        seen.append(reach)
        return torch.zeros(1, 4)

    cache = RowCache(torch.zeros(1, 2, 1, 1, 40, 2))
    steps = RecordedSteps(take, Tape())
    for _ in range(3):
        steps(cache, torch.tensor([[1]]), torch.tensor([[2]]), 3)
    assert seen == [40, 40, 40, 40]  # taken, recorded and played, played


class Card:
    """What ``torch.cuda`` says of two cards, and what its allocator knows of recordings; it computes nothing.

    As torch's does, the allocator takes a recording for one that goes on where its end fails, and a pool that no graph uses
    any more for one that is never used again.
    """

    def __init__(self) -> None:
        self.now = 0
        self.streams: dict[int, Any] = {0: Stream(self, 0), 1: Stream(self, 1)}
        self.begun: list[tuple[int, int]] = []
        """Device of the stream, and pool, of each recording."""
        self.under_way: list[int] = []
        self.graphs: Counter[int] = Counter()
        self.spent: set[int] = set()
        self.breaks = self.pools = 0

    def graph_pool_handle(self) -> int:
        self.pools += 1
        return self.pools

    def current_device(self) -> int:
        return self.now

    def current_stream(self) -> Any:
        return self.streams[self.now]

    @contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        before, self.now = self.now, device.index
        yield
        self.now = before

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        held = self.now, self.streams[stream.device]
        self.now, self.streams[stream.device] = stream.device, stream
        try:
            yield
        finally:
            self.now, self.streams[stream.device] = held

    def ended(self, device: int, pool: int) -> None:
        if pool not in self.under_way:
            raise RuntimeError("not currently recording")
        self.under_way.remove(pool)

    def released(self, device: int, pool: int) -> None:
        self.graphs[pool] -= 1
        if not self.graphs[pool]:
            self.spent.add(pool)


class Stream:
    def __init__(self, card: Card, device: int) -> None:
        self.card, self.device = card, device

    def wait_stream(self, other: "Stream") -> None:
        assert self.device == other.device


class Graph:
    def __init__(self, card: Card) -> None:
        self.card, self.pool = card, 0

    def capture_begin(self, pool: int, capture_error_mode: str) -> None:
        assert not self.card.under_way, "of two recordings at once one fails"
        assert pool not in self.card.spent
        self.card.begun.append((self.card.now, pool))
        self.card.under_way.append(pool)
        self.card.graphs[pool] += 1
        self.taken = pool

    def capture_end(self) -> None:
        if self.card.breaks:
            raise RuntimeError("operation failed due to a previous error during capture")
        self.card.ended(self.card.now, self.taken)
        self.pool = self.taken

    def replay(self) -> None: ...

    def __del__(self) -> None:
        if self.pool:
            self.card.released(0, self.pool)


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Iterator[Card]:
    made = Card()
    for name in ("graph_pool_handle", "current_device", "current_stream", "device", "stream"):
        monkeypatch.setattr(torch.cuda, name, getattr(made, name))
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream(made, device.index))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: Graph(made))
    monkeypatch.setattr(torch.cuda.memory, "_cuda_endAllocateToPool", made.ended)
    monkeypatch.setattr(torch.cuda.memory, "_cuda_releasePool", made.released)
    _stream.cache_clear()
    yield made
    _stream.cache_clear()


def nothing() -> Tensor:
    return torch.zeros(1)


def fails() -> Tensor:
    raise RuntimeError("operation not permitted when stream is capturing")


def test_work_is_recorded_on_the_card_that_does_it(card: Card) -> None:
    """On another one the graph would be empty, and each step would give what the first gave."""
    CudaRecorder(torch.device("cuda", 1))(nothing)
    assert [device for device, _ in card.begun] == [1]
    assert card.now == 0


def test_recordings_share_memory_that_torch_would_use_for_nothing_else(card: Card) -> None:
    """Also those of several batches: each pool without a graph is lost until the card is full."""
    steps = RecordedSteps(lambda *_: torch.zeros(1, 4), CudaRecorder(torch.device("cuda", 0)))
    for _ in range(3):
        cache = RowCache(torch.zeros(1, 2, 1, 1, 40, 2))
        for _ in range(2):
            steps(cache, torch.tensor([[1]]), torch.tensor([[2]]), 3)
        steps.forget()
        gc.collect()
    assert len(card.begun) == 3
    assert len({pool for _, pool in card.begun}) == 1
    assert not card.spent


@pytest.mark.parametrize("breaks", [0, 1])
def test_after_a_failed_recording_the_allocator_gives_memory_back_again(card: Card, breaks: int) -> None:
    """Whether its end fails too, as on a card, or not; the error is that of the work."""
    recorder = CudaRecorder(torch.device("cuda", 0))
    recorder(nothing)
    card.breaks = breaks
    with pytest.raises(RuntimeError, match="not permitted"):
        recorder(fails)
    gc.collect()
    assert not card.under_way
    assert card.spent == {pool for _, pool in card.begun}  # which the next allocation without room gives back


def test_two_policies_do_not_record_at_once(card: Card) -> None:
    """A recording on the stream of another thread's ends both."""
    inside, others = threading.Event(), list[BaseException]()

    def record() -> None:
        try:
            CudaRecorder(torch.device("cuda", 0))(nothing)
        except BaseException as error:
            others.append(error)

    def slow() -> Tensor:
        thread.start()
        inside.wait(0.2)  # in which the other one would begin
        return nothing()

    thread = threading.Thread(target=record)
    CudaRecorder(torch.device("cuda", 0))(slow)
    thread.join(30)
    assert not others
    assert len(card.begun) == 2
