"""Python values as JSON that says what they were: only exact builtin types survive the wall.

``dump`` runs in the program's own process and is not trusted; ``load`` runs in the trusted parent and builds nothing but
builtin objects, so comparing what it returns calls no method of the program's.
"""

from typing import Any

MAX_ITEMS = 200_000
_ATOMS = (type(None), bool, int, str)


class NotPlain(Exception):
    """A value that is no builtin one, or too large."""


def dump(value: Any) -> Any:
    """``value`` as a JSON document.

    Instances of subclasses (a Counter, a named tuple, a numpy float) become the builtin value inside them.

    Raises:
        NotPlain: anything else, or more than ``MAX_ITEMS`` items.
    """
    return _dump(value, [MAX_ITEMS])


def _dump(value: Any, room: list[int]) -> Any:
    room[0] -= 1
    if room[0] < 0:
        raise NotPlain(f"more than {MAX_ITEMS} items")
    kind = type(value)
    if kind in _ATOMS:
        return {"i": hex(value)} if kind is int and abs(value) >= 1 << 53 else value
    if isinstance(value, float):
        return {"f": float.__repr__(value)}
    if isinstance(value, list):
        return {"l": [_dump(item, room) for item in list.__iter__(value)]}
    if isinstance(value, tuple):
        return {"t": [_dump(item, room) for item in tuple.__iter__(value)]}
    if isinstance(value, dict):
        return {"d": [[_dump(key, room), _dump(item, room)] for key, item in dict.items(value)]}
    return _dump_rare(value, room)


def _dump_rare(value: Any, room: list[int]) -> Any:
    if isinstance(value, (set, frozenset)):
        kind: Any = set if isinstance(value, set) else frozenset
        return {"s" if kind is set else "z": [_dump(item, room) for item in kind.__iter__(value)]}
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
    raise NotPlain(f"{type(value).__name__} is no builtin type")


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
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise NotPlain(f"no document of a plain value: {error}") from error


_LOADERS: dict[str, Any] = {
    "i": lambda body: int(body, 16),
    "f": float,
    "l": lambda body: [load(item) for item in body],
    "t": lambda body: tuple(load(item) for item in body),
    "d": lambda body: {load(key): load(item) for key, item in body},
    "s": lambda body: {load(item) for item in body},
    "z": lambda body: frozenset(load(item) for item in body),
    "b": bytes.fromhex,
    "c": lambda body: complex(float.fromhex(body[0]), float.fromhex(body[1])),
    "r": lambda body: range(*body),
}
