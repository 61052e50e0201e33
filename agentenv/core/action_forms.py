"""Templates of an environment's actions ("forms"): an action without its content, for probes that know nothing of the task.

Forms are learned from the expert's actions. A text that occurs in them after at least two different openings is a constant
of the form (the name of a tool, for example). Every other text is content, and so is an answer such as "yes". Without an
expert, the tags that end an action serve as the form.
"""

import itertools
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentenv.core.grammar import read_json
from agentenv.core.types import Observation

_BLOCK = re.compile(
    r"(<([A-Za-z_][\w-]*)>)((?:(?!<\2>).)*?)(</\2>)"
    r"|(<\|begin_(\w+)\|>)(.*?)(<\|end_\6\|>)"
    r"|(\\boxed(\{))([^{}]*)(\})",
    re.DOTALL,
)
"""Matches a pair of tags, a pair of special tokens, or a ``boxed`` command of LaTeX. Its non-empty groups are, in order: the
opening, the name within the opening, the content, and the closing."""


def mapped(action: str, change: Callable[[str], str]) -> str:
    """``action`` with ``change`` applied to the content of each block.

    Content that is JSON has every text in it changed, and an action without blocks is changed as a whole.

    Example: ``mapped('<search>who</search>', str.upper)`` is ``<search>WHO</search>``.
    """
    if _BLOCK.search(action) is None:
        return change(action)
    return _BLOCK.sub(lambda block: _mapped_block(block, change), action)


def _mapped_block(block: re.Match[str], change: Callable[[str], str]) -> str:
    opening, _, content, closing = (group for group in block.groups() if group is not None)
    return f"{opening}{_mapped_content(content, change)}{closing}"


def _mapped_content(content: str, change: Callable[[str], str]) -> str:
    try:
        document = read_json(content)
    except ValueError:
        return change(content)
    return (
        json.dumps(_mapped_json(document, change)) if isinstance(document, dict | list) else change(content)
    )


def _mapped_json(value: object, change: Callable[[str], str]) -> object:
    match value:
        case str():
            return change(value)
        case dict():
            return {key: _mapped_json(part, change) for key, part in value.items()}
        case list():
            return [_mapped_json(part, change) for part in value]
        case _:
            return value


@dataclass(frozen=True)
class Form:
    """An action as a template: its contents can be replaced."""

    action: str
    constants: frozenset[str] = frozenset()
    """Texts of the action that are part of the form and are not replaced, such as the name of a tool."""

    def filled(self, *texts: str) -> str:
        """Returns the action with ``texts`` as its contents in turn. After the last text comes the first again."""
        given = itertools.cycle(texts)
        return mapped(self.action, lambda content: content if content in self.constants else next(given))

    @property
    def has_content(self) -> bool:
        """Whether the action has any content that can be replaced."""
        return self.filled("a") != self.filled("b")


@dataclass(frozen=True)
class ExpertEpisode:
    """The actions of the expert after one opening."""

    seed: int
    opening: Observation
    actions: tuple[str, ...]
    """Empty if the environment has no expert."""
    reward: float
    """The total reward of these actions; without an expert, the environment's ``reward_ceiling``."""


@dataclass(frozen=True)
class ActionForms:
    """The forms of the actions of an environment."""

    middle: tuple[Form, ...]
    """The forms of actions after which the episode goes on."""
    last: tuple[Form, ...]
    """The forms of actions that end an episode; at least one."""
    constants: frozenset[str]
    last_is_judged: bool = True
    """Whether what the last action says is judged, so that it may be wrong."""


def learn_forms(episodes: Sequence[ExpertEpisode], stop: Sequence[str], most: int) -> ActionForms:
    """Learns the forms in ``episodes``, at most ``most`` of each kind; without an expert, uses the tags of ``stop``."""
    constants = _constants(episodes)
    middle = [Form(action, constants) for one in episodes for action in one.actions[:-1]]
    last = [last_form(one.actions[-1], constants) for one in episodes if one.actions]
    if not last:
        tags = [Form(f"<{tag[2:-1]}>?</{tag[2:-1]}>") for tag in stop if tag.startswith("</")]
        middle, last = tags[:-1], tags[-1:] or [Form("?")]
    return ActionForms(_distinct(middle)[:most], _distinct(last)[:most], constants)


def last_form(action: str, constants: frozenset[str]) -> Form:
    """Returns the form of an action that ends an episode, in which an answer is content even if it answers several tasks.

    A JSON call that consists only of constants, such as ``{"name": "submit"}``, is kept unchanged.
    """
    form = Form(action, constants)
    return form if form.has_content or _has_json(action) else Form(action)


def _has_json(action: str) -> bool:
    """Whether the content of a block of ``action``, or the whole action, is a JSON object or array."""
    blocks = [next(filter(None, block.group(3, 7, 11)), "") for block in _BLOCK.finditer(action)]
    for content in blocks or [action]:
        try:
            if isinstance(read_json(content), dict | list):
                return True
        except ValueError:
            continue
    return False


def _constants(episodes: Sequence[ExpertEpisode]) -> frozenset[str]:
    """Returns the contents that the expert writes after at least two different openings."""
    openings: dict[str, set[Observation]] = {}
    for one in episodes:
        for action in one.actions:
            for content in contents(action):
                openings.setdefault(content, set()).add(one.opening)
    return frozenset(content for content, found in openings.items() if len(found) > 1)


def contents(action: str) -> list[str]:
    """Returns the texts of ``action`` that `mapped` would change, in order."""
    found: list[str] = []

    def note(content: str) -> str:
        found.append(content)
        return content

    mapped(action, note)
    return found


def _distinct(forms: Sequence[Form]) -> tuple[Form, ...]:
    """Removes forms that differ from an earlier one in their content only."""
    first: dict[str, Form] = {}
    for form in forms:
        first.setdefault(form.filled(""), form)
    return tuple(first.values())
