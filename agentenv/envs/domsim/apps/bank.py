"""A bank with transfers, bills and a balance. Its login locks permanently after three wrong passwords."""

from random import Random
from typing import Any, ClassVar, NamedTuple

from agentenv.envs.domsim.content import code, money, people
from agentenv.envs.domsim.records import Move, TaskDraft, added, changed, find, numbered
from agentenv.envs.domsim.widgets import Row, button, choice, heading, item, label, textbox
from agentenv.envs.domsim.world import World

BILLS = ("Electricity", "Water", "Internet", "Insurance")
PAYEES = 5
MAX_WRONG = 3


class Bill(NamedTuple):
    """One bill; ``amount`` in cents."""

    id: int
    name: str
    amount: int
    paid: bool = False


class Transfer(NamedTuple):
    """Money that left the account; ``amount`` in cents."""

    id: int
    payee: str
    amount: int
    reference: str


class Bank:
    """The account, its payees, bills and transfers. ``_bank.inside`` is internal and not compared by validators."""

    name: ClassVar[str] = "Bank"

    def start(self, rng: Random) -> dict[str, Any]:
        """Creates an account with enough money to pay for everything."""
        amounts = rng.sample(range(1500, 9900), len(BILLS))
        names = people(rng, PAYEES + 1)
        return {
            "bank.user": names[0].lower().replace(" ", "."),
            "bank.password": code(rng),
            "bank.wrong": 0,
            "bank.balance": rng.randrange(200_000, 900_000),
            "bank.payees": tuple(sorted(names[1:])),
            "bank.bills": numbered(
                [Bill(0, name, amount) for name, amount in zip(BILLS, amounts, strict=True)]
            ),
            "bank.transfers": (),
            "_bank.inside": False,
        }

    def view(self, world: World) -> list[Row]:
        """The login, the account, a transfer, or the bills."""
        if not world.data["_bank.inside"]:
            return self._login(world)
        match world.page[1:]:
            case ("transfer",):
                return [
                    heading("Transfer"),
                    [choice(world.fields, "payee", "To", world.data["bank.payees"])],
                    [textbox(world.fields, "amount", "Amount")],
                    [textbox(world.fields, "reference", "Reference")],
                    [button("Continue", "submit", "ask_transfer"), button("Cancel", "cancel", "back")],
                ]
            case ("bills",):
                return [heading("Bills"), *[self._bill(bill) for bill in world.data["bank.bills"]]]
            case _:
                return [
                    heading("Account"),
                    [label(f"Balance {money(world.data['bank.balance'])}")],
                    [item("Transfer money", "transfer", "show", "transfer")],
                    [item("Pay bills", "bills", "show", "bills")],
                    [button("Log out", "leave", "leave")],
                ]

    def _login(self, world: World) -> list[Row]:
        return [
            heading("Log in"),
            [textbox(world.fields, "user", "User")],
            [textbox(world.fields, "password", "Password", secret=True)],
            [button("Log in", "submit", "enter")],
        ]

    def _bill(self, bill: Bill) -> Row:
        text = label(f"{bill.name}, {money(bill.amount)}")
        return [
            text,
            button(f"Pay {bill.name}", f"pay.{bill.name}", "ask_bill", bill.id, enabled=not bill.paid),
        ]

    def view_dialog(self, world: World) -> list[Row]:
        """Asks before money leaves the account."""
        kind, id = world.dialog
        what = world.text("amount") + " to " + world.picked("payee", world.data["bank.payees"][0])
        if kind == "bill":
            what = find(world.data["bank.bills"], int(id)).name
        return [
            heading(f"Pay {what}?"),
            [
                button("Confirm", "submit", "pay" if kind == "bill" else "send", id),
                button("Cancel", "cancel", "back"),
            ],
        ]

    def enter(self, world: World) -> None:
        """Logs in. The third wrong password locks the account."""
        right = (world.text("user"), world.text("password")) == (
            world.data["bank.user"],
            world.data["bank.password"],
        )
        if world.data["bank.wrong"] >= MAX_WRONG:
            world.notice = "This account is locked."
        elif right:
            world.data |= {"_bank.inside": True, "bank.wrong": 0}
            world.go("bank")
        else:
            world.data["bank.wrong"] += 1
            world.notice = "Wrong user or password."

    def leave(self, world: World) -> None:
        """Logs out."""
        world.data["_bank.inside"] = False
        world.go("bank")

    def show(self, world: World, page: str) -> None:
        """Shows a page."""
        world.go("bank", page)

    def ask_transfer(self, world: World) -> None:
        """Asks for confirmation, if the amount is valid and covered."""
        amount = cents(world.text("amount"))
        if amount is None or not 0 < amount <= world.data["bank.balance"]:
            world.notice = "The amount cannot be paid; write it as 12.50."
        else:
            world.ask("transfer", 0)

    def ask_bill(self, world: World, id: int) -> None:
        """Asks for confirmation."""
        world.ask("bill", id)

    def send(self, world: World, id: int) -> None:
        """Transfers the amount in the form."""
        amount = cents(world.text("amount"))
        payee = world.picked("payee", world.data["bank.payees"][0])
        world.data |= transferred(world.data, payee, amount or 0, world.text("reference"))
        world.go("bank")
        world.notice = "The money is on its way."

    def pay(self, world: World, id: int) -> None:
        """Pays a bill, once."""
        world.data |= settled(world.data, id)
        world.close()


def cents(text: str) -> int | None:
    """Parses ``12.50``, ``12`` or ``$12.50`` as cents; None for any other text."""
    whole, dot, rest = text.removeprefix("$").partition(".")
    if not (whole.isdecimal() and len(whole) < 9) or (dot and not (rest.isdecimal() and len(rest) == 2)):
        return None
    return int(whole) * 100 + int(rest or 0)


def transferred(data: dict[str, Any], payee: str, amount: int, reference: str) -> dict[str, Any]:
    """Returns the entries of the database after a transfer."""
    table = added(data["bank.transfers"], Transfer(0, payee, amount, reference))
    return {"bank.transfers": table, "bank.balance": data["bank.balance"] - amount}


def settled(data: dict[str, Any], id: int) -> dict[str, Any]:
    """Returns the entries of the database after a bill is paid."""
    amount = find(data["bank.bills"], id).amount
    return {
        "bank.bills": changed(data["bank.bills"], id, paid=True),
        "bank.balance": data["bank.balance"] - amount,
    }


def _login(data: dict[str, Any]) -> tuple[str, tuple[Move, ...]]:
    user, password = data["bank.user"], data["bank.password"]
    fills = (("fill", "user", user), ("fill", "password", password), ("click", "submit"))
    return f"Log in to the bank as {user} with the password {password}", (("open", "bank"), *fills)


def transfer(data: dict[str, Any], rng: Random) -> TaskDraft:
    """Transfer money."""
    said, plan = _login(data)
    payee, amount, reference = rng.choice(data["bank.payees"]), rng.randrange(500, 20_000), code(rng)
    number = money(amount).removeprefix("$")
    fills = (("select", "payee", payee), ("fill", "amount", number), ("fill", "reference", reference))
    moves = (*plan, ("click", "transfer"), *fills, ("click", "submit"), ("click", "submit"))
    goal = f"{said} and transfer {number} to {payee} with the reference {reference}."
    return TaskDraft(goal, moves, transferred(data, payee, amount, reference))


def pay_bill(data: dict[str, Any], rng: Random) -> TaskDraft:
    """Pay one bill."""
    said, plan = _login(data)
    bill = rng.choice(data["bank.bills"])
    moves = (*plan, ("click", "bills"), ("click", f"pay.{bill.name}"), ("click", "submit"))
    return TaskDraft(f"{said} and pay the bill {bill.name!r}.", moves, settled(data, bill.id))


def pay_largest(data: dict[str, Any], rng: Random) -> TaskDraft:
    """Pay the largest bill."""
    said, plan = _login(data)
    bill = max(data["bank.bills"], key=lambda held: held.amount)
    moves = (*plan, ("click", "bills"), ("click", f"pay.{bill.name}"), ("click", "submit"))
    return TaskDraft(f"{said} and pay the largest of the bills.", moves, settled(data, bill.id))


def balance(data: dict[str, Any], rng: Random) -> TaskDraft:
    """Find the balance."""
    said, plan = _login(data)
    found = money(data["bank.balance"])
    return TaskDraft(f"{said}. What is the balance? Answer as $0.00.", (*plan, ("answer", found)), {}, found)


TEMPLATES = {
    "bank-transfer": transfer,
    "bank-pay-bill": pay_bill,
    "bank-pay-largest": pay_largest,
    "bank-balance": balance,
}
