"""Settings: tabs with switches and lists, a device name, a password, and networks that are blocked after wrong keys."""

from random import Random
from typing import Any, ClassVar, NamedTuple

from agentenv.envs.domsim.content import FIRST_NAMES, code
from agentenv.envs.domsim.records import Move, TaskDraft, changed, find, numbered
from agentenv.envs.domsim.widgets import Row, button, choice, heading, item, label, switch, tabs, textbox
from agentenv.envs.domsim.world import World

SWITCHES = {
    "Display": ("Dark mode", "Night light", "Large text", "Auto-rotate"),
    "Sound": ("Mute", "Key clicks", "Vibrate"),
    "Privacy": ("Location", "Camera access", "Usage reports", "Crash reports"),
}
CHOICES = {
    "Language": ("English", "Deutsch", "Français", "Español", "Italiano"),
    "Screen timeout": ("30 seconds", "1 minute", "5 minutes", "Never"),
    "Ring tone": ("Bells", "Marimba", "Classic", "Silent"),
}
PLACES = {"Language": "Display", "Screen timeout": "Display", "Ring tone": "Sound"}
TABS = (*SWITCHES, "Network", "Account")
NETWORKS = ("Attic", "Cellar", "Kiosk", "Lobby")
MAX_WRONG = 3


class Switch(NamedTuple):
    """One switch."""

    id: int
    name: str
    on: bool


class Network(NamedTuple):
    """One wireless network with its key. After three wrong keys it is blocked."""

    id: int
    name: str
    key: str
    joined: bool = False
    wrong: int = 0


class Settings:
    """``settings.switches``, ``settings.choices``, ``settings.networks``, ``settings.device`` and ``settings.password``."""

    name: ClassVar[str] = "Settings"

    def start(self, rng: Random) -> dict[str, Any]:
        """Draws random switches and choices."""
        switches = [Switch(0, name, rng.random() < 0.5) for names in SWITCHES.values() for name in names]
        return {
            "settings.switches": numbered(switches),
            "settings.choices": tuple((name, rng.choice(options)) for name, options in CHOICES.items()),
            "settings.networks": numbered([Network(0, name, code(rng)) for name in NETWORKS]),
            "settings.device": f"{rng.choice(FIRST_NAMES)}'s tablet",
            "settings.password": code(rng),
        }

    def view(self, world: World) -> list[Row]:
        """One tab."""
        tab = str(world.page[1]) if len(world.page) > 1 else TABS[0]
        if tab == "Network":
            return [tabs(TABS, tab), *self._networks(world)]
        if tab == "Account":
            return [tabs(TABS, tab), *self._account(world)]
        rows = [
            [switch(held.name, f"switch.{held.name}", held.on, "toggle", held.id)]
            for held in world.data["settings.switches"]
            if held.name in SWITCHES[tab]
        ]
        lists = [name for name, place in PLACES.items() if place == tab]
        chosen = dict(world.data["settings.choices"]) | world.fields
        rows += [[choice(chosen, name, name, CHOICES[name])] for name in lists]
        apply = [[button("Apply", "submit", "apply")]] if lists else []
        return [tabs(TABS, tab), *rows, *apply]

    def _networks(self, world: World) -> list[Row]:
        return [
            [item(f"{held.name}{_state(held)}", f"network.{held.name}", "join", held.id)]
            for held in world.data["settings.networks"]
        ]

    def _account(self, world: World) -> list[Row]:
        return [
            [label(f"This device is called {world.data['settings.device']}")],
            [textbox(world.fields, "device", "New name"), button("Rename", "rename", "rename")],
            [textbox(world.fields, "old", "Old password", secret=True)],
            [textbox(world.fields, "new", "New password", secret=True)],
            [textbox(world.fields, "again", "Repeat it", secret=True)],
            [button("Change password", "submit", "change_password")],
        ]

    def view_dialog(self, world: World) -> list[Row]:
        """Asks for the key of a network."""
        held = find(world.data["settings.networks"], int(world.dialog[1]))
        return [
            heading(f"Join {held.name}"),
            [textbox(world.fields, "key", "Key", secret=True)],
            [button("Join", "submit", "unlock", held.id), button("Cancel", "cancel", "back")],
        ]

    def show_tab(self, world: World, name: str) -> None:
        """Shows a tab."""
        world.go("settings", name)

    def toggle(self, world: World, id: int) -> None:
        """Turns a switch on or off, with immediate effect."""
        held = find(world.data["settings.switches"], id)
        world.data["settings.switches"] = changed(world.data["settings.switches"], id, on=not held.on)

    def apply(self, world: World) -> None:
        """Saves the choices in the lists."""
        world.data["settings.choices"] = tuple(
            (name, world.picked(name, value)) for name, value in world.data["settings.choices"]
        )
        world.notice = "Applied."

    def rename(self, world: World) -> None:
        """Renames the device."""
        if world.text("device"):
            world.data["settings.device"] = world.text("device")

    def change_password(self, world: World) -> None:
        """Changes the password, if the old one is right and the new one was written twice."""
        if world.text("old") != world.data["settings.password"]:
            world.notice = "The old password is wrong."
        elif not world.text("new") or world.text("new") != world.text("again"):
            world.notice = "The new passwords differ."
        else:
            world.data["settings.password"] = world.text("new")
            world.notice = "Password changed."

    def join(self, world: World, id: int) -> None:
        """Asks for the key, unless the network is blocked."""
        if find(world.data["settings.networks"], id).wrong >= MAX_WRONG:
            world.notice = "This network is blocked after too many wrong keys."
        else:
            world.ask("key", id, fields={"key": ""})

    def unlock(self, world: World, id: int) -> None:
        """Joins a network if the key is right, and leaves every other one; a wrong key is counted."""
        held = find(world.data["settings.networks"], id)
        if world.text("key") == held.key:
            world.data["settings.networks"] = joined(world.data["settings.networks"], id)
        else:
            world.data["settings.networks"] = changed(
                world.data["settings.networks"], id, wrong=held.wrong + 1
            )
            world.notice = "Wrong key."
        world.close()


def _state(network: Network) -> str:
    return ", joined" if network.joined else ", blocked" if network.wrong >= MAX_WRONG else ""


def joined(networks: tuple[Network, ...], id: int) -> tuple[Network, ...]:
    """Returns the networks with one of them joined and its count of wrong keys reset."""
    rows = (row._replace(joined=row.id == id, wrong=0 if row.id == id else row.wrong) for row in networks)
    return tuple(rows)


def _tab(name: str) -> tuple[Move, ...]:
    return (("open", "settings"), ("click", f"tab.{name}"))


def _turn(data: dict[str, Any], rng: Random, n: int) -> TaskDraft:
    tab = rng.choice(list(SWITCHES))
    table, moves, said = data["settings.switches"], list(_tab(tab)), []
    for held in rng.sample([row for row in table if row.name in SWITCHES[tab]], n):
        table = changed(table, held.id, on=not held.on)
        moves.append(("click", f"switch.{held.name}"))
        said.append(f"{held.name!r} {'off' if held.on else 'on'}")
    return TaskDraft(
        f"In the settings, turn {' and '.join(said)}.", tuple(moves), {"settings.switches": table}
    )


def turn_one(data: dict[str, Any], rng: Random) -> TaskDraft:
    """Turn one switch."""
    return _turn(data, rng, 1)


def turn_two(data: dict[str, Any], rng: Random) -> TaskDraft:
    """Turn two switches."""
    return _turn(data, rng, 2)


def choose(data: dict[str, Any], rng: Random) -> TaskDraft:
    """Choose an entry of a list."""
    name, now = rng.choice(data["settings.choices"])
    wanted = rng.choice([option for option in CHOICES[name] if option != now])
    after = tuple((held, wanted if held == name else value) for held, value in data["settings.choices"])
    moves = (*_tab(PLACES[name]), ("select", name, wanted), ("click", "submit"))
    return TaskDraft(f"In the settings, set {name!r} to {wanted!r}.", moves, {"settings.choices": after})


def rename(data: dict[str, Any], rng: Random) -> TaskDraft:
    """Rename the device."""
    name = f"{rng.choice(FIRST_NAMES)}'s screen"
    moves = (*_tab("Account"), ("fill", "device", name), ("click", "rename"))
    return TaskDraft(f"Rename this device to {name!r} in the settings.", moves, {"settings.device": name})


def password(data: dict[str, Any], rng: Random) -> TaskDraft:
    """Change the password."""
    old = data["settings.password"]
    new = next(value for value in iter(lambda: code(rng), "") if value != old)
    fills = (("fill", "old", old), ("fill", "new", new), ("fill", "again", new))
    goal = f"Change the account's password from {old} to {new}."
    return TaskDraft(goal, (*_tab("Account"), *fills, ("click", "submit")), {"settings.password": new})


def join(data: dict[str, Any], rng: Random) -> TaskDraft:
    """Join a network with its key."""
    held = rng.choice(data["settings.networks"])
    moves = (
        *_tab("Network"),
        ("click", f"network.{held.name}"),
        ("fill", "key", held.key),
        ("click", "submit"),
    )
    goal = f"Join the wireless network {held.name!r} with the key {held.key}."
    return TaskDraft(goal, moves, {"settings.networks": joined(data["settings.networks"], held.id)})


TEMPLATES = {
    "settings-turn-one": turn_one,
    "settings-turn-two": turn_two,
    "settings-choose": choose,
    "settings-rename": rename,
    "settings-password": password,
    "settings-join": join,
}
