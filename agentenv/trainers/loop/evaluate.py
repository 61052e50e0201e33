"""The evaluations of a training run: on the dev questions while it lasts, on the test questions before and after."""

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from agentenv.core.io.files import discard_folder
from agentenv.core.rollout import rollout
from agentenv.core.trajectory import Trajectory
from agentenv.core.types import Task
from agentenv.errors import AgentEnvError, Fault
from agentenv.evaluation.bounds import bound_of
from agentenv.evaluation.eval_agent import EvalAgent
from agentenv.evaluation.journal import Journal, is_of, lock_folder, release
from agentenv.evaluation.llm_judge import GRADES, GradeCache, Judge, judge_folder, open_judge
from agentenv.evaluation.pipeline import play_evaluation, summarize_evaluation
from agentenv.evaluation.records import EPISODES, RESULTS, read_evaluation, write_results
from agentenv.evaluation.results import score_tables
from agentenv.evaluation.rubrics import get_rubric
from agentenv.evaluation.runner import BATCH, Roll, first_seed, play, to_record
from agentenv.evaluation.statistics.macro import combined_interval
from agentenv.evaluation.task_env import OWN_ENVIRONMENT
from agentenv.policies.compute import use_compute
from agentenv.policies.lora import trained_state
from agentenv.policies.policy_spec import make_policy
from agentenv.trainers.config.sections import EvaluationSettings
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.loop.parts import (
    make_chat_format,
    naming_environment,
    open_questions,
    rollout_config,
    with_declared_scorers,
)
from agentenv.trainers.loop.run import Run, RunEnvironment
from agentenv.trainers.strategies.evaluation_roll import strategy_roll


def plain_roll(config: TrainConfig) -> Roll:
    """What plays evaluations of a run without a strategy.

    ``self_search`` plays the same episodes as no strategy, and tells the entropies that ``real="entropy"`` asks for.
    """
    rollouts = config.rollout
    if rollouts.strategy == "self_search":
        return strategy_roll(rollouts.strategy, rollouts.strategy_options)
    return rollout


def run_dev_evaluation(run: Run) -> dict[str, Any]:
    """Score and interval of the present policy on the dev questions; nothing but a warning where none could be played.

    Of several sets those of each as well, as ``dev_score/NAME`` and ``dev_score/NAME_ci95``. Of several environments the
    score of each is ``dev_score/NAME``, those of its sets are ``dev_score/NAME/SET``, and ``dev_score`` is the mean of the
    environments, each with its share of the training; a step in which one of them could not be played has none.
    """
    scores: dict[str, dict[str, dict[str, Any]]] = {}
    for name, environment in run.environments.items():
        try:
            scores[name] = _dev_scores(run, environment)
        except Fault as error:
            which = (
                "no dev score" if len(run.environments) == 1 else f"no dev score of the environment {name}"
            )
            run.display.warn(f"there is {which}: {error}")
    if len(run.environments) == 1:
        return _figures(scores.get(OWN_ENVIRONMENT, {}))
    named: dict[str, dict[str, Any]] = {}
    for name, own in scores.items():
        above = "" if name == OWN_ENVIRONMENT else f"{name}/"
        named[f"dev_score/{name}"] = own.pop("dev_score")
        named |= {key.replace("/", f"/{above}", 1): score for key, score in own.items()}
    if len(scores) == len(run.environments):
        named["dev_score"] = _mean_score([named[f"dev_score/{name}"] for name in scores], run.config.shares)
    return _figures(named)


def _dev_scores(run: Run, environment: RunEnvironment) -> dict[str, dict[str, Any]]:
    """``dev_score`` in one environment and, of several sets, ``dev_score/SET`` of each.

    Raises:
        Fault: every episode met an infrastructure failure.
    """
    settings, dev = environment.config, environment.dev
    played = play(
        run.policy,
        run.chat,
        dev.make_env,
        dev.source.tasks,
        rollout_config(settings.rollout, settings.env, temperature=settings.evaluation.temperature),
        seed=first_seed(settings.seed),
        name="dev",
        roll=plain_roll(settings),
    )
    records, scorer = [*map(to_record, played)], settings.evaluation.scorers[0]
    scores = {"dev_score": bound_of(records, scorer, seed=settings.seed)}
    valid = [record for record in records if record["valid"]]
    sets = score_tables(valid, [scorer], seed=settings.seed)["by_set"]
    return scores | {f"dev_score/{name}": group["scores"][scorer] for name, group in sets.items()}


def _mean_score(scores: Sequence[Mapping[str, Any]], shares: Mapping[str, float]) -> dict[str, Any]:
    """The mean of the scores of all environments by their ``shares``, which have the same order."""
    means = [float(score["mean"]) for score in scores]
    intervals = [score["ci95"] for score in scores]
    weights = [*shares.values()]
    mean = sum(weight * value for weight, value in zip(weights, means, strict=True))
    known = all(ends is not None for ends in intervals)
    return {"mean": mean, "ci95": list(combined_interval(means, intervals, weights)) if known else None}


def _figures(scores: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    means = {name: score["mean"] for name, score in scores.items()}
    return means | {f"{name}_ci95": score["ci95"] for name, score in scores.items()}


def run_test_evaluation(run: Run, name: str) -> dict[str, Any]:
    """The full evaluation on the test questions, kept under ``evaluation/NAME``; returns that of the run's own environment.

    A resumed run does not play again what was finished.

    Where a strategy is asked for, it is made once more with it and kept under ``evaluation/NAME-STRATEGY``. That of a
    further environment is kept under ``evaluation/NAME-ENVIRONMENT``.

    Raises:
        Fault: every episode met an infrastructure failure.
    """
    plain = _run_test_evaluation(run, run.own, name, "plain")
    if run.config.evaluation.strategy != "plain":
        # Beside and not in place of the plain one, because runs are compared by what a policy does without a
        # strategy.
        strategy = run.config.evaluation.strategy
        _run_test_evaluation(run, run.own, f"{name}-{strategy}", strategy)
    for which in run.config.environments:
        with naming_environment(which):
            _run_test_evaluation(run, run.environments[which], f"{name}-{which}", "plain")
    return plain


def _run_test_evaluation(run: Run, environment: RunEnvironment, name: str, strategy: str) -> dict[str, Any]:
    directory = run.folder.path / "evaluation" / name
    about = {"policy": _policy_name(run), "weights": _weights_digest(run.policy.model), "strategy": strategy}
    asked = environment.config.evaluation
    held = _held_results(run, directory, {"benchmark": about})
    if held is not None:
        return _judged(run, asked, directory, held)
    began = time.perf_counter()
    try:
        results = _play_test_evaluation(run, environment, directory, f"evaluation {name}", strategy)
    except (AgentEnvError, OSError):
        release(directory)
        if not any(directory.parent.iterdir()):
            directory.parent.rmdir()
        raise
    run.seconds[f"evaluation_{name}"] = time.perf_counter() - began
    return _judged(run, asked, directory, results)


def _held_results(run: Run, directory: Path, about: dict[str, dict[str, Any]]) -> dict[str, Any] | None:
    """The results of the same evaluation that stand in ``directory``, which is otherwise made ready for it.

    What was made with other weights is discarded: the run went on after it. So is what somebody has changed.
    """
    if is_of(directory, about):
        try:
            if (directory / RESULTS).exists():
                return read_evaluation(directory).results
            # Read through, so that a file torn by a crash is found before episodes are appended to it.
            Journal(directory / EPISODES)
        except AgentEnvError as error:
            run.display.warn(f"the evaluation {directory.name} is damaged and is made again: {error}")
            discard_folder(directory)
    else:
        discard_folder(directory)
    lock_folder(directory, about, write=True)
    return None


def _play_test_evaluation(
    run: Run, environment: RunEnvironment, directory: Path, title: str, strategy: str
) -> dict[str, Any]:
    config, scorers = environment.config, environment.config.evaluation.scorers
    agent = EvalAgent(
        policy=run.policy,
        tokenizer=run.policy.tokenizer,
        chat=run.chat,
        config=rollout_config(config.rollout, config.env, temperature=config.evaluation.temperature),
        batch=BATCH,
        roll=plain_roll(config)
        if strategy == "plain"
        else strategy_roll(strategy, config.evaluation.strategy_options),
    )
    records, bounds = play_evaluation(
        agent,
        environment.test,
        directory,
        run.display,
        title=title,
        scorer=scorers[0],
        seed=first_seed(config.seed),
        bounded=config.evaluation.bounds and strategy == "plain",
    )
    results = summarize_evaluation(
        agent,
        environment.test,
        records,
        bounds,
        policy=_policy_name(run),
        scorers=scorers,
        seed=config.seed,
        settings={"options": config.env.options} | ({} if strategy == "plain" else {"strategy": strategy}),
        note=run.display.warn,
    )
    write_results(directory, results)
    return results


_open_judge = cache(open_judge)
"""One client for all evaluations of a process, so that the budget in its address holds for all together."""


def _judged(run: Run, asked: EvaluationSettings, directory: Path, results: dict[str, Any]) -> dict[str, Any]:
    """``results`` with what the judge says, where one is asked for; a run that was stopped before that asks it now."""
    if not asked.judge:
        return results
    chat = _open_judge(asked.judge, asked.rubric)
    judge = Judge(get_rubric(asked.rubric), chat.model, chat, GradeCache(directory / GRADES))
    if judge.name in results.get("judged", {}):
        return results
    judged = judge_folder(directory, judge)
    table = judged["judged"][judge.name]
    if table["faults"]:
        missing = f"{sum(table['faults'].values())} answers of {directory.name} without a grade"
        run.display.warn(f"the judge left {missing}: {table['example_fault']}")
    return judged


def _policy_name(run: Run) -> str:
    return f"{run.config.policy} at step {run.policy.version}"


def _weights_digest(model: Any) -> str:
    """SHA-256 of the weights that are trained, with their names."""
    digest = hashlib.sha256()
    for name, weights in sorted(trained_state(model).items()):
        digest.update(name.encode())
        # As bytes, because NumPy has no bfloat16.
        digest.update(weights.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def score_under(config: TrainConfig) -> float:
    """The mean score of the policy of ``config`` on its test tasks, greedy, by the first scorer.

    Episodes that an infrastructure failure ended are left out.

    Raises:
        Fault: none is left.
    """
    scorer = with_declared_scorers(config).evaluation.scorers[0]
    return float(bound_of(map(to_record, play_under(config)), scorer)["mean"])


def play_under(
    config: TrainConfig,
    pose: Callable[[Sequence[Task]], Sequence[Task]] = lambda tasks: tasks,
    *,
    temperature: float = 0.0,
    with_strategy: bool = False,
) -> list[Trajectory]:
    """Episodes of the policy of ``config`` on its test tasks.

    Args:
        config: Says what is played, and who plays.
        pose: Makes of the test tasks those that are played, in their order.
        temperature: 0 is greedy.
        with_strategy: Whether the strategy of the evaluation plays them, where ``config`` names one.
    """
    config = with_declared_scorers(config)
    policy = make_policy(config.policy, config.compute)
    # Retrievers open their models by name deep inside, and read from here where these compute.
    with use_compute(config.compute):
        task_env = open_questions(config.test, config.search, config.env, policy)
    budgets = rollout_config(config.rollout, config.env, temperature=temperature)
    chat, tasks = make_chat_format(config.format, config.chat, policy), pose(task_env.source.tasks)
    asked = config.evaluation
    special = with_strategy and asked.strategy != "plain"
    roll = strategy_roll(asked.strategy, asked.strategy_options) if special else plain_roll(config)
    return play(
        policy, chat, task_env.make_env, tasks, budgets, seed=first_seed(config.seed), name="test", roll=roll
    )
