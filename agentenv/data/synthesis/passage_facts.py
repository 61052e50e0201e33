"""Facts that rules read from encyclopedic passages: dates and places of lives, nationalities, releases, and who made what.

Encyclopedic passages begin in a fixed form ("Ada Stone (born 5 May 1901 in Ulm) was an American director", "Night Train is
a 1940 French film directed by Ada Stone", "Ulmen is a village in Ulm County, Germany"). What does not stand in such a form
is not read, and what the pages of one name say differently is left out, because a search cannot tell which page is meant.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from agentenv.core.types import Document

_MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
_MONTH = "|".join(_MONTHS)
_DATE = rf"(?:\d{{1,2}} (?:{_MONTH})|(?:{_MONTH}) \d{{1,2}}),? (?:1\d|20)\d\d"
# A title's name, and what stands in brackets behind it.
_OPENING = re.compile(r"^[^()]{3,60}\(([^()]{1,160})\)")
_DASHES = re.compile(r"\s{0,50}[\u2013\u2014]\s*|\s-\s?|(?<=\d)-(?=\w)")
_SHORTEST_LIFE, _LONGEST_LIFE = 15, 115
"""Years between the dates of what is a life, and not a war or a term of office."""
_FILM = re.compile(
    r"^[^.]{2,80}? is an? ((?:18|19|20)\d\d)\b(?:(?!\b(?:novel|book|play|album|song|series)\b)[^.]){0,80}?\bfilm\b"
    r"(?! director)"
)
_PARTS = re.compile(rf"(\d{{4}})|({_MONTH})|(\d{{1,2}})")

_CAPITAL = r"[A-Z\u00c0-\u00de\u0100-\u024f][\w'\u2019.-]*"
_NAME = rf"{_CAPITAL}(?: (?:of|de|van|von|the|la|di|da|bin|ibn|al)\b| {_CAPITAL}){{0,6}}"
_RELATIONS = {
    "director": re.compile(rf"\bdirected by ({_NAME})"),
    "composer": re.compile(rf"\b(?:composed|(?<!video )music) by ({_NAME})"),
    "performer": re.compile(
        rf"\b(?:song|single)\b[^.]{{0,60}}?(?<!written)(?<!composed)(?<!produced)(?<!introduced)(?<!were) by "
        rf"(?:[a-z]+ |American |British |English |Canadian |Australian ){{0,4}}({_NAME})"
    ),
    "founder": re.compile(rf"\bfounded (?:in \d{{4}} )?by ({_NAME})"),
    "parent": re.compile(rf"\b(?:son|daughter|child) of (?:(?:the|King|Queen|Sir|Prince) )*({_NAME})"),
    "spouse": re.compile(
        rf"\b(?:wife|husband|consort) of (?:(?:the|King|Queen|Sir) )*({_NAME})|\bmarried (?:to )?({_NAME})"
    ),
}
_GOES_ON = re.compile(r"(?:,? and|,| &)? (?:[A-Z\u00c0-\u024f]|\d+(?:st|nd|rd|th)\b)")
"""What follows the first of several names, or a name whose end has no page, as "William Howard" of "William Howard Taft"."""
_NATIONALITY = re.compile(r"^[^.]{3,200}? (?:is|was) an? (?:\d{4} )?([A-Z][a-z]+) [a-z]")
_PLACE_KINDS = (
    "village|city|town|municipality|hamlet|settlement|school|university|college|airport|river|lake|mountain|commune|"
    "community|township"
)
_LOCATED = re.compile(
    rf"^[^.]{{3,260}}? (?:is|was) an? (?:[\w-]+ ){{0,4}}(?:{_PLACE_KINDS})\b[^.]{{0,160}}?, (?:the )?"
    r"([A-Z][a-z]+(?: [A-Z][a-z]+)?)\."
)
_ADJECTIVES = """
Albanian Albania, American United States, Argentine Argentina, Australian Australia, Austrian Austria, Belgian Belgium,
Bolivian Bolivia, Brazilian Brazil, British United Kingdom, Bulgarian Bulgaria, Canadian Canada, Chilean Chile,
Chinese China, Colombian Colombia, Croatian Croatia, Cuban Cuba, Czech Czech Republic, Danish Denmark, Dutch Netherlands,
Egyptian Egypt, English United Kingdom, Estonian Estonia, Filipino Philippines, Finnish Finland, French France,
German Germany, Greek Greece, Hungarian Hungary, Icelandic Iceland, Indian India, Indonesian Indonesia, Iranian Iran,
Iraqi Iraq, Irish Ireland, Israeli Israel, Italian Italy, Jamaican Jamaica, Japanese Japan, Kenyan Kenya,
Latvian Latvia, Lithuanian Lithuania, Malaysian Malaysia, Mexican Mexico, Moroccan Morocco, Nigerian Nigeria,
Norwegian Norway, Pakistani Pakistan, Peruvian Peru, Polish Poland, Portuguese Portugal, Romanian Romania,
Russian Russia, Scottish United Kingdom, Serbian Serbia, Slovak Slovakia, Slovenian Slovenia, Spanish Spain,
Swedish Sweden, Swiss Switzerland, Thai Thailand, Turkish Turkey, Ukrainian Ukraine, Venezuelan Venezuela,
Vietnamese Vietnam, Welsh United Kingdom
"""
COUNTRIES = {
    word: country for word, _, country in (one.strip().partition(" ") for one in _ADJECTIVES.split(","))
}
"""Countries by their adjectives. Those of languages and regions (Telugu, Western) are left out, because they name none."""
_LANDS = frozenset(COUNTRIES.values())
_HEAD = 600  # characters of a page within which its first sentence stands
_PARTS_OF_LANDS = {"England": "United Kingdom", "Scotland": "United Kingdom", "Wales": "United Kingdom"}
_WORD = rf"(?!(?:{_MONTH})\b)(?:St\. )?[A-Z\u00c0-\u00de\u0100-\u024f][\w'\u2019-]+"
_PLACE = rf"({_WORD}(?: {_WORD}){{0,3}}(?:, {_WORD}(?: {_WORD}){{0,2}})?)(?=[.,;)]| and | to | on | in | at | as |$)"
_BORN = re.compile(rf"\bborn (?:(?:on )?{_DATE},? )?in {_PLACE}")
_DIED = re.compile(rf"\bdied (?:(?:on )?{_DATE},? )?in {_PLACE}")
_HE = re.compile(r"\b(?:he|his)\b", re.IGNORECASE)
_SHE = re.compile(r"\b(?:she|her)\b", re.IGNORECASE)

Day = tuple[int, int, int]
"""Year, month and day of a month."""


@dataclass(frozen=True)
class PageFacts:
    """What the pages of one name say; an empty text where they say nothing, or not the same."""

    name: str
    """The title without what stands in brackets behind it."""
    id: str
    """The id of the first of its pages."""
    birth: str = ""
    """The date as the page writes it."""
    death: str = ""
    birth_place: str = ""
    death_place: str = ""
    nationality: str = ""
    """The adjective that a person or a film is called by; a key of ``COUNTRIES``."""
    country: str = ""
    """The country in which a place lies."""
    release: str = ""
    """The year of a film."""
    sex: str = ""
    """``male`` or ``female``, by the pronouns of a page."""
    related: Mapping[str, str] = field(default_factory=dict)
    """Names of other pages by what they are to this one: director, composer, performer, founder, parent or spouse."""


def facts_of(documents: Iterable[Document], excluded: Collection[str] = ()) -> Mapping[str, PageFacts]:
    """The facts of every name that has a page.

    Args:
        documents: The pages.
        excluded: Titles whose pages are not read, nor others of the same name.
    """
    pages: dict[str, list[Document]] = {}
    for document in documents:
        pages.setdefault(bare_title(document.title), []).append(document)
    shut = {bare_title(title) for title in excluded}
    own = {name: same for name, same in pages.items() if name not in shut and len(name) > 3}
    return {name: _facts(name, same, own) for name, same in own.items()}


def day_of(text: str) -> Day:
    """Year, month and day of a date such as ``5 May 1901`` or ``May 5, 1901``."""
    day = month = year = 0
    for four, name, number in _PARTS.findall(text):
        if four:
            year = int(four)
        elif name:
            month = _MONTHS.index(name) + 1
        else:
            day = int(number)
    return year, month, day


def bare_title(title: str) -> str:
    """A title without what tells it from others of its name: ``Jaws (film)`` is ``Jaws``."""
    return title.partition(" (")[0].strip().strip('"')


def _facts(name: str, pages: Sequence[Document], own: Mapping[str, Sequence[Document]]) -> PageFacts:
    def agreed(read: Callable[[Document], str]) -> str:
        texts = [read(page) for page in pages]
        return texts[0] if len({day_of(text) if text[-4:].isdigit() else text for text in texts}) == 1 else ""

    return PageFacts(
        name=name,
        id=pages[0].id,
        birth=agreed(lambda page: _life(page, "birth")),
        death=agreed(lambda page: _life(page, "death")),
        birth_place=agreed(lambda page: _only(_BORN, page.text)),
        death_place=agreed(lambda page: _only(_DIED, page.text)),
        nationality=agreed(_nationality),
        country=agreed(_country),
        release=agreed(_release),
        sex=agreed(_sex),
        related=_related(pages[0], own) if len({page.text for page in pages}) == 1 else {},
    )


def _related(page: Document, own: Mapping[str, Sequence[Document]]) -> dict[str, str]:
    """Names of other pages by what they are to this one, where exactly one stands where it is said."""
    found = {}
    for relation, pattern in _RELATIONS.items():
        names = {_longest(match, page.text, own) for match in pattern.finditer(page.text)}
        if len(names) == 1 and (name := names.pop()) and name != bare_title(page.title):
            found[relation] = name
    return found


def _longest(match: re.Match[str], text: str, own: Mapping[str, Sequence[Document]]) -> str:
    """The longest beginning of a matched name that has one page; empty where there is none, or another name follows."""
    group = next(index for index, value in enumerate(match.groups(), 1) if value)
    words = match[group].split(" ")
    for count in range(len(words), 1, -1):
        name = " ".join(words[:count]).rstrip(".,")
        if len(own.get(name, ())) == 1:
            behind = text[match.start(group) + len(name) :]
            return "" if _GOES_ON.match(behind) else name
    return ""


def _nationality(page: Document) -> str:
    """The adjective in the first sentence that stands for a country; empty where there is none."""
    match = _NATIONALITY.search(page.text[:_HEAD])
    return match[1] if match and match[1] in COUNTRIES else ""


def _country(page: Document) -> str:
    """The country that ends the first sentence about a place; empty where none does."""
    match = _LOCATED.search(page.text[:_HEAD])
    country = _PARTS_OF_LANDS.get(match[1], match[1]) if match else ""
    return country if country in _LANDS else ""


def _only(pattern: re.Pattern[str], text: str) -> str:
    """What ``pattern`` finds, where it finds one thing; empty otherwise."""
    found = {match.strip(". ") for match in pattern.findall(text)}
    return found.pop() if len(found) == 1 else ""


def _sex(page: Document) -> str:
    """``male`` or ``female``, whichever pronouns stand more often; empty where neither does."""
    male, female = len(_HE.findall(page.text)), len(_SHE.findall(page.text))
    return "" if male == female else "male" if male > female else "female"


def _life(page: Document, which: str) -> str:
    """The date of ``birth`` or of ``death`` with which a passage begins; empty where it has none, or is not about a life.

    A date of birth follows the word "born", or is the first thing before a dash behind which a date or a year stands that is
    as far away as a life is long. A date behind the dash alone says when somebody died and not when he or she was born.
    """
    opening = _OPENING.match(page.text)
    parts = _DASHES.split(opening[1]) if opening else [""]
    birth = re.search(_DATE, parts[0])
    if birth is None or len(parts) > 2 or re.search(r"\d|\bdied\b|\bd\.", parts[0][: birth.start()]):
        return ""
    if len(parts) == 1:
        return birth[0] if which == "birth" and "born" in parts[0][: birth.start()] else ""
    end, death = re.search(r"\b(?:1\d|20)\d\d\b", parts[1]), re.search(_DATE, parts[1])
    if end is None or not _SHORTEST_LIFE <= int(end[0]) - day_of(birth[0])[0] <= _LONGEST_LIFE:
        return ""
    return birth[0] if which == "birth" else death[0] if death else ""


def _release(page: Document) -> str:
    match = _FILM.search(page.text)
    return match[1] if match else ""
