"""Words of the command line that mean the same in every command, in whatever way they are written.

``--bounds true|false`` is ``--bounds`` or ``--no-bounds``, and ``--set A --set B`` is ``--set A B``.
"""

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


def joined_lists(argv: Sequence[str], names: Collection[str]) -> list[str]:
    """``argv`` with all values of a flag that takes several behind its first one; the parser keeps those of the last alone.

    Args:
        argv: the words of a command line.
        names: the flags that take several values, without dashes before them.
    """
    lists = {f"--{name.replace('_', '-')}" for name in names}
    parts: dict[str, list[str]] = {}
    rest: list[list[str]] = [[]]
    current = rest[0]
    for word in argv:
        flag, equals, value = word.partition("=")
        flag = flag.replace("_", "-")
        if flag in lists:
            if flag not in parts:
                parts[flag] = [flag]
                rest += [parts[flag], []]
            current = parts[flag]
            current += [value] if equals else []
        else:
            current = rest[-1] if word.startswith("--") else current
            current.append(word)
    return [word for part in rest for word in part]
