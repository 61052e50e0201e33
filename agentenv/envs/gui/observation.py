"""How a graphical environment speaks to a policy: the opening, and a screen as a message."""

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
    """The text that opens an episode.

    Args:
        goal: What is to be done.
        kinds: The actions that the environment knows.
        pointing: ``id`` or ``coordinate``: how the example points at things.
        template: Text with ``{goal}``, and ``{actions}`` and ``{example}`` where wanted.
    """
    instructions = template.replace("{actions}", "; ".join(map(usage, kinds))).replace(
        "{example}", EXAMPLES[pointing]
    )
    return instructions.replace("{goal}", goal)


def usage(kind: ActionKind) -> str:
    """An action with its members: ``click(id|coordinate)``, optional ones in brackets."""
    needed, optional = GRAMMAR[kind]
    return f"{kind}({', '.join([*needed, *(f'[{name}]' for name in optional)])})"


@dataclass(frozen=True)
class ScreenFormat:
    """How screens are told to a policy."""

    tree: bool = True
    """Whether the UI tree is part of a message; where there is no image it always is."""
    pixels: bool = False
    """Whether the image is, resized as ``image_part`` does."""
    places: bool = True
    """Whether the UI tree says where each element is."""

    def message(self, screen: Screen, before: str = "") -> Message:
        """``screen`` as the user's message.

        Args:
            screen: What is to be seen.
            before: Text that stands first: a goal, or what came of the last action.

        Raises:
            MissingExtra: pixels without pillow.
            EnvFault: pixels of a screen whose image cannot be read.
        """
        text = f"{before}{screen.as_text(places=self.places) if self.tree or screen.image is None else ''}\n"
        if not self.pixels or screen.image is None:
            return Message("user", text)
        return Message("user", (MessagePart("text", text), image_part(screen.image)))

    def context(
        self, system: str, past: Sequence[tuple[Screen, str]], now: Screen, window: int, before: str = ""
    ) -> Observation:
        """All that a policy sees in one turn, as UI-S1 has it: the goal, its own history, the newest screens.

        Args:
            system: Opening text, with the goal.
            past: Earlier screens, each with what was said on it.
            now: The present screen.
            window: Newest screens that are shown; of earlier ones it only says that there was one.
            before: What came of the last action.
        """
        messages = [Message("system", system)]
        hidden = len(past) + 1 - window
        for index, (screen, said) in enumerate(past):
            screen_message = (
                Message("user", "[an earlier screen]\n") if index < hidden else self.message(screen)
            )
            messages += [screen_message, Message("assistant", said)]
        return (*messages, self.message(now, before))
