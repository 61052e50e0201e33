"""Numbers that flags refuse: the sentence names the flag and the value, and nothing is written."""

from pathlib import Path

import pytest

from agentenv.cli.main import FAILURE, main

REFUSED = [
    (["serve", "agentenv/Calculator-v0", "--sessions", "0"], "--sessions", "0"),
    (["serve", "agentenv/Calculator-v0", "--per-client", "-3"], "--per-client", "-3"),
    (["serve", "agentenv/Calculator-v0", "--idle", "inf"], "--idle", "inf"),
    (["retriever", "serve", "index", "--queue", "0"], "--queue", "0"),
    (["retriever", "serve", "index", "--timeout", "nan"], "--timeout", "nan"),
    (["retriever", "serve", "index", "--cache", "-1"], "--cache", "-1"),
    (["simulator", "data", "--worlds", "0", "--out", "out"], "--worlds", "0"),
    (["synthesize", "asearcher", "--corpus", "c", "--roots", "0", "--out", "out"], "--roots", "0"),
    (["synthesize", "organisation", "--at-once", "0", "--out", "out"], "--at-once", "0"),
    (
        ["synthesize", "sws", "--history", "h", "--editor", "m", "--temperature", "0", "--out", "out"],
        "--temperature",
        "0",
    ),
]


@pytest.mark.parametrize(("words", "flag", "value"), REFUSED, ids=[f"{w[0]} {f}" for w, f, _ in REFUSED])
def test_a_refused_number_is_named_with_its_flag(
    words: list[str],
    flag: str,
    value: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == FAILURE
    said = capsys.readouterr().err
    assert f"{flag} is {value}" in " ".join(said.split())
    assert not list(tmp_path.iterdir())
