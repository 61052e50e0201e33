"""The training loop: GRPO on whole episodes, with those corrections of DAPO that cost no computation.

GRPO: Shao et al. 2024, arXiv:2402.03300. DAPO: Yu et al. 2025, arXiv:2503.14476. The loop differs from the published
algorithm in these points:

1. There is no reference model unless ``kl_coefficient`` or ``ace_alpha`` is set, because recipes for agents use none.
2. There is no second pass for the old log-probs unless ``updates`` or ``proximal`` is set. The sampler is the trained model
   itself, so the recorded log-probs are the old ones. For tokens that were sampled in another context the learner computes
   them.
3. The loss is the mean over all trained tokens of the step, whatever the micro-batches, unless ``aggregation`` or the
   objective asks for a mean per sequence.
4. Groups of equal reward have advantage 0 and are left out of the backward pass, unless a penalty towards a reference acts
   on them. Their tokens stay in the denominator, unless the task sampler drops the group.
5. Infrastructure failures count neither in the loss nor in the statistics. A group keeps its other members.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from agentenv.core.concurrency.signals import Interrupted, Interruptible
from agentenv.core.io.files import new_folder
from agentenv.core.io.weight_digests import write_weight_digests
from agentenv.core.options import naming_own_parts
from agentenv.core.registry import env_class
from agentenv.core.trajectory import Trajectory
from agentenv.errors import AgentEnvError, ConfigurationError, Diverged, Fault, is_shortage
from agentenv.evaluation.records import RESULTS, read_json, write_results
from agentenv.evaluation.task_env import defaults_of
from agentenv.policies.card import EpisodeCard, portable, write_card
from agentenv.policies.compute import use_compute
from agentenv.policies.export import write_model_card, write_readers, write_weights
from agentenv.progress import Display
from agentenv.trainers.config.config_files import resume_command
from agentenv.trainers.config.identity import named_parts
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.league import league_of
from agentenv.trainers.learner.denormals import flushed_denormals
from agentenv.trainers.learner.second_policy import split
from agentenv.trainers.loop.evaluate import run_dev_evaluation, run_test_evaluation
from agentenv.trainers.loop.metrics import (
    environment_metrics,
    lost_episodes,
    retokenized_share,
    rollout_metrics,
)
from agentenv.trainers.loop.monitors import COLLAPSES, guarded, warnings_of
from agentenv.trainers.loop.run import PhaseTimer, Run, content_digests, open_run
from agentenv.trainers.loop.update import update_weights
from agentenv.trainers.run_folder.folder import RunFolder
from agentenv.trainers.selfplay.game_state import asked
from agentenv.trainers.strategies.strategies import KEPT
from agentenv.trainers.task_sampling.samplers import Batch

_LAPS = ("rollout", "update", "evaluation")
_BUDGETS = ("k", "max_turns", "observation_tokens")
"""Options of an environment that the card of a policy states, with the prompt."""


@flushed_denormals()
def train(folder: RunFolder, display: Display) -> dict[str, Any]:
    """Trains to the end, from the last checkpoint in ``folder`` if there is one, and evaluates before and after.

    Returns:
        The content of ``results.json``.

    Raises:
        AgentEnvError: the configuration cannot be used.
        Fault: every episode of a step met an infrastructure failure, or no worker is left; a checkpoint is.
        Diverged: a loss, a gradient or the weights are not finite; the last checkpoint is from before that.
        Interrupted: SIGINT, SIGTERM or SIGHUP came; episodes under way are given up, and what was learned is kept.
    """
    stopping = Interruptible("this step is finished first; a second signal ends at once")
    with folder.lock(), use_compute(folder.config.compute), stopping as stop:
        try:
            return _train(folder, display, stop)
        except Interrupted as error:
            said = f"; what is learned is kept, go on with: {resume_command(folder.path)}"
            raise Interrupted(error.signal, said) from error
        except (AgentEnvError, OSError) as error:
            if folder.fresh:
                folder.discard_unless_begun()
            if isinstance(error, Fault | OSError) and folder.begun:
                error.add_note(f"what was finished is kept, go on with: {resume_command(folder.path)}")
            raise
        except (MemoryError, RuntimeError) as error:
            if is_shortage(error) and folder.begun:
                half = max(1, folder.config.memory.micro_tokens // 2)
                less = f"{resume_command(folder.path)} --memory.micro_tokens {half}"
                error.add_note(f"what was finished is kept, go on with less at a time: {less}")
            raise


def _train(folder: RunFolder, display: Display, stop: Interruptible) -> dict[str, Any]:
    folder.compare_config(display.warn)
    for note in filter(None, (folder.config.correction_note, folder.config.precision_note)):
        display.warn(note)
    with ExitStack() as stack:
        stack.enter_context(_explain_divergence(folder))
        run = open_run(folder, display)
        stack.push(lambda kind, error, trace: run.close(failed=kind is not None))
        folder.compare_contents(content_digests(run))
        before = run_test_evaluation(run, "before")
        stop.check()
        done = folder.resume(run.policy, run.learner, run.parts, display.warn)
        stopped = any("stopped" in line for line in folder.history())
        if (stopped or done == folder.config.optimizer.steps) and (held := folder.results(display.warn)):
            return held
        _steps(run, done, stop, stopped=stopped)
        run.scheduler.close()
        return _finish(run, before)


def _steps(run: Run, done: int, stop: Interruptible, *, stopped: bool) -> None:
    """The steps after ``done``; ``stopped`` says that the guard has ended the training."""
    folder, config = run.folder, run.folder.config
    earlier = sum(line.get(lap, 0.0) for line in folder.history("timings") for lap in _LAPS)
    began = time.perf_counter()
    run.display.phase("training", config.optimizer.steps)
    for step in range(done + 1, config.optimizer.steps + 1):
        if stopped:
            break
        with stop.finishing():
            clock = PhaseTimer(run)
            batch = play_step(run, step, stop)
            if said := lost_episodes(batch.played):
                run.display.warn(f"step {step}: {said}")
            clock.lap("rollout")
            with naming_own_parts(named_parts(config).values()):
                metrics = {"step": step} | _update(run, step, batch.trained)
            metrics |= rollout_metrics(batch.played, batch.given_up) | batch.metrics
            metrics |= environment_metrics(batch.played, run.training)
            metrics |= retokenized_share(batch.played, run.policy.tokenizer)
            clock.lap("update")
            if config.evaluation.every and step % config.evaluation.every == 0:
                metrics |= run_dev_evaluation(run)
                _keep_best(run, metrics)
            clock.lap("evaluation")
            stopped = _watch(run, metrics)
            _keep(run, step, batch, metrics, clock)
            if config.league.every and step % config.league.every == 0:
                folder.keep_version(step, run.policy)
            due = step % config.checkpoint_every == 0 or step == config.optimizer.steps
            if due or stopped or stop.asked:
                folder.save_checkpoint(step, run.policy, run.learner, run.parts)
            run.display.advance(step, metrics)
        stop.check()
    run.seconds["training"] = earlier + time.perf_counter() - began


@contextmanager
def _explain_divergence(folder: RunFolder) -> Iterator[None]:
    """Within the block a training that diverges says what is left of it and what to try."""
    try:
        yield
    except Diverged as error:
        rate, last = folder.config.optimizer.learning_rate, folder.last_checkpoint()
        left = f"{last} is the last checkpoint from before" if last else "no checkpoint was written before"
        raise Diverged(
            f"the training has diverged: {error}; {left}. Lower optimizer.learning_rate, which is {rate:g}, or "
            "optimizer.max_grad_norm"
        ) from error


def _keep(run: Run, step: int, batch: Batch, metrics: dict[str, Any], clock: PhaseTimer) -> None:
    """Writes down what a step was, where the configuration asks for it with all its episodes."""
    every = run.config.trajectories_every
    if every and step % every == 0:
        run.folder.dump(step, [trajectory for group in batch.played for trajectory in group])
    run.folder.log(metrics, clock.seconds(), asked(batch.played))
    for tracker in run.trackers:
        tracker.log(step, {name: v for name, v in metrics.items() if isinstance(v, int | float)})


def _keep_best(run: Run, metrics: dict[str, Any]) -> None:
    """Keeps the policy where its dev score is above all before, if that is wanted."""
    lines = [*run.folder.history(), metrics]
    scores = [line["dev_score"] for line in lines if line.get("dev_score") is not None]
    last = metrics.get("dev_score")
    if run.config.evaluation.keep_best and last is not None and scores.index(max(scores)) == len(scores) - 1:
        run.folder.keep_best(metrics["step"], run.policy, _policy_card(run.config))


def play_step(run: Run, step: int, stop: Interruptible) -> Batch:
    """The episodes of a step; where they meet an infrastructure failure or are given up, what was learned is kept.

    Raises:
        Fault: as ``RolloutScheduler.batch``.
        ConfigurationError: likewise.
        Interrupted: likewise.
        Diverged: that was because the weights have diverged, and there is nothing to keep.
    """
    try:
        with naming_own_parts(named_parts(run.config).values()):
            return run.scheduler.batch(step, stop.at_once)
    except (Fault, ConfigurationError, Interrupted):
        if step > 1:
            run.folder.save_checkpoint(step - 1, run.policy, run.learner, run.parts)
        raise


def _update(run: Run, step: int, groups: Sequence[list[Trajectory]]) -> dict[str, Any]:
    """One update of each set of weights, on what it sampled.

    Raises:
        Diverged: a loss or a gradient is not finite.
    """
    try:
        return _update_group(run, step, groups)
    except Diverged as error:
        raise Diverged(f"in step {step} {error}") from error


def _update_group(run: Run, step: int, groups: Sequence[list[Trajectory]]) -> dict[str, Any]:
    mine, theirs = split(groups, run.second)
    rate = run.config.optimizer.learning_rate
    factor = guarded(run.folder.history(), run.config.monitor.factor) if run.config.monitor.guard else 1.0
    policy, learner = run.policy, run.learner
    metrics = update_weights(
        run.config, step, mine, policy, learner, rate=rate, factor=factor, buffer=run.demonstrations
    )
    run.scheduler.sync_weights()
    if run.second is not None:
        rate = run.config.second.learning_rate or rate
        other, its_learner = run.second.policy, run.second.learner
        second = update_weights(run.config, step, theirs, other, its_learner, rate=rate, factor=factor)
        metrics |= {f"second_{name}": value for name, value in second.items()}
    return metrics


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
    after = run_test_evaluation(run, "after")
    trained = {"policy": run.policy} | ({"policy-second": run.second.policy} if run.second else {})
    for name, policy in trained.items():
        with new_folder(run.folder.path / name, replace=True) as part:
            write_weights(policy.model, part)
            write_weight_digests(part)
            write_readers(policy, part)
            write_card(part, _policy_card(run.config))
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
    strategy = run.config.evaluation.strategy
    beside = {} if strategy == "plain" else {strategy: scorer}
    beside |= {name: one.scorers[0] for name, one in run.config.environments.items()}
    for name, own_scorer in beside.items():
        for side in (f"before-{name}", f"after-{name}"):
            held = read_json(run.folder.path / "evaluation" / side / RESULTS)
            results[side] = _headline(held, own_scorer)
    if run.config.league.every:
        results["league"] = league_of(run).as_json()
    if run.config.correction_note:
        results["correction"] = run.config.correction_note
    if "stopped" in history[-1]:
        results["stopped"] = history[-1]["stopped"]
    write_model_card(run.folder.path / "policy", results, run.config.model_dump(mode="json"))
    write_results(run.folder.path, results)
    return results


def episode_card(config: TrainConfig) -> EpisodeCard:
    """The form of the episodes in the run's own environment, as a policy's card has it."""
    stated, own = ("prompt", *_BUDGETS), config.env.options
    options = defaults_of(config.env.id, _BUDGETS)
    options |= {name: value for name, value in own.items() if name in stated}
    env = env_class(config.env.id)
    said = None if "prompt" in own else env.default_prompt(own, native=config.format == "native")
    options |= {} if said is None else {"prompt": said}
    left_out = env.reward_options.union(stated)
    rollout = config.rollout
    played = rollout if rollout.strategy in KEPT else config.evaluation
    keeps = played.strategy in KEPT
    return EpisodeCard(
        env=config.env.id,
        format=config.format,
        family=config.chat.family,
        template_options=config.chat.options,
        turn_tokens=rollout.turn_tokens,
        context_tokens=rollout.context_tokens,
        strategy=played.strategy if keeps else "",
        strategy_options=played.strategy_options if keeps else {},
        options=portable({name: value for name, value in own.items() if name not in left_out}),
        **options,
    )


def _policy_card(config: TrainConfig) -> EpisodeCard:
    """The card of a policy that a run has trained in all of its environments."""
    own, *further = map(episode_card, config.by_environment.values())
    return replace(own, environments=tuple(further))


def _headline(summary: dict[str, Any], scorer: str) -> dict[str, Any]:
    """The first score of an evaluation under the name of its scorer, those of several sets, and what an episode costs."""
    score = summary["scores"][scorer]
    sets = {name: _estimate(group["scores"][scorer]) for name, group in summary.get("by_set", {}).items()}
    cost = {"turns": summary.get("turns_per_question"), "searches": summary["searches_per_question"]}
    cost |= {"tokens": summary["tokens"].get("policy_per_question")}
    return {"scorer": scorer} | _estimate(score) | cost | ({"by_set": sets} if sets else {})


def _estimate(score: dict[str, Any]) -> dict[str, Any]:
    return {name: score[name] for name in ("mean", "n", "ci95")}
