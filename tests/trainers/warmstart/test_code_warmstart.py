"""The warm start on programming tasks in miniature: what the demonstrators write, what they are shown, what is kept."""

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from agentenv.cli.main import main
from agentenv.data.code_tasks import generate_code_tasks
from agentenv.envs.code import Code
from agentenv.errors import ConfigurationError, SandboxFault
from agentenv.policies.card import read_card
from agentenv.policies.policy_spec import make_policy
from agentenv.progress import SilentDisplay
from agentenv.sandbox.backends import unavailable
from agentenv.sandbox.fakes import FakeExecutor
from agentenv.sandbox.types import ExecResult, ExecStatus
from agentenv.trainers.warmstart.code_demonstrators import (
    mender,
    prover,
    slip,
    slip_in_step,
    step_by_step,
    stubborn,
)
from agentenv.trainers.warmstart.code_warmstart import (
    CodeWarmstartConfig,
    _play_demonstration,
    code_warmstart,
    demonstrations,
)

TINY = CodeWarmstartConfig(tasks=8, steps=1, episodes=4, layers=1, heads=1, judged=1)
TASKS = generate_code_tasks(30, steps=1, split="train")
sandboxed = pytest.mark.skipif(bool(unavailable("bwrap")), reason=unavailable("bwrap") or "there is one")


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.data["solution"].split("\n")[-1].strip())
def test_a_slip_raises_whenever_the_program_is_called(task: Any) -> None:
    example = {"list": [7, 2, 9, 4], "word": "banane", "number": 17}[task.data["family"]]
    whole: dict[str, Any] = {}
    exec(task.data["solution"], whole)
    whole["solve"](example)
    for seed in range(6):
        broken = slip(task.data["solution"], Random(seed))
        with pytest.raises((SyntaxError, NameError)):
            exec(f"{broken}\nsolve({example!r})", {})


def test_who_does_what() -> None:
    task, rng = TASKS[0], Random(0)
    right = f"<submit>{task.data['solution']}</submit>"
    assert prover(task, rng)[-1] == right
    tried, again, handed_in = mender(task, rng)
    assert task.data["solution"] not in tried
    assert [again, handed_in] == prover(task, rng)
    tried, handed_in = stubborn(task, rng)
    assert handed_in != right
    assert handed_in.removeprefix("<submit>").removesuffix("</submit>") in tried


@pytest.mark.parametrize("task", generate_code_tasks(10, steps=3, split="train"), ids=str)
def test_a_slip_in_a_step_raises_and_a_step_without_one_does_not(task: Any) -> None:
    x = {"list": [7, 2, 9, 4], "word": "banane", "number": 17}[task.data["family"]]
    for line in task.data["solution"].split("\n")[1:-1]:
        for seed in range(4):
            with pytest.raises((SyntaxError, NameError)):
                exec(slip_in_step(line.strip(), Random(seed)), {"x": x})
        exec(line.strip(), {"x": x})


def test_step_by_step_the_careful_write_every_step_once_and_the_careless_slip_in_each() -> None:
    (task,) = generate_code_tasks(1, steps=3, split="train")
    right = f"<submit>{task.data['solution']}</submit>"
    careful = step_by_step(0.0)(task, Random(0))
    assert len(careful) == 4
    assert careful[0].startswith("<python>x = ")
    assert [action.count("print(x)") for action in careful] == [1, 1, 1, 0]
    assert careful[-1] == right
    shown = [step_by_step(1.0)(task, Random(seed)) for seed in range(40)]
    assert all(actions[0] not in careful for actions in shown)
    mended = [actions for actions in shown if actions[-1] == right]
    assert mended
    # Three slips, all mended.
    assert all(len(actions) == 7 and actions[1] == careful[0] for actions in mended)
    assert all(len(actions) < 7 for actions in shown if actions not in mended)


@sandboxed
@pytest.mark.parametrize("stateful", [False, True])
def test_what_is_shown_is_what_came_of_it(stateful: bool) -> None:
    def failures(careless: float) -> list[list[bool]]:
        config = replace(TINY, stateful=stateful, careless=careless, difficulty=2)
        demos = demonstrations(config)
        assert all(demo[0].kind == "opening" for demo in demos)
        pages = [[piece.text for piece in demo if piece.kind == "page"] for demo in demos]
        assert all(text.startswith("\n<output>\n") for page in pages for text in page)
        return [["Error" in text for text in page] for page in pages]

    assert not any(failed for page in failures(0.0) for failed in page)
    assert all(page[0] for page in failures(1.0))


class Stopping(FakeExecutor):
    """Stops the first ``stops`` runs."""

    def __init__(self, stops: int) -> None:
        super().__init__()
        self.stops = stops

    def run(self, code: str, **rest: Any) -> ExecResult:
        if self.stops:
            self.stops -= 1
            return ExecResult(ExecStatus.KILLED)
        return super().run(code, **rest)


def test_a_demonstration_whose_program_was_stopped_is_played_again() -> None:
    def shown(stops: int) -> list[str]:
        env = Code(executor=Stopping(stops), tasks=TASKS, stateful=False)
        return [piece.text for piece in _play_demonstration(env, TASKS[0], mender(TASKS[0], Random(0)))]

    assert shown(1) == shown(0)
    with pytest.raises(SandboxFault, match="killed"):
        shown(100)


@sandboxed
def test_the_policy_comes_with_its_card(tmp_path: Path) -> None:
    figures = code_warmstart(TINY, SilentDisplay(), tmp_path / "policy")
    assert 0 <= figures["greedy"] <= 1
    card = read_card(tmp_path / "policy")
    assert (card.env, card.prompt, card.max_turns) == ("agentenv/Code-v0", "{question}", 3)
    policy = make_policy(f"hf:{tmp_path / 'policy'}")
    tokens = [policy.tokenizer.encode(f"<{tag}>") for tag in ("python", "submit", "output")]
    assert [len(ids) for ids in tokens] == [1, 1, 1]
    assert "--env code" in (tmp_path / "policy" / "README.md").read_text()


def test_flags_of_one_kind_do_not_go_with_the_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["warmstart", "--out", str(tmp_path / "p"), "--env", "code", "--reading-steps", "1"]) == 1
    said = capsys.readouterr().err
    assert "--reading-steps" in said
    assert "--env code" in said


def test_what_only_programs_have_goes_with_them_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["warmstart", "--out", str(tmp_path / "p"), "--careless", "0.5"]) == 1
    assert "--careless does not go with --env search" in capsys.readouterr().err


def test_a_share_of_failures_is_a_share() -> None:
    with pytest.raises(ConfigurationError, match="careless"):
        CodeWarmstartConfig(careless=1.5)
