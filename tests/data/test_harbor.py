"""Task directories of Harbor: what they say is read, and what cannot be given is refused in one sentence."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from agentenv.data.harbor import parse_reward, read_harbor_task, read_harbor_tasks
from agentenv.errors import DatasetError

Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Writes a task directory."""

    def write(name: str = "task", toml: str = "", **files: str) -> Path:
        folder = tmp_path / name
        given = {"task.toml": toml, "instruction.md": f"Do {name}.\n", "tests/test.sh": "true\n"}
        given |= {"environment/Dockerfile": "FROM scratch\n"} | {
            key.replace("__", "/").replace("_dot_", "."): value for key, value in files.items()
        }
        for path, text in given.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
        return folder

    return write


def test_a_bare_directory_has_the_defaults_of_harbor(make: Make) -> None:
    task = read_harbor_task(make())
    assert (task.image, task.workdir, task.cpus, task.memory_mb, task.network) == ("", "", None, None, True)
    assert (task.verifier_timeout_s, task.build_timeout_s, task.env) == (600.0, 600.0, {})
    assert not task.has_solution


def test_every_key_is_read(make: Make) -> None:
    toml = """
    schema_version = "1.4"
    [environment]
    docker_image = "ubuntu:24.04"
    workdir = "/app"
    cpus = 2
    memory_mb = 4096
    network_mode = "no-network"
    build_timeout_sec = 60
    env = { A = "1", N = 2 }
    [verifier]
    timeout_sec = 900.5
    env = { B = "${NOWHERE:-given}" }
    [solution]
    env = { C = "c" }
    [agent]
    timeout_sec = 900
    [metadata]
    difficulty = "hard"
    """
    task = read_harbor_task(make(toml=toml, solution__solve_dot_sh="true\n"))
    assert (task.image, task.workdir, task.cpus, task.memory_mb) == ("ubuntu:24.04", "/app", 2.0, 4096)
    assert (task.network, task.build_timeout_s, task.verifier_timeout_s) == (False, 60.0, 900.5)
    assert (task.env, task.verifier_env, task.solution_env) == (
        {"A": "1", "N": "2"},
        {"B": "given"},
        {"C": "c"},
    )
    assert task.has_solution


@pytest.mark.parametrize(("text", "mib"), [("2G", 2048), ("512M", 512), ("2048K", 2), ("1.5g", 1536)])
def test_older_directories_write_the_memory_as_a_text(make: Make, text: str, mib: int) -> None:
    assert read_harbor_task(make(toml=f'[environment]\nmemory = "{text}"\n')).memory_mb == mib


def test_older_directories_say_whether_there_is_an_internet(make: Make) -> None:
    assert not read_harbor_task(make(toml="[environment]\nallow_internet = false\n")).network


def test_a_variable_of_this_process_is_given_only_where_it_is_named(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make(toml='[environment]\nenv = { KEY = "${SECRET_KEY}", OTHER = "x${SECRET_KEY:-none}" }\n')
    monkeypatch.setenv("SECRET_KEY", "s3cret")
    with pytest.raises(DatasetError, match=r"asks for the environment variable SECRET_KEY: .* `variables`"):
        read_harbor_task(folder)
    assert read_harbor_task(folder, ("SECRET_KEY",)).env == {"KEY": "s3cret", "OTHER": "xs3cret"}
    monkeypatch.delenv("SECRET_KEY")
    with pytest.raises(DatasetError, match="SECRET_KEY"):
        read_harbor_task(folder, ("SECRET_KEY",))


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ("[environment", "Expected"),
        ("environment = 3", r"\[environment\] is no table"),
        ("[[steps]]\nname = 'a'", "several steps"),
        ("[environment]\nos = 'windows'", "Windows"),
        ("[environment]\ngpus = 1", "GPUs"),
        ("[environment]\nnetwork_mode = 'allowlist'", "a list of allowed hosts"),
        ("[environment]\nnetwork_mode = 'some'", "network_mode is 'some'"),
        ("[environment]\nhealthcheck = { command = 'true' }", "a health check"),
        ("[[environment.mcp_servers]]\nname = 'a'", "MCP servers"),
        ("[environment]\nmemory = '2G'\nmemory_mb = 2048", "memory and memory_mb"),
        ("[environment]\nmemory = 'much'", "memory is 'much'"),
        ("[environment]\ncpus = 0", "cpus is 0"),
        ("[environment]\ncpus = true", "cpus is True"),
        ("[verifier]\ntimeout_sec = -1", "timeout_sec is -1"),
        ("[verifier]\ntimeout_sec = inf", "timeout_sec is inf"),
        ("[verifier]\nenvironment_mode = 'separate'", "a container of its own for the tests"),
        ("[environment]\nenv = 'A=1'", "environment.env is no table"),
    ],
)
def test_what_is_malformed_or_not_supported_is_refused(make: Make, toml: str, said: str) -> None:
    folder = make(toml=toml)
    with pytest.raises(DatasetError, match=said) as caught:
        read_harbor_tasks(folder)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize("name", ["instruction.md", "tests/test.sh", "environment/Dockerfile"])
def test_a_missing_file_is_named(make: Make, name: str) -> None:
    folder = make()
    (folder / name).unlink()
    with pytest.raises(DatasetError, match=name):
        read_harbor_tasks(folder)


@pytest.mark.parametrize("name", ["environment__docker-compose_dot_yaml", "steps__one__instruction_dot_md"])
def test_several_containers_and_several_steps(make: Make, name: str) -> None:
    with pytest.raises(DatasetError, match="are not supported"):
        read_harbor_tasks(make(**{name: "x"}))


def test_a_folder_of_directories(make: Make, tmp_path: Path) -> None:
    make("second"), make("first")
    (tmp_path / "README.md").write_text("no task", encoding="utf-8")
    tasks = read_harbor_tasks(tmp_path, "test")
    assert [(task.id, task.question, task.split) for task in tasks] == [
        ("first", "Do first.", "test"),
        ("second", "Do second.", "test"),
    ]
    assert read_harbor_tasks(tmp_path / "first")[0].data["folder"] == tmp_path / "first"
    with pytest.raises(DatasetError, match="holds no task directory"):
        read_harbor_tasks(tmp_path / "first" / "tests")
    with pytest.raises(DatasetError, match="there is no folder"):
        read_harbor_tasks(tmp_path / "third")


@pytest.mark.parametrize(
    ("found", "text", "rewards"),
    [
        ({"reward": 1, "speed": 0.5}, "0", {"reward": 1.0, "speed": 0.5}),
        (0.25, None, {"reward": 0.25}),
        (None, " 1.0\n", {"reward": 1.0}),
        (None, None, None),
        (None, "", None),
        (None, "one", None),
        (None, "nan", None),
        (None, "inf", None),
        ({}, "1", None),
        ({"reward": "1"}, "1", None),
        ({"reward": float("inf")}, "1", None),
        ([1], "1", None),
        ("1", None, None),
        (True, None, {"reward": 1.0}),
    ],
)
def test_what_a_verifier_writes(found: object, text: str | None, rewards: object) -> None:
    first = None if found is None else json.dumps(found).encode()
    assert parse_reward(first, None if text is None else text.encode()) == rewards


@pytest.mark.parametrize("junk", [b"", b"{", b"\xff", b"[" * 100_000])
def test_junk_is_no_reward(junk: bytes) -> None:
    assert parse_reward(junk, b"1") is None
    assert parse_reward(None, b"\xff") is None


@pytest.mark.parametrize("name", ["instruction.md", "tests/test.sh", "solution/more/secret"])
def test_a_link_that_leads_out_of_a_directory_is_refused(make: Make, tmp_path: Path, name: str) -> None:
    folder = make(solution__solve_dot_sh="true\n", solution__more__own="own\n")
    (tmp_path / "private").write_text("private\n", encoding="utf-8")
    (folder / "solution" / "link").symlink_to("more/own")
    assert read_harbor_task(folder).has_solution
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(tmp_path / "private")
    with pytest.raises(DatasetError, match=f"{name} is a link that leads out"):
        read_harbor_tasks(folder)
