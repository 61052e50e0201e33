"""The contract suite itself: a good environment passes, and every kind of bad one is caught by its check."""

import inspect
import random
import sys
import textwrap
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pytest

from agentenv.core.env import Env
from agentenv.core.env_contract import CHECKS, CheckResult, EnvContract, check_env, run_check
from agentenv.core.scene import Mark, TurnScene
from agentenv.core.types import (
    EndReason,
    Info,
    Message,
    Observation,
    StateCapability,
    Step,
    Task,
    ToolResult,
    ToolStatus,
)
from agentenv.errors import ConfigurationError, EnvFault


@dataclass
class State:
    secret: str
    guesses: list[str] = field(default_factory=list)


class Guess(Env[State]):
    """Two guesses at a digit, and every guess is repeated."""

    @classmethod
    def make_tasks(cls, n: int, *, seed: int = 0, split: str = "train") -> Sequence[Task]:
        digits = {"train": "012345", "dev": "67", "test": "89"}[split]
        drawn = random.Random(seed).choices(digits, k=n)
        return [Task(f"{split}-{seed}-{i}", "Guess.", (digit,), split) for i, digit in enumerate(drawn)]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        super().reset(seed=seed)
        drawn = str(self.np_random.integers(10))
        task = (options or {}).get("task") or Task(drawn, "Guess.", (drawn,))
        self.state = State(task.answers[0])
        return (Message("user", "Guess."),), {"task_id": task.id}

    def step(self, action: str) -> Step:
        self.check_running()
        self.state.guesses.append(action)
        if action == self.state.secret:
            return self.result((), reward=1.0, end=EndReason.ANSWERED)
        if len(self.state.guesses) == 2:
            return self.result((), end=EndReason.TURN_LIMIT, truncated=True)
        return self.result((Message("user", f"not {action} {self.np_random.integers(1000)}"),))

    def expert(self) -> Sequence[str] | None:
        return ("no", self.state.secret)

    def render(self) -> str:
        return "..."


class TestGuess(EnvContract):
    def make(self) -> Guess:
        return Guess()


def test_a_good_environment_passes_every_check() -> None:
    results = check_env(Guess)
    assert [result.name for result in results] == list(CHECKS)
    assert {result.status for result in results} == {"ok"}


def test_the_example_of_the_base_class_fails_no_check() -> None:
    example = inspect.getdoc(Env).split("```python")[1].split("```")[0]  # type: ignore[union-attr]
    module = types.ModuleType("guess")
    names = {"Env": Env, "Task": Task, "Message": Message, "EndReason": EndReason, "dataclass": dataclass}
    vars(module).update(names)
    sys.modules["guess"] = module
    try:
        exec(textwrap.dedent(example), vars(module))
        assert [one for one in check_env(vars(module)["Guess"]) if one.status == "failed"] == []
    finally:
        del sys.modules["guess"]


class ForgetsSeed(Guess):
    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        return super().reset(seed=None, options=options)


class GlobalRandom(Guess):
    def step(self, action: str) -> Step:
        random.random()
        return super().step(action)


class OutsideState(Guess):
    """Keeps what it heard where snapshots do not look."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        self.heard: list[str] = []
        return super().reset(seed=seed, options=options)

    def step(self, action: str) -> Step:
        step = super().step(action)
        self.heard.append(action)
        seen = tuple(Message("user", str(len(self.heard))) for _ in step.observation)
        return step._replace(observation=seen)


class ReusedObservation(Guess):
    seen = (Message("user", "Again."),)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        _, info = super().reset(seed=seed, options=options)
        return self.seen, info

    def step(self, action: str) -> Step:
        return super().step(action)._replace(observation=self.seen)


class ListObservation(Guess):
    def step(self, action: str) -> Step:
        return super().step(action)._replace(observation=["text"])  # type: ignore[arg-type]


class GoesOn(Guess):
    def check_running(self, action: object = "") -> None: ...


class ForgetsReason(Guess):
    def step(self, action: str) -> Step:
        step = super().step(action)
        step.info.pop("end_reason", None)
        return step


class CountsFromZero(Guess):
    def step(self, action: str) -> Step:
        step = super().step(action)
        return step._replace(info=step.info | {"turn": step.info["turn"] - 1})


class NotANumber(Guess):
    def step(self, action: str) -> Step:
        return super().step(action)._replace(reward=float("nan"))


class WrongExpert(Guess):
    def expert(self) -> Sequence[str] | None:
        return ("no", "never")


class ShortExpert(Guess):
    def expert(self) -> Sequence[str] | None:
        return ("no",)


class PaysForSilence(Guess):
    def step(self, action: str) -> Step:
        step = super().step(action)
        return step._replace(reward=0.1) if action == "" else step


class AsyncDiffers(Guess):
    async def astep(self, action: str) -> Step:
        return self.step(action)._replace(reward=0.5)


class NoCapability(Guess):
    capability: ClassVar[Any] = "memory"


class ForkShares(Guess):
    def fork(self, n: int = 1) -> list[Any]:
        return [self] * n


class BadRender(Guess):
    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi"], "render_fps": 1}  # type: ignore[misc]

    def render(self) -> Any:
        return 3


class GameState:
    """A screen that is drawn and marked as it was told to be."""

    def __init__(self, svg: str, mark: Any = None) -> None:
        self.size, self._svg, self._mark = (10, 10), svg, mark

    def svg(self) -> str:
        return self._svg

    def marks(self, action: str) -> list[Any]:
        return [self._mark or Mark("guess", action)]


class Drawn(Guess):
    def scene(self) -> TurnScene | None:
        return GameState("<svg/>")


class BadDrawing(Guess):
    def scene(self) -> TurnScene | None:
        return GameState("<svg>&</svg>")


class BadMark(Guess):
    def scene(self) -> TurnScene | None:
        return GameState("<svg/>", "a click")


class NoSpaces(Guess):
    def __init__(self) -> None:
        super().__init__()
        del self.action_space


class Down(Guess):
    def step(self, action: str) -> Step:
        raise EnvFault("the sandbox is down")


Opening = tuple[Observation, Info]


class IgnoresTask(Guess):
    """Poses what the seed draws, whatever is asked for, and says so."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Opening:
        return super().reset(seed=seed)


class IgnoresTaskAndLies(Guess):
    """The same, under the name of the task that was asked for."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Opening:
        opening, info = super().reset(seed=seed)
        return opening, info | {"task_id": options["task"].id if options else "x"}


class SaysNothing(Guess):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Opening:
        return super().reset(seed=seed, options=options)[0], {}


class KeepsFirstTask(Guess):
    """Poses for ever what it was given first."""

    first: dict[str, Any] | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Opening:
        self.first = self.first or options
        return super().reset(seed=seed, options=self.first)


class RemembersLastTask(Guess):
    """Without a task, poses the one before."""

    last: dict[str, Any] | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Opening:
        self.last = options or self.last
        return super().reset(seed=seed, options=self.last)


class IgnoresTaskAsync(Guess):
    async def areset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Opening:
        return self.reset(seed=seed)


class IgnoresWrittenTask(IgnoresTask):
    """Makes no tasks of its own and shows none."""

    @classmethod
    def make_tasks(cls, n: int, *, seed: int = 0, split: str = "train") -> Sequence[Task]:
        raise ConfigurationError("it makes none")


class SharesTasks(Guess):
    """The same tasks for every split, under other names."""

    @classmethod
    def make_tasks(cls, n: int, *, seed: int = 0, split: str = "train") -> Sequence[Task]:
        made = Guess.make_tasks(n, seed=seed)
        return [replace(task, id=f"{split}-{i}", split=split) for i, task in enumerate(made)]


class SharesTasksInDisguise(SharesTasks):
    """The same with something in ``data`` that tells them apart."""

    @classmethod
    def make_tasks(cls, n: int, *, seed: int = 0, split: str = "train") -> Sequence[Task]:
        made = super().make_tasks(n, seed=seed, split=split)
        return [replace(task, data={"of": f"{split} {i}"}) for i, task in enumerate(made)]


class DrawsTasksAnew(Guess):
    drawn = 0

    @classmethod
    def make_tasks(cls, n: int, *, seed: int = 0, split: str = "train") -> Sequence[Task]:
        DrawsTasksAnew.drawn += 1
        return super().make_tasks(n, seed=seed + DrawsTasksAnew.drawn, split=split)


@pytest.mark.parametrize(
    ("make", "name", "words"),
    [
        (IgnoresTask, "task", "'train-0-0'"),
        (IgnoresTaskAndLies, "task", "the same episode"),
        (SaysNothing, "task", "task_id None"),
        (KeepsFirstTask, "task", "task_id 'train-0-0'"),
        (RemembersLastTask, "task", "seed 0"),
        (IgnoresTaskAsync, "task", "areset()"),
        (IgnoresWrittenTask, "task", "'check-0'"),
        (SharesTasks, "splits", "'train' and 'dev'"),
        (SharesTasksInDisguise, "splits", "'train' and 'dev'"),
        (DrawsTasksAnew, "splits", "asked again"),
        (ForgetsSeed, "determinism", "seed 0"),
        (GlobalRandom, "determinism", "self.np_random"),
        (OutsideState, "restore", "restored before turn"),
        (OutsideState, "fork", "forked before turn"),
        (ReusedObservation, "observations", "used twice"),
        (ListObservation, "observations", "must hold Message alone"),
        (GoesOn, "episode_over", "must raise EpisodeOver"),
        (ForgetsReason, "info", "'end_reason'] None"),
        (CountsFromZero, "info", "info['turn'] is 0 in turn 1"),
        (NotANumber, "info", "the reward nan"),
        (WrongExpert, "expert", "scores 0, not 1"),
        (ShortExpert, "expert", "do not end the episode"),
        (PaysForSilence, "floors", "'no-op' scores 0.2, above 0"),
        (AsyncDiffers, "async", "reward of turn 1 differs"),
        (NoCapability, "capability", "capability is 'memory'"),
        (ForkShares, "fork", "EpisodeOver"),
        (BadRender, "render", ""),
        (BadDrawing, "scene", "before action 0 is no SVG"),
        (BadMark, "scene", "marked by ['a click']"),
        (NoSpaces, "gymnasium", "action"),
        (Down, "info", "EnvFault: the sandbox is down (test_env_contract.py, line"),
    ],
)
def test_a_bad_environment_is_caught(make: Callable[[], Env[Any]], name: str, words: str) -> None:
    result = run_check(name, make)
    assert result.status == "failed", result
    assert words in result.detail


def test_screens_are_counted_where_there_are_any() -> None:
    assert run_check("scene", Drawn) == CheckResult("scene", "ok", "2 screens")
    assert run_check("scene", Guess) == CheckResult("scene", "ok", "no screen")


class BrokenTool(Guess):
    """A tool of its own fails, and the expert knows the answer all the same."""

    def step(self, action: str) -> Step:
        step = super().step(action)
        failed = ToolResult("look", ToolStatus.ERROR, "ProgrammingError: another thread")
        step.info["tool_results"] = () if step.terminated else (failed,)
        return step


def test_calls_of_the_expert_that_fail_are_named() -> None:
    """An expert that knows the answer hides that no tool of its environment works."""
    result = run_check("expert", BrokenTool)
    assert result.status == "ok"
    assert "3 of its tool calls failed" in result.detail
    assert "look: ProgrammingError" in result.detail
    assert "failed" not in run_check("expert", Guess).detail


class NoTimeTravel(Guess):
    capability: ClassVar[StateCapability] = StateCapability.NONE
    no_expert: ClassVar[str] = "nobody knows the digit"

    def expert(self) -> Sequence[str] | None:
        return None


def test_what_does_not_apply_is_skipped_with_its_reason() -> None:
    results = {result.name: result for result in check_env(NoTimeTravel)}
    assert results["restore"] == CheckResult("restore", "skipped", "the declared capability is none")
    assert results["expert"] == CheckResult("expert", "skipped", "nobody knows the digit")
    assert all(result.status != "failed" for result in results.values())


class OnlyItsOwn(IgnoresWrittenTask):
    """Knows its tasks by a table and refuses others."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Opening:
        if options and "number" not in options["task"].data:
            raise ConfigurationError("no such task")
        return super().reset(seed=seed)


@dataclass
class StateOfTask(State):
    task: Task | None = None


class IgnoresDrawnTask(OnlyItsOwn):
    """Shows the tasks that it draws, and poses none of them when it is asked to."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Opening:
        opening, info = super().reset(seed=seed, options=options)
        own = Task(self.state.secret, "Guess.", (self.state.secret,), data={"number": 1})
        self.state = StateOfTask(self.state.secret, task=own)
        return opening, info


def test_tasks_that_an_environment_draws_are_posed_to_it() -> None:
    result = run_check("task", IgnoresDrawnTask)
    assert result.status == "failed", result
    assert "task_id" in result.detail


def test_tasks_that_cannot_be_checked_are_skipped() -> None:
    assert run_check("task", OnlyItsOwn).status == "skipped"
    assert run_check("splits", OnlyItsOwn).status == "skipped"


def test_the_mix_in_fails_and_skips_as_the_checks_do() -> None:
    class Bad(EnvContract):
        def make(self) -> Env[Any]:
            return PaysForSilence()

    class Skipping(EnvContract):
        def make(self) -> Env[Any]:
            return NoTimeTravel()

    with pytest.raises(AssertionError, match="no-op"):
        vars(EnvContract)["test_floors"](Bad())
    with pytest.raises(BaseException, match="nobody knows the digit"):
        vars(EnvContract)["test_expert"](Skipping())


def test_every_environment_that_was_made_is_closed() -> None:
    made: list[Guess] = []

    class Closing(Guess):
        open = True

        def close(self) -> None:
            self.open = False

    def make() -> Guess:
        made.append(Closing())
        return made[-1]

    check_env(make)
    assert len(made) > 20
    assert not any(vars(env).get("open", True) for env in made)


class Gives(Guess):
    """Returns what an author may return who has not read how steps are made."""

    step_gives: ClassVar[Any] = None

    def step(self, action: str) -> Step:
        super().step(action)
        given: Step = self.step_gives
        return given


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (None, "the environment's step returned None"),
        (("no", 0.0, True, {}), "the environment's step returned ('no', 0.0, True, {})"),
        (("no", 0.0, True, False, {}), "'no'"),
        (Step("no", 0.0, False, False, {"tool_results": (), "valid": True}), "'no'"),  # type: ignore[arg-type]
        (Step((Message("user", 3),), 0.0, False, False, {"tool_results": (), "valid": True}), "3"),  # type: ignore[arg-type]
        (Step((), "1", False, False, {"tool_results": (), "valid": True}), "the reward '1'"),  # type: ignore[arg-type]
        (Step((), float("nan"), False, False, {"tool_results": (), "valid": True}), "the reward nan"),
    ],
)
def test_a_step_that_training_could_not_use_is_named_as_training_names_it(given: Any, named: str) -> None:
    class One(Gives):
        step_gives = given

    for check in ("determinism", "restore", "observations", "info"):
        result = run_check(check, One)
        assert result.status == "failed"
        assert named in result.detail
        assert "line" not in result.detail  # of the contract, where the author has nothing to do


@pytest.mark.parametrize(
    ("tasks", "named"),
    [
        ([{"question": "q"}], "it must be a Task"),
        ([Task("a", "q", ("3",)), Task("a", "r", ("3",))], "'a' occurs twice"),
        ([Task("a", "q", "3")], "answers is '3'"),  # type: ignore[arg-type]
        ([Task("a", "q", (3,))], "answer 1 is 3"),  # type: ignore[arg-type]
    ],
)
def test_tasks_that_training_could_not_use_fail_the_checks_of_tasks(tasks: list[Any], named: str) -> None:
    class One(Guess):
        @classmethod
        def make_tasks(cls, n: int, *, seed: int = 0, split: str = "train") -> Sequence[Task]:
            return tasks

    for check in ("task", "splits"):
        result = run_check(check, One)
        assert result.status == "failed"
        assert named in result.detail


def test_what_cannot_be_copied_is_named() -> None:
    class Holds(Guess):
        def reset(
            self, *, seed: int | None = None, options: dict[str, Any] | None = None
        ) -> tuple[Observation, Info]:
            found = super().reset(seed=seed, options=options)
            self.state.guesses = {"lines": (letter for letter in "abc")}  # type: ignore[assignment]
            return found

    for check in ("restore", "fork", "snapshot"):
        assert "state.guesses.lines" in run_check(check, Holds).detail
