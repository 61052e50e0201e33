"""Calls of environments on loops of their own: what a failure names, what ends with the run, and who waits for whom."""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from typing import Any, NoReturn

import pytest

from agentenv.core import env_calls
from agentenv.core.env_calls import call, call_plain
from agentenv.errors import EnvFault


def loops() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "agentenv-env-loop"}


def test_a_run_has_a_loop_of_its_own_that_ends_with_it() -> None:
    before = loops()

    async def work() -> threading.Thread:
        return threading.current_thread()

    async def run() -> set[threading.Thread]:
        threads = {await call("a step", 5, work), await call("a step", 5, work)}
        assert loops() - before == threads
        assert not env_calls.no_loop_is_running()
        return threads

    (thread,) = asyncio.run(run())
    assert thread is not threading.current_thread()
    assert thread.daemon
    assert not thread.is_alive()


def test_calls_that_a_blocked_loop_has_not_begun_are_all_taken_away_from_it() -> None:
    async def work() -> None: ...

    async def run() -> list[str]:
        home, free = asyncio.get_running_loop(), threading.Event()
        loop = env_calls._EnvLoop(home)
        loop.loop.call_soon_threadsafe(free.wait, 30)
        for what in ("first", "second"):
            loop.post([env_calls._Request(what, work, 5, home)])
        taken = [order.what for order in loop.drain()]
        free.set()
        loop.end()
        return taken

    assert asyncio.run(run()) == ["first", "second"]


@pytest.mark.parametrize("refused", [OSError("too many open files"), RuntimeError("can't start new thread")])
def test_calls_behind_a_blocked_loop_fail_where_the_system_gives_no_other_loop(
    refused: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = threading.Event()

    def none(*given: object, **named: object) -> NoReturn:
        raise refused

    async def blocks() -> None:
        monkeypatch.setattr(env_calls, "_EnvLoop", none)
        free.wait(30)

    async def work() -> None: ...

    async def run() -> None:
        blocking = asyncio.ensure_future(env_calls.call("the first call", 30, blocks))
        await asyncio.sleep(0.1)
        with pytest.raises(EnvFault, match=str(refused)):
            await asyncio.wait_for(env_calls.call("the second call", 1, work), 20)
        free.set()
        await blocking

    try:
        asyncio.run(run())
    finally:
        free.set()


def test_a_loop_that_has_begun_its_calls_before_they_are_taken_away_leaves_nothing_to_send() -> None:
    """It looked blocked a moment before, as on a machine with too much to do."""
    failures = []

    async def work() -> None: ...

    async def run() -> None:
        home = asyncio.get_running_loop()
        home.set_exception_handler(lambda _, context: failures.append(context))
        await call("a step", 5, work)
        host = env_calls._run_loops[home]
        host._send(host.loops[-1].drain())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await call("a step", 5, work)  # and it goes on

    asyncio.run(run())
    assert failures == []


def test_what_environments_left_under_way_is_cancelled_with_the_run() -> None:
    ended: list[str] = []
    kept: list[Any] = []

    async def background() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("task")

    async def pages() -> AsyncGenerator[int]:
        try:
            yield 1
            yield 2
        finally:
            ended.append("generator")

    async def work() -> int:
        kept.extend([asyncio.create_task(background()), pages()])
        await asyncio.sleep(0)
        return int(await anext(kept[1]))

    assert asyncio.run(call("a step", 5, work)) == 1
    assert ended == ["task", "generator"]


def test_a_task_that_leaves_the_process_takes_no_other_call_with_it() -> None:
    async def leave() -> None:
        raise SystemExit(3)

    kept: list[asyncio.Task[None]] = []

    async def bad() -> str:
        kept.append(asyncio.create_task(leave()))
        return "left"

    async def good() -> str:
        await asyncio.sleep(0.05)
        return "stayed"

    async def run() -> Sequence[str]:
        return await asyncio.gather(call("one", 5, good), call("two", 5, bad))

    assert asyncio.run(run()) == ["stayed", "left"]


def test_a_call_that_cancels_itself_is_a_fault_that_names_it() -> None:
    async def work() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(1)

    with pytest.raises(EnvFault, match="the step of A"):
        asyncio.run(call("the step of A", 5, work))


def test_a_late_call_names_the_one_that_blocks_its_loop() -> None:
    async def blocks() -> None:
        await asyncio.sleep(0.01)
        time.sleep(3)  # in a thread that nobody waits for

    async def waits() -> None:
        await asyncio.sleep(0.3)

    async def run() -> Sequence[Any]:
        calls = (call("the step of A", 0.4, waits), call("the step of B", 0.4, blocks))
        return await asyncio.gather(*calls, return_exceptions=True)

    late, guilty = asyncio.run(run())
    assert isinstance(late, EnvFault)
    assert "the step of A" in str(late)
    assert "the step of B" in str(late)
    assert isinstance(guilty, EnvFault)
    assert "the step of B" in str(guilty)
    assert "the step of A" not in str(guilty)
    assert str(guilty) != str(late)


def test_a_call_that_only_waits_blames_nobody() -> None:
    async def waits() -> None:
        await asyncio.sleep(5)

    with pytest.raises(EnvFault) as caught:
        asyncio.run(call("the step of A", 0.05, waits))
    assert caught.value.__cause__ is None or not isinstance(caught.value.__cause__, EnvFault)
    assert "block" not in str(caught.value)


@pytest.mark.parametrize("how", [call, call_plain], ids=["coroutine", "function"])
def test_a_call_sees_the_context_of_its_caller(how: Callable[..., Coroutine[Any, Any, int]]) -> None:
    from agentenv.core.concurrency.batching import episode_index

    async def work() -> int:
        return episode_index.get()

    async def run() -> int:
        episode_index.set(7)
        return await how("a step", 5, work if how is call else episode_index.get)

    assert asyncio.run(run()) == 7


def test_who_is_cancelled_cancels_what_was_called_and_leaves_nothing_counted() -> None:
    ended = threading.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            ended.set()

    async def run() -> int:
        task = asyncio.create_task(call("a step", 20, work))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        for _ in range(500):
            if ended.is_set() and env_calls.abandoned() == before:
                break
            await asyncio.sleep(0.01)
        assert ended.is_set()
        return env_calls.abandoned()

    before = env_calls.abandoned()
    assert asyncio.run(run()) == before


def test_an_answer_that_is_added_while_others_are_taken_away_is_delivered() -> None:
    """The run's loop takes all answers away right after the environments' loop has seen that there are some."""

    async def run() -> str:
        home = asyncio.get_running_loop()
        await call("a step", 2, nothing)
        (loop,) = env_calls._run_loops[home].loops
        earlier = env_calls._Request("an earlier step", nothing, 5, home)
        earlier.answer.set_result(None)

        def take_all(taken: threading.Event) -> None:
            loop.answer()
            taken.set()

        class Looked(list[Any]):
            looks = 0

            def __len__(self) -> int:
                found, taken = super().__len__(), threading.Event()
                if not self.looks:
                    self.looks += 1
                    home.call_soon_threadsafe(take_all, taken)
                    taken.wait(0.2)
                return found

        async def work() -> str:
            await asyncio.sleep(2.4)  # until nobody looks any more whether the loop is blocked
            loop._done = Looked([(earlier, None, None)])
            return "here"

        return await call("a step", 4, work)

    async def nothing() -> None: ...

    assert asyncio.run(run()) == "here"


class Stuck:
    """Whose function never returns."""


def test_calls_that_wait_for_a_thread_are_given_up_where_none_has_ever_returned() -> None:
    """60 tasks over an environment that hangs would take as many deadlines as there are rounds of threads."""
    began: list[float] = []
    free = threading.Event()

    def hang() -> None:
        began.append(time.monotonic())
        free.wait(60)

    async def run() -> tuple[list[Any], str]:
        calls = (call_plain("a step", 3.0, hang, owner=Stuck) for _ in range(60))
        errors = await asyncio.gather(*calls, return_exceptions=True)
        # Once the last that was tried has used up its time, too, the next one is tried: the environment may have recovered.
        return errors, await call_plain("a step", 3.0, lambda: "here", owner=Stuck)

    try:
        errors, recovered = asyncio.run(run())
    finally:
        free.set()
    assert all(isinstance(error, EnvFault) for error in errors)
    assert max(began) - min(began) < 6.0
    assert any("Stuck" in str(error) for error in errors)
    assert recovered == "here"


def test_an_environment_that_has_once_returned_is_waited_for() -> None:
    free = threading.Event()

    async def run() -> list[Any]:
        owner = type("Slow", (Stuck,), {})
        await call_plain("a step", 5.0, lambda: None, owner=owner)
        calls = (call_plain("a step", 0.2, lambda: free.wait(60), owner=owner) for _ in range(40))
        return await asyncio.gather(*calls, return_exceptions=True)

    try:
        errors = asyncio.run(run())
    finally:
        free.set()
    assert len(errors) == 40
    assert not any("was not called" in str(error) for error in errors)
