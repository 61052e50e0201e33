"""`RemoteEnv`: it passes the contract of a local environment, and whatever breaks on the way is a typed fault."""

import asyncio
import gc
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest

for module in ("fastapi", "uvicorn", "orjson", "prometheus_client", "websockets"):
    pytest.importorskip(module, reason=f"{module} is not installed")

import agentenv  # noqa: E402
from agentenv.cli.main import main  # noqa: E402
from agentenv.core.env import Env  # noqa: E402
from agentenv.core.env_contract import EnvContract  # noqa: E402
from agentenv.core.env_lifecycle import make_envs  # noqa: E402
from agentenv.core.registry import env_class  # noqa: E402
from agentenv.core.types import EndReason, Info, Message, Observation, Step, Task  # noqa: E402
from agentenv.errors import (  # noqa: E402
    ConfigurationError,
    EnvFault,
    EpisodeOver,
    RetrieverFault,
    SnapshotError,
)
from agentenv.serving import remote  # noqa: E402
from agentenv.serving.link import LinkTimeouts  # noqa: E402
from agentenv.serving.remote import RemoteEnv  # noqa: E402
from agentenv.web.server import GRACE_S  # noqa: E402

WAIT_S = 60.0
QUICK = LinkTimeouts(call_s=WAIT_S, place_s=0.0, pause_s=0.01)


def until(true: Callable[[], bool]) -> None:
    """Waits for it; fails where it does not come true."""
    deadline = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class Process:
    """`agentenv serve` in a process of its own."""

    said = ""
    """What it wrote to stderr after its first line, once it has ended."""

    def __init__(self, *words: str, folder: Path | None = None) -> None:
        command = [sys.executable, "-m", "agentenv.cli.main", "serve", *words, "--port", "0", "--json"]
        self.child = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder
        )
        assert self.child.stderr is not None
        line = self.child.stderr.readline()
        assert line.startswith("serving "), line + self.child.stderr.read()
        self.url = line.split()[-1]

    def end(self, how: int = signal.SIGTERM) -> int:
        """Ends it and returns its exit code."""
        self.child.send_signal(how)
        _, self.said = self.child.communicate(timeout=WAIT_S)
        return self.child.returncode


@pytest.fixture(scope="module")
def calculator() -> Iterator[str]:
    """The address of a server of the calculator that hands out its expert."""
    process = Process("agentenv/Calculator-v0", "--expert", "--client-tasks")
    try:
        yield process.url
    finally:
        assert process.end() == 0


class TestCalculatorAfar(EnvContract):
    """The contract suite, over the wire."""

    url: ClassVar[str]

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def served(cls, calculator: str) -> None:
        cls.url = calculator

    def make(self) -> Env[Any]:
        return agentenv.make(f"remote:{self.url}")


def test_a_remote_episode_is_the_local_one(calculator: str) -> None:
    local, remote = agentenv.make("agentenv/Calculator-v0"), agentenv.make(f"remote:{calculator}/")
    options = {"task": Task("t", "1 + 1", ("2",), data={"hops": 1})}
    for seed, given in ((5, None), (6, options)):
        assert local.reset(seed=seed, options=given) == remote.reset(seed=seed, options=given)
        actions = local.expert()
        assert actions == remote.expert()
        assert actions is not None
        for action in ("nothing of use <tool_call>{", *actions):
            assert local.step(action) == remote.step(action)
            assert (local.anchor_key(), local.render()) == (remote.anchor_key(), remote.render())
    for name in (
        "capability",
        "reward_floor",
        "reward_ceiling",
        "call_markers",
        "reports_searches",
        "refuses_half_escapes",
    ):
        assert getattr(local, name) == getattr(remote, name)
    remote.close()


def test_one_environment_is_stepped_from_many_loops_and_threads(calculator: str) -> None:
    env = agentenv.make(f"remote:{calculator}")
    asyncio.run(env.areset(seed=1))
    first = asyncio.run(
        env.astep('<tool_call>{"name": "calculate", "arguments": {"expression": "1"}}</tool_call>')
    )
    assert first.info["turn"] == 1
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(env.step("7")))
    thread.start()
    thread.join(WAIT_S)
    assert found[0].terminated
    env.close()


def test_check_takes_a_remote_environment(calculator: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "remote:http://127.0.0.1:9", "--json"]) == 1
    assert "'http://127.0.0.1:9'" in capsys.readouterr().err


def test_an_environment_that_nobody_closed_keeps_no_slot(serving: Any, house: Any) -> None:
    with serving(lambda: house) as served:
        env = RemoteEnv(served.url, timeouts=QUICK)
        env.reset()
        snapshot = env.snapshot()
        served.until_open(1)
        del env, snapshot
        gc.collect()
        served.until_open(0)


def test_errors_keep_their_class(serving: Any, house: Any) -> None:
    with serving(lambda: house) as served:
        env = RemoteEnv(served.url, timeouts=QUICK)
        env.reset()
        for action, kind in (("fault", RetrieverFault), ("crash", EnvFault), ("nan", EnvFault)):
            with pytest.raises(kind):
                env.step(action)
        with pytest.raises(ConfigurationError, match="object"):
            env.reset(options={"what": object()})
        env.reset()
        snapshot = env.snapshot()
        env.close()
        with pytest.raises(EpisodeOver):
            env.step("a")
        with pytest.raises(SnapshotError):
            env.restore(snapshot)
        snapshot.release()
        env.reset()
        assert env.step("a").observation[0].text == "a after 0"
        env.close()


def test_a_full_server_is_waited_for(serving: Any, house: Any) -> None:
    with serving(lambda: house, sessions=1, wait_s=0.05) as served:
        first = RemoteEnv(served.url, timeouts=QUICK)
        first.reset()
        second = RemoteEnv(served.url, timeouts=QUICK)
        with pytest.raises(EnvFault, match=r"127\.0\.0\.1"):
            second.reset()
        patient = RemoteEnv(served.url, timeouts=LinkTimeouts(place_s=WAIT_S, pause_s=0.01))
        threading.Timer(0.3, first.close).start()
        assert patient.reset()[0]
        with pytest.raises(SnapshotError, match="CAPACITY_REACHED"):
            patient.fork()
        assert patient.step("a").observation[0].text == "a after 0"
        patient.close()


def test_the_next_episode_goes_over_the_same_connection(serving: Any, house: Any) -> None:
    """A connection anew for each episode gave up the place at a server on which others wait for one."""
    with serving(lambda: house, sessions=1) as served:
        env = RemoteEnv(served.url, timeouts=QUICK)
        env.reset()
        link = env.state.link
        env.reset()
        assert env.state.link is link
        assert link.standing
        env.close()
        env.reset()
        assert env.state.link is not link
        env.close()
        served.until_open(0)


def test_a_step_that_is_given_up_costs_its_connection_alone(serving: Any, house: Any) -> None:
    async def hurried(env: Env[Any]) -> None:
        async with asyncio.timeout(0.3):
            await env.astep("wait")

    with serving(lambda: house) as served:
        env = RemoteEnv(served.url, timeouts=QUICK)
        env.reset()
        with pytest.raises(TimeoutError):
            asyncio.run(hurried(env))
        house.shared.opened.set()
        with pytest.raises(EnvFault, match=r"127\.0\.0\.1"):
            env.step("a")
        env.reset()
        assert env.step("a").observation[0].text == "a after 0"
        env.close()


def test_a_connection_that_the_server_closed_between_two_episodes_costs_none(
    serving: Any, house: Any
) -> None:
    """A client that learns for longer than ``--idle`` lost the next episode of every environment that it had kept."""
    with serving(lambda: house, idle_s=2.0) as served:
        env = RemoteEnv(served.url, timeouts=QUICK)
        env.reset()
        snapshot = env.snapshot()
        until(lambda: not env.state.link.standing)
        assert env.reset()[0]
        assert env.step("a").observation[0].text == "a after 0"
        snapshot.release()  # went with its connection
        until(lambda: not env.state.link.standing)
        with pytest.raises(EnvFault, match="idle"):
            env.step("b")
        env.close()


class Priced(Env[list[str]]):
    """Each action makes it dearer to be cut; after ``break`` nobody knows how dear."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        super().reset(seed=seed)
        self.state = []
        return (Message("user", "Go on."),), {}

    def step(self, action: str) -> Step:
        self.state.append(action)
        return self.result((Message("user", "And?"),), end=EndReason.ANSWERED if action == "end" else None)

    def cut_reward(self) -> float:
        price = {"break": float("nan"), "fail": None}.get(self.state[-1] if self.state else "", 1.0)
        assert price is not None
        return -price * len(self.state)


def test_what_an_episode_earns_that_is_cut_comes_with_each_answer(serving: Any) -> None:
    """It was 0 of every environment behind a server, so that a full context was the cheaper way to give up."""
    with serving(Priced) as served:
        env = RemoteEnv(served.url, timeouts=QUICK)
        env.reset()
        assert env.cut_reward() == 0.0
        env.step("a")
        snapshot = env.snapshot()
        env.step("b")
        assert env.cut_reward() == -2.0
        env.restore(snapshot)
        assert env.cut_reward() == -1.0
        for action in ("break", "fail"):
            env.step(action)
            with pytest.raises(EnvFault, match=re.escape(served.url)):
                env.cut_reward()
        assert env.step("end").terminated
        env.close()


def test_a_late_answer_is_a_fault(serving: Any, house: Any) -> None:
    with serving(lambda: house) as served:
        env = RemoteEnv(served.url, timeouts=LinkTimeouts(call_s=0.3))
        env.reset()
        with pytest.raises(EnvFault, match=r"\b0\.3\b"):
            env.step("wait")
        house.shared.opened.set()


def test_a_server_that_is_killed_is_a_fault() -> None:
    process = Process("agentenv/Calculator-v0")
    env = RemoteEnv(process.url, timeouts=QUICK)
    env.reset(seed=0)
    process.end(signal.SIGKILL)
    with pytest.raises(EnvFault):
        env.step("1")
    with pytest.raises(EnvFault):
        env.reset(seed=0)
    env.close()


STUCK = """
import atexit
import threading
from pathlib import Path

from agentenv import Env, Message

atexit.register(Path("cleaned").touch)


class Stuck(Env):
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = None
        return (Message("user", "Try."),), {"task_id": options["task"].id} if options else {}

    def step(self, action):
        threading.Event().wait()
"""


def test_an_environment_that_never_returns_does_not_keep_the_server_alive(tmp_path: Path) -> None:
    (tmp_path / "stuck.py").write_text(STUCK, encoding="utf-8")
    process = Process("stuck:Stuck", "--timeout", "0.3", folder=tmp_path)
    env = RemoteEnv(process.url, timeouts=QUICK)
    env.reset()
    with pytest.raises(EnvFault, match=r"\b0\.3\b"):
        env.step("a")
    process.child.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + WAIT_S
    while httpx.get(f"{process.url}/readyz", trust_env=False).json() != {"status": "stopping"}:
        assert time.monotonic() < deadline
    began = time.monotonic()
    assert process.end() == 1  # asked twice, it does not wait for what is under way
    assert "Traceback" not in process.said
    assert (tmp_path / "cleaned").exists()  # as sandboxes and the processes of tools are
    assert time.monotonic() - began < GRACE_S / 2


def test_a_server_that_goes_away_within_a_run_costs_episodes_and_not_the_run(
    serving: Any, house: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, every environment that was made meanwhile ended the run as if its configuration were wrong."""
    with serving(lambda: house) as served:
        url, cls = served.url, env_class(f"remote:{served.url}")
    monkeypatch.setattr(remote, "_CARD_CACHE_S", 0.0)
    assert env_class(f"remote:{url}") is cls
    (env,) = asyncio.run(make_envs([lambda: agentenv.make(f"remote:{url}")], WAIT_S))
    with pytest.raises(EnvFault, match=re.escape(url)):
        env.reset()
    with pytest.raises(ConfigurationError, match="no environment is served"):
        env_class("remote:http://127.0.0.1:9")


def test_the_token_is_sent(serving: Any, house: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(lambda: house, token="secret") as served:
        with pytest.raises(ConfigurationError, match=r"127\.0\.0\.1"):
            RemoteEnv(served.url)
        monkeypatch.setenv("AGENTENV_SERVE_TOKEN", "secret")
        env = RemoteEnv(served.url, timeouts=QUICK)
        env.reset()
        env.close()
        monkeypatch.delenv("AGENTENV_SERVE_TOKEN")
        with pytest.raises(ConfigurationError, match=r"127\.0\.0\.1"):
            env.reset()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["agentenv/Calculater-v0"], "Did you mean 'agentenv/Calculator-v0'?"),
        (["agentenv/Calculator-v0", "--sessions", "0"], "--sessions"),
        (["agentenv/Calculator-v0", "--set", "colour"], "--set takes NAME=VALUE, not 'colour'"),
        (["agentenv/LocalSearch-v0", "--port", "0", "--set", "retreiver=words"], "Did you mean 'retriever'?"),
        (["agentenv/LocalSearch-v0", "--port", "0", "--set", "k=three"], "option 'k'"),
    ],
)
def test_what_cannot_be_served_is_one_sentence(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", *words]) == 1
    (said,) = capsys.readouterr().err.splitlines()
    assert sentence in said


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--help"]) == 0
    assert "agentenv serve agentenv/Calculator-v0 --port 8100" in " ".join(capsys.readouterr().out.split())


OWN = """
from agentenv.cli.new import ENVIRONMENT

exec(ENVIRONMENT.format(title="Guessed"))
Guessed.__module__ = __name__
"""


@pytest.fixture(scope="module")
def guessing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server of an own environment that keeps the answers to itself."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "guessing_game.py").write_text(OWN)
    process = Process("guessing_game:Guessed", folder=folder)
    yield process.url
    process.end()


def by_halves(messages: list[dict[str, Any]]) -> str:
    """Guesses the middle of what is left."""
    low, high = 0, 10_000
    for guess, hint in zip(messages[1::2], messages[2::2], strict=True):
        if hint["content"] == "Higher.":
            low = int(guess["content"]) + 1
        else:
            high = int(guess["content"])
    return str((low + high) // 2)


def test_what_is_served_is_evaluated_as_if_it_were_here(guessing: str) -> None:
    result = agentenv.evaluate(by_halves, env=f"remote:{guessing}", limit=5)
    assert (result.score.scorer, result.score.mean, result.n) == ("reward", 1.0, 5)
    assert all(episode["answers"] == [] for episode in result.episodes)
    again = agentenv.evaluate(by_halves, env=f"remote:{guessing}", limit=5)
    assert [one["id"] for one in again.episodes] == [one["id"] for one in result.episodes]


def test_what_is_served_is_trained_on(guessing: str, tmp_path: Path) -> None:
    from agentenv.policies.fakes import random_policy

    random_policy(tmp_path / "small", ["Guess a number from 0 to 9999. Higher. Lower."])
    result = agentenv.train(
        "own-env",
        out=tmp_path / "out",
        overrides={
            "env.id": f"remote:{guessing}",
            "policy": f"hf:{tmp_path / 'small'}",
            "rollout": {"questions": 2, "group_size": 2, "turn_tokens": 4, "context_tokens": 200},
            "test.limit": 3,
            "dev.limit": 2,
        },
        optimizer__steps=2,
    )
    assert (result.before.n, result.after.n, result.results["faults"]) == (3, 3, 0)


def test_a_served_class_says_how_its_actions_end_and_where_its_tasks_come_from(calculator: str) -> None:
    cls = env_class(f"remote:{calculator}")
    assert cls.stop == env_class("agentenv/Calculator-v0").stop
    tasks = cls.make_tasks(3, seed=1, split="test")
    local = env_class("agentenv/Calculator-v0").make_tasks(3, seed=1, split="test")
    assert [(task.id, task.question, task.answers) for task in tasks] == [
        (task.id, task.question, task.answers) for task in local
    ]
    with pytest.raises(ConfigurationError, match="nowhere"):
        cls.make_tasks(3, split="nowhere")
    with pytest.raises(ConfigurationError, match="10001"):
        cls.make_tasks(10_001)


def test_a_server_that_is_not_there_is_one_error() -> None:
    with pytest.raises(ConfigurationError, match=r"127\.0\.0\.1:9"):
        env_class("remote:http://127.0.0.1:9")


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"capability": None}, "capability"),
        ({"capability": "nope"}, "nope"),
        ({"call_markers": 3}, "call_markers"),
        ({"stop": "</answer>"}, "stop"),
        ({"reward_floor": "low"}, "low"),
        ({"reward_floor": float("nan")}, "reward_floor"),
        ({"reward_ceiling": float("inf")}, "reward_ceiling"),
    ],
)
def test_a_server_that_says_something_else_of_itself_is_one_error(
    calculator: str, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any], named: str
) -> None:
    """Somebody else's, that happens to name the same version."""
    said = remote._get_json(calculator, "metadata", {}, WAIT_S)
    monkeypatch.setattr(remote, "_get_json", lambda *_: said | wrong)
    monkeypatch.setattr(remote, "_known", {})
    for ask in (RemoteEnv, remote.remote_class):
        with pytest.raises(ConfigurationError, match=named):
            ask(calculator)


def test_two_tasks_of_one_id_are_refused(serving: Any) -> None:
    class Twice(agentenv.ToolEnv[Any]):
        @classmethod
        def make_tasks(cls, n: int, *, seed: int = 0, split: str = "train") -> list[Task]:
            return [Task(str(i), f"question {seed}", ("a",), split) for i in range(n)]

    with serving(Twice) as served:
        cls = env_class(f"remote:{served.url}")
        assert len(cls.make_tasks(2, seed=1)) == len(cls.make_tasks(2, seed=1)) == 2
        with pytest.raises(ConfigurationError, match="'0'"):
            cls.make_tasks(2, seed=2)
