"""Screens of episodes on disk and on a page: which picture a turn has, what is kept once, and what a page has room for."""

import hashlib
import io
import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from agentenv.core.chat import InlineFormat
from agentenv.core.env import Env
from agentenv.core.rollout import RolloutConfig
from agentenv.core.scene import Mark
from agentenv.core.trajectory import Trajectory, Turn
from agentenv.core.types import EndReason, Message, MessagePart, Task
from agentenv.envs.domsim.env import DomSim
from agentenv.envs.gui.actions import STOP, Action, ActionKind, action_text
from agentenv.envs.gui.scene import ScreenScene
from agentenv.envs.gui.screen import Box, Element, Screen
from agentenv.envs.semi_online import SemiOnlineGUI
from agentenv.evaluation import screens
from agentenv.evaluation.diagnosis import cause_of
from agentenv.evaluation.records import EpisodeRecord, write_evaluation
from agentenv.evaluation.report.report import write_report
from agentenv.evaluation.results import summarize
from agentenv.evaluation.runner import play, to_record, with_byte_budgets
from agentenv.evaluation.screens import FOLDER, pictures_of
from agentenv.policies.fakes import ByteTokenizer
from agentenv.policies.scripted import ScriptedPolicy

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
CONFIG = with_byte_budgets(RolloutConfig(temperature=0.0, stop=STOP))
CLICK = action_text(Action(ActionKind.CLICK, id="1"), "so")


def png(colour: int) -> bytes:
    """A picture of one colour."""
    image = pytest.importorskip("PIL.Image", reason="needs the extra 'gui'")
    held = io.BytesIO()
    image.new("RGB", (56, 28), (colour, 0, 0)).save(held, "PNG")
    return held.getvalue()


def seen(*images: bytes) -> Message:
    return Message(
        "user", (MessagePart("text", "A screen."), *(MessagePart("image", image=image) for image in images))
    )


def scene(title: str = "page") -> ScreenScene:
    return ScreenScene(Screen(56, 28, title, (Element("1", "button", title, Box(0, 0, 28, 14)),)))


def episode(prompt: Sequence[Message], *turns: Turn, **data: Any) -> Trajectory:
    return Trajectory(Task("t", "Go.", data=data), (), turns, 1.0, EndReason.SUBMITTED, tuple(prompt))


def played(env: Env[Any], task: Task, actions: Sequence[str]) -> Trajectory:
    policy = ScriptedPolicy({"eval-0-0": actions})
    (done,) = play(policy, InlineFormat(ByteTokenizer(), unread=True), lambda: env, [task], CONFIG)
    return done


def kept(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (directory / FOLDER).iterdir()}


def test_a_turn_has_the_last_image_before_it_under_the_name_of_its_content(tmp_path: Path) -> None:
    first, second = png(1), png(2)
    turns = (
        Turn(CLICK, (seen(first, second),), scene=scene()),  # a whole context: the newest screen is the last
        Turn("no action", (), scene=scene()),
    )
    rows = to_record(episode([seen(first)], *turns), tmp_path)["turns"]
    names = [hashlib.sha256(image).hexdigest()[:20] + ".png" for image in (first, second)]
    assert [row["scene"]["picture"] for row in rows] == names
    assert kept(tmp_path) == dict(zip(names, (first, second), strict=True))
    assert rows[0]["scene"]["size"] == [56, 28]
    (mark,) = rows[0]["scene"]["marks"]
    assert (mark["kind"], mark["at"], mark["box"]) == ("click", (14, 7), (0, 0, 28, 14))
    assert rows[1]["scene"]["marks"] == []


def test_without_pixels_the_tree_is_drawn_and_equal_screens_are_one_file(tmp_path: Path) -> None:
    turns = [Turn(CLICK, (Message("user", "tree"),), scene=scene(title)) for title in ("a", "b", "a")]
    rows = to_record(episode([Message("user", "tree")], *turns), tmp_path)["turns"]
    names = [row["scene"]["picture"] for row in rows]
    assert names[0] == names[2] != names[1]
    assert set(kept(tmp_path)) == set(names)
    assert kept(tmp_path)[names[1]].decode() == scene("b").svg()


def test_an_image_without_a_scene_is_kept_and_has_no_marks(tmp_path: Path) -> None:
    """So it is with an environment behind a server."""
    (row,) = to_record(episode([seen(png(1))], Turn(CLICK)), tmp_path)["turns"]
    assert row["scene"]["marks"] == []
    assert "size" not in row["scene"]
    assert len(kept(tmp_path)) == 1


def test_nothing_is_kept_where_nothing_is_seen_nobody_asks_or_the_set_is_sealed(tmp_path: Path) -> None:
    plain = to_record(episode([Message("user", "words")], Turn("words")), tmp_path)
    unasked = to_record(episode([seen(png(1))], Turn(CLICK, scene=scene())))
    sealed = to_record(episode([seen(png(1))], Turn(CLICK, scene=scene()), canary="c"), tmp_path)
    assert all("scene" not in record["turns"][0] for record in (plain, unasked, sealed))
    assert not (tmp_path / FOLDER).exists()


def test_an_episode_of_the_desktop_has_a_picture_of_every_turn(tmp_path: Path) -> None:
    (task,) = DomSim.make_tasks(1, seed=0)
    for pixels, kind in ((False, ".svg"), (True, ".png")):
        env = DomSim(tasks=[task], pixels=pixels)
        env.reset(seed=0, options={"task": task})
        rows = to_record(played(env, task, list(env.expert())), tmp_path)["turns"]
        assert len(rows) > 2
        assert all(Path(row["scene"]["picture"]).suffix == kind for row in rows)
        assert all(row["scene"]["size"] == [672, 448] for row in rows)
        assert rows[-1]["scene"]["marks"][0]["label"] == "terminate success"


def test_a_recording_is_solved_where_no_turn_needed_a_patch(tmp_path: Path) -> None:
    (task,) = SemiOnlineGUI.make_tasks(1, seed=0)
    env = SemiOnlineGUI(tasks=[task], patch_budget=1)
    env.reset(seed=0, options={"task": task})
    right = list(env.expert())
    wrong = [action_text(Action(ActionKind.CLICK, point=(671, 447)), "so"), *right[1:]]
    for actions, solved in ((right, True), (wrong, False)):
        record = to_record(played(env, task, actions), tmp_path)
        assert record["reward"] > 1  # the sum over its steps, which says nothing of success
        assert record["solved"] is solved
        assert (cause_of(record, record["reward"]) == "correct") is solved
        assert all(row["scene"]["marks"][0]["expert"] for row in record["turns"])


def entry(*runs: Sequence[str]) -> dict[str, Any]:
    turns = [[{"scene": {"picture": name, "marks": []}} for name in run] for run in runs]
    return {"runs": [{"turns": each} for each in turns]}


def test_a_page_takes_the_last_screens_first_and_says_what_it_leaves_out(tmp_path: Path) -> None:
    names = [f"{letter * 20}.svg" for letter in "abcde"]
    (tmp_path / FOLDER).mkdir()
    for name in names[:4]:  # the last is gone
        (tmp_path / FOLDER / name).write_text("<svg/>")
    episodes = [entry(names[:2]), entry([names[0]], names[2:4]), {"runs": [None]}, entry([names[4]])]
    assert pictures_of(episodes, [tmp_path / "other", tmp_path]) == (dict.fromkeys(names[:4], "<svg/>"), 1)
    held, missing = pictures_of(episodes, [tmp_path], limit=2 * len("<svg/>"))
    assert (set(held), missing) == ({names[1], names[3]}, 3)


@pytest.mark.parametrize("name", ["../secret.svg", "/etc/passwd", "a.svg", f"{'a' * 20}.html", ""])
def test_a_record_cannot_name_another_file(tmp_path: Path, name: str) -> None:
    (tmp_path / FOLDER).mkdir()
    for path in (
        tmp_path / "secret.svg",
        tmp_path / FOLDER / "a.svg",
        tmp_path / FOLDER / f"{'a' * 20}.html",
    ):
        path.write_text("secret")
    assert pictures_of([entry([name])], [tmp_path]) == ({}, 0)


def test_the_page_of_hostile_episodes_is_data_and_no_markup(tmp_path: Path) -> None:
    pytest.importorskip("jinja2", reason="needs the extra 'report'")
    action = action_text(Action(ActionKind.TYPE, text=HOSTILE), HOSTILE)
    turn = Turn(action, (Message("user", HOSTILE),), scene=scene(HOSTILE))
    record: EpisodeRecord = to_record(episode([Message("user", HOSTILE)], turn), tmp_path)
    summary = summarize([record], ("reward",), dataset="d", split="test", policy="p", retriever=None, k=1)
    write_evaluation(tmp_path, summary, [record])
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert page.count("<script>alert") == page.count("onerror=alert(2)>") == 0
    data = json.loads(page.split('id="data">')[1].split("</script>")[0])
    assert list(data["pictures"]) == [record["turns"][0]["scene"]["picture"]]
    assert data["episodes"][0]["runs"][0]["turns"][0]["scene"]["marks"][0]["label"].startswith('type "</scr')


class Broken:
    """A scene that does ``act`` when it is drawn."""

    size = (10, 10)

    def __init__(self, act: Callable[[], Any]) -> None:
        self.act = act

    def svg(self) -> str:
        return self.act()  # type: ignore[no-any-return]

    def marks(self, action: str) -> Sequence[Mark]:
        return ()


def leave() -> None:
    raise SystemExit(3)


@pytest.mark.parametrize("act", [lambda: 1 / 0, lambda: None, leave], ids=["raises", "none", "leaves"])
def test_a_screen_that_cannot_be_drawn_is_left_out(act: Callable[[], Any], tmp_path: Path) -> None:
    record = to_record(episode((), Turn("a", scene=Broken(act)), Turn("b", scene=scene())), tmp_path)
    assert ["scene" in turn for turn in record["turns"]] == [False, True]
    assert len(kept(tmp_path)) == 1


def test_a_screen_that_is_drawn_for_ever_is_given_up_and_its_kind_not_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(screens, "_DRAWING_S", 2.0)  # enough for the other screen on a busy machine
    monkeypatch.setattr(screens, "_SLOW_SCENES", set())
    gate, asked = threading.Event(), []

    def hang() -> str:
        asked.append(1)
        gate.wait(20)
        return ""

    turns = [Turn("a", scene=Broken(hang)) for _ in range(3)]
    record = to_record(episode((), *turns, Turn("b", scene=scene())), tmp_path)
    gate.set()
    assert ["scene" in turn for turn in record["turns"]] == [False, False, False, True]
    assert len(asked) == 1
