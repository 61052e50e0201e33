"""The command ``agentenv new``."""

import keyword
import re
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from agentenv.core.io.files import put_in_place
from agentenv.core.registry import ENTRY_POINT_GROUP
from agentenv.errors import ConfigurationError

ENVIRONMENT = '''\
"""{title}: guess a number; replace the game by your own."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from agentenv import EndReason, Env, Info, Message, Observation, Step, Task
from agentenv.data import in_split

QUESTION = "Guess a number from 0 to 9999; every guess is answered by whether the number is higher or lower."
TRIES = 20


@dataclass
class {title}State:
    """All that changes within an episode; snapshot, restore and fork follow from it."""

    secret: int
    tries: int = 0


class {title}(Env[{title}State]):
    """Reward 1 for the secret number within twenty tries."""

    @classmethod
    def make_tasks(cls, n: int, *, seed: int = 0, split: str = "train") -> Sequence[Task]:
        """At most ``n`` numbers; each belongs to one split only, and is the id of its task."""
        numbers = [str(number) for number in range(10_000) if in_split(str(number), split)]
        drawn = Random(seed).sample(numbers, min(n, len(numbers)))
        return [Task(secret, QUESTION, (secret,), split) for secret in drawn]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Poses the task in ``options``, or a number drawn by the seed; ``task_id`` says which."""
        super().reset(seed=seed)
        secret = str(self.np_random.integers(10_000))
        task = (options or {{}}).get("task") or Task(secret, QUESTION, (secret,))
        self.state = {title}State(secret=int(task.answers[0]))
        return (Message("user", task.question),), {{"task_id": task.id}}

    def step(self, action: str) -> Step:
        """Compares the guess with the secret."""
        self.check_running(action)
        self.state.tries += 1
        written = action.strip()
        # Python reads no number of thousands of digits, and an error here would leave the episode out of training.
        guess = int(written) if written.isdecimal() and len(written) < 9 else -1
        if guess == self.state.secret:
            return self.result((), reward=1.0, end=EndReason.ANSWERED)
        if self.state.tries == TRIES:
            return self.result((), end=EndReason.TURN_LIMIT, truncated=True)
        hint = "Higher." if guess < self.state.secret else "Lower."
        return self.result((Message("user", hint),), valid=guess >= 0)

    def expert(self) -> Sequence[str]:
        """The secret."""
        return (str(self.state.secret),)

    def render(self) -> str:
        """The number of tries so far."""
        return f"{{self.state.tries}} of {{TRIES}} tries"
'''

TEST = '''\
"""The contract of {title}: time travel, determinism, expert and floor."""

from {module} import {title}

from agentenv.core.env_contract import EnvContract


class Test{title}(EnvContract):
    def make(self) -> {title}:
        return {title}()
'''


@dataclass(frozen=True)
class New:
    """Writes a one-file environment and its test, which passes unchanged.

    Example: agentenv new treasure_hunt --out environments
    """

    name: Annotated[str, tyro.conf.Positional]
    """Name of the module, in lower case with underscores; the class is named after it."""
    out: Path = Path()
    """Folder to write to. It is created if it does not exist."""

    def run(self) -> dict[str, Any]:
        """Writes both files.

        Raises:
            ConfigurationError: a bad name, or a file that exists already; nothing is written.
        """
        if not re.fullmatch(r"[a-z][a-z0-9_]*", self.name) or keyword.iskeyword(self.name):
            raise ConfigurationError(
                f"{self.name!r} cannot name a module; use lower-case letters, digits and underscores, and no Python keyword"
            )
        title = "".join(word.capitalize() for word in self.name.split("_"))
        texts = {
            self.out / f"{self.name}.py": ENVIRONMENT.format(title=title),
            self.out / f"test_{self.name}.py": TEST.format(title=title, module=self.name),
        }
        for path in texts:
            if path.exists():
                raise ConfigurationError(f"{path} exists already; give another name or --out")
        if self.name in sys.stdlib_module_names or find_spec(self.name) is not None:
            raise ConfigurationError(
                f"there is a module {self.name!r} already, which {self.name}.py would hide; give another name"
            )
        self.out.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            path.with_suffix(".tmp").write_text(text)
        for path in texts:
            put_in_place(path.with_suffix(".tmp"), path)
        return {
            "files": [str(path) for path in texts],
            "name": self.name,
            "id": f"{self.name}/{title}-v0",
            "entry_point": f"{self.name}:{title}",
            "register": f'agentenv.register("{self.name}/{title}-v0", "{self.name}:{title}")',
        }

    def show(self, result: dict[str, Any], console: Console) -> None:
        """The files and what to do next."""
        entry = result["entry_point"]
        lines = [
            *(f"wrote {path}" for path in result["files"]),
            f"From the folder {self.out} these commands find it by {entry}:",
            f"  agentenv check {entry}",
            f"  agentenv train own-env --env.id {entry} --out runs/{result['name']}",
            f"  agentenv eval --env {entry} --policy hf:runs/{result['name']}/policy --out runs/{result['name']}-eval",
            f"  agentenv serve {entry}",
            f"register it in a program: {result['register']}",
            f"register it for every command, in any folder, as {result['id']}: in the pyproject.toml of its package, which",
            "pip install -e . installs,",
            f'  [project.entry-points."{ENTRY_POINT_GROUP}"]',
            f'  "{result["id"]}" = "{entry}"',
        ]
        for line in lines:
            console.print(line, markup=False)
