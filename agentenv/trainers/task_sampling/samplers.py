"""The task samplers by name: which tasks a step plays, how many rollouts each gets, and which groups are trained.

A sampler is a data class whose keyword-only fields are its options; ``step_budget.py`` says what it is asked, and
``docs/sampling.md`` has rules, sources and biases in one table. Draws come from a generator seeded by run and step, and
what a sampler learns is saved with each checkpoint, so that a resumed run repeats them.
"""

from collections.abc import Callable, Mapping
from typing import Any

from agentenv.core.options import bind_options, load_part, made_part
from agentenv.trainers.task_sampling.step_budget import (
    Batch,
    GatedSampler,
    Group,
    GuidingSampler,
    Selection,
    StatelessSampler,
    StepBudget,
    TaskDraw,
    TaskSampler,
    chooses_tasks,
    collect,
)

SAMPLERS: Mapping[str, str] = {
    "uniform": "agentenv.trainers.task_sampling.allocation:Uniform",
    "dapo": "agentenv.trainers.task_sampling.allocation:DynamicSampling",
    "ui_s1": "agentenv.trainers.task_sampling.allocation:DiversityFilter",
    "dars": "agentenv.trainers.task_sampling.allocation:DifficultyAdaptive",
    "tiered": "agentenv.trainers.task_sampling.tiered:TieredBudget",
    "xrpo": "agentenv.trainers.task_sampling.uncertainty:UncertaintyAllocation",
    "vade": "agentenv.trainers.task_sampling.selection:PosteriorSampling",
    "dots": "agentenv.trainers.task_sampling.replay:TargetedReplay",
    "gdro": "agentenv.trainers.task_sampling.selection:GroupRobust",
    "prompt_gdro": "agentenv.trainers.task_sampling.difficulty_games:PromptGame",
    "rollout_gdro": "agentenv.trainers.task_sampling.difficulty_games:RolloutGame",
    "hard_focus": "agentenv.trainers.task_sampling.hard_focus:HardFocus",
    "partial_states": "agentenv.trainers.task_sampling.partial_states:PartialStates",
    "curriculum": "agentenv.trainers.task_sampling.selection:Curriculum",
    "arrol": "agentenv.trainers.task_sampling.pruning:OnlinePruning",
    "self_play": "agentenv.trainers.selfplay.sampler:SelfPlaySampler",
    "dart": "agentenv.trainers.task_sampling.curation:AdaptiveCuration",
}
_KIND = "task sampler"
_METHODS = ("replays", "draw", "select", "state_dict", "load_state_dict")


def get_sampler(name: str, options: Mapping[str, Any] | None = None) -> TaskSampler:
    """A new sampler of the kind registered under ``name``, or of the class ``module:Class``, with ``options`` filled in.

    Raises:
        UnknownName: no such sampler, or no such option of it.
        ConfigurationError: an option's value is of another type or out of range, or a class of that name is no sampler.
    """
    sampler: Callable[..., TaskSampler] = load_part(_KIND, name, SAMPLERS)
    return made_part(_KIND, name, bind_options(_KIND, name, sampler, options or {}), _METHODS)


__all__ = [
    "SAMPLERS",
    "Batch",
    "GatedSampler",
    "Group",
    "GuidingSampler",
    "Selection",
    "StatelessSampler",
    "StepBudget",
    "TaskDraw",
    "TaskSampler",
    "chooses_tasks",
    "collect",
    "get_sampler",
]
