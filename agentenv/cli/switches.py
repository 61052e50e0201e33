"""Switches of the command line: ``--bounds``, ``--no-bounds`` and ``--bounds true|false`` mean the same in every command."""

from collections.abc import Collection, Sequence

from agentenv.core.values import read_switch


def plain_switches(argv: Sequence[str], names: Collection[str]) -> list[str]:
    """``argv`` with ``--NAME true`` and ``--NAME=false`` written as ``--NAME`` and ``--no-NAME``.

    Args:
        argv: the words of a command line.
        names: the switches of the command, without dashes before them.
    """
    switches = {f"--{name.replace('_', '-')}" for name in names}
    words: list[str] = []
    for word in argv:
        flag, equals, joined = word.partition("=")
        if equals and _plain(flag) in switches and (value := read_switch(joined)) is not None:
            words.append(_written(flag, value))
        elif words and _plain(words[-1]) in switches and (value := read_switch(word)) is not None:
            words[-1] = _written(words[-1], value)
        else:
            words.append(word)
    return words


def _plain(flag: str) -> str:
    return flag.replace("_", "-")


def _written(flag: str, value: bool) -> str:
    return _plain(flag) if value else f"--no-{_plain(flag).removeprefix('--')}"
