"""The planner: sizes as people write them, what fits, the advice, and the command that prints it."""

import io
import itertools
import json
from pathlib import Path

import pytest
from rich.console import Console

from agentenv.cli.main import main
from agentenv.cli.retriever_plan import Plan
from agentenv.errors import ConfigurationError
from agentenv.retrievers.building.planner import (
    MEASURED,
    MEASURED_DIM,
    MEASURED_ROWS,
    Advice,
    advise,
    kind,
    parse_size,
)
from agentenv.retrievers.indexes import default_spec, footprint

GIB = 1 << 30
RESULTS = Path(__file__).resolve().parents[3] / "benchmarks" / "results"


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("24GiB", 24 * GIB),
        ("24 gib", 24 * GIB),
        ("1.5GB", 1_500_000_000),
        ("500MB", 500_000_000),
        ("64kib", 65_536),
        ("2T", 2 * 10**12),
        ("4096", 4096),
        ("1e9", 10**9),
    ],
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "24GiBs", "-3GB", "0", "lots", "1.2.3GB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="24GiB"):
        parse_size(text)


def by_index(advice: Advice) -> dict[str, str]:
    return {option.index: option.fits for option in advice.options}


def test_wiki_18_on_24_gib() -> None:
    fits = by_index(advise(21_000_000, 768, 24 * GIB))
    # 64.5 GB, 32.3 GB, 16.1 GB + 1.1 + 0.5; 22 GB + 1.6 GB < 25.8 GB
    assert (fits["Flat"], fits["SQfp16"], fits["SQ8"], fits["HNSW32_SQ8"]) == ("no", "no", "yes", "yes")
    assert fits["PQ192x4fs,Refine(SQfp16)"] == "mapped"  # 2 GB of codes in memory, 32 GB beside them
    advice = advise(21_000_000, 768, 24 * GIB)
    assert advice.best is not None
    assert advice.best.index == default_spec(21_000_000, 768)
    assert advice.best.fits == "yes"


def test_memory_is_the_arithmetic_of_the_index_and_a_process() -> None:
    (flat,) = (option for option in advise(1_000_000, 384, GIB).options if option.index == "Flat")
    assert flat.file_bytes == 1_536_000_000 == round(footprint("Flat", 1_000_000, 384).total)
    assert flat.memory_bytes == flat.least_bytes == 1_536_000_000 + GIB + 24 * 1_000_000
    assert flat.fits == "no"


def test_the_default_is_advised_wherever_anything_fits() -> None:
    for rows, dim, memory in itertools.product((500, 2_000_000, 21_000_000), (384, 768), (2, 3, 64)):
        advice = advise(rows, dim, memory * GIB)
        if advice.best is None:
            assert set(by_index(advice).values()) == {"no"}
        else:
            assert advice.best.index == default_spec(rows, dim)
            assert advice.best.fits in ("yes", "mapped")
    assert advise(21_000_000, 768, 2 * GIB).best is None


def test_more_memory_never_makes_fewer_fit() -> None:
    rank = {"no": 0, "mapped": 1, "yes": 2}
    plans = [by_index(advise(5_000_000, 768, size * GIB)) for size in (1, 2, 4, 8, 16, 32)]
    for less, more in itertools.pairwise(plans):
        assert all(rank[less[index]] <= rank[more[index]] for index in less)


def test_times_scale_as_stated() -> None:
    def alone(passages: int, dim: int, index: str) -> float:
        (option,) = (o for o in advise(passages, dim, 1000 * GIB).options if kind(o.index) == index)
        return option.alone_ms

    # exhaustive: in proportion to vectors x dimensions
    assert alone(8_000_000, 384, "SQ8") == pytest.approx(4 * alone(2_000_000, 384, "SQ8"))
    assert alone(2_000_000, 768, "SQ8") == pytest.approx(2 * alone(2_000_000, 384, "SQ8"))
    # a graph: log 1,000,000 = 6 ln 10, log 10,000 = 4 ln 10
    assert alone(10_000, 384, "HNSW32") == pytest.approx(4 / 6 * alone(1_000_000, 384, "HNSW32"))


def test_scoring_again_does_not_grow_with_the_corpus() -> None:
    def batched(passages: int, index: str) -> float:
        (option,) = (o for o in advise(passages, MEASURED_DIM, 1000 * GIB).options if kind(o.index) == index)
        return option.batch_ms

    # ten times the vectors: the codes cost ten times as much, the candidates what they did
    codes, refined = MEASURED["PQx4fs"].batch_ms, MEASURED["PQx4fs,Refine(SQ8)"].batch_ms
    assert batched(10 * MEASURED_ROWS, "PQx4fs,Refine(SQ8)") == pytest.approx(10 * codes + refined - codes)


def test_no_time_is_below_zero_and_the_measured_size_has_the_measured_times() -> None:
    for passages in (1, 1_000, 50_000, MEASURED_ROWS, 21_000_000):
        for option in advise(passages, MEASURED_DIM, GIB).options:
            assert min(option.alone_ms, option.batch_ms) > 0, option
            if passages == MEASURED_ROWS:
                known = MEASURED[kind(option.index)]
                assert (option.alone_ms, option.batch_ms) == pytest.approx((known.alone_ms, known.batch_ms))


@pytest.mark.parametrize("numbers", [(0, 384, GIB), (10, 0, GIB), (-1, 384, GIB)])
def test_numbers_that_are_not_positive_are_refused(numbers: tuple[int, int, int]) -> None:
    with pytest.raises(ConfigurationError, match=r"passages={}, dim={} and memory={}".format(*numbers)):
        advise(*numbers)


def test_every_option_was_measured() -> None:
    for passages, dim in ((500, 384), (50_000, 100), (1_000_000, 768), (21_000_000, 1024)):
        assert {kind(option.index) for option in advise(passages, dim, GIB).options} <= set(MEASURED)


def test_the_measured_figures_are_those_of_the_result_file() -> None:
    result = json.loads((RESULTS / "index_million.json").read_text())
    assert (result["rows"], result["dim"]) == (MEASURED_ROWS, MEASURED_DIM)
    rows = {kind(row["index"]): row for row in result["tables"][0]["indexes"]}
    names = ("overlap", "milliseconds_alone", "milliseconds_in_batch", "build_cpu_seconds")
    for name, figures in MEASURED.items():
        assert figures == pytest.approx([rows[name][key] for key in names], abs=0.005), name


def test_the_command_answers_without_loading_anything(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["retriever", "plan", "--passages", "21000000", "--dim", "768", "--memory", "24GiB"]
    assert main([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["best"]["index"] == default_spec(21_000_000, 768)
    assert document["memory_bytes"] == 24 * GIB
    assert len(document["how"]) == 3
    assert main([*words[:-1], "lots"]) == 1
    assert "'lots'" in capsys.readouterr().err


def shown(plan: Plan) -> str:
    console = Console(width=80, file=io.StringIO(), record=True)
    plan.show(plan.run(), console)
    return console.export_text()


def test_people_see_a_table_the_advice_and_how_it_knows() -> None:
    text = shown(Plan(21_000_000, 768, "24GiB"))
    assert "21,000,000 passages, 768 dimensions, 24GiB" in text
    assert f"Take {default_spec(21_000_000, 768)}: agentenv retriever build" in text
    assert "memory: arithmetic" in text
    assert "mapped: every search also reads" in text


def test_people_are_told_when_nothing_fits() -> None:
    assert "Nothing fits; the smallest needs 3.6 GB." in shown(Plan(21_000_000, 768, "1GiB"))
