"""Hostile programs inside a rollout: no episode is masked, and the ones beside it end as if they were alone."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from agentenv.core.chat import InlineFormat
from agentenv.core.rollout import EpisodeSpec, RolloutConfig, rollout
from agentenv.core.trajectory import Trajectory, to_record
from agentenv.data.code_tasks import generate_code_tasks
from agentenv.envs.code import Code
from agentenv.policies.fakes import ByteTokenizer
from agentenv.policies.scripted import ScriptedPolicy
from agentenv.sandbox.executor import JailExecutor
from agentenv.sandbox.fakes import FakeExecutor
from agentenv.sandbox.types import ExecResult, ExecutionLimits

CONFIG = RolloutConfig(context_tokens=1 << 16, turn_tokens=1 << 15)
TASKS = generate_code_tasks(4)
FORGED = """
import json, os, stat, struct
def is_socket(fd):
    try: return stat.S_ISSOCK(os.fstat(fd).st_mode)
    except OSError: return False
def say(**parts):
    body = json.dumps(dict(ok=True, value=None, error=None, folder="/", digest="") | parts).encode()
    body = body.replace(b'"LINE"', b"1e999")
    os.write(next(filter(is_socket, range(3, 64))), struct.pack(">I", len(body)) + body)
"""
HARM = {
    "deep folders": "import os\nfor _ in range(3000): os.mkdir('d'); os.chdir('d')",
    "a closed folder": "import os\nos.mkdir('d'); open('d/f', 'w'); os.chmod('d', 0); os.chmod('.', 0)",
    "a link for its folder": "import os\nos.rename('/box/work', '/box/tmp/w'); os.symlink('/box/tmp/w', '/box/work')",
    "files without end": "for i in range(5000): open(f'g{i}', 'w').close()",
    "an infinite line": FORGED + "say(ok=False, error=dict(type='T', message='m', line='LINE'))",
    "no answer": FORGED + "os.write(next(filter(is_socket, range(3, 64))), b'\\xff' * 4096)",
    "its own end": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
}
HALF = {
    "value": "class A:\n def __repr__(self): return 'seen \\ud800'\nA()",
    "only that": "class A:\n def __repr__(self): return '\\udfff'\nA()",
    "two halves that are a pair": "class A:\n def __repr__(self): return '\\ud83d\\ude00'\nA()",
    "message": "raise ValueError('\\ud800')",
    "class": "raise type('E\\ud800', (Exception,), {})",
    "print": "print('\\ud800')",
    "file": "import os\nopen(b'\\xff', 'w'); print(os.listdir('.'))",
    "display": "import sys\nsys.displayhook = print\nsys.stdout.reconfigure(errors='surrogatepass')\nprint('\\ud800')",
    "variable": "class A:\n def __repr__(self): return '\\ud800'\na = A()\nraise ValueError(a)",
    "forged": FORGED + "say(value='\\ud83d')",
    "forged error": FORGED + "say(ok=False, error=dict(type='\\ud800', message='\\udfff', line=1))",
}


def played(box: JailExecutor, programs: Sequence[str], *, stateful: bool = True) -> list[Trajectory]:
    """An episode for each program and at last that of the expert."""
    env = Code(
        executor=box, tasks=TASKS, stateful=stateful, variables=True, limits=ExecutionLimits(wall_s=30.0)
    )
    envs = [env, *env.fork(len(programs))] if programs else [env]
    specs = [EpisodeSpec(one, TASKS[index % len(TASKS)], index) for index, one in enumerate(envs)]
    actions = {
        f"t-{index}": [f"<python>{code}</python>"] * 2 + ["<submit>0</submit>"]
        for index, code in enumerate(programs)
    }
    solution = specs[-1].task.data["solution"]
    actions[f"t-{len(programs)}"] = [f"<python>{solution}</python>", f"<submit>{solution}</submit>"]
    policy, chat = ScriptedPolicy(actions), InlineFormat(ByteTokenizer())
    try:
        return asyncio.run(rollout(specs, policy, chat, CONFIG, name="t"))
    finally:
        for one in envs:
            one.close()


@pytest.mark.parametrize("stateful", [True, False])
def test_half_a_surrogate_pair_ends_no_rollout(box: JailExecutor, stateful: bool) -> None:
    cases = [code for name, code in HALF.items() if stateful or not name.startswith("forged")]
    *hostile, expert = played(box, cases, stateful=stateful)
    for code, trajectory in zip(cases, hostile, strict=True):
        assert trajectory.valid, (code, trajectory.error)
        assert trajectory.reward == 0.0
        str(to_record(trajectory)).encode()
    assert (expert.valid, expert.reward) == (True, 1.0)


def test_harm_to_a_programs_own_box_masks_no_episode(box: JailExecutor) -> None:
    *hostile, expert = played(box, [*HARM.values()])
    assert {name: one.error for name, one in zip(HARM, hostile, strict=True) if not one.valid} == {}
    assert (expert.valid, expert.reward) == (True, 1.0)


class Recording(FakeExecutor):
    """Remembers the trust domain of each run."""

    def __init__(self) -> None:
        super().__init__()
        self.domains: list[str] = []

    def run(self, code: str, *, domain: str = "", **options: Any) -> ExecResult:
        self.domains.append(domain)
        return super().run(code, domain=domain, **options)


@pytest.mark.parametrize("stateful", [True, False])
def test_every_episode_runs_its_programs_in_a_domain_of_its_own(stateful: bool) -> None:
    box, seen = Recording(), []
    env = Code(executor=box, tasks=TASKS, stateful=stateful, attempts=3, max_turns=9)
    for _ in range(2):
        box.domains.clear()
        env.reset(seed=0)
        for action in (
            "<python>1</python>",
            "<submit>0</submit>",
            "<python>2</python>",
            "<submit>1</submit>",
        ):
            env.step(action)
        assert len(box.domains) >= (2 if stateful else 4)
        assert len(set(box.domains)) == 1
        seen += [box.domains[0]]
    assert "" not in seen
    assert len(set(seen)) == 2
