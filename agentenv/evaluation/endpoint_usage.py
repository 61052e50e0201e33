"""Usage of a model endpoint by an evaluation: a forecast of the requests, and the tokens and costs so far.

Usage is written to ``usage.json`` whenever episodes finish and when the evaluation fails, so that a resumed evaluation
includes what was paid before.
"""

import inspect
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from agentenv.core.io.claims import require_claimed_folder
from agentenv.core.io.files import write_text
from agentenv.core.registry import env_class
from agentenv.errors import ConfigurationError
from agentenv.evaluation.records import USAGE, read_json
from agentenv.evaluation.task_env import TaskEnv
from agentenv.policies.openai import OpenAIPolicy


class EndpointUsage:
    """The usage of an evaluation, summed over all processes that have worked on it.

    Args:
        policy: The policy whose requests are counted.
        directory: The folder of the evaluation.

    Raises:
        ConfigurationError: its ``usage.json`` has other content.
    """

    def __init__(self, policy: OpenAIPolicy, directory: Path) -> None:
        self._policy = policy
        self._path = directory / USAGE
        self._earlier: dict[str, Any] = read_json(self._path) if self._path.is_file() else {}
        if not all(isinstance(used, int | float) for used in self._earlier.values()):
            raise ConfigurationError(
                f"{self._path} holds something other than numbers: delete it to count anew."
            )

    def total(self) -> dict[str, float]:
        """The usage so far."""
        return {name: self._earlier.get(name, 0) + used for name, used in self._policy.usage().items()}

    def save(self) -> dict[str, float]:
        """Returns the usage, and writes it to the file once there is a reply that may have to be paid for."""
        total = self.total()
        if any(total[name] for name in ("prompt_tokens", "completion_tokens", "unmetered")):
            write_text(self._path, json.dumps(total) + "\n")
        return total

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Also writes the usage if the block fails, so that replies of unfinished episodes are included."""
        try:
            yield
        except BaseException:
            with suppress(OSError):  # the original error is reported, and not this one
                require_claimed_folder(self._path.parent)
                self.save()
            raise


def forecast(phases: Mapping[str, tuple[TaskEnv, int]]) -> tuple[int, int | None]:
    """Returns the smallest and the largest number of requests still to be made, without retries.

    Args:
        phases: For the run and each bound to be played: its task environment and the number of missing questions.

    Returns:
        One request for each question, and one for each turn that the environment allows (None without a limit).
    """
    least = sum(missing for _, missing in phases.values())
    most = 0
    for task_env, missing in phases.values():
        turns = _turns(task_env)
        if turns is None:
            return least, None
        most += missing * turns
    return least, most


def _turns(task_env: TaskEnv) -> int | None:
    """Returns the most turns of an episode: the environment's limit plus a last one to answer; None without a limit."""
    cls = env_class(task_env.env.id)
    declared = (
        inspect.signature(vars(base)["__init__"]).parameters.get("max_turns")
        for base in cls.__mro__
        if "__init__" in vars(base)
    )
    default = next((parameter.default for parameter in declared if parameter is not None), None)
    turns = task_env.env.options.get("max_turns", default if isinstance(default, int) else None)
    turns = getattr(cls, "max_turns", None) if turns is None else turns
    return turns + 1 if isinstance(turns, int) else None


def announcement(model: str, phases: Mapping[str, tuple[TaskEnv, int]], *, bounds: bool) -> str:
    """Returns the message that is shown before the first request."""
    least, most = forecast(phases)
    questions = phases["run"][1]
    number = f"{least:,} to {most:,}" if most is not None else f"at least {least:,}"
    played = [name.replace("_", " ") for name in phases if name != "run"]
    extra = f", the bounds {', '.join(played)} among them" if played else ""
    off = (
        ""
        if bounds
        else "; bounds are off, since they would ask every question again: --bounds turns them on"
    )
    return f"{model} will be sent {number} requests for {questions:,} questions (retries not counted){extra}{off}"


def sum_usage(parts: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Sums the usage of several results files; empty if none used an endpoint."""
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part.get("usage", {}))
    return dict(total)


def describe_usage(usage: Mapping[str, float]) -> dict[str, str]:
    """Describes usage in words, by its kind; empty without usage."""
    if not usage:
        return {}
    unmetered = usage.get("unmetered", 0)
    of = {
        "requests": f"{usage['requests']:,}",
        "of them retries": f"{usage['retries']:,}",
        "replies given up": f"{usage['failures']:,}",
        "prompt tokens": f"{usage['prompt_tokens']:,}",
        "reply tokens": f"{usage['completion_tokens']:,}",
    }
    if unmetered:
        of["replies without a count"] = f"{unmetered:,}"
    cost = f"{usage['cost']:.4f}" if usage["cost"] >= 0.0001 else "less than 0.0001"
    return of | {"cost": cost if usage["cost"] else "not counted: no price was given"}
