"""A policy that reads what several others are good at and lets one of them play (the inference of TRACE, arXiv:2604.05336).

A folder holds ``router.json``: the base model, and for each capability its description and the policy that was trained for
it. Before the first turn of an episode the base model is shown the descriptions and the opening, and writes a name. Where it
writes none of them, it plays itself.
"""

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from agentenv.core.io.files import write_text
from agentenv.core.io.strict_json import read_json_text
from agentenv.core.types import Completion, Message, Sampling
from agentenv.core.validation import sentence
from agentenv.errors import CheckpointMismatch

FILE = "router.json"
BASE = "base"
"""The name by which the base model chooses itself."""
_NAME_TOKENS = 16
_REMEMBERED = 100_000
"""Episodes whose choice is kept after their cache was released."""

PROMPT = """\
Which skill does this task need most?
{skills}
Write the name of one of them and nothing else, or {base} if it needs none of them.
Task: {task}
Name:"""


@dataclass(frozen=True)
class Route:
    """A policy and what it is good at."""

    name: str
    description: str
    policy: str
    """Spec of the policy; a path in it is relative to the folder of the file."""


@dataclass(frozen=True)
class RouterCard:
    """The content of ``router.json``."""

    base: str
    """Spec of the base model."""
    routes: tuple[Route, ...]


def write_router(folder: Path, card: RouterCard) -> None:
    """Writes ``router.json``."""
    write_text(folder / FILE, json.dumps(asdict(card), indent=2) + "\n")


def read_router(folder: Path) -> RouterCard:
    """The content of ``router.json``, with paths that can be opened from here.

    Raises:
        CheckpointMismatch: there is no such file, or it is none of ours.
    """
    path = folder / FILE
    try:
        card = TypeAdapter(RouterCard).validate_python(read_json_text(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise CheckpointMismatch(f"{folder} holds no {FILE}: {error}") from error
    except ValidationError as error:
        raise CheckpointMismatch(f"{path}: {sentence(error)}") from error
    except ValueError as error:
        raise CheckpointMismatch(f"{path} is no JSON: {error}") from error
    names = [route.name for route in card.routes]
    if len(set(names)) < len(names) or BASE in names:
        raise CheckpointMismatch(
            f"{path} must name each route once and none of them {BASE!r}; it names {names}"
        )
    routes = tuple(
        Route(route.name, route.description, _placed(route.policy, folder)) for route in card.routes
    )
    return RouterCard(_placed(card.base, folder), routes)


def _placed(spec: str, folder: Path) -> str:
    """``spec``, its path taken from ``folder``."""
    kind, _, rest = spec.partition(":")
    return f"{kind}:{folder / rest}" if kind == "hf" and rest and not Path(rest).is_absolute() else spec


class RouterPolicy:
    """Routes each episode to the policy that its base model chooses; safe for many episodes at once.

    All policies share the tokenizer of the base, whose ids the episodes are recorded in.
    """

    version = 0

    def __init__(self, base: Any, routes: Mapping[str, tuple[str, Any]], chat: Any) -> None:
        """Wraps policies that are open.

        Args:
            base: The base model's, with a tokenizer.
            routes: Description and policy by name.
            chat: How the base model is asked.
        """
        self._base, self._routes, self._asking = base, dict(routes), chat
        self.tokenizer, self.ends = base.tokenizer, getattr(base, "ends", ())
        self.context_tokens = min(p.context_tokens for p in (base, *(p for _, p in self._routes.values())))
        self.image_reader = None
        self.chosen: OrderedDict[str, str] = OrderedDict()
        """Name of the choice by episode."""

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
    ) -> Completion:
        """One chunk of the policy that was chosen for ``episode``; without an episode the base model answers.

        Raises:
            PolicyFault: the engine failed.
            ContextTooSmall: the prompt alone fills the context.
        """
        if episode is None:
            return await self._base.generate(prompt_ids, sampling)  # type: ignore[no-any-return]
        if episode not in self.chosen:
            self.chosen[episode] = await self._choose(prompt_ids, episode)
            # The oldest leave; a choice is asked for again where an episode comes back so late.
            while len(self.chosen) > _REMEMBERED:
                self.chosen.popitem(last=False)
        return await self._of(episode).generate(prompt_ids, sampling, episode=episode)  # type: ignore[no-any-return]

    async def _choose(self, prompt_ids: Sequence[int], episode: str) -> str:
        """The name that the base model writes, greedily; ``BASE`` where it is none of the routes, or nothing fits."""
        skills = "\n".join(f"{name}: {description}" for name, (description, _) in self._routes.items())
        task = self.tokenizer.decode(list(prompt_ids))
        prompt = PROMPT.format(skills=skills, base=BASE, task=task)
        ids = self._asking.prompt([Message("user", prompt)])
        if len(ids) + _NAME_TOKENS >= self._base.context_tokens:
            return BASE
        sampling = Sampling(max_tokens=_NAME_TOKENS, temperature=0.0, stop=("\n",))
        asking = f"{episode}-route"
        try:
            reply = await self._base.generate(ids, sampling, episode=asking)
        finally:
            self._base.release(asking)
        words = reply.text.strip().split()
        return words[0].strip(".,:") if words and words[0].strip(".,:") in self._routes else BASE

    def _of(self, episode: str) -> Any:
        name = self.chosen.get(episode, BASE)
        return self._base if name == BASE else self._routes[name][1]

    def release(self, episode: str) -> None:
        """Forgets what was kept for ``episode`` but for the choice, which is part of the results."""
        self._of(episode).release(episode)

    async def score(self, ids: Sequence[int], *, temperature: float = 1.0) -> Sequence[float]:
        """Log-probabilities under the base model."""
        return await self._base.score(ids, temperature=temperature)  # type: ignore[no-any-return]
