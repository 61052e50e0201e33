"""The card of a set of recordings, to read before training: sizes, actions, scores of policies that ignore the screen."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from agentenv.envs.gui.actions import Action, ActionKind, action_text, parse_reply
from agentenv.envs.gui.matching import MATCHERS, get_matcher
from agentenv.envs.gui.recordings import RecordedStep, Recording, expert_action

LARGE_BOXES = (0.25, 0.5, 0.75)


def constant_policies(step: RecordedStep) -> dict[str, Action]:
    """Returns the actions of policies that ignore the content of the screen of ``step``, by name."""
    w, h = step.display_size
    middle, near, far = (w / 2, h / 2), 0.25, 0.75
    return {
        "click the centre": Action(ActionKind.CLICK, point=middle),
        "type nothing": Action(ActionKind.TYPE, text=""),
        "wait": Action(ActionKind.WAIT),
        "swipe up": Action(ActionKind.SWIPE, point=(w / 2, h * far), end=(w / 2, h * near)),
        "swipe down": Action(ActionKind.SWIPE, point=(w / 2, h * near), end=(w / 2, h * far)),
        "go back": Action(ActionKind.SYSTEM_BUTTON, text="Back"),
        "open nothing": Action(ActionKind.OPEN, text=""),
        "terminate": Action(ActionKind.TERMINATE, text="success"),
    }


def ceilings(recordings: Sequence[Recording], preset: str) -> dict[str, dict[str, float]]:
    """Returns the share of all steps, and of the steps of its own kind, that each constant policy passes under ``preset``.

    Raises:
        UnknownName: there is no such preset.
    """
    matcher = get_matcher(preset)
    passed: Counter[str] = Counter()
    own: Counter[str] = Counter()
    steps = [step for recording in recordings for step in recording.steps]
    for step in steps:
        for name, action in constant_policies(step).items():
            verdict = matcher(action, step.gold, step.display_size)
            passed[name] += verdict.exact
            own[name] += verdict.type_ok
    names = constant_policies(steps[0]) if steps else {}
    return {
        name: {
            "all": round(passed[name] / len(steps), 4),
            "own_kind": round(passed[name] / max(own[name], 1), 4),
        }
        for name in names
    }


def gold_replay(recordings: Sequence[Recording], preset: str) -> dict[str, Any]:
    """Replays every expert action as a policy would write it; counts exact matches and the reasons of mismatches.

    Raises:
        UnknownName: there is no such preset.
    """
    matcher = get_matcher(preset)
    reasons: Counter[str] = Counter()
    for recording in recordings:
        for step in recording.steps:
            reply = parse_reply(action_text(expert_action(step)))
            verdict = matcher(reply.action, step.gold, step.display_size) if reply.action else None
            reasons[verdict.reason if verdict else reply.error] += 1
    exact = reasons.pop("", 0)
    return {"steps": exact + reasons.total(), "exact": exact, "failures": dict(reasons.most_common())}


def card(recordings: Sequence[Recording]) -> dict[str, Any]:
    """Returns sizes, lengths, kinds of action, share of large boxes, gold replay, and ceilings under every preset."""
    steps = [step for recording in recordings for step in recording.steps]
    lengths = sorted(len(recording.steps) for recording in recordings)
    kinds = Counter(str(step.gold.action.kind) for step in steps)
    largest = [
        max((box.area for box in step.gold.boxes), default=0.0) / (step.gold.size[0] * step.gold.size[1])
        for step in steps
        if step.gold.action.point is not None and step.gold.action.end is None
    ]
    return {
        "recordings": len(recordings),
        "steps": len(steps),
        "lengths": _length_statistics(lengths),
        "successful": sum(recording.successful for recording in recordings),
        "with_tree": sum(step.screen.elements is not None for step in steps),
        "with_pixels": sum(step.screen.image is not None for step in steps),
        "actions": dict(kinds.most_common()),
        "large_boxes": {f"{share:g}": sum(area > share for area in largest) for share in LARGE_BOXES},
        "gold_replay": {name: gold_replay(recordings, name) for name in MATCHERS},
        "ceilings": {name: ceilings(recordings, name) for name in MATCHERS},
    }


def _length_statistics(lengths: Sequence[int]) -> Mapping[str, float]:
    if not lengths:
        return {}
    return {"min": lengths[0], "mean": round(sum(lengths) / len(lengths), 3), "max": lengths[-1]}
