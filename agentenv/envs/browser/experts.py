"""Scripted experts for MiniWoB: each reads the goal and the UI tree, as a policy would, and gives actions."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from agentenv.envs.browser.session import Seen
from agentenv.envs.gui.actions import Action


@dataclass
class View:
    """What an expert sees; renewed after each of its actions."""

    seen: Seen


Expert = Callable[[View], Iterator[Action]]
EXPERTS: dict[str, Expert] = {}
