"""GRPO on whole episodes (Shao et al. 2024), with the corrections of DAPO (Yu et al. 2025) that cost nothing.

What is left out of the published algorithm, and why:

1. No reference model unless ``kl_coefficient`` asks for one: agentic recipes use none.
2. No second pass for the old log-probs: one optimiser step a batch, and the sampler is the trained model itself, so the
   recorded log-probs are the old ones. Tokens that were sampled under another context take their own present log-prob.
3. No per-sequence mean: the loss is the mean over all trained tokens of the step, whatever the micro-batches.
4. Groups of equal reward have advantage 0 and are left out of the backward pass, unless a penalty towards a reference
   acts on them; their tokens stay in the denominator.
5. Faults of ours are in neither the loss nor the statistics; a group keeps its other members.
"""

import asyncio
import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Protocol

import numpy as np
import torch

from agentenv.core.chat import InlineFormat, TemplateFormat
from agentenv.core.protocols import ChatFormat
from agentenv.core.rollout import RolloutConfig, Start, rollout
from agentenv.core.trajectory import Trajectory
from agentenv.core.types import EndReason
from agentenv.data.sources import SourceConfig
from agentenv.envs.local_search import STOP
from agentenv.errors import ConfigurationError, Fault
from agentenv.evaluation.bounds import measure_bounds
from agentenv.evaluation.ground import Ground, open_ground
from agentenv.evaluation.records import RESULTS, read_evaluation, read_json, write_evaluation, write_results
from agentenv.evaluation.results import summarize
from agentenv.evaluation.runner import play, to_record
from agentenv.policies.card import EpisodeCard, write_card
from agentenv.policies.hf import HFPolicy
from agentenv.policies.spec import make_policy
from agentenv.tracking import Tracker, make_tracker
from agentenv.trainers.advantages import get_estimator, is_flat
from agentenv.trainers.config import TrainConfig
from agentenv.trainers.folder import RunFolder
from agentenv.trainers.learner import Learner, Objective, rows_of
from agentenv.trainers.monitors import warnings_of

Group = list[Trajectory]

_LAPS = ("rollout", "update", "evaluation")
_CARD_OPTIONS = ("prompt", "k", "max_turns", "observation_tokens")


class Display(Protocol):
    """Who is told how far the run is."""

    def phase(self, name: str, total: int) -> None:
        """A phase of ``total`` units begins."""

    def advance(self, done: int, figures: dict[str, float]) -> None:
        """So many units of the phase are done, and these are the figures that matter."""

    def warn(self, sentence: str) -> None:
        """Something looks wrong."""


@dataclass
class Run:
    """Everything that a training run holds while it lasts."""

    config: TrainConfig
    folder: RunFolder
    display: Display
    policy: HFPolicy
    chat: ChatFormat
    learner: Learner
    train: Ground
    dev: Ground
    test: Ground
    trackers: Sequence[Tracker] = ()
    """At most one, where the configuration names it."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall-clock seconds of each phase."""


def train(folder: RunFolder, display: Display) -> dict[str, Any]:
    """Trains from where ``folder`` stands to the end, and evaluates before and after.

    Returns:
        The content of ``results.json``.

    Raises:
        AgentEnvError: the configuration cannot be used.
        Fault: every episode of a step failed through a fault of ours.
    """
    run = _set_up(folder, display)
    config = folder.config
    before = _evaluate(run, "before")
    done = folder.resume(run.policy, run.learner)
    if done == config.optimization.steps and (folder.path / RESULTS).exists():
        return read_json(folder.path / RESULTS)
    earlier = sum(line[lap] for line in folder.history("timings") for lap in _LAPS)
    began = time.perf_counter()
    display.phase("training", config.optimization.steps)
    with ExitStack() as stack:
        for tracker in run.trackers:
            stack.callback(tracker.close)
        for step in range(done + 1, config.optimization.steps + 1):
            clock = _Clock(run)
            groups = _roll_out(run, step)
            clock.lap("rollout")
            metrics = {"step": step} | _update(run, step, groups) | _describe(groups)
            clock.lap("update")
            if config.evaluation.every and step % config.evaluation.every == 0:
                metrics |= _evaluate_dev(run)
            clock.lap("evaluation")
            _watch(run, metrics)
            if config.trajectories_every and step % config.trajectories_every == 0:
                folder.dump(step, [trajectory for group in groups for trajectory in group])
            folder.log(metrics, clock.seconds())
            for tracker in run.trackers:
                tracker.log(step, {name: v for name, v in metrics.items() if isinstance(v, int | float)})
            if step % config.checkpoint_every == 0 or step == config.optimization.steps:
                folder.save_checkpoint(step, run.policy, run.learner)
            display.advance(step, metrics)
    run.seconds["training"] = earlier + time.perf_counter() - began
    return _finish(run, before)


def _set_up(folder: RunFolder, display: Display) -> Run:
    config = folder.config
    began = time.perf_counter()
    get_estimator(config.optimization.estimator)
    trackers = [make_tracker(config.tracker)] if config.tracker else []
    torch.set_num_threads(config.threads)
    torch.set_flush_denormal(True)  # tiny second moments of Adam otherwise slow every multiplication down
    policy = make_policy(config.policy)
    if config.rollout.context_tokens > policy.context_tokens:
        raise ConfigurationError(
            f"rollout.context_tokens={config.rollout.context_tokens} is more than the {policy.context_tokens} tokens "
            f"that {config.policy} can read: lower it"
        )
    optimization = config.optimization
    objective = Objective(
        clip_low=optimization.clip_low,
        clip_high=optimization.clip_high,
        temperature=config.rollout.temperature,
        kl_coefficient=optimization.kl_coefficient,
        micro_tokens=optimization.micro_tokens,
    )
    learner = Learner(
        policy.model,
        objective,
        learning_rate=optimization.learning_rate,
        weight_decay=optimization.weight_decay,
        max_grad_norm=optimization.max_grad_norm,
        reference=make_policy(config.policy).model if optimization.kl_coefficient else None,
    )
    chat = (InlineFormat if config.format == "inline" else TemplateFormat)(policy.tokenizer)
    run = Run(
        config=config,
        folder=folder,
        display=display,
        policy=policy,
        chat=chat,
        learner=learner,
        train=_open(config.train, config, policy, display),
        dev=_open(config.dev, config, policy, display),
        test=_open(config.test, config, policy, display),
        trackers=trackers,
    )
    run.seconds["preparation"] = time.perf_counter() - began
    return run


def _open(source: SourceConfig, config: TrainConfig, policy: HFPolicy, display: Display) -> Ground:
    display.phase(f"index of {source.split or source.world.split} questions", 0)

    def count(text: str) -> int:
        return len(policy.tokenizer.encode(text, add_special_tokens=False))

    return open_ground(source, config.search, config.env, count)


def rollout_config(config: TrainConfig, *, temperature: float) -> RolloutConfig:
    """The budgets of ``config`` at a temperature; 0 is greedy."""
    settings = config.rollout
    return RolloutConfig(
        context_tokens=settings.context_tokens,
        turn_tokens=settings.turn_tokens,
        temperature=temperature,
        stop=STOP,
        deadline_s=settings.deadline_s,
        deterministic=settings.deterministic,
    )


def _roll_out(run: Run, step: int) -> list[Group]:
    """One group for each drawn question. Draws and seeds depend on the step alone, so a resumed run repeats them."""
    settings = run.config.rollout
    rng = np.random.default_rng([run.config.seed, step])
    tasks = run.train.source.tasks
    drawn = rng.choice(len(tasks), size=settings.questions, replace=settings.questions > len(tasks))
    starts: list[Start] = []
    for place in drawn:
        group_id = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{run.config.seed}/{step}/{len(starts)}"))
        for _ in range(settings.group_size):
            starts.append(Start(run.train.make_env(), tasks[place], int(rng.integers(1 << 31)), group_id))
    config = rollout_config(run.config, temperature=settings.temperature)
    try:
        played = asyncio.run(rollout(starts, run.policy, run.chat, config, name=f"step-{step}"))
    finally:
        for start in starts:
            start.env.close()
    if not any(trajectory.valid for trajectory in played):
        raise Fault(
            f"every episode of step {step} failed through a fault of ours; the first: {played[0].error}"
        )
    size = settings.group_size
    return [played[i : i + size] for i in range(0, len(played), size)]


def _update(run: Run, step: int, groups: Sequence[Group]) -> dict[str, float]:
    """Credit, one optimiser step, a new version of the policy."""
    estimate = get_estimator(run.config.optimization.estimator)
    penalty = run.config.optimization.kl_coefficient > 0
    rows, tokens = [], 0
    for group in groups:
        valid = [trajectory for trajectory in group if trajectory.valid]
        rows += rows_of(valid, estimate(valid), keep_flat=penalty)
        tokens += sum(int(trajectory.loss_mask.sum()) for trajectory in valid)
    warmup = run.config.optimization.warmup_steps
    rate = run.config.optimization.learning_rate * min(1.0, step / warmup if warmup else 1.0)
    run.learner.set_learning_rate(rate)
    figures = run.learner.step(rows, tokens=tokens)
    run.policy.updated()
    return figures | {"learning_rate": rate}


def _describe(groups: Sequence[Group]) -> dict[str, float]:
    """What the rollouts of a step looked like; means are over valid episodes.

    The entropy is estimated from the sampled tokens themselves: the mean of -log p, in nats.
    """
    played = [trajectory for group in groups for trajectory in group]
    valid = [trajectory for trajectory in played if trajectory.valid]
    turns = [turn for trajectory in valid for turn in trajectory.turns]
    flat = [is_flat([t.reward for t in group if t.valid]) for group in groups]
    rewards = [trajectory.reward for trajectory in valid]
    ends = {f"end_{reason}": 0 for reason in EndReason}
    for trajectory in played:
        ends[f"end_{trajectory.end_reason}"] += 1
    return {
        "reward_mean": fmean(rewards),
        "reward_std": float(np.std(rewards)),
        "entropy": -float(np.concatenate([t.logprobs[t.loss_mask] for t in valid]).mean()),
        "zero_variance_share": fmean(flat),
        "faults": len(played) - len(valid),
        "format_rate": fmean(turn.valid for turn in turns),
        "answer_rate": fmean(trajectory.end_reason is EndReason.ANSWERED for trajectory in valid),
        "response_tokens": fmean(trajectory.response_tokens for trajectory in valid),
        "episode_tokens": fmean(len(trajectory.ids) for trajectory in valid),
        "searches_per_episode": fmean(
            sum(r.name == "search" for turn in trajectory.turns for r in turn.tool_results)
            for trajectory in valid
        ),
        "extra_rows": sum(len(trajectory.row_slices) - 1 for trajectory in valid),
    } | {name: count for name, count in ends.items() if count}


def _watch(run: Run, metrics: dict[str, Any]) -> None:
    """Adds the monitors' sentences to ``metrics`` and shows those that are new."""
    history = run.folder.history()
    earlier, found = warnings_of(history), warnings_of([*history, metrics])
    if found:
        metrics["warning"] = "; ".join(found.values())
    for figure, sentence in found.items():
        if figure not in earlier:
            run.display.warn(sentence)


def _evaluate_dev(run: Run) -> dict[str, Any]:
    config = rollout_config(run.config, temperature=0.0)
    played = play(run.policy, run.chat, run.dev.make_env, run.dev.source.tasks, config, name="dev")
    scorer = run.config.evaluation.scorers[0]
    summary = _summary(run, run.dev, played)
    score = summary["scores"][scorer]
    return {"em_dev": score["mean"], "em_dev_ci95": score["ci95"]}


def _evaluate(run: Run, name: str) -> dict[str, Any]:
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
        name=name,
        progress=lambda done: run.display.advance(done, {}),
    )
    scorer = run.config.evaluation.scorers[0]
    bounds = None
    if run.config.evaluation.bounds:
        bounds = measure_bounds(run.policy, run.chat, run.test, config, scorer)
    summary = _summary(run, run.test, played, bounds)
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


def _finish(run: Run, before: dict[str, Any]) -> dict[str, Any]:
    """Final policy, evaluation after, ``results.json``."""
    after = _evaluate(run, "after")
    policy_folder = run.folder.path / "policy"
    run.policy.model.save_pretrained(policy_folder)
    run.policy.tokenizer.save_pretrained(policy_folder)
    write_card(policy_folder, _card(run.config))
    scorer = run.config.evaluation.scorers[0]
    results = {
        "name": run.config.name,
        "seed": run.config.seed,
        "steps": run.config.optimization.steps,
        "scorer": scorer,
        "before": _headline(before, scorer),
        "after": _headline(after, scorer),
        "bounds": after["bounds"],
        "retrieval": after["retrieval"],
        "faults": sum(line["faults"] for line in run.folder.history()),
        "seconds": {name: round(value, 1) for name, value in run.seconds.items()},
    }
    write_results(run.folder.path, results)
    return results


def _card(config: TrainConfig) -> EpisodeCard:
    options = {name: config.env.options[name] for name in _CARD_OPTIONS if name in config.env.options}
    rollout = config.rollout
    return EpisodeCard(
        format=config.format,
        turn_tokens=rollout.turn_tokens,
        context_tokens=rollout.context_tokens,
        **options,
    )


def _headline(summary: dict[str, Any], scorer: str) -> dict[str, Any]:
    score = summary["scores"][scorer]
    return {"em": score["mean"], "n": score["n"], "ci95": score["ci95"]}


class _Clock:
    """Where the seconds of one step went."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._last = time.perf_counter()
        self._laps: dict[str, float] = {}
        self._neural = self._counters()

    def _counters(self) -> dict[str, float]:
        encoder = getattr(self._run.train.retriever, "encoder", None)
        return {
            "policy_forward": self._run.policy.forward_seconds,
            "learner_compute": self._run.learner.compute_seconds,
            "encoder_forward": float(getattr(encoder, "forward_seconds", 0.0)),
        }

    def lap(self, name: str) -> None:
        """Ends a phase of the step."""
        now = time.perf_counter()
        self._laps[name] = now - self._last
        self._last = now

    def seconds(self) -> dict[str, float]:
        """Seconds of each phase, and of the neural forward and backward passes within them."""
        now = self._counters()
        spent = self._laps | {name: now[name] - then for name, then in self._neural.items()}
        return {name: round(value, 4) for name, value in spent.items()}
