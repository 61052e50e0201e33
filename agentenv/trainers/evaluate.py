"""The evaluations of a training run: on the dev questions while it lasts, on the test questions before and after."""

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from agentenv.core.protocols import ChatFormat, Policy
from agentenv.core.rollout import EpisodeSpec, RolloutConfig, rollout
from agentenv.core.trajectory import Trajectory
from agentenv.errors import ConfigurationError, EnvFault, Fault
from agentenv.evaluation.bounds import measure_bounds, recall_or_none
from agentenv.evaluation.records import RESULTS, read_evaluation, write_evaluation
from agentenv.evaluation.results import score_of, summarize
from agentenv.evaluation.runner import play, to_record
from agentenv.evaluation.task_env import TaskEnv
from agentenv.policies.policy_spec import make_policy
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.parts import make_chat_format, open_questions, rollout_config, with_declared_scorers
from agentenv.trainers.run import Run
from agentenv.trainers.strategies.rollout_context import RolloutContext
from agentenv.trainers.strategies.strategies import get_strategy, play_groups


def run_dev_evaluation(run: Run) -> dict[str, Any]:
    """Score and interval of the present policy on the dev questions; nothing but a warning where none could be played."""
    config = rollout_config(run.config.rollout, run.config.env, temperature=0.0)
    played = play(run.policy, run.chat, run.dev.make_env, run.dev.source.tasks, config, name="dev")
    if not any(trajectory.valid for trajectory in played):
        run.display.warn(f"there is no dev score: {_none_played(played)}")
        return {}
    scorer = run.config.evaluation.scorers[0]
    summary = _summary(run, run.dev, played)
    score = summary["scores"][scorer]
    return {"dev_score": score["mean"], "dev_score_ci95": score["ci95"]}


def run_test_evaluation(run: Run, name: str) -> dict[str, Any]:
    """The full evaluation on the test questions, kept under ``evaluation/NAME``; done once, also by a resumed run.

    Where a strategy is asked for, it is made once more with it and kept under ``evaluation/NAME-STRATEGY``.

    Raises:
        Fault: every episode met an infrastructure failure; nothing is kept.
    """
    plain = _run_test_evaluation(run, name, "plain")
    if run.config.evaluation.strategy != "plain":
        _run_test_evaluation(run, f"{name}-{run.config.evaluation.strategy}", run.config.evaluation.strategy)
    return plain


def _run_test_evaluation(run: Run, name: str, strategy: str) -> dict[str, Any]:
    directory = run.folder.path / "evaluation" / name
    if (directory / RESULTS).exists():
        try:
            results = read_evaluation(directory).results
        except ConfigurationError as error:
            run.display.warn(f"the evaluation {name} is damaged and is made again: {error}")
            results = {}
        if results.get("policy") == _policy_name(run):  # not so where the run went on after it
            return results
    began = time.perf_counter()
    tasks = run.test.source.tasks
    run.display.phase(f"evaluation {name}", len(tasks))
    config = rollout_config(run.config.rollout, run.config.env, temperature=0.0)
    played = play(
        run.policy,
        run.chat,
        run.test.make_env,
        tasks,
        config,
        seed=run.config.seed,
        name=name,
        progress=lambda done: run.display.advance(done, {}),
        roll=rollout if strategy == "plain" else partial(_roll, run),
    )
    if not any(trajectory.valid for trajectory in played):
        raise Fault(f"the evaluation {name!r} has no score: {_none_played(played)}")
    scorer = run.config.evaluation.scorers[0]
    bounds = None
    if run.config.evaluation.bounds and strategy == "plain":
        bounds = measure_bounds(run.policy, run.chat, run.test, config, scorer, seed=run.config.seed)
    summary = _summary(run, run.test, played, bounds, strategy) | {
        "index_recall": recall_or_none(run.test, run.display.warn)
    }
    write_evaluation(directory, summary, [to_record(trajectory, directory) for trajectory in played])
    run.seconds[f"evaluation_{name}"] = time.perf_counter() - began
    return summary


def _none_played(played: Sequence[Trajectory]) -> str:
    """Why an evaluation without a valid episode has no score."""
    return f"each of {len(played)} episodes met an infrastructure failure ({played[0].error.strip().splitlines()[-1]})"


async def _roll(
    run: Run,
    specs: Sequence[EpisodeSpec],
    policy: Policy,
    chat: ChatFormat,
    config: RolloutConfig,
    *,
    name: str,
) -> list[Trajectory]:
    """As ``rollout``, with the strategy of the evaluation.

    Raises:
        ConfigurationError: the strategy does not give one trajectory for each start.
    """
    settings = run.config.evaluation
    context = RolloutContext(policy, chat, config, run.policy.tokenizer.decode, name=name)
    strategy = get_strategy(settings.strategy, settings.strategy_options)
    groups = await play_groups([[spec] for spec in specs], strategy, context)
    if any(len(group) != 1 for group in groups):
        raise ConfigurationError(
            f"evaluation.strategy={settings.strategy!r} does not give one trajectory for one start; take 'rollback'"
        )
    return [trajectory for group in groups for trajectory in group]


def _summary(
    run: Run,
    task_env: TaskEnv,
    played: Sequence[Trajectory],
    bounds: dict[str, Any] | None = None,
    strategy: str = "plain",
) -> dict[str, Any]:
    info = None if task_env.retriever is None else task_env.retriever.info()
    searched = (
        {} if info is None else {"documents": info.documents, "retriever_fingerprint": info.fingerprint}
    )
    return summarize(
        [to_record(trajectory) for trajectory in played],
        run.config.evaluation.scorers,
        dataset=task_env.source.name,
        split=task_env.source.split,
        policy=_policy_name(run),
        retriever=None if info is None else info.name,
        k=int(run.config.env.options.get("k", 3)),
        seed=run.config.seed,
        bounds=bounds,
        settings=searched
        | {"env": run.config.env.model_dump(mode="json"), "decoding": "greedy"}
        | ({} if strategy == "plain" else {"strategy": strategy}),
    )


def _policy_name(run: Run) -> str:
    return f"{run.config.policy} at step {run.policy.version}"


def score_under(config: TrainConfig) -> float:
    """The mean score of the policy of ``config`` on its test tasks, greedy, by the first scorer.

    Episodes that an infrastructure failure ended are left out.

    Raises:
        EnvFault: none is left.
    """
    config = with_declared_scorers(config)
    policy = make_policy(config.policy)
    task_env = open_questions(config.test, config.search, config.env, policy)
    greedy = rollout_config(config.rollout, config.env, temperature=0.0)
    played = play(
        policy,
        make_chat_format(config.format, policy),
        task_env.make_env,
        task_env.source.tasks,
        greedy,
        name="test",
    )
    scores = [score_of(to_record(t), config.evaluation.scorers[0]) for t in played if t.valid]
    if not scores:
        raise EnvFault(_none_played(played))
    return sum(scores) / len(scores)
