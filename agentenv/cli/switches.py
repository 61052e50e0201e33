"""Switches of the command line: ``--bounds``, ``--no-bounds`` and ``--bounds true|false`` mean the same in every command."""

from collections.abc import Collection, Sequence

from agentenv.core.values import read_switch


def plain_switches(argv: Sequence[str], names: Collection[str], undecided: Collection[str] = ()) -> list[str]:
    """``argv`` with ``--NAME true`` and ``--NAME=false`` written as ``--NAME`` and ``--no-NAME``.

    Args:
        argv: the words of a command line.
        names: the switches of the command, without dashes before them.
        undecided: those whose default is None. The parser wants them with a value: ``--NAME True``.
    """
    switches = {f"--{name.replace('_', '-')}" for name in names}
    valued = {f"--{name.replace('_', '-')}" for name in undecided}
    words: list[str] = []
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        flag, equals, joined = word.partition("=")
        flag = flag.replace("_", "-")
        off = f"--{flag.removeprefix('--no-')}" if flag.startswith("--no-") else ""
        if off in valued and not equals:
            words += [off, "False"]
            continue
        if flag not in switches | valued:
            words.append(word)
            continue
        said = read_switch(joined if equals else rest[0] if rest else "")
        if said is None and equals:
            words.append(word)  # the parser says what is wrong with it
            continue
        if said is not None and not equals:
            rest.pop(0)
        value = said is not False
        words += (
            [flag, str(value)] if flag in valued else [flag if value else f"--no-{flag.removeprefix('--')}"]
        )
    return words
