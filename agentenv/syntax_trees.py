"""Syntax trees of Python text, in spite of an error that older interpreters raise by chance.

CPython before 3.11.8 and 3.12.2 counts how deep the tree is that it builds in one place for all that parse: where garbage is
collected meanwhile and a finaliser parses as well (every traceback that is printed does), or where another thread does, it
raises ``SystemError: AST constructor recursion depth mismatch`` for a text that is all right (CPython issue 106905).
"""

import ast
from typing import Any

_ATTEMPTS = 5


def parse_python(source: str) -> ast.Module:
    """The statements of ``source``.

    Raises:
        SyntaxError: as ``ast.parse`` does, and ValueError, RecursionError and MemoryError as well.
    """
    module: ast.Module = _parse(source, "exec")
    return module


def parse_expression(source: str) -> ast.expr:
    """The one expression that ``source`` is.

    Raises:
        SyntaxError: as ``ast.parse`` does, and ValueError, RecursionError and MemoryError as well.
    """
    body: ast.expr = _parse(source, "eval").body
    return body


def _parse(source: str, mode: str) -> Any:
    for _ in range(_ATTEMPTS - 1):
        try:
            return ast.parse(source, mode=mode)
        except SystemError:  # of what else was parsed meanwhile, which the next attempt does not meet again
            continue
    return ast.parse(source, mode=mode)


__all__ = ["parse_expression", "parse_python"]
