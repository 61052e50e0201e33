"""An address book with a search, a form and groups."""

from random import Random
from typing import Any, ClassVar, NamedTuple

from agentenv.envs.domsim.content import FIRST_NAMES, LAST_NAMES, email_of, people, phone
from agentenv.envs.domsim.records import TaskDraft, added, changed, find, numbered, without
from agentenv.envs.domsim.widgets import Row, button, choice, heading, item, label, textbox
from agentenv.envs.domsim.world import World

GROUPS = ("Friends", "Family", "Work")
PEOPLE = 18


class Person(NamedTuple):
    """One entry."""

    id: int
    name: str
    phone: str
    email: str
    group: str = GROUPS[0]


class Contacts:
    """``contacts.people``."""

    name: ClassVar[str] = "Contacts"

    def start(self, rng: Random) -> dict[str, Any]:
        """More people than fit on a page."""
        rows = [
            Person(0, name, phone(rng), email_of(name), rng.choice(GROUPS))
            for name in sorted(people(rng, PEOPLE))
        ]
        return {"contacts.people": numbered(rows)}

    def view(self, world: World) -> list[Row]:
        """The list, one person, or a form."""
        match world.page[1:]:
            case ("person", int(id)):
                return self._person(find(world.data["contacts.people"], id))
            case ("form", int(id)):
                return self._form(world, id)
            case _:
                query = str(world.page[2]) if len(world.page) > 2 else ""
                held = [p for p in world.data["contacts.people"] if query.casefold() in p.name.casefold()]
                head = [textbox(world.fields, "query", "Search"), button("Search", "submit", "search")]
                rows = [[item(person.name, f"person.{person.id}", "show", person.id)] for person in held]
                return [[*head, button("New contact", "new", "write", 0)], *rows]

    def _person(self, person: Person) -> list[Row]:
        return [
            heading(person.name),
            [label(f"Phone {person.phone}")],
            [label(f"Mail {person.email}")],
            [label(f"Group {person.group}")],
            [button("Edit", "edit", "write", person.id), button("Delete", "delete", "delete", person.id)],
        ]

    def _form(self, world: World, id: int) -> list[Row]:
        if id:
            find(world.data["contacts.people"], id)
        return [
            heading("Edit contact" if id else "New contact"),
            [textbox(world.fields, "name", "Name")],
            [textbox(world.fields, "phone", "Phone")],
            [textbox(world.fields, "email", "Mail")],
            [choice(world.fields, "group", "Group", GROUPS)],
            [button("Save", "submit", "save", id), button("Cancel", "cancel", "back")],
        ]

    def view_dialog(self, world: World) -> list[Row]:
        """Asks before a person is deleted."""
        return [
            heading("Delete this contact for good?"),
            [button("Delete", "submit", "remove", world.dialog[1]), button("Cancel", "cancel", "back")],
        ]

    def search(self, world: World) -> None:
        """Shows the people whose name contains the query."""
        world.go("contacts", "results", world.text("query"))

    def show(self, world: World, id: int) -> None:
        """Shows a person."""
        world.go("contacts", "person", id)

    def write(self, world: World, id: int) -> None:
        """Opens the form: of a person, or of a new one."""
        person = find(world.data["contacts.people"], id)._asdict() if id else {}
        world.go("contacts", "form", id, fields={name: person[name] for name in person if name != "id"})

    def save(self, world: World, id: int) -> None:
        """Saves the form. A name and a phone number are required."""
        table = world.data["contacts.people"]
        if not world.text("name") or not world.text("phone"):
            world.notice = "Name and phone are needed."
            return
        values = {name: world.text(name) for name in ("name", "phone", "email")}
        values["group"] = world.picked("group", GROUPS[0])
        table = changed(table, id, **values) if id else added(table, Person(0, **values))
        world.data["contacts.people"] = table
        world.go("contacts")
        world.notice = "Saved."

    def delete(self, world: World, id: int) -> None:
        """Asks for confirmation."""
        world.ask("delete", id)

    def remove(self, world: World, id: int) -> None:
        """Deletes a person."""
        world.data["contacts.people"] = without(world.data["contacts.people"], id)
        world.go("contacts")


def _person(data: dict[str, Any], rng: Random) -> tuple[Person, tuple[tuple[str, ...], ...]]:
    person = rng.choice(data["contacts.people"])
    return person, (("open", "contacts"), ("click", f"person.{person.id}"))


def add(data: dict[str, Any], rng: Random) -> TaskDraft:
    """Add a person in a group."""
    known = {part for person in data["contacts.people"] for part in person.name.split()}
    first, last = ([n for n in names if n not in known] for names in (FIRST_NAMES, LAST_NAMES))
    name = f"{rng.choice(first)} {rng.choice(last)}"
    person = Person(0, name, phone(rng), email_of(name), rng.choice(GROUPS[1:]))
    fills = (("fill", "name", name), ("fill", "phone", person.phone), ("fill", "email", person.email))
    moves = (
        ("open", "contacts"),
        ("click", "new"),
        *fills,
        ("select", "group", person.group),
        ("click", "submit"),
    )
    goal = f"Add {name} to the contacts: phone {person.phone}, mail {person.email}, group {person.group}."
    return TaskDraft(goal, moves, {"contacts.people": added(data["contacts.people"], person)})


def new_phone(data: dict[str, Any], rng: Random) -> TaskDraft:
    """Change a telephone number."""
    person, plan = _person(data, rng)
    number = next(drawn for drawn in iter(lambda: phone(rng), "") if drawn != person.phone)
    moves = (*plan, ("click", "edit"), ("fill", "phone", number), ("click", "submit"))
    table = changed(data["contacts.people"], person.id, phone=number)
    return TaskDraft(
        f"Change the phone number of {person.name} to {number}.", moves, {"contacts.people": table}
    )


def regroup(data: dict[str, Any], rng: Random) -> TaskDraft:
    """Move a person to another group."""
    person, plan = _person(data, rng)
    group = rng.choice([name for name in GROUPS if name != person.group])
    moves = (*plan, ("click", "edit"), ("select", "group", group), ("click", "submit"))
    table = changed(data["contacts.people"], person.id, group=group)
    return TaskDraft(f"Move {person.name} to the group {group}.", moves, {"contacts.people": table})


def delete(data: dict[str, Any], rng: Random) -> TaskDraft:
    """Delete a person."""
    person, plan = _person(data, rng)
    moves = (*plan, ("click", "delete"), ("click", "submit"))
    table = without(data["contacts.people"], person.id)
    return TaskDraft(f"Delete {person.name} from the contacts.", moves, {"contacts.people": table})


def look_up(data: dict[str, Any], rng: Random) -> TaskDraft:
    """Find a telephone number with the search."""
    person = rng.choice(data["contacts.people"])
    moves = (("open", "contacts"), ("fill", "query", person.name), ("click", "submit"))
    goal = f"What is the phone number of {person.name}? Answer with the number."
    return TaskDraft(
        goal, (*moves, ("click", f"person.{person.id}"), ("answer", person.phone)), {}, person.phone
    )


TEMPLATES = {
    "contacts-add": add,
    "contacts-new-phone": new_phone,
    "contacts-regroup": regroup,
    "contacts-delete": delete,
    "contacts-look-up": look_up,
}
