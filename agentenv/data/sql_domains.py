"""What generated databases are about: tables, columns and the words for them. Splits share no domain.

A table is named after its plural, has an ``id``, a label that is unique in it, and refers to each parent by ``<parent>_id``.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from agentenv.data.world_config import Split


@dataclass(frozen=True)
class Column:
    """One attribute: a word out of ``choices``, or a number from ``low`` to ``high``."""

    name: str
    phrase: str
    choices: tuple[str, ...] = ()
    low: int = 0
    high: int = 0
    decimals: int = 0


@dataclass(frozen=True)
class SQLTable:
    """One table. ``naming`` says how its labels are made: a kind of invented name, or letters before a number."""

    one: str
    many: str
    label: str
    naming: str
    words: tuple[Column, ...]
    numbers: tuple[Column, ...]
    parents: tuple[str, ...] = ()
    """Each the ``one`` of another table of the domain."""


def _words(name: str, choices: str) -> Column:
    return Column(name, name.replace("_", " "), tuple(choices.split()))


def _number(name: str, low: int, high: int, phrase: str = "", decimals: int = 0) -> Column:
    return Column(name, phrase or name.replace("_", " "), (), low, high, decimals)


_COUNTRIES = "Chile Kenya Norway Japan Peru Egypt"
_STATES = "open late closed"

LIBRARY = (
    SQLTable(
        "author",
        "authors",
        "name",
        "person",
        (_words("country", _COUNTRIES),),
        (_number("birth_year", 1900, 1999, "year of birth"),),
    ),
    SQLTable(
        "book",
        "books",
        "title",
        "work",
        (_words("genre", "poetry history drama science travel"), _words("binding", "hard soft")),
        (_number("pages", 60, 900, "number of pages"), _number("price", 5, 90, decimals=2)),
        ("author",),
    ),
    SQLTable(
        "loan",
        "loans",
        "code",
        "L",
        (_words("status", _STATES),),
        (_number("days", 1, 60, "number of days"),),
        ("book",),
    ),
)
SHOP = (
    SQLTable(
        "supplier",
        "suppliers",
        "name",
        "organisation",
        (_words("country", _COUNTRIES),),
        (_number("founded", 1950, 2020, "founding year"),),
    ),
    SQLTable(
        "product",
        "products",
        "code",
        "P",
        (_words("category", "tools food garden toys paper"),),
        (_number("price", 1, 400, decimals=2), _number("stock", 0, 500)),
        ("supplier",),
    ),
    SQLTable(
        "customer",
        "customers",
        "name",
        "person",
        (_words("city", "Oslo Lima Cairo Quito Turin"),),
        (_number("credit", 100, 9000),),
    ),
    SQLTable(
        "purchase",
        "purchases",
        "code",
        "S",
        (_words("status", "paid sent returned"),),
        (_number("quantity", 1, 40),),
        ("product", "customer"),
    ),
)
CLINIC = (
    SQLTable(
        "doctor",
        "doctors",
        "name",
        "person",
        (_words("specialty", "surgery eyes skin heart teeth"),),
        (_number("years", 1, 40, "years of practice"),),
    ),
    SQLTable(
        "patient",
        "patients",
        "name",
        "person",
        (_words("blood_group", "A B AB O"), _words("insurance", "public private none")),
        (_number("age", 1, 95), _number("weight", 20, 120, decimals=1)),
    ),
    SQLTable(
        "visit",
        "visits",
        "code",
        "V",
        (_words("reason", "pain control accident vaccine"),),
        (_number("cost", 20, 800, decimals=2), _number("minutes", 5, 120, "length in minutes")),
        ("doctor", "patient"),
    ),
)
AIRLINE = (
    SQLTable(
        "airport",
        "airports",
        "name",
        "place",
        (_words("region", "north south east west"),),
        (_number("elevation", 0, 3000), _number("gates", 4, 90, "number of gates")),
    ),
    SQLTable(
        "flight",
        "flights",
        "code",
        "F",
        (_words("status", "boarding departed delayed cancelled"),),
        (_number("distance", 150, 9000), _number("seats", 40, 400, "number of seats")),
        ("airport",),
    ),
    SQLTable(
        "ticket",
        "tickets",
        "code",
        "T",
        (_words("class", "economy business first"),),
        (_number("price", 40, 3000, decimals=2),),
        ("flight",),
    ),
)
LEAGUE = (
    SQLTable(
        "team",
        "teams",
        "name",
        "organisation",
        (_words("division", "upper middle lower"),),
        (_number("founded", 1880, 2010, "founding year"), _number("budget", 100, 9000)),
    ),
    SQLTable(
        "player",
        "players",
        "name",
        "person",
        (_words("position", "goal defence middle attack"), _words("foot", "left right")),
        (_number("age", 17, 40), _number("salary", 20, 900)),
        ("team",),
    ),
    SQLTable(
        "transfer",
        "transfers",
        "code",
        "X",
        (_words("season", "summer winter"),),
        (_number("fee", 0, 5000),),
        ("player",),
    ),
)
SCHOOL = (
    SQLTable(
        "department",
        "departments",
        "name",
        "organisation",
        (_words("building", "red blue green"),),
        (_number("budget", 50, 900),),
    ),
    SQLTable(
        "teacher",
        "teachers",
        "name",
        "person",
        (_words("degree", "bachelor master doctor"),),
        (_number("age", 24, 68), _number("salary", 1800, 6000)),
        ("department",),
    ),
    SQLTable(
        "course",
        "courses",
        "title",
        "work",
        (_words("level", "basic advanced expert"), _words("term", "spring autumn")),
        (_number("hours", 10, 120, "number of hours"), _number("students", 5, 200, "number of students")),
        ("teacher",),
    ),
)
MUSEUM = (
    SQLTable(
        "artist",
        "artists",
        "name",
        "person",
        (_words("style", "baroque modern cubist naive"),),
        (_number("birth_year", 1500, 1980, "year of birth"),),
    ),
    SQLTable(
        "painting",
        "paintings",
        "title",
        "work",
        (_words("technique", "oil chalk ink tempera"),),
        (_number("width", 20, 400), _number("worth", 100, 9000)),
        ("artist",),
    ),
    SQLTable(
        "restoration",
        "restorations",
        "code",
        "R",
        (_words("damage", "water fire light age"),),
        (_number("days", 3, 200, "number of days"), _number("cost", 50, 4000, decimals=2)),
        ("painting",),
    ),
)
FARM = (
    SQLTable(
        "farm",
        "farms",
        "name",
        "place",
        (_words("soil", "clay sand peat loam"),),
        (_number("area", 10, 900),),
    ),
    SQLTable(
        "animal",
        "animals",
        "code",
        "A",
        (_words("species", "cow goat sheep horse"), _words("health", "good fair poor")),
        (_number("weight", 20, 900, decimals=1), _number("age", 1, 20)),
        ("farm",),
    ),
    SQLTable(
        "harvest",
        "harvests",
        "code",
        "H",
        (_words("crop", "wheat maize beans hops"),),
        (
            _number("tons", 1, 300, "weight in tons", decimals=1),
            _number("workers", 2, 60, "number of workers"),
        ),
        ("farm",),
    ),
)
FESTIVAL = (
    SQLTable(
        "stage",
        "stages",
        "name",
        "place",
        (_words("cover", "roof tent none"),),
        (_number("capacity", 100, 9000),),
    ),
    SQLTable(
        "band",
        "bands",
        "name",
        "organisation",
        (_words("genre", "jazz rock folk metal"),),
        (_number("members", 2, 14, "number of members"), _number("fee", 200, 9000)),
    ),
    SQLTable(
        "concert",
        "concerts",
        "code",
        "C",
        (_words("day", "friday saturday sunday"),),
        (
            _number("visitors", 50, 9000, "number of visitors"),
            _number("minutes", 30, 150, "length in minutes"),
        ),
        ("stage", "band"),
    ),
)
FILM = (
    SQLTable(
        "director",
        "directors",
        "name",
        "person",
        (_words("country", _COUNTRIES),),
        (_number("age", 25, 90), _number("awards", 0, 30, "number of awards")),
    ),
    SQLTable(
        "film",
        "films",
        "title",
        "work",
        (_words("genre", "comedy crime war western"), _words("colour", "colour black-and-white")),
        (_number("minutes", 60, 240, "length in minutes"), _number("budget", 1, 300)),
        ("director",),
    ),
    SQLTable(
        "screening",
        "screenings",
        "code",
        "S",
        (_words("hall", "small large open-air"),),
        (_number("viewers", 5, 900, "number of viewers"), _number("price", 4, 25, decimals=2)),
        ("film",),
    ),
)
SHIPPING = (
    SQLTable(
        "company",
        "companies",
        "name",
        "organisation",
        (_words("country", _COUNTRIES),),
        (_number("founded", 1850, 2015, "founding year"), _number("revenue", 10, 9000)),
    ),
    SQLTable(
        "ship",
        "ships",
        "name",
        "work",
        (_words("type", "tanker ferry trawler freighter"),),
        (_number("length", 20, 400), _number("crew", 4, 90, "size of the crew")),
        ("company",),
    ),
    SQLTable(
        "voyage",
        "voyages",
        "code",
        "V",
        (_words("cargo", "oil grain cars wood"),),
        (_number("days", 1, 90, "number of days"), _number("tons", 10, 9000, "weight in tons")),
        ("ship",),
    ),
)
POWER = (
    SQLTable(
        "grid",
        "grids",
        "name",
        "organisation",
        (_words("zone", "coast hills plain"),),
        (_number("homes", 500, 90000, "number of homes"),),
    ),
    SQLTable(
        "plant",
        "plants",
        "name",
        "place",
        (_words("fuel", "coal wind water sun gas"),),
        (_number("output", 5, 2000), _number("age", 1, 60)),
        ("grid",),
    ),
    SQLTable(
        "outage",
        "outages",
        "code",
        "O",
        (_words("cause", "storm fire wear mistake"),),
        (_number("minutes", 1, 900, "length in minutes"), _number("damage", 1, 700, decimals=1)),
        ("plant",),
    ),
)

Domain = tuple[SQLTable, ...]
DOMAINS: Mapping[Split, Mapping[str, Domain]] = {
    "train": {
        "library": LIBRARY,
        "shop": SHOP,
        "clinic": CLINIC,
        "airline": AIRLINE,
        "league": LEAGUE,
        "school": SCHOOL,
    },
    "dev": {"museum": MUSEUM, "farm": FARM, "festival": FESTIVAL},
    "test": {"film": FILM, "shipping": SHIPPING, "power": POWER},
}
