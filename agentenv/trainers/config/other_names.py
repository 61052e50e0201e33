"""What other trainers call the keys of a configuration, so that an error can name the key that is meant.

``docs/guides/other_libraries.md`` has the same names in a table, with what differs in their meaning.
"""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

OTHER_NAMES: Mapping[str, str] = {
    # GRPOConfig of TRL
    "max_steps": "optimizer.steps",
    "num_generations": "rollout.group_size",
    "max_completion_length": "rollout.context_tokens",
    "beta": "loss.kl_coefficient",
    "epsilon": "loss.clip_low",
    "epsilon_high": "loss.clip_high",
    "num_iterations": "optimizer.updates",
    "loss_type": "loss.aggregation",
    "lr_scheduler_type": "optimizer.schedule",
    "report_to": "tracker",
    "model_name_or_path": "policy",
    "model": "policy",
    "lora_r": "lora.rank",
    # SkyRL
    "advantage_estimator": "loss.estimator",
    "n_samples_per_prompt": "rollout.group_size",
    "policy_loss_type": "loss.objective",
    "eps_clip_low": "loss.clip_low",
    "eps_clip_high": "loss.clip_high",
    "loss_reduction": "loss.aggregation",
    "ckpt_interval": "checkpoint_every",
    "eval_interval": "evaluation.every",
    # verl, and Search-R1, which is built on it
    "lr": "optimizer.learning_rate",
    "n": "rollout.group_size",
    "n_agent": "rollout.group_size",
    "train_batch_size": "rollout.questions",
    "batch_size": "rollout.questions",
    "ppo_epochs": "optimizer.updates",
    "ppo_mini_batch_size": "optimizer.mini_batches",
    "max_response_length": "rollout.context_tokens",
    "kl_loss_coef": "loss.kl_coefficient",
    "kl_coef": "loss.kl_coefficient",
    "kl_loss_type": "loss.kl",
    "entropy_coeff": "loss.entropy_coefficient",
    "clip_ratio": "loss.clip_low",
    "clip_ratio_low": "loss.clip_low",
    "clip_ratio_high": "loss.clip_high",
    "loss_agg_mode": "loss.aggregation",
    "adv_estimator": "loss.estimator",
    "total_training_steps": "optimizer.steps",
    "total_epochs": "optimizer.steps",
    "epochs": "optimizer.steps",
    "save_freq": "checkpoint_every",
    "test_freq": "evaluation.every",
    "max_turns": "env.options.max_turns",
    "topk": "env.options.k",
}
"""Key by its name elsewhere, without the tables above it."""
_SHOWN = 3


def key_hint(key: str, above: str, known: Mapping[str, Any], whole: Mapping[str, Any]) -> str:
    """What to write in place of an unknown key.

    Args:
        key: The key, without the tables above it.
        above: These tables, each with a dot behind it.
        known: The keys that stand beside it.
        whole: The whole configuration, in which other tables may have a key of this name.
    """
    elsewhere = [path for path in _paths(whole) if path.rpartition(".")[2] == key][:_SHOWN]
    meant = [OTHER_NAMES[key]] if key in OTHER_NAMES else elsewhere
    # Compared without the tables: with them, any two keys of one table look alike.
    meant = meant or [above + near for near in get_close_matches(key, known, n=1)]
    if meant:
        return f"Did you mean {' or '.join(map(repr, meant))}?"
    return f"Known: {', '.join(above + name for name in sorted(known)) or 'none'}."


def _paths(table: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for name, value in table.items():
        yield above + name
        if isinstance(value, dict):
            yield from _paths(value, f"{above}{name}.")
