"""Experts for the pages of MiniWoB that need pointing, choosing and finding."""

from collections.abc import Iterator

from agentenv.envs.browser.experts import (
    PageView,
    click,
    expert,
    found_in,
    key,
    listed,
    scroll,
    submit,
    write,
)
from agentenv.envs.gui.actions import Action, ActionKind


@expert("click-test")
def the_button(view: PageView) -> Iterator[Action]:
    yield click(view.one("button"))


@expert("click-test-2", "click-test-transfer")
def the_first_button(view: PageView) -> Iterator[Action]:
    yield click(view.one("button", "ONE"))


@expert("click-button", "unicode-test")
def named_button(view: PageView) -> Iterator[Action]:
    yield click(view.one("button", view.quoted()[0]))


@expert("click-button-sequence")
def two_buttons(view: PageView) -> Iterator[Action]:
    yield click(view.one("button", "ONE"))
    yield click(view.one("button", "TWO"))


@expert("button-delay")
def two_buttons_apart(view: PageView) -> Iterator[Action]:
    yield click(view.one("button", "ONE"))
    yield Action(ActionKind.WAIT, time=float(found_in(r"wait (\d+) seconds", view.goal)[0]))
    yield click(view.one("button", "TWO"))


@expert(
    "click-link",
    "click-tab-2",
    "click-tab-2-easy",
    "click-tab-2-medium",
    "click-tab-2-hard",
    "click-collapsible-2",
    "click-collapsible-2-nodelay",
)
def link_behind_tabs(view: PageView) -> Iterator[Action]:
    name = view.quoted()[0]
    for tab in view.all("tab"):
        if view.all("text", name):
            break
        if "selected" not in tab.states:
            yield click(tab)
    yield click(view.one("text", name))


@expert("click-tab")
def named_tab(view: PageView) -> Iterator[Action]:
    yield click(view.one("tab", found_in(r"on (Tab #\d+)", view.goal)[0]))


@expert("click-collapsible", "click-collapsible-nodelay")
def section(view: PageView) -> Iterator[Action]:
    yield click(view.one("tab"))
    yield click(view.one("button"))


@expert("click-dialog")
def closing(view: PageView) -> Iterator[Action]:
    yield click(view.one("button", "Close"))


@expert("click-dialog-2")
def dialog_button(view: PageView) -> Iterator[Action]:
    name = view.quoted()[0]
    yield click(view.one("button", "Close" if name == "x" else name))


@expert("click-checkboxes", "click-checkboxes-large", "click-checkboxes-transfer")
def boxes(view: PageView) -> Iterator[Action]:
    wanted = listed(found_in(r"Select (.*) and click", view.goal)[0])
    for name in () if wanted == ["nothing"] else wanted:
        yield click(view.one("checkbox", name))
    yield submit(view)


@expert("click-option")
def radio(view: PageView) -> Iterator[Action]:
    yield click(view.one("radio", found_in(r"Select (.*) and click", view.goal)[0]))
    yield submit(view)


@expert("choose-list", "click-scroll-list")
def options(view: PageView) -> Iterator[Action]:
    box = view.one("combobox")
    names = found_in(r"Select (.*) from", view.goal)[0]
    for name in [names] if view.all("option", names) else listed(names):
        yield Action(ActionKind.SELECT, id=box.id, text=name)
    yield submit(view)


@expert("click-menu")
def menu(view: PageView) -> Iterator[Action]:
    *parents, last = found_in(r"Select (.*)", view.goal)[0].split(">")
    for name in parents:
        yield Action(ActionKind.HOVER, id=view.one("menuitem", name).id)
    yield click(view.one("menuitem", last))


@expert("focus-text", "focus-text-2")
def field(view: PageView) -> Iterator[Action]:
    number = 1 if "the textbox" in view.goal else int(found_in(r"the (\d+)", view.goal)[0])
    yield click(view.all("textbox")[number - 1])


@expert("ascending-numbers")
def ascending(view: PageView) -> Iterator[Action]:
    places = [view.one("text", str(number)).box.centre for number in range(1, 6)]
    for place in places:
        yield Action(ActionKind.CLICK, point=place)


@expert("grid-coordinate")
def coordinate(view: PageView) -> Iterator[Action]:
    place = found_in(r"(\(.*?\))", view.goal)[0]
    yield click(next(element for element in view.all("graphic") if place in element.text))


@expert("identify-shape")
def shape(view: PageView) -> Iterator[Action]:
    kinds = {"rect": "Rectangle", "circle": "Circle", "polygon": "Triangle"}
    drawn = view.all("graphic")
    name = (
        kinds[drawn[0].text.split()[0]]
        if drawn
        else ("Number" if view.one("text").text.isdigit() else "Letter")
    )
    yield click(view.one("button", name))


@expert("odd-or-even")
def parity(view: PageView) -> Iterator[Action]:
    for number in view.all("text"):
        name = "Even" if int(number.text) % 2 == 0 else "Odd"
        yield click(
            min(view.all("button", name), key=lambda one: abs(one.box.centre[1] - number.box.centre[1]))
        )
    yield submit(view)


@expert("generate-number")
def generated(view: PageView) -> Iterator[Action]:
    yield click(view.one("button", "Generate"))
    while not _satisfies(view.goal, view.all("text")[0].text):
        yield click(view.one("button", "Generate"))
    yield submit(view)


def _satisfies(goal: str, displayed: str) -> bool:
    if not displayed.lstrip("-").isdigit():
        return False
    number = int(displayed)
    if "even" in goal or "odd" in goal:
        return (number % 2 == 0) == ("even" in goal)
    limit = int(found_in(r"than (\d+)", goal)[0])
    return number < limit if "less" in goal else number > limit


@expert("buy-ticket")
def ticket(view: PageView) -> Iterator[Action]:
    buttons, times = view.all("button"), [one for one in view.all("text") if one.text[0].isdigit()]
    costs = [int(found_in(r"\$(\d+)", button.text)[0]) for button in buttons]
    minutes = [60 * int(h) + int(m) for h, m in (found_in(r"(\d+)h (\d+)m", one.text) for one in times)]
    values = minutes if "duration" in view.goal else costs
    best = min if "cheapest" in view.goal or "shortest" in view.goal or "least" in view.goal else max
    yield click(buttons[values.index(best(values))])


@expert("phone-book")
def contact(view: PageView) -> Iterator[Action]:
    name, what = found_in(r"Find (\S+) in the contact book and click on their (.*)\.", view.goal)
    while not view.all("heading", name):
        yield click(view.one("link", ">"))
    links = [
        one
        for one in view.all("link")
        if one.text not in "<>" and not (one.text.isdigit() and len(one.text) < 3)
    ]
    yield click(links[["phone number", "email", "address"].index(what)])


@expert("search-engine")
def result(view: PageView) -> Iterator[Action]:
    number = int(found_in(r"the (\d+)\w\w search result", view.goal)[0])
    yield write(view.one("textbox"), view.quoted()[0])
    yield click(view.one("button", "Search"))
    for _ in range((number - 1) // 3):
        yield click(view.one("link", ">"))
    results = [one for one in view.all("link") if not one.text.isdigit() and one.text not in "<>"]
    yield click(results[(number - 1) % 3])


@expert("navigate-tree")
def folder(view: PageView) -> Iterator[Action]:
    name = view.quoted()[0]
    while not view.all("text", name):
        closed = [one for one in view.all("graphic") if "expandable" in one.text]
        yield click(closed[0])
    yield click(view.one("text", name))


@expert("sign-agreement")
def agreement(view: PageView) -> Iterator[Action]:
    while "bottom" in view.goal and "disabled" in view.all("textbox")[1].states:
        yield scroll(view.one("textbox"), "down")
    if view.quoted() and "name" in view.goal:
        yield write(view.all("textbox")[1], view.quoted()[0])
    yield click(view.one("button", "Cancel" if "ancel" in view.goal else "Agree"))


@expert("scroll-text-2")
def to_the_end(view: PageView) -> Iterator[Action]:
    text = view.one("textbox")
    yield click(text)
    yield key("Control+Home" if "top" in view.goal else "Control+End")
    yield submit(view)


@expert("drag-single-shape", "drag-circle")
def moved(view: PageView) -> Iterator[Action]:
    way = found_in(r"(up|down|left|right)", view.goal)[0]
    dx, dy = {"up": (0, -20), "down": (0, 20), "left": (-20, 0), "right": (20, 0)}[way]
    x, y = view.one("graphic").box.centre
    yield Action(ActionKind.DRAG, point=(x, y), end=(x + dx, y + dy))
    yield submit(view)


@expert("drag-box")
def into_the_box(view: PageView) -> Iterator[Action]:
    small, large = view.one("text", "s").box, view.one("text", "L").box
    yield Action(ActionKind.DRAG, point=small.centre, end=large.centre)
    yield submit(view)
