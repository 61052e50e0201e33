"""Registry: ids, late imports, the Gymnasium mirror, third parties, and what each mistake is told."""

import importlib.metadata
import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import agentenv
from agentenv.core import registry
from agentenv.core.types import Message
from agentenv.core.vector import VectorEnv
from agentenv.envs.calculator import Calculator
from agentenv.errors import ConfigurationError, MissingExtra, UnknownName

CALCULATOR = "agentenv.envs.calculator:Calculator"


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_specs", dict(registry._specs))
    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.registry))


def test_make_gives_the_environment_itself() -> None:
    env = agentenv.make("agentenv/Calculator-v0", render_mode="ansi")
    assert type(env) is Calculator
    assert env.render_mode == "ansi"
    assert env.spec is not None
    assert env.spec.id == "agentenv/Calculator-v0"


@pytest.mark.parametrize("id", ["agentenv/Calculator-v0", "agentenv:agentenv/Calculator-v0"])
def test_gymnasium_makes_the_same(id: str) -> None:
    env = gymnasium.make(id)
    assert type(env) is Calculator, "no wrapper stands between the user and time travel"
    env.reset(seed=1)
    assert isinstance(env.unwrapped, agentenv.Env)
    env.unwrapped.restore(env.unwrapped.snapshot())


def test_a_class_is_registered_and_made_as_its_name_is() -> None:
    agentenv.register("mine/Sums-v0", Calculator)
    assert agentenv.spec("mine/Sums-v0").entry_point == CALCULATOR
    assert type(gymnasium.make("mine/Sums-v0")) is type(agentenv.make(Calculator)) is Calculator
    assert agentenv.make_vec(Calculator, 2).num_envs == 2
    mistakes: list[Any] = [Calculator(), dict]
    for wrong in mistakes:
        for call in (agentenv.make, lambda one: agentenv.register("mine/Other-v0", one)):
            with pytest.raises(ConfigurationError, match=r"Calculator|dict"):
                call(wrong)


def test_gymnasium_makes_our_vector_environment() -> None:
    envs = gymnasium.make_vec("agentenv/Calculator-v0", num_envs=3)
    assert type(envs) is VectorEnv
    assert envs.num_envs == 3


def test_gymnasium_plays_environments_in_processes_of_their_own() -> None:
    apart: dict[str, Any] = {"shared_memory": False, "context": "spawn"}
    with closing(
        gymnasium.make_vec(
            "agentenv/Calculator-v0", num_envs=2, vectorization_mode="async", vector_kwargs=apart
        )
    ) as envs:
        observations, _ = envs.reset(seed=1)
        assert [type(messages[0]) for messages in observations] == [Message, Message]
        _, rewards, *_ = envs.step(["<answer>a</answer>", "<answer>b</answer>"])
    assert list(rewards) == [0, 0]


def test_every_entry_is_mirrored_without_step_limit() -> None:
    for id in agentenv.registered():
        mirrored = gymnasium.spec(id)
        assert mirrored.max_episode_steps is None
        assert not mirrored.order_enforce
        assert mirrored.disable_env_checker


def test_an_unknown_id_names_the_nearest() -> None:
    for call in (agentenv.make, agentenv.spec):
        with pytest.raises(UnknownName, match="'agentenv/Calculator-v0'"):
            call("agentenv/Calculater-v0")


OWN = """
from agentenv.envs.calculator import Calculator


class Own(Calculator):
    def neighbour(self):
        import own_neighbour  # imported when it is called, as environments do with what is slow to import

        return own_neighbour.VALUE
"""


def test_module_and_class_in_the_current_folder_work_as_an_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_module.py").write_text(OWN)
    (tmp_path / "own_neighbour.py").write_text("VALUE = 7")
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    monkeypatch.setattr(sys, "path", list(before))
    env = agentenv.make("own_module:Own", render_mode="ansi")
    assert (type(env).__name__, env.render_mode) == ("Own", "ansi")
    assert registry.env_class("own_module:Own") is type(env)
    assert agentenv.spec("own_module:Own").entry_point == "own_module:Own"
    assert agentenv.make_vec("own_module:Own", 2).num_envs == 2
    assert env.neighbour() == 7  # type: ignore[attr-defined]
    # The folder is searched last afterwards: a file called queue.py in it replaces no module of the standard library.
    assert sys.path == [*before, str(tmp_path)]


def test_module_and_class_that_are_not_there_are_told_from_a_misspelt_id() -> None:
    with pytest.raises(ConfigurationError, match="no_such_module"):
        agentenv.make("no_such_module:Maze")
    with pytest.raises(ConfigurationError, match="Nothing"):
        agentenv.make("agentenv.envs.calculator:Nothing")
    with pytest.raises(UnknownName):
        agentenv.make("agentenv/Calculater-v0")


def test_registered_arguments_are_defaults() -> None:
    agentenv.register("test/Shown-v0", CALCULATOR, kwargs={"render_mode": "ansi"})
    assert agentenv.make("test/Shown-v0").render_mode == "ansi"
    assert agentenv.make("test/Shown-v0", render_mode=None).render_mode is None
    assert list(agentenv.registered()) == sorted(agentenv.registered())


def test_the_same_registration_twice_does_nothing_and_another_is_refused() -> None:
    agentenv.register("agentenv/Calculator-v0", CALCULATOR)
    with pytest.raises(ConfigurationError, match="agentenv/Calculator-v0"):
        agentenv.register("agentenv/Calculator-v0", "other:Class")


@pytest.mark.parametrize("id", ["Calculator-v0", "a/b/C-v0", "a/C", "a/C-v", "a C/D-v0", "m:a/C-v0"])
def test_malformed_ids_are_refused(id: str) -> None:
    with pytest.raises(ConfigurationError, match=repr(id)):
        agentenv.register(id, CALCULATOR)


def test_malformed_entry_points_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"'module\.Class'"):
        agentenv.register("test/New-v0", "module.Class")


def test_nothing_is_imported_before_it_is_made() -> None:
    agentenv.register("test/Absent-v0", "no_such_module_anywhere:Class")
    with pytest.raises(ConfigurationError, match="no_such_module_anywhere"):
        agentenv.make("test/Absent-v0")


def test_a_missing_dependency_names_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "needs_much.py").write_text("import no_such_library\n")
    monkeypatch.syspath_prepend(tmp_path)
    agentenv.register("test/Heavy-v0", "needs_much:Class", extra="sandbox")
    with pytest.raises(MissingExtra, match=r"no_such_library.*agentenv-suite\[sandbox\]"):
        agentenv.make("test/Heavy-v0")


@pytest.mark.parametrize(
    ("entry_point", "named"),
    [
        ("agentenv.envs.calculator:Nothing", "calculator:Nothing'"),
        ("agentenv.envs.calculator:Task", "agentenv.envs.calculator:Task"),
    ],
)
def test_an_entry_point_must_lead_to_an_environment(entry_point: str, named: str) -> None:
    agentenv.register("test/Odd-v0", entry_point)
    with pytest.raises(ConfigurationError, match=named):
        agentenv.make("test/Odd-v0")


def test_installed_packages_offer_environments_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [
        importlib.metadata.EntryPoint("acme/Sums-v3", CALCULATOR, registry.ENTRY_POINT_GROUP),
        importlib.metadata.EntryPoint("no id", CALCULATOR, registry.ENTRY_POINT_GROUP),
    ]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: entries)
    with pytest.warns(UserWarning, match="'no id'"):
        registry.discover()
    assert type(gymnasium.make("acme/Sums-v3")) is Calculator


def test_an_installed_package_is_found_when_agentenv_is_imported(tmp_path: Path) -> None:
    info = tmp_path / "acme-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[agentenv.envs]\nacme/Sums-v0 = {CALCULATOR}\n")
    code = "import sys; sys.path.append(sys.argv[1]); import agentenv; agentenv.make('acme/Sums-v0')"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)


def test_a_vector_needs_at_least_one_environment() -> None:
    with pytest.raises(ConfigurationError, match="num_envs=0"):
        agentenv.make_vec("agentenv/Calculator-v0", 0)


def test_a_missing_module_of_ones_own_says_where_it_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=r"folder that holds no_such_module_anywhere"):
        registry.load_own("no_such_module_anywhere:Class", "class")
    (tmp_path / "module_that_needs_another.py").write_text("import no_such_package_anywhere\n")
    with pytest.raises(ConfigurationError, match="'no_such_package_anywhere'") as caught:
        registry.load_own("module_that_needs_another:Class", "class")
    assert "folder" not in str(caught.value)


def test_an_error_is_one_line_with_its_kind_and_the_place_where_it_was_raised(tmp_path: Path) -> None:
    try:
        registry.load_class("no_such_module_anywhere:Class")
    except ConfigurationError as error:
        said = registry.describe_error(error)
    assert said.startswith("ConfigurationError: cannot import no_such_module_anywhere:Class")
    assert said.endswith(")")
    assert "(test_registry.py, line " in said
    assert registry.describe_error(ValueError("two\n  lines")) == "ValueError: two lines"
    assert registry.describe_error(ValueError("x" * 600)) == f"ValueError: {'x' * 500}"
    made = ValueError("wrong was raised from the environment creator for e with kwargs ({})")
    assert registry.describe_error(made) == "ValueError: wrong"


@pytest.mark.parametrize(
    ("code", "named"),
    [
        ("raise ValueError('broken')", r"broken_module.*ValueError: broken \(broken_module\.py, line 1\)"),
        ("import sys\nsys.exit(3)", "broken_module.*SystemExit: 3"),
        ("import agentenv\nagentenv.nothing_such", "broken_module.*nothing_such"),
        ("Class = 3", "broken_module:Class"),
        ("import agentenv.nothing_such", "broken_module:Class.*nothing_such"),
    ],
)
def test_what_a_module_does_when_it_is_imported_is_told(
    code: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_module.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "broken_module", raising=False)
    with pytest.raises(ConfigurationError, match=named):
        registry.load_class("broken_module:Class", extra="web")
    monkeypatch.delitem(sys.modules, "broken_module", raising=False)


def test_an_entry_keeps_what_it_was_registered_with() -> None:
    agentenv.register("test/Kept-v1", CALCULATOR, kwargs={"render_mode": "ansi"}, extra="web")
    entry = agentenv.spec("test/Kept-v1")
    assert (entry.id, entry.entry_point, entry.kwargs, entry.extra) == (
        "test/Kept-v1",
        CALCULATOR,
        {"render_mode": "ansi"},
        "web",
    )
    assert gymnasium.spec("test/Kept-v1").kwargs == {"render_mode": "ansi"}
    with pytest.raises(ConfigurationError, match=CALCULATOR):
        agentenv.register("test/Kept-v1", CALCULATOR)
    assert agentenv.spec("any.module:Class") == registry.EnvSpec("any.module:Class", "any.module:Class")
    assert not registry.is_class("remote:host")
    assert registry.is_remote("remote:host")
    assert not registry.is_class("a b:c")


def test_a_vector_hands_its_arguments_to_every_environment() -> None:
    envs = agentenv.make_vec("agentenv/Calculator-v0", 2, render_mode="ansi")
    assert [env.render_mode for env in envs.envs] == ["ansi", "ansi"]
    assert agentenv.make_vec("agentenv/Calculator-v0", 1).num_envs == 1


@pytest.mark.parametrize("id", ["own_module", "own_module.py"])
def test_a_module_without_its_class_is_told_how_to_name_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, id: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownName, match=re.escape(repr(id))):
        agentenv.spec(id)
    (tmp_path / "own_module.py").write_text(OWN)
    with pytest.raises(ConfigurationError, match=rf"{re.escape(repr(id))}.*own_module:Class") as caught:
        agentenv.spec(id)
    assert not isinstance(caught.value, UnknownName)
