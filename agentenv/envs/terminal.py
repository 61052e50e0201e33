"""``agentenv/Terminal-v0``: tasks in the shell of a container, as Harbor and Terminal-Bench 2 describe them.

Each episode has a container of the task's own image. The policy runs commands in it. When it says that it is done, or has no
turn left, the tests of the task are copied in and run, and what they write is the reward.
"""

import asyncio
import contextlib
import os
import random
import shlex
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

from agentenv.core.assistant_turns import NativeCall
from agentenv.core.tools import ToolEnv, called_text, read_calls, tool
from agentenv.core.types import EndReason, Info, Message, Observation, StateCapability, Step, Task
from agentenv.data.harbor import (
    ENVIRONMENT,
    SOLUTION,
    TESTS,
    HarborTask,
    parse_reward,
    read_harbor_task,
    read_harbor_tasks,
)
from agentenv.errors import ConfigurationError, DatasetError, SandboxFault, check_known
from agentenv.sandbox.task_container import CommandResult, ContainerLimits, TaskContainer
from agentenv.sandbox.task_images import built_image, require_image

PROMPT = """\
{tools}You are in a shell of a Linux system, as root. Run commands with the tool bash. Each command begins in the working \
folder, and files stay from command to command. When the task is done, reply with a short text and without a call.
Task: {question}
"""
LOGS, REWARDS = "/logs/verifier", ("/logs/verifier/reward.json", "/logs/verifier/reward.txt")
_RUN = "if command -v bash > /dev/null 2>&1; then bash {script}; else sh {script}; fi"
_CLEANING_S = 10.0  # for what is done before the tests
_MOST_SOLUTION = 100_000  # bytes of a solution that the expert can type


@dataclass
class TerminalState:
    """All that changes within an episode."""

    task: Task
    asked: HarborTask
    container: TaskContainer
    graded: bool = False
    turn_ends: float = 0.0
    """When the commands of the present turn have used up their time, on the monotonic clock."""


class Terminal(ToolEnv[TerminalState]):
    """Commands in a container of the task; the reward is what the tests of the task write."""

    capability: ClassVar[StateCapability] = StateCapability.FILES
    scorers: ClassVar[tuple[str, ...]] = ("solved", "reward")
    judges_state: ClassVar[bool] = True
    no_expert: ClassVar[str] = "the task has no solution/solve.sh of at most 100 kB"

    def __init__(
        self,
        *,
        tasks: Sequence[Task] | None = None,
        max_turns: int = 40,
        command_timeout_s: float = 120.0,
        verifier_timeout_s: float = 420.0,
        output_chars: int = 10_000,
        network: bool = False,
        memory_mb: int = 2048,
        cpus: float = 1.0,
        variables: Sequence[str] = (),
        keep_processes: bool = False,
        render_mode: str | None = None,
    ) -> None:
        """Builds an environment over tasks.

        Args:
            tasks: Tasks of ``make_tasks``.
            max_turns: Turns of an episode; after the last one the tests run too.
            command_timeout_s: Seconds after which a command is killed; all commands of one turn share them.
            verifier_timeout_s: Seconds that the tests may take, or fewer where the task says so.
            output_chars: Characters of the output of a command that the policy sees; the middle of a longer one is left out.
            network: Whether tasks that ask for the network have it, in their container and when their image is built. Tests
                of Terminal-Bench 2 install their programs from there.
            memory_mb: MiB of a container where the task names no number.
            cpus: Processors of a container where the task names no number.
            variables: Environment variables of this process that tasks get if they name them.
            keep_processes: Whether what the policy has left running goes on while the tests run, as in Harbor, for tasks
                whose tests ask a server that the policy starts. Such a process may also write the reward itself.
            render_mode: As in Gymnasium.

        Raises:
            ConfigurationError: a number out of range.
        """
        numbers: dict[str, float] = {
            "max_turns": max_turns,
            "output_chars": output_chars,
            "memory_mb": memory_mb,
        }
        numbers |= {
            "command_timeout_s": command_timeout_s,
            "verifier_timeout_s": verifier_timeout_s,
            "cpus": cpus,
        }
        if low := [f"{name}={value}" for name, value in numbers.items() if not value > 0]:
            raise ConfigurationError(f"{', '.join(low)} must be above 0")
        super().__init__(render_mode=render_mode)
        self._tasks = tuple(tasks or ())
        self.max_turns = max_turns  # type: ignore[misc]
        self._command_s, self._verifier_s, self._chars = command_timeout_s, verifier_timeout_s, output_chars
        self._network, self._memory_mb, self._cpus = network, memory_mb, cpus
        self._variables, self._keep_processes = tuple(variables), keep_processes

    @classmethod
    def make_tasks(cls, n: int, *, seed: int = 0, split: str = "train", folder: str = "") -> Sequence[Task]:
        """At most ``n`` tasks of a folder of task directories, drawn by the seed.

        Args:
            n: How many at most.
            seed: Of the draw.
            split: The folder of this name in ``folder``. A folder without such folders has the split ``test`` alone, so that
                nothing is trained on what is measured.
            folder: Folder of task directories.

        Raises:
            ConfigurationError: no folder is named, or it does not have the split.
            DatasetError: a task directory is malformed, or asks for what is not supported.
        """
        check_known("split", split, ("train", "dev", "test"))
        if not folder:
            raise ConfigurationError(
                "the tasks of agentenv/Terminal-v0 are directories: name their folder, as in --task-option folder=DIR"
            )
        own = Path(folder) / split
        if not own.is_dir():
            if split != "test":
                raise ConfigurationError(
                    f"{folder!r} has no folder {split!r}: put the tasks of each split into a folder of its name"
                )
            own = Path(folder)
        found = read_harbor_tasks(own, split)
        return found if n >= len(found) else random.Random(seed).sample(found, n)

    def held_tasks(self) -> Sequence[Task]:
        """The tasks that it was given."""
        return self._tasks

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Starts the container of ``options["task"]``, or of a task drawn by the seed.

        Raises:
            DatasetError: no task is given, or it is not one of ``make_tasks``.
            ConfigurationError: the engine does not have the image, or it cannot be built.
            SandboxFault: the engine failed.
        """
        await super().areset(seed=seed, options=options)
        task = self.choose_task(options)
        folder = None if task is None else task.data.get("folder")
        if task is None or folder is None:
            raise DatasetError(
                "this environment was given no task directory: give it tasks of Terminal.make_tasks"
            )
        asked = read_harbor_task(Path(folder), self._variables)
        container = await _kept(lambda: self._start(asked))
        self.state = TerminalState(task, asked, container)
        text = PROMPT.replace("{tools}", self.tool_prompt()).replace("{question}", task.question)
        return (Message("user", text),), {"task_id": task.id}

    def _start(self, asked: HarborTask) -> TaskContainer:
        network = self._network and asked.network
        limits = ContainerLimits(
            memory_mb=asked.memory_mb or self._memory_mb, cpus=asked.cpus or self._cpus, network=network
        )
        if asked.image:
            require_image(asked.image, network=self._network)
        image = asked.image or built_image(
            asked.folder / ENVIRONMENT, asked.build_timeout_s, network=self._network
        )
        return TaskContainer(image, limits, workdir=asked.workdir, env=asked.env)

    @tool
    async def bash(self, command: str) -> str:
        """Runs a command of the shell and gives what it writes.

        Args:
            command: The command; it may have several lines.
        """
        # The commands of one turn share their time: a turn that outlasts its deadline would be taken for a failure of ours.
        left = self.state.turn_ends - time.monotonic()
        if left <= 0:
            return "[not run: the commands before it in this turn have used up the time of the turn]"
        found = await asyncio.to_thread(self._run, command, left)
        if found is None:
            return "The system has ended: its memory was full, or its first process could not go on."
        if found.timed_out:
            return f"{found.output}\n[the command was killed after the {self._command_s:g} s of its turn]"
        return f"{found.output}\n[exit code {found.exit_code}]" if found.exit_code else found.output

    def _run(self, command: str, timeout_s: float) -> CommandResult | None:
        """What a command does; None where the system has ended by what ran in it."""
        container = self.state.container
        try:
            return container.run(command, timeout_s=timeout_s, output_chars=self._chars)
        except SandboxFault:
            if not container.has_ended:
                raise
            return None

    async def astep(self, action: str) -> Step:
        """Runs the commands in ``action``. Without one, or after the last turn, the tests of the task run.

        Raises:
            EpisodeOver: the episode has ended or was never reset.
            SandboxFault: the engine failed, or the container is gone.
        """
        self.check_running(action)
        self.state.turn_ends = time.monotonic() + self._command_s
        if not read_calls(action, native=self.native):
            return await asyncio.to_thread(self.answer, action)
        step = await super().astep(action)
        if not step.truncated:
            return step
        reward = await asyncio.to_thread(self._grade)
        return step._replace(reward=reward, info=step.info | {"solved": reward >= 1.0})

    def answer(self, text: str) -> Step:
        """Runs the tests of the task.

        Raises:
            SandboxFault: the engine failed, or the container is gone.
        """
        reward = self._grade()
        return self.result(
            (), reward=reward, end=EndReason.SUBMITTED, answer=text.strip(), solved=reward >= 1.0
        )

    def cut_reward(self) -> float:
        """What the tests give for an episode that is cut: its work counts as it stands."""
        return 0.0 if self.state.graded else self._grade()

    def _grade(self) -> float:
        """What the tests of the task write. Tests that write nothing that can be read, or take too long, give 0.

        Whatever the policy has left running is killed first, unless it is to be kept, and what it has written into the
        folders of the tests is gone. A policy that has broken its system so far that this cannot be done gets 0 as well.
        """
        self.state.graded = True
        try:
            rewards = self._verified()
        except SandboxFault:
            if not self.state.container.has_ended:
                raise
            rewards = None
        return 0.0 if rewards is None else rewards.get("reward", fmean(rewards.values()))

    def _verified(self) -> dict[str, float] | None:
        """The rewards by name; None where there are none."""
        container, asked = self.state.container, self.state.asked
        if container.has_ended:
            return None
        if not self._keep_processes:
            container.kill_all()
        # In the root folder: the working folder of the task may be gone.
        container.run("rm -rf /tests /logs", timeout_s=_CLEANING_S, workdir="/")
        if container.has_ended or any(map(container.exists, ("/tests", "/logs"))):
            return None
        container.run(f"mkdir -p {LOGS} /logs/agent /logs/artifacts", timeout_s=_CLEANING_S, workdir="/")
        container.write_folder(asked.folder / TESTS, "/tests")
        limit = min(asked.verifier_timeout_s, self._verifier_s)
        command = f"{{ {_RUN.replace('{script}', '/tests/test.sh')}; }} > {LOGS}/test-stdout.txt 2>&1"
        if container.run(command, timeout_s=limit, env=asked.verifier_env).timed_out:
            return None
        return parse_reward(*map(container.read_file, REWARDS))

    def expert(self) -> Sequence[str] | None:
        """Writes the solution of the task and runs it; None where there is none, or it is too long to be typed."""
        asked = self.state.asked
        if not asked.has_solution:
            return None
        folder = asked.folder / SOLUTION
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        if sum(path.stat().st_size for path in files) > _MOST_SOLUTION:
            return None
        lines = []
        for path in files:
            place = shlex.quote(f"/{SOLUTION}/{path.relative_to(folder).as_posix()}")
            lines.append(f'mkdir -p "$(dirname {place})"; {_writing(path.read_bytes())} > {place}')
            if os.access(path, os.X_OK):
                lines.append(f"chmod +x {place}")
        if len("\n".join(lines).encode()) > _MOST_SOLUTION:
            return None
        given = [f"export {name}={shlex.quote(value)}" for name, value in asked.solution_env.items()]
        commands = lines, [*given, _RUN.replace("{script}", f"/{SOLUTION}/solve.sh")]
        typed = (NativeCall("bash", {"command": "\n".join(command)}) for command in commands)
        return *(called_text("", [call]) for call in typed), "Done."

    def render(self) -> str:
        """The task."""
        return self.state.task.question


async def _kept(start: Callable[[], TaskContainer]) -> TaskContainer:
    """The container that ``start`` gives in a thread; it is closed once it is there if the caller is cancelled meanwhile."""
    made: list[TaskContainer] = []
    unwanted = threading.Event()

    def run() -> None:
        made.append(start())
        if unwanted.is_set():
            made[0].close()

    try:
        await asyncio.to_thread(run)
    except asyncio.CancelledError:
        unwanted.set()
        for container in made:
            container.close()
        raise
    return made[0]


def _writing(content: bytes) -> str:
    """The command that writes ``content``; an image need not have more than a shell for it."""
    with contextlib.suppress(UnicodeDecodeError):
        if "\0" not in (text := content.decode()):  # no command may hold this character
            return f"printf %s {shlex.quote(text)}"
    octal = "".join(f"\\{byte:03o}" for byte in content)
    return f"printf '{octal}'"
