"""The tasks of several environments together: which is whose, and how many each gives."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from agentenv.core.rollout import RolloutConfig
from agentenv.core.types import Task
from agentenv.data.sources import Source
from agentenv.errors import ConfigurationError
from agentenv.evaluation.task_env import EnvConfig, TaskEnv
from agentenv.trainers.task_sampling.training_tasks import TrainedEnvironment, TrainingTasks


def environment(
    name: str, share: float, sizes: dict[str, int], weights: dict[str, float] | None = None
) -> TrainedEnvironment:
    """Sets of so many tasks each, whose ids are the same in every environment."""
    several = len(sizes) > 1
    tasks = tuple(
        Task(f"{one}:{i}", "?", ("x",), data={"set": one} if several else {})
        for one, size in sizes.items()
        for i in range(size)
    )
    source = Source("+".join(sizes), "train", tasks, None, None, parts=tuple(sizes) if several else ())
    env = TaskEnv(source, None, EnvConfig(), len)
    return TrainedEnvironment(name, share, env, RolloutConfig(), weights or {})


def test_one_environment_has_its_own_tasks_and_no_mixture() -> None:
    alone = environment("env", 1.0, {"a": 3})
    training = TrainingTasks([alone])
    assert training.tasks == alone.task_env.source.tasks
    assert training.tasks[0].data == {}
    assert (training.mixture, training.several) == (None, False)
    assert training.environment_at(2) is alone
    assert training.environment_of(training.tasks[0]) == "env"


def test_a_task_is_played_in_its_environment_and_keeps_its_id() -> None:
    first, second = environment("env", 0.5, {"a": 3}), environment("code", 0.5, {"a": 2})
    training = TrainingTasks([first, second])
    assert [training.environment_at(place).name for place in range(5)] == ["env"] * 3 + ["code"] * 2
    assert [training.environment_of(task) for task in training.tasks] == ["env"] * 3 + ["code"] * 2
    # An environment may know a task by its id.
    assert [task.id for task in training.tasks] == ["a:0", "a:1", "a:2", "a:0", "a:1"]


def test_shares_are_divided_among_the_sets_by_their_weights() -> None:
    """Of 16 tasks .25 are 4 of the sums; of the 12 others 3/4 are of nq and 1/4 of hotpotqa, whatever their sizes."""
    training = TrainingTasks(
        [
            environment("env", 0.75, {"nq": 2, "hotpotqa": 90}, {"nq": 3.0, "hotpotqa": 1.0}),
            environment("sums", 0.25, {"sums": 40}),
        ]
    )
    assert training.mixture is not None
    for step in range(5):
        drawn = training.mixture.draw(16, [], np.random.default_rng(step))
        counts = Counter(training.environment_of(training.tasks[place]) for place in drawn)
        sets = Counter(training.tasks[place].data.get("set") for place in drawn)
        assert counts == {"env": 12, "sums": 4}
        assert sets == {"nq": 9, "hotpotqa": 3, None: 4}


def test_without_weights_the_questions_of_an_environment_are_equally_likely() -> None:
    training = TrainingTasks(
        [environment("env", 0.5, {"nq": 10, "hotpotqa": 30}), environment("sums", 0.5, {"sums": 4})]
    )
    assert training.mixture is not None
    seen: Counter[Any] = Counter()
    for step in range(400):
        drawn = training.mixture.draw(8, [], np.random.default_rng(step))
        seen += Counter(training.tasks[place].data.get("set", "sums") for place in drawn)
    assert seen["sums"] == 1600
    # 1600 draws of which a quarter are of nq: 400, with a standard deviation below 17.3.
    assert abs(seen["nq"] - 400) < 70


def test_a_field_of_the_questions_is_not_overwritten() -> None:
    own = environment("env", 0.5, {"a": 2})
    source = replace(own.task_env.source, tasks=(Task("a:0", "?", ("x",), data={"environment": "prod"}),))
    task_env = replace(own.task_env, source=source)
    with pytest.raises(
        ConfigurationError, match="'a:0' of the environment 'code' has 'environment' in its data"
    ):
        TrainingTasks([own, replace(own, name="code", task_env=task_env)])
    assert TrainingTasks([replace(own, task_env=task_env)]).tasks[0].data == {"environment": "prod"}
