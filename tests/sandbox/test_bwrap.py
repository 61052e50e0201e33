"""Which interpreter programs run in, in jails of bubblewrap."""

import sys
import sysconfig
from pathlib import Path

import pytest

from agentenv.sandbox.bwrap import library_path
from agentenv.sandbox.executor import JailExecutor


def test_programs_run_in_the_interpreter_of_this_process(bwrap: JailExecutor) -> None:
    """Of the same build: the loader takes the shared library that belongs to it, and not one that the system has."""
    found = bwrap.run("import sys\nprint(sys.version)")
    assert found.stdout == f"{sys.version}\n"


@pytest.mark.parametrize(
    ("shared", "prefix", "made", "wanted"),
    [
        (1, "", "lib", "/py/lib"),
        (1, "", "lib64", "/py/lib64"),
        (1, "", "elsewhere", ""),
        (0, "", "lib", ""),
        (1, "/usr", "lib", ""),
    ],
)
def test_a_jail_looks_for_a_shared_interpreter_beside_its_program(
    shared: int, prefix: str, made: str, wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / made).mkdir()
    (tmp_path / made / "libpython3.so.1").touch()
    names = {"Py_ENABLE_SHARED": shared, "INSTSONAME": "libpython3.so.1"}
    monkeypatch.setattr(sysconfig, "get_config_var", names.get)
    monkeypatch.setattr(sys, "base_prefix", prefix or str(tmp_path))
    assert library_path() == ({"LD_LIBRARY_PATH": wanted} if wanted else {})
