"""Configuration files from somebody else: settings that run code without a sandbox or contact a host need a confirmation."""

import io
from pathlib import Path

import pytest

from agentenv.cli.main import main
from agentenv.core.trust import confirm_file, needs_trust, risks
from agentenv.errors import ConfigurationError
from agentenv.trainers.config.config_files import presets
from agentenv.trainers.lab.lab import experiments

OUTWARD = [
    '[env]\nid = "agentenv/Code-v0"\n[env.options]\nexecutor = "unsafe-local"',
    'policy = "openai:model@http://evil.example/v1"',
    'policy = "anyllm:anthropic/evil.example"',
    'policy = "vllm:/weights@evil.example:8000"',
    '[env]\nid = "remote:http://evil.example"',
    '[env]\nid = "remote:evil.example:80"',
    '[search]\nretriever = "http://evil.example"',
    '[search]\nretriever = "web:serper"',
    '[search]\nretriever = "simulated:gold=no@openai:m@http://evil.example"',
    '[search]\nretriever = "simulated:openai:m@evil.example"',
    '[search]\nretriever = "cassette:tape@http://evil.example"',
    '[search]\nretriever = "rerank:/model@https://evil.example"',
    '[simulation]\nretriever = "simulated:openai:m@http://evil.example"',
    '[engine]\nkind = "vllm"\nurls = ["evil.example:8000"]',
    '[cluster]\naddress = "evil.example:6379"',
    '[rollout.strategy_options]\ncritic = "OpenAI:m@evil.example"',
    '[second]\npolicy = "openai:m@http://evil.example"',
    '[env]\nid = "evil_example:Class"',
    '[env]\nid = "agentenv/MCP-v0"\n[env.options]\nserver = "stdio:evil_example"',
    '[dev.options]\ndeep = [{a = ["HTTPS://evil.example"]}]',
]
HARMLESS = [
    "",
    'policy = "hf:/models/qwen"\n[search]\nretriever = "faiss:wiki"',
    '[cluster]\naddress = "local"',
    '[env]\nid = "agentenv/Code-v0"\n[env.options]\nexecutor = "bwrap"',
    '[search]\nretriever = "simulated:grammar"',
    'name = "the web: a study"',
    'policy = "hf:weights"\n[env]\nid = "agentenv/Calculator-v0"',
]


@pytest.mark.parametrize("content", OUTWARD)
def test_such_a_file_is_refused_with_its_settings_named(
    tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "theirs.toml"
    path.write_text(content)
    for words in (
        ["train", str(path), "--plan"],
        ["lab", "run", str(path)],
        ["warmstart", "--imitate", str(path)],
    ):
        words += [] if "--plan" in words else ["--out", str(tmp_path / "out")]
        assert main(words) == 1
        (line,) = capsys.readouterr().err.splitlines()[-1:]
        assert "--trust-config" in line
        assert (
            "evil.example" in line.lower()
            or "unsafe-local" in line
            or "web:serper" in line
            or "evil_example" in line
        )
    assert not (tmp_path / "out").exists()
    confirm_file(path, trusted=True)


@pytest.mark.parametrize("content", HARMLESS)
def test_other_files_are_not_asked_about(tmp_path: Path, content: str) -> None:
    path = tmp_path / "theirs.toml"
    path.write_text(content)
    confirm_file(path, trusted=False)


def test_a_run_of_somebody_else_is_asked_about_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.toml").write_text(OUTWARD[0])
    assert main(["train", "--resume", str(tmp_path)]) == 1
    assert "unsafe-local" in capsys.readouterr().err


def test_the_switch_and_the_command_line_are_trusted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('base = "laptop-code"\n[env.options]\nexecutor = "unsafe-local"')
    absent = ["--plan", "--policy", "hf:nowhere"]  # both get past the question, and as far as the policy
    assert main(["train", str(path), *absent, "--trust-config"]) == 1
    assert main(["train", "laptop-code", *absent, "--env.options.executor", "unsafe-local"]) == 1
    said = capsys.readouterr().err.splitlines()
    assert ["nowhere" in line for line in said] == [True, True]
    assert "--trust-config" not in "".join(said)


def test_nothing_that_is_shipped_needs_a_confirmation() -> None:
    for path in (*presets().values(), *experiments().values()):
        confirm_file(path, trusted=False)


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe",
        b"a = [",
        b"a = " + b"[" * 5_000,
        b"\x00",
        b'[env.options]\nexecutor = "unsafe-local"\n' + b".".join([b"a"] * 5_000) + b" = 1",
    ],
)
def test_what_is_no_toml_is_one_sentence(
    tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "odd.toml"
    path.write_bytes(content)
    suite = ["eval", "--suite", str(path), "--out", str(tmp_path / "o")]
    for words in (["train", str(path), "--plan"], ["lab", "run", str(path)], suite):
        assert main(words) == 1
        assert "odd.toml" in capsys.readouterr().err.splitlines()[-1]
    assert main(["train", "laptop-search", "--plan", "--env.options.x", "[" * 5_000]) in (0, 1)


def test_long_values_are_shortened_and_each_is_named_once() -> None:
    (one,) = risks({"a": {"b": "http://" + "x" * 10_000}})
    assert len(one) < 150


def test_neither_keys_nor_values_command_the_terminal_at_which_they_are_confirmed() -> None:
    """The options of an environment have any key, and one of them could hide the line that names the others."""
    (one,) = risks({"env": {"options": {"a\x1b[2J\n\u202e": "http://\x1b]0;x\x07"}}})
    assert one == r"env.options.a\x1b[2J\n\u202e = 'http://\x1b]0;x\x07'"
    (one,) = risks({"a" * 10_000: "http://x"})
    assert len(one) < 150


class Terminal(io.StringIO):
    """Somebody who types and reads."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("reply", "goes_on"), [("y\n", True), ("Yes\n", True), ("n\n", False), ("\n", False)]
)
def test_at_a_terminal_the_settings_are_shown_and_the_user_decides(
    reply: str, goes_on: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, screen = tmp_path / "theirs.toml", Terminal()
    path.write_text('policy = "openai:model@http://evil.example/v1"')
    monkeypatch.setattr("sys.stdin", Terminal(reply))
    monkeypatch.setattr("sys.stderr", screen)
    if goes_on:
        confirm_file(path, trusted=False)
    else:
        with pytest.raises(ConfigurationError, match=r"evil\.example"):
            confirm_file(path, trusted=False)
    assert "theirs.toml" in screen.getvalue()
    assert "evil.example" in screen.getvalue()


def test_what_a_setting_has_to_be_called_and_to_hold() -> None:
    def asked(key: str, value: object) -> list[str]:
        values: object = value
        for part in reversed(key.split(".")):
            values = {part: values}
        return list(risks(values))

    assert asked("cluster.address", "10.0.0.1:6379") == ["cluster.address = '10.0.0.1:6379'"]
    assert asked("cluster.address", "local") == asked("cluster.address", "") == []
    assert asked("engine.urls", ["a:1", "b:2"]) == ["engine.urls = 'a:1'", "engine.urls = 'b:2'"]
    assert asked("other.address", "10.0.0.1:6379") == []
    assert asked("env", "mine:Class") == ["env = 'mine:Class'"]
    assert asked("dev.env.id", "mine:Class") == ["dev.env.id = 'mine:Class'"]
    assert asked("env.options.a", "mine:Class") == asked("environment", "mine:Class") == []
    assert asked("x", " openai:m ") == ["x = ' openai:m '"]
    assert asked("x", "q" * 200 + "://") == [f"x = '{'q' * 100}'"]
    assert asked("x", 5) == []


def test_whether_a_file_needs_a_confirmation_is_known_without_asking(tmp_path: Path) -> None:
    path = tmp_path / "theirs.toml"
    assert not needs_trust(path)
    for content, needed in ((OUTWARD[1], True), (HARMLESS[1], False), ("a = [", False)):
        path.write_text(content)
        assert needs_trust(path) == needed


def test_a_question_can_be_answered_only_where_somebody_types_and_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "theirs.toml"
    path.write_text(OUTWARD[1])
    for typing, reading in ((Terminal("y\n"), io.StringIO()), (io.StringIO("y\n"), Terminal())):
        monkeypatch.setattr("sys.stdin", typing)
        monkeypatch.setattr("sys.stderr", reading)
        with pytest.raises(ConfigurationError, match=r"theirs\.toml.*evil\.example"):
            confirm_file(path, trusted=False)
        assert reading.getvalue() == ""
