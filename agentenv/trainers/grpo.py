"""GRPO on whole episodes (Shao et al. 2024), with the corrections of DAPO (Yu et al. 2025) that cost nothing.

What is left out of the published algorithm, and why:

1. No reference model unless ``kl_coefficient`` or ``ace_alpha`` asks for one: agentic recipes use none.
2. No second pass for the old log-probs unless ``updates`` or ``proximal`` asks for one: the sampler is the trained model
   itself, so the recorded log-probs are the old ones. Tokens that were sampled under another context take the learner's.
3. No per-sequence mean unless ``aggregation`` or the objective asks for it: the loss is the mean over all trained tokens
   of the step, whatever the micro-batches.
4. Groups of equal reward have advantage 0 and are left out of the backward pass, unless a penalty towards a reference
   acts on them; their tokens stay in the denominator, unless the task sampler drops the group.
5. Faults of ours are in neither the loss nor the statistics; a group keeps its other members.
"""

import asyncio
import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from agentenv.core.rollout import Start
from agentenv.core.trajectory import Origin, Trajectory
from agentenv.errors import Fault
from agentenv.evaluation.records import RESULTS, read_json, write_results
from agentenv.policies.card import EpisodeCard, write_card
from agentenv.policies.export import write_model_card, write_weights
from agentenv.retrievers.lossy import LossyRetriever
from agentenv.trainers.advantages import get_estimator
from agentenv.trainers.config import TrainConfig
from agentenv.trainers.denormals import flushed_denormals
from agentenv.trainers.evaluate import evaluate_dev, evaluate_test
from agentenv.trainers.folder import RunFolder
from agentenv.trainers.imitation import imitate
from agentenv.trainers.learner import Row, rows_of
from agentenv.trainers.metrics import describe
from agentenv.trainers.monitors import COLLAPSES, guarded, warnings_of
from agentenv.trainers.run import Clock, Display, Run, rollout_config, set_up
from agentenv.trainers.sampling import Batch, Draw, Group, Ledger, collect
from agentenv.trainers.shaping import novelty_bonus, shape_rewards
from agentenv.trainers.splicing import rescored
from agentenv.trainers.stage import Stage
from agentenv.trainers.strategies import by_group, get_strategy, play_groups

_LAPS = ("rollout", "update", "evaluation")
_CARD_OPTIONS = ("prompt", "k", "max_turns", "observation_tokens")


@flushed_denormals()
def train(folder: RunFolder, display: Display) -> dict[str, Any]:
    """Trains from where ``folder`` stands to the end, and evaluates before and after.

    Returns:
        The content of ``results.json``.

    Raises:
        AgentEnvError: the configuration cannot be used.
        Fault: every episode of a step failed through a fault of ours.
    """
    with ExitStack() as stack:
        run = set_up(folder, display)
        stack.callback(run.policy.close)
        config = folder.config
        before = evaluate_test(run, "before")
        done = folder.resume(run.policy, run.learner, run.sampler)
        stopped = any("stopped" in line for line in folder.history())
        if (stopped or done == config.optimization.steps) and (folder.path / RESULTS).exists():
            return read_json(folder.path / RESULTS)
        earlier = sum(line[lap] for line in folder.history("timings") for lap in _LAPS)
        began = time.perf_counter()
        display.phase("training", config.optimization.steps)
        for tracker in run.trackers:
            stack.callback(tracker.close)
        for step in range(done + 1, config.optimization.steps + 1):
            if stopped:
                break
            clock = Clock(run)
            batch = _roll_out(run, step)
            clock.lap("rollout")
            metrics = (
                {"step": step} | _update(run, step, batch.trained) | describe(batch.played) | batch.figures
            )
            clock.lap("update")
            if config.evaluation.every and step % config.evaluation.every == 0:
                metrics |= evaluate_dev(run)
            clock.lap("evaluation")
            stopped = _watch(run, metrics)
            if config.trajectories_every and step % config.trajectories_every == 0:
                folder.dump(step, [trajectory for group in batch.played for trajectory in group])
            folder.log(metrics, clock.seconds())
            for tracker in run.trackers:
                tracker.log(step, {name: v for name, v in metrics.items() if isinstance(v, int | float)})
            if step % config.checkpoint_every == 0 or step == config.optimization.steps or stopped:
                folder.save_checkpoint(step, run.policy, run.learner, run.sampler)
            display.advance(step, metrics)
        run.seconds["training"] = earlier + time.perf_counter() - began
        return _finish(run, before)


def _roll_out(run: Run, step: int) -> Batch:
    """The episodes of one step.

    Draws and seeds depend on the step and on what the sampler has learned, which checkpoints hold: a resumed run repeats
    them.
    """
    settings = run.config.rollout
    ledger = Ledger(
        step=step,
        tasks=run.train.source.tasks,
        rng=np.random.default_rng([run.config.seed, step]),
        questions=settings.questions,
        group_size=settings.group_size,
    )
    batch = collect(run.sampler, ledger, partial(_play, run))
    played = [trajectory for group in batch.played for trajectory in group]
    if not any(trajectory.valid for trajectory in played):
        reason = f"; the first: {played[0].error}" if played else ""
        raise Fault(f"every episode of step {step} failed through a fault of ours{reason}")
    return replace(batch, played=by_group(played), trained=by_group(chain.from_iterable(batch.trained)))


def _play(run: Run, draws: Sequence[Draw], groups: Sequence[Group], ledger: Ledger) -> list[list[Trajectory]]:
    """The episodes of one wave, for each draw its own."""
    starts = [_starts(run, draw, group, ledger) for draw, group in zip(draws, groups, strict=True)]
    first = ledger.asked - sum(draw.rollouts for draw in draws)
    try:
        return asyncio.run(_by_strategy(run, ledger.step, starts, first))
    finally:
        for start in chain.from_iterable(starts):
            start.env.close()


def _starts(run: Run, draw: Draw, group: Group, ledger: Ledger) -> list[Start]:
    group_id = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{run.config.seed}/{ledger.step}/{group.first}"))
    retriever = LossyRetriever(run.train.searched, draw.noise) if draw.noise else None
    ground = run.train.varied(retriever=retriever, **draw.env)
    seeds = [int(ledger.rng.integers(1 << 31)) for _ in range(draw.rollouts)]
    return [Start(ground.make_env(), ledger.tasks[group.task], seed, group_id) for seed in seeds]


async def _by_strategy(
    run: Run, step: int, starts: Sequence[Sequence[Start]], first: int
) -> list[list[Trajectory]]:
    """The groups of ``starts`` by the configured strategy, scored again where that is configured."""
    settings = run.config.rollout
    config = rollout_config(run.config, temperature=settings.temperature)
    stage = Stage(run.policy, run.chat, config, run.policy.tokenizer.decode, name=f"step-{step}", first=first)
    groups = await play_groups(starts, get_strategy(settings.strategy, settings.strategy_options), stage)
    if run.config.optimization.correction.foreign == "rescore":
        groups = [[await rescored(t, run.policy, settings.temperature) for t in group] for group in groups]
    return groups


def _update(run: Run, step: int, groups: Sequence[list[Trajectory]]) -> dict[str, float]:
    """Credit, the optimiser steps of one batch, that on demonstrations, a new version of the policy."""
    settings = run.config.optimization
    shown = [t for group in groups for t in group if t.valid and t.origin is Origin.DEMONSTRATION]
    rows, totals = _credited(run, groups)
    factor = guarded(run.folder.history(), run.config.monitor.factor) if run.config.monitor.guard else 1.0
    warmth = min(1.0, step / settings.warmup_steps) if settings.warmup_steps else 1.0
    rate = settings.learning_rate * warmth * factor
    run.learner.set_learning_rate(rate)
    if settings.updates > 1:
        rows = run.learner.with_proximal(rows)
    for update in range(settings.updates):
        figures = run.learner.step(rows, **totals, update=update)
    figures |= imitate(run.learner, shown, settings.supervised_rate * factor)
    run.policy.updated()
    return figures | {"learning_rate": rate}


def _credited(run: Run, groups: Sequence[list[Trajectory]]) -> tuple[list[Row], dict[str, int]]:
    """The rows to train on, and the totals of the whole batch that losses are averaged over."""
    settings = run.config.optimization
    estimate = get_estimator(settings.estimator, settings.estimator_options)
    rows, masks = [], []
    for group in groups:
        valid = shape_rewards(
            [t for t in group if t.valid and t.origin is not Origin.DEMONSTRATION],
            limit=run.config.rollout.context_tokens,
            overlong_buffer=settings.overlong_buffer,
            overlong_factor=settings.overlong_factor,
            answer_penalty=settings.answer_penalty,
        )
        keep = run.learner.objective.keeps_flat
        credit = novelty_bonus(valid, estimate(valid), strength=settings.novelty, cap=settings.novelty_cap)
        rows += rows_of(valid, credit, keep_flat=keep, version=run.policy.version)
        masks += [int(trajectory.loss_mask.sum()) for trajectory in valid]
    return rows, {"tokens": sum(masks), "sequences": sum(count > 0 for count in masks)}


def _watch(run: Run, metrics: dict[str, Any]) -> bool:
    """Adds the monitors' sentences to ``metrics`` and shows those that are new; whether the guard stops the run."""
    history, settings = run.folder.history(), run.config.monitor
    earlier, found = warnings_of(history), warnings_of([*history, metrics])
    if found:
        metrics["warning"] = "; ".join(found.values())
    for figure, sentence in found.items():
        if figure not in earlier:
            run.display.warn(sentence)
    signs = [figure for figure in found if figure in COLLAPSES]
    if not settings.guard or not signs:
        return False
    metrics["signs"] = signs
    if settings.action == "stop":
        metrics["stopped"] = found[signs[0]]
        run.display.warn(f"the guard stops the run after step {metrics['step']}")
    return settings.action == "stop"


def _finish(run: Run, before: dict[str, Any]) -> dict[str, Any]:
    """Final policy, evaluation after, ``results.json``."""
    after = evaluate_test(run, "after")
    policy_folder = run.folder.path / "policy"
    write_weights(run.policy.model, policy_folder)
    run.policy.tokenizer.save_pretrained(policy_folder)
    write_card(policy_folder, _card(run.config))
    scorer = run.config.evaluation.scorers[0]
    history = run.folder.history()
    results = {
        "name": run.config.name,
        "seed": run.config.seed,
        "steps": history[-1]["step"],
        "scorer": scorer,
        "before": _headline(before, scorer),
        "after": _headline(after, scorer),
        "bounds": after["bounds"],
        "retrieval": after["retrieval"],
        "index_recall": after["index_recall"],
        "faults": sum(line["faults"] for line in history),
        "seconds": {name: round(value, 1) for name, value in run.seconds.items()},
    }
    if (strategy := run.config.evaluation.strategy) != "plain":
        for name in (f"before-{strategy}", f"after-{strategy}"):
            results[name] = _headline(read_json(run.folder.path / "evaluation" / name / RESULTS), scorer)
    if "stopped" in history[-1]:
        results["stopped"] = history[-1]["stopped"]
    write_results(run.folder.path, results)
    write_model_card(policy_folder, results, run.config.model_dump(mode="json"))
    return results


def _card(config: TrainConfig) -> EpisodeCard:
    options = {name: config.env.options[name] for name in _CARD_OPTIONS if name in config.env.options}
    rollout = config.rollout
    return EpisodeCard(
        env=config.env.id,
        format=config.format,
        turn_tokens=rollout.turn_tokens,
        context_tokens=rollout.context_tokens,
        **options,
    )


def _headline(summary: dict[str, Any], scorer: str) -> dict[str, Any]:
    score = summary["scores"][scorer]
    return {"em": score["mean"], "n": score["n"], "ci95": score["ci95"]}
