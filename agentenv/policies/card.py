"""The form in which a policy was trained to be asked, kept beside its weights so that evaluations ask the same way."""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from agentenv.core.chat_formats import make_chat_format
from agentenv.core.images import ImageReader
from agentenv.core.io.model_files import read_settings
from agentenv.core.io.named_paths import named_content, texts_in
from agentenv.core.protocols import ChatFormat
from agentenv.core.registry import is_class
from agentenv.core.trust import risks
from agentenv.core.validation import sentence
from agentenv.errors import CheckpointMismatch

_FILE = "episode.json"


@dataclass(frozen=True)
class EpisodeCard:
    """The form of the episodes that a policy was trained in. The defaults suit an instruction-tuned model."""

    env: str = "agentenv/LocalSearch-v0"
    """Id of the environment."""
    prompt: str | None = None
    """Opening message; holds ``{question}``. None is the environment's own."""
    format: str = "inline"
    """``inline``, ``template`` or ``native``."""
    family: str = ""
    """The model family, for ``native``; empty reads it from the chat template."""
    template_options: dict[str, Any] = field(default_factory=dict)
    """Arguments of the chat template, for ``native``."""
    k: int | None = None
    """Passages a search; None is the environment's own."""
    max_turns: int | None = None
    """Turns before the last one, in which only an answer counts; None is the environment's own."""
    observation_tokens: int | None = None
    """Bound of one observation; None is the environment's own, within the context."""
    turn_tokens: int = 500
    """Tokens that the policy may sample in one turn."""
    context_tokens: int = 4096
    """Tokens of prompt, actions and observations together."""
    strategy: str = ""
    """The rollout strategy that belongs to the form of the episodes, such as ``judge``; empty is none."""
    strategy_options: dict[str, Any] = field(default_factory=dict)
    """Options of the strategy by name."""
    options: dict[str, Any] = field(default_factory=dict)
    """Further options of the environment that shape its episodes, such as the tools. See `portable`."""
    environments: tuple["EpisodeCard", ...] = ()
    """The form of the episodes in each further environment that the policy was trained in."""

    def of(self, env: str) -> "EpisodeCard":
        """The form of the episodes in the environment ``env``; this one where the policy was not trained in it."""
        return next((card for card in (self, *self.environments) if card.env == env), self)

    def chat_format(
        self, tokenizer: Any, ends: Collection[int] = (), image_reader: ImageReader | None = None
    ) -> ChatFormat:
        """How messages become ids of ``tokenizer``, whose turns end with one of ``ends``."""
        return make_chat_format(
            self.format,
            tokenizer,
            ends,
            family=self.family,
            template_options=self.template_options,
            image_reader=image_reader,
        )


_WORDS = re.compile(r"[\w .,+-]*")
_NAME = re.compile(r"\w*")
_SHOWN = 100  # characters of what is refused
_DEPTH = 4  # of tables and lists in one another; no option has more
_SANDBOX = frozenset({"executor", "limits"})


def portable(options: Mapping[str, Any]) -> dict[str, Any]:
    """The ``options`` that consist of numbers and words alone, which are safe to take from a policy of another author.

    What could name a file, a host or code is left out, and so are where and within which limits programs run.
    """
    return {
        name: value
        for name, value in options.items()
        if name not in _SANDBOX and _is_plain(value) and not any(risks({name: value}))
    }


def _is_plain(value: Any, depth: int = _DEPTH) -> bool:
    if isinstance(value, Mapping | list | tuple):
        parts = [*value, *value.values()] if isinstance(value, Mapping) else value
        return depth > 0 and all(_is_plain(part, depth - 1) for part in parts)
    return isinstance(value, bool | int | float) or (
        isinstance(value, str) and _WORDS.fullmatch(value) is not None
    )


def read_card(folder: Path) -> EpisodeCard:
    """The card in ``folder``; the defaults where there is none.

    Raises:
        CheckpointMismatch: what stands there is no such card.
    """
    path = folder / _FILE
    if not path.is_file():
        return EpisodeCard()
    card = _checked(settings := read_settings(path), path)
    further = settings.get("environments", ())
    if any("environments" in one for one in further):
        raise CheckpointMismatch(
            f"{path} is no card of episodes: one of its environments lists environments itself"
        )
    return replace(card, environments=tuple(_checked(one, path) for one in further))


def _checked(settings: dict[str, Any], path: Path) -> EpisodeCard:
    """The card that ``settings`` of the file at ``path`` are.

    Raises:
        CheckpointMismatch: they are none, or could run code, open a file or ask a host.
    """
    try:
        EpisodeCard(**settings)  # which refuses what it does not know
        card: EpisodeCard = TypeAdapter(EpisodeCard).validate_python(settings)
    except TypeError as error:
        raise CheckpointMismatch(f"{path} is no card of episodes: {error}") from error
    except ValidationError as error:
        raise CheckpointMismatch(f"{path} is no card of episodes: {sentence(error)}") from error
    if more := sorted(card.options.keys() - portable(card.options).keys()):
        raise CheckpointMismatch(
            f"{path} sets the options {more}, and a card holds numbers and words alone, and nothing of a sandbox: delete "
            "them there and name them with --option"
        )
    if named := _unsafe_strategy(card):
        raise CheckpointMismatch(
            f"{path} sets {named}, and a card may name strategies of agentenv alone, and in their options no file, host or "
            "code: delete it there and give --strategy where you trust it"
        )
    return card


def _unsafe_strategy(card: EpisodeCard) -> str:
    """What in the strategy of a card could import a module, open a file or ask a host; empty where nothing could."""
    if not _NAME.fullmatch(card.strategy):
        return f"the strategy {card.strategy[:_SHOWN]!r}"
    for name, text in texts_in(card.strategy_options):
        if is_class(text) or any(risks({name: text})) or named_content(text):
            return f"the option {name[:_SHOWN]!r} of its strategy to {text[:_SHOWN]!r}"
    return ""


def write_card(folder: Path, card: EpisodeCard) -> None:
    """Writes the card beside the weights."""
    (folder / _FILE).write_text(json.dumps(_settings_of(card), indent=1) + "\n", encoding="utf-8")


def _settings_of(card: EpisodeCard) -> dict[str, Any]:
    """What of ``card`` differs from a card that says nothing about it."""
    settings = asdict(card)
    if card.format != "native":
        del settings["family"], settings["template_options"]
    if not card.strategy:
        del settings["strategy"], settings["strategy_options"]
    if not card.options:
        del settings["options"]
    del settings["environments"]
    if card.environments:
        settings["environments"] = [_settings_of(one) for one in card.environments]
    return settings
