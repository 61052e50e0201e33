"""Tasks in the shell of a container, graded by their own tests in a real engine."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agentenv.core.types import EndReason, Task, ToolStatus
from agentenv.data.harbor import HarborTask, read_harbor_tasks
from agentenv.envs.terminal import Terminal
from agentenv.errors import ConfigurationError, DatasetError, UnknownName
from agentenv.sandbox import docker
from agentenv.sandbox.backends import unavailable
from agentenv.sandbox.task_container import TaskContainer, shared_engine
from agentenv.sandbox.task_images import built_image

reason = unavailable("docker")
pytestmark = pytest.mark.skipif(bool(reason), reason=f"docker: {reason}")
TASKS = Path(__file__).with_name("terminal_tasks")
IMAGE = f'[environment]\ndocker_image = "{docker.IMAGE}"\n'
REWARD = "echo {} > /logs/verifier/reward.txt\n"
WRITES = "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.json; "
ENDLESS = (
    "printf '#!/py/bin/python3\\nwhile True: print(1)\\n' > /usr/local/bin/sh; chmod +x /usr/local/bin/sh"
)
BOMB = """cat > /bomb.py <<'END'
import os
while True:
    try:
        os.fork()
    except OSError:
        try:
            open("/logs/verifier/reward.json", "w").write("1")
        except OSError:
            pass
END
/py/bin/python3 /bomb.py > /dev/null 2>&1 & sleep 2"""
Make = Callable[..., Task]


def call(command: str) -> str:
    return f"<tool_call>{json.dumps({'name': 'bash', 'arguments': {'command': command}})}</tool_call>"


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """A task with the tests ``script``."""

    def write(script: str, toml: str = IMAGE, dockerfile: str = "") -> Task:
        files = {"task.toml": toml, "instruction.md": "Do it.", "tests/test.sh": script}
        for path, text in (files | ({"environment/Dockerfile": dockerfile} if dockerfile else {})).items():
            (tmp_path / "task" / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "task" / path).write_text(text, encoding="utf-8")
        (task,) = read_harbor_tasks(tmp_path / "task")
        return task

    return write


def played(task: Task, actions: Sequence[str], **options: Any) -> list[Any]:
    with closing(Terminal(tasks=[task], **options)) as env:
        env.reset(seed=0, options={"task": task})
        return [env.step(action) for action in actions]


@pytest.mark.parametrize("task", read_harbor_tasks(TASKS), ids=lambda task: task.id)
def test_the_solution_solves_and_nothing_does_not(task: Task) -> None:
    with closing(Terminal(tasks=[task])) as env:
        opening, _ = env.reset(seed=0, options={"task": task})
        assert task.question in opening[0].text
        steps = [env.step(action) for action in env.expert() or ()]
        assert [step.reward for step in steps] == [0.0, 0.0, 1.0]
        assert (steps[-1].info["solved"], steps[-1].info["end_reason"]) == (True, EndReason.SUBMITTED)
        env.reset(seed=0, options={"task": task})
        step = env.step("Nothing to do.")
        assert (step.reward, step.info["solved"]) == (0.0, False)


def test_several_rewards_without_one_of_the_name_reward_are_averaged() -> None:
    task = next(task for task in read_harbor_tasks(TASKS) if task.id == "folders")
    _, last = played(task, [call("mkdir -p /rooms/left"), "Half done."])
    assert (last.reward, last.info["solved"]) == (0.5, False)


def test_what_a_command_says_and_how_it_ends(make: Make) -> None:
    task = make(REWARD.format(1))
    steps = played(task, [call("echo out; exit 2"), call("sleep 60"), call("echo \0")], command_timeout_s=1)
    texts = [step.info["tool_results"][0].text for step in steps]
    assert texts[0] == "out\n\n[exit code 2]"
    assert "[the command was killed after the 1 s of its turn]" in texts[1]
    assert steps[2].info["tool_results"][0].status is ToolStatus.ERROR


def test_the_last_turn_and_a_cut_are_graded(make: Make) -> None:
    task = make("cat /mark > /logs/verifier/reward.txt")
    (step,) = played(task, [call("echo 0.7 > /mark")], max_turns=1)
    assert (step.reward, step.truncated, step.info["end_reason"]) == (0.7, True, EndReason.TURN_LIMIT)
    with closing(Terminal(tasks=[task])) as env:
        env.reset(seed=0)
        env.step(call("echo 0.25 > /mark"))
        assert env.cut_reward() == 0.25
        assert env.cut_reward() == 0.0


@pytest.mark.parametrize(
    "command",
    [
        "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt",
        "mkdir -p /tests /logs; echo 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh",
        "ln -s /elsewhere /logs; mkdir -p /elsewhere/verifier; echo 1 > /elsewhere/verifier/reward.txt",
        "while :; do echo 1 > /logs/verifier/reward.txt; done > /dev/null 2>&1 &",
        WRITES + "rm -f $(command -v rm)",
        WRITES + "rm -f /bin/sh",
        WRITES + "rm -rf /app",
        WRITES + "mkdir -p /usr/local/bin; " + ENDLESS,
        BOMB,
        "touch /tests; rm -f $(command -v rm)",
        "touch /logs; rm -f $(command -v rm)",
    ],
    ids=[
        *("writes the reward", "writes the tests", "links the logs", "leaves a process", "no rm", "no sh"),
        *("no working folder", "an endless sh", "a fork bomb", "tests are a file", "logs are a file"),
    ],
)
def test_a_reward_that_the_policy_wrote_does_not_count(make: Make, command: str) -> None:
    task = make("[ -e /done ] && echo 1 > /logs/verifier/reward.txt", IMAGE + 'workdir = "/app"\n')
    _, last = played(task, [call(command), "Done."])
    assert (last.reward, last.info["valid"]) == (0.0, True)


@pytest.mark.parametrize(
    "script", ["exit 1", "echo > /logs/verifier/reward.txt", "sleep 600", "rm -rf /logs"]
)
def test_tests_that_write_no_reward_give_none(make: Make, script: str) -> None:
    (last,) = played(make(script), ["Done."], verifier_timeout_s=1)
    assert (last.reward, last.info["end_reason"]) == (0.0, EndReason.SUBMITTED)


def test_a_reward_that_is_a_folder_or_endless_is_not_read(make: Make) -> None:
    write = '/py/bin/python3 -c \'open("{}", "wb").truncate(1 << 42)\''
    folder = "mkdir /logs/verifier/reward.json; " + write.format("/logs/verifier/reward.json/file")
    for script in (folder, write.format("/logs/verifier/reward.txt")):
        assert played(make(script), ["Done."])[0].reward == 0.0


def test_the_exit_status_of_the_tests_does_not_matter(make: Make) -> None:
    for status in (1, 124, 137):
        assert played(make(REWARD.format(1) + f"exit {status}"), ["Done."])[0].reward == 1.0


def test_the_commands_of_a_turn_share_their_time(make: Make) -> None:
    begin = time.monotonic()
    (step,) = played(make("true"), [call("sleep 60") * 8], command_timeout_s=2)
    assert time.monotonic() - begin < 60
    texts = [result.text for result in step.info["tool_results"]]
    assert "was killed after" in texts[0]
    assert all(text.startswith("[not run:") for text in texts[1:])


@pytest.mark.parametrize("command", ["rm /bin/sh", "chmod 0 /bin/sh"])
def test_a_system_that_no_longer_starts_ends_the_work_and_not_the_episode(make: Make, command: str) -> None:
    with closing(Terminal(tasks=[make(REWARD.format(1))])) as env:
        env.reset(seed=0)
        env.step(call(command))
        taken = env.snapshot()
        env.restore(taken)
        taken.release()
        (result,) = env.step(call("echo hello")).info["tool_results"]
        assert result.text.startswith("The system has ended")
        assert env.step("Done.").reward == 0.0


@pytest.mark.parametrize("kept", [True, False])
def test_a_server_that_the_policy_starts_runs_on_only_where_that_is_asked_for(make: Make, kept: bool) -> None:
    task = make("kill -0 $(cat /server) && echo 1 > /logs/verifier/reward.txt")
    starts = call("sleep 600 > /dev/null 2>&1 & echo $! > /server")
    *_, last = played(task, [starts, "It runs."], keep_processes=kept)
    assert last.reward == float(kept)


def test_what_the_policy_does_to_its_system_is_its_own_affair(make: Make) -> None:
    task = make(REWARD.format(1))
    gone = call("rm -rf /bin /usr/bin /lib* /usr/lib*")
    *_, after, last = played(task, [gone, call("echo hello"), "Done."])
    assert after.info["valid"]
    assert (last.reward, last.info["end_reason"]) == (0.0, EndReason.SUBMITTED)
    *_, killed = played(task, [call("kill -9 -1; kill -9 1"), "Done."])
    assert killed.reward == 1.0


def test_a_task_gets_the_network_only_where_both_allow_it(make: Make) -> None:
    devices = call("ls /sys/class/net")
    (step,) = played(make(REWARD.format(1)), [devices])
    assert step.info["tool_results"][0].text.split() == ["lo"]


def test_an_image_is_made_of_a_dockerfile_once(make: Make) -> None:
    dockerfile = f"FROM {docker.IMAGE}\nRUN echo made > /made\nWORKDIR /usr\n"
    task = make("cp /made /logs/verifier/reward.txt", toml="", dockerfile=dockerfile)
    step, _ = played(task, [call("cat /made; pwd"), "Done."])
    assert step.info["tool_results"][0].text == "made\n/usr\n"
    context = task.data["folder"] / "environment"
    made = built_image(context, 60, network=False)
    before = shared_engine().inspect_image(made)["Created"]
    assert shared_engine().inspect_image(built_image(context, 60, network=False))["Created"] == before
    shared_engine().remove_image(made)


@pytest.mark.parametrize(
    ("toml", "dockerfile", "said"),
    [
        (
            '[environment]\ndocker_image = "no/such:1"\n',
            "",
            "has no image 'no/such:1'.*docker pull no/such:1",
        ),
        ("", "FROM no/such:1 AS base\nFROM base\n", "has no image 'no/such:1'"),
        ("", f"FROM {docker.IMAGE}\nRUN exit 3\n", "cannot be built: .*returned a non-zero code: 3"),
    ],
)
def test_an_image_that_cannot_be_had(make: Make, toml: str, dockerfile: str, said: str) -> None:
    task = make("true", toml=toml, dockerfile=dockerfile)
    with closing(Terminal(tasks=[task])) as env, pytest.raises(ConfigurationError, match=said):
        env.reset(seed=0, options={"task": task})


def test_the_folder_of_a_split(tmp_path: Path) -> None:
    for split, names in {"train": ["a", "b", "c"], "test": ["d"]}.items():
        for name in names:
            (tmp_path / split / name / "tests").mkdir(parents=True)
            for file in ("task.toml", "tests/test.sh"):
                (tmp_path / split / name / file).touch()
            (tmp_path / split / name / "task.toml").write_text(IMAGE, encoding="utf-8")
            (tmp_path / split / name / "instruction.md").write_text(name, encoding="utf-8")
    folder = str(tmp_path)
    assert [task.id for task in Terminal.make_tasks(9, split="train", folder=folder)] == ["a", "b", "c"]
    drawn = {Terminal.make_tasks(1, split="train", seed=seed, folder=folder)[0].id for seed in range(20)}
    assert drawn == {"a", "b", "c"}
    assert [task.id for task in Terminal.make_tasks(9, split="test", folder=folder)] == ["d"]
    with pytest.raises(ConfigurationError, match="has no folder 'dev'"):
        Terminal.make_tasks(9, split="dev", folder=folder)
    flat = str(tmp_path / "train")
    assert len(Terminal.make_tasks(9, split="test", folder=flat)) == 3
    with pytest.raises(ConfigurationError, match="put the tasks of each split"):
        Terminal.make_tasks(9, split="train", folder=flat)
    with pytest.raises(ConfigurationError, match="folder=DIR"):
        Terminal.make_tasks(9)
    with pytest.raises(UnknownName, match="split"):
        Terminal.make_tasks(9, split="valid", folder=flat)


def test_what_cannot_be_played_is_refused() -> None:
    with (
        closing(Terminal()) as env,
        pytest.raises(DatasetError, match=r"give it tasks of Terminal\.make_tasks"),
    ):
        env.reset(seed=0)
    with pytest.raises(ConfigurationError, match="max_turns=0, cpus=0 must be above 0"):
        Terminal(max_turns=0, cpus=0)


def test_a_reset_that_is_given_up_leaves_no_container(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[TaskContainer] = []
    begun, go_on = threading.Event(), threading.Event()

    def slow(env: Terminal, asked: HarborTask) -> TaskContainer:
        begun.set()
        assert go_on.wait(60)
        made.append(start(env, asked))
        return made[0]

    start = Terminal._start
    monkeypatch.setattr(Terminal, "_start", slow)

    async def give_up() -> None:
        with closing(Terminal(tasks=[make("true")])) as env:
            reset = asyncio.create_task(env.areset(seed=0))
            await asyncio.to_thread(begun.wait, 60)
            reset.cancel()
            await asyncio.wait([reset], timeout=60)
            assert reset.cancelled()
        go_on.set()

    asyncio.run(give_up())
    deadline = time.monotonic() + 60
    while not made or any(one["Id"] == made[0]._name for one in shared_engine().containers(all=True)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_solution_is_typed_with_all_its_files(make: Make) -> None:
    task = make(REWARD.format("$(cat /found)"))
    folder = task.data["folder"] / "solution"
    folder.mkdir()
    (folder / "helper").write_text("#!/bin/sh\ncat /solution/zero > /found\n", encoding="utf-8")
    (folder / "helper").chmod(0o755)
    (folder / "zero").write_bytes(b"1\n\0")
    (folder / "solve.sh").write_text("/solution/helper\n", encoding="utf-8")
    with closing(Terminal(tasks=[task])) as env:
        env.reset(seed=0)
        actions = env.expert() or ()
        results = [env.step(action) for action in actions]
        assert all(result.info["valid"] for result in results)
        assert (results[-1].reward, len(actions)) == (1.0, 3)
        (folder / "helper").write_text("'" * 50_000, encoding="utf-8")
        assert env.expert() is None
