"""Clients that vanish from a server of environments, and a retriever that dies behind one, as both sides see it."""

import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from agentenv.core.types import Document
from agentenv.envs.search.local_search import LocalSearch
from agentenv.errors import RetrieverFault
from agentenv.retrievers.fakes import InMemoryRetriever
from agentenv.retrievers.remote import RemoteRetriever
from agentenv.serving.remote import RemoteEnv
from agentenv.web.retries import RetryPolicy as Calls

WAIT_S = 60.0


def reset_by(line: Any) -> None:
    """Ends a connection as a killed process or a pulled cable does: with a reset and without a close frame."""
    line.socket.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    line.socket.socket.close()


@pytest.mark.parametrize("when", ["idle", "between", "inside", "forked"])
def test_client_slots_of_clients_that_vanish_come_back(serving: Any, house: Any, when: str) -> None:
    with serving(lambda: house, sessions=6, per_client=6, claim_s=0.3) as served:
        for _ in range(3):
            with ExitStack() as stack:
                lines = [stack.enter_context(served.call()) for _ in range(3)]
                for line in lines:
                    if when != "idle":
                        line.ask("reset")
                    if when == "inside":
                        line.socket.send('{"type": "step", "data": {"text": "wait"}}')
                    if when == "forked":
                        line.ask("agentenv", verb="fork")
                if when == "inside":
                    assert house.shared.entered.wait(WAIT_S)
                for line in lines:
                    reset_by(line)
            house.shared.opened.set()
            served.until_open(0)
        with served.call() as line:
            assert line.ask("reset")["type"] == "observation"


def test_a_crowd_that_vanishes_again_and_again_leaves_nothing_behind(serving: Any, house: Any) -> None:
    with serving(lambda: house, sessions=8, waiting=64) as served:

        def come_and_go(_: int) -> None:
            with served.call() as line:
                line.socket.send('{"type": "reset"}')
                reset_by(line)

        with ThreadPoolExecutor(16) as pool:
            list(pool.map(come_and_go, range(80)))
        served.until_open(0)
        assert served.service.health()["waiting"] == 0
        threads = [one for one in threading.enumerate() if one.name.startswith("agentenv-session")]
        assert len(threads) <= 8 + 16


def test_a_retriever_that_dies_mid_run_is_a_fault_at_the_remote_client(serving: Any) -> None:
    """The step raises what a local environment would raise, and the next episode works once the retriever is back."""

    class Dying(InMemoryRetriever):
        """Answers until it is dead."""

        dead = False

        async def search(self, queries: Any, k: int) -> Any:
            if self.dead:  # a port where nobody listens
                return await RemoteRetriever("http://127.0.0.1:9", timeouts=Calls(tries=1)).search(queries, k)
            return await super().search(queries, k)

    retriever = Dying([Document("a", "Halvik", "Halvik is a town in Norland.")])
    tasks = LocalSearch().held_tasks()[:1]
    with serving(lambda: LocalSearch(tasks=tasks, retriever=retriever), expert=True) as served:
        env = RemoteEnv(served.url)
        env.reset(seed=0)
        assert "Norland" in env.step("<search>Halvik</search>").observation[0].text
        retriever.dead = True
        with pytest.raises(RetrieverFault, match=r"http://127\.0\.0\.1:9/"):
            env.step("<search>Halvik again</search>")
        assert env.reset(seed=1)[1]["task_id"] == tasks[0].id
        retriever.dead = False
        assert "Norland" in env.step("<search>Halvik</search>").observation[0].text
        assert env.step(f"<answer>{tasks[0].answers[0]}</answer>").reward == 1.0
        env.close()
        served.until_open(0)
