"""Encodes Python values as JSON with their types; only exact builtin types can leave the jail.

``dump`` runs in the untrusted process of the program. ``load`` runs in the trusted parent and creates only builtin objects,
so comparing its results never calls a method of the program.
"""

import json
import sys
from collections import Counter, deque
from collections.abc import ItemsView, Iterator, KeysView, Sequence, ValuesView
from typing import Any

MAX_ITEMS = 200_000
MARKS = '"[{:,'
MAX_MARKS = 12 * MAX_ITEMS
"""Largest number of characters of ``MARKS`` outside of texts. ``dump`` never writes more, and each costs memory to
decode."""
MAX_SAME_HASH = 64
"""Largest number of different values with one hash in a set or dict, because filling it takes quadratic time."""
MAX_COMPARISONS = 8 * MAX_ITEMS
"""Largest number of comparisons of numbers and texts with equal hashes for filling all sets and dicts of a document."""
_ATOMS = (type(None), bool, int, str)
_SIZED = (ValuesView, deque)
_VIEWS = (KeysView, ItemsView)
"""Types that equal sets."""
_ITERATED_TYPES = (Iterator, *_VIEWS, *_SIZED)
"""Types that equal no list; a test that expects a list, set or similar converts them to one."""


class NotPlain(Exception):
    """The value is not of a builtin type, or is too large."""


def dump(value: Any, *, returned: bool = False) -> Any:
    """Encodes ``value`` as a JSON document.

    Instances of subclasses (a Counter, a named tuple) and numbers of numpy become the builtin values that they contain.

    Args:
        value: The value to send.
        returned: Whether a function returned it. Generators and other iterators then become iterators of their items, a
            deque and the views of a dict become views, and decimals and fractions become exact numbers. Arguments cannot be
            any of these, because they are sent once for every program.

    Raises:
        NotPlain: it is anything else, or has more than ``MAX_ITEMS`` items.
    """
    return _dump(value, [MAX_ITEMS], _ITERATED_TYPES if returned else ())


def _dump(value: Any, room: list[int], through: Any) -> Any:
    room[0] -= 1
    if room[0] < 0:
        raise NotPlain(f"more than {MAX_ITEMS} items")
    kind = type(value)
    if kind in _ATOMS:
        return {"i": hex(value)} if kind is int and abs(value) >= 1 << 53 else value
    if isinstance(value, float):
        return {"f": float.__repr__(value)}
    if isinstance(value, list):
        return {"l": [_dump(item, room, through) for item in list.__iter__(value)]}
    if isinstance(value, tuple):
        return {"t": [_dump(item, room, through) for item in tuple.__iter__(value)]}
    if isinstance(value, dict):
        return {
            "d": [[_dump(key, room, through), _dump(item, room, through)] for key, item in dict.items(value)]
        }
    return _dump_rare(value, room, through)


def _dump_rare(value: Any, room: list[int], through: Any) -> Any:
    if isinstance(value, (set, frozenset)):
        kind: Any = set if isinstance(value, set) else frozenset
        return {"s" if kind is set else "z": [_dump(item, room, through) for item in kind.__iter__(value)]}
    if isinstance(value, (bytes, bytearray)):
        whole: Any = bytes.__getitem__ if isinstance(value, bytes) else bytearray.__getitem__
        return {"b": bytes(whole(value, slice(None))).hex()}
    if isinstance(value, complex):
        return {"c": [complex.__getattribute__(value, part).hex() for part in ("real", "imag")]}
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return {"i": hex(int.__int__(value))}
    if type(value) is range:
        return {"r": [value.start, value.stop, value.step]}
    if through and (exact := _dump_exact(value)):
        return exact
    if through and isinstance(value, _VIEWS):
        return {"k" if isinstance(value, KeysView) else "j": [_dump(item, room, through) for item in value]}
    if isinstance(value, through):
        return {"q" if isinstance(value, _SIZED) else "g": [_dump(item, room, through) for item in value]}
    number = getattr(sys.modules.get("numpy"), "generic", ())
    if isinstance(value, number) and not isinstance(inner := value.item(), number):
        return _dump(inner, room, through)
    raise NotPlain(f"{type(value).__name__} is no builtin type")


def _dump_exact(value: Any) -> Any:
    """Encodes a decimal or a fraction; returns None for anything else."""
    # A program that has such a value has imported its module.
    decimal: Any = getattr(sys.modules.get("decimal"), "Decimal", ())
    fraction: Any = getattr(sys.modules.get("fractions"), "Fraction", ())
    if isinstance(value, decimal):
        return {"m": decimal.__str__(value)}
    if isinstance(value, fraction):
        return {"p": [hex(value.numerator), hex(value.denominator)]}
    return None


def decode(line: str) -> Any:
    """Parses the document that a program's process wrote, if it is not larger than what ``dump`` may write.

    Raises:
        NotPlain: it is larger, or not JSON.
    """
    if _count_marks(line) > MAX_MARKS:
        bare = line.replace("\\\\", "").replace('\\"', "")
        if bare.count('"') > MAX_MARKS or _count_marks('""'.join(bare.split('"')[::2])) > MAX_MARKS:
            raise NotPlain(f"more than {MAX_ITEMS} items")
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise NotPlain(f"no JSON: {error}") from error


def _count_marks(text: str) -> int:
    return sum(map(text.count, MARKS))


def apart(values: Sequence[Any], room: list[int] | None = None) -> Sequence[Any]:
    """Returns ``values`` if they can be put into a set in reasonable time.

    Args:
        values: Hashable values.
        room: The number of comparisons left, which is decreased; None allows ``MAX_COMPARISONS``.

    Raises:
        NotPlain: too many different values have the same hash, or comparing them takes too long; no honest program causes
            this.
    """
    counts = Counter(map(hash, values))
    if len(counts) == len(values):
        return values
    left = [MAX_COMPARISONS] if room is None else room
    by_hash: dict[int, list[Any]] = {code: [] for code, count in counts.items() if count > 1}
    for value in values:
        known = by_hash.get(hash(value))
        if known is not None and not _is_in(value, known, left):
            known.append(value)
            if len(known) > MAX_SAME_HASH:
                raise NotPlain(f"more than {MAX_SAME_HASH} values of one hash")
    return values


def _is_in(value: Any, known: list[Any], room: list[int]) -> bool:
    cost = _cost(value, room)
    for one in known:
        room[0] -= cost
        if room[0] < 0:
            raise NotPlain(f"more than {MAX_COMPARISONS} comparisons of values of one hash")
        if one == value:
            return True
    return False


def _cost(value: Any, room: list[int]) -> int:
    """Returns the largest number of comparisons of numbers and texts needed to compare ``value`` with an equal hash."""
    if not isinstance(value, (tuple, frozenset)):
        return 1
    room[0] -= len(value)  # the cost of this count, which is made once for each enclosing container
    costs = [_cost(item, room) for item in value]
    if isinstance(value, tuple):
        return 1 + sum(costs)
    # A frozen set inside another one is compared again for each member with its hash, at every depth.
    same = Counter(map(hash, value))
    return 1 + sum(cost * same[hash(item)] for item, cost in zip(value, costs, strict=True))


def load(document: Any, room: list[int] | None = None) -> Any:
    """Decodes a value.

    Args:
        document: A document of ``dump``.
        room: See ``apart``; for all sets and dicts of the document together.

    Raises:
        NotPlain: the document is not one that ``dump`` writes.
    """
    if type(document) in _ATOMS:
        return document
    if not (isinstance(document, dict) and len(document) == 1):
        raise NotPlain("no document of a plain value")
    ((tag, body),) = document.items()
    try:
        return _LOADERS[tag](body, [MAX_COMPARISONS] if room is None else room)
    except (LookupError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise NotPlain(f"no document of a plain value: {error}") from error


def _all(bodies: list[Any], room: list[int]) -> list[Any]:
    return [load(body, room) for body in bodies]


def _dict(pairs: list[Any], room: list[int]) -> dict[Any, Any]:
    keys = apart(_all([key for key, _ in pairs], room), room)
    return dict(zip(keys, _all([item for _, item in pairs], room), strict=True))


def _decimal(text: Any) -> Any:
    # imported here, because it would delay programs in a jail
    from agentenv.sandbox.jail import exact_numbers

    return exact_numbers.decimal(text)


def _fraction(body: Any) -> Any:
    from agentenv.sandbox.jail import exact_numbers

    return exact_numbers.fraction(*body)


_LOADERS: dict[str, Any] = {
    "i": lambda body, room: int(body, 16),
    "f": lambda body, room: float(body),
    "l": _all,
    "t": lambda body, room: tuple(_all(body, room)),
    "d": _dict,
    "s": lambda body, room: set(apart(_all(body, room), room)),
    "g": lambda body, room: iter(_all(body, room)),
    "q": lambda body, room: dict(enumerate(_all(body, room))).values(),
    "k": lambda body, room: dict.fromkeys(apart(_all(body, room), room)).keys(),
    "j": lambda body, room: _dict([pair["t"] for pair in body], room).items(),
    "m": lambda body, room: _decimal(body),
    "p": lambda body, room: _fraction(body),
    "z": lambda body, room: frozenset(apart(_all(body, room), room)),
    "b": lambda body, room: bytes.fromhex(body),
    "c": lambda body, room: complex(float.fromhex(body[0]), float.fromhex(body[1])),
    "r": lambda body, room: range(*body),
}
