"""The query queue computes each distinct query once, is bounded, and never mixes up whose answer is whose."""

import asyncio
from collections import Counter
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from agentenv.core.types import Passage, Query, QueryContext, RetrieverInfo
from agentenv.errors import ConfigurationError, RetrieverFault
from agentenv.retrievers.remote import SearchReply
from agentenv.retrievers.service.query_queue import QueryQueue, QueueFull, ReplyCache

TIMEOUT_S = 60.0


class Gate:
    """A retriever whose answers name their query, and which can be held up, or told to fail."""

    def __init__(self, *, contextual: bool = False, missing: tuple[str, ...] = ()) -> None:
        self.batches: list[list[str]] = []
        self.opened = asyncio.Event()
        self.opened.set()
        self.failing = False
        self.cancelled = 0
        self.contextual = contextual
        self.missing = missing

    async def search(self, queries: Sequence[Query | str], k: int) -> list[list[Passage]]:
        texts = [query if isinstance(query, str) else query.text for query in queries]
        self.batches.append(texts)
        try:
            await asyncio.sleep(0)
            await self.opened.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.failing:
            raise RetrieverFault("the encoder broke")
        return [[Passage(f"{text}/{n}", "", "", 1.0) for n in range(k)] for text in texts]

    async def search_partial(self, queries: Sequence[Query | str], k: int) -> SearchReply:
        return SearchReply(await self.search(queries, k), self.missing)

    def info(self) -> RetrieverInfo:
        return RetrieverInfo("gate", 9, "fingerprint", self.contextual)


class Counts(Counter[str]):
    """What became of the queries."""

    def queries(self, corpus: str, source: str, count: int) -> None:
        assert corpus == "wiki"
        if count:
            self[source] += count


class Room:
    """A query queue and what it needs."""

    def __init__(self, *, cache: int = 0, queue: int = 100, **gate: Any) -> None:
        self.gate, self.counts = Gate(**gate), Counts()
        self.queue = QueryQueue("wiki", self.gate, cache=ReplyCache(cache), queue=queue, metrics=self.counts)

    async def ask(self, *queries: str | Query, k: int = 1, timeout_s: float = TIMEOUT_S) -> list[list[str]]:
        found = await self.queue.search(queries, k, timeout_s)
        return [[passage.id for passage in passages] for passages in found.passages]

    async def hold(self, *asks: Coroutine[Any, Any, Any]) -> "list[asyncio.Task[Any]]":
        """Starts the requests one after the other and leaves them waiting at the gate."""
        self.gate.opened.clear()
        tasks = []
        for ask in asks:
            tasks.append(asyncio.ensure_future(ask))
            await asyncio.sleep(0.001)
        return tasks


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, TIMEOUT_S))


def test_answers_come_in_the_order_of_the_queries() -> None:
    async def scene() -> None:
        room = Room()
        assert await room.ask("b", "", "a", "b", " a ", k=2) == [
            ["b/0", "b/1"], [], ["a/0", "a/1"], ["b/0", "b/1"], ["a/0", "a/1"],
        ]  # fmt: skip
        assert room.gate.batches == [["b", "a"]]
        assert room.counts == {"blank": 1, "searched": 2}
        assert await room.ask() == []

    run(scene())


def test_a_query_under_way_is_joined_and_not_asked_again() -> None:
    async def scene() -> None:
        room = Room()
        tasks = await room.hold(room.ask("a", "b"), room.ask("b", "c"), room.ask("a", k=2))
        assert room.gate.batches == [["a", "b"], ["c"], ["a"]]
        assert room.queue.waiting == 4
        room.gate.opened.set()
        assert await asyncio.gather(*tasks) == [[["a/0"], ["b/0"]], [["b/0"], ["c/0"]], [["a/0", "a/1"]]]
        assert room.queue.waiting == 0
        await room.ask("a")
        assert room.gate.batches[-1] == ["a"]  # without a memory it is asked again

    run(scene())


def test_memory_is_keyed_by_k_and_query_and_forgets_the_unused() -> None:
    async def scene() -> None:
        room = Room(cache=2)
        for query, k in (("a", 1), ("a", 2), ("a  ", 1), ("b", 1), ("a", 1), ("a", 2)):
            assert await room.ask(query, k=k) == [[f"{query.strip()}/{n}" for n in range(k)]]
        # a/1 and a/2 are asked, a/1 is known, b/1 pushes a/2 out, a/1 is known, a/2 is asked again
        assert room.gate.batches == [["a"], ["a"], ["b"], ["a"]]
        assert room.counts == {"searched": 4, "cached": 2}

    run(scene())


def test_the_queue_is_bounded_and_frees_its_places() -> None:
    async def scene() -> None:
        room = Room(queue=3)
        tasks = await room.hold(room.ask("a", "b"), room.ask("a"))
        with pytest.raises(QueueFull, match=r"\b2\b.*\b3\b.*\b2\b"):
            await room.ask("c", "d")
        joined = await room.hold(room.ask("b", "c"))  # one new
        room.gate.opened.set()
        await asyncio.gather(*tasks, *joined)
        assert await room.ask("x", "y", "z") == [["x/0"], ["y/0"], ["z/0"]]
        with pytest.raises(QueueFull):
            await room.ask("x", "y", "z", "w")
        assert room.queue.waiting == 0

    run(scene())


def test_a_late_answer_is_a_timeout_and_what_nobody_wants_is_dropped() -> None:
    async def scene() -> None:
        room = Room()
        (patient,) = await room.hold(room.ask("a"))
        with pytest.raises(TimeoutError, match=r"\b0\.01\b"):
            await room.ask("a", timeout_s=0.01)
        with pytest.raises(TimeoutError):
            await room.ask("b", timeout_s=0.01)
        await asyncio.sleep(0.01)
        assert (room.gate.cancelled, room.queue.waiting) == (1, 1)  # b is gone, a is waited for
        room.gate.opened.set()
        assert await patient == [["a/0"]]

    run(scene())


def test_nobody_joins_what_is_being_dropped() -> None:
    async def scene() -> None:
        room = Room()
        (gone,) = await room.hold(room.ask("a"))
        gone.cancel()
        tasks = await room.hold(room.ask("a"))
        room.gate.opened.set()
        assert await tasks[0] == [["a/0"]]
        assert room.gate.batches == [["a"], ["a"]]
        assert room.queue.waiting == 0

    run(scene())


def test_a_failure_reaches_all_who_wait_and_is_not_remembered() -> None:
    async def scene() -> None:
        room = Room(cache=9)
        tasks = await room.hold(room.ask("a"), room.ask("a"))
        room.gate.failing = True
        room.gate.opened.set()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(outcome, RetrieverFault)
        room.gate.failing = False
        assert await room.ask("a") == [["a/0"]]
        assert room.queue.waiting == 0

    run(scene())


def test_a_huge_request_goes_in_pieces_and_lets_others_between() -> None:
    async def scene() -> None:
        room = Room(queue=10_000)
        huge = [f"q{n}" for n in range(1000)]
        answers, small = await asyncio.gather(room.ask(*huge), room.ask("small"))
        assert answers == [[f"{query}/0"] for query in huge]
        assert small == [["small/0"]]
        assert [len(batch) for batch in room.gate.batches] == [256, 1, 256, 256, 232]

    run(scene())


def test_what_depends_on_its_context_is_neither_shared_nor_remembered() -> None:
    async def scene() -> None:
        room = Room(cache=9, contextual=True)
        queries = [Query("a", QueryContext(episode)) for episode in ("e1", "e2")]
        assert await room.ask(*queries) == [["a/0"], ["a/0"]]
        await room.ask(queries[0])
        assert room.gate.batches == [["a", "a"], ["a"]]

    run(scene())


def test_an_incomplete_answer_says_who_is_missing_and_is_not_remembered() -> None:
    async def scene() -> None:
        room = Room(cache=9, missing=("shard-2",))
        for _ in range(2):
            assert (await room.queue.search(["a", "b"], 1, TIMEOUT_S)).missing == ("shard-2",)
        assert len(room.gate.batches) == 2
        room.gate.missing = ()
        assert (await room.queue.search(["a"], 1, TIMEOUT_S)).missing == ()

    run(scene())


def test_wrong_requests_are_refused_before_anything_is_taken() -> None:
    async def scene() -> None:
        room = Room()
        with pytest.raises(ConfigurationError, match="k is 0"):
            await room.ask("a", k=0)
        assert room.gate.batches == []

    run(scene())
