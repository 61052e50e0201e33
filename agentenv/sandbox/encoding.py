"""Encodes what passes between an executor and its jails: files, names and calls to a jail, and results from it."""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from agentenv.core.grammar import encodable
from agentenv.errors import ConfigurationError
from agentenv.sandbox.jail import plain, trees
from agentenv.sandbox.types import ExecResult, ExecStatus, ExecutionLimits, FunctionCall, ProgramError


def packed(files: Mapping[str, bytes] | None, limits: ExecutionLimits) -> dict[str, str]:
    """Encodes files for a jail.

    Raises:
        ConfigurationError: a name is not a relative path or is both a file and a folder, or the files exceed the disk limit.
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
    """Checks that all ``names`` are relative paths, and returns them.

    Raises:
        ConfigurationError: a name is not.
    """
    try:
        for name in names:
            trees.parts_of(name)
    except trees.PathRefused as reason:
        raise ConfigurationError(str(reason)) from None
    return list(names)


def packed_call(call: FunctionCall) -> list[Any]:
    """Encodes a function call for a jail.

    Raises:
        ConfigurationError: its arguments are not plain data.
    """
    try:
        return [call.function, plain.dump(call.arguments)]
    except plain.NotPlain as reason:
        raise ConfigurationError(f"the arguments of {call.function} cannot be sent: {reason}") from None


def result_of(answer: dict[str, Any], queued: float = 0.0, calls: int = 0) -> ExecResult:
    """Makes a typed result from the answer of a supervisor, for a program from which ``calls`` calls were requested.

    Much of the answer comes from the program itself, so its texts are cleaned such that they can be encoded.
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
        # The last part has no line end: it is empty, or a truncated call.
        returned=tuple(answer.get("returned", "").split("\n", calls)[:-1]),
        files={name: base64.b64decode(content) for name, content in answer["files"].items()},
        refused={name: encodable(reason) for name, reason in answer["refused"].items()},
        state_lost=not answer.get("alive", True),
        lost_snapshots=len(answer.get("lost", ())),
        queue_s=queued,
        **{name: answer[name] for name in same if name in answer},
    )
