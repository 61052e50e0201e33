"""A plugin of pytest for ``mutants.py``: the tests of a mutant begin with the fastest file and see the usual signals.

A mutant is run until one test fails, so the order decides how long it takes. Files stay together because tests of a file share
what is set up for it. The process in which mutmut runs the tests ignores SIGINT and kills its neighbours on SIGTERM, and a test
of signals would fail there for every mutant.
"""

import signal
from collections import Counter

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Orders the tests by the seconds that mutmut measured for their files, then for themselves."""
    from mutmut.state import state

    seconds: dict[str, float] = state().duration_by_test
    by_file: Counter[str] = Counter()
    for item in items:
        by_file[_file(item)] += seconds.get(item.nodeid, 0.0)  # type: ignore[assignment]
    items.sort(key=lambda item: (by_file[_file(item)], _file(item), seconds.get(item.nodeid, 0.0)))
    if not config.option.collectonly:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]
