"""Recordings: what is read and refused, gold replay, cards and ceilings, the AndroidControl file, and recording a run."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from agentenv.envs.domsim.env import DomSim
from agentenv.envs.gui.actions import Action, ActionKind
from agentenv.envs.gui.cards import ceilings, gold_replay
from agentenv.envs.gui.matching import MATCHERS, Gold
from agentenv.envs.gui.recorder import boxes_of, record, write_dataset
from agentenv.envs.gui.recordings import (
    RecordedStep,
    Recording,
    expert_action,
    load_recordings,
    write_recordings,
)
from agentenv.envs.gui.screen import Box, Element, Screen, pointed
from agentenv.errors import ConfigurationError, DatasetError

needs_data = pytest.mark.skipif(not os.environ.get("AGENTENV_DATA"), reason="AGENTENV_DATA names no folder")


def step(action: str, **members: Any) -> dict[str, Any]:
    options = members.pop("check_options", {})
    return {"action_content": {"action": action, **members}, "check_options": {"action": action, **options}}


def load(folder: Path, *lines: dict[str, Any], **options: Any) -> tuple[Recording, ...]:
    path = folder / "some.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return load_recordings(path, **options)


def line(*steps: dict[str, Any], id: int = 1) -> dict[str, Any]:
    return {"goal": "Do it.", "is_successful": True, "episode_id": id, "steps": list(steps)}


def test_both_conventions_of_boxes(tmp_path: Path) -> None:
    flat = {"action_content": {"action": "click", "coordinate": [1, 2], "bbox": [0, 0, 9, 9]}}
    four = [[0, 0, i, i] for i in (6, 7, 8, 9)]
    listed = step("click", coordinate=[1, 2], check_options={"candidate_bbox": four})
    (recording,) = load(tmp_path, line(flat, listed))
    assert recording.steps[0].gold.boxes == (Box(0, 0, 9, 9),)
    assert recording.steps[1].gold.boxes == tuple(Box(*map(float, box)) for box in four)


def test_a_declared_direction_must_agree_with_the_finger(tmp_path: Path) -> None:
    up = step("swipe", coordinate=[540, 1800], coordinate2=[540, 600], check_options={"direction": "down"})
    right = step("swipe", coordinate=[100, 900], coordinate2=[900, 900], check_options={"direction": "right"})
    assert len(load(tmp_path, line(up, right), semantics="ui_s1")) == 1
    assert len(load(tmp_path, line(up), semantics="scroll")) == 1
    for steps, semantics in (((up,), "finger"), ((right,), "scroll")):
        with pytest.raises(DatasetError, match=f"line 1.*steps 1.*'{semantics}'"):
            load(tmp_path, line(*steps), semantics=semantics)


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        (line(), "steps"),
        (line({"action_content": "click"}), "action_content"),
        (line(step("fly")), "'fly'"),
        (line(step("click", coordinate=[1, 2], check_options={"candidate_bbox": [3]})), r"steps 1.*\[x1"),
        (
            line(step("click", coordinate=[1, 2], check_options={"candidate_bbox": [[3, 4]]})),
            r"steps 1.*\[x1",
        ),
        (line({**step("wait"), "annotation": "FINE"}), "annotation"),
        ({"steps": [step("wait")]}, "'goal'"),
    ],
)
def test_what_cannot_be_replayed_is_refused_with_its_place(
    tmp_path: Path, bad: dict[str, Any], named: str
) -> None:
    with pytest.raises(DatasetError, match=rf"line 2.*{named}"):
        load(tmp_path, line(step("wait")), bad)


def test_an_id_occurs_once(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="'1' twice"):
        load(tmp_path, line(step("wait")), line(step("wait")))


def test_the_screen_is_guessed_from_the_coordinates(tmp_path: Path) -> None:
    places = [[1080, 2400], [1100, 2500], [2300, 400], [1454, 4000]]
    lines = [line(step("click", coordinate=place), id=i) for i, place in enumerate(places)]
    sizes = [recording.steps[0].gold.size for recording in load(tmp_path, *lines)]
    assert sizes == [(1080, 2400), (1440, 3120), (2400, 1080), (1454, 4000)]


def recorded(*templates: str) -> list[Recording]:
    env = DomSim()
    return [record(env, task) for task in DomSim.make_tasks(len(templates), templates=templates)]


def test_a_recorded_run_is_written_and_read_back(tmp_path: Path) -> None:
    made = recorded("files-drag", "mail-reply")
    write_recordings(made, tmp_path / "made.jsonl")
    assert list(load_recordings(tmp_path / "made.jsonl", semantics="finger")) == made


def test_every_recorded_action_is_the_experts_by_place_and_by_id() -> None:
    made = recorded("files-drag", "shop-buy", "settings-choose", "contacts-delete")
    for preset in ("agentenv", "odyssey"):
        replay = gold_replay(made, preset)
        assert replay == {"steps": replay["steps"], "exact": replay["steps"], "failures": {}}
    for recording in made:
        for taken in recording.steps:
            named = expert_action(taken, by_id=True)
            assert named.point is None
            assert named.id is not None or named.kind not in (
                ActionKind.CLICK,
                ActionKind.SELECT,
                ActionKind.DRAG,
            )


def test_an_id_names_what_the_expert_means_or_places_stay() -> None:
    size = (336, 224)
    area, below = (
        Element("1", "img", "", Box(0, 50, 160, 210)),
        Element("2", "button", "", Box(40, 80, 80, 120)),
    )
    above = Element("3", "button", "", Box(50, 90, 90, 130))
    screen = Screen(*size, "page", (area, below, above))

    def named(action: Action) -> Action:
        shown = pointed(action, screen)
        step = RecordedStep(screen, Gold(shown, size, boxes_of(action, screen)))
        read = expert_action(step, by_id=True)
        assert MATCHERS["agentenv"](pointed(read, screen), step.gold, size).exact
        return read

    for id in ("1", "2", "3"):
        assert named(Action(ActionKind.CLICK, id=id)).id == id
    assert named(Action(ActionKind.DRAG, id="2", end_id="1")).end_id == "1"
    moved = named(Action(ActionKind.DRAG, id="2", end=(60, 140)))
    assert (moved.id, moved.point, moved.end) == (None, (60, 100), (60, 140))


def test_a_failed_run_and_nothing_are_no_data_set(tmp_path: Path) -> None:
    env = DomSim()
    (task,) = DomSim.make_tasks(1, templates=["mail-star"])
    failed = record(
        env, task, actions=["mumble", '<action>{"action": "terminate", "status": "success"}</action>']
    )
    assert not failed.successful
    assert [taken.gold.action for taken in failed.steps] == [Action(ActionKind.TERMINATE, text="success")]
    for recordings in ([failed], []):
        with pytest.raises(ConfigurationError):
            write_dataset(recordings, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_data_set_has_a_card(tmp_path: Path) -> None:
    made = recorded("mail-star", "mail-read-code")
    told = write_dataset(made, tmp_path)
    assert told == json.loads((tmp_path / "card.json").read_text(encoding="utf-8"))
    # open, letter, star, terminate; open, letter, answer, terminate
    assert (told["recordings"], told["steps"], told["with_tree"]) == (2, 8, 8)
    assert told["actions"] == {"click": 3, "open": 2, "terminate": 2, "answer": 1}
    assert told["lengths"] == {"min": 4, "mean": 4.0, "max": 4}
    assert told["ceilings"]["agentenv"]["terminate"] == {"all": 0.25, "own_kind": 1.0}
    assert told["ceilings"]["agentenv"]["wait"] == {"all": 0.0, "own_kind": 0.0}


@needs_data
def test_gold_replay_of_android_control_is_exact_and_constants_stay_low() -> None:
    recordings = load_recordings()
    assert len(recordings) == 1543
    steps = [taken for recording in recordings for taken in recording.steps]
    assert len(steps) == 8444
    assert [len(taken.gold.boxes) for taken in steps].count(4) == 1
    assert gold_replay(recordings, "agentenv") == {"steps": 8444, "exact": 8444, "failures": {}}
    some = recordings[:300]
    assert gold_replay(recordings, "ui_s1_sop") == {"steps": 8444, "exact": 8444, "failures": {}}
    for preset in ("ui_s1", "odyssey"):
        assert gold_replay(some, preset)["failures"] == {}
    ours, theirs = ceilings(some, "agentenv"), ceilings(some, "ui_s1")
    assert ours["click the centre"]["own_kind"] < 0.08
    assert ours["type nothing"]["own_kind"] == 0
    assert max(share["all"] for share in ours.values()) < 0.2
    assert theirs["click the centre"]["own_kind"] > 0.2
    assert theirs["type nothing"]["own_kind"] == 1
