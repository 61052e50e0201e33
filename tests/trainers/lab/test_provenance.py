"""What runs stand on: every weight, file and version that decides them, and which differences are refused."""

from pathlib import Path

import pytest

from agentenv.core.io.digests import value_digest
from agentenv.errors import ConfigurationError
from agentenv.trainers.config.config_files import config_of
from agentenv.trainers.config.identity import flatten_config
from agentenv.trainers.lab.provenance import (
    SOURCE,
    configured,
    keep_foundations,
    read_foundations,
    refuse_mixture,
    stands_on,
)


@pytest.fixture
def simulator(tmp_path: Path) -> Path:
    folder = tmp_path / "simulator"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def test_everything_that_a_run_names_counts(simulator: Path, tmp_path: Path) -> None:
    encoder = tmp_path / "encoder"
    encoder.mkdir()
    (encoder / "model.bin").write_bytes(b"vectors")
    values = {
        "base": "lab-search",
        "simulation": {"retriever": f"simulated:noise_start=0@hf:{simulator}"},
        "search": {"encoder": f"st:{encoder}"},
    }
    found = stands_on("a", config_of(values, "t"), {})
    code = {SOURCE, "version of agentenv-suite", "version of torch"}
    names = code | {"weights of tiny", f"weights of hf:{simulator}", f"content of {encoder}"}
    assert names <= set(found)
    for path, changed in (
        (simulator / "model.safetensors", f"weights of hf:{simulator}"),
        (encoder / "model.bin", f"content of {encoder}"),
    ):
        path.write_bytes(b"other")
        again = stands_on("a", config_of(values, "t"), {})
        assert [name for name in found if found[name] != again[name]] == [changed]
        found = again


def test_a_text_that_looks_like_a_path_is_a_text(tmp_path: Path) -> None:
    """Of an option a file and a folder of a model count, and no other folder, nor a text too long for a path."""
    (tmp_path / "file").write_text("x")
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    for prompt, named in (
        (str(tmp_path), []),
        ("a/" * 4000 + "b" * 300, []),
        (f"{tmp_path}/file", [f"content of {tmp_path}/file"]),
        (f"encoder:bge:{model}", [f"content of {model}"]),
    ):
        found = stands_on(
            "a", config_of({"base": "lab-search", "env": {"options": {"prompt": prompt}}}, "t"), {}
        )
        assert [name for name in found if name.startswith("content")] == named


def test_the_configuration_counts_without_the_seed(simulator: Path) -> None:
    base = {"base": "lab-search"}
    one, other = (
        stands_on("a", config_of(base | {"seed": seed, "name": f"a-{seed}"}, "t"), {}) for seed in (0, 1)
    )
    assert one == other
    slower = stands_on("a", config_of(base | {"optimizer": {"learning_rate": 1e-5}}, "t"), {})
    assert [name for name in one if one[name] != slower[name]] == ["configuration of a"]
    tests = {"simulated": config_of({**base, "search": {"retriever": f"simulated:hf:{simulator}"}}, "t")}
    tested = stands_on("a", config_of(base, "t"), tests)
    assert {name for name in tested if tested[name] != one.get(name)} == {
        "tests of a",
        f"weights of hf:{simulator}",
    }


def test_another_start_is_refused_and_a_changed_comment_is_not(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    keep_foundations({"weights of tiny": "1", SOURCE: "x"}, here, {})
    assert read_foundations(here) == {"weights of tiny": "1", SOURCE: "x"}
    others = {here: read_foundations(here)}
    refuse_mixture(others, {"weights of tiny": "1", SOURCE: "y", "weights of hf:b": "2"})
    with pytest.raises(ConfigurationError, match=r"weights of tiny.*here"):
        keep_foundations({"weights of tiny": "2"}, there, others)
    assert not there.exists()
    assert read_foundations(there) is None
    with pytest.raises(ConfigurationError, match="there does not say"):
        refuse_mixture({there: None}, {})


def test_a_newer_setting_that_is_not_set_ends_no_comparison() -> None:
    """The digest of a configuration is that of one without the key, and another one where the key is set."""
    plain = config_of({"base": "lab-search"}, "t")
    flat = {key: value for key, value in flatten_config(plain).items() if key not in ("name", "seed")}
    without = {key: value for key, value in flat.items() if not key.endswith(".yes_or_no")}
    assert len(without) == len(flat) - 3
    assert configured("a", plain, {})["configuration of a"] == value_digest(without)
    bounded = config_of({"base": "lab-search", "train": {"yes_or_no": 0.5}}, "t")
    assert configured("a", bounded, {}) != configured("a", plain, {})
