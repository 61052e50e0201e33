"""Documents as passages: where they are cut, which headings stand above them, what each file says, what is left out."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from agentenv.cli.main import main
from agentenv.retrievers.building.documents import DocumentsRead, cut, read_passages
from agentenv.retrievers.building.markdown import markdown_sections
from agentenv.retrievers.building.pdf_text import as_written
from agentenv.retrievers.storage.corpus import load_corpus


@pytest.mark.parametrize(
    ("text", "words", "passages"),
    [
        ("", 3, []),
        (" \n\n ", 3, []),
        ("One two. Three four five. Six.", 4, ["One two.", "Three four five. Six."]),
        ("One two.\n\nThree.", 9, ["One two.\nThree."]),
        ("one two three four five", 2, ["one two", "three four", "five"]),
        ("One. two three four five.", 2, ["One.", "two three", "four five."]),
        ("one\n  two\tthree", 9, ["one two three"]),
        ("東京は。大阪です。", 5, ["東京は", "大阪です"]),
        ("東京は。大阪です。\n\n京都。", 99, ["東京は。大阪です。\n京都"]),
        ("x" * 100, 2, ["x" * 80, "x" * 20]),
    ],
)
def test_where_a_text_is_cut(text: str, words: int, passages: list[str]) -> None:
    found = cut(text, words)
    assert [one.rstrip("。") for one in found] == passages


def test_no_word_is_lost_or_doubled() -> None:
    text = " ".join(f"w{n}{'.' if n % 7 == 0 else ''}" for n in range(1000))
    for words in (1, 3, 10, 100, 5000):
        passages = cut(text, words)
        assert " ".join(passages) == text
        assert max(len(one.split()) for one in passages) <= words


MARKDOWN = """---
title: ignored
---
Before any heading.
# Handbook
<!-- a note -->
Intro with a [link](https://a.b/c).
## Travel ##
Trains only.

```sh
# no heading
```
### Hotels
Cheap ones.
Food
----
Lunch.
# Annex
End.
"""


def test_the_headings_above_a_section_are_its_title() -> None:
    found = [(section.headings, section.text.strip()) for section in markdown_sections(MARKDOWN, "file")]
    assert found == [
        (("file",), "Before any heading."),
        (("Handbook",), "Intro with a link."),
        (("Handbook", "Travel"), "Trains only.\n\n```sh\n# no heading\n```"),
        (("Handbook", "Travel", "Hotels"), "Cheap ones.\nFood\n----\nLunch."),
        (("Annex",), "End."),
    ]
    (underlined,) = markdown_sections("\nFood\n----\nLunch.\n", "file")
    assert (underlined.headings, underlined.text) == (("file", "Food"), "Lunch.")


@pytest.mark.parametrize("part", ["[", "[a](", "<!--", "# ", "#", " ", "(", "---\n", "a.\n", "```\n", "=\n"])
def test_no_text_takes_the_square_of_its_length(part: str) -> None:
    text = f"# {part * 100_000}x"
    began = time.process_time()
    for section in markdown_sections(text, "file"):
        cut(section.text, 10)
    assert time.process_time() - began < 20


def test_an_image_in_a_link_is_its_text() -> None:
    (section,) = markdown_sections("See [![the badge](a.png)](https://b.c) <!-- x --> here", "file")
    assert section.text == "See the badge  here"


@pytest.mark.parametrize(
    ("text", "sections"),
    [
        (
            "# A\n````md\n```sh\n# x\n```\n````\n## B\nb",
            [("A", "````md\n```sh\n# x\n```\n````"), ("A > B", "b")],
        ),
        ("# A\n```\n~~~\n# x\n```\n## B\nb", [("A", "```\n~~~\n# x\n```"), ("A > B", "b")]),
        ("# A\n```ls``` lists\n## B\nb", [("A", "```ls``` lists"), ("A > B", "b")]),
        ("# A\n- ```\n  # x\n  ```\n## B\nb", [("A", "- ```\n  # x\n  ```"), ("A > B", "b")]),
        ("# A\n```\n- ```\n# x\n```\n## B\nb", [("A", "```\n- ```\n# x\n```"), ("A > B", "b")]),
        ("```\na\n```\n---\nb", [("file", "```\na\n```\n---\nb")]),
        ("<!--\n# hidden\n-->\n# A\na", [("A", "a")]),
        ("- one\n---\ntwo", [("file", "- one\n---\ntwo")]),
    ],
)
def test_headings_stand_outside_of_code_comments_and_lists(
    text: str, sections: list[tuple[str, str]]
) -> None:
    found = markdown_sections(text, "file")
    assert [(" > ".join(one.headings), one.text.strip()) for one in found] == sections


def test_code_stays_as_it_is_written() -> None:
    code = "```\na[0](x) <!-- y -->\n```"
    (section,) = markdown_sections(f"Call `a[0](x)` of [`a`](b.md).\n\n{code}", "file")
    assert section.text.strip() == f"Call `a[0](x)` of `a`.\n\n{code}"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("---\ntitle: x\n---\nText.", "Text."),
        ("---\n# x\ny: z\n...\nText.", "Text."),
        ("---\n---\nText.", "Text."),
        ("---\n\nFirst.\n\n---\n\nText.", "---\n\nFirst.\n\n---\n\nText."),
    ],
)
def test_front_matter_is_none_of_the_text_and_what_stands_between_rules_is(text: str, left: str) -> None:
    (section,) = markdown_sections(text, "file")
    assert section.text.strip() == left


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("10² m², ½, ™", "10² m², ½, ™"),
        ("the \ufb01rst o\ufb03ce", "the first office"),
        ("\u2f00\u2f08", "一人"),
        ("\ufee3\ufebc\ufeae", "مصر"),
        ("docu-\nment, grö-\nßer, Ge\u00ad\nschwindigkeit", "document, größer, Geschwindigkeit"),
        ("Baden-\nWürttemberg, 1990-\n2000", "Baden-\nWürttemberg, 1990-\n2000"),
        ("中国的首\n都。\nEnd", "中国的首都。\nEnd"),
        ("a\0\0b", "ab"),
    ],
)
def test_letters_of_a_pdf(text: str, written: str) -> None:
    assert as_written(text) == written


def pages_of(folder: Path, page: str) -> dict[str, str]:
    """Texts by title, of a folder with one page."""
    (folder / "page.html").write_text(page, encoding="utf-8")
    return {one.title: one.text for one in read_passages(folder, 100, DocumentsRead())}


LONG = "The main content of the page is long enough. " * 5
NAVIGATION = "<div class='sidebar'><ul><li><a href='a'>Elsewhere</a></li></ul></div>"


def test_no_section_is_taken_for_a_menu_by_the_id_that_its_heading_gives_it(tmp_path: Path) -> None:
    pytest.importorskip("trafilatura", reason="needs the documents extra")
    ids = ("menus", "footer", "comments", "related", "sidebar", "share")
    sections = "".join(
        f"<section id='{one}'><h2>On {one}<a href='#{one}'>¶</a></h2><p>{LONG}</p></section>" for one in ids
    )
    main = f"<div role='main'><section id='x'><h1>Page</h1><p>{LONG}</p>{sections}</section></div>"
    found = pages_of(tmp_path, f"<html><body>{NAVIGATION}{main}<footer>Made by us</footer></body></html>")
    assert list(found) == ["Page", *(f"Page > On {one}" for one in ids)]
    assert "Elsewhere" not in str(found)
    assert "Made by" not in str(found)


def test_a_plain_page_keeps_its_headings_lists_tables_and_code(tmp_path: Path) -> None:
    pytest.importorskip("trafilatura", reason="needs the documents extra")
    body = (
        f"<h1>Page</h1><p>{LONG}</p><h2>Part</h2><p>{LONG}</p><ul><li>one<ul><li>inner</li></ul></li></ul>"
        "<table><tr><td>cell</td></tr></table><pre><code>def f(x):\n    return a[0](x)\n</code></pre>"
    )
    found = pages_of(tmp_path, f"<html><body>{NAVIGATION}{body}</body></html>")
    assert list(found) == ["Page", "Page > Part"]
    for part in ("one", "inner", "cell", "a[0](x)"):
        assert part in found["Page > Part"]
    assert "Elsewhere" not in str(found)


def test_what_the_walk_cannot_enter_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Text.")
    (tmp_path / "wide.txt").write_bytes("Text.".encode("utf-16-le"))
    (tmp_path / "elsewhere").symlink_to(tmp_path)
    (tmp_path / "broken.txt").symlink_to(tmp_path / "none")
    done = DocumentsRead()
    assert [one.id for one in read_passages(tmp_path, 9, done)] == ["a.txt#1"]
    assert done.left_out["it is a link that leads to no file"] == ["broken.txt", "elsewhere"]
    assert [names for reason, names in done.left_out.items() if "null characters" in reason] == [["wide.txt"]]


def test_a_folder_that_cannot_be_listed_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Text.")
    (tmp_path / "closed").mkdir(mode=0)
    if os.access(tmp_path / "closed", os.R_OK):
        pytest.skip("this user may list every folder")
    done = DocumentsRead()
    assert len(list(read_passages(tmp_path, 9, done))) == 1
    assert done.left_out == {"it cannot be listed (Permission denied)": ["closed"]}


def pdf_of(text: str) -> bytes:
    """A PDF of one page with ``text``, written by hand."""
    stream = f"BT /F1 12 Tf 20 100 Td ({text}) Tj ET".encode()
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 400 200] /Contents 4 0 R /Resources << /Font << /F1 5 0 R >> >> >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    out, offsets = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        offsets.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    head = b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    tail = b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF" % (len(objects) + 1, len(out))
    return out + head + table + tail


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "documents"
    (found / "more").mkdir(parents=True)
    (found / ".git").mkdir()
    (found / ".git" / "config.txt").write_text("hidden")
    (found / "a.txt").write_text("\ufeffPlain text. Of two sentences.", encoding="utf-8")
    (found / "b.md").write_text("# Title\nText of it.")
    (found / "more" / "c.HTML").write_text(
        "<html><head><title>Page</title></head><body><nav>Home</nav><article><h2>Part</h2>"
        f"<p>{'The main content of the page is long enough. ' * 5}</p></article></body></html>"
    )
    (found / "more" / "d.pdf").write_bytes(pdf_of("A page of a report."))
    (found / "e.docx").write_bytes(b"PK")
    (found / "f.txt").write_bytes(b"\xff\xfe\x00")
    (found / "g.pdf").write_bytes(b"no PDF")
    (found / "h.md").write_text("")
    return found


def test_every_kind_of_file_is_read_and_what_is_not_is_named(folder: Path) -> None:
    pytest.importorskip("trafilatura", reason="needs the documents extra")
    done = DocumentsRead()
    found = {one.id: (one.title, one.text) for one in read_passages(folder, 100, done)}
    assert found["a.txt#1"] == ("a", "Plain text. Of two sentences.")
    assert found["b.md#1"] == ("Title", "Text of it.")
    assert found["more/c.HTML#1"][0] == "Page > Part"
    assert "main content" in found["more/c.HTML#1"][1]
    assert "Home" not in found["more/c.HTML#1"][1]
    assert found["more/d.pdf#1"] == ("d", "A page of a report.")
    assert (done.documents, done.passages, len(found)) == (4, 4, 4)
    reasons = {name: reason for reason, names in done.left_out.items() for name in names}
    assert sorted(reasons) == ["e.docx", "f.txt", "g.pdf", "h.md"]
    assert reasons["h.md"] == "it holds no text"
    assert reasons["f.txt"].startswith("it cannot be read ('utf-8' codec")


def test_the_command_writes_a_corpus_that_is_searched(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("trafilatura", reason="needs the documents extra")
    out = folder / "corpus.jsonl"
    assert main(["retriever", "passages", str(folder), "--out", str(out), "--words", "3"]) == 0
    shown = capsys.readouterr()
    assert "documents: " in shown.out
    assert "Left out: e.docx: files of the kind .docx are not read" in shown.out
    assert "invalid pdf header" not in shown.err
    corpus = load_corpus(out)
    assert [document.id for document in corpus][:2] == ["a.txt#1", "a.txt#2"]
    assert max(len(document.text.split()) for document in corpus) <= 3
    assert (
        main(["retriever", "build", str(out), "--out", str(tmp_path / "index"), "--index", "bm25", "--json"])
        == 0
    )
    assert json.loads(capsys.readouterr().out)["documents"] == len(corpus)


def refused(capsys: pytest.CaptureFixture[str], *words: Any) -> str:
    assert main(["retriever", "passages", *map(str, words)]) == 1
    return capsys.readouterr().err.splitlines()[-1]


def test_what_gives_no_corpus_is_one_sentence_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "corpus.jsonl"
    assert "is no file and no folder" in refused(capsys, tmp_path / "none", "--out", out)
    (tmp_path / "empty").mkdir()
    assert f"no document can be read in {tmp_path / 'empty'}" in refused(
        capsys, tmp_path / "empty", "--out", out
    )
    (tmp_path / "x.docx").write_bytes(b"PK")
    assert "x.docx: files of the kind .docx are not read" in refused(
        capsys, tmp_path / "x.docx", "--out", out
    )
    (tmp_path / "x.txt").write_text("Text.")
    assert "words" in refused(capsys, tmp_path / "x.txt", "--out", out, "--words", "0")
    assert not out.exists()
    out.write_text("mine")
    assert "exists already" in refused(capsys, tmp_path / "x.txt", "--out", out)
    assert out.read_text() == "mine"
