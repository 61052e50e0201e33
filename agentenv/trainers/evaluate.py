"""The evaluations of a training run: on the dev questions while it lasts, on the test questions before and after."""

import time
from collections.abc import Sequence
from typing import Any

from agentenv.core.trajectory import Trajectory
from agentenv.evaluation.bounds import measure_bounds
from agentenv.evaluation.ground import Ground, index_recall
from agentenv.evaluation.records import RESULTS, read_evaluation, write_evaluation
from agentenv.evaluation.results import summarize
from agentenv.evaluation.runner import play, to_record
from agentenv.trainers.run import Run, rollout_config


def evaluate_dev(run: Run) -> dict[str, Any]:
    """Score and interval of the present policy on the dev questions."""
    config = rollout_config(run.config, temperature=0.0)
    played = play(run.policy, run.chat, run.dev.make_env, run.dev.source.tasks, config, name="dev")
    scorer = run.config.evaluation.scorers[0]
    summary = _summary(run, run.dev, played)
    score = summary["scores"][scorer]
    return {"em_dev": score["mean"], "em_dev_ci95": score["ci95"]}


def evaluate_test(run: Run, name: str) -> dict[str, Any]:
    """The full evaluation on the test questions, kept under ``evaluation/NAME``; done once, also by a resumed run."""
    directory = run.folder.path / "evaluation" / name
    if (directory / RESULTS).exists():
        results = read_evaluation(directory).results
        if results["policy"] == _policy_name(run):  # not so where the run went on after it
            return results
    began = time.perf_counter()
    tasks = run.test.source.tasks
    run.display.phase(f"evaluation {name}", len(tasks))
    config = rollout_config(run.config, temperature=0.0)
    played = play(
        run.policy,
        run.chat,
        run.test.make_env,
        tasks,
        config,
        seed=run.config.seed,
        name=name,
        progress=lambda done: run.display.advance(done, {}),
    )
    scorer = run.config.evaluation.scorers[0]
    bounds = None
    if run.config.evaluation.bounds:
        bounds = measure_bounds(run.policy, run.chat, run.test, config, scorer, seed=run.config.seed)
    summary = _summary(run, run.test, played, bounds) | {"index_recall": index_recall(run.test)}
    write_evaluation(directory, summary, map(to_record, played))
    run.seconds[f"evaluation_{name}"] = time.perf_counter() - began
    return summary


def _summary(
    run: Run, ground: Ground, played: Sequence[Trajectory], bounds: dict[str, Any] | None = None
) -> dict[str, Any]:
    info = ground.retriever.info()
    return summarize(
        [to_record(trajectory) for trajectory in played],
        run.config.evaluation.scorers,
        dataset=ground.source.name,
        split=ground.source.split,
        policy=_policy_name(run),
        retriever=info.name,
        k=int(run.config.env.options.get("k", 3)),
        seed=run.config.seed,
        bounds=bounds,
        settings={
            "documents": info.documents,
            "retriever_fingerprint": info.fingerprint,
            "env": run.config.env.model_dump(mode="json"),
            "decoding": "greedy",
        },
    )


def _policy_name(run: Run) -> str:
    return f"{run.config.policy} at step {run.policy.version}"
