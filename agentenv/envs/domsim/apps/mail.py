"""A mail program with folders, in which mails can be read, written, answered and forwarded."""

from random import Random
from typing import Any, ClassVar, NamedTuple

from agentenv.envs.domsim.content import SENTENCES, SUBJECTS, code, email_of, people
from agentenv.envs.domsim.records import TaskDraft, added, changed, find, numbered
from agentenv.envs.domsim.widgets import Row, button, heading, item, label, paragraph, switch, tabs, textbox
from agentenv.envs.domsim.world import World

FOLDERS = ("Inbox", "Archive", "Sent", "Trash")
LETTERS = 8


class Letter(NamedTuple):
    """One mail. ``to`` is empty for received mails."""

    id: int
    sender: str
    to: str
    subject: str
    body: str
    folder: str = "Inbox"
    starred: bool = False


class Mail:
    """``mail.box`` contains the mails of all folders."""

    name: ClassVar[str] = "Mail"

    def start(self, rng: Random) -> dict[str, Any]:
        """Creates mails from different people, one of which contains a door code."""
        rows = [
            Letter(0, email_of(name), "", subject, f"{said} The door code is {code(rng)}.")
            for name, subject, said in zip(
                people(rng, LETTERS),
                rng.sample(SUBJECTS, LETTERS),
                rng.sample(SENTENCES, LETTERS),
                strict=True,
            )
        ]
        return {"mail.box": numbered(rows)}

    def view(self, world: World) -> list[Row]:
        """A folder, a letter, or a letter being written."""
        match world.page[1:]:
            case ("letter", int(id)):
                return self._letter(find(world.data["mail.box"], id))
            case ("compose", *_):
                return [
                    heading("New message"),
                    [textbox(world.fields, "to", "To")],
                    [textbox(world.fields, "subject", "Subject")],
                    [textbox(world.fields, "body", "Message")],
                    [button("Send", "submit", "send"), button("Discard", "discard", "back")],
                ]
            case _:
                return self._folder(world)

    def _folder(self, world: World) -> list[Row]:
        folder = str(world.page[1]) if len(world.page) > 1 else "Inbox"
        rows = [tabs(FOLDERS, folder), [button("Compose", "compose", "write")]]
        for letter in world.data["mail.box"]:
            if letter.folder == folder:
                text = f"{letter.to or letter.sender}: {letter.subject}"
                rows.append([item(text, f"letter.{letter.id}", "read", letter.id)])
        return rows

    def _letter(self, letter: Letter) -> list[Row]:
        return [
            heading(letter.subject),
            [label(f"From {letter.sender}")],
            *paragraph(letter.body),
            [
                button("Reply", "reply", "reply", letter.id),
                button("Forward", "forward", "forward", letter.id),
                button("Archive", "archive", "file", letter.id, "Archive"),
                button("Delete", "delete", "delete", letter.id),
                switch("Starred", "star", letter.starred, "star", letter.id),
            ],
        ]

    def view_dialog(self, world: World) -> list[Row]:
        """Asks for confirmation before a mail is moved to the trash."""
        id = int(world.dialog[1])
        return [
            heading("Delete this message?"),
            [button("Delete", "submit", "file", id, "Trash"), button("Cancel", "cancel", "back")],
        ]

    def show_tab(self, world: World, name: str) -> None:
        """Shows a folder."""
        world.go("mail", name)

    def read(self, world: World, id: int) -> None:
        """Shows a letter."""
        world.go("mail", "letter", id)

    def write(self, world: World) -> None:
        """Begins a letter."""
        world.go("mail", "compose")

    def reply(self, world: World, id: int) -> None:
        """Starts a reply."""
        letter = find(world.data["mail.box"], id)
        world.go("mail", "compose", fields={"to": letter.sender, "subject": f"Re: {letter.subject}"})

    def forward(self, world: World, id: int) -> None:
        """Starts a mail with the text of another one."""
        letter = find(world.data["mail.box"], id)
        world.go("mail", "compose", fields={"subject": f"Fwd: {letter.subject}", "body": letter.body})

    def send(self, world: World) -> None:
        """Sends the mail in the form. A mail without an address is not sent."""
        if "@" not in world.text("to"):
            world.notice = "The recipient is no mail address."
            return
        box = world.data["mail.box"]
        world.data["mail.box"] = added(box, sent(world.text("to"), world.text("subject"), world.text("body")))
        world.go("mail", "Inbox")
        world.notice = "Message sent."

    def file(self, world: World, id: int, folder: str) -> None:
        """Puts a letter into a folder."""
        world.data["mail.box"] = changed(world.data["mail.box"], id, folder=folder)
        world.go("mail", "Inbox")
        world.notice = f"Moved to {folder}."

    def delete(self, world: World, id: int) -> None:
        """Asks for confirmation."""
        world.ask("delete", id)

    def star(self, world: World, id: int) -> None:
        """Turns the star of a letter on or off."""
        letter = find(world.data["mail.box"], id)
        world.data["mail.box"] = changed(world.data["mail.box"], id, starred=not letter.starred)


def sent(to: str, subject: str, body: str) -> Letter:
    """Returns a mail that the user sent."""
    return Letter(0, "me@example.org", to, subject, body, "Sent")


def _draw_letter(data: dict[str, Any], rng: Random) -> tuple[Letter, tuple[tuple[str, ...], ...]]:
    letter = rng.choice(data["mail.box"])
    return letter, (("open", "mail"), ("click", f"letter.{letter.id}"))


def star(data: dict[str, Any], rng: Random) -> TaskDraft:
    """Star one letter."""
    letter, plan = _draw_letter(data, rng)
    box = changed(data["mail.box"], letter.id, starred=True)
    return TaskDraft(
        f"Star the mail about {letter.subject!r}.", (*plan, ("click", "star")), {"mail.box": box}
    )


def delete(data: dict[str, Any], rng: Random) -> TaskDraft:
    """Delete one letter."""
    letter, plan = _draw_letter(data, rng)
    box = changed(data["mail.box"], letter.id, folder="Trash")
    moves = (*plan, ("click", "delete"), ("click", "submit"))
    return TaskDraft(f"Delete the mail from {letter.sender}.", moves, {"mail.box": box})


def archive(data: dict[str, Any], rng: Random) -> TaskDraft:
    """Archive one letter."""
    letter, plan = _draw_letter(data, rng)
    box = changed(data["mail.box"], letter.id, folder="Archive")
    return TaskDraft(
        f"Archive the mail about {letter.subject!r}.", (*plan, ("click", "archive")), {"mail.box": box}
    )


def reply(data: dict[str, Any], rng: Random) -> TaskDraft:
    """Answer one letter."""
    letter, plan = _draw_letter(data, rng)
    text = rng.choice(SENTENCES)
    box = added(data["mail.box"], sent(letter.sender, f"Re: {letter.subject}", text))
    moves = (*plan, ("click", "reply"), ("fill", "body", text), ("click", "submit"))
    return TaskDraft(
        f"Reply to the mail about {letter.subject!r} with the message: {text}", moves, {"mail.box": box}
    )


def forward(data: dict[str, Any], rng: Random) -> TaskDraft:
    """Forward one letter."""
    letter, plan = _draw_letter(data, rng)
    to = email_of(people(rng, 1)[0])
    box = added(data["mail.box"], sent(to, f"Fwd: {letter.subject}", letter.body))
    moves = (*plan, ("click", "forward"), ("fill", "to", to), ("click", "submit"))
    return TaskDraft(f"Forward the mail about {letter.subject!r} to {to}.", moves, {"mail.box": box})


def compose(data: dict[str, Any], rng: Random) -> TaskDraft:
    """Write a letter."""
    to, subject, text = email_of(people(rng, 1)[0]), rng.choice(SUBJECTS), rng.choice(SENTENCES)
    fills = (("fill", "to", to), ("fill", "subject", subject), ("fill", "body", text))
    moves = (("open", "mail"), ("click", "compose"), *fills, ("click", "submit"))
    box = added(data["mail.box"], sent(to, subject, text))
    return TaskDraft(
        f"Write a mail to {to} with the subject {subject!r} and the message: {text}", moves, {"mail.box": box}
    )


def read_code(data: dict[str, Any], rng: Random) -> TaskDraft:
    """Find a number in a letter."""
    letter, plan = _draw_letter(data, rng)
    found = letter.body.rpartition(" ")[2].rstrip(".")
    goal = f"Which door code does the mail from {letter.sender} name? Answer with the code."
    return TaskDraft(goal, (*plan, ("answer", found)), {}, found)


TEMPLATES = {
    "mail-star": star,
    "mail-delete": delete,
    "mail-archive": archive,
    "mail-reply": reply,
    "mail-forward": forward,
    "mail-compose": compose,
    "mail-read-code": read_code,
}
