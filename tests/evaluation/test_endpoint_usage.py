"""What a model behind an endpoint will be asked and has used: turns that environments declare, forecasts, sums, words."""

import json
from pathlib import Path
from typing import Any, cast

import pytest

from agentenv.core.env import Env
from agentenv.core.registry import register
from agentenv.core.types import Task
from agentenv.data.sources import Source
from agentenv.errors import ConfigurationError
from agentenv.evaluation.endpoint_usage import (
    EndpointUsage,
    announcement,
    describe_usage,
    forecast,
    sum_usage,
)
from agentenv.evaluation.task_env import EnvConfig, TaskEnv
from agentenv.policies.openai import OpenAIPolicy


class Limited(Env[Any]):
    """Takes the most turns as an argument."""

    def __init__(self, *, max_turns: int = 4) -> None:
        super().__init__()
        self.turns = max_turns


class Handed(Limited):
    """Hands it on."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)


class Narrowed(Limited):
    """Has another default than the class above it."""

    def __init__(self, *, max_turns: int = 1) -> None:
        super().__init__(max_turns=max_turns)


class Fixed(Env[Any]):
    """States it for all of its objects."""

    max_turns = 6


class Required(Fixed):
    """Takes it and has no default of its own."""

    def __init__(self, *, max_turns: int) -> None:
        super().__init__()
        self.turns = max_turns


class Endless(Env[Any]):
    """Says nothing."""


for kind in (Limited, Handed, Narrowed, Fixed, Required, Endless):
    register(f"endpoint-usage/{kind.__name__}-v0", f"{__name__}:{kind.__name__}")


def over(name: str, **options: Any) -> TaskEnv:
    tasks = (Task("1", "q", ("a",)),)
    env = EnvConfig(id=f"endpoint-usage/{name}-v0", options=options)
    return TaskEnv(Source("s", "", tasks, None, None), None, env, len)


@pytest.mark.parametrize(
    ("name", "options", "most"),
    [
        ("Limited", {}, 5),
        ("Limited", {"max_turns": 2}, 3),
        ("Limited", {"max_turns": 0}, 1),
        ("Handed", {}, 5),
        ("Narrowed", {}, 2),
        ("Fixed", {}, 7),
        ("Required", {}, 7),
        ("Endless", {}, None),
    ],
)
def test_the_most_requests_of_a_question_are_its_turns_and_an_answer(
    name: str, options: dict[str, int], most: int | None
) -> None:
    assert forecast({"run": (over(name, **options), 1)}) == (1, most)


def test_a_forecast_adds_up_all_that_is_played() -> None:
    """Three questions of at most 5 requests and two of at most 3: 5 to 21; without a limit none."""
    phases = {"run": (over("Limited"), 3), "closed_book": (over("Limited", max_turns=2), 2)}
    assert forecast(phases) == (5, 21)
    assert forecast(phases | {"oracle": (over("Endless"), 4)}) == (9, None)


def test_an_announcement_names_the_model_the_numbers_and_the_bounds() -> None:
    run = {"run": (over("Limited"), 1000)}
    said = announcement("some-model", run, bounds=False)
    assert said.startswith("some-model ")
    assert "1,000 to 5,000 requests for 1,000 questions" in said
    assert "--bounds" in said
    assert "among them" not in said
    bounded = announcement("m", run | {"closed_book": (over("Limited", max_turns=0), 1000)}, bounds=True)
    assert "2,000 to 6,000 requests for 1,000 questions" in bounded
    assert "closed book among them" in bounded
    assert "--bounds" not in bounded
    assert "at least 1,000 requests" in announcement("m", {"run": (over("Endless"), 1000)}, bounds=True)


class Paid:
    """Stands for a policy whose usage is known."""

    def __init__(self, **usage: float) -> None:
        self.used = {
            "requests": 0,
            "prompt_tokens": 0,
            "completion_tokens": 0,
            "unmetered": 0,
            "cost": 0.0,
        } | usage

    def usage(self) -> dict[str, float]:
        return self.used


def counted(folder: Path, **usage: float) -> EndpointUsage:
    return EndpointUsage(cast(OpenAIPolicy, Paid(**usage)), folder)


@pytest.mark.parametrize("paid", ["prompt_tokens", "completion_tokens", "unmetered"])
def test_usage_is_written_once_something_may_have_to_be_paid(tmp_path: Path, paid: str) -> None:
    assert counted(tmp_path, requests=2).save()["requests"] == 2
    assert list(tmp_path.iterdir()) == []
    first = counted(tmp_path, requests=3, **{paid: 7})
    assert first.save() == first.total()
    assert json.loads((tmp_path / "usage.json").read_text()) == first.total()
    # Another process that works on the same folder begins where this one ended.
    assert counted(tmp_path, requests=1, **{paid: 5}).total() == first.total() | {"requests": 4, paid: 12}


def test_a_file_of_usage_that_holds_anything_but_numbers_is_refused(tmp_path: Path) -> None:
    (tmp_path / "usage.json").write_text('{"requests": 1, "cost": "much"}')
    with pytest.raises(ConfigurationError, match=r"usage\.json"):
        counted(tmp_path)


def test_usage_of_several_results_is_summed_name_by_name() -> None:
    parts: list[dict[str, Any]] = [{"usage": {"requests": 2, "cost": 0.5}}, {}, {"usage": {"requests": 3}}]
    assert sum_usage(parts) == {"requests": 5, "cost": 0.5}
    assert sum_usage([{}, {}]) == {}


def test_usage_in_words_leaves_out_what_there_was_not() -> None:
    usage = {"requests": 1234, "retries": 5, "failures": 0, "prompt_tokens": 12000, "completion_tokens": 3456}
    shown = describe_usage(usage | {"cost": 1.23456})
    assert list(shown.values()) == ["1,234", "5", "0", "12,000", "3,456", "1.2346"]
    assert describe_usage(usage | {"cost": 0.00002})["cost"] == "less than 0.0001"
    unmetered = describe_usage(usage | {"cost": 0, "unmetered": 2000})
    assert list(unmetered.values())[5] == "2,000"
    assert "no price" in unmetered["cost"]
    assert describe_usage({}) == {}
