"""Digests: they change with the content, and with nothing else."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from agentenv.core.io.digests import file_digest, file_digests, path_digest, path_state, value_digest
from agentenv.core.types import Task

MIB = 1 << 20


def test_a_file_is_told_by_its_content_and_not_by_its_date(tmp_path: Path) -> None:
    """The SHA-256 of "abc" is that of FIPS 180-2, appendix B.1."""
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    assert file_digest(path) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    before = path.stat()
    path.write_bytes(b"abd")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file_digest(path) != "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


@pytest.mark.parametrize("place", [0, 8 * MIB - 1])
def test_a_large_file_is_told_by_its_ends(tmp_path: Path, place: int) -> None:
    path = tmp_path / "a"
    path.write_bytes(bytes(8 * MIB))
    before = file_digest(path, whole=4 * MIB)
    with path.open("r+b") as file:
        file.seek(place)
        file.write(b"1")
    assert file_digest(path, whole=4 * MIB) != before


def test_a_large_file_is_told_by_its_size(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(bytes(8 * MIB))
    before = file_digest(path, whole=2 * MIB)
    path.write_bytes(bytes(9 * MIB))
    assert file_digest(path, whole=2 * MIB) != before


def test_a_folder_is_told_by_names_and_contents(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "a").write_text("1")
    (tmp_path / "b").write_text("2")
    before = path_digest(tmp_path)
    assert list(file_digests(tmp_path)) == ["b", "inner/a"]
    (tmp_path / ".hidden").write_text("3")
    assert path_digest(tmp_path) == before
    (tmp_path / "b").rename(tmp_path / "c")
    assert path_digest(tmp_path) != before
    with pytest.raises(OSError, match="nowhere"):
        path_digest(tmp_path / "nowhere")


@dataclass
class Held:
    """A value within a value."""

    number: float


def test_a_value_is_told_by_all_that_is_in_it() -> None:
    def task(number: float = 1.0, ids: tuple[str, ...] = ("d1",)) -> Task:
        data = {"supporting_ids": ids, "held": Held(number), "of": {"b", "a"}, "raw": b"1", "at": Path("x")}
        return Task("t", "q", ("a",), "dev", data)

    assert value_digest(task()) == value_digest(task())
    assert len({value_digest(task()), value_digest(task(2.0)), value_digest(task(ids=("d2",)))}) == 3


def test_a_path_stands_for_the_content_there(tmp_path: Path) -> None:
    """The databases of SQL tasks lie in a temporary folder of each process."""
    for name, content in (("a", "1"), ("b", "1"), ("c", "2")):
        (tmp_path / name).write_text(content)
    a, b, c = (value_digest({"file": tmp_path / name}) for name in "abc")
    assert a == b != c


def test_equal_values_agree_between_processes() -> None:
    program = "from agentenv.core.io.digests import value_digest; print(value_digest({'a': {'x', 'y', 'z'}, 'b': object()}))"
    told = {
        subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            check=True,
            text=True,
            env=os.environ | {"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(told) == 1


def test_the_state_of_a_folder_is_another_one_after_every_change(tmp_path: Path) -> None:
    assert path_state(tmp_path / "nothing") == ()
    inner = tmp_path / "model" / "part"
    inner.mkdir(parents=True)
    (inner / "weights").write_bytes(b"1234")
    states = [path_state(tmp_path / "model")]
    assert path_state(tmp_path / "model") == states[0]
    assert path_state(inner / "weights") == states[0]
    (inner / "weights").write_bytes(b"12345")
    states.append(path_state(tmp_path / "model"))
    (tmp_path / "other").write_bytes(b"12345")
    (tmp_path / "other").replace(inner / "weights")
    states.append(path_state(tmp_path / "model"))
    (inner / "weights").unlink()
    states.append(path_state(tmp_path / "model"))
    assert len(set(states)) == 4
