"""Public names of a package that are imported when they are first asked for (PEP 562)."""

import ast
import importlib
import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from agentenv.syntax_trees import parse_python


def lazy_exports(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package, so that importing it loads none of its modules.

    Its public names are those that it imports under ``TYPE_CHECKING``, where type checkers see them. They are read from its
    source, so that nobody has to list them again, as `lazy_loader` reads them from a stub (SPEC 1).

    Args:
        package: ``__name__`` of the package.
    """

    def getattr_(name: str) -> Any:
        home = _homes(package).get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(home), name)
        setattr(sys.modules[package], name, value)
        return value

    def dir_() -> list[str]:
        return sorted({*vars(sys.modules[package]), *_homes(package)})

    return getattr_, dir_


@cache
def _homes(package: str) -> Mapping[str, str]:
    """For each name that ``package`` imports under ``TYPE_CHECKING`` the module that defines it."""
    loader: Any = sys.modules[package].__loader__
    body = parse_python(loader.get_source(package)).body
    blocks = [node for node in body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    lines = [line for block in blocks for line in block.body if isinstance(line, ast.ImportFrom)]
    return {alias.name: str(line.module) for line in lines for alias in line.names}
