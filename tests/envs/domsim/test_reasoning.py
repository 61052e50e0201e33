"""The expert's thoughts in the parts of EvoCUA's cold start: which turn has which, what they say, what is imitated."""

import re
from pathlib import Path
from typing import Any

import pytest

from agentenv.core.types import Task, ToolStatus
from agentenv.envs.domsim.env import DomSim
from agentenv.envs.domsim.reasoning import SLIPS, Deed, reasoning, with_slip
from agentenv.envs.domsim.tasks import DesktopTask, solve
from agentenv.envs.gui.actions import ActionKind, parse_reply
from agentenv.errors import UnknownName
from agentenv.policies.fakes import random_policy
from agentenv.trainers.config.config_files import changed, load_config
from agentenv.trainers.credit.redundancy import redundant_in
from agentenv.trainers.warmstart.expert_warmstart import demonstrations

MARK = re.compile(r"(Goal|Observation|Reflection|Self-verification|Termination|Action): ")


def parts_of(action: str) -> list[str]:
    return MARK.findall(parse_reply(action).thought)


def shown(template: str, seed: str = "test", **options: Any) -> tuple[DomSim, list[str]]:
    env = DomSim(thoughts="parts", **options)
    env.reset(seed=0, options={"task": Task("t", "", data={"template": template, "seed": seed})})
    return env, list(env.expert())


def test_the_thoughts_of_a_task_by_hand() -> None:
    """The words of the task and of its screens, in parts; the goal once, the check and the end in the last turn."""
    deeds = [Deed(*move) for move in solve(DesktopTask("mail-star", "train 0 0"))]
    opened, found, starred, ended = reasoning(deeds, "Star the mail\nabout 'Book club'.", None)
    assert opened == (
        "Goal: Star the mail about 'Book club'. Observation: I see the page 'home', and need the app 'mail'. "
        "Action: I open mail."
    )
    letter = "listitem 'mira.moreau@example.org: Book club'"
    assert found == f"Observation: the page 'mail' shows the {letter}. Action: I use click on {letter}."
    assert starred == (
        "Observation: the page 'mail' shows the switch 'Starred'. Action: I use click on switch 'Starred'."
    )
    assert ended == (
        "Observation: I see the page 'mail'. Self-verification: I have made 3 actions, the latest: open mail; "
        f"use click on {letter}; use click on switch 'Starred'. The screen shows the switch 'Starred' (checked). "
        "Termination: what the goal asks for is done, and nothing else. Action: I terminate success."
    )


@pytest.mark.parametrize("joined", [1, 2])
def test_every_episode_succeeds_and_every_part_stands_where_it_belongs(joined: int) -> None:
    env = DomSim(thoughts="parts", max_steps=40)
    slipped = 0
    for task in DomSim.make_tasks(40, joined=joined, infeasible=0.1):
        env.reset(seed=0, options={"task": task})
        actions = list(env.expert())
        steps = [env.step(action) for action in actions]
        assert [step.reward for step in steps] == [0.0] * (len(steps) - 1) + [1.0]
        replies = [parse_reply(action) for action in actions]
        assert all(reply.format_ok for reply in replies)
        parts = [parts_of(action) for action in actions]
        assert [("Goal" in one, one.count("Observation")) for one in parts] == [
            (place == 0, 1) for place in range(len(parts))
        ]
        assert parts[-1][-3:] == ["Self-verification", "Termination", "Action"]
        assert not any("Termination" in one for one in parts[:-1])
        failed = [
            place
            for place, step in enumerate(steps[:-1])
            if step.info["tool_results"][0].status is ToolStatus.ERROR
        ]
        assert [place for place, one in enumerate(parts) if "Reflection" in one] == [p + 1 for p in failed]
        slipped += len(failed)
        if task.data["template"].startswith("infeasible:"):
            assert "so the task cannot be done" in replies[-1].thought
    assert 2 < slipped < 25


def test_the_slip_is_drawn_by_the_task_and_needs_a_turn_of_its_own() -> None:
    deeds = [Deed(*move) for move in solve(DesktopTask("mail-star", "train 0 0"))]
    drawn = [with_slip(deeds, f"seed {number}") for number in range(400)]
    assert with_slip(deeds, "seed 3") == drawn[3]
    slips = [place for _, place in drawn if place is not None]
    assert len(slips) / 400 == pytest.approx(SLIPS, abs=0.06)
    assert set(slips) == {1, 2}  # before one of the two clicks; opening an app and ending have no widget
    assert {len(longer) for longer, place in drawn if place is not None} == {len(deeds) + 1}
    seed = next(seed for seed in map(str, range(99)) if len(shown("mail-star", seed)[1]) == 5)
    assert len(shown("mail-star", seed, max_steps=4)[1]) == 4


def test_what_a_screen_holds_and_what_is_out_of_view_is_said() -> None:
    """A field that is overwritten is named with what it holds, and a list that goes on is scrolled."""
    said = {action.kind: text for action, text in thoughts_of_many()}
    assert re.search(r"textbox '\w+', which holds '", said[ActionKind.KEY])
    assert "does not show what I need, and goes on down" in said[ActionKind.SCROLL]
    assert "and know what was asked: " in said[ActionKind.ANSWER]


def thoughts_of_many() -> list[tuple[Any, str]]:
    env, found = DomSim(thoughts="parts"), []
    for task in DomSim.make_tasks(100):
        env.reset(seed=0, options={"task": task})
        found += [(reply.action, reply.thought) for reply in map(parse_reply, env.expert())]
    return [(action, thought) for action, thought in found if action is not None]


def test_one_sentence_stays_the_default_and_other_forms_are_named() -> None:
    env = DomSim()
    env.reset(seed=0, options={"task": Task("t", "", data={"template": "mail-star", "seed": "test"})})
    assert not any(MARK.search(action) for action in env.expert())
    with pytest.raises(UnknownName, match="'long'"):
        DomSim(thoughts="long")  # type: ignore[arg-type]


def test_the_lessons_of_evocua_leave_out_slips_and_keep_the_end_of_what_cannot_be_done(
    tmp_path: Path,
) -> None:
    """About a thousand episodes; here ten.

    A slip leads back to where the episode was, so that masking redundant turns leaves it out, and of an infeasible task the
    last turn alone is left.
    """
    random_policy(tmp_path / "policy", context=8192, texts=["<think> </think> <action> </action> Goal: mail"])
    lessons = load_config("evocua-lessons")
    assert lessons.train.limit == 1000
    few = {"policy": f"hf:{tmp_path / 'policy'}", "train.limit": 10, "train.options.apart_from.n": 2}
    episodes = demonstrations(
        changed(lessons, few | {"rollout.turn_tokens": 4096, "rollout.context_tokens": 60000})
    )
    assert len(episodes) == 10
    impossible = [episode for episode in episodes if episode.info.get("infeasible")]
    assert len(impossible) == 1
    for episode in episodes:
        parts = [parts_of(turn.action) for turn in episode.turns]
        after = {place for place, one in enumerate(parts) if "Reflection" in one}
        left_out = {place for place, redundant in enumerate(redundant_in(episode)) if redundant}
        if episode in impossible:
            assert left_out == set(range(len(parts) - 1))
        else:
            assert {place - 1 for place in after} <= left_out
            assert not left_out & after
