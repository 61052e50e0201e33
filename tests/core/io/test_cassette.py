"""A cassette gives back what it was given, to the byte, and nothing else; a killed recording costs its last line."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agentenv.core.io.cassette import Cassette
from agentenv.errors import CassetteMiss, ConfigurationError, Fault

ABOUT = {"judge": "strict"}


@pytest.fixture
def tape(tmp_path: Path) -> Path:
    """A recording of two calls."""
    path = tmp_path / "room" / "tape.jsonl"
    recorder = Cassette.record(path, ABOUT)
    recorder.add({"question": "who?", "answer": "Orla"}, {"verdict": "correct", "score": 0.1})
    recorder.add(["any", "JSON", 1], None)
    return path


def test_what_was_recorded_comes_back(tape: Path) -> None:
    replay = Cassette.replay(tape)
    assert replay.about == ABOUT
    assert len(replay) == 2
    assert replay.find({"answer": "Orla", "question": "who?"}) == {"verdict": "correct", "score": 0.1}
    assert replay.find(["any", "JSON", 1]) is None


@pytest.mark.parametrize(
    "value", [0.1 + 0.2, 1e-320, -0.0, 2**70, "\u2028 \x00 😀 \ud800", [[]], {"b": 1, "a": [None]}]
)
def test_values_survive_to_the_byte(tmp_path: Path, value: Any) -> None:
    recorder = Cassette.record(tmp_path / "tape", ABOUT)
    first = recorder.add({"value": value}, value)
    assert repr(first) == repr(value) == repr(Cassette.replay(tmp_path / "tape").find({"value": value}))


def test_an_unknown_request_is_refused_in_a_replay(tape: Path) -> None:
    replay = Cassette.replay(tape)
    assert {"question": "where?"} not in replay
    with pytest.raises(CassetteMiss, match=r'\{"question": "where\?"\}'):
        replay.find({"question": "where?"})
    with pytest.raises(CassetteMiss):
        asyncio.run(replay.play({"question": "where?"}))
    assert issubclass(CassetteMiss, Fault)
    with pytest.raises(ConfigurationError, match=r"tape\.jsonl"):
        replay.add({"question": "where?"}, 1)


def test_the_first_reply_stays(tape: Path) -> None:
    recorder = Cassette.record(tape, ABOUT)
    assert recorder.add(["any", "JSON", 1], "another") is None
    assert Cassette.replay(tape).find(["any", "JSON", 1]) is None


def test_play_asks_once_and_remembers(tape: Path) -> None:
    asked = []

    async def ask() -> str:
        asked.append(1)
        return "incorrect"

    recorder = Cassette.record(tape, ABOUT)
    assert [asyncio.run(recorder.play("new", ask)) for _ in range(3)] == ["incorrect"] * 3
    assert asked == [1]
    assert asyncio.run(Cassette.replay(tape).play("new")) == "incorrect"


def test_a_replay_leaves_the_file_alone(tape: Path) -> None:
    before = tape.read_bytes()
    Cassette.replay(tape).find(["any", "JSON", 1])
    assert tape.read_bytes() == before


def test_a_torn_last_line_is_dropped_and_recording_goes_on(tape: Path) -> None:
    whole = tape.read_bytes()
    tape.write_bytes(whole + b'{"request": "cut off", "rep')
    assert len(Cassette.replay(tape)) == 2
    recorder = Cassette.record(tape, ABOUT)
    recorder.add("after", 1)
    assert tape.read_bytes() == whole + b'{"request": "after", "reply": 1}\n'


@pytest.mark.parametrize("place", [b"judge", b"Orla", b"correct"])
def test_a_byte_that_is_no_text_is_refused_with_its_line(place: bytes, tape: Path) -> None:
    """A replacement character in its place would be replayed as if somebody had said it."""
    whole = tape.read_bytes()
    tape.write_bytes(whole.replace(place, place[:2] + b"\xff", 1))
    with pytest.raises(ConfigurationError, match=r"tape\.jsonl.*0xff"):
        Cassette.replay(tape)


def test_what_another_process_records_meanwhile_is_not_cut_off(
    tape: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs may share a recording: the second opens it while the first adds a call."""
    first, read = Cassette.record(tape, ABOUT), Path.read_bytes

    def meanwhile(path: Path) -> bytes:
        content = read(path)
        if path == tape and len(first) == before:
            first.add({"q": "meanwhile"}, "kept")
        return content

    before = len(first)
    monkeypatch.setattr(Path, "read_bytes", meanwhile)
    Cassette.record(tape, ABOUT)
    monkeypatch.undo()
    assert Cassette.replay(tape).find({"q": "meanwhile"}) == "kept"


def test_a_file_about_something_else_is_not_added_to(tape: Path) -> None:
    before = tape.read_bytes()
    with pytest.raises(ConfigurationError, match=r'\{"judge": "lenient"\}'):
        Cassette.record(tape, {"judge": "lenient"})
    assert tape.read_bytes() == before


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("", "''"),
        ("no JSON\n", "'no JSON'"),
        ("[1]\n", r"'\[1\]'"),
        ('{"cassette": 2, "about": {}}\n', r"\b2\b"),
        ('{"cassette": 1, "about": {}}\n{"request": 1}\n', r"line 2\b.*\"request\": 1"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: str, named: str) -> None:
    path = tmp_path / "tape"
    path.write_text(content)
    with pytest.raises(ConfigurationError, match=named):
        Cassette.replay(path)
    with pytest.raises(ConfigurationError):
        Cassette.record(path, ABOUT)
    assert path.read_text() == content


def test_a_file_that_is_not_there_or_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="nowhere"):
        Cassette.replay(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="file/tape"):
        Cassette.record(tmp_path / "file" / "tape", ABOUT)


def test_what_is_not_json_is_not_recorded(tmp_path: Path) -> None:
    recorder = Cassette.record(tmp_path / "tape", ABOUT)
    with pytest.raises(ValueError, match="JSON"):
        recorder.add("score", float("nan"))
    assert len(Cassette.replay(tmp_path / "tape")) == 0


def test_what_is_said_of_a_file_names_both_sides_and_the_first_letters_of_a_line(
    tmp_path: Path, tape: Path
) -> None:
    with pytest.raises(ConfigurationError, match=r'tape\.jsonl.*\{"judge": "strict"\}.*\{"judge": "mild"\}'):
        Cassette.record(tape, {"judge": "mild"})
    odd = tmp_path / "odd"
    odd.write_text("x" * 100 + "\n")
    with pytest.raises(ConfigurationError, match=f"odd.*'{'x' * 60}'"):
        Cassette.replay(odd)
    odd.write_text('{"cassette": 1, "about": {}}\n' + "y" * 100 + "\n")
    with pytest.raises(ConfigurationError, match=f"odd, line 2 .*'{'y' * 60}'"):
        Cassette.replay(odd)
    odd.write_text('{"cassette": 7, "about": {}}\n')
    with pytest.raises(ConfigurationError, match=r"odd.*\b7\b.*\b1\b"):
        Cassette.replay(odd)
    with pytest.raises(CassetteMiss, match=r"tape\.jsonl.*x{116}\.\.\."):
        Cassette.replay(tape).find("x" * 200)


def test_a_replay_and_a_recording_say_what_they_are(tape: Path) -> None:
    replay, recorder = Cassette.replay(tape), Cassette.record(tape, ABOUT)
    assert (replay.recording, recorder.recording) == (False, True)
    assert (replay.path, recorder.about, len(recorder)) == (tape, ABOUT, 2)
    assert ["any", "JSON", 1] in replay


def test_a_request_is_written_with_its_keys_in_order(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "tape"
    Cassette.record(path, {"z": 1, "a": 2}).add({"b": 1, "a": "é"}, {"d": 1, "c": 2})
    assert path.read_text().splitlines() == [
        '{"about": {"a": 2, "z": 1}, "cassette": 1}',
        '{"request": {"a": "\\u00e9", "b": 1}, "reply": {"d": 1, "c": 2}}',
    ]


def test_nobody_is_asked_for_what_is_recorded(tape: Path) -> None:
    async def ask() -> str:
        raise AssertionError

    assert asyncio.run(Cassette.record(tape, ABOUT).play(["any", "JSON", 1], ask)) is None
