"""Programs that keep their own state from being brought back: whatever strategy goes back, no episode is masked for it."""

import asyncio
import json
import time
from collections.abc import Mapping, Sequence

import pytest

from agentenv.core.chat import InlineFormat
from agentenv.core.rollout import EpisodeSpec, RolloutConfig
from agentenv.core.trajectory import Trajectory
from agentenv.data.code_tasks import generate_code_tasks
from agentenv.envs.code import STOP, Code
from agentenv.errors import SnapshotRefused, StateLost
from agentenv.policies.fakes import ByteTokenizer
from agentenv.policies.scripted import ScriptedPolicy
from agentenv.sandbox import jail_session as sessions
from agentenv.sandbox.executor import JailExecutor
from agentenv.sandbox.types import ExecStatus, ExecutionLimits
from agentenv.trainers.strategies.rollout_context import RolloutContext
from agentenv.trainers.strategies.strategies import get_strategy, play_groups


@pytest.fixture(name="box")
def _box(box_of_module: JailExecutor) -> JailExecutor:
    return box_of_module


LIMITS = ExecutionLimits(wall_s=20.0)
CONFIG = RolloutConfig(context_tokens=1 << 16, turn_tokens=1 << 14, stop=STOP)
(TASK,) = generate_code_tasks(1)
SOLVED = f"<submit>{TASK.data['solution']}</submit>"
TOKENIZER = ByteTokenizer()

# Each can be captured once, and what it froze never forks again.
ARMED = "import os, posix\nmarks, close, setsid = [], os.close, os.setsid\n"
WAYS = {
    "its frozen interpreter ends": f"{ARMED}def count(fd):\n close(fd); marks.append(1)\n"
    " if len(marks) > 4: posix._exit(0)\nos.close = count",
    "its fork ends": f"{ARMED}def count(fd): close(fd); marks.append(1)\n"
    "def leave(): posix._exit(0) if marks else setsid()\nos.close, os.setsid = count, leave",
    "its fork makes another": f"{ARMED}def count(fd): close(fd); marks.append(1)\n"
    "def leave(): setsid(); marks and posix.fork()\nos.close, os.setsid = count, leave",
}
SEEDS = {"clock": "import time\nt = time.time_ns()", "urandom": "import os\nt = os.urandom(8)"}


def cell(code: str) -> str:
    return f"<python>{code}</python>"


def played(
    box: JailExecutor,
    strategy: str,
    options: dict[str, object],
    script: Mapping[str, Sequence[str]],
    slots: int,
) -> list[Trajectory]:
    env = Code(executor=box, tasks=[TASK], limits=LIMITS, max_turns=9)
    specs = [EpisodeSpec(one, TASK, seed, "g") for seed, one in enumerate([env, *env.fork(slots - 1)])]
    context = RolloutContext(ScriptedPolicy(script), InlineFormat(TOKENIZER), CONFIG, TOKENIZER.decode)
    try:
        (group,) = asyncio.run(play_groups([specs], get_strategy(strategy, options), context))
    finally:
        for spec in specs:
            spec.env.close()
    return group


def statuses(trajectory: Trajectory) -> list[str]:
    return [result.data.get("status", "") for turn in trajectory.turns for result in turn.tool_results]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("way", WAYS)
def test_a_state_that_its_program_destroyed_is_lost_and_says_so(
    box: JailExecutor, way: str, seed: str
) -> None:
    with box.open(limits=LIMITS) as session:
        session.run("x = 1")
        first = session.snapshot()
        session.run(f"{SEEDS[seed]}\n{WAYS[way]}")
        point = session.snapshot()
        for _ in range(2):
            with pytest.raises(StateLost):
                session.restore(point)
            with pytest.raises(SnapshotRefused):
                session.snapshot()
            told = session.run("print('ran')")
            assert (told.status, told.state_lost, told.stdout) == (ExecStatus.KILLED, True, "")
            assert session.run("6 * 7").value == "42"
        session.restore(first)
        assert session.run("x").value == "1"


@pytest.mark.parametrize("commit", ["eager", "on_success"])
@pytest.mark.parametrize("way", WAYS)
def test_a_rollback_to_a_destroyed_state_masks_no_episode(box: JailExecutor, way: str, commit: str) -> None:
    armed = cell(f"{SEEDS['clock']}\n{WAYS[way]}")
    script = {"e-0": [armed, cell("1 / 0"), *[cell("t")] * 3, cell("6 * 7"), SOLVED]}
    (episode,) = played(box, "rollback", {"commit": commit}, script, 1)
    assert (episode.valid, episode.reward) == (True, 1.0), episode.error
    if commit == "eager":
        assert statuses(episode)[:3] == ["ok", "killed", "ok"]
        assert "names are lost" in str(episode.turns[1].observation)


@pytest.mark.parametrize("way", WAYS)
def test_a_tree_that_forks_back_to_a_destroyed_state_masks_no_leaf(box: JailExecutor, way: str) -> None:
    armed = cell(f"{SEEDS['urandom']}\n{WAYS[way]}")
    # The present interpreter can be captured once again, and so the tree goes back.
    failing = cell("marks.clear()\n1 / 0")
    script = {f"e-{i}": [armed, failing, cell("t"), SOLVED] for i in range(2)}
    leaves = played(box, "tree", {"fork_at": "failure", "roots": 1}, script, 2)
    assert [(leaf.valid, leaf.reward) for leaf in leaves] == [(True, 1.0)] * len(leaves)


def retried(box: JailExecutor, first: str) -> list[Trajectory]:
    """An episode that fails, and its retry from the second turn."""
    found = {"trajectory_outcome": "failure", "improvement_suggestion": "Do better.", "retry_from_step": 1}
    script = {
        "e-0": [cell(first), cell("1 / 0"), "<submit>0</submit>", cell("t"), SOLVED],
        "e-0-reflection": [json.dumps(found)],
    }
    group = played(box, "reflect_retry", {}, script, 2)
    assert [one.error for one in group if not one.valid] == []
    return [one for one in group if one.id in ("e-0", "e-0-retry")]


@pytest.mark.parametrize("way", WAYS)
def test_a_retry_from_a_destroyed_state_is_told_and_not_masked(box: JailExecutor, way: str) -> None:
    base, retry = retried(box, f"{SEEDS['clock']}\n{WAYS[way]}")
    assert (base.reward, retry.reward) == (0.0, 1.0)
    assert statuses(retry)[:2] == ["ok", "killed"]


def test_a_retry_whose_replay_comes_out_otherwise_is_not_made(box: JailExecutor) -> None:
    (base,) = retried(
        box,
        "import os, threading, time\nprint(os.urandom(8))\n"
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
    )
    assert base.info["strategy"]["retries_refused"] == 1


def test_what_was_built_again_and_refuses_to_be_frozen_is_gone_on_from(box: JailExecutor) -> None:
    later = time.time() + 3.0
    busy = (
        f"import threading, time\nif time.time() > {later}:\n"
        " threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\nx = 7\ndel threading, time"
    )
    with box.open(limits=LIMITS) as session:
        session.run(f"{busy}\n{WAYS['its fork ends']}")
        point = session.snapshot()
        time.sleep(max(0.0, later - time.time()) + 0.1)
        for _ in range(2):
            session.restore(point)
            assert session.run("x").value == "7"


def test_cells_that_take_too_long_together_are_not_run_again(
    box: JailExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "REBUILD_S", 0.2)
    with box.open(limits=LIMITS) as session:
        for _ in range(3):
            session.run("import time\ntime.sleep(0.3)")
        session.run(WAYS["its fork ends"])
        point = session.snapshot()
        with pytest.raises(StateLost, match="1 of 4"):
            session.restore(point)
