"""Facts that rules read from pages: dates, places, nationalities, countries and who made what."""

import time

import pytest

from agentenv.core.types import Document
from agentenv.data.synthesis.pages import _FURTHER
from agentenv.data.synthesis.passage_facts import _DASHES, PageFacts, day_of, facts_of


def facts(*pages: tuple[str, str]) -> dict[str, PageFacts]:
    return dict(facts_of([Document(title, title, text) for title, text in pages]))


@pytest.mark.parametrize(
    ("text", "day"),
    [
        ("5 May 1901", (1901, 5, 5)),
        ("May 5, 1901", (1901, 5, 5)),
        ("31 December 2010", (2010, 12, 31)),
        ("1940", (1940, 0, 0)),
    ],
)
def test_a_date_is_year_month_and_day(text: str, day: tuple[int, int, int]) -> None:
    assert day_of(text) == day


@pytest.mark.parametrize(
    ("text", "born", "died"),
    [
        ("Ada was born in Ulm and died in Bonn, Germany.", "Ulm", "Bonn, Germany"),
        ("Ada (born 5 May 1901 in New York City) died on June 3, 1980 in Rome.", "New York City", "Rome"),
        ("Ada was born in Ulm. Her son was born in Bonn.", "", ""),
        ("Ada was born in May 1901 and died in December.", "", ""),
        ("Born in Chile, Ada made films.", "", ""),
    ],
)
def test_where_somebody_was_born_and_died(text: str, born: str, died: str) -> None:
    """Where the page names one place; a month is none."""
    found = facts(("Ada Stone", text))["Ada Stone"]
    assert (found.birth_place, found.death_place) == (born, died)


@pytest.mark.parametrize(
    ("text", "nationality"),
    [
        ("Moon is a 1940 French film.", "French"),
        ("Moon (born 5 May 1901) was a Welsh actress.", "Welsh"),
        ("Moon is a 1940 Western film.", ""),
        ("Moon is a 2001 Telugu film.", ""),
        ("Moon was an Archduchess by birth.", ""),
    ],
)
def test_a_nationality_is_the_adjective_of_a_country(text: str, nationality: str) -> None:
    """And none is that of a language, a genre or a title."""
    assert facts(("Moon", text))["Moon"].nationality == nationality


@pytest.mark.parametrize(
    ("text", "country"),
    [
        ("Ulmen is a small town in Ulm County, South Ulm, Germany.", "Germany"),
        ("Ulmen is a village in Devon, England.", "United Kingdom"),
        ("Ulmen is a village in Posey County, Indiana.", ""),
    ],
)
def test_a_place_lies_in_a_country(text: str, country: str) -> None:
    """A state of one is none."""
    assert facts(("Ulmen", text))["Ulmen"].country == country


@pytest.mark.parametrize(
    ("text", "related"),
    [
        ("Moon is a 1961 film directed by Ada Stone.", {"director": "Ada Stone"}),
        ("Moon is a 1961 film directed by Ada Stone and Bo Reed.", {}),
        ("Moon is a 1961 film directed by Cy Nobody.", {}),
        ("Moon is a song by American singer Ada Stone.", {"performer": "Ada Stone"}),
        (
            "Moon is a film with music by Bo Reed, directed by Ada Stone.",
            {"composer": "Bo Reed", "director": "Ada Stone"},
        ),
        (
            "Moon was the daughter of Queen Ada Stone and the wife of Bo Reed.",
            {"parent": "Ada Stone", "spouse": "Bo Reed"},
        ),
        ("Moon is a company founded in 1920 by Bo Reed.", {"founder": "Bo Reed"}),
        ("Moon is a song composed by Bo Reed.", {"composer": "Bo Reed"}),
        ("Moon is a song written by Bo Reed.", {}),
        ("Moon was the son of Ada Stone Howard and the husband of Bo Reed, 7th Earl.", {}),
    ],
)
def test_who_made_what(text: str, related: dict[str, str]) -> None:
    """Where one name that has a page stands where it is said; the longest such name is meant."""
    pages = [
        ("Ada Stone", "Ada Stone was a director."),
        ("Bo Reed (man)", "He is a man."),
        ("Ada", "A name."),
    ]
    assert facts(*pages, ("Moon", text))["Moon"].related == related


def test_pages_of_one_name_must_agree() -> None:
    pages = [("Bo Reed (man)", "He was born in Ulm."), ("Bo Reed (lad)", "His son; he was born in Bonn.")]
    found = facts(*pages)["Bo Reed"]
    assert (found.birth_place, found.sex, found.related) == ("", "male", {})


def test_long_pages_take_no_time() -> None:
    """Every rule reads in steps whose number does not grow with the square of the length."""
    words = "Born Of The " * 20_000
    for text in (
        words,
        "directed by " + words,
        "born in " + words,
        "Moon is a " + "big " * 50_000,
        "song " * 50_000,
    ):
        assert facts(("Moon", text))["Moon"].name == "Moon"


def test_a_passage_of_blanks_takes_time_in_proportion() -> None:
    """Of 200 kB of them the square took minutes."""
    started = time.process_time()
    assert _DASHES.split("a" + " " * 200_000 + "b") != []
    assert _FURTHER.sub("", "a" + " " * 200_000 + "(b) c").endswith("(b) c")
    assert time.process_time() - started < 2
