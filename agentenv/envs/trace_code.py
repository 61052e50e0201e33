"""``agentenv/TraceCode-v0``: repair a program by its trace, in the rounds of TraceCoder (arXiv:2602.06875).

A program is submitted and run on public tests. While it fails, the policy sees the first failing test and the first
traceback, and plays rounds of three turns. ``<instrument>`` adds print statements, whose output on every failing public test
is shown. ``<plan>`` names cause and change and, within ``<prints>``, what the next round should print, which that round is
shown. ``<submit>`` submits a repaired program. A repair that passes strictly more public tests becomes the base of the next
round; any other is rolled back and remembered with its errors (``accept`` has other rules). An action without the required
plan or program ends the episode; without an instrumented program the plan is made without output. Hidden tests, of which
nothing is ever shown, give the reward; only if the task has a single test is that public as well. The reward is given at the
end or, with ``reward = "progress"``, whenever an accepted program increases the share of hidden tests that pass; the
estimator ``turn_roles`` divides it among the three roles.
"""

import itertools
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from agentenv.core.concurrency.deadlines import short_of_time
from agentenv.core.grammar import between, earliest_block, shortened, unfenced
from agentenv.core.types import EndReason, Info, Message, Observation, Step, Task, ToolResult, ToolStatus
from agentenv.envs.program_env import ProgramEnv, counted, describe_run, framed
from agentenv.errors import ConfigurationError, SandboxFault, check_known
from agentenv.sandbox.grading import GRADE_S, CallTest, CaseOutcome, ProgramGrade, StdioTest, Test, grade
from agentenv.sandbox.types import ExecResult, ExecStatus, ExecutionLimits, Executor

SUBMIT, INSTRUMENT, PLAN = "submit", "instrument", "plan"
TAGS = (SUBMIT, INSTRUMENT, PLAN)
PRINTS = "<prints>"
_WANTED_PRINTS = re.compile(r"<prints>.*?(?:</prints>|\Z)", re.DOTALL)
"""Matches what a plan wants the next round to print."""
REMEMBERED = 2
"""Number of failed plans that are shown."""
TEST_CHARS = 100
"""Smallest number of characters for the trace of a test. If there are too many failing tests, the first are shown."""
ACCEPTED: Mapping[str, Callable[[int, int], bool]] = {
    "more": lambda passed, base: passed > base,
    "as_many": lambda passed, base: passed >= base,
    "all": lambda passed, base: True,
}
"""Whether a repair becomes the base, by the numbers of public tests that the repair and the base pass."""

PROMPT = """\
Solve the programming task below. Write the complete program between <submit> and </submit>. If it fails, you will be asked \
to add prints to it (<instrument>), to plan a repair from what they show (<plan>), and to repair it (<submit>).
Task: {question}
"""
ASK = {
    INSTRUMENT: "Add prints to the program that show what goes into each of its parts and what comes out; change nothing "
    "else. Write it between <instrument> and </instrument>.",
    PLAN: "Name the first wrong value, the statement that made it, and why; then say what has to be changed, and between "
    "<prints> and </prints> what to print next time if that does not help. Write all this between <plan> and </plan>.",
    SUBMIT: "Write the repaired program between <submit> and </submit>.",
}
"""The request in each turn, by its tag."""
RUN_LIMITS = ExecutionLimits(wall_s=10.0, cpu_s=10.0)
"""The limits of one run: 10 s, as published, all of which may be processor time."""
UNTRACED = "No prints were added, so nothing is known of a run."
"""Shown instead of the output of an instrumented program."""


@dataclass
class TraceState:
    """All that changes within an episode."""

    task: Task
    wanted: str = SUBMIT
    """The tag that the next action must have."""
    slips: int = 0
    """Number of corrected actions without a plan or a program."""
    round: int = 0
    """Number of repair rounds so far; 0 until the first program is submitted."""
    base: str = ""
    """The program from which the next round starts, and which is graded at the end."""
    base_grade: ProgramGrade = field(default_factory=lambda: ProgramGrade(()))
    most: int = -1
    """The largest number of public tests that a program has passed."""
    streak: int = 0
    """Number of consecutive repairs that passed no more tests than that."""
    plan: str = ""
    """The plan of the present round."""
    suggested: str = ""
    """What the latest plan wants the next round to print; empty if it does not say."""
    failed: list[str] = field(default_factory=list)
    """Every plan whose repair passed no more tests than an earlier one, with the number of passed tests and its errors."""
    paid: float = 0.0
    """The share of hidden tests that has been rewarded so far."""
    domain: str = field(default_factory=lambda: f"episode {secrets.token_hex(8)}")
    """The trust domain of all its runs: while they run, no program of another episode is in their jail."""


class TraceCode(ProgramEnv[TraceState]):
    """Write, instrument, analyse and repair a program; hidden tests give the reward at the end."""

    call_markers: ClassVar[tuple[str, ...]] = tuple(f"<{tag}>" for tag in TAGS)
    stop: ClassVar[tuple[str, ...]] = tuple(f"</{tag}>" for tag in TAGS)
    scorers: ClassVar[tuple[str, ...]] = ("solved", "reward")
    """Repaired programs are the main score: ``reward="progress"`` also rewards partial progress."""
    reward_options: ClassVar[frozenset[str]] = frozenset({"reward"})

    def __init__(
        self,
        *,
        tasks: Sequence[Task] | None = None,
        executor: Executor | str = "bwrap",
        public: int = 4,
        rounds: int = 5,
        patience: int = 2,
        accept: Literal["more", "as_many", "all"] = "more",
        slips: int = 0,
        reward: Literal["solved", "progress"] = "solved",
        observation_chars: int = 2000,
        limits: ExecutionLimits | None = RUN_LIMITS,
        prompt: str = PROMPT,
        render_mode: str | None = None,
    ) -> None:
        """Makes an environment over tasks.

        Args:
            tasks: Tasks with ``data["tests"]``; None generates 200 simple ones.
            executor: An executor, or the name of a backend whose executor all environments of this process share.
            public: Number of tests, the first of a task, that are used for repairs. The others are hidden and give the
                reward, at least one; a task with a single test uses it for both.
            rounds: Largest number of repair rounds; 5 in the paper.
            patience: Number of consecutive repairs without an improvement over the best program that end the episode; 2 in
                the paper.
            accept: Which repairs become the base of the next round: ``more``, as published, those that pass more public
                tests than the base; ``as_many`` also those that pass equally many; ``all`` every one, so that nothing is
                rolled back.
            slips: Number of actions without a plan or a program that are corrected; 0 in the paper. After these, such an
                action ends the episode; missing print statements do not.
            reward: With ``solved``, the reward is 1 at the end if the base passes every hidden test. With ``progress``, each
                accepted program is rewarded with the change of the share of hidden tests that pass, so that an episode earns
                the share of its last base; ``turn_roles`` divides this among the roles.
            observation_chars: Number of characters of all failing tests' traces together, and of the failed plans; the
                middle of longer texts is left out.
            limits: The limits of one run, 10 s in the paper; None uses those of the executor.
            prompt: The opening message. It must contain ``{question}``.
            render_mode: ``ansi`` or None.

        Raises:
            ConfigurationError: the prompt lacks its placeholder, or a limit is out of range.
            UnknownName: there is no such reward or rule of acceptance.
        """
        check_known("reward of TraceCode-v0", reward, ("solved", "progress"))
        check_known("accept of TraceCode-v0", accept, tuple(ACCEPTED))
        if public < 1 or patience < 1 or observation_chars < 1 or rounds < 0 or slips < 0:
            raise ConfigurationError(
                f"public={public}, patience={patience} and observation_chars={observation_chars} must be at least 1, "
                f"rounds={rounds} and slips={slips} at least 0"
            )
        super().__init__(tasks, executor, limits, prompt, render_mode)
        self._public, self._rounds, self._room = public, rounds, observation_chars
        self._patience, self._accepts, self._slips = patience, ACCEPTED[accept], slips
        self._by_progress = reward == "progress"

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Poses ``options["task"]``, or a task drawn with the seed.

        Raises:
            DatasetError: the task has no tests.
        """
        super().reset(seed=seed, options=options)
        task = self.choose_tested_task(options)
        self.state = TraceState(task)
        return self.opening(task)

    def _tests(self) -> tuple[Sequence[Test], Sequence[Test]]:
        """Returns the public and the hidden tests."""
        tests = self.state.task.data["tests"]
        count = max(1, min(self._public, len(tests) - 1))
        return tests[:count], tests[count:] or tests

    def step(self, action: str) -> Step:
        """Executes the required block of ``action``.

        Raises:
            EpisodeOver: the episode has ended or was never reset.
            SandboxFault: the sandbox failed; the policy cannot cause this.
        """
        self.check_running(action)
        state = self.state
        block = earliest_block(action, (state.wanted,))
        written = block.content if block else ""
        said = _WANTED_PRINTS.sub("", written) if state.wanted == PLAN else unfenced(written)
        if not said.strip():
            return self._handle_missing_block()
        if state.wanted == SUBMIT:
            return self._submit(said)
        if state.wanted == INSTRUMENT:
            return self._trace(said)
        wishes = between(written, PRINTS, f"</{PRINTS[1:]}")
        state.suggested = "\n".join(wish.strip() for wish in wishes)
        state.plan, state.wanted = said.strip(), SUBMIT
        return self._ask(f"It starts from this program:\n{state.base}", ToolResult(PLAN, ToolStatus.OK))

    def _handle_missing_block(self) -> Step:
        """Handles an action without the required block: asks again, continues without prints, or ends the episode."""
        state = self.state
        wrong = ToolResult("none", ToolStatus.FORMAT_ERROR, error_class="no complete action")
        said = ""
        if state.slips < self._slips:
            state.slips += 1
        elif state.wanted == INSTRUMENT:
            state.wanted = PLAN
            said = f"\n{UNTRACED}{self._history()}"
        else:
            return self._finish(EndReason.PARSE_ERROR, (wrong,), valid=False)
        asked = (Message("tool", f"{said}\n{ASK[state.wanted]}\n"),)
        return self.result(asked, valid=False, tool_results=(wrong,))

    def _submit(self, program: str) -> Step:
        """Runs a program on the public tests; it becomes the base if it passes enough of them, or else is rolled back."""
        state, (public, _) = self.state, self._tests()
        found = self._grade(program, public, errors=True)
        accepted = not state.round or self._accepts(found.passed, state.base_grade.passed)
        said = counted(found).replace("hidden", "public")
        earned = self._progress(program) if accepted and self._by_progress else 0.0
        if found.passed > state.most:
            state.most, state.streak = found.passed, 0
        else:
            state.streak += 1
            state.failed.append(
                f"{state.plan}\n({'kept' if accepted else 'rolled back'}: {said}\n{self._failing(found)})"
            )
            said += (
                f" That is no more than the {state.most} of the best one."
                if accepted
                else f" That is no more than before, so the program goes back to the one with {state.base_grade.passed}."
            )
        if accepted:
            state.base, state.base_grade = program, found
        data = {"passed": found.passed, "tests": len(public), "accepted": accepted}
        status = ToolStatus.OK if accepted else ToolStatus.ERROR
        result = ToolResult(SUBMIT, status, "", "" if accepted else "RolledBack", data)
        if found.all_passed or state.streak >= self._patience or state.round >= self._rounds:
            return self._finish(EndReason.SUBMITTED, (result,), earned=earned)
        state.round, state.wanted = state.round + 1, INSTRUMENT
        wishes = (
            f"\nThe plan suggests to print: {shortened(state.suggested, self._room)}"
            if state.suggested
            else ""
        )
        return self._ask(f"{said}\n{self._failing(state.base_grade)}{wishes}", result, earned)

    def _progress(self, program: str) -> float:
        """Returns the change of the share of hidden tests that pass, and records it as rewarded."""
        state, (_, hidden) = self.state, self._tests()
        share = self._grade(program, hidden).passed / len(hidden)
        earned, state.paid = share - state.paid, share
        return earned

    def _trace(self, program: str) -> Step:
        """Runs an instrumented program on the failing tests; shows its output and the failed plans."""
        state, (public, _) = self.state, self._tests()
        text = self._traces(program)
        outcomes = zip(public, self._grade(program, public).outcomes, state.base_grade.outcomes, strict=True)
        kept = all(itertools.starmap(_unchanged, outcomes))
        if not kept:
            text += "\n[the instrumented program passes other tests than the program: its prints may mislead]"
        state.wanted = PLAN
        status = ToolStatus.OK if kept else ToolStatus.ERROR
        result = ToolResult(INSTRUMENT, status, text, "" if kept else "ChangedMeaning")
        return self._ask(framed(text).strip("\n") + self._history(), result)

    def _history(self) -> str:
        """Returns the latest failed plans, in a separate paragraph."""
        remembered = self.state.failed[-REMEMBERED:]
        history = "\n".join(shortened(plan, self._room // len(remembered)) for plan in remembered)
        return f"\nPlans that failed:\n{history}" if history else ""

    def _traces(self, program: str) -> str:
        """Returns the output of an instrumented program on each failing public test."""
        failing = self._failing_tests(self.state.base_grade)
        shown = failing[: max(1, self._room // TEST_CHARS)]
        texts, seconds = [], 0.0
        for test in shown:
            if seconds > GRADE_S or short_of_time():
                break
            done = self._run_test(program, test)
            seconds += done.wall_s
            texts.append(
                shortened(f"[{_test_description(test)}]\n{describe_run(done)}", self._room // len(shown))
            )
        if left := len(failing) - len(texts):
            texts.append(f"[failing tests that are not shown: {left}]")
        return "\n".join(texts)

    def _run_test(self, program: str, test: Test) -> ExecResult:
        """Runs a program on one test, and prints the value that it returns at the end.

        Raises:
            SandboxFault: the sandbox failed.
        """
        code, stdin = f"{self.state.task.data.get('prelude', '')}{program}", ""
        if isinstance(test, CallTest):
            code += f"\nprint('returned:', repr({test.function}(*{test.arguments!r})))"
        else:
            stdin = test.stdin
        domain = self.state.domain
        done = self._executor.run(code, stdin=stdin, limits=self._limits, variables=True, domain=domain)
        if done.status is ExecStatus.SANDBOX_ERROR:
            raise SandboxFault(done.fault)
        return done

    def _failing_tests(self, found: ProgramGrade) -> list[Test]:
        """Returns the public tests that failed."""
        public, _ = self._tests()
        return [
            test for test, one in zip(public, found.outcomes, strict=True) if one is not CaseOutcome.PASSED
        ]

    def _failing(self, found: ProgramGrade) -> str:
        """Describes the first failing public test, with the first traceback if the program raised an error."""
        test = self._failing_tests(found)[0]
        if isinstance(test, CallTest):
            text = f"It fails here: {_test_description(test)} must give {test.expected!r}."
        else:
            text = f"It fails here: for {_test_description(test)} it must print {test.expected!r}."
        return "\n".join(shortened(part, self._room) for part in (text, found.stderr.strip()) if part)

    def _grade(self, program: str, tests: Sequence[Test], *, errors: bool = False) -> ProgramGrade:
        """Runs ``tests``. With ``errors`` the grade includes the first traceback, which may reveal the test's content."""
        prelude, domain = self.state.task.data.get("prelude", ""), self.state.domain
        return grade(
            self._executor, prelude + program, tests, limits=self._limits, domain=domain, variables=errors
        )

    def _ask(self, text: str, result: ToolResult, earned: float = 0.0) -> Step:
        """Shows ``text`` and asks for the next block."""
        asked = f"\n{text}\n{ASK[self.state.wanted]}\n"
        return self.result((Message("tool", asked),), reward=earned, tool_results=(result,))

    def _finish(
        self,
        end: EndReason,
        results: Sequence[ToolResult],
        *,
        earned: float = 0.0,
        valid: bool = True,
    ) -> Step:
        """Grades the base on the hidden tests and ends the episode."""
        state, (_, hidden) = self.state, self._tests()
        found = (
            self._grade(state.base, hidden)
            if state.base
            else ProgramGrade((CaseOutcome.WRONG,) * len(hidden))
        )
        return self.result(
            (),
            reward=earned if self._by_progress else float(found.all_passed),
            end=end,
            valid=valid,
            tool_results=results,
            passed=found.passed,
            tests=len(hidden),
            answer=state.base,
            solved=found.all_passed,
            rounds=state.round,
        )

    def expert(self) -> Sequence[str] | None:
        """Submits the canonical solution."""
        solution = self.state.task.data.get("solution")
        return None if solution is None else (f"<submit>{solution}</submit>",)

    def render(self) -> str:
        """Shows the task and the progress of the episode."""
        state = self.state
        return f"{state.task.question} [round {state.round}] best {state.base_grade.passed}"


def _unchanged(test: Test, instrumented: CaseOutcome, base: CaseOutcome) -> bool:
    """Whether prints did not change the outcome of a test; if output is graded, they make a right program wrong."""
    printed = isinstance(test, StdioTest) and {instrumented, base} <= {CaseOutcome.PASSED, CaseOutcome.WRONG}
    return instrumented is base or printed


def _test_description(test: Test) -> str:
    """Describes in words what a test requires of a program."""
    if isinstance(test, CallTest):
        return f"{test.function}({', '.join(map(repr, test.arguments))})"
    return f"the input {test.stdin!r}"
