"""Python values as JSON that says what they were: only exact builtin types survive the wall.

``dump`` runs in the program's own process and is not trusted; ``load`` runs in the trusted parent and builds nothing but
builtin objects, so comparing what it returns calls no method of the program's.
"""

import json
import sys
from collections import Counter, deque
from collections.abc import ItemsView, Iterator, KeysView, Sequence, ValuesView
from typing import Any

MAX_ITEMS = 200_000
MARKS = '"[{:,'
MAX_MARKS = 12 * MAX_ITEMS
"""Characters of ``MARKS`` outside of texts: no document of ``dump`` has more, and each costs memory to decode."""
MAX_SAME_HASH = 64
"""Different values of one hash that a set or dict may have: beyond, filling it takes the square of their number."""
_ATOMS = (type(None), bool, int, str)
_SIZED = (ValuesView, deque)
_VIEWS = (KeysView, ItemsView)
"""What equals a set."""
_GONE_THROUGH = (Iterator, *_VIEWS, *_SIZED)
"""What equals no list, and becomes one where a test asks for a list, a set or the like of it."""


class NotPlain(Exception):
    """A value that is no builtin one, or too large."""


def dump(value: Any, *, returned: bool = False) -> Any:
    """``value`` as a JSON document.

    Instances of subclasses (a Counter, a named tuple) and numbers of numpy become the builtin value inside them.

    Args:
        value: What is to cross the wall.
        returned: Whether a function returned it. A generator and its like then become an iterator of their items, a deque
            and the views of a dict a view, decimals and fractions exact numbers. Arguments are sent once for every program
            and can be none of these.

    Raises:
        NotPlain: anything else, or more than ``MAX_ITEMS`` items.
    """
    return _dump(value, [MAX_ITEMS], _GONE_THROUGH if returned else ())


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
    """The document of a decimal or a fraction; None of anything else."""
    # A program that has one has imported its module.
    decimal: Any = getattr(sys.modules.get("decimal"), "Decimal", ())
    fraction: Any = getattr(sys.modules.get("fractions"), "Fraction", ())
    if isinstance(value, decimal):
        return {"m": decimal.__str__(value)}
    if isinstance(value, fraction):
        return {"p": [hex(value.numerator), hex(value.denominator)]}
    return None


def decode(line: str) -> Any:
    """The document that a program's process wrote, where it is not larger than any that ``dump`` writes.

    Raises:
        NotPlain: it is larger, or not JSON.
    """
    if _marks(line) > MAX_MARKS:
        bare = line.replace("\\\\", "").replace('\\"', "")
        if bare.count('"') > MAX_MARKS or _marks('""'.join(bare.split('"')[::2])) > MAX_MARKS:
            raise NotPlain(f"more than {MAX_ITEMS} items")
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise NotPlain(f"no JSON: {error}") from error


def _marks(text: str) -> int:
    return sum(map(text.count, MARKS))


def apart(values: Sequence[Any]) -> Sequence[Any]:
    """``values``, which can be put into a set in time.

    Raises:
        NotPlain: many different ones of them have the same hash, which no honest program gives.
    """
    if len(values) <= MAX_SAME_HASH:
        return values
    common = {code for code, count in Counter(map(hash, values)).items() if count > MAX_SAME_HASH}
    by_hash: dict[int, list[Any]] = {code: [] for code in common}
    for value in values if common else ():
        known = by_hash.get(hash(value))
        if known is not None and value not in known:
            known.append(value)
            if len(known) > MAX_SAME_HASH:
                raise NotPlain(f"more than {MAX_SAME_HASH} values of one hash")
    return values


def load(document: Any) -> Any:
    """The value that ``document`` stands for.

    Raises:
        NotPlain: what ``dump`` never writes.
    """
    if type(document) in _ATOMS:
        return document
    if not (isinstance(document, dict) and len(document) == 1):
        raise NotPlain("no document of a plain value")
    ((tag, body),) = document.items()
    try:
        return _LOADERS[tag](body)
    except (LookupError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise NotPlain(f"no document of a plain value: {error}") from error


def _dict(keys: list[Any], items: list[Any]) -> dict[Any, Any]:
    return dict(zip(apart(keys), items, strict=True))


def _items(pairs: list[Any]) -> Any:
    return _dict([key for key, _ in pairs], [item for _, item in pairs]).items()


def _decimal(text: Any) -> Any:
    from agentenv.sandbox.jail import exact_numbers  # not in a jail, whose programs would begin later

    return exact_numbers.decimal(text)


def _fraction(body: Any) -> Any:
    from agentenv.sandbox.jail import exact_numbers

    return exact_numbers.fraction(*body)


_LOADERS: dict[str, Any] = {
    "i": lambda body: int(body, 16),
    "f": float,
    "l": lambda body: [load(item) for item in body],
    "t": lambda body: tuple(load(item) for item in body),
    "d": lambda body: _dict([load(key) for key, _ in body], [load(item) for _, item in body]),
    "s": lambda body: set(apart([load(item) for item in body])),
    "g": lambda body: iter([load(item) for item in body]),
    "q": lambda body: {number: load(item) for number, item in enumerate(body)}.values(),
    "k": lambda body: dict.fromkeys(apart([load(item) for item in body])).keys(),
    "j": lambda body: _items([load(item) for item in body]),
    "m": _decimal,
    "p": _fraction,
    "z": lambda body: frozenset(apart([load(item) for item in body])),
    "b": bytes.fromhex,
    "c": lambda body: complex(float.fromhex(body[0]), float.fromhex(body[1])),
    "r": lambda body: range(*body),
}
