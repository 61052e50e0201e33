"""Runs one cell for a session's supervisor: sends it, waits under limits, and reads the answer."""

import os
import signal
import time
from typing import Any

from agentenv.sandbox.jail import answers, frames
from agentenv.sandbox.jail.node import Node
from agentenv.sandbox.jail.watch import Watch

GRACE_S = 0.5


class NeverBegan(RuntimeError):
    """An interpreter ended before any program could be the cause, so it is an infrastructure failure."""


def await_cell(
    node: Node, order: dict[str, Any], watch: Watch, started: float
) -> tuple[str, dict[str, Any] | None]:
    """Sends the cell and waits. At a limit it first sends SIGINT, then kills. The answer is None if the interpreter died.

    Raises:
        NeverBegan: the interpreter ended before it started to read its first cell.
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
    except (frames.Closed, OSError) as error:  # a deadline passed, or the process has ended
        # A live interpreter that read nothing in time is slow because of its machine or its cell; that is no fault.
        if not (node.began or isinstance(error, TimeoutError) or answers.has_taken(node.link)):
            raise NeverBegan("the interpreter ended before it had begun to read its first cell") from error
        return "killed", None
    node.folder = answer["folder"]
    return verdict, answer


def _await_word(node: Node, watch: Watch, deadline: float) -> str:
    """Waits for an interpreter's answer about its cell. A new interpreter first announces that it will read the cell.

    Until that announcement it has received nothing from any program, so no program can be the cause of its end. The size of
    a cell, and whether it can be compiled, are determined by its program.
    """
    verdict = watch.until(node.link.fileno(), deadline)
    if verdict == "ready" and not node.began:
        node.began = answers.has_taken(node.link)
        if not node.began:
            raise frames.Closed
        verdict = watch.until(node.link.fileno(), deadline)
    return verdict
