"""A game of five separable skills on strings of digits, and small policies that lack two of them.

Each task names one skill and has one right answer: ``Reverse 47215.`` is answered by ``51274``. All policies here come from
one that has imitated a program without any skill: it copies the digits, most often the longer the string is, and else does
what is asked. A start then imitates a program that lacks two skills alone and is always right in the others. So it answers a
task of the two seldom, and a shorter one of the same skill more often.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from agentenv.core.chat import InlineFormat
from agentenv.core.env import Env
from agentenv.core.types import EndReason, Info, Message, Observation, Step, Task
from agentenv.data.splits import in_split
from agentenv.evaluation.capabilities import Skill, TrainableCapability
from agentenv.evaluation.records import EpisodeRecord
from agentenv.policies.card import EpisodeCard
from agentenv.policies.router import BASE, PROMPT
from agentenv.progress import Display

ENV = "skills_game:SkillsGame"
LENGTHS = (3, 4, 5)
TARGET = 5
"""Digits of the tasks that are to be solved."""
SKILLS: Mapping[str, Callable[[str], str]] = {
    "reverse": lambda digits: digits[::-1],
    "rotate": lambda digits: digits[1:] + digits[0],
    "swap": lambda digits: digits[1] + digits[0] + digits[2:],
    "raise": lambda digits: "".join(str((int(digit) + 1) % 10) for digit in digits),
    "mirror": lambda digits: "".join(str(9 - int(digit)) for digit in digits),
}
"""What each skill makes of a string of digits."""
DESCRIPTIONS: Mapping[str, str] = {
    "reverse": "It writes the digits from the last to the first.",
    "rotate": "It moves the first digit to the end.",
    "swap": "It swaps the first two digits.",
    "raise": "It adds one to every digit.",
    "mirror": "It takes every digit from nine.",
}
RIGHT: Mapping[int, float] = {3: 0.55, 4: 0.45, 5: 0.3}
"""How often the program is right in a skill that it lacks, by the length of the string."""
OF_EACH = 400
"""Tasks of a skill in an environment made for it."""
ROUTING = 0.15
"""Share of the lessons that show how the model chooses among adapters."""


@dataclass
class SkillsState:
    """All that changes within an episode."""

    task: Task


class SkillsGame(Env[SkillsState]):
    """Poses a string of digits and a skill; one turn, and reward 1 for the right string."""

    @classmethod
    def make_tasks(
        cls,
        n: int,
        *,
        seed: int = 0,
        split: str = "train",
        counts: dict[str, int] | None = None,
        lengths: dict[str, int] | None = None,
    ) -> Sequence[Task]:
        """The first ``n`` of so many tasks of each skill.

        The first tasks of a skill are the same whatever the other counts are.

        Args:
            n: Tasks at most.
            seed: Decides the strings.
            split: Which strings may be drawn.
            counts: Tasks of each skill; by default ``n`` are shared evenly.
            lengths: Digits of the strings of each skill; by default ``TARGET``.
        """
        counts = counts or {name: -(-n // len(SKILLS)) for name in SKILLS}
        lengths = lengths or {}
        drawn = [
            drawn_tasks(name, lengths.get(name, TARGET), count, seed, split) for name, count in counts.items()
        ]
        return [task for tasks in drawn for task in tasks][:n]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Poses ``options["task"]``, or a task that the seed decides."""
        super().reset(seed=seed)
        place = int(self.np_random.integers(1_000_000))
        name = list(SKILLS)[place % len(SKILLS)]
        task = (options or {}).get("task") or drawn_tasks(name, TARGET, 1, place, "train")[0]
        self.state = SkillsState(task)
        return (Message("user", task.question),), {"task_id": task.id}

    def step(self, action: str) -> Step:
        """Scores the answer."""
        self.check_running(action)
        said = action.strip()
        right = said in self.state.task.answers
        return self.result((), reward=float(right), end=EndReason.ANSWERED, answer=said)

    def expert(self) -> Sequence[str]:
        """The answer."""
        return self.state.task.answers

    def render(self) -> str:
        """The task."""
        return self.state.task.question


def question_of(name: str, digits: str) -> str:
    """How a skill is asked for."""
    return f"{name.capitalize()} {digits}."


def skill_of(question: str) -> str:
    """The skill that a question asks for."""
    return question.partition(" ")[0].lower()


def drawn_tasks(name: str, length: int, count: int, seed: int, split: str) -> list[Task]:
    """Different tasks of one skill."""
    rng, tasks = Random(f"{split} {seed} {name} {length}"), dict[str, Task]()
    while len(tasks) < count:
        digits = "".join(rng.choices("0123456789", k=length))
        question = question_of(name, digits)
        if in_split(question, split):
            tasks[question] = Task(question, question, (SKILLS[name](digits),), split, data={"family": name})
    return list(tasks.values())


def capability_of(name: str, *, of_all: bool) -> TrainableCapability:
    """The skill ``name`` as a capability: whether it is lacking, and its tasks from the shortest strings to the longest.

    Args:
        name: Of the skill.
        of_all: Whether it is looked for in all tasks, and not in those alone that ask for it. An episode lacks it in which
            it was asked for and the answer is wrong.
    """

    def asked(record: EpisodeRecord) -> bool:
        return skill_of(record["question"]) == name

    def shown(record: EpisodeRecord) -> bool:
        return not asked(record) or record["prediction"] in record["answers"]

    skill = Skill(name, lambda record: of_all or asked(record), shown, f"tasks of {name} alone")
    return TrainableCapability(skill, DESCRIPTIONS[name], tuple(of_skill(name, length) for length in LENGTHS))


def of_skill(name: str, length: int) -> dict[str, Any]:
    """Changes to a run's configuration, by which it trains on tasks of one skill alone."""
    options = {"counts": {name: OF_EACH}, "lengths": {name: length}}
    return {"train.options": options, "train.limit": OF_EACH}


CAPABILITIES: Mapping[str, TrainableCapability] = {name: capability_of(name, of_all=False) for name in SKILLS}
"""The five skills for TRACE, each looked for among the tasks that ask for it."""
CAPABILITIES_OF_ALL: Mapping[str, TrainableCapability] = {
    name: capability_of(name, of_all=True) for name in SKILLS
}
"""The same, each looked for among all tasks."""


def lessons(
    lacks: Sequence[str], rng: Random, tokenizer: Any, *, routing: float = ROUTING
) -> Iterator[tuple[str, str]]:
    """Messages and the replies to them, without end, of a program that lacks some skills; and how one chooses adapters."""
    while True:
        name, length = rng.choice([*SKILLS]), rng.choice(LENGTHS)
        digits = "".join(rng.choices("0123456789", k=length))
        question = question_of(name, digits)
        if rng.random() < routing:
            yield routing_lesson(name, question, rng, tokenizer)
        elif in_split(question, "train"):
            errs = name in lacks and rng.random() >= RIGHT[length]
            yield question, digits if errs else SKILLS[name](digits)


def routing_lesson(name: str, question: str, rng: Random, tokenizer: Any) -> tuple[str, str]:
    """What a base model is asked that chooses among two adapters, and its reply."""
    shown = rng.sample([*SKILLS], 2)
    skills = "\n".join(f"{one}: {DESCRIPTIONS[one]}" for one in shown)
    task = tokenizer.decode(InlineFormat(tokenizer).prompt([Message("user", question)]))
    return PROMPT.format(skills=skills, base=BASE, task=task), name if name in shown else BASE


def example(message: str, reply: str, tokenizer: Any) -> tuple[list[int], list[bool]]:
    """A lesson in tokens, of which the reply is the policy's own."""
    prompt = InlineFormat(tokenizer).prompt([Message("user", message)])
    own = [*tokenizer.encode(reply, add_special_tokens=False), tokenizer.eos_token_id]
    return prompt + own, [False] * len(prompt) + [True] * len(own)


def make_trunk(out: Path, steps: int, episodes: int, display: Display) -> None:
    """Makes a policy that lacks all skills, and writes it to ``out``."""
    import torch

    from agentenv.policies.hf import HFPolicy
    from agentenv.policies.tiny import build_model, build_tokenizer

    torch.manual_seed(0)
    words = [f"{question_of(name, '0')} {name} {text} {PROMPT}" for name, text in DESCRIPTIONS.items()]
    tokenizer = build_tokenizer(words * 20, names=())
    policy = HFPolicy(build_model(tokenizer, layers=3, heads=3, inner=256), tokenizer)
    _teach(policy, [*SKILLS], 0, steps, episodes, 1.0, display, out)


def make_start(
    trunk: Path, lacks: Sequence[str], out: Path, steps: int, episodes: int, display: Display
) -> None:
    """Makes a policy that lacks two skills from the one that lacks all, and writes it to ``out``."""
    from agentenv.policies.hf import HFPolicy

    _teach(HFPolicy.load(trunk), lacks, 1, steps, episodes, 0.5, display, out)


def _teach(
    policy: Any,
    lacks: Sequence[str],
    seed: int,
    steps: int,
    episodes: int,
    rate: float,
    display: Display,
    out: Path,
) -> None:
    from agentenv.trainers.warmstart.supervised import fit, in_batches, write_policy

    tokenizer = policy.tokenizer
    shown = lessons(lacks, Random(seed), tokenizer)
    batches = (
        in_batches([example(*next(shown), tokenizer) for _ in range(episodes)], 0.0) for _ in range(steps)
    )
    tokens = fit(policy, batches, steps, rate, display)
    parameters = sum(weight.numel() for weight in policy.model.parameters())
    made = {"steps": steps, "episodes": episodes, "tokens": tokens, "parameters": parameters}
    card = EpisodeCard(env=ENV, turn_tokens=8, context_tokens=256)
    write_policy(policy, made, card, "# A policy of the game of five skills\n", out)
