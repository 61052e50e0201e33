"""Uses of an environment that are refused or work, and say why: reset options, steps after close, pickling."""

import copy
import pickle
import re
from collections.abc import Callable
from contextlib import closing
from inspect import Parameter
from typing import Any, Protocol

import pytest

from agentenv.core.env import Env
from agentenv.core.env_options import (
    check_declarations,
    check_reset_options,
    checked_arguments,
    parameters_of,
)
from agentenv.core.registry import env_class, registered
from agentenv.core.types import Task
from agentenv.envs.calculator import Calculator
from agentenv.envs.code import Code
from agentenv.envs.search.local_search import LocalSearch
from agentenv.envs.sql import Sql
from agentenv.errors import ConfigurationError, EpisodeOver, MissingExtra, UnknownName
from agentenv.sandbox.fakes import FakeExecutor

MAKES: list[Callable[[], Env[Any]]] = [Calculator, LocalSearch, lambda: Code(executor=FakeExecutor()), Sql]


@pytest.mark.parametrize("make", MAKES, ids=["Calculator", "LocalSearch", "Code", "Sql"])
def test_reset_takes_a_task_and_what_is_declared_and_nothing_else(make: Callable[[], Env[Any]]) -> None:
    env = make()
    with pytest.raises(UnknownName, match="'task'"):
        env.reset(options={"tsk": None})
    for wrong in ("abc", {"id": "x"}, 3):
        with pytest.raises(ConfigurationError, match="'task'"):
            env.reset(options={"task": wrong})
    with pytest.raises(ConfigurationError, match="dict"):
        env.reset(options=["task"])  # type: ignore[arg-type]
    env.reset(seed=0, options={"task": None})
    env.close()


def test_a_long_value_is_not_printed_in_full() -> None:
    with pytest.raises(ConfigurationError) as error:
        Calculator().reset(options={"task": "x" * 100_000})
    assert len(str(error.value)) < 200


@pytest.mark.parametrize("make", MAKES, ids=["Calculator", "LocalSearch", "Code", "Sql"])
def test_a_closed_environment_does_not_step_until_it_is_reset(make: Callable[[], Env[Any]]) -> None:
    env = make()
    env.reset(seed=0)
    env.close()
    with pytest.raises(EpisodeOver, match="closed"):
        env.step("x")
    env.reset(seed=0)
    assert env.step("x").info["turn"] == 1
    env.close()


def test_environments_can_be_pickled_in_the_middle_of_an_episode() -> None:
    for make in (LocalSearch,):
        env = make()
        env.reset(seed=3)
        twin = pickle.loads(pickle.dumps(env))
        actions = env.expert() or ()
        assert [env.step(action)[:3] for action in actions] == [twin.step(action)[:3] for action in actions]


def test_an_environment_over_processes_says_which_part_cannot_be_pickled() -> None:
    with closing(Sql()) as env:
        env.reset(seed=0)
        with pytest.raises(pickle.PicklingError, match=r"Sql.*_reader"):
            pickle.dumps(env)


def test_a_part_that_cannot_be_pickled_is_named() -> None:
    env = LocalSearch(count_tokens=lambda text: 1)
    with pytest.raises(pickle.PicklingError, match=r"LocalSearch.*: its search"):
        pickle.dumps(env)
    env.reset(seed=0)
    for twin in (copy.copy(env), copy.deepcopy(env)):  # neither needs it
        assert twin.state.task == env.state.task
    assert copy.deepcopy(env).state is not env.state


def test_a_task_is_taken() -> None:
    env = Calculator()
    _, info = env.reset(options={"task": Task("mine", "1 + 1", ("2",))})
    assert info["task_id"] == "mine"


@pytest.mark.parametrize("name", [name for name in registered() if name.startswith("agentenv/")])
def test_every_option_of_every_environment_can_be_checked(name: str) -> None:
    """Its default is taken, and of a value of no sensible type no more is said than that it is refused."""
    try:
        cls = env_class(name)
    except MissingExtra as error:
        pytest.skip(str(error))
    found = dict[str, Parameter]()
    for _, parameter in parameters_of(cls):  # the nearest class first
        if parameter.kind not in (Parameter.VAR_KEYWORD, Parameter.VAR_POSITIONAL):
            found.setdefault(parameter.name, parameter)
    for parameter in found.values():
        if parameter.default is not Parameter.empty:
            checked_arguments(cls, name, {parameter.name: parameter.default})
        try:
            checked_arguments(cls, name, {parameter.name: object()})
        except ConfigurationError as error:
            assert parameter.name in str(error)  # noqa: PT017


def test_a_reranker_of_no_sensible_type_is_refused() -> None:
    cls = env_class("agentenv/HierarchicalSearch-v0")
    assert checked_arguments(cls, "search", {"reranker": "cross:x"}) == {"reranker": "cross:x"}
    with pytest.raises(ConfigurationError, match="reranker"):
        checked_arguments(cls, "search", {"reranker": 3})


def test_an_option_of_another_type_is_named_with_the_type_that_it_should_have() -> None:
    cls = env_class("agentenv/LocalSearch-v0")
    with pytest.raises(ConfigurationError, match="integer") as refused:
        checked_arguments(cls, "search", {"k": "three"})
    assert all(word in str(refused.value) for word in ("search", "k", "'three'"))


def test_an_option_that_may_be_what_nobody_can_ask_for_stays_as_it_is() -> None:
    class Opaque(Protocol):
        def use(self) -> int: ...

    class Taking:
        def __init__(self, *, what: str | Opaque = "") -> None: ...

    Taking.__init__.__annotations__["what"] = str | Opaque
    assert checked_arguments(Taking, "taking", {"what": 3}) == {"what": 3}


def test_what_is_said_of_an_option_of_reset_names_it_and_the_environment() -> None:
    known = {"size": int, "names": tuple[str, ...]}
    check_reset_options("mine", known, {"size": "3", "names": ["a"], "task": Task("t", "q")})
    check_reset_options("mine", known, None)
    with pytest.raises(ConfigurationError, match=r"'size' of reset\(\) of mine: .*integer.*'many'"):
        check_reset_options("mine", known, {"size": "many"})
    with pytest.raises(UnknownName, match=r"reset\(\) of mine.*'siz'.*'size'"):
        check_reset_options("mine", known, {"siz": 3})
    with pytest.raises(ConfigurationError, match=r"reset\(\) of mine.*\[1\]"):
        check_reset_options("mine", known, [1])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("scorers", ()),
        ("scorers", "em"),
        ("stop", "</a>"),
        ("stop", ("",)),
        ("stop", (1,)),
        ("call_markers", None),
    ],
)
def test_texts_that_a_class_declares_are_tuples_of_texts(name: str, value: Any) -> None:
    class Declares:
        scorers: Any = ("em_squad",)
        stop: Any = ()
        call_markers: Any = ("<a>",)

    check_declarations(Declares)
    setattr(Declares, name, value)
    with pytest.raises(ConfigurationError, match=rf"Declares\.{name} is {re.escape(repr(value))};"):
        check_declarations(Declares)


class Base:
    def __init__(self, plain: int, *, kept: float = 0.5, hidden: Any = None) -> None: ...


class Between(Base):
    """Has no constructor of its own."""


class HandsOn(Between):
    def __init__(self, *, kept: str = "", **more: Any) -> None: ...


class TakesAnything:
    def __init__(self, *args: Any, known: int = 1, **more: Any) -> None: ...


def test_arguments_are_those_of_a_class_and_of_those_to_which_it_hands_on() -> None:
    assert [(base.__name__, parameter.name) for base, parameter in parameters_of(HandsOn)] == [
        ("HandsOn", "kept"),
        ("HandsOn", "more"),
        ("Base", "plain"),
        ("Base", "kept"),
        ("Base", "hidden"),
    ]
    assert [parameter.name for _, parameter in parameters_of(Between)] == ["plain", "kept", "hidden"]
    given = {"plain": "3", "kept": "0.25", "hidden": object}
    assert checked_arguments(HandsOn, "mine", given) == {"plain": 3, "kept": "0.25", "hidden": object}
    assert checked_arguments(Between, "mine", given)["kept"] == 0.25
    with pytest.raises(UnknownName, match=r"mine.*'kep'.*'kept'"):
        checked_arguments(HandsOn, "mine", {"kep": 1})
    assert checked_arguments(TakesAnything, "mine", {"known": "2", "other": 3}) == {"known": 2, "other": 3}
    with pytest.raises(ConfigurationError, match=r"'plain' of mine: .*'many'"):
        checked_arguments(HandsOn, "mine", {"plain": "many"})


def test_an_option_without_a_type_takes_anything() -> None:
    class Untyped(Calculator):
        def __init__(self, *, shape=None, most: int = 3) -> None:  # type: ignore[no-untyped-def]
            super().__init__()
            self.shape, self.most = shape, most

    for value in ("round", 7, [1, "a"], None):
        assert checked_arguments(Untyped, "mine", {"shape": value}) == {"shape": value}
    assert checked_arguments(Untyped, "mine", {"most": "4"}) == {"most": 4}
    with pytest.raises(ConfigurationError, match=r"'most' of mine.*'x'"):
        checked_arguments(Untyped, "mine", {"most": "x"})
