"""Notes, and a list of chores with checkboxes."""

from random import Random
from typing import Any, ClassVar, NamedTuple

from agentenv.envs.domsim.content import CHORES, SENTENCES, TITLES
from agentenv.envs.domsim.records import Move, TaskDraft, added, changed, find, numbered, without
from agentenv.envs.domsim.widgets import (
    Row,
    button,
    checkbox,
    heading,
    item,
    paragraph,
    switch,
    tabs,
    textbox,
)
from agentenv.envs.domsim.world import World

TABS = ("Notes", "Chores")


class Note(NamedTuple):
    """One note."""

    id: int
    title: str
    body: str
    pinned: bool = False


class Chore(NamedTuple):
    """One thing to do."""

    id: int
    text: str
    done: bool


class Notes:
    """``notes.notes`` and ``notes.chores``."""

    name: ClassVar[str] = "Notes"

    def start(self, rng: Random) -> dict[str, Any]:
        """Creates about six notes and six chores."""
        notes = [Note(0, title, rng.choice(SENTENCES)) for title in rng.sample(TITLES, 6)]
        chores = [Chore(0, text, rng.random() < 0.4) for text in rng.sample(CHORES, 6)]
        return {"notes.notes": numbered(notes), "notes.chores": numbered(chores)}

    def view(self, world: World) -> list[Row]:
        """A tab, a note, or a form."""
        match world.page[1:]:
            case ("note", int(id)):
                return self._note(find(world.data["notes.notes"], id))
            case ("form", int(id)):
                if id:
                    find(world.data["notes.notes"], id)
                return [
                    heading("Edit note" if id else "New note"),
                    [textbox(world.fields, "title", "Title")],
                    [textbox(world.fields, "body", "Text")],
                    [button("Save", "submit", "save", id), button("Cancel", "cancel", "back")],
                ]
            case ("Chores",):
                return [tabs(TABS, "Chores"), *self._chores(world)]
            case _:
                rows = [
                    [item(held.title, f"note.{held.id}", "show", held.id)]
                    for held in world.data["notes.notes"]
                ]
                return [tabs(TABS, "Notes"), [button("New note", "new", "write", 0)], *rows]

    def _chores(self, world: World) -> list[Row]:
        boxes = [
            [checkbox(f"chore.{held.id}", held.text, bool(world.fields.get(f"chore.{held.id}", held.done)))]
            for held in world.data["notes.chores"]
        ]
        return [*boxes, [button("Save", "submit", "tick")]]

    def _note(self, note: Note) -> list[Row]:
        buttons = [button("Edit", "edit", "write", note.id), button("Delete", "delete", "delete", note.id)]
        return [
            heading(note.title),
            *paragraph(note.body),
            [*buttons, switch("Pinned", "pin", note.pinned, "pin", note.id)],
        ]

    def view_dialog(self, world: World) -> list[Row]:
        """Asks before a note is deleted."""
        buttons = [button("Delete", "submit", "remove", world.dialog[1]), button("Cancel", "cancel", "back")]
        return [heading("Delete this note?"), buttons]

    def show_tab(self, world: World, name: str) -> None:
        """Shows a tab."""
        world.go("notes", name)

    def show(self, world: World, id: int) -> None:
        """Shows a note."""
        world.go("notes", "note", id)

    def write(self, world: World, id: int) -> None:
        """Opens the form: of a note, or of a new one."""
        note = find(world.data["notes.notes"], id) if id else Note(0, "", "")
        world.go("notes", "form", id, fields={"title": note.title, "body": note.body})

    def save(self, world: World, id: int) -> None:
        """Saves the form. A title is required."""
        values, table = {"title": world.text("title"), "body": world.text("body")}, world.data["notes.notes"]
        if not values["title"]:
            world.notice = "A title is needed."
            return
        world.data["notes.notes"] = (
            changed(table, id, **values) if id else added(table, Note(0, values["title"], values["body"]))
        )
        world.go("notes")

    def delete(self, world: World, id: int) -> None:
        """Asks for confirmation."""
        world.ask("delete", id)

    def remove(self, world: World, id: int) -> None:
        """Deletes a note."""
        world.data["notes.notes"] = without(world.data["notes.notes"], id)
        world.go("notes")

    def pin(self, world: World, id: int) -> None:
        """Pins or unpins a note."""
        note = find(world.data["notes.notes"], id)
        world.data["notes.notes"] = changed(world.data["notes.notes"], id, pinned=not note.pinned)

    def tick(self, world: World) -> None:
        """Saves the checkboxes of the chores."""
        world.data["notes.chores"] = tuple(
            held._replace(done=bool(world.fields.get(f"chore.{held.id}", held.done)))
            for held in world.data["notes.chores"]
        )
        world.notice = "Saved."


def _note(data: dict[str, Any], rng: Random) -> tuple[Note, tuple[Move, ...]]:
    note = rng.choice(data["notes.notes"])
    return note, (("open", "notes"), ("click", f"note.{note.id}"))


def add(data: dict[str, Any], rng: Random) -> TaskDraft:
    """Write a note."""
    title = rng.choice([name for name in TITLES if name not in {note.title for note in data["notes.notes"]}])
    body = rng.choice(SENTENCES)
    moves = (
        ("open", "notes"),
        ("click", "new"),
        ("fill", "title", title),
        ("fill", "body", body),
        ("click", "submit"),
    )
    table = added(data["notes.notes"], Note(0, title, body))
    return TaskDraft(
        f"Write a note with the title {title!r} and the text: {body}", moves, {"notes.notes": table}
    )


def rewrite(data: dict[str, Any], rng: Random) -> TaskDraft:
    """Replace the text of a note."""
    note, plan = _note(data, rng)
    body = rng.choice([text for text in SENTENCES if text != note.body])
    moves = (*plan, ("click", "edit"), ("fill", "body", body), ("click", "submit"))
    table = changed(data["notes.notes"], note.id, body=body)
    return TaskDraft(f"Replace the text of the note {note.title!r} by: {body}", moves, {"notes.notes": table})


def pin(data: dict[str, Any], rng: Random) -> TaskDraft:
    """Pin a note."""
    note, plan = _note(data, rng)
    table = changed(data["notes.notes"], note.id, pinned=True)
    return TaskDraft(f"Pin the note {note.title!r}.", (*plan, ("click", "pin")), {"notes.notes": table})


def delete(data: dict[str, Any], rng: Random) -> TaskDraft:
    """Delete a note."""
    note, plan = _note(data, rng)
    moves = (*plan, ("click", "delete"), ("click", "submit"))
    return TaskDraft(
        f"Delete the note {note.title!r}.", moves, {"notes.notes": without(data["notes.notes"], note.id)}
    )


def tick(data: dict[str, Any], rng: Random) -> TaskDraft:
    """Check or uncheck the boxes of two chores."""
    table, clicks, said = data["notes.chores"], [], []
    for held in rng.sample(table, 2):
        table = changed(table, held.id, done=not held.done)
        clicks.append(("click", f"chore.{held.id}"))
        said.append(f"{held.text!r} as {'open' if held.done else 'done'}")
    moves = (("open", "notes"), ("click", "tab.Chores"), *clicks, ("click", "submit"))
    return TaskDraft(
        f"Among the chores, mark {' and '.join(said)}, and save.", moves, {"notes.chores": table}
    )


TEMPLATES = {
    "notes-add": add,
    "notes-rewrite": rewrite,
    "notes-pin": pin,
    "notes-delete": delete,
    "notes-tick": tick,
}
