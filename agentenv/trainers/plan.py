"""``agentenv train --plan``: what a run will take on this machine, from a probe of seconds, and whether it fits.

Memory is counted, not guessed: weights and what the optimiser keeps by their sizes, key/value caches by the model's shape,
activations by the bytes that a forward pass of this model saves for its backward pass. Seconds are those of one pass over
made-up rows and of one batch of sampling, scaled to the step.
"""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentenv.core.concurrency.tasks import run_to_completion
from agentenv.core.env_options import checked_arguments
from agentenv.core.io.model_files import read_settings
from agentenv.core.registry import env_class
from agentenv.core.trajectory import Segment, SegmentKind, Trajectory
from agentenv.core.types import EndReason, Sampling, Task
from agentenv.data.overlap import refuse_overlap
from agentenv.errors import ConfigurationError, is_shortage
from agentenv.evaluation.built_retrievers import BUILT
from agentenv.evaluation.task_env import open_tasks, takes
from agentenv.policies.compute import Compute, use_compute
from agentenv.policies.forward import text_config
from agentenv.policies.hf import HFPolicy
from agentenv.policies.lora import base_and_adapter, is_adapted
from agentenv.policies.policy_spec import compute_of, policy_folder
from agentenv.retrievers.retriever_spec import make_retriever
from agentenv.trainers.config.addresses import refuse_silent
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.learner.learner import Learner, Objective, TrainingRow, rows_of
from agentenv.trainers.learner.logprobs import checkpoint_layers, scores_rows
from agentenv.trainers.learner.settings import MemorySettings
from agentenv.trainers.loop.parts import (
    make_objective,
    naming_environment,
    open_second_policy,
    open_trained,
    with_declared_scorers,
)
from agentenv.trainers.strategies.strategies import check_expert, check_tasks, get_strategy
from agentenv.trainers.task_sampling.set_mixture import set_mixture

_PROBE_ROWS = 8
_PROBE_TOKENS = 8  # sampled a row
_TYPICAL_FILL = 0.5  # share of the context that an episode fills, and of a turn's tokens that are sampled
_ASIDE = 1.2  # what allocators and the interpreter take beside what is counted


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of each part at the peak of a step."""

    weights: int
    """All copies of the weights: trained ones, the sampler's in asynchronous training, the reference, a second set."""
    optimizer: int
    """Gradients, Adam's two moments, float32 copies of weights in bfloat16, and the moments of supervised steps (ReLIFT)."""
    caches: int
    """Keys and values of the episodes under way, kept and in the present batch."""
    activations: int
    """Activations of the micro-batches that are computed at once, and the joined weights and gradients that each has."""
    engines: int
    """Engines that the run starts: weights, keys and values, and the file through which they get new weights."""
    caches_freed: bool = False
    """Whether the caches are freed before the learner runs, as on a GPU in synchronous training."""

    @property
    def parts(self) -> dict[str, int]:
        """Bytes by part."""
        return {name: value for name, value in asdict(self).items() if name != "caches_freed"}

    @property
    def total(self) -> int:
        """The most that is held at once, with an allowance for everything else."""
        never_together = min(self.caches, self.activations) if self.caches_freed else 0
        return int(_ASIDE * (sum(self.parts.values()) - never_together))


def plan_run(config: TrainConfig, *, available: int | None = None) -> dict[str, Any]:
    """Tokens, memory and time of a run.

    Args:
        config: The run.
        available: Bytes of memory that it may take; None asks the system.

    Returns:
        Sizes, memory in GiB by part, tokens a second of sampling and learning, seconds of a step, minutes of the run, and a
        note where clip bounds are named that no ratio can reach, or a number format in which this processor is slow.

    Raises:
        ConfigurationError: it does not fit; says what to change. Or its policy is a reader of passages.
    """
    with use_compute(config.compute):
        _refuse_absent(config)
    # Before the weights are loaded, which are part of the estimate.
    compute = compute_of(config.policy, config.compute).resolved()
    free = available_memory(compute.device) if available is None else available
    _refuse_unloadable(config.policy, compute, free)
    with _shortage_in_words(config, free):
        policy = open_trained(config)
        _refuse_reader(config.policy, policy)
        second = open_second_policy(config)
        if config.memory.gradient_checkpointing:
            checkpoint_layers(policy.model)
        models = policy.model, second and second.model
        # What no probe has to measure is refused before one could fill the memory.
        known = memory_of(config, models[0], 0.0, second=models[1])
        _refuse_large(config, replace(known, caches=0), free, 0.0)
        token_bytes, pass_bytes = _probe_memory(policy, config)
        memory = memory_of(config, models[0], token_bytes, second=models[1], pass_bytes=pass_bytes)
        _refuse_large(config, memory, free, token_bytes)
        trained_speed = _probe_learning(policy, config)
        sampled_speed = _probe_sampling(policy, config)
    rollout = config.rollout
    episodes = rollout.questions * rollout.group_size
    environments = [one.env for one in config.by_environment.values()]
    turns = max(int(env.options.get("max_turns", 3)) for env in environments) + 1
    sampled = int(episodes * min(turns * rollout.turn_tokens, rollout.context_tokens) * _TYPICAL_FILL)
    tokens = int(episodes * rollout.context_tokens * _TYPICAL_FILL)
    notes = [note for note in (config.bounds_note, config.precision_note) if note]
    step_seconds = tokens / trained_speed * config.optimizer.updates + sampled / sampled_speed
    return {
        "parameters": sum(p.numel() for p in policy.model.parameters()),
        "episodes_per_step": episodes,
        "tokens_per_step": tokens,
        "sampled_tokens_per_step": sampled,
        "memory_gib": _gib(memory.total),
        "available_gib": _gib(free),
        "memory_parts_gib": {name: _gib(value) for name, value in memory.parts.items()},
        "trained_tokens_per_s": round(trained_speed),
        "sampled_tokens_per_s": round(sampled_speed),
        "seconds_per_step": round(step_seconds, 2),
        "training_minutes": round(step_seconds * config.optimizer.steps / 60, 1),
    } | ({"note": "; ".join(notes)} if notes else {})


def _refuse_unloadable(spec: str, compute: Compute, free: int) -> None:
    """Refuses a policy whose weights alone do not fit, before they are read.

    Raises:
        ConfigurationError: they do not.
    """
    base, _ = base_and_adapter(policy_folder(spec))
    if not (base / "config.json").is_file():  # said when it is opened
        return
    stored = sum(file.stat().st_size for file in base.glob("*.safetensors"))
    settings = read_settings(base / "config.json")
    halves = (settings.get("dtype") or settings.get("torch_dtype")) in ("bfloat16", "float16")
    width = 2 if halves and compute.dtype is torch.float32 else 1
    if stored * width > free:
        raise ConfigurationError(
            f"the weights of {spec} take {_gib(stored * width)} GiB and {_gib(free)} GiB are free: take a smaller "
            "policy"
        )


def _refuse_reader(spec: str, policy: HFPolicy) -> None:
    if scores_rows(policy.model):
        raise ConfigurationError(
            f"{spec} is a reader of passages, whose memory and speed depend on what its searches find: a plan "
            "cannot measure it on made-up tokens. Train it without --plan; on a small machine lower memory.micro_tokens."
        )


@contextmanager
def _shortage_in_words(config: TrainConfig, free: int) -> Iterator[None]:
    """Within the block a lack of memory becomes the sentence of a refusal.

    Raises:
        ConfigurationError: an allocation failed.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_shortage(error):
            raise
        raise ConfigurationError(
            f"{_gib(free)} GiB were free, too little for a probe with {config.policy} and episodes of "
            f"{config.rollout.context_tokens} tokens: lower rollout.context_tokens, or take a smaller policy"
        ) from error


def _refuse_absent(config: TrainConfig) -> None:
    """Refuses tasks, environments and retrievers that are not there, as the run would; no index is built.

    Raises:
        AgentEnvError: what the run would raise.
    """
    learned: list[Task] = []
    measured: dict[str, dict[str, Sequence[Task]]] = {}
    for name, declared in with_declared_scorers(config).by_environment.items():
        with naming_environment(name):
            tasks = _present_tasks(declared)
        learned += () if declared.train.topics else tasks["train"]
        measured[name] = {part: tasks[part] for part in ("dev", "test")}
    for name, questions in measured.items():
        with naming_environment(name):
            refuse_overlap(learned, questions, allowed=config.evaluation.on_training_tasks)
    refuse_silent(config.cluster.address)


def _present_tasks(config: TrainConfig) -> dict[str, Sequence[Task]]:
    """The tasks of training, dev and test in one environment, where it and its retriever are there too."""
    checked_arguments(env_class(config.env.id), config.env.id, config.env.options)
    sources = {"train": config.train, "dev": config.dev, "test": config.test}
    opened = {part: open_tasks(source, config.search, config.env) for part, source in sources.items()}
    set_mixture(opened["train"], config.train.weights)
    rollout, spec = config.rollout, config.search.retriever
    strategy = get_strategy(rollout.strategy, rollout.strategy_options)
    check_tasks(strategy, opened["train"].tasks)
    check_expert(strategy, env_class(config.env.id), opened["train"].tasks)
    if spec not in BUILT and takes(config.env.id, "retriever"):
        make_retriever(spec)
    return {part: one.tasks for part, one in opened.items()}


def memory_of(
    config: TrainConfig,
    model: Any,
    token_bytes: float,
    second: Any | None = None,
    *,
    pass_bytes: int = 0,
) -> MemoryEstimate:
    """Bytes that the run takes at its peak.

    Args:
        config: The run.
        model: The policy's.
        token_bytes: Activations of one token of a row that fills the context.
        second: The model of the second set of weights, where there is one.
        pass_bytes: What passes take whatever their tokens.
    """
    tokens = max(config.memory.micro_tokens, config.rollout.context_tokens)
    models = [model] if second is None else [model, second]
    sampled_here = config.engine.kind == "hf"
    return MemoryEstimate(
        weights=sum(_weights(config, one) for one in models),
        optimizer=sum(_optimizer(config.memory, one) for one in models) + _second_moments(config, model),
        caches=_caches(config, model) if sampled_here else 0,
        activations=int(token_bytes * tokens) + pass_bytes,
        engines=0 if sampled_here else _engines(config, model),
        caches_freed=model.device.type != "cpu" and not config.asynchronous.staleness,
    )


def _bytes(model: Any, *, trained: bool = False) -> int:
    """Bytes of all weights of ``model``, or of those that are trained."""
    parameters = [p for p in model.parameters() if p.requires_grad or not trained]
    return sum(int(p.numel() * p.element_size()) for p in parameters)


def _optimizer(memory: MemorySettings, model: Any) -> int:
    """Gradients, moments and copies of what is trained."""
    trained = (weight for weight in model.parameters() if weight.requires_grad)
    copies = sum(4 * int(weight.numel()) for weight in trained if _has_copy(memory, weight))
    copies = 0 if _on_host(memory, model) else copies
    return _bytes(model, trained=True) + copies + _moments(memory, model)


def _on_host(memory: MemorySettings, model: Any) -> bool:
    """Whether moments and copies stand in another memory than the model."""
    return bool(memory.offload_optimizer and model.device.type != "cpu")


def _moments(memory: MemorySettings, model: Any) -> int:
    """Adam's two moments, which are those of the float32 copy where a weight has one."""
    if _on_host(memory, model):
        return 0
    total = 0
    for weight in (weight for weight in model.parameters() if weight.requires_grad):
        width = 4 if _has_copy(memory, weight) else weight.element_size()
        total += 2 * weight.numel() * (1 if memory.optimizer == "adamw_8bit" else width)
    return total


def _second_moments(config: TrainConfig, model: Any) -> int:
    """The moments of the optimiser of supervised steps, which moves the same weights and copies (ReLIFT)."""
    return _moments(config.memory, model) if config.rollout.strategy == "demonstrate" else 0


def _has_copy(memory: MemorySettings, weight: Tensor) -> bool:
    return memory.master_weights and weight.element_size() < 4


def _weights(config: TrainConfig, model: Any) -> int:
    """Bytes of all copies. Weights that are not trained are shared, and a model with adapters is its own reference."""
    ahead = _bytes(model, trained=True) * config.copies_weights
    objective = make_objective(config.resolved_loss, config.memory, config.rollout)
    apart = objective.needs_reference and not is_adapted(model)
    return _bytes(model) * (1 + apart) + ahead


def _engines(config: TrainConfig, model: Any) -> int:
    settings = config.engine.resolved(rounds=config.compute.rounds)
    if settings.urls:
        return 0
    width = 4 if settings.dtype == "float32" else 2
    one = width * sum(int(p.numel()) for p in model.parameters()) + int(settings.kv_gib * 2**30)
    return settings.replicas * one + (_bytes(model) if settings.weights_dir is None else 0)


def _caches(config: TrainConfig, model: Any) -> int:
    if scores_rows(model):
        return 0
    shape = text_config(model)
    width = getattr(shape, "head_dim", None) or shape.hidden_size // shape.num_attention_heads
    heads = getattr(shape, "num_key_value_heads", None) or shape.num_attention_heads
    token_cache = 2 * shape.num_hidden_layers * heads * width * model.dtype.itemsize
    live = config.concurrent_groups if config.asynchronous.staleness else config.rollout.questions
    episodes: int = config.rollout.workers or live * config.rollout.group_size
    return int(2 * token_cache * episodes * config.rollout.context_tokens)


def available_memory(device: torch.device | None = None, *, root: Path = Path("/")) -> int:
    """Bytes that this process may still take.

    Of a CUDA device what it has free; else what the system has free, or less where a control group around the process bounds
    it.

    Args:
        device: None is the processor.
        root: Below which the system describes itself in ``proc`` and ``sys``.
    """
    if device is not None and device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    lines = (root / "proc/meminfo").read_text(encoding="utf-8").splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    free = int(fields["MemAvailable"].split()[0]) * 1024
    rooms = (room for group in _groups(root) if (room := _room(group)) is not None)
    return max(0, min([free, *rooms]))


def _groups(root: Path) -> Iterator[Path]:
    """The control groups (version 2) around this process, from the innermost to the topmost."""
    top = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    inner = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), "")
    for folder in (top / inner, *(top / inner).parents):
        yield folder
        if folder == top:
            break


def _room(group: Path) -> int | None:
    """Bytes that a control group may still take; None where it has no bound. Files that it may drop count as free."""
    try:
        bound = (group / "memory.max").read_text(encoding="utf-8").strip()
        used = int((group / "memory.current").read_text(encoding="utf-8"))
        lines = (group / "memory.stat").read_text(encoding="utf-8").splitlines()
    except OSError:  # no such control group
        return None
    held = dict(line.split() for line in lines)
    files = sum(int(held.get(name, 0)) for name in ("active_file", "inactive_file"))
    return None if bound == "max" else int(bound) - used + files


def _refuse_large(config: TrainConfig, memory: MemoryEstimate, free: int, token_bytes: float) -> None:
    if memory.total > free:
        raise ConfigurationError(_refusal(config, memory, free, token_bytes))


def _refusal(config: TrainConfig, memory: MemoryEstimate, free: int, token_bytes: float) -> str:
    """Why the run does not fit, and the first change that makes it."""
    needs = f"the run needs about {_gib(memory.total)} GiB and {_gib(free)} GiB are free: "
    tokens = max(config.memory.micro_tokens, config.rollout.context_tokens)
    of_passes = memory.activations - int(token_bytes * tokens)
    left = free / _ASIDE - memory.weights - memory.optimizer - memory.engines - of_passes
    least = token_bytes * config.rollout.context_tokens
    if left < least:
        engines = "lower engine.kv_gib or engine.replicas, or " if memory.engines else ""
        return needs + f"weights and optimiser leave no room for one episode; {engines}take a smaller policy"
    micro = int((left if memory.caches_freed else left - memory.caches) / token_bytes)
    if micro >= config.rollout.context_tokens and memory.caches <= left:
        saving = "" if config.memory.gradient_checkpointing else ", or gradient_checkpointing to true"
        return needs + f"set memory.micro_tokens to at most {micro}{saving}"
    episode = memory.caches / (config.rollout.questions * config.rollout.group_size)
    most = int((left if memory.caches_freed else left - least) / episode / config.rollout.group_size)
    if most < 1:
        return needs + "lower rollout.context_tokens and memory.micro_tokens"
    fitting = min(micro, tokens) if memory.caches_freed else config.rollout.context_tokens
    return needs + f"set rollout.questions to at most {most} and memory.micro_tokens to {fitting}"


def _gib(size: float) -> float:
    return round(size / 2**30, 2)


def _probe_length(context_tokens: int) -> int:
    """Tokens of a made-up row."""
    return max(int(context_tokens * _TYPICAL_FILL), 2)


def _probing_learner(policy: HFPolicy, config: TrainConfig) -> Learner:
    """One that reads a row at a time, and is never asked for a step."""
    objective = Objective(
        micro_tokens=_probe_length(config.rollout.context_tokens) + 1, precision=config.memory.precision
    )
    return Learner(policy.model, objective, learning_rate=1e-9)


def _probe_memory(policy: HFPolicy, config: TrainConfig) -> tuple[float, int]:
    """Bytes saved by passes at once for a token of a row that fills the context, and those for no token.

    They are measured on made-up rows of up to half the context. The latter are joined weights and their gradients, and what
    passes at once keep of gradients until they are added.
    """
    learner, third = (
        _probing_learner(policy, config),
        max(1, _probe_length(config.rollout.context_tokens) // 3),
    )
    saved = [_saved_bytes(learner, _made_up_row(policy, third * n)) for n in (1, 2, 3)]
    constant, linear, square = quadratic_through(third, saved)
    at_once, token_bytes = learner.batches_at_once, linear + square * config.rollout.context_tokens
    apart = 2 * _bytes(policy.model, trained=True) if at_once > 1 else 0
    return at_once * token_bytes, at_once * (2 * int(constant) + apart)


def quadratic_through(step: int, bytes_3: Sequence[int]) -> tuple[float, float, float]:
    """Bytes a + b n + c n^2 of a row of n tokens: a, b and c, none below 0.

    The square is that of attention, whose mask, and in some kernels whose weights, have an entry for each pair of tokens.

    Args:
        step: Tokens of the first row.
        bytes_3: Of rows of ``step``, twice and three times as many tokens.
    """
    first, second, third = bytes_3
    square = max(0.0, (third - 2 * second + first) / (2 * step**2))
    linear = max(0.0, (third - first) / (2 * step) - 4 * square * step)
    return max(0.0, third - 3 * step * linear - 9 * step**2 * square), linear, square


def _probe_learning(policy: HFPolicy, config: TrainConfig) -> float:
    """Tokens a second through forward and backward, on made-up rows of half the context."""
    learner, length = _probing_learner(policy, config), _probe_length(config.rollout.context_tokens)
    row = _made_up_row(policy, length)
    began = time.perf_counter()
    learner.accumulate([row] * _PROBE_ROWS)
    return _PROBE_ROWS * length / (time.perf_counter() - began)


def _made_up_row(policy: HFPolicy, tokens: int) -> TrainingRow:
    ids = tuple(i % text_config(policy.model).vocab_size for i in range(tokens))
    segment = Segment(SegmentKind.POLICY, ids, 0, logprobs=(0.0,) * tokens)
    segments = (Segment(SegmentKind.PROMPT, (0,), 0), segment)
    trajectory = Trajectory(Task("probe", ""), segments, (), 0.0, EndReason.ANSWERED)
    (row,) = rows_of([trajectory], [trajectory.loss_mask.astype(float)])
    return row


def _saved_bytes(learner: Learner, row: TrainingRow) -> int:
    """What a forward pass over ``row`` saves for its backward pass, without the weights themselves."""
    weights = {weight.untyped_storage()._cdata for weight in learner.model.parameters()}
    saved: dict[int, torch.UntypedStorage] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[storage._cdata] = storage  # kept, since another one could get the place of one that is freed
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        learner.accumulate([row])
    return sum(storage.nbytes() for place, storage in saved.items() if place not in weights)


def _probe_sampling(policy: HFPolicy, config: TrainConfig) -> float:
    """Tokens a second of sampling a second turn, for each episode of a step, at most 64: the first one's prefix is kept."""
    rollout = config.rollout
    count = min(rollout.questions * rollout.group_size, 64)
    sampling = Sampling(max_tokens=min(_PROBE_TOKENS, rollout.turn_tokens))
    prompt = [0] * max(int(rollout.context_tokens * _TYPICAL_FILL) - 2 * sampling.max_tokens, 1)
    prompts = [[*prompt, place % text_config(policy.model).vocab_size] for place in range(count)]

    async def turn() -> int:
        asked = (policy.generate(ids, sampling, episode=f"probe-{i}") for i, ids in enumerate(prompts))
        answers = [completion.ids for completion in await asyncio.gather(*asked)]
        for ids, answer in zip(prompts, answers, strict=True):
            ids.extend(answer)
        return sum(map(len, answers))

    run_to_completion(turn())
    began = time.perf_counter()
    sampled = run_to_completion(turn())
    spent = time.perf_counter() - began
    for place in range(count):
        policy.release(f"probe-{place}")
    return sampled / spent


__all__ = ["MemoryEstimate", "available_memory", "memory_of", "plan_run", "quadratic_through"]
