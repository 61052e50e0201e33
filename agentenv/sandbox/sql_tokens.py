"""The tokens of a query, by which two spellings of the same query are recognised as equal."""

import re

_TOKENS = re.compile(
    r"""(?P<comment>--[^\n]* | /\*.*?(?:\*/|\Z))
      | (?P<text>'(?:[^']|'')*')
      | (?P<quoted>"(?:[^"]|"")*" | `[^`]*` | \[[^\]]*(?:\]|\Z))
      | (?P<word>[^\W\d]\w* | \d[\w.]* | \.\d\w*)
      | (?P<sign><=|>=|<>|!=|==|\|\||\S)""",
    re.VERBOSE | re.DOTALL,
)


def tokens(query: str) -> tuple[str, ...]:
    """Returns the tokens of ``query``, words in lower case, without comments, spaces and final semicolons."""
    found: list[str] = []
    for piece in _TOKENS.finditer(query):
        if piece["text"] is not None:
            found.append(piece["text"])
        elif piece["quoted"] is not None:
            found.append(piece["quoted"][1:-1].lower())
        elif piece["comment"] is None:
            found.append(piece[0].lower())
    while found and found[-1] == ";":
        found.pop()
    return tuple(found)
