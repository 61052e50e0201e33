"""Made-up episodes and runs for the tests of this folder, as fixtures."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentenv.evaluation.records import EpisodeRecord, write_evaluation
from agentenv.evaluation.results import summarize

FAMILIES = ("bridge", "comparison", "count", "yes_no")
NAMES = tuple(a + b for a in ("Vel", "Tor", "Ash", "Mir") for b in ("andra", "wick", "eth", "olin"))
PROMPT = "Answer the question. Search with <search>query</search>; answer with <answer>\u2026</answer>."


@pytest.fixture
def record() -> Callable[..., EpisodeRecord]:
    """Makes one record."""
    return _record


@pytest.fixture
def write_run() -> Callable[..., None]:
    """Writes one evaluation folder."""
    return _write_run


@pytest.fixture
def training_folder(tmp_path: Path) -> Path:
    """A finished training run with an evaluation before and after."""
    write_training(tmp_path)
    return tmp_path


def _record(identity: str, prediction: str | None = "Paris", **changes: Any) -> EpisodeRecord:
    """One valid record whose gold is Paris."""
    base: dict[str, Any] = {
        "id": identity,
        "question": "Where?",
        "answers": ("Paris",),
        "prediction": prediction,
        "valid": True,
        "end_reason": "answered" if prediction is not None else "turn_limit",
        "reward": float(prediction == "Paris"),
        "searches": 1,
    }
    return {**base, **changes}  # type: ignore[typeddict-item]


def _write_run(
    directory: Path, records: list[EpisodeRecord], scorers: tuple[str, ...] = ("em_squad",), **changes: Any
) -> None:
    about = {"dataset": "fictional", "split": "test", "policy": "scripted", "retriever": "bm25:x", **changes}
    write_evaluation(directory, summarize(records, scorers, k=2, **about), records)


def _turn(rng: random.Random, query: str, text: str) -> dict[str, Any]:
    """A search, now and then with a tag left open."""
    if rng.random() < 0.05:
        result = {"name": "search", "status": "format_error", "text": "", "error_class": ""}
        note = "Close the tag </search>."
        return {
            "action": f"<search>{query}",
            "observation": note,
            "valid": False,
            "reward": 0.0,
            "tool_results": [result],
        }
    result = {"name": "search", "status": "ok", "text": text, "error_class": ""}
    return {
        "action": f"<think>I need this first.</think>\n<search>{query}</search>",
        "observation": f"<information>{text}</information>",
        "valid": True,
        "reward": 0.0,
        "tool_results": [result],
    }


def _episode(index: int, skill: float, seed: int) -> EpisodeRecord:
    """One plausible episode of one or two searches; right with probability ``skill``."""
    gold, wrong, *places = random.Random(index).sample(NAMES, 4)
    rng = random.Random(1000 * seed + index)
    hops, right, fault = 1 + index % 2, rng.random() < skill, rng.random() < 0.01
    answered = not fault and (right or rng.random() < 0.7)
    prediction = (gold if right else wrong) if answered else None
    turns = [
        _turn(
            rng,
            f"who founded {place}",
            f"[1] {place}: founded in 1410 by {gold} & sons.\n[2] {wrong}: a port.",
        )
        for place in places[:hops]
    ]
    if prediction is not None:
        action = f"<answer>{prediction}</answer>"
        turns.append({"action": action, "observation": "", "valid": True, "reward": float(right)})
    found = [[f"d{index}-{hop}" if rng.random() < 0.6 + skill / 3 else "y", "x"] for hop in range(hops)]
    return _record(
        f"q{index:04d}",
        prediction,
        question=f"Who founded the {('harbour', 'guild', 'school')[index % 3]} of {places[0]}?",
        answers=(gold, gold.upper()),
        valid=not fault,
        end_reason="env_fault" if fault else "answered" if answered else "turn_limit",
        reward=float(right and answered),
        searches=hops,
        supporting_ids=[f"d{index}-{hop}" for hop in range(hops)],
        retrieved_ids=found,
        family=FAMILIES[index % 4],
        hops=hops,
        turns=turns,
        prompt=PROMPT,
    )


def write_training(directory: Path, *, questions: int = 40, steps: int = 30) -> None:
    """A training folder with curves, one warning, and an evaluation before and after."""
    rng = random.Random(0)
    results: dict[str, Any] = {}
    for seed, (name, skill) in enumerate((("before", 0.45), ("after", 0.9))):
        records = [_episode(index, skill, seed) for index in range(questions)]
        folder = directory / "evaluation" / name
        _write_run(folder, records, ("em_squad", "f1_squad", "em_cover"), policy=f"hf:{name}")
        score = json.loads((folder / "results.json").read_text())["scores"]["em_squad"]
        results[name] = {"mean": score["mean"], "n": score["n"], "ci95": score["ci95"], "scorer": "em_squad"}
    lines = [_step(rng, step, steps) for step in range(1, steps + 1)]
    warning = {"step": steps // 2, "warning": "entropy fell below 0.05: the policy may be collapsing"}
    lines.insert(steps // 2, warning)
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    timing = '{"step": 1, "rollout_seconds": 2.1, "update_seconds": 0.9}\n'
    (directory / "timings.jsonl").write_text(timing * steps)
    (directory / "config.toml").write_text('preset = "quickstart"\nsteps = 100\n\n[grpo]\ngroup_size = 8\n')
    oracle = {"mean": 0.97, "n": questions, "ci95": [0.93, 0.99]}
    results["bounds"] = {"closed_book": 0.01, "oracle": oracle, "expert": 1.0}
    results["seconds"] = {"training": 421.0, "index": 12.5, "evaluation": 61.2}
    (directory / "results.json").write_text(json.dumps(results))


def _step(rng: random.Random, step: int, steps: int) -> dict[str, Any]:
    progress = 1 - 2.0 ** (-4 * step / steps)
    line: dict[str, Any] = {
        "step": step,
        "reward_mean": 0.45 + 0.45 * progress + rng.gauss(0, 0.03),
        "loss": rng.gauss(0, 0.02),
        "grad_norm": 0.4 + abs(rng.gauss(0, 0.15)),
        "entropy": 0.6 - 0.45 * progress + rng.gauss(0, 0.01),
        "kl": 0.02 * progress + abs(rng.gauss(0, 0.002)),
        "format_rate": min(1.0, 0.9 + 0.1 * progress),
        "answer_rate": min(1.0, 0.85 + 0.15 * progress),
        "response_tokens": 42 + 6 * progress + rng.gauss(0, 1),
        "zero_variance_share": 0.2 + 0.5 * progress,
        "faults": 1 if step == 7 else 0,
        "searches_per_episode": 0.9 + 0.7 * progress,
    }
    if step % max(1, steps // 6) == 0:
        score = 0.45 + 0.45 * progress
        line |= {"dev_score": score, "dev_score_ci95": [score - 0.05, min(1.0, score + 0.05)]}
    return line
