"""The card of a file of recordings: gold replay and constant-policy ceilings under every matcher.

The last line of the replay reads swipes as UI-S1's training file has them, without a declared direction.

    AGENTENV_DATA=DIR python benchmarks/gui_ceilings.py
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import common_arguments, finish, run_script

from agentenv.envs.gui.cards import card, gold_replay
from agentenv.envs.gui.recordings import Recording, load_recordings


def undeclared(recordings: Sequence[Recording]) -> list[Recording]:
    """The same recordings with directions to be derived from coordinates."""
    return [
        Recording(
            recording.id,
            recording.goal,
            tuple(replace(step, gold=replace(step.gold, declared=None)) for step in recording.steps),
        )
        for recording in recordings
    ]


def table(figures: dict[str, Any]) -> list[str]:
    """Counts, then one line a preset, then one a constant policy."""
    lines = [f"{figures['recordings']} recordings, {figures['steps']} steps, actions {figures['actions']}"]
    for name, replay in figures["gold_replay"].items():
        lines.append(f"gold replay {name:<24}{replay['exact']:>6} of {replay['steps']}  {replay['failures']}")
    for name, policies in figures["ceilings"].items():
        lines += [
            f"ceiling {name:<10}{policy:<18}{share['all']:>7.1%} of all{share['own_kind']:>8.1%} of its kind"
            for policy, share in policies.items()
        ]
    return lines


def main() -> None:
    """Reads, replays and reports."""
    parser = common_arguments(__doc__ or "")
    parser.add_argument("--data", type=Path, help="file of recordings; by default android_control")
    args = parser.parse_args()
    recordings = load_recordings(args.data)
    figures = card(recordings)
    figures["gold_replay"]["ui_s1, undeclared"] = gold_replay(undeclared(recordings), "ui_s1")
    finish("gui_ceilings", args, figures, table(figures))


if __name__ == "__main__":
    run_script(main)
