"""The tokens of a query, so that two spellings of one query can be told from two queries."""

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
    """The tokens of ``query`` without comments, spaces and final semicolons; words and quoted names in small letters."""
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
