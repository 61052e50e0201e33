"""Covers the spelling of switches, which is the same for the flags of every command and for the settings of a training."""

import importlib
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest
import tyro

from agentenv.cli.main import COMMANDS, _parse
from agentenv.cli.switches import joined_lists, plain_switches
from agentenv.cli.train import Train
from agentenv.core.values import read_options
from agentenv.errors import ConfigurationError
from agentenv.trainers.config.config_files import load_config, override

ON = (["--SWITCH"], ["--SWITCH", "true"], ["--SWITCH", "True"], ["--SWITCH=TRUE"])
OFF = (["--no-SWITCH"], ["--SWITCH", "false"], ["--SWITCH", "False"], ["--SWITCH=FALSE"])
NEEDED = {
    "check": ["x"],
    "world": ["--out", "x"],
    "score": ["x", "x"],
    "report": ["x"],
    "simulator serve": ["x"],
    "eval": ["--out", "x"],
    "rescore": ["x"],
    "warmstart": ["--out", "x"],
    "serve": ["x"],
    "lab run": ["x"],
    "synthesize fictional-hot": ["--dataset", "x", "--out", "x"],
    "synthesize organisation": ["--out", "x"],
    "trace": ["x", "--out", "x"],
    "value": ["x", "--out", "x"],
}


def _class(command: str) -> Any:
    module, _, name = COMMANDS[command].target.partition(":")
    return getattr(importlib.import_module(module), name)


SWITCHES = [
    (command, name)
    for command in COMMANDS
    if not hasattr(_class(command), "parse")
    for name, hint in get_type_hints(_class(command)).items()
    if hint in (bool, bool | None)
]
LISTS = [
    (command, name)
    for command in COMMANDS
    if not hasattr(_class(command), "parse")
    for name, hint in get_type_hints(_class(command), include_extras=True).items()
    if hint == tuple[str, ...] or (get_origin(hint) is Annotated and get_args(hint)[0] == tuple[str, ...])
    if tyro.conf.Positional not in getattr(hint, "__metadata__", ())
]


def test_the_commands_have_switches() -> None:
    assert {"eval", "rescore", "warmstart", "serve"} <= {command for command, _ in SWITCHES}


@pytest.mark.parametrize(("command", "name"), SWITCHES)
def test_every_switch_of_every_command_has_every_spelling(command: str, name: str) -> None:
    for flag in {name, name.replace("_", "-")}:
        for spellings, wanted in ((ON, True), (OFF, False)):
            for words in spellings:
                argv = [*NEEDED[command], *(word.replace("SWITCH", flag) for word in words)]
                assert getattr(_parse(command, _class(command), argv), name) is wanted, argv


@pytest.mark.parametrize(("command", "name"), LISTS)
def test_every_flag_that_takes_several_values_may_be_given_several_times(command: str, name: str) -> None:
    flag = f"--{name.replace('_', '-')}"
    argv = [*NEEDED.get(command, []), flag, "a", flag, "b", f"{flag}=c"]
    assert getattr(_parse(command, _class(command), argv), name) == ("a", "b", "c")


def test_values_stand_behind_the_first_flag_of_their_name() -> None:
    words = [
        "env",
        "--set",
        "a=1",
        "--port",
        "3",
        "--set",
        "b=2",
        "c=3",
        "--allow_host",
        "x",
        "--set=d=4",
        "--wait",
        "5",
    ]
    wanted = ["env", "--set", "a=1", "b=2", "c=3", "d=4", "--port", "3", "--allow-host", "x", "--wait", "5"]
    assert joined_lists(words, ["set", "allow_host"]) == wanted
    assert joined_lists(wanted, ["set", "allow_host"]) == wanted


def test_settings_of_a_training_have_them_too() -> None:
    base = load_config("laptop-search")
    for words in (["--evaluation.bounds"], *([f"--evaluation.bounds{w}"] for w in ("=true", "=True"))):
        assert override(base, words).evaluation.bounds is True
    for word in ("false", "False", "FALSE"):
        assert override(base, ["--evaluation.bounds", word]).evaluation.bounds is False
    assert override(base, ["--evaluation.no-bounds", "--seed", "3"]).evaluation.bounds is False
    assert override(base, ["--env.options.flag", "False"]).env.options["flag"] is False
    for words in (["--seed"], ["--no-seed"], ["--evaluation.no-bound"]):
        with pytest.raises(ConfigurationError, match=words[0].lstrip("-").replace("no-", "")):
            override(base, words)


def test_so_does_the_plan() -> None:
    assert [Train.parse(["laptop-search", *words]).plan for words in (["--plan"], ["--plan", "True"])] == [
        True
    ] * 2
    assert not Train.parse(["laptop-search", "--plan=false"]).plan


def test_an_option_of_an_environment_that_says_false_is_not_a_text_that_counts_as_true() -> None:
    assert read_options(["a=False", "b=true", "c=3", "d=x"]) == {"a": False, "b": True, "c": 3, "d": "x"}


def test_a_word_after_another_flag_stays_a_word() -> None:
    words = ["--out", "true", "false", "--name=true", "--bounds", "runs/x", "--bounds=maybe"]
    assert plain_switches(words, ["bounds"]) == words
