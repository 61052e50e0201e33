"""``agentenv/Code-v0``: write a program, try code in a Python sandbox, submit; hidden tests give the reward.

Of each action, the first complete block counts. ``<python>`` runs code: a program of its own, or with ``stateful`` a cell of
an interpreter that keeps its names. ``<submit>`` submits a program, and ends the episode after the last attempt or when all
tests pass.
"""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from agentenv.core.grammar import earliest_block, shortened, unfenced
from agentenv.core.types import (
    EndReason,
    Info,
    Message,
    Observation,
    StateCapability,
    Step,
    Task,
    ToolResult,
    ToolStatus,
)
from agentenv.envs.program_env import ProgramEnv, counted, describe_run, framed
from agentenv.errors import ConfigurationError, SandboxFault
from agentenv.sandbox.grading import ProgramGrade, grade
from agentenv.sandbox.types import ExecStatus, ExecutionLimits, Executor, ExecutorSession

TAGS = ("python", "submit")
STOP = tuple(f"</{tag}>" for tag in TAGS)
"""Stop strings for the engine: nothing is sampled after the first block."""

PROMPT = """\
Solve the programming task below.
To try something out, write Python code between <python> and </python>; what it prints comes back between <output> and \
</output>. {state}
When you are sure, write the complete program between <submit> and </submit>.
Task: {question}
"""
STATELESS = "Each block is a program of its own."
STATEFUL = "Names and files stay from block to block."
CORRECTION = (
    "\nWrite code between <python> and </python>, or the final program between <submit> and </submit>.\n"
)

Reward = Callable[[ProgramGrade], float]
REWARDS: dict[str, Reward] = {
    "all": lambda found: float(found.all_passed),
    "fraction": lambda found: found.fraction,
}
STATUS = {ExecStatus.OK: ToolStatus.OK, ExecStatus.TIMEOUT: ToolStatus.TIMEOUT}


@dataclass
class CodeState:
    """All that changes within an episode."""

    task: Task
    turns: int = 0
    attempts: int = 0
    session: ExecutorSession | None = None
    best: str | None = None
    """The program with the most passed tests so far."""
    best_grade: ProgramGrade = field(default_factory=lambda: ProgramGrade(()))
    domain: str = field(default_factory=lambda: f"episode {secrets.token_hex(8)}")
    """The trust domain of all its runs: while they run, no program of another episode is in their jail."""


class Code(ProgramEnv[CodeState]):
    """Write, try and submit programs. The reward is given once, at the end."""

    capability: ClassVar[StateCapability] = StateCapability.PROCESS
    call_markers: ClassVar[tuple[str, ...]] = ("<python>",)
    stop: ClassVar[tuple[str, ...]] = STOP
    reward_options: ClassVar[frozenset[str]] = frozenset({"reward"})

    def __init__(
        self,
        *,
        tasks: Sequence[Task] | None = None,
        executor: Executor | str = "bwrap",
        stateful: bool = True,
        reward: str | Reward = "all",
        max_turns: int = 6,
        attempts: int = 1,
        observation_chars: int = 2000,
        variables: bool = False,
        traces: bool = False,
        limits: ExecutionLimits | None = None,
        prompt: str = PROMPT,
        render_mode: str | None = None,
    ) -> None:
        """Makes an environment over tasks.

        Args:
            tasks: Tasks with ``data["tests"]``; None generates 200 simple ones.
            executor: An executor, or the name of a backend whose executor all environments of this process share.
            stateful: Whether ``<python>`` blocks share one interpreter.
            reward: ``all``, ``fraction``, or a function of the grade.
            max_turns: Number of turns before the last one, in which only ``<submit>`` counts.
            attempts: Number of programs that may be submitted. After a failed one, the policy sees how many tests passed. If
                a program passes no more tests than an earlier one, the earlier one is kept as the best.
            observation_chars: Number of output characters that are shown; the middle of longer output is left out.
            variables: Whether a traceback is followed by the values of the variables on the failing line.
            traces: Whether the policy sees the first error of the hidden tests, with the variables on the failing line,
                after a failed submission (TraceCoder). These may contain inputs of that test, but never an expected value.
                Without this option, only the numbers of tests are shown.
            limits: Limits of one run; None uses those of the executor.
            prompt: The opening message. It must contain ``{question}``, and may contain ``{state}``.
            render_mode: ``ansi`` or None.

        Raises:
            ConfigurationError: the reward is unknown, the prompt lacks its placeholder, or a limit is out of range.
        """
        if isinstance(reward, str) and reward not in REWARDS:
            raise ConfigurationError(f"reward={reward!r} must be one of {', '.join(REWARDS)}, or a function")
        if attempts < 1 or max_turns < 0 or observation_chars < 1:
            raise ConfigurationError(
                f"attempts={attempts} and observation_chars={observation_chars} must be at least 1, "
                f"max_turns={max_turns} at least 0"
            )
        filled = prompt.replace("{state}", STATEFUL if stateful else STATELESS)
        super().__init__(tasks, executor, limits, filled, render_mode)
        self._stateful, self._attempts, self._max_turns = stateful, attempts, max_turns
        self._reward: Reward = REWARDS[reward] if isinstance(reward, str) else reward
        self._room, self._variables, self._traces = observation_chars, variables, traces

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Poses ``options["task"]``, or a task drawn with the seed.

        Raises:
            DatasetError: the task has no tests.
        """
        super().reset(seed=seed, options=options)
        task = self.choose_tested_task(options)
        # The session is open for the whole episode, so that every snapshot includes it.
        session = self._executor.open(limits=self._limits) if self._stateful else None
        self.state = CodeState(task, session=session)
        return self.opening(task)

    def step(self, action: str) -> Step:
        """Executes the first complete block of ``action``.

        Raises:
            EpisodeOver: the episode has ended or was never reset.
            SandboxFault: the sandbox failed; the policy cannot cause this.
        """
        self.check_running(action)
        block = earliest_block(action, TAGS)
        last = self.state.turns >= self._max_turns
        self.state.turns += 1
        if block and block.tag == "submit":
            return self._submit(unfenced(block.content), last)
        if last:
            return self._finish(EndReason.TURN_LIMIT, truncated=True, valid=False)
        if block is None:
            result = ToolResult("none", ToolStatus.FORMAT_ERROR, error_class="no complete action")
            return self.result((Message("tool", CORRECTION),), valid=False, tool_results=(result,))
        result = self._try_out(unfenced(block.content))
        return self.result((Message("tool", framed(result.text)),), tool_results=(result,))

    def _try_out(self, code: str) -> ToolResult:
        """Runs a ``<python>`` block."""
        if self.state.session is not None:
            done = self.state.session.run(code, variables=self._variables)
        else:
            done = self._executor.run(
                code, limits=self._limits, variables=self._variables, domain=self.state.domain
            )
        if done.status is ExecStatus.SANDBOX_ERROR:
            raise SandboxFault(done.fault)
        status = STATUS.get(done.status, ToolStatus.ERROR)
        kind = "" if done.ok else (done.error.type if done.error else done.status.value)
        return ToolResult(
            "python", status, shortened(describe_run(done), self._room), kind, {"status": done.status.value}
        )

    def _submit(self, program: str, last: bool) -> Step:
        """Grades a program. The episode ends unless the program failed and attempts and turns are left."""
        state = self.state
        state.attempts += 1
        found = grade(
            self._executor,
            state.task.data.get("prelude", "") + program,
            state.task.data["tests"],
            limits=self._limits,
            domain=state.domain,
            variables=self._traces,
        )
        if state.best is None or found.passed > state.best_grade.passed:
            state.best, state.best_grade = program, found
        status = ToolStatus.OK if found.all_passed else ToolStatus.ERROR
        data = {"passed": found.passed, "tests": len(found.outcomes)}
        result = ToolResult("submit", status, "", "" if found.all_passed else "TestsFailed", data)
        if found.all_passed or state.attempts >= self._attempts or last:
            return self._finish(EndReason.SUBMITTED, tool_results=(result,))
        text = counted(found)
        if self._traces and found.stderr:
            text += f"\n{found.stderr.strip()}"
        if state.best != program:
            text += (
                f"\nYour best program so far passed {state.best_grade.passed}; go on from it:\n{state.best}"
            )
        observation = framed(shortened(text, self._room))
        return self.result((Message("tool", observation),), tool_results=(result,))

    def _finish(
        self,
        end: EndReason,
        *,
        truncated: bool = False,
        valid: bool = True,
        tool_results: Sequence[ToolResult] = (),
    ) -> Step:
        found = self.state.best_grade
        return self.result(
            (),
            reward=self._reward(found),
            end=end,
            truncated=truncated,
            valid=valid,
            tool_results=tool_results,
            passed=found.passed,
            tests=len(self.state.task.data["tests"]),
        )

    def anchor_key(self) -> str | None:
        """Returns None: the state of an interpreter has no key that is equal for equal futures."""
        return None

    def expert(self) -> Sequence[str] | None:
        """Returns a run of the canonical solution, followed by its submission."""
        solution = self.state.task.data.get("solution")
        return None if solution is None else (f"<python>{solution}</python>", f"<submit>{solution}</submit>")

    def render(self) -> str:
        """Shows the task and the progress of the episode."""
        state = self.state
        return f"{state.task.question} [{state.turns} turns, {state.attempts} attempts] best {state.best_grade.passed}"
