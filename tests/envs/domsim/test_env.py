"""DomSim: consequences, feedback, budgets, pixels, and time travel that shares nothing."""

from dataclasses import replace
from typing import Any

import pytest

from agentenv.core.types import EndReason, Task, ToolStatus
from agentenv.envs.domsim.env import DomSim
from agentenv.envs.domsim.raster import PAD, draw
from agentenv.envs.gui.actions import Action, ActionKind, action_text
from agentenv.errors import ConfigurationError, DatasetError, UnknownName

DONE = action_text(Action(ActionKind.TERMINATE, text="success"), "done")


def task(template: str, seed: str = "test") -> Task:
    return Task("t", "", data={"template": template, "seed": seed})


def opened(template: str, **options: object) -> DomSim:
    env = DomSim(**options)  # type: ignore[arg-type]
    env.reset(seed=0, options={"task": task(template)})
    return env


def do(env: DomSim, kind: ActionKind, key: str = "", **fields: Any) -> str:
    """Acts on the widget ``key`` and gives the feedback."""
    id = env.state.view.id_of(key) if key else None
    (result,) = env.step(action_text(replace(Action(kind, id=id), **fields))).info["tool_results"]
    return str(result.text)


@pytest.mark.parametrize("pointing", ["id", "coordinate"])
def test_the_expert_scores_full_by_id_and_by_place(pointing: str) -> None:
    env = DomSim(pointing=pointing)  # type: ignore[arg-type]
    for template in ("files-drag", "across-invite", "contacts-add"):
        env.reset(seed=0, options={"task": task(template)})
        steps = [env.step(action) for action in env.expert()]
        assert [step.reward for step in steps] == [0.0] * (len(steps) - 1) + [1.0]
        assert steps[-1].info["end_reason"] is EndReason.SUBMITTED
        assert all(step.info["valid"] for step in steps)


def test_saying_done_at_once_or_failure_at_the_end_scores_nothing() -> None:
    env = opened("mail-star")
    assert env.step(DONE).reward == 0
    env.reset(seed=0, options={"task": task("mail-star")})
    *actions, _ = env.expert()
    for action in actions:
        env.step(action)
    assert env.step(action_text(Action(ActionKind.TERMINATE, text="failure"))).reward == 0


def test_three_wrong_passwords_lock_the_bank_for_good() -> None:
    env = opened("bank-pay-bill")
    do(env, ActionKind.OPEN, text="bank")
    for _ in range(3):
        do(env, ActionKind.CLICK, "submit")
    for action in env.expert()[1:4]:
        env.step(action)
    assert "This account is locked." in env.state.view.screen.as_text()
    assert env.step(DONE).reward == 0


def test_a_network_is_blocked_after_three_wrong_keys() -> None:
    env = opened("settings-join")
    do(env, ActionKind.OPEN, text="settings")
    do(env, ActionKind.CLICK, "tab.Network")
    for _ in range(3):
        do(env, ActionKind.CLICK, "network.Attic")
        do(env, ActionKind.TYPE, "key", text="no")
        do(env, ActionKind.KEY, text="Enter")
    do(env, ActionKind.CLICK, "network.Attic")
    assert "blocked after" in env.state.view.screen.as_text()


def test_fields_take_text_at_the_caret_and_keys_edit_it() -> None:
    env = opened("mail-compose")
    do(env, ActionKind.OPEN, text="Mail")
    do(env, ActionKind.CLICK, "compose")
    assert do(env, ActionKind.TYPE, text="lost") == "No text field has the focus; click one first."
    do(env, ActionKind.TYPE, "subject", text="ab")
    do(env, ActionKind.TYPE, text="c")
    fields = env.state.world.fields
    assert fields["subject"] == "abc"
    do(env, ActionKind.KEY, text="Backspace")
    assert fields["subject"] == "ab"
    do(env, ActionKind.KEY, text="Control+a")
    do(env, ActionKind.TYPE, text="new")
    assert fields["subject"] == "new"
    do(env, ActionKind.KEY, text="Tab")
    do(env, ActionKind.TYPE, text="body")
    assert fields["body"] == "body"
    do(env, ActionKind.KEY, text="Enter")
    assert "no mail address" in env.state.view.screen.as_text()


def test_back_brings_back_what_stood_in_a_form_and_survives_deleted_records() -> None:
    env = opened("contacts-add")
    do(env, ActionKind.OPEN, text="contacts")
    do(env, ActionKind.CLICK, "new")
    do(env, ActionKind.TYPE, "name", text="Zoe")
    do(env, ActionKind.OPEN, text="mail")
    do(env, ActionKind.SYSTEM_BUTTON, text="Back")
    assert env.state.world.fields["name"] == "Zoe"
    do(env, ActionKind.OPEN, text="contacts")
    do(env, ActionKind.CLICK, "person.1")
    do(env, ActionKind.CLICK, "delete")
    do(env, ActionKind.CLICK, "submit")
    do(env, ActionKind.SYSTEM_BUTTON, text="Back")
    assert "no longer there" in env.state.view.screen.as_text()


def test_a_form_of_a_deleted_record_saves_nothing() -> None:
    for app, first in (("contacts", "person.1"), ("notes", "note.1")):
        env = opened("contacts-add")
        do(env, ActionKind.OPEN, text=app)
        do(env, ActionKind.CLICK, first)
        do(env, ActionKind.CLICK, "edit")
        do(env, ActionKind.OPEN, text=app)
        for key in (first, "delete", "submit"):
            do(env, ActionKind.CLICK, key)
        while env.state.world.page[1:2] != ("form",):
            do(env, ActionKind.SYSTEM_BUTTON, text="Back")
        assert "no longer there" in env.state.view.screen.as_text()
        assert env.state.view.id_of("submit") is None


def test_a_closed_dialog_takes_no_text_and_opens_as_new() -> None:
    env = opened("files-create")
    do(env, ActionKind.OPEN, text="files")
    for _ in range(2):
        do(env, ActionKind.CLICK, "new")
        assert env.state.world.text("name") == ""
        do(env, ActionKind.TYPE, "name", text="Plans")
        do(env, ActionKind.KEY, text="Escape")
        assert do(env, ActionKind.TYPE, text="x") == "No text field has the focus; click one first."


def test_a_list_over_a_form_takes_the_focus_and_closes_alone() -> None:
    env = opened("contacts-add")
    do(env, ActionKind.OPEN, text="contacts")
    do(env, ActionKind.CLICK, "new")
    do(env, ActionKind.TYPE, "name", text="Zoe")
    do(env, ActionKind.CLICK, "group")
    assert do(env, ActionKind.TYPE, text="x") == "No text field has the focus; click one first."
    assert env.state.world.fields["name"] == "Zoe"
    do(env, ActionKind.OPEN, text="files")
    do(env, ActionKind.CLICK, "folder.Documents")
    do(env, ActionKind.CLICK, next(w.key for w in env.state.view.widgets if w.key.startswith("file.")))
    for key in ("move", "folder"):
        do(env, ActionKind.CLICK, key)
    for shown in ("submit", "rename"):
        do(env, ActionKind.SYSTEM_BUTTON, text="Back")
        assert env.state.view.id_of(shown) is not None


@pytest.mark.parametrize("keys", [("Control+a", "Enter"), ("ctrl+A", "return"), ("CONTROL+A", "enter")])
def test_keys_have_names_in_any_case(keys: tuple[str, str]) -> None:
    env = opened("contacts-look-up")
    do(env, ActionKind.OPEN, text="contacts")
    do(env, ActionKind.TYPE, "query", text="Ad")
    assert do(env, ActionKind.KEY, text=keys[0]) == ""
    do(env, ActionKind.TYPE, text="Zoe")
    assert do(env, ActionKind.KEY, text=keys[1]) == ""
    assert env.state.world.page == ("contacts", "results", "Zoe")


def test_what_is_taken_out_of_the_cart_and_put_back_is_as_before() -> None:
    env = opened("shop-check-out")
    (first, _), products = env.state.world.data["shop.cart"], env.state.world.data["shop.products"]
    do(env, ActionKind.OPEN, text="shop")
    do(env, ActionKind.CLICK, "cart")
    do(env, ActionKind.CLICK, f"remove.{first.id}")
    do(env, ActionKind.OPEN, text="shop")
    do(env, ActionKind.TYPE, "query", text=products[first.id - 1].name)
    for key in ("submit", f"product.{first.id}", "submit", "cart", "checkout", "submit"):
        do(env, ActionKind.CLICK, key)
    assert env.step(DONE).reward == 1


@pytest.mark.parametrize(
    ("action", "feedback"),
    [
        (Action(ActionKind.CLICK, id="99"), "There is nothing."),
        (Action(ActionKind.CLICK, id="01"), "There is nothing."),
        (Action(ActionKind.CLICK, id="\uff11"), "There is nothing."),
        (Action(ActionKind.CLICK, id="x"), "There is nothing."),
        (Action(ActionKind.CLICK, point=(671, 447)), "There is nothing."),
        (Action(ActionKind.CLICK, id="3"), "'home' does nothing."),
        (Action(ActionKind.TYPE, text="a", id="1"), "That is no text field."),
        (Action(ActionKind.SELECT, text="a", id="1"), "That is no drop-down list."),
        (Action(ActionKind.KEY, text="F13"), "The key 'F13' does nothing here."),
        (Action(ActionKind.SCROLL, direction="down"), "It does not scroll further that way."),
        (Action(ActionKind.SYSTEM_BUTTON, text="Menu"), "The button 'Menu' does nothing here."),
        (Action(ActionKind.OPEN, text="chess"), "There is no app 'chess'."),
        (Action(ActionKind.DRAG, id="1", end_id="2"), "That cannot be dragged there."),
    ],
)
def test_what_has_no_effect_is_said_and_goes_on(action: Action, feedback: str) -> None:
    env = opened("mail-star")
    step = env.step(action_text(action))
    (result,) = step.info["tool_results"]
    assert (result.status, result.text) == (ToolStatus.ERROR, feedback)
    assert feedback in step.observation[0].text
    assert not step.terminated


def test_a_text_without_an_action_is_said_and_counts_as_a_turn() -> None:
    env = opened("mail-star", max_steps=2)
    step = env.step("hello")
    assert (step.info["valid"], step.info["tool_results"][0].status) == (False, ToolStatus.FORMAT_ERROR)
    assert "Write one <action>" in step.observation[0].text
    last = env.step("hello")
    assert (last.truncated, last.info["end_reason"]) == (True, EndReason.TURN_LIMIT)


def test_secrets_are_dots_and_disabled_buttons_say_so() -> None:
    env = opened("bank-pay-bill")
    do(env, ActionKind.OPEN, text="bank")
    do(env, ActionKind.TYPE, "password", text="abc")
    text = env.state.view.screen.as_text()
    assert "•••" in text
    assert "abc" not in text
    env = opened("shop-check-out")
    do(env, ActionKind.OPEN, text="shop")
    do(env, ActionKind.CLICK, "cart")
    for line in env.state.world.data["shop.cart"]:
        do(env, ActionKind.CLICK, f"remove.{line.id}")
    assert do(env, ActionKind.CLICK, "checkout") == "'Checkout' is disabled."


def test_the_anchor_is_the_world_and_not_the_way_to_it() -> None:
    env, other = opened("mail-star"), opened("mail-star")
    do(env, ActionKind.OPEN, text="mail")
    do(other, ActionKind.WAIT)
    assert env.anchor_key() != other.anchor_key()
    do(other, ActionKind.OPEN, text="Mail")
    assert env.anchor_key() == other.anchor_key()


def test_pixels_are_the_same_every_time_and_show_the_state() -> None:
    pytest.importorskip("PIL")
    env = opened("settings-turn-one", pixels=True, tree=False, pointing="coordinate", render_mode="rgb_array")
    first, again = env.screen().image, env.screen().image
    assert isinstance(first, bytes)
    assert first == again
    step = env.step(action_text(Action(ActionKind.OPEN, text="settings")))
    content = step.observation[0].content
    assert not isinstance(content, str)
    text, image = content
    assert (text.kind, image.kind, text.text) == ("text", "image", "\n\n")
    picture = env.render()
    assert picture.shape == (448, 672, 3)  # type: ignore[union-attr]
    do(env, ActionKind.CLICK, "switch.Dark mode")
    assert env.screen().image != first


def test_a_text_is_drawn_within_its_box() -> None:
    chops = pytest.importorskip("PIL.ImageChops")
    env = opened("mail-compose")
    do(env, ActionKind.OPEN, text="mail")
    do(env, ActionKind.CLICK, "compose")
    do(env, ActionKind.TYPE, "to", text="a")
    short = draw(env.state.view.screen)
    do(env, ActionKind.TYPE, text="one\ntwo\nthree " + 100 * "wide " + "end")
    screen = env.state.view.screen
    long = draw(screen)
    x1, y1, x2, y2 = next(element.box for element in screen.elements or () if element.value)
    changed = chops.difference(short, long).getbbox()
    assert changed is not None
    assert x1 < changed[0] < changed[2] <= x2 - PAD
    assert y1 < changed[1] < changed[3] < y2
    do(env, ActionKind.KEY, text="Backspace")
    # The end is what is seen of it, as where a caret stands.
    assert chops.difference(long, draw(env.state.view.screen)).getbbox() is not None


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"prompt": "hello"}, "{goal}"),
        ({"max_steps": 0}, "max_steps"),
        ({"tree": False}, "pixels"),
        ({"tree": False, "pixels": True}, "pointing"),
    ],
)
def test_options_that_cannot_work(options: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        DomSim(**options)  # type: ignore[arg-type]


def test_tasks_that_cannot_be_posed() -> None:
    env = DomSim(tasks=())
    with pytest.raises(DatasetError):
        env.reset(seed=0)
    with pytest.raises(DatasetError, match="'t'"):
        env.reset(options={"task": Task("t", "q")})
    with pytest.raises(UnknownName, match="mail-star"):
        env.reset(options={"task": task("mail-stars")})


def test_whole_contexts_forget_old_screens_and_tell_what_went_wrong() -> None:
    env = DomSim(window=2, places=False, prompt="{goal}\n")
    opening, _ = env.reset(seed=0, options={"task": task("mail-star")})
    assert [message.role for message in opening] == ["system", "user"]
    assert " at " not in opening[1].text
    script = env.expert()
    env.step(script[0])
    wrong = action_text(Action(ActionKind.CLICK, id="99"), "nothing")
    shown = env.step(wrong).observation
    assert [message.role for message in shown] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert shown[1].text == "[an earlier screen]\n"
    assert [shown[2].text, shown[4].text] == [script[0], wrong]
    told = env.state.past[-1][0].as_text(places=False)
    assert shown[3].text == f"{told}\n"
    assert shown[5].text.startswith("\nThere is nothing.\nScreen")


def test_a_copy_keeps_its_own_past() -> None:
    env = DomSim(window=1)
    env.reset(seed=0, options={"task": task("mail-star")})
    (twin,) = env.fork()
    env.step(env.expert()[0])
    assert (len(env.state.past), len(twin.state.past)) == (1, 0)


@pytest.mark.parametrize(("status", "reward"), [("failure", 1.0), ("success", 0.0)])
def test_an_infeasible_task_is_right_where_the_policy_says_so(status: str, reward: float) -> None:
    env = DomSim(tasks=[task("infeasible:notes-pin")])
    env.reset(seed=0)
    step = env.step(f'<think>t</think><action>{{"action": "terminate", "status": "{status}"}}</action>')
    assert (step.reward, step.info["infeasible"]) == (reward, True)
    env.reset(seed=0)
    *_, last = [env.step(action) for action in env.expert()]
    assert (last.reward, last.terminated) == (1.0, True)
