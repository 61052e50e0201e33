"""Sums of two numbers for a discussion, and a small policy that discusses them badly.

The start of the miniature of CoMAS (Xue et al. 2025, arXiv:2510.08529), which `miniatures.py` and `discussion.py` make. It
imitates a program that plays all roles of the game: as a solver it forgets the carry in most sums that have one, as a critic
and as a scorer, who also work the sum out, less often. So it answers a little more than half of the sums right, greedily,
and its scores say more than chance. What a critic says is heeded: an answer without a flaw is kept, and where one is named
half of the solvers take over what the critic found.
"""

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import torch

from agentenv.core.chat import InlineFormat
from agentenv.core.io.files import new_folder
from agentenv.envs.search.local_search import STOP
from agentenv.envs.search.page_format import filled
from agentenv.envs.search.self_play import fields_of
from agentenv.policies.card import EpisodeCard
from agentenv.progress import Display
from agentenv.trainers.learner.denormals import flushed_denormals
from agentenv.trainers.selfplay.games import Game, get_game
from agentenv.trainers.warmstart.demonstrations import Demo, Piece, to_tokens
from agentenv.trainers.warmstart.small_policies import SmallPolicyConfig, imitate, untrained_policy
from agentenv.trainers.warmstart.supervised import Metrics, TrainingExample, write_policy

AGENTS = 2
TEST, DEV = 120, 8
"""Sums that are neither demonstrated nor trained."""
FORGETS: Mapping[str, float] = {"solver": 0.7, "critic": 0.2, "scorer": 0.2}
"""How often each role of the program forgets a carry."""
NO_FLAW = "no flaw"
_KEPT = 1200
"""Turns of games among the first solutions that are shown at the end."""
_HEEDED = 0.5
"""Share of the solvers that take over what a critic found in place of their answer."""

Program = Callable[[str, Mapping[str, str], Random], str]
"""Gives what a role writes when it sees these texts, by the braces of its prompt."""


@cache
def sums() -> dict[str, tuple[tuple[int, int], ...]]:
    """All sums of two numbers from 10 to 29 by split, in an order of their own.

    They have two digits, and few tens: a small policy soon tells by them whether an answer has its carry.
    """
    numbers = range(10, 30)
    drawn = [(a, b) for a in numbers for b in numbers]
    Random(0).shuffle(drawn)
    held_out = TEST + DEV
    return {
        "test": tuple(drawn[:TEST]),
        "dev": tuple(drawn[TEST:held_out]),
        "train": tuple(drawn[held_out:]),
    }


def question_of(a: int, b: int) -> str:
    """How a sum is asked for."""
    return f"What is {a} + {b}?"


def write_questions(folder: Path) -> dict[str, dict[str, Any]]:
    """Writes a question file of each split, and a corpus that nobody searches.

    Returns:
        The sections ``train``, ``dev`` and ``test`` of a run that asks them.
    """
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with new_folder(folder) as part:
            for split, pairs in sums().items():
                rows = [
                    {"id": f"{a}+{b}", "question": question_of(a, b), "answer": str(a + b)} for a, b in pairs
                ]
                (part / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            page = {"id": "sums", "title": "Sums", "text": "Nothing is searched for here."}
            (part / "corpus.jsonl").write_text(json.dumps(page) + "\n")
    return {split: {"dataset": str(folder / f"{split}.jsonl")} for split in sums()}


@dataclass(frozen=True)
class Working:
    """A sum in columns, each of as many characters in every sum: a small policy then soon learns where to look."""

    text: str
    carry: int
    result: str

    @classmethod
    def of(cls, question: str, *, forgets: bool) -> "Working":
        """The sum in ``question``, without its carry where that is forgotten."""
        (t1, u1), (t2, u2) = ((int(d) for d in number) for number in re.findall(r"\d\d", question))
        units = u1 + u2
        carry = int(units > 9 and not forgets)
        tens = t1 + t2 + carry
        return cls(f"{u1}+{u2}={units:02}, {t1}+{t2}+{carry}={tens}", carry, f"{tens}{units % 10}")

    def carry_in(self, answer: str) -> int:
        """The carry that ``answer`` has if its units are right."""
        return (int(answer) - int(self.result)) // 10 + self.carry


def careless(role: str, seen: Mapping[str, str], rng: Random, forgets: Mapping[str, float] = FORGETS) -> str:
    """What the program writes as a solver, a critic or a scorer. Who checks an answer says which carry it has."""
    working = Working.of(seen["question"], forgets=rng.random() < forgets[role])
    if role == "solver":
        return _solution(seen, working, rng)
    differs = seen["answer"] != working.result
    checked = f"{working.text}, {seen['answer']} has {working.carry_in(seen['answer'])}"
    if role == "critic":
        return f"<critique>{checked}: {f'it is {working.result}' if differs else NO_FLAW}</critique>"
    doubts = differs + (NO_FLAW not in seen["critique"])
    return f"<think>{checked}</think><score>{3 - doubts}</score>"


def _solution(seen: Mapping[str, str], working: Working, rng: Random) -> str:
    """A solver's own sum at first; later its last answer where it has no flaw, or half the time what the critic found."""
    own = f"<think>{working.text}</think><answer>{working.result}</answer>"
    rounds = sorted(int(name.rpartition("_")[2]) for name in seen if name.startswith("answer_"))
    if not rounds:
        return own
    critique = seen[f"critique_{rounds[-1]}"]
    if NO_FLAW in critique:
        return f"<think>{NO_FLAW}</think><answer>{seen[f'answer_{rounds[-1]}']}</answer>"
    found = critique.rpartition(" ")[2]
    return f"<think>it is {found}</think><answer>{found}</answer>" if rng.random() < _HEEDED else own


def play_demonstration(game: Game, question: str, program: Program, rng: Random) -> list[Demo]:
    """One game about ``question`` as ``program`` plays all of its roles: a demonstration of each written turn."""
    said, demos = {"seed": question}, list[Demo]()
    for turn in game.turns:
        seen = {brace: said[source] for brace, source in turn.sees.items()}
        text = program(turn.role, seen, rng)
        demos.append([Piece("opening", filled(turn.prompt, seen)), Piece("own", text)])
        said |= {f"{turn.name}.{tag}": field for tag, field in fields_of(text, turn.writes).items()}
    return demos


def examples_of(demos: Sequence[Demo], tokenizer: Any) -> list[TrainingExample]:
    """``demos`` in tokens; a turn that no stop string ends, the policy itself has to end."""
    chat, examples = InlineFormat(tokenizer), list[TrainingExample]()
    for demo in demos:
        ids, own = to_tokens(chat, demo)
        ended = demo[-1].text.endswith(STOP)
        examples.append((ids, own) if ended else ([*ids, tokenizer.eos_token_id], [*own, True]))
    return examples


def demonstrations(game: Game, games: int, rng: Random) -> list[Demo]:
    """Whole games about some sums, and of every sum what is rare in them.

    That is a first solution, which alone cannot read its units off an answer, and how an answer is criticised and scored
    in which every carry was forgotten.
    """
    asked = [question_of(*pair) for pair in sums()["train"]]
    forgetful = partial(careless, forgets={**FORGETS, "solver": 1.0})
    demos = []
    for question in asked:
        demos.append(play_demonstration(game, question, careless, rng)[0])
        demos += play_demonstration(game, question, forgetful, rng)[1:3]
    for question in rng.choices(asked, k=games):
        demos += play_demonstration(game, question, careless, rng)
    return demos


def first_solutions(game: Game, rng: Random) -> list[Demo]:
    """The first solution of every sum of two numbers below 50 that is not held out: in these units are added up alone."""
    held_out = {*sums()["test"], *sums()["dev"]}
    pairs = [pair for pair in product(range(10, 50), repeat=2) if pair not in held_out]
    return [play_demonstration(game, question_of(*pair), careless, rng)[0] for pair in pairs]


@flushed_denormals()
def discussion_start(config: SmallPolicyConfig, display: Display, out: Path) -> Metrics:
    """Makes the policy and writes it to ``out``; returns tokens seen and minutes."""
    began = time.perf_counter()
    rng, game = Random(config.seed), get_game("comas_history", agents=AGENTS)
    demos = demonstrations(game, config.tasks, rng)
    first = first_solutions(game, Random(config.seed + 2))
    texts = ["\n".join(["user", *(piece.text for piece in demo), "assistant"]) for demo in demos]
    policy = untrained_policy(texts, ("answer", "think", "critique", "score"), config)
    display.phase("imitation", config.steps)
    shown = examples_of(demos, policy.tokenizer)
    tokens = imitate(policy, shown, config.steps, config, display)
    with torch.no_grad():  # as they would be stored, so that a policy that was kept goes on alike
        for weight in policy.model.parameters():
            weight.copy_(weight.bfloat16())
    mixed = [*examples_of(first, policy.tokenizer), *rng.sample(shown, min(_KEPT, len(shown)))]
    tokens += imitate(policy, mixed, config.steps, config, display)
    metrics: Metrics = {"tokens": tokens, "minutes": (time.perf_counter() - began) / 60}
    metrics["parameters"] = sum(p.numel() for p in policy.model.parameters())
    card = EpisodeCard(
        env="agentenv/SearchSolver-v0",
        prompt=game.turns[0].prompt,
        max_turns=0,
        turn_tokens=96,
        context_tokens=640,
    )
    write_policy(policy, metrics, card, _CARD.format(config=config, **metrics), out)
    return metrics


_CARD = """\
# A small policy that discusses sums

A Qwen2 of {parameters:,} parameters with its own tokenizer. It has imitated {config.tasks} discussions of sums of two
numbers, and further turns, of a program that forgets carries (`benchmarks/sums.py` in the repository): {tokens:,}
tokens, {config.steps} supervised steps, {minutes:.0f} minutes. It knows the game `comas_history` of two agents only.
"""
