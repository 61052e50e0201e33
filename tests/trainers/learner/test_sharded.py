"""The learner over several processes: two steps of 1, 2 and 4 of them (gloo, FSDP2) end where one plain learner ends.

Rows of unequal length in an odd number of micro-batches, so that some processes pass through one that does not count; a
correction whose effective sample scales the step; the state of a plain learner is taken over. Once all weights are trained,
once adapters with their base as the reference. In float32, where FSDP2 asks for other reductions than in float64; sums come
in another order, and that is all.
"""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agentenv.policies.lora import adapt
from agentenv.trainers.learner.learner import Learner, Objective, TrainingRow
from agentenv.trainers.learner.packing import micro_batches
from agentenv.trainers.learner.settings import CorrectionSettings

RUNS = (("full", 1), ("full", 2), ("full", 4), ("lora", 2))
FULL = Objective(
    proximal="recompute",
    correction=CorrectionSettings(mode="truncate", ess_base=1.0),
    entropy_coefficient=0.01,
    micro_tokens=40,
)
OBJECTIVES = {"full": FULL, "lora": FULL.model_copy(update={"kl_coefficient": 0.1})}

WORKER = """
import os, socket, sys
from dataclasses import replace
from pathlib import Path
import torch
import torch._dynamo  # which the optimizer imports, after the fork in each process anew
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from agentenv.errors import Diverged
from agentenv.trainers.learner.sharded import ShardedLearner, is_main_process, world_size

def work(place, given):
    model, goal = given["model"], given["objective"]
    reference = model if goal.needs_reference else None
    learner = ShardedLearner(model, goal, learning_rate=1e-2, max_grad_norm=0.01, reference=reference)
    if not is_main_process():
        return learner.follow()
    learner.load(given["weights"], given["state"])
    learner.set_learning_rate(2e-3)
    passes, score = [], learner._logprobs
    learner._logprobs = lambda *args, **kwargs: passes.append(0) or score(*args, **kwargs)
    rows = learner.with_proximal(given["rows"])
    scored = [len(passes), [row.proximal for row in rows], [row.ids for row in rows]]
    torch.save(scored, place / f"scored-{world_size()}.pt")
    if reference is not None:
        ratios = [row.proximal for row in learner.with_log_ratios(given["rows"])]
        torch.save(ratios, place / f"ratios-{world_size()}.pt")
    figures = [learner.step(rows, tokens=200, update=update) for update in (0, 1)]
    torch.save([figures, learner.weights(), learner.optimizer_state()], place / f"{world_size()}.pt")
    try:
        learner.step([replace(row, advantages=row.advantages * float("nan")) for row in given["rows"][:3]])
    except Diverged as error:
        (place / f"diverged-{world_size()}").write_text(str(error))
    learner.dismiss()

def fork(place, given, size):
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    for rank in range(size):
        child = os.fork()
        if child:
            yield child
            continue
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        try:
            work(place, given)
        except BaseException as error:
            sys.stderr.write(f"{place.name}, {rank} of {size}: {error!r}")
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)

folder, sizes = Path(sys.argv[1]), sys.argv[2:]
# All that a learner imports is imported before the processes are forked, and no thread of torch has begun by then.
full, lora = (torch.load(folder / kind / "given.pt", weights_only=False) for kind in ("full", "lora"))
children = {child for size in sizes for child in fork(folder / "full", full, int(size))}
while children:
    child, status = os.wait()
    children.discard(child)
    if status:
        sys.exit(1)
# What torchrun calls, which starts its processes by fork here.
standalone = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "run_id": "sharded", "monitor_interval": 0.1}
elastic_launch(LaunchConfig(1, 1, 2, max_restarts=0, start_method="fork", **standalone), work)(folder / "lora", lora)
"""


def made_rows(count: int) -> list[TrainingRow]:
    """Rows of 9 to 15 tokens."""
    rng, rows = np.random.default_rng(0), []
    for place in range(count):
        length = 9 + place % 7
        mask = rng.random(length) < 0.6
        mask[0], mask[-1] = False, True
        old = rng.normal(-3, 0.5, length).astype(np.float32)
        ids = rng.integers(0, 256, length)
        rows.append(TrainingRow(ids, mask, old, np.zeros(length, dtype=np.bool_), rng.normal(size=length)))
    return rows


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, qwen: Callable[..., Any]) -> Path:
    """A folder for each kind of training with the results of every number of processes, those of a plain learner beside."""
    folder = tmp_path_factory.mktemp("sharded")
    torch.set_num_threads(1)
    makes = {"full": qwen, "lora": lambda: adapt(qwen(), rank=4, alpha=8)}
    learners = {kind: begun(folder / kind, make, OBJECTIVES[kind]) for kind, make in makes.items()}
    (folder / "worker.py").write_text(WORKER)
    sizes = [str(size) for kind, size in RUNS if kind == "full"]
    finish([sys.executable, str(folder / "worker.py"), str(folder), *sizes])
    for kind, learner in learners.items():
        learner.set_learning_rate(2e-3)
        rows = learner.with_proximal(made_rows(13))
        figures = [learner.step(rows, tokens=200, update=update) for update in (0, 1)]
        torch.save([figures, learner.weights(), learner.optimizer_state()], folder / kind / "plain.pt")
    return folder


def finish(command: list[str]) -> None:
    """Runs ``command``, and ends whatever it has started if it fails."""
    with (
        tempfile.TemporaryFile("w+") as said,
        subprocess.Popen(command, stderr=said, start_new_session=True) as started,
    ):
        try:
            code = started.wait(600)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
        said.seek(0)
        assert code == 0, said.read()


def begun(folder: Path, make: Callable[[], Any], objective: Objective) -> Learner:
    """A plain learner after one step; in ``folder`` is what a process begins with, its moments among it."""
    folder.mkdir()
    model, rows = make(), made_rows(13)
    reference = model if objective.needs_reference else None
    learner = Learner(model, objective, learning_rate=1e-2, max_grad_norm=0.01, reference=reference)
    learner.step(learner.with_proximal(rows))
    given = {"model": make(), "rows": rows, "objective": objective}
    given |= {"weights": learner.weights(), "state": learner.optimizer_state()}
    torch.save(given, folder / "given.pt")
    return learner


@pytest.mark.parametrize(("kind", "size"), RUNS)
def test_each_process_scores_its_share_and_all_get_every_row(
    place: Path, qwen: Callable[..., Any], kind: str, size: int
) -> None:
    """The first of ``size`` processes passes ceil(batches / size) of them; the rows come back in the usual order."""
    passes, proximal, ids = torch.load(place / kind / f"scored-{size}.pt", weights_only=False)
    given = torch.load(place / kind / "given.pt", weights_only=False)
    goal = given["objective"]
    batches = len(list(micro_batches(given["rows"], goal.micro_tokens, goal.padding)))
    assert passes == -(-batches // size)
    plain = Learner(given["model"], given["objective"], learning_rate=0.0, reference=given["model"])
    plain.load(given["weights"], given["state"])
    wanted = plain.with_proximal(given["rows"])
    assert [list(mine) for mine in ids] == [list(row.ids) for row in wanted]
    for mine, row in zip(proximal, wanted, strict=True):
        assert mine == pytest.approx(row.proximal, abs=1e-4)
    if goal.needs_reference:
        ratios = torch.load(place / kind / f"ratios-{size}.pt", weights_only=False)
        for mine, row in zip(ratios, plain.with_log_ratios(given["rows"]), strict=True):
            assert mine == pytest.approx(row.proximal, abs=1e-4)


@pytest.mark.parametrize(("kind", "size"), RUNS)
def test_processes_that_diverge_end_in_order(place: Path, kind: str, size: int) -> None:
    """The first one raises, and the others go on following it until they are dismissed."""
    assert "loss is nan" in (place / kind / f"diverged-{size}").read_text()


@pytest.mark.parametrize(("kind", "size"), RUNS)
def test_the_number_of_processes_changes_nothing(place: Path, kind: str, size: int) -> None:
    figures, weights, state = torch.load(place / kind / f"{size}.pt", weights_only=False)
    plain_figures, plain_weights, plain_state = torch.load(place / kind / "plain.pt", weights_only=False)
    for ours, theirs in zip(figures, plain_figures, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-6)
        assert ours["effective_sample"] < 1
        assert ours["grad_norm"] > 0.01  # it is clipped
    assert weights.keys() == plain_weights.keys()
    for name, value in weights.items():
        torch.testing.assert_close(value, plain_weights[name], rtol=1e-3, atol=1e-5)
    for place_, mine in state["state"].items():
        for name, value in mine.items():
            torch.testing.assert_close(value, plain_state["state"][place_][name], rtol=1e-3, atol=1e-7)
