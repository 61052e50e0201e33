"""Published pages: when they change, and which earlier ones are kept."""

import json
from pathlib import Path

import pytest

from agentenv.cli.main import main
from agentenv.trainers.lab.lab import load_experiment
from agentenv.trainers.lab.lab_page import write_page
from agentenv.trainers.lab.results_table import publish, read_pages


def test_published_pages_change_only_when_that_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A page of another design that stood there is kept, and the table is written with the new one."""
    pages, out = tmp_path / "pages", tmp_path / "runs"
    words = ["lab", "run", "tree", "--runs", "0", "--out", str(out), "--pages", str(pages), "--json"]
    assert main(words) == 0
    assert not pages.exists()
    assert (out / "tree" / "tree.md").is_file()
    assert main([*words, "--publish"]) == 0
    made = json.loads((pages / "tree.json").read_text())
    assert "[BranchGRPO](tree.md)" in (pages / "results.md").read_text()
    assert main([*words, "--publish"]) == 0
    assert not (pages / "earlier").exists()
    made["plan"]["per_interim"] = 3
    (pages / "tree.json").write_text(json.dumps(made))
    assert main([*words, "--publish"]) == 0
    assert json.loads((pages / "earlier" / "tree-1.json").read_text()) == made
    assert main([*words, "--publish"]) == 0
    assert not (pages / "earlier" / "tree-2.json").exists()
    expected = made | {"plan": json.loads((pages / "tree.json").read_text())["plan"], "expects": []}
    (pages / "tree.json").write_text(json.dumps(expected))
    assert main([*words, "--publish"]) == 0
    assert json.loads((pages / "earlier" / "tree-2.json").read_text()) == expected
    capsys.readouterr()
    assert main(["lab", "list", "--out", str(out), "--pages", str(pages), "--json"]) == 0
    decided = json.loads(capsys.readouterr().out)["tree"]["decided"]
    assert (decided["verdict"], decided["tests"], decided["seeds"]) == ("undecided", ["AdaStop"], [0, 0])


@pytest.mark.parametrize(
    ("before", "now", "kept"),
    [
        (None, {"weights of hf:a": "1"}, True),
        ({"weights of hf:a": "1"}, {"weights of hf:a": "2"}, True),
        ({"weights of hf:a": "1"}, {"weights of hf:a": "1", "configuration of b": "3"}, False),
    ],
)
def test_a_page_of_runs_that_stood_on_something_else_is_kept(
    before: dict[str, str] | None, now: dict[str, str], kept: bool, tmp_path: Path
) -> None:
    """Runs of an arm that had not begun before belong to the same comparison."""
    made, pages = tmp_path / "runs", tmp_path / "pages"
    figures = write_page("tree", load_experiment("tree"), made)
    for folder, held in ((pages, before), (made, now)):
        folder.mkdir(exist_ok=True)
        (folder / "tree.json").write_text(json.dumps(figures | {"stands_on": held}))
    publish("tree", made, pages)
    assert (pages / "earlier" / "tree-1.json").is_file() is kept
    assert read_pages(pages)["tree"]["stands_on"] == now
