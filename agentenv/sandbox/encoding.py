"""What crosses the wall between an executor and its jails: files, names and calls on the way in, results on the way out."""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from agentenv.core.grammar import encodable
from agentenv.errors import ConfigurationError
from agentenv.sandbox.jail import plain, trees
from agentenv.sandbox.types import ExecResult, ExecStatus, ExecutionLimits, FunctionCall, ProgramError


def packed(files: Mapping[str, bytes] | None, limits: ExecutionLimits) -> dict[str, str]:
    """Files as they cross the wall.

    Raises:
        ConfigurationError: a name that is no relative path, one that is a file and a folder, or more than the disk holds.
    """
    names = checked(files or {})
    folders = {name[:end] for name in names for end, letter in enumerate(name) if letter == "/"}
    if both := sorted(folders.intersection(names)):
        raise ConfigurationError(f"{both[0]!r} cannot be a file and a folder")
    size = sum(map(len, (files or {}).values()))
    if size > limits.disk_mb << 20:
        raise ConfigurationError(
            f"the files have {size} bytes, and disk_mb={limits.disk_mb} MiB is the limit"
        )
    return {name: base64.b64encode(content).decode() for name, content in (files or {}).items()}


def checked(names: Sequence[str] | Mapping[str, bytes]) -> list[str]:
    """``names``, each a relative path.

    Raises:
        ConfigurationError: one is not.
    """
    try:
        for name in names:
            trees.parts_of(name)
    except trees.PathRefused as reason:
        raise ConfigurationError(str(reason)) from None
    return list(names)


def packed_call(call: FunctionCall) -> list[Any]:
    """A call as it crosses the wall.

    Raises:
        ConfigurationError: its arguments are no plain data.
    """
    try:
        return [call.function, plain.dump(call.arguments)]
    except plain.NotPlain as reason:
        raise ConfigurationError(f"the arguments of {call.function} cannot be sent: {reason}") from None


def result_of(answer: dict[str, Any], queued: float = 0.0, calls: int = 0) -> ExecResult:
    """The typed result of what a supervisor said, for a program that was asked for ``calls`` calls.

    Much of it is the program's own word: its texts come out as text that can be encoded.
    """
    error, value = answer.get("error"), answer.get("value")
    same = ("exit_code", "signal", "wall_s", "cpu_s", "memory_mb")
    return ExecResult(
        ExecStatus(answer["status"]),
        encodable(answer["stdout"]),
        encodable(answer["stderr"]),
        value=None if value is None else encodable(value),
        truncated=answer["truncated"],
        error=error and ProgramError(encodable(error["type"]), encodable(error["message"]), error["line"]),
        # The last piece has no end of line: it is empty, or a call that was cut off.
        returned=tuple(answer.get("returned", "").split("\n", calls)[:-1]),
        files={name: base64.b64decode(content) for name, content in answer["files"].items()},
        refused={name: encodable(reason) for name, reason in answer["refused"].items()},
        state_lost=not answer.get("alive", True),
        lost_snapshots=len(answer.get("lost", ())),
        queue_s=queued,
        **{name: answer[name] for name in same if name in answer},
    )
