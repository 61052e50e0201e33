"""TraceCode-v0: the turns of a round and what ends them, strict rollback, failed plans, and that hidden tests alone pay."""

from typing import Any

import pytest

from agentenv.core.env import Env
from agentenv.core.env_contract import EnvContract
from agentenv.core.types import EndReason, Step, Task, ToolStatus
from agentenv.data.code_tasks import generate_code_tasks
from agentenv.envs.trace_code import ASK, INSTRUMENT, PLAN, SUBMIT, UNTRACED, TraceCode
from agentenv.errors import ConfigurationError, DatasetError, SandboxFault, UnknownName
from agentenv.sandbox.fakes import FakeExecutor
from agentenv.sandbox.grading import CallTest, StdioTest
from agentenv.sandbox.types import ExecResult, ExecutionLimits

TESTS = tuple(CallTest("f", (n,), 2 * n) for n in (0, 1, 2, 3, 5, 7))
TASK = Task("t", "Write f(x) that doubles x.", ("",), data={"tests": TESTS})
RIGHT, ONE, TWO = "def f(x): return x * 2", "def f(x): return 0", "def f(x): return 0 if x == 0 else 2"
CODED = "def f(x): return {0: 0, 1: 2, 2: 4, 3: 6}[x]"
PRINTS = "def f(x):\n    print('in', x)\n    return 0"


class TestContract(EnvContract):
    def make(self) -> Env[Any]:
        return TraceCode(executor=FakeExecutor(), tasks=generate_code_tasks(20))


def begun(task: Task = TASK, **options: Any) -> TraceCode:
    env = TraceCode(executor=FakeExecutor(), tasks=[task], **options)
    env.reset(seed=0)
    return env


def round_of(env: TraceCode, program: str, *, plan: str = "plan", prints: str = PRINTS) -> list[Step]:
    return [
        env.step(f"<instrument>{prints}</instrument>"),
        env.step(f"<plan>{plan}</plan>"),
        env.step(f"<submit>{program}</submit>"),
    ]


def text(step: Step) -> str:
    return step.observation[0].text


def test_a_right_program_ends_at_once_and_hidden_tests_pay() -> None:
    step = begun().step(f"<submit>{RIGHT}</submit>")
    assert (step.reward, step.terminated, step.info["end_reason"]) == (1.0, True, EndReason.SUBMITTED)
    assert (step.info["passed"], step.info["tests"], step.info["rounds"]) == (2, 2, 0)
    coded = begun().step(f"<submit>{CODED}</submit>")  # what the public tests want, written down
    assert (coded.reward, coded.terminated) == (0.0, True)


def test_a_round_traces_plans_and_repairs() -> None:
    env = begun()
    first = env.step(f"<submit>{ONE}</submit>")
    assert text(first).startswith(
        "\n1 of 4 public tests passed (3 wrong).\nIt fails here: f(1) must give 2.\n"
    )
    assert text(first).endswith(f"{ASK[INSTRUMENT]}\n")
    traced, planned, repaired = round_of(env, RIGHT)
    printed = "\n".join(f"[f({n})]\nin {n}\nreturned: 0" for n in (1, 2, 3))  # each public test that fails
    assert text(traced) == f"\n<output>\n{printed}\n</output>\n{ASK[PLAN]}\n"
    assert text(planned) == f"\nIt starts from this program:\n{ONE}\n{ASK[SUBMIT]}\n"
    assert (repaired.reward, repaired.terminated, repaired.info["rounds"]) == (1.0, True, 1)


def test_an_equal_repair_is_rolled_back_and_its_plan_remembered() -> None:
    env = begun()
    env.step(f"<submit>{TWO}</submit>")
    other = "def f(x): return 4 if x == 2 else 0"  # two tests as well, but others
    rolled = round_of(env, other, plan="try four")[-1]
    assert "no more than before, so the program goes back to the one with 2" in text(rolled)
    assert rolled.info["tool_results"][0].data == {"passed": 2, "tests": 4, "accepted": False}
    traced = env.step(f"<instrument>{TWO}</instrument>")
    kept = "try four\n(rolled back: 2 of 4 public tests passed (2 wrong).\nIt fails here: f(1) must give 2.)"
    assert f"Plans that failed:\n{kept}\n" in text(traced)
    assert TWO in text(env.step("<plan>again</plan>"))
    last = env.step(f"<submit>{other}</submit>")
    assert (last.terminated, last.reward) == (True, 0.0)  # two rolled back in a row
    assert last.info["answer"] == TWO


def test_a_plan_suggests_the_prints_of_the_next_round() -> None:
    """The suggestion is shown where the next prints are asked for, once, and is no part of the plan that is remembered."""
    env = begun()
    env.step(f"<submit>{ONE}</submit>")
    rolled = round_of(env, ONE, plan="try four <prints> the value of x\n</prints>")[-1]
    asked = f"\nThe plan suggests to print: the value of x\n{ASK[INSTRUMENT]}\n"
    assert text(rolled).endswith(asked)
    traced = env.step(f"<instrument>{PRINTS}</instrument>")
    assert "try four\n(rolled back:" in text(traced)
    env.step("<plan>try two, and print nothing</plan>")
    assert "suggests" not in text(env.step(f"<submit>{TWO}</submit>"))
    better = round_of(
        env, "def f(x): return 2 * x if x < 3 else 0", plan="double <prints>a</prints> <prints>b"
    )
    assert "The plan suggests to print: a\n" in text(better[-1])


def test_a_program_that_raises_is_shown_its_traceback_before_prints_are_asked_for() -> None:
    """And again with every round that starts from it; the run has given it, whether prints follow or not."""
    env = begun()
    raising = "def f(x):\n    share = 1 // x\n    return share"
    shown = text(env.step(f"<submit>{raising}</submit>"))
    assert shown.startswith(
        "\n0 of 4 public tests passed (1 error, 3 wrong).\nIt fails here: f(0) must give 0.\n"
    )
    failure = shown.partition("It fails here")[2]
    assert "line 2, in f" in failure
    assert "ZeroDivisionError" in failure
    assert failure.endswith(f"Variables on line 2: x = 0\n{ASK[INSTRUMENT]}\n")
    rolled = round_of(env, "def f(x): return 1", prints=raising)[-1]
    assert text(rolled).partition("It fails here")[2] == failure


def test_a_long_traceback_is_cut() -> None:
    env = begun(observation_chars=100)
    shown = text(env.step("<submit>def f(x): raise ValueError('n' * 900)</submit>"))
    assert "characters left out" in shown
    assert len(shown) < 100 + 400


def test_repairs_that_pass_as_many_can_become_the_base() -> None:
    """``as_many`` keeps an equal repair and takes back a worse one; ``all`` keeps both. Neither is progress."""
    other = "def f(x): return 4 if x == 2 else 0"  # passes two, as TWO does
    for accept, second in (("as_many", other), ("all", ONE)):
        env = begun(accept=accept, patience=3)
        env.step(f"<submit>{TWO}</submit>")
        equal = round_of(env, other, plan="try four")[-1]
        assert "2 of 4 public tests passed (2 wrong). That is no more than the 2 of the best one." in text(
            equal
        )
        assert equal.info["tool_results"][0].data == {"passed": 2, "tests": 4, "accepted": True}
        traced = env.step(f"<instrument>{other}</instrument>")
        assert "try four\n(kept: 2 of 4" in text(traced)
        assert other in text(env.step("<plan>zero</plan>"))
        worse = env.step(f"<submit>{ONE}</submit>")
        assert worse.info["tool_results"][0].data["accepted"] == (accept == "all")
        env.step(f"<instrument>{ONE}</instrument>")
        assert f"It starts from this program:\n{second}\n" in text(env.step("<plan>again</plan>"))
        assert env.step(f"<submit>{ONE}</submit>").info["answer"] == (other if accept == "as_many" else ONE)


@pytest.mark.parametrize("patience", [1, 3])
def test_so_many_repairs_in_a_row_that_are_no_better_end_the_episode(patience: int) -> None:
    env = begun(patience=patience)
    env.step(f"<submit>{ONE}</submit>")
    ended = [round_of(env, ONE)[-1].terminated for _ in range(patience)]
    assert ended == [False] * (patience - 1) + [True]


def test_a_repair_that_only_makes_up_for_a_worse_one_is_no_progress() -> None:
    """2, then 1, then 2 public tests: with ``all`` the third is better than its base, and still the second in a row."""
    env = begun(accept="all")
    env.step(f"<submit>{TWO}</submit>")
    assert not round_of(env, ONE, prints=TWO)[-1].terminated
    last = round_of(env, TWO)[-1]
    assert (last.terminated, last.info["answer"]) == (True, TWO)


def test_two_plans_are_shown_and_a_better_repair_ends_the_streak() -> None:
    env = begun()
    env.step(f"<submit>{ONE}</submit>")
    round_of(env, ONE, plan="first")
    better = round_of(env, TWO, plan="second", prints=ONE)[-1]
    assert better.info["tool_results"][0].data["accepted"]
    assert not round_of(env, ONE, plan="third", prints=TWO)[-1].terminated
    shown = text(env.step(f"<instrument>{TWO}</instrument>"))
    assert "first" in shown
    assert "third" in shown


def test_prints_that_change_the_meaning_are_said_to() -> None:
    env = begun()
    env.step(f"<submit>{ONE}</submit>")
    step = env.step(f"<instrument>{TWO}</instrument>")
    assert "may mislead" in text(step)
    assert step.info["tool_results"][0].status is ToolStatus.ERROR


def test_a_failed_plan_is_remembered_with_the_error_of_its_repair() -> None:
    """With room for 2 * 200 characters of two plans; one alone may have all of it."""
    env = begun()
    env.step(f"<submit>{ONE}</submit>")
    round_of(env, "def f(x):\n    share = 1 // x\n    return 0", plan="divide")
    shown = text(env.step(f"<instrument>{PRINTS}</instrument>"))
    said = shown.partition("Plans that failed:\n")[2]
    assert said.startswith("divide\n(rolled back: 0 of 4 public tests passed (1 error, 3 wrong).")
    assert "ZeroDivisionError" in said
    assert "Variables on line 2: x = 0" in said


def test_traces_share_the_room_and_say_which_tests_they_leave_out() -> None:
    """150 characters have room for one trace of 100, 250 for two, which have 125 each."""
    env = begun(observation_chars=150)
    env.step(f"<submit>{ONE}</submit>")
    shown = text(env.step(f"<instrument>{PRINTS}</instrument>"))
    assert "[f(1)]\nin 1\nreturned: 0\n[failing tests that are not shown: 2]\n" in shown
    env = begun(observation_chars=250)
    env.step(f"<submit>{ONE}</submit>")
    shown = text(env.step("<instrument>def f(x):\n    print('n' * 200)\n    return 0</instrument>"))
    assert shown.count("characters left out") == 2
    assert "[f(2)]" in shown
    assert "[failing tests that are not shown: 1]" in shown


def test_five_rounds_at_most() -> None:
    env = begun(rounds=1)
    env.step(f"<submit>{ONE}</submit>")
    assert round_of(env, TWO)[-1].terminated


@pytest.mark.parametrize(
    ("before", "last"),
    [
        (0, "nothing"),
        (0, "<submit> </submit>"),
        (2, "<plan></plan>"),
        (2, "<plan> <prints>x</prints></plan>"),
        (3, "<submit></submit>"),
    ],
)
def test_an_action_without_a_plan_or_a_program_ends_the_episode(before: int, last: str) -> None:
    """The published rule; a slip that is allowed is corrected instead, and the next one ends it all the same."""
    actions = [f"<submit>{TWO}</submit>", f"<instrument>{TWO}</instrument>", "<plan>plan</plan>"][:before]
    wanted = (SUBMIT, INSTRUMENT, PLAN, SUBMIT)[before]
    for slips in (0, 1):
        env = begun(slips=slips)
        for action in actions:
            env.step(action)
        if slips:
            corrected = env.step(last)
            assert (text(corrected), corrected.info["valid"]) == (f"\n{ASK[wanted]}\n", False)
        step = env.step(last)
        assert (step.terminated, step.reward, step.info["valid"]) == (True, 0.0, False)
        assert step.info["end_reason"] is EndReason.PARSE_ERROR
        assert step.info["answer"] == (TWO if before else "")


@pytest.mark.parametrize(
    "last", ["<plan>what is wanted are prints</plan>", "<instrument>```python\n```</instrument>"]
)
def test_without_prints_the_plan_is_made_from_no_output(last: str) -> None:
    """The published program skips the instrumentation then; a slip that is allowed asks for it once more before."""
    env = begun(slips=1)
    env.step(f"<submit>{ONE}</submit>")
    assert text(env.step(last)) == f"\n{ASK[INSTRUMENT]}\n"
    step = env.step(last)
    assert (text(step), step.terminated) == (f"\n{UNTRACED}\n{ASK[PLAN]}\n", False)
    assert (step.info["valid"], step.info["tool_results"][0].status) == (False, ToolStatus.FORMAT_ERROR)
    env.step("<plan>try one</plan>")
    env.step(f"<submit>{ONE}</submit>")
    assert f"{UNTRACED}\nPlans that failed:\ntry one\n(rolled back:" in text(env.step(last))
    env.step("<plan>double</plan>")
    assert env.step(f"<submit>{RIGHT}</submit>").reward == 1.0


def test_programs_that_read_input() -> None:
    tests = tuple(StdioTest(f"{n}\n", f"{2 * n}") for n in (1, 2, 3))
    env = begun(Task("s", "Double the number.", ("",), data={"tests": tests}), public=2)
    first = env.step("<submit>print(input())</submit>")
    assert "for the input '1\\n' it must print '2'" in text(first)
    printed = "[the input '1\\n']\n1\n[the input '2\\n']\n2"
    assert f"<output>\n{printed}\n</output>" in text(env.step("<instrument>print(input())</instrument>"))


def test_prints_of_a_program_that_writes_its_answer_are_not_said_to_mislead() -> None:
    """They stand among its output, so that a right one becomes wrong. A run that now ends otherwise is told all the same."""
    tests = tuple(StdioTest(f"{n}\n", f"{2 * n}") for n in (0, 1, 2))
    for prints, kept in (("print('in', x)", True), ("print(1 / int(x))", False)):
        env = begun(Task("s", "Double the number.", ("",), data={"tests": tests}), public=2)
        assert text(env.step("<submit>print(input())</submit>")).startswith("\n1 of 2 public tests passed")
        step = env.step(f"<instrument>x = input()\n{prints}\nprint(x)</instrument>")
        assert ("may mislead" in text(step)) is not kept
        assert step.info["tool_results"][0].status is (ToolStatus.OK if kept else ToolStatus.ERROR)


def test_a_failure_of_the_sandbox_is_no_failed_program() -> None:
    env = TraceCode(executor=FakeExecutor(faults=9), tasks=[TASK])
    env.reset(seed=0)
    with pytest.raises(SandboxFault):
        env.step(f"<submit>{RIGHT}</submit>")


def test_bad_arguments_and_tasks_are_named() -> None:
    for options in (
        {"prompt": "x"}, {"public": 0}, {"rounds": -1}, {"slips": -1}, {"patience": 0}, {"observation_chars": 0}
    ):  # fmt: skip
        with pytest.raises(ConfigurationError):
            begun(**options)
    with pytest.raises(DatasetError, match="'bare'"):
        begun(Task("bare", "?"))


def test_progress_pays_what_each_accepted_program_adds_on_hidden_tests() -> None:
    """Of the hidden 5 and 7, ``ONE`` and ``TWO`` pass none, a program for odd numbers both: 0 and 1, and 1 in all.

    What the public tests want, written down, is accepted and earns nothing.
    """
    odd = "def f(x): return 2 * x if x != 2 else 0"
    env = begun(reward="progress")
    assert env.step(f"<submit>{ONE}</submit>").reward == 0.0
    assert round_of(env, odd)[-1].reward == 1.0
    traced, planned, repaired = round_of(env, RIGHT, prints=odd)
    assert [step.reward for step in (traced, planned, repaired)] == [0.0, 0.0, 0.0]
    assert repaired.info["solved"]
    coded = begun(reward="progress").step(f"<submit>{CODED.replace('[x]', '.get(x)')}</submit>")
    assert (coded.reward, coded.terminated) == (0.0, True)


def test_progress_takes_back_what_an_accepted_program_breaks() -> None:
    """The first passes one public test and both hidden ones, the second three public ones and one hidden: 1 - 1/2."""
    env = begun(reward="progress")
    first, second = (
        "def f(x): return 2 * x if x > 3 or not x else 0",
        "def f(x): return 2 * x if x < 6 else 0",
    )
    assert env.step(f"<submit>{first}</submit>").reward == 1.0
    last = round_of(env, second)[-1]
    assert (last.reward, last.terminated, last.info["solved"]) == (-0.5, True, False)


def test_progress_is_rewound_with_the_episode() -> None:
    env = begun(reward="progress")
    snapshot = env.snapshot()
    assert env.step(f"<submit>{RIGHT}</submit>").reward == 1.0
    env.restore(snapshot)
    assert env.step(f"<submit>{RIGHT}</submit>").reward == 1.0


class LimitsKept(FakeExecutor):
    """Keeps the limits of each run."""

    def __init__(self) -> None:
        super().__init__()
        self.limits: list[ExecutionLimits | None] = []

    def run(self, code: str, *, limits: ExecutionLimits | None = None, **options: Any) -> ExecResult:
        self.limits.append(limits)
        return super().run(code, limits=limits, **options)


def test_a_run_has_ten_seconds_all_of_which_it_may_compute() -> None:
    """TraceCoder stops a program after 10 s; tests, prints and the grade at the end are such runs."""
    cases: list[tuple[dict[str, Any], ExecutionLimits | None]] = [
        ({}, ExecutionLimits(wall_s=10.0, cpu_s=10.0)),
        ({"limits": None}, None),
    ]
    for options, wanted in cases:
        executor = LimitsKept()
        env = TraceCode(executor=executor, tasks=[TASK], rounds=1, **options)
        env.reset(seed=0)
        env.step(f"<submit>{ONE}</submit>")
        assert round_of(env, RIGHT)[-1].terminated
        assert len(executor.limits) > 5
        assert set(executor.limits) == {wanted}


@pytest.mark.parametrize("option", ["reward", "accept"])
def test_an_unknown_reward_or_rule_is_named(option: str) -> None:
    with pytest.raises(UnknownName, match="'some'"):
        TraceCode(executor=FakeExecutor(), tasks=[TASK], **{option: "some"})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("written", "plan"),
    [
        ("<prints>x</prints> The cause is y.", "The cause is y."),
        ("The cause <prints>x</prints>is y.<prints>z</prints>", "The cause is y."),
        ("The cause is y. <prints>x", "The cause is y."),
    ],
)
def test_a_plan_is_what_stands_around_its_prints(written: str, plan: str) -> None:
    """Wherever the block with what to print next time stands."""
    env = begun()
    for action in (f"<submit>{TWO}</submit>", f"<instrument>{TWO}</instrument>", f"<plan>{written}</plan>"):
        step = env.step(action)
    assert not step.terminated
    assert env.state.plan == plan
