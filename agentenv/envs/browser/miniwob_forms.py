"""Experts for the pages of MiniWoB that need typing, forms and mail."""

import calendar
import re
from collections.abc import Iterator

from agentenv.envs.browser.experts import PageView, click, expert, found_in, key, scroll, submit, write
from agentenv.envs.gui.actions import Action, ActionKind


@expert("enter-text", "enter-text-dynamic")
def text(view: PageView) -> Iterator[Action]:
    yield write(view.one("textbox"), view.quoted()[0])
    yield submit(view)


@expert("enter-text-2")
def cased(view: PageView) -> Iterator[Action]:
    word = view.quoted()[0]
    yield write(view.one("textbox"), word.upper() if "upper" in view.goal else word.lower())
    yield submit(view)


@expert("enter-password")
def password(view: PageView) -> Iterator[Action]:
    for field in view.all("textbox"):
        yield write(field, view.quoted()[0])
    yield submit(view)


@expert("login-user")
def login(view: PageView) -> Iterator[Action]:
    for field, word in zip(view.all("textbox"), view.quoted(), strict=True):
        yield write(field, word)
    yield submit(view)


@expert("enter-date")
def date(view: PageView) -> Iterator[Action]:
    yield write(view.one("textbox"), found_in(r"Enter (\S+) as", view.goal)[0].replace("/", ""))
    yield submit(view)


@expert("enter-time")
def time(view: PageView) -> Iterator[Action]:
    hour, minute, half = found_in(r"Enter (\d+):(\d+) (AM|PM)", view.goal)
    yield write(view.one("textbox"), f"{int(hour):02}{minute}{half}")
    yield submit(view)


@expert("copy-paste", "copy-paste-2")
def copied(view: PageView) -> Iterator[Action]:
    source = "to-copy"
    if number := re.search(r"(\d)\w\w text area", view.goal):
        source = f"text-{number[1]}"
    yield click(view.one("textbox", source))
    for chord in ("Control+a", "Control+c"):
        yield key(chord)
    yield click(view.one("textbox", "answer-input"))
    yield key("Control+v")
    yield submit(view)


@expert("simple-arithmetic")
def arithmetic(view: PageView) -> Iterator[Action]:
    a, sign, b = found_in(r"(-?\d+) (\S) (-?\d+)", view.one("text").text)
    yield write(view.one("textbox"), str(_value(int(a), sign, int(b))))
    yield submit(view)


def _value(a: int, sign: str, b: int) -> int:
    return a + b if sign == "+" else a - b if sign == "-" else a * b


@expert("simple-algebra")
def algebra(view: PageView) -> Iterator[Action]:
    left, sign, right, total = found_in(r"(\S+) (\S) (\S+) = (-?\d+)", view.one("text").text)
    if left == "x":
        value = int(total) - int(right) if sign == "+" else int(total) + int(right)
    else:
        value = int(total) - int(left) if sign == "+" else int(left) - int(total)
    yield write(view.one("textbox"), str(value))
    yield submit(view)


@expert("visual-addition")
def blocks(view: PageView) -> Iterator[Action]:
    count = sum("addition-block" in one.text for one in view.all("graphic"))
    yield write(view.one("textbox"), str(count))
    yield submit(view)


@expert("text-transform")
def letters(view: PageView) -> Iterator[Action]:
    yield write(view.one("textbox"), "".join(one.text for one in view.all("text")))
    yield submit(view)


@expert("find-word")
def word(view: PageView) -> Iterator[Action]:
    number = int(found_in(r"the (\d+)", view.goal)[0])
    yield write(view.one("textbox"), re.sub(r"[^\w]", "", view.one("text").text.split()[number - 1]))
    yield submit(view)


@expert("read-table", "read-table-2")
def table(view: PageView) -> Iterator[Action]:
    cells = [one.text for one in view.all("cell")]
    values = dict(zip(cells[::2], cells[1::2], strict=True))
    labels = [one.text.rstrip(":") for one in view.all("label")] or list(
        found_in(r"value of (.*) into", view.goal)
    )
    for field, label in zip(view.all("textbox"), labels, strict=True):
        yield write(field, values[label])
    yield submit(view)


@expert("guess-number")
def guess(view: PageView) -> Iterator[Action]:
    low, high = 0, 9
    while True:
        middle = (low + high) // 2
        yield click(view.one("spinbutton"))
        yield key("Control+a")
        yield Action(ActionKind.TYPE, text=str(middle))
        yield submit(view)
        if "higher" in view.one("text").text:
            low = middle + 1
        else:
            high = middle - 1


@expert("multi-layouts", "multi-orderings")
def search_form(view: PageView) -> Iterator[Action]:
    genre, director, year = found_in(r"for (\S+) movies directed by (\S+) from year (\d+)", view.goal)
    # Labels have one or two words, such as "Movie Genre" and "Released Date".
    values = {"Genre": genre, "Director": director, "Year": year, "Date": year}
    words = [word for one in view.elements for word in one.text.rstrip(":").split()]
    wanted = [values[word] for word in words if word in values]
    for field, text in zip(view.all("textbox"), wanted, strict=True):
        yield write(field, text)
    yield submit(view)


@expert("use-spinner")
def spinner(view: PageView) -> Iterator[Action]:
    wanted = int(found_in(r"Select (-?\d+)", view.goal)[0])
    for _ in range(abs(wanted)):
        yield click(view.all("button")[0 if wanted > 0 else 1])
    yield submit(view)


@expert("use-slider")
def slider(view: PageView) -> Iterator[Action]:
    wanted = int(found_in(r"Select (-?\d+)", view.goal)[0])
    yield click(view.one("graphic"))
    # One step of Page Up or Page Down is a fifth of the slider, or less at its ends.
    page = 0
    while left := wanted - (before := int(view.one("text").text)):
        if 2 * abs(left) <= page or abs(left) == 1:
            yield key("ArrowRight" if left > 0 else "ArrowLeft")
        else:
            yield key("PageUp" if left > 0 else "PageDown")
            page = max(page, abs(int(view.one("text").text) - before))
    yield submit(view)


@expert("use-autocomplete", "use-autocomplete-nodelay")
def completed(view: PageView) -> Iterator[Action]:
    start, *end = view.quoted()
    yield write(view.one("textbox"), start)
    fits = [
        one for one in view.all("text") if one.text.startswith(start) and one.text.endswith(tuple(end) or "")
    ]
    yield click(fits[0])
    yield submit(view)


@expert("form-sequence-2")
def radio_and_text(view: PageView) -> Iterator[Action]:
    radio, place = found_in(r"the (\d)\w\w radio.*the (\d)\w\w textbox", view.goal)
    yield click(view.all("radio")[int(radio) - 1])
    yield write(view.all("textbox")[int(place) - 1], view.quoted()[0])
    yield submit(view)


@expert("scroll-text")
def last_word(view: PageView) -> Iterator[Action]:
    area, answer = view.all("textbox")
    yield scroll(area, "down")
    yield write(answer, area.value.split()[-1])
    yield submit(view)


@expert("choose-date-easy", "choose-date-medium", "choose-date", "choose-date-nodelay")
def picked(view: PageView) -> Iterator[Action]:
    month, day = (int(part) for part in found_in(r"Select (\d+)/(\d+)/\d+", view.goal))
    names = list(calendar.month_name)[1:]
    yield click(view.one("textbox"))
    while not view.all("text", names[month - 1]):
        current = next(number for number, name in enumerate(names, 1) if view.all("text", name))
        yield click(view.one("link", "Prev" if month < current else "Next"))
    yield click(view.one("link", str(day)))
    yield submit(view)


@expert(
    "email-inbox-delete",
    "email-inbox-important",
    "email-inbox-forward",
    "email-inbox-reply",
    "email-inbox-noscroll",
    "email-inbox-star-reply",
    "email-inbox",
)
def mail(view: PageView) -> Iterator[Action]:
    name = found_in(r"email by (\S+)", view.goal)[0]
    while not view.all("text", name):
        yield scroll(view.all("text")[-1], "down")
    row = view.one("text", name).box.centre[1]
    icon = "trash" if "delete" in view.goal else "star" if "important" in view.goal else ""
    if icon:
        # Icons are images, which may load after the text on a busy machine.
        while not (near := [one for one in view.all("graphic") if one.text.split()[0] == icon]):
            yield Action(ActionKind.WAIT, time=0.2)
        yield click(min(near, key=lambda one: abs(one.box.centre[1] - row)))
        return
    yield click(view.one("text", name))
    yield click(view.one("text", "Forward" if "forward" in view.goal else "Reply"))
    yield from _send(view)


def _send(view: PageView) -> Iterator[Action]:
    forward = re.search(r"forward that email to (\w+)", view.goal)
    field = view.all("textbox")[0 if forward else -1]
    yield write(field, forward[1] if forward else view.quoted()[0])
    yield click(next(one for one in view.elements if "send" in one.text))
