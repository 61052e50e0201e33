"""Suites: what a file may say, means over sets by hand, two suites against each other, one page for all."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentenv.cli.main import main
from agentenv.core.types import Document
from agentenv.data.world import WorldConfig, write_world
from agentenv.errors import AgentEnvError, ConfigurationError, UnknownName
from agentenv.evaluation.benchmark import BenchmarkParts
from agentenv.evaluation.compare import compare_suites
from agentenv.evaluation.records import EpisodeRecord
from agentenv.evaluation.report.report import write_report
from agentenv.evaluation.suite import combine, make_suite, read_suite, summarize_suite
from agentenv.policies.scripted import ScriptedPolicy
from agentenv.progress import SilentDisplay
from agentenv.retrievers.fakes import InMemoryRetriever

Maker = Callable[..., EpisodeRecord]
DEFAULTS: dict[str, Any] = {"policy": "tiny", "scorers": ("em_squad",), "limit": 7}


def read(tmp_path: Path, text: str) -> dict[str, Any]:
    (tmp_path / "suite.toml").write_text(text)
    return dict(read_suite(tmp_path / "suite.toml", DEFAULTS).parts)


def test_a_table_names_its_set_and_inherits_from_above_and_from_the_command(tmp_path: Path) -> None:
    parts = read(
        tmp_path,
        'retriever = "bm25"\nscorer = ["cem", "f1_squad"]\n[hotpotqa]\n[small]\ndataset = "nq"\nlimit = 3\ndata = "d"\n',
    )
    assert list(parts) == ["hotpotqa", "small"]
    assert (parts["hotpotqa"].dataset, parts["hotpotqa"].limit, parts["hotpotqa"].retriever) == (
        "hotpotqa",
        7,
        "bm25",
    )
    assert (parts["small"].dataset, parts["small"].limit, parts["small"].data) == ("nq", 3, Path("d"))
    assert parts["small"].scorers == ("cem", "f1_squad")
    assert parts["small"].policy == "tiny"


@pytest.mark.parametrize(
    ("text", "error", "named"),
    [
        ("[hotpotqa", ConfigurationError, r"suite\.toml"),
        ("limit = 3\n", ConfigurationError, r"suite\.toml"),
        ("[hotpotqa]\nlimits = 3\n", ConfigurationError, "hotpotqa.*'limits'"),
        ('[hotpotqa]\nlimit = "3"\n', ConfigurationError, "hotpotqa.*limit.*'3'"),
        ("[hotpotqa]\nscorer = []\n", ConfigurationError, r"scorer.*\[\]"),
        ('[hotpotqa]\nscorer = "cem"\n', ConfigurationError, "scorer.*'cem'"),
        ('["../hotpotqa"]\ndataset = "hotpotqa"\n', ConfigurationError, "'../hotpotqa'"),
        ('[""]\ndataset = "hotpotqa"\n', ConfigurationError, r"suite\.toml.*''"),
        ("[hotpotqa]\nconcurrency = 0\n", ConfigurationError, "concurrency.*0"),
        ("[hotpotqa]\nseed = -1\n", ConfigurationError, "seed.*-1"),
        ("[hotpot]\n", UnknownName, "'hotpotqa'"),
        ('[nq]\nscorer = ["cme"]\n', UnknownName, "'cem'"),
    ],
)
def test_a_mistake_in_the_file_is_one_sentence(
    tmp_path: Path, text: str, error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named):
        read(tmp_path, text)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ('policy = "tinny"', "tinny"),
        ('policy = "hf:/nowhere/at/all"', "/nowhere/at/all"),
        ('policy = "openai:m@http://h/v1#retrys=1"', "retrys"),
        ('retriever = "fais:x"', "fais"),
        ('split = "devv"', "devv"),
        ('scorer = ["em_squat"]', "em_squat"),
        ('env = "agentenv/LocalSerch-v0"', "LocalSerch"),
    ],
)
def test_a_name_in_the_last_table_is_checked_before_the_first_is_played(
    line: str, name: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=name):
        read(tmp_path, f"[nq]\n[hotpotqa]\n{line}\n")


def test_a_suite_may_leave_the_bounds_to_the_policy(tmp_path: Path) -> None:
    table = '[nq]\npolicy = "openai:m@http://h/v1"\n'
    assert read(tmp_path, f"{table}[squad]\n")["nq"].bounds is False
    assert read(tmp_path, f"[squad]\n{table}")["squad"].bounds is True
    assert read(tmp_path, f"{table}bounds = true\n")["nq"].bounds is True


def test_macro_and_micro_means_by_hand() -> None:
    """Means 1/2 of 4 and 1 of 2 questions: macro 3/4, micro 4/6.

    Squared errors: 4 * (1/4) / (4 * 3) = 1/12, and for the set without spread (3/4)(1/4)/4 = 3/64; the macro error is
    sqrt(1/12 + 3/64) / 2 = .1804. Welch: (1/12 + 3/64)^2 / ((1/12)^2 / 3 + (3/64)^2) = 3.7575 degrees of freedom; the
    interval is 3/4 -+ 2.8486 * .1804, cut at 1.
    """
    found = combine([[1, 1, 0, 0], [1, 1]])
    assert found["macro"]["mean"] == 0.75
    assert found["macro"]["ci95"] == pytest.approx([0.75 - 2.848554 * 0.180422, 1.0], abs=1e-4)
    assert found["macro"]["sets"] == 2
    assert (found["micro"]["mean"], found["micro"]["n"]) == (pytest.approx(4 / 6), 6)
    assert combine([]) == {
        "macro": {"mean": None, "ci95": None, "sets": 0},
        "micro": {"mean": None, "ci95": None, "n": 0},
    }


def test_means_over_sets_count_passages_where_questions_share_them() -> None:
    """Two passages of two equal answers: the error is that of two questions, sqrt(2 * 2) / 4 = 1/2, halved by two sets.

    A set that is all right on one passage is worth one question: guess 2/3, squared error (2/9) / 3 = 2/27.
    """
    sets = [[1, 1, 0, 0], [1, 1]]
    found = combine(sets, [["a", "a", "b", "b"], ["a", "a"]])
    assert found["macro"]["mean"] == 0.75
    # Both sets are worth two questions at most: their macro interval is all of [0, 1].
    assert found["macro"]["ci95"] == [0.0, 1.0]
    many = combine([[1, 1, 0, 0] * 250, [1, 1] * 500], [[i // 2 for i in range(1000)], range(1000)])
    half = 1.959964 * (0.25 / 499 + (1001 / 1002) * (1 / 1002) / 1002) ** 0.5 / 2
    assert many["macro"]["ci95"] == pytest.approx([0.75 - half, 0.75 + half], abs=1e-5)
    narrow, wide = combine(sets)["micro"]["ci95"], found["micro"]["ci95"]  # passages of two sets are not one
    assert wide[0] < narrow[0]
    assert wide[1] > narrow[1]


def suite(
    folder: Path, record: Maker, write_run: Callable[..., None], right: dict[str, set[int]], n: int = 12
) -> Path:
    """Each set has ``n`` questions, and those in ``right`` are answered right."""
    for name, hits in right.items():
        rows = [record(f"{name}{i}", "Paris" if i in hits else "Rome") for i in range(n)]
        found = {"index_recall": {}, "answer_in_corpus": {"share": None, "n": 0}}
        write_run(folder / name, rows, ("em_squad", "f1_squad"), dataset=name)
        path = folder / name / "results.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | found))
    summarize_suite(folder, list(right))
    return folder


def test_a_folder_takes_the_same_suite_again_and_no_other(
    tmp_path: Path, record: Maker, write_run: Callable[..., None]
) -> None:
    """The same one gets as far as its first set, whose folder is not of this evaluation; another one is refused whole."""
    folder = suite(tmp_path / "a", record, write_run, {"hotpotqa": {0}, "musique": {0}})
    held = (folder / "suite.json").read_bytes()
    for second, refused in (("musique", r"^hotpotqa: "), ("nq", r"'hotpotqa', 'musique'.*'hotpotqa', 'nq'")):
        (tmp_path / "suite.toml").write_text(f"[hotpotqa]\n[{second}]\n")
        asked = read_suite(tmp_path / "suite.toml", DEFAULTS | {"data": tmp_path})
        with pytest.raises(AgentEnvError, match=refused):
            asked.run(folder, lambda name: SilentDisplay())
    assert (folder / "suite.json").read_bytes() == held
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "report.html").write_text("mine")
    with pytest.raises(ConfigurationError, match=r"own holds report\.html"):
        asked.run(tmp_path / "own", lambda name: SilentDisplay())


@pytest.fixture
def pair(tmp_path: Path, record: Maker, write_run: Callable[..., None]) -> tuple[Path, Path]:
    """B is better on x by 8 questions and on y by 1; on z both are the same."""
    a = suite(tmp_path / "a", record, write_run, {"x": {0}, "y": {0}, "z": {0, 1}})
    b = suite(tmp_path / "b", record, write_run, {"x": set(range(9)), "y": {0, 1}, "z": {0, 1}})
    return a, b


def test_two_suites_set_by_set_with_holm(pair: tuple[Path, Path]) -> None:
    """McNemar: x 2/2^8, y 1, z 1. Holm over three sets: 3 * 2/256, then 1 and 1."""
    found = compare_suites(*pair)
    rows = {name: part["scores"]["em_squad"] for name, part in found["sets"].items()}
    assert [rows[name]["p_mcnemar"] for name in "xyz"] == [2 / 256, 1.0, 1.0]
    assert [rows[name]["p_mcnemar_holm"] for name in "xyz"] == [6 / 256, 1.0, 1.0]
    assert all(row["p_bootstrap_holm"] >= row["p_bootstrap"] for row in rows.values())
    assert "p_mcnemar_holm" not in found["sets"]["x"]["scores"]["f1_squad"]
    assert found["macro"]["em_squad"] == pytest.approx((8 + 1 + 0) / 36)


def test_only_suites_of_the_same_sets_compare(
    pair: tuple[Path, Path], tmp_path: Path, record: Maker, write_run: Callable[..., None]
) -> None:
    other = suite(tmp_path / "c", record, write_run, {"x": {0}})
    with pytest.raises(ConfigurationError, match=r"\['x', 'y', 'z'\].*\['x'\]"):
        compare_suites(pair[0], other)
    with pytest.raises(ConfigurationError, match=r"/a.*/x"):
        write_report(pair[0], pair[1] / "x")


def test_the_commands_know_a_suite(pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *map(str, pair), "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)["sets"]) == ["x", "y", "z"]
    assert main(["compare", *map(str, pair)]) == 0
    assert "em_squad: mean difference over sets +0.250" in capsys.readouterr().out
    assert main(["rescore", str(pair[0]), "--scorer", "cem", "--json"]) == 0
    rescored = json.loads(capsys.readouterr().out)
    assert (
        rescored["scores"]["cem"]["micro"]["mean"]
        == rescored["scores"]["em_squad"]["micro"]["mean"]
        == 4 / 36
    )
    assert "cem" in json.loads((pair[0] / "y" / "results.json").read_text())["scores"]
    assert main(["report", str(pair[1]), "--against", str(pair[0])]) == 0


def test_the_page_of_a_suite(pair: tuple[Path, Path]) -> None:
    pytest.importorskip("jinja2", reason="needs the extra 'report'")
    text = write_report(pair[1], pair[0]).read_text("utf-8")
    summary = json.loads((pair[1] / "suite.json").read_text())
    for kind in ("macro", "micro"):
        mean = summary["scores"]["em_squad"][kind]
        assert f"<td>{mean['mean']:.3f}</td><td>{mean['ci95'][0]:.3f} to {mean['ci95'][1]:.3f}</td>" in text
    assert '<tr><th scope="row">x</th><td>12</td><td>0.083</td><td>0.750</td><td>+0.667</td>' in text
    assert "<td>0.0078</td><td>0.023</td>" in text  # 2/256 and 6/256


def test_a_macro_mean_of_rewards_lies_in_its_interval() -> None:
    macro = combine([[-2.0, -1.0, -3.0], [-1.0, 0.0, -2.0]])["macro"]
    assert macro["ci95"][0] < macro["mean"] < macro["ci95"][1] <= 0.5
    assert combine([[2.0, 2.0], [3.0, 3.0, 3.0]])["macro"]["ci95"] is None  # nothing is known of the spread


def test_rewards_of_a_set_that_never_vary_have_no_interval_outside_of_0_and_1() -> None:
    assert combine([[2.0, 2.0], [0.0, 1.0]])["macro"]["ci95"] in (None, [None, None])
    assert combine([[0.0, 0.0], [0.0, 1.0]])["macro"]["ci95"][0] == 0.0


def test_fields_of_every_type_are_taken_and_others_named(tmp_path: Path) -> None:
    part = read(
        tmp_path,
        "[nq]\nbounds = true\nk = 4\nseed = 2\n[nq.options]\nfound_reward = 0.5\n[nq.template_options]\n",
    )["nq"]
    assert (part.bounds, part.k, part.seed, part.options) == (True, 4, 2, {"found_reward": 0.5})
    for line, named in (
        ("k = true", "k.*True"),
        ("bounds = 1", "bounds.*1"),
        ("options = 3", "options.*3"),
        ("data = 3", "data.*3"),
        ("scorer = [1]", r"scorer.*\[1\]"),
        ("nothing = 1", "dataset.*scorer.*'nothing'"),
    ):
        with pytest.raises(ConfigurationError, match=rf"suite\.toml.*nq.*{named}"):
            read(tmp_path, f"[nq]\n{line}\n")


def test_what_is_given_as_an_object_is_named_by_no_table() -> None:
    given = BenchmarkParts(policy=ScriptedPolicy({}))
    with pytest.raises(ConfigurationError, match=r"nq.*policy"):
        make_suite({"nq": {"policy": "tiny"}}, DEFAULTS, given)
    assert list(make_suite({"nq": {}}, DEFAULTS, given).parts) == ["nq"]
    searched = BenchmarkParts(retriever=InMemoryRetriever([Document("d", "t", "x")]))
    with pytest.raises(ConfigurationError, match=r"nq.*retriever"):
        make_suite({"retriever": "bm25", "nq": {}}, DEFAULTS, searched)
    assert list(make_suite({"policy": "tiny", "nq": {}}, DEFAULTS, searched).parts) == ["nq"]
    with pytest.raises(ConfigurationError, match=r"mine: nq.*'limits'"):
        make_suite({"limits": 3, "nq": {}}, DEFAULTS, where="mine")
    with pytest.raises(ConfigurationError, match="the suite"):
        make_suite({"limit": 3}, DEFAULTS)
    with pytest.raises(ConfigurationError, match="mine"):
        make_suite({}, DEFAULTS, where="mine")


def test_a_suite_plays_its_benchmarks_one_after_the_other(tmp_path: Path) -> None:
    class Script(ScriptedPolicy):
        def __init__(self) -> None:
            super().__init__({f"run-0-{i}": ["<answer>x</answer>"] for i in range(2)})

    write_world(WorldConfig(seed=11, documents=200, questions=4), tmp_path / "world")
    shared = {"dataset": "fictional", "data": str(tmp_path / "world"), "retriever": "bm25", "bounds": False}
    given, shown = BenchmarkParts(policy=Script()), list[str]()
    made = make_suite({**shared, "one": {"limit": 1}, "two": {"limit": 2}}, {"policy": "mine"}, given)

    def display(name: str) -> SilentDisplay:
        shown.append(name)
        return SilentDisplay()

    found = made.run(tmp_path / "out", display, given=given)
    assert shown == ["one", "two"]
    assert {name: results["n"] for name, results in found["suite"].items()} == {"one": 1, "two": 2}
    assert found["sets"] == ["one", "two"]
    assert (tmp_path / "out" / "report.html").is_file()
    assert json.loads((tmp_path / "out" / "suite.json").read_text())["scores"] == found["scores"]
    with pytest.raises(ConfigurationError, match=r"\['one', 'two'\], not \['one'\]"):
        make_suite({**shared, "one": {}}, {"policy": "mine"}, given).run(
            tmp_path / "out", display, given=given
        )
    with pytest.raises(ConfigurationError, match="may hold") as refused:
        make_suite({**shared, "one": {"limits": 1}}, {"policy": "mine"}, given)
    assert "scorers" not in str(refused.value)
    assert "scorer," in str(refused.value)
