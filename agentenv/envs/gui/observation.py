"""Messages of a graphical environment to a policy: the opening, and screens."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from agentenv.core.types import Message, MessagePart, Observation
from agentenv.envs.gui.actions import GRAMMAR, ActionKind
from agentenv.envs.gui.screen import Screen, image_part

PROMPT = """\
You operate a computer through its screen. Do the task below.
In every turn, first think between <think> and </think>, then write one action as JSON between <action> and </action>, like \
<action>{example}</action>. Coordinates are pixels of the screen as you see it.
Actions: {actions}.
If the task asks a question, use the action answer before you terminate. When the task is done, terminate with success. \
If it cannot be done, terminate with failure.
Task: {goal}
"""
EXAMPLES = {
    "id": '{"action": "click", "id": 3}',
    "coordinate": '{"action": "click", "coordinate": [40, 120]}',
}


def opening(goal: str, kinds: Collection[ActionKind], pointing: str, template: str = PROMPT) -> str:
    """Returns the text that opens an episode.

    Args:
        goal: The goal of the episode.
        kinds: The actions that the environment supports.
        pointing: ``id`` or ``coordinate``: how the example refers to elements.
        template: A text with ``{goal}``, and optionally ``{actions}`` and ``{example}``.
    """
    instructions = template.replace("{actions}", "; ".join(map(usage, kinds))).replace(
        "{example}", EXAMPLES[pointing]
    )
    return instructions.replace("{goal}", goal)


def usage(kind: ActionKind) -> str:
    """Describes an action with its members, such as ``click(id|coordinate)``; optional ones are in brackets."""
    needed, optional = GRAMMAR[kind]
    return f"{kind}({', '.join([*needed, *(f'[{name}]' for name in optional)])})"


@dataclass(frozen=True)
class ScreenFormat:
    """How screens are shown to a policy."""

    tree: bool = True
    """Whether the UI tree is part of a message. Without an image, it always is."""
    pixels: bool = False
    """Whether the image is part of a message, resized by ``image_part``."""
    places: bool = True
    """Whether the UI tree contains the position of each element."""

    def message(self, screen: Screen, before: str = "") -> Message:
        """Shows ``screen`` as a user message.

        Args:
            screen: The screen to show.
            before: Text at the beginning: a goal, or the result of the last action.

        Raises:
            MissingExtra: pixels are requested, and pillow is not installed.
            EnvFault: the image of the screen cannot be read.
        """
        text = f"{before}{screen.as_text(places=self.places) if self.tree or screen.image is None else ''}\n"
        if not self.pixels or screen.image is None:
            return Message("user", text)
        return Message("user", (MessagePart("text", text), image_part(screen.image)))

    def context(
        self, system: str, past: Sequence[tuple[Screen, str]], now: Screen, window: int, before: str = ""
    ) -> Observation:
        """Returns the whole context of one turn, as in UI-S1: the goal, the policy's own history, and the newest screens.

        Args:
            system: The opening text with the goal.
            past: Earlier screens, each with the policy's reply.
            now: The present screen.
            window: Number of newest screens that are shown; earlier ones are only mentioned.
            before: The result of the last action.
        """
        messages = [Message("system", system)]
        hidden = len(past) + 1 - window
        for index, (screen, said) in enumerate(past):
            screen_message = (
                Message("user", "[an earlier screen]\n") if index < hidden else self.message(screen)
            )
            messages += [screen_message, Message("assistant", said)]
        return (*messages, self.message(now, before))
