"""Documents are found by id and by the title in a page's address."""

import pytest

from agentenv.core.types import Document
from agentenv.retrievers.service.pages import Pages, title_in
from agentenv.retrievers.storage.corpus import Corpus

PARTS = [
    Document("1", "Herring", "A fish."),
    Document("https://fish.example/cod", "Cod", "Another fish."),
    Document("3", "Herring", "It is smoked."),
    Document("4", "", "No title."),
    Document("5", "São Tomé", "An island."),
]


@pytest.mark.parametrize(
    ("url", "title"),
    [
        ("https://en.wikipedia.org/wiki/Orla_Venn", "Orla Venn"),
        ("https://en.wikipedia.org/wiki/AC/DC#History", "AC/DC"),
        ("http://wiki/index.php/Orla_Venn", "Orla Venn"),
        ("http://wiki/index.php?title=Orla_Venn&oldid=3", "Orla Venn"),
        ("https://pt.wikipedia.org/wiki/S%C3%A3o_Tom%C3%A9", "São Tomé"),
        ("https://elsewhere.example/page", ""),
        ("http://[bad", ""),
        ("", ""),
    ],
)
def test_titles_in_addresses(url: str, title: str) -> None:
    assert title_in(url) == title


def test_a_page_is_all_documents_of_its_title_in_order() -> None:
    pages = Pages(Corpus(PARTS))
    assert [page.id for page in pages.by_url("https://en.wikipedia.org/wiki/herring")] == ["1", "3"]
    assert [page.id for page in pages.by_url("https://pt.wikipedia.org/wiki/S%C3%A3o_Tom%C3%A9")] == ["5"]
    assert [page.id for page in pages.by_url("https://fish.example/cod")] == ["https://fish.example/cod"]
    for nothing in (
        "https://en.wikipedia.org/wiki/Halibut",
        "https://elsewhere.example/page",
        "",
        "http://[bad",
    ):
        assert pages.by_url(nothing) == []


def test_ids() -> None:
    pages = Pages(Corpus(PARTS))
    assert pages.by_id("3") == [PARTS[2]]
    assert pages.by_id("33") == []
