"""JSON and TOML from files of others: every kind of damage is one kind of error, and whole text is read."""

from pathlib import Path

import pytest

from agentenv.core.io.strict_json import read_json_text
from agentenv.core.io.toml_files import read_toml
from agentenv.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('{"a": 1,\n "b" 2}', r"line 2, column 6"),
        ("", "at column 1$"),
        ('{"a": 1\n', "at column 8$"),
        ("[" * 100_000, "deep"),
        ('["\\ud83d"]', "surrogate"),
        ('["\\uDC00 x"]', "surrogate"),
        (b'{"a": "\\uD83D"}', "surrogate"),
        (b'{"a": "\xff"}', "0xff.* 7"),
        (b'{"a": "\xed\xa0\xbd"}', "0xed.* 7"),
    ],
)
def test_what_is_no_json_or_no_text_says_what_it_is(text: str | bytes, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        read_json_text(text)


def test_whole_pairs_and_other_escapes_are_text() -> None:
    assert read_json_text('["\\ud83d\\ude00", "\\u00e9", "\\\\ud83d"]') == ["😀", "é", "\\ud83d"]
    assert read_json_text(b'["\\ud83d\\ude00"]') == ["😀"]
    assert read_json_text('{"a": [1, null]}') == {"a": [1, None]}


@pytest.mark.parametrize("text", ['{"a": 1, "b": 2, "a": 1}', '[{"c": {"a": 1, "a": 2}}]'])
def test_a_name_twice_is_refused_where_it_is_asked_for(text: str) -> None:
    with pytest.raises(ValueError, match="'a'"):
        read_json_text(text, distinct=True)
    assert read_json_text('[{"a": 1}, {"a": {"a": 2}}]', distinct=True) == [{"a": 1}, {"a": {"a": 2}}]


@pytest.mark.parametrize(
    ("content", "named"), [(b"a = [", "settings"), (b"\xff", "settings"), (None, "settings.*No such file")]
)
def test_a_file_that_is_no_toml_or_not_there_is_named(
    tmp_path: Path, content: bytes | None, named: str
) -> None:
    path = tmp_path / "settings.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=named):
        read_toml(path)


def test_tables_are_read_as_utf_8(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_bytes('[a]\nname = "Zoë"\n'.encode())
    assert read_toml(tmp_path / "a.toml") == {"a": {"name": "Zoë"}}
