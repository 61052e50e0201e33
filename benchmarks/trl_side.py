"""TRL's side of ``trl_comparison.py``."""

import contextlib
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import torch
from reading import Reading, draw_reward
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from agentenv.core.types import Task
from agentenv.policies.hf import HFPolicy


class _StepEnds(TrainerCallback):  # type: ignore[misc]
    def __init__(self, mark: Callable[[], None]) -> None:
        self.mark = mark

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Everything is set up."""
        self.mark()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An optimiser step is done."""
        self.mark()


def train(setting: Any, policy: HFPolicy, batch: int, measured: Any) -> None:
    """Trains for ``setting.steps`` steps and fills ``measured``."""
    tokenizer = policy.tokenizer
    leaders = {_render(tokenizer, setting.task(group, 0)): group for group in range(setting.groups)}
    rows = setting.groups * setting.group_size
    several = bool(setting.tasks[0].data["pages"])
    plays = several or setting.own_prompts
    episodes = [(group, member) for group in range(setting.groups) for member in range(setting.group_size)]
    prompt_tokens = sum(
        len(tokenizer.encode(_render(tokenizer, setting.task(*episode)), add_special_tokens=False))
        for episode in episodes
    )

    def reward(prompts: list[str], completion_ids: list[list[int]], **fields: Any) -> list[float]:
        sampled = sum(sum(mask) for mask in fields["mask"]) if plays else sum(map(len, completion_ids))
        measured.tokens = {
            "episodes": len(prompts),
            "prompt": prompt_tokens,
            "sampled": sampled,
            "observed": sum(map(len, completion_ids)) - sampled,
        }
        return [draw_reward() for _ in prompts]

    def play(prompts: list[str], trainer: Any) -> dict[str, Any]:
        # TRL repeats the prompt of each group for its members, in order.
        tasks = [
            setting.task(leaders[text], place % setting.group_size) for place, text in enumerate(prompts)
        ]
        return rollout(trainer, tokenizer, tasks)

    with tempfile.TemporaryDirectory() as place:
        trainer = GRPOTrainer(
            policy.model,
            reward_funcs=reward,
            args=configure(setting, Path(place), batch, rows),
            train_dataset=datasets.Dataset.from_list([{"prompt": text} for text in leaders]),
            processing_class=tokenizer,
            callbacks=[_StepEnds(measured.mark)],
            rollout_func=play if plays else None,
        )
        with contextlib.redirect_stdout(sys.stderr):
            trainer.train()


def _render(tokenizer: Any, task: Task) -> str:
    messages = [{"role": "user", "content": task.question}]
    text: str = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return text


def configure(setting: Any, place: Path, batch: int, rows: int) -> GRPOConfig:
    """Float32 on the CPU with the objective of the other side and nothing that costs time without need."""
    return GRPOConfig(
        output_dir=str(place),
        max_steps=setting.steps,
        per_device_train_batch_size=min(batch, rows),
        gradient_accumulation_steps=max(1, rows // batch),
        num_generations=setting.group_size,
        max_completion_length=setting.tokens,
        shuffle_dataset=False,
        temperature=1.0,
        learning_rate=1e-5,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_grad_norm=1.0,
        beta=0.0,
        epsilon=0.2,
        epsilon_high=0.28,
        loss_type="dapo",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        logging_strategy="no",
        save_strategy="no",
        disable_tqdm=True,
    )


def rollout(trainer: Any, tokenizer: Any, tasks: list[Task]) -> dict[str, Any]:
    """What a user of ``rollout_func`` writes: all episodes in step, ``generate`` on left-padded rows, ids appended."""
    envs = [Reading() for _ in tasks]
    for env, task in zip(envs, tasks, strict=True):
        env.reset(options={"task": task})
    prompts = [_render(tokenizer, task) for task in tasks]
    prompt_ids = [tokenizer.encode(text, add_special_tokens=False) for text in prompts]
    ids: list[list[int]] = [[] for _ in tasks]
    mask: list[list[int]] = [[] for _ in tasks]
    over = False
    while not over:
        rows = {"input_ids": [[*head, *tail] for head, tail in zip(prompt_ids, ids, strict=True)]}
        batch = tokenizer.pad(rows, padding_side="left", return_tensors="pt")
        with torch.no_grad():
            out = trainer.model.generate(**batch, generation_config=trainer.generation_config)
        for place, sampled in enumerate(out[:, batch["input_ids"].shape[1] :].tolist()):
            step = envs[place].step(tokenizer.decode(sampled))
            text = "".join(message.text for message in step.observation)
            observed = tokenizer.encode(text, add_special_tokens=False)
            ids[place] += sampled + observed
            mask[place] += [1] * len(sampled) + [0] * len(observed)
            over = step.terminated
    return {"prompt_ids": prompt_ids, "completion_ids": ids, "logprobs": None, "env_mask": mask, "mask": mask}
