"""Digests: they change with the content, and with nothing else."""

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

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


class Holder:
    """Says what it holds."""

    def __init__(self, held: object) -> None:
        self.held = held

    def digest_members(self) -> object:
        return {"held": self.held}


def test_an_object_is_told_by_what_it_says_that_it_holds_and_another_by_its_type() -> None:
    assert value_digest(Holder(1)) == value_digest(Holder(1)) != value_digest(Holder(2))
    assert value_digest(Holder) == value_digest(Holder) != value_digest(Holder(1))
    assert value_digest(object()) == value_digest("builtins.object")
    assert value_digest(Held) != value_digest(Held(1.0))


def test_digests_are_those_of_sha_256(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_bytes(b"1234")
    (tmp_path / ".hidden").write_bytes(b"x")
    (tmp_path / ".folder").mkdir()
    (tmp_path / ".folder" / "c").write_bytes(b"x")
    digest = hashlib.sha256(b"1234").hexdigest()
    assert file_digest(tmp_path / "a" / "b") == digest
    assert file_digests(tmp_path) == {"a/b": digest}
    text = json.dumps({"a/b": digest})
    assert path_digest(tmp_path) == hashlib.sha256(text.encode()).hexdigest() == value_digest({"a/b": digest})
    assert path_digest(tmp_path / "a" / "b") == digest
    assert value_digest({"é": [1, None]}) == hashlib.sha256(b'{"\\u00e9": [1, null]}').hexdigest()
    with pytest.raises(OSError, match="nothing"):
        path_digest(tmp_path / "nothing")


def test_values_that_json_does_not_know_have_a_form() -> None:
    assert value_digest(Held(2.0)) == value_digest({"number": 2.0})
    assert value_digest(MappingProxyType({"a": 1})) == value_digest({"a": 1})
    assert value_digest(b"\x01\xff") == value_digest("01ff")
    assert value_digest(Path("no/such")) == value_digest("no/such")
    assert value_digest({"a", "b"}) == value_digest(frozenset({"b", "a"}))
    assert value_digest({"b": 1, "a": 2}) == value_digest({"a": 2, "b": 1})


def test_a_large_file_is_read_at_its_ends_and_in_between(tmp_path: Path) -> None:
    """Of four blocks of a MiB, three are read where two may be: the first and the last."""
    block = 1 << 20
    path = tmp_path / "large"
    content = b"".join(bytes([n]) * block for n in range(4))
    path.write_bytes(content)
    ends = hashlib.sha256(f"{4 * block}\n".encode() + content[:block] + content[-block:]).hexdigest()
    assert file_digest(path, whole=2 * block) == file_digest(path, whole=block) == ends
    middle = (4 * block - block) // 2
    three = hashlib.sha256(
        f"{4 * block}\n".encode() + content[:block] + content[middle : middle + block] + content[-block:]
    )
    assert file_digest(path, whole=3 * block) == three.hexdigest()
    assert file_digest(path, whole=4 * block) == hashlib.sha256(content).hexdigest()
