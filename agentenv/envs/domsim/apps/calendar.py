"""A calendar: months, days, events, and a date picker."""

import calendar
from random import Random
from typing import Any, ClassVar, NamedTuple

from agentenv.envs.domsim.content import EVENTS
from agentenv.envs.domsim.records import Move, TaskDraft, added, changed, find, numbered, without
from agentenv.envs.domsim.widgets import Row, button, choice, heading, item, label, textbox
from agentenv.envs.domsim.world import World

YEAR, MONTH = 2031, 5
TODAY = f"{YEAR}-{MONTH:02d}-01"
TIMES = ("09:00", "10:30", "12:00", "14:00", "15:30", "17:00", "19:00")
COUNT = 8


class Event(NamedTuple):
    """One appointment; ``date`` as year-month-day."""

    id: int
    title: str
    date: str
    time: str


class Calendar:
    """``calendar.events``. Pages show a month; the picker is a dialog that shows one as well."""

    name: ClassVar[str] = "Calendar"

    def start(self, rng: Random) -> dict[str, Any]:
        """Events of this month and the next, titles all different."""
        rows = [Event(0, title, _date(rng), rng.choice(TIMES)) for title in rng.sample(EVENTS, COUNT)]
        return {"calendar.events": numbered(rows)}

    def view(self, world: World) -> list[Row]:
        """A month, a day, an event, or a form."""
        match world.page[1:]:
            case ("day", str(date)):
                return self._day(world, date)
            case ("event", int(id)):
                event = find(world.data["calendar.events"], id)
                buttons = [
                    button("Edit", "edit", "write", id, event.date),
                    button("Delete", "delete", "delete", id),
                ]
                return [heading(event.title), [label(f"{event.date} at {event.time}")], buttons]
            case ("form", int(id)):
                return self._form(world, id)
            case _:
                month = str(world.page[1]) if len(world.page) > 1 else TODAY[:7]
                return _month(month, "show_day", "turn")

    def _day(self, world: World, date: str) -> list[Row]:
        held = sorted((e for e in world.data["calendar.events"] if e.date == date), key=lambda e: e.time)
        rows = [[item(f"{e.time} {e.title}", f"event.{e.id}", "show", e.id)] for e in held]
        return [heading(date), [button("New event", "new", "write", 0, date)], *rows]

    def _form(self, world: World, id: int) -> list[Row]:
        if id:
            find(world.data["calendar.events"], id)
        return [
            heading("Edit event" if id else "New event"),
            [textbox(world.fields, "title", "Title")],
            [label(f"Date {world.fields['date']}"), button("Pick a date", "pick", "pick")],
            [choice(world.fields, "time", "Time", TIMES)],
            [button("Save", "submit", "save", id), button("Cancel", "cancel", "back")],
        ]

    def view_dialog(self, world: World) -> list[Row]:
        """The date picker, or the question before an event is deleted."""
        if world.dialog[0] == "pick":
            return _month(str(world.dialog[1]), "take", "turn_picker")
        buttons = [button("Delete", "submit", "remove", world.dialog[1]), button("Cancel", "cancel", "back")]
        return [heading("Delete this event?"), buttons]

    def turn(self, world: World, month: str) -> None:
        """Shows another month."""
        world.go("calendar", month)

    def turn_picker(self, world: World, month: str) -> None:
        """Shows another month in the picker."""
        world.ask("pick", month)

    def show_day(self, world: World, date: str) -> None:
        """Shows the events of a day."""
        world.go("calendar", "day", date)

    def show(self, world: World, id: int) -> None:
        """Shows an event."""
        world.go("calendar", "event", id)

    def write(self, world: World, id: int, date: str) -> None:
        """Opens the form: of an event, or of a new one on ``date``."""
        fields: dict[str, str | bool] = {"date": date}
        if id:
            event = find(world.data["calendar.events"], id)
            fields |= {"title": event.title, "time": event.time}
        world.go("calendar", "form", id, fields=fields)

    def pick(self, world: World) -> None:
        """Opens the picker at the date of the form."""
        world.ask("pick", str(world.fields["date"])[:7])

    def take(self, world: World, date: str) -> None:
        """Puts a date into the form."""
        world.fields["date"] = date
        world.close()

    def save(self, world: World, id: int) -> None:
        """Saves the form. A title is required."""
        table = world.data["calendar.events"]
        if not world.text("title"):
            world.notice = "A title is needed."
            return
        date, time = str(world.fields["date"]), world.picked("time", TIMES[0])
        values = {"title": world.text("title"), "date": date, "time": time}
        world.data["calendar.events"] = (
            changed(table, id, **values) if id else added(table, Event(0, **values))
        )
        world.go("calendar", "day", date)
        world.notice = "Saved."

    def delete(self, world: World, id: int) -> None:
        """Asks for confirmation."""
        world.ask("delete", id)

    def remove(self, world: World, id: int) -> None:
        """Deletes an event."""
        world.data["calendar.events"] = without(world.data["calendar.events"], id)
        world.go("calendar")


def _month(month: str, choose: str, turn: str) -> list[Row]:
    """Makes a grid of days, and buttons for the previous and next month."""
    year, number = int(month[:4]), int(month[5:])
    before = f"{year - (number == 1)}-{(number - 2) % 12 + 1:02d}"
    after = f"{year + (number == 12)}-{number % 12 + 1:02d}"
    head = [button("<", "before", turn, before), label(f"{calendar.month_name[number]} {year}")]
    weeks = [
        [button(str(day), f"day.{month}-{day:02d}", choose, f"{month}-{day:02d}") for day in week if day]
        for week in calendar.monthcalendar(year, number)
    ]
    return [[*head, button(">", "after", turn, after)], *weeks]


def _date(rng: Random, months: int = 2) -> str:
    return f"{YEAR}-{MONTH + rng.randrange(months):02d}-{rng.randrange(1, 29):02d}"


def _month_clicks(date: str) -> tuple[Move, ...]:
    return (("click", "after"),) * (int(date[5:7]) - MONTH)


def _open_event(event: Event) -> tuple[Move, ...]:
    day = (("click", f"day.{event.date}"), ("click", f"event.{event.id}"))
    return (("open", "calendar"), *_month_clicks(event.date), *day)


def add_steps(title: str, date: str, time: str) -> tuple[Move, ...]:
    """Returns the steps that add an event from the page of its day."""
    day = (("open", "calendar"), *_month_clicks(date), ("click", f"day.{date}"), ("click", "new"))
    return (*day, ("fill", "title", title), ("select", "time", time), ("click", "submit"))


def add(data: dict[str, Any], rng: Random) -> TaskDraft:
    """Add an event."""
    title = rng.choice([name for name in EVENTS if name not in {e.title for e in data["calendar.events"]}])
    date, time = _date(rng, 3), rng.choice(TIMES[1:])
    table = added(data["calendar.events"], Event(0, title, date, time))
    goal = f"Add the event {title!r} on {date} at {time} to the calendar."
    return TaskDraft(goal, add_steps(title, date, time), {"calendar.events": table})


def move(data: dict[str, Any], rng: Random) -> TaskDraft:
    """Move an event with the date picker."""
    event = rng.choice(
        [e for e in data["calendar.events"] if e.date[5:7] == f"{MONTH:02d}"] or data["calendar.events"]
    )
    date = next(d for d in iter(lambda: _date(rng, 3), "") if d >= event.date[:7] and d != event.date)
    turned = (("click", "after"),) * (int(date[5:7]) - int(event.date[5:7]))
    picked = (("click", "edit"), ("click", "pick"), *turned, ("click", f"day.{date}"), ("click", "submit"))
    table = changed(data["calendar.events"], event.id, date=date)
    return TaskDraft(
        f"Move the event {event.title!r} of {event.date} to {date}.",
        (*_open_event(event), *picked),
        {"calendar.events": table},
    )


def delay(data: dict[str, Any], rng: Random) -> TaskDraft:
    """Change the time of an event."""
    event = rng.choice(data["calendar.events"])
    time = rng.choice([name for name in TIMES if name != event.time])
    moves = (*_open_event(event), ("click", "edit"), ("select", "time", time), ("click", "submit"))
    table = changed(data["calendar.events"], event.id, time=time)
    goal = f"Let the event {event.title!r} of {event.date} begin at {time}."
    return TaskDraft(goal, moves, {"calendar.events": table})


def delete(data: dict[str, Any], rng: Random) -> TaskDraft:
    """Delete an event."""
    event = rng.choice(data["calendar.events"])
    moves = (*_open_event(event), ("click", "delete"), ("click", "submit"))
    goal = f"Delete the event {event.title!r} of {event.date} from the calendar."
    return TaskDraft(goal, moves, {"calendar.events": without(data["calendar.events"], event.id)})


def when(data: dict[str, Any], rng: Random) -> TaskDraft:
    """Find the time of an event."""
    event = rng.choice(data["calendar.events"])
    goal = f"At what time is the event {event.title!r} on {event.date}? Answer as 00:00."
    return TaskDraft(goal, (*_open_event(event)[:-1], ("answer", event.time)), {}, event.time)


TEMPLATES = {
    "calendar-add": add,
    "calendar-move": move,
    "calendar-delay": delay,
    "calendar-delete": delete,
    "calendar-when": when,
}
