"""Public names of a package that are imported when they are first asked for (PEP 562)."""

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_exports(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package, so that importing it loads none of its modules.

    A package also imports the same names under ``TYPE_CHECKING``, where type checkers see them.

    Args:
        package: ``__name__`` of the package.
        homes: For each module the public names that it defines, with spaces between them.
    """
    home_of = {name: module for module, names in homes.items() for name in names.split()}

    def getattr_(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(home_of[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    def dir_() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home_of})

    return getattr_, dir_
