"""The language of a FictionalWorld, as data: relations, sentences, questions, noun phrases, search words.

``{s}`` stands for the subject, ``{v}`` for the value, ``{a}`` and ``{b}`` for the two sides of a question.
The first form of each tuple is the plainest; ``WorldConfig.paraphrase`` says how many are in use. No
sentence exceeds 12 words.
"""

from dataclasses import dataclass

TYPES = ("person", "organisation", "place", "work", "event")

OCCUPATIONS = (
    "painter",
    "baker",
    "singer",
    "farmer",
    "doctor",
    "sailor",
    "teacher",
    "lawyer",
    "potter",
    "weaver",
    "dancer",
    "poet",
    "judge",
    "smith",
    "miner",
)
FIELDS = (
    "botany",
    "music",
    "history",
    "medicine",
    "law",
    "poetry",
    "geology",
    "chess",
    "weaving",
    "trade",
    "logic",
    "mining",
    "sailing",
    "optics",
    "grammar",
)


@dataclass(frozen=True)
class Relation:
    """One kind of fact: how it is stated, asked, nested in other questions and searched for.

    ``kind`` says what a value is: a type of entity, "region", "occupation" or "field" (an index into a table
    of names), or "number" (the value itself).
    """

    name: str
    kind: str
    sentences: tuple[str, ...]
    questions: tuple[str, ...] = ()
    nouns: tuple[str, ...] = ()
    search: str = ""


BIRTHPLACE = Relation(
    "birthplace",
    "place",
    ("{s} was born in {v}.", "{s} was born in the town of {v}.", "The birthplace of {s} is {v}."),
    ("Where was {s} born?", "In which town was {s} born?", "What is the birthplace of {s}?"),
    ("the birthplace of {s}", "the town where {s} was born"),
    "{s} born in the town of",
)
BIRTH_YEAR = Relation(
    "birth_year",
    "number",
    ("{s} was born in the year {v}.", "The birth year of {s} is {v}.", "The year {v} saw the birth of {s}."),
    ("When was {s} born?", "In which year was {s} born?", "What is the birth year of {s}?"),
    search="{s} birth year",
)
OCCUPATION = Relation(
    "occupation",
    "occupation",
    ("{s} is a {v}.", "{s} works as a {v}.", "The occupation of {s} is {v}."),
    ("What is the occupation of {s}?", "As what does {s} work?", "Which occupation does {s} have?"),
    search="{s} occupation",
)
EMPLOYER = Relation(
    "employer",
    "organisation",
    ("{s} is employed by {v}.", "The employer of {s} is {v}.", "{s} is employed by the organisation {v}."),
    (
        "Which organisation does {s} work for?",
        "Which organisation employs {s}?",
        "What is the employer of {s}?",
    ),
    ("the organisation that {s} works for", "the employer of {s}"),
    "{s} is employed by",
)
MENTOR = Relation(
    "mentor",
    "person",
    ("{s} was taught by {v}.", "The mentor of {s} was {v}.", "{s} learned from {v}."),
    ("Who taught {s}?", "Who was the mentor of {s}?", "From whom did {s} learn?"),
    ("the mentor of {s}", "the person who taught {s}"),
    "{s} was taught by",
)
SPOUSE = Relation(
    "spouse",
    "person",
    ("{s} is married to {v}.", "The spouse of {s} is {v}.", "{s} has married {v}."),
    ("Who is married to {s}?", "Who is the spouse of {s}?", "To whom is {s} married?"),
    ("the spouse of {s}", "the person married to {s}"),
    "{s} married to",
)
WORKS = Relation(  # the value is how many; the sentence names them all
    "works",
    "number",
    ("{s} wrote {v}.", "{s} is the author of {v}.", "From {s} we have {v}."),
    ("How many works did {s} write?", "What number of works did {s} write?", "How many works are by {s}?"),
    search="{s} wrote",
)
SEAT = Relation(
    "seat",
    "place",
    ("{s} is based in {v}.", "{s} has its seat in {v}.", "The seat of {s} is {v}."),
    ("Where is {s} based?", "In which town does {s} have its seat?", "What is the seat of {s}?"),
    ("the seat of {s}", "the town where {s} is based"),
    "{s} based in",
)
FOUNDER = Relation(
    "founder",
    "person",
    ("{s} was founded by {v}.", "{v} founded {s}.", "The founder of {s} was {v}."),
    ("Who founded {s}?", "Who was the founder of {s}?", "By whom was {s} founded?"),
    ("the founder of {s}", "the person who founded {s}"),
    "{s} founder",
)
FOUNDING_YEAR = Relation(
    "founding_year",
    "number",
    ("{s} was founded in {v}.", "{s} dates from {v}.", "The founding year of {s} is {v}."),
    ("When was {s} founded?", "In which year was {s} founded?", "What is the founding year of {s}?"),
    search="{s} founding year",
)
FIELD = Relation(
    "field",
    "field",
    ("{s} studies {v}.", "{s} works in the field of {v}.", "The field of {s} is {v}."),
    ("What does {s} study?", "What is the field of {s}?", "In which field does {s} work?"),
    search="{s} studies",
)
SUCCESSOR = Relation(  # {a} is the first head, {v} the next
    "successor",
    "person",
    ("{s} was led by {a}, then by {v}.", "{a} led {s} before {v}.", "After {a}, {v} led {s}."),
    (
        "Who led {a} directly after {b}?",
        "Who was the head of {a} directly after {b}?",
        "Who followed {b} as head of {a}?",
    ),
    search="{s} led after",
)
REGION = Relation(
    "region",
    "region",
    (
        "{s} lies in the region of {v}.",
        "{s} belongs to the region of {v}.",
        "The region of {s} is {v}.",
    ),
    ("In which region does {s} lie?", "To which region does {s} belong?", "What is the region of {s}?"),
    search="{s} region",
)
MAYOR = Relation(
    "mayor",
    "person",
    ("The mayor of {s} is {v}.", "{v} is the mayor of {s}.", "{s} has {v} as its mayor."),
    ("Who is the mayor of {s}?", "Who serves {s} as mayor?", "Whom does {s} have as its mayor?"),
    ("the mayor of {s}", "the person who serves {s} as mayor"),
    "{s} mayor",
)
POPULATION = Relation(
    "population",
    "number",
    ("{s} has {v} people.", "The population of {s} is {v}.", "{v} people live in {s}."),
    (
        "How many people live in {s}?",
        "What is the population of {s}?",
        "How many people does {s} have?",
    ),
    search="{s} population",
)
AUTHOR = Relation(
    "author",
    "person",
    ("{s} was written by {v}.", "{v} wrote {s}.", "The author of {s} is {v}."),
    ("Who wrote {s}?", "Who is the author of {s}?", "By whom was {s} written?"),
    ("the author of {s}", "the person who wrote {s}"),
    "{s} author",
)
PUBLICATION_YEAR = Relation(
    "publication_year",
    "number",
    ("{s} appeared in {v}.", "{s} was published in {v}.", "The publication year of {s} is {v}."),
    ("When did {s} appear?", "When was {s} published?", "What is the publication year of {s}?"),
    search="{s} publication year",
)
SUBJECT = Relation(
    "subject",
    "place",
    ("{s} is about {v}.", "{s} tells of {v}.", "The subject of {s} is {v}."),
    ("Which town is {s} about?", "Of which town does {s} tell?", "What is the subject of {s}?"),
    ("the town that {s} is about", "the subject of {s}"),
    "{s} tells of",
)
PAGES = Relation(
    "pages",
    "number",
    ("{s} has {v} pages.", "{s} is {v} pages long.", "The length of {s} is {v} pages."),
    ("How many pages does {s} have?", "How many pages long is {s}?", "What is the number of pages of {s}?"),
    search="{s} pages",
)
VENUE = Relation(
    "venue",
    "place",
    ("{s} took place in {v}.", "{s} was held in {v}.", "The venue of {s} was {v}."),
    ("Where did {s} take place?", "Where was {s} held?", "What was the venue of {s}?"),
    ("the town where {s} took place", "the venue of {s}"),
    "{s} venue",
)
EVENT_YEAR = Relation(
    "event_year",
    "number",
    ("{s} took place in the year {v}.", "{s} was held in the year {v}.", "The year of {s} was {v}."),
    ("When did {s} take place?", "When was {s} held?", "In which year did {s} take place?"),
    search="{s} year",
)
WINNER = Relation(
    "winner",
    "person",
    ("{s} was won by {v}.", "{v} won {s}.", "The winner of {s} was {v}."),
    ("Who won {s}?", "Who was the winner of {s}?", "By whom was {s} won?"),
    ("the winner of {s}", "the person who won {s}"),
    "{s} winner",
)
GUESTS = Relation(
    "guests",
    "number",
    ("{s} had {v} guests.", "{v} guests came to {s}.", "The number of guests of {s} was {v}."),
    (
        "How many guests did {s} have?",
        "How many guests came to {s}?",
        "What was the number of guests of {s}?",
    ),
    search="{s} guests",
)

RELATIONS: dict[str, tuple[Relation, ...]] = {
    "person": (BIRTHPLACE, BIRTH_YEAR, OCCUPATION, EMPLOYER, MENTOR, SPOUSE, WORKS),
    "organisation": (SEAT, FOUNDER, FOUNDING_YEAR, FIELD, SUCCESSOR),
    "place": (REGION, MAYOR, POPULATION, FOUNDING_YEAR),
    "work": (AUTHOR, PUBLICATION_YEAR, SUBJECT, PAGES),
    "event": (VENUE, EVENT_YEAR, WINNER, GUESTS),
}


@dataclass(frozen=True)
class Comparison:
    """Which of two or more entities has the smallest (or, with ``greatest``, the greatest) value."""

    type: str
    relation: Relation
    greatest: bool
    questions: tuple[str, ...]
    """Of two entities, ``{a}`` and ``{b}``."""
    superlative: str
    """Of more: ``{a}`` is a list of all but the last, with commas."""


@dataclass(frozen=True)
class Intersection:
    """The one entity whose ``first`` fact is ``{a}`` and whose ``second`` fact is ``{b}``."""

    type: str
    first: Relation
    second: Relation
    questions: tuple[str, ...]
    search: str


@dataclass(frozen=True)
class Listing:
    """The name and the value of each of some entities, in the order of the question; the values alone are right as well."""

    type: str
    relation: Relation
    question: str
    """``{a}`` is a list of all entities but the last, with commas; ``{b}`` is the last."""


@dataclass(frozen=True)
class Sameness:
    """Whether two entities have the same value."""

    type: str
    relation: Relation
    questions: tuple[str, ...]


_PLACES = ("Which town is older, {a} or {b}?", "Which town was founded earlier, {a} or {b}?")
COMPARISONS = (
    Comparison(
        "person",
        BIRTH_YEAR,
        False,
        ("Who was born earlier, {a} or {b}?", "Who is older, {a} or {b}?"),
        "Who was born first, {a} or {b}?",
    ),
    Comparison(
        "person",
        BIRTH_YEAR,
        True,
        ("Who was born later, {a} or {b}?", "Who is younger, {a} or {b}?"),
        "Who was born last, {a} or {b}?",
    ),
    Comparison(
        "organisation",
        FOUNDING_YEAR,
        False,
        ("Which organisation was founded earlier, {a} or {b}?",),
        "Which organisation was founded first, {a} or {b}?",
    ),
    Comparison(
        "organisation",
        FOUNDING_YEAR,
        True,
        ("Which organisation was founded later, {a} or {b}?",),
        "Which organisation was founded last, {a} or {b}?",
    ),
    Comparison("place", FOUNDING_YEAR, False, _PLACES, "Which town was founded first, {a} or {b}?"),
    Comparison(
        "place",
        POPULATION,
        True,
        ("Which town has more people, {a} or {b}?",),
        "Which town has the most people, {a} or {b}?",
    ),
    Comparison(
        "work",
        PUBLICATION_YEAR,
        False,
        ("Which work appeared earlier, {a} or {b}?",),
        "Which work appeared first, {a} or {b}?",
    ),
    Comparison(
        "work",
        PAGES,
        True,
        ("Which work has more pages, {a} or {b}?", "Which work is longer, {a} or {b}?"),
        "Which work has the most pages, {a} or {b}?",
    ),
    Comparison(
        "event",
        EVENT_YEAR,
        False,
        ("Which event took place earlier, {a} or {b}?",),
        "Which event took place first, {a} or {b}?",
    ),
    Comparison(
        "event",
        GUESTS,
        True,
        ("Which event had more guests, {a} or {b}?",),
        "Which event had the most guests, {a} or {b}?",
    ),
)
INTERSECTIONS = (
    Intersection(
        "person",
        BIRTHPLACE,
        EMPLOYER,
        ("Which person born in {a} works for {b}?",),
        "born in {a} works for {b}",
    ),
    Intersection(
        "work", SUBJECT, AUTHOR, ("Which work about {a} is by {b}?",), "work about {a} written by {b}"
    ),
    Intersection(
        "organisation",
        SEAT,
        FOUNDER,
        ("Which organisation based in {a} was founded by {b}?",),
        "based in {a} founded by {b}",
    ),
    Intersection(
        "event", VENUE, WINNER, ("Which event held in {a} was won by {b}?",), "held in {a} won by {b}"
    ),
)
LISTINGS = (
    Listing("person", BIRTHPLACE, "Where were {a} and {b} born?"),
    Listing("person", OCCUPATION, "What are the occupations of {a} and {b}?"),
    Listing("person", EMPLOYER, "Which organisations do {a} and {b} work for?"),
    Listing("organisation", SEAT, "In which towns are {a} and {b} based?"),
    Listing("organisation", FIELD, "What do {a} and {b} study?"),
    Listing("place", REGION, "In which regions do {a} and {b} lie?"),
    Listing("place", MAYOR, "Who are the mayors of {a} and {b}?"),
    Listing("work", AUTHOR, "Who are the authors of {a} and {b}?"),
    Listing("work", SUBJECT, "What are {a} and {b} about?"),
    Listing("event", VENUE, "Where did {a} and {b} take place?"),
    Listing("event", WINNER, "Who are the winners of {a} and {b}?"),
)
SAMENESS = (
    Sameness("person", BIRTHPLACE, ("Were {a} and {b} born in the same town?",)),
    Sameness("person", EMPLOYER, ("Do {a} and {b} work for the same organisation?",)),
    Sameness("person", OCCUPATION, ("Do {a} and {b} have the same occupation?",)),
    Sameness("organisation", SEAT, ("Are {a} and {b} based in the same town?",)),
    Sameness("place", REGION, ("Do {a} and {b} lie in the same region?",)),
    Sameness("work", AUTHOR, ("Were {a} and {b} written by the same person?",)),
    Sameness("event", VENUE, ("Were {a} and {b} held in the same town?",)),
)
