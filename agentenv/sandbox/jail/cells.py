"""One cell as a session's supervisor sees it: it is handed over, waited for under limits, and its answer is read."""

import os
import signal
import time
from typing import Any

from agentenv.sandbox.jail import answers, frames
from agentenv.sandbox.jail.node import Node
from agentenv.sandbox.jail.watch import Watch

GRACE_S = 0.5


class NeverBegan(RuntimeError):
    """An interpreter ended before any program could be the cause: a fault."""


def await_cell(
    node: Node, order: dict[str, Any], watch: Watch, started: float
) -> tuple[str, dict[str, Any] | None]:
    """Sends the cell and waits; at a limit first asks by SIGINT, then kills. The answer is None after a death.

    Raises:
        NeverBegan: the interpreter ended before it had begun to read its first cell.
    """
    ask = {"op": "cell", "code": order["code"], "folder": node.folder, "variables": order["variables"]}
    bodies = [frames.encode(ask)] if node.began else [answers.TAKE, frames.encode(ask)]
    deadline = started + order["wall_s"]
    try:
        answers.hand_over(node.link, bodies, deadline)
        verdict = _await_word(node, watch, deadline)
        if verdict == "oom":
            return verdict, None
        if verdict != "ready":
            os.kill(node.pid, signal.SIGINT)
            for record in watch.streams.values():
                record.forgive()
            if _await_word(node, watch, time.monotonic() + GRACE_S) != "ready":
                return verdict, None
        answer = answers.read_answer(node.link)
    except (frames.Closed, OSError) as error:  # a deadline passed, or the process is gone
        # One that is there and took nothing in time is as slow as its machine or its cell: no fault, whatever the size.
        if not (node.began or isinstance(error, TimeoutError) or answers.has_taken(node.link)):
            raise NeverBegan("the interpreter ended before it had begun to read its first cell") from error
        return "killed", None
    node.folder = answer["folder"]
    return verdict, answer


def _await_word(node: Node, watch: Watch, deadline: float) -> str:
    """Waits for what an interpreter says of its cell; a new one says first that it is about to read it.

    Until then it has seen nothing of any program, which therefore cannot be the cause of its end. How large a cell is, and
    whether it can be compiled, is its program's doing.
    """
    verdict = watch.until(node.link.fileno(), deadline)
    if verdict == "ready" and not node.began:
        node.began = answers.has_taken(node.link)
        if not node.began:
            raise frames.Closed
        verdict = watch.until(node.link.fileno(), deadline)
    return verdict
