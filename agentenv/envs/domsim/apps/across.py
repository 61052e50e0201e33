"""Tasks that involve two apps: information from one has to be entered into the other."""

from random import Random
from typing import Any

from agentenv.envs.domsim.apps.calendar import TIMES, Event, add_steps
from agentenv.envs.domsim.apps.contacts import Person
from agentenv.envs.domsim.apps.mail import sent
from agentenv.envs.domsim.apps.notes import Note
from agentenv.envs.domsim.content import money
from agentenv.envs.domsim.records import Move, TaskDraft, added


def _compose(to: str, subject: str, body: str) -> tuple[Move, ...]:
    fills = (("fill", "to", to), ("fill", "subject", subject), ("fill", "body", body))
    return (("open", "mail"), ("click", "compose"), *fills, ("click", "submit"))


def save_sender(data: dict[str, Any], rng: Random) -> TaskDraft:
    """Put the sender of a mail into the contacts."""
    letter = rng.choice(data["mail.box"])
    name = letter.sender.partition("@")[0].replace(".", " ").title()
    number = f"555-{letter.body.rpartition(' ')[2][:4]}"
    look = (("open", "mail"), ("click", f"letter.{letter.id}"))
    fills = (("fill", "name", name), ("fill", "phone", number), ("fill", "email", letter.sender))
    moves = (*look, ("open", "contacts"), ("click", "new"), *fills, ("click", "submit"))
    goal = (
        f"Add {name} to the contacts with the phone number {number} and the address from which the mail about "
        f"{letter.subject!r} came."
    )
    return TaskDraft(
        goal,
        moves,
        {"contacts.people": added(data["contacts.people"], Person(0, name, number, letter.sender))},
    )


def mail_price(data: dict[str, Any], rng: Random) -> TaskDraft:
    """Mail the price of a product to a contact."""
    product, person = rng.choice(data["shop.products"]), rng.choice(data["contacts.people"])
    price = money(product.price)
    look = (("open", "shop"), ("fill", "query", product.name), ("click", "submit"))
    moves = (*look, *_compose(person.email, product.name, price))
    goal = (
        f"Mail the price of {product.name!r} in the shop to {person.email}: subject {product.name!r}, and the price "
        "alone, as $0.00, as the message."
    )
    return TaskDraft(
        goal, moves, {"mail.box": added(data["mail.box"], sent(person.email, product.name, price))}
    )


def note_code(data: dict[str, Any], rng: Random) -> TaskDraft:
    """Write down the code of a mail."""
    letter = rng.choice(data["mail.box"])
    found = letter.body.rpartition(" ")[2].rstrip(".")
    look = (("open", "mail"), ("click", f"letter.{letter.id}"), ("open", "notes"), ("click", "new"))
    moves = (*look, ("fill", "title", "Door"), ("fill", "body", found), ("click", "submit"))
    goal = f"Write a note with the title 'Door' whose text is the door code in the mail about {letter.subject!r}."
    return TaskDraft(goal, moves, {"notes.notes": added(data["notes.notes"], Note(0, "Door", found))})


def invite(data: dict[str, Any], rng: Random) -> TaskDraft:
    """Put an event into the calendar and tell a contact."""
    person, time = rng.choice(data["contacts.people"]), rng.choice(TIMES[1:])
    date = f"2031-05-{rng.randrange(1, 29):02d}"
    title = f"Tea with {person.name}"
    moves = (*add_steps(title, date, time), *_compose(person.email, title, f"{date} {time}"))
    goal = (
        f"Add the event {title!r} on {date} at {time} to the calendar, and mail {person.email} about it: subject "
        f"{title!r}, message '{date} {time}'."
    )
    events = added(data["calendar.events"], Event(0, title, date, time))
    box = added(data["mail.box"], sent(person.email, title, f"{date} {time}"))
    return TaskDraft(goal, moves, {"calendar.events": events, "mail.box": box})


TEMPLATES = {
    "across-save-sender": save_sender,
    "across-mail-price": mail_price,
    "across-note-code": note_code,
    "across-invite": invite,
}
