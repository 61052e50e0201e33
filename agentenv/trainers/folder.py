"""A run folder on disk: configuration, metrics, timings, trajectories and checkpoints, and how a run resumes from it.

Whatever is written is complete or absent: files of a step come before its checkpoint, and a resumed run cuts the logs
back to its last checkpoint, so that the finished files equal those of a run that was never interrupted.
"""

import fcntl
import gzip
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import torch

from agentenv.core.digests import file_digests
from agentenv.core.files import append_lines, discard_folder, new_folder, write_bytes, write_text
from agentenv.core.trajectory import Trajectory, to_record
from agentenv.errors import CheckpointMismatch, ConfigurationError
from agentenv.policies.export import write_weights
from agentenv.policies.hf import HFPolicy
from agentenv.policies.lora import read_trained, take_over, weights_digest, write_trained
from agentenv.policies.soundness import first_not_finite, not_finite, refuse_diverged
from agentenv.policies.spec import policy_folder
from agentenv.policies.vllm import VLLMPolicy
from agentenv.trainers.config import TrainConfig
from agentenv.trainers.config_files import dump_config, resume_config
from agentenv.trainers.learner import Learner

_DIGESTS = "sha256.json"
TrainedPolicy = HFPolicy | VLLMPolicy
"""What samples in training and holds the model that is trained."""

_KEPT = 2  # checkpoints; the one before the last survives a crash while the last is written


class Stateful(Protocol):
    """A part of a run that checkpoints hold."""

    def state_dict(self) -> dict[str, Any]:
        """All that decides what it does next, in plain values: lists, dictionaries, numbers, text."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up where ``state_dict`` stood; an empty mapping is the beginning."""


class RunFolder:
    """The files of one run."""

    def __init__(self, path: Path, config: TrainConfig) -> None:
        self.path = path
        self.config = config
        self._lines: dict[str, list[dict[str, Any]]] = {}  # of the logs, as they stand on disk

    @classmethod
    def create(cls, path: Path, config: TrainConfig) -> "RunFolder":
        """Starts a folder.

        Raises:
            ConfigurationError: it holds a run already.
        """
        if (path / "config.toml").exists():
            raise ConfigurationError(
                f"{path} holds a run already: continue it with --resume {path}, or choose another --out"
            )
        path.mkdir(parents=True, exist_ok=True)
        write_text(path / "config.toml", dump_config(config))
        return cls(path, config)

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """Opens the folder of an earlier run.

        Raises:
            ConfigurationError: it holds no run.
        """
        return cls(path, resume_config(path))

    @cached_property
    def _base(self) -> str | None:
        """Which weights the adapters of the run are added to; None where it trains them all."""
        if not self.config.lora.rank:
            return None
        first = self.config.policy
        specs = dict.fromkeys((first, self.config.second.policy or first))
        return " ".join(weights_digest(policy_folder(spec)) for spec in specs)

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """The folder is this process's alone; the claim ends with the process, however it ends.

        Raises:
            ConfigurationError: another process runs in it.
        """
        place = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigurationError(
                f"another process trains in {self.path}; wait for it, or choose another --out"
            ) from error
        else:
            yield
        finally:
            os.close(place)

    def discard_unless_begun(self) -> None:
        """Removes the files of a run that failed before its first evaluation was written."""
        if (self.path / "evaluation").exists() or (self.path / "metrics.jsonl").exists():
            return
        for name in ("config.toml", "run.log"):
            (self.path / name).unlink(missing_ok=True)
        if not any(self.path.iterdir()):
            self.path.rmdir()

    def log(
        self,
        metrics: Mapping[str, Any],
        seconds: Mapping[str, float],
        questions: Iterable[Mapping[str, Any]] = (),
    ) -> None:
        """Appends a line to ``metrics.jsonl`` and to ``timings.jsonl``, and one for each question to ``questions.jsonl``."""
        step = {"step": metrics["step"]}
        self._append("metrics", metrics)
        self._append("timings", step | dict(seconds))
        for question in questions:
            self._append("questions", step | dict(question))

    def _append(self, name: str, values: Mapping[str, Any]) -> None:
        lines, line = self._read(name), json.dumps(values)
        append_lines(self.path / f"{name}.jsonl", [line])
        lines.append(json.loads(line))

    def history(self, name: str = "metrics") -> list[dict[str, Any]]:
        """The complete lines of a log so far."""
        return [*self._read(name)]

    def _read(self, name: str) -> list[dict[str, Any]]:
        """The lines of a log, read from disk once."""
        path = self.path / f"{name}.jsonl"
        if name not in self._lines:
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
            self._lines[name] = [json.loads(line) for line in lines if line.endswith("\n")]
        return self._lines[name]

    def dump(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        """Writes all trajectories of a step; equal trajectories give equal bytes."""
        folder = self.path / "trajectories"
        folder.mkdir(exist_ok=True)
        text = "".join(json.dumps(to_record(trajectory)) + "\n" for trajectory in trajectories)
        path = folder / f"step-{step:06d}.jsonl.gz"
        write_bytes(path, gzip.compress(text.encode(), compresslevel=3, mtime=0))

    def save_checkpoint(
        self, step: int, policy: TrainedPolicy, learner: Learner, parts: Mapping[str, Stateful]
    ) -> None:
        """Writes weights, tokenizer, optimiser and ``parts`` after ``step`` steps, then drops all but the newest two.

        Raises:
            Diverged: the weights, or the logits that they give, are not finite; nothing is written or dropped.
        """
        refuse_diverged(policy.model, f"the weights after step {step}")
        folder = self.path / "checkpoints"
        state = {"step": step, "version": policy.version, "optimizer": learner.optimizer_state()}
        state |= {"base": self._base} | {name: held.state_dict() for name, held in parts.items()}
        with new_folder(folder / f"step-{step:06d}", replace=True) as part:
            write_trained(policy.model, part)
            policy.tokenizer.save_pretrained(part)
            torch.save(state, part / "trainer.pt")
            (part / _DIGESTS).write_text(json.dumps(_digests(part)), encoding="utf-8")
        for old in self._checkpoints()[:-_KEPT]:
            discard_folder(old)

    def keep_version(self, step: int, policy: TrainedPolicy) -> None:
        """Writes the weights after ``step`` steps to ``league/``, where they stay.

        Raises:
            Diverged: the weights, or the logits that they give, are not finite; nothing is written.
        """
        refuse_diverged(policy.model, f"the weights after step {step}")
        with new_folder(self.path / "league" / f"step-{step:06d}", replace=True) as part:
            write_weights(policy.model, part)
            policy.tokenizer.save_pretrained(part)

    def versions(self) -> list[Path]:
        """The folders of the kept versions, oldest first."""
        return sorted((self.path / "league").glob("step-[0-9]*[0-9]"))

    def last_checkpoint(self) -> Path | None:
        """The newest checkpoint; None where there is none."""
        return next(reversed(self._checkpoints()), None)

    def _checkpoints(self) -> list[Path]:
        return sorted((self.path / "checkpoints").glob("step-" + "[0-9]" * 6))

    def resume(
        self,
        policy: TrainedPolicy,
        learner: Learner,
        parts: Mapping[str, Stateful],
        warn: Callable[[str], None] = lambda sentence: None,
    ) -> int:
        """Loads the newest intact checkpoint into ``policy``, ``learner`` and ``parts`` and cuts the logs back to it.

        Args:
            policy: Gets weights and version.
            learner: Gets weights and optimiser.
            parts: What else was saved.
            warn: Told of each damaged checkpoint that was passed over.

        Returns:
            The number of steps done; 0 where there is no checkpoint yet.

        Raises:
            CheckpointMismatch: the checkpoint is of another architecture, or all of them are damaged.
        """
        checkpoint = self._newest_intact(warn)
        step = 0
        if checkpoint is not None:
            state = self._load(checkpoint, policy, learner)
            step = state["step"]
            policy.resumed(state["version"])
        self._cut_back(step)
        if checkpoint is not None:
            for name, part in parts.items():
                part.load_state_dict(state.get(name, {}))
        return step

    def _newest_intact(self, warn: Callable[[str], None]) -> Path | None:
        checkpoints = self._checkpoints()
        for checkpoint in reversed(checkpoints):
            if _intact(checkpoint):
                return checkpoint
            warn(f"{checkpoint} is damaged; the run goes on from the checkpoint before it")
        if checkpoints:
            raise CheckpointMismatch(
                f"every checkpoint in {self.path / 'checkpoints'} is damaged: delete that folder to train from the start"
            )
        return None

    def _load(self, checkpoint: Path, policy: TrainedPolicy, learner: Learner) -> dict[str, Any]:
        state: dict[str, Any] = torch.load(checkpoint / "trainer.pt", weights_only=True)
        if state.get("base") != self._base:
            raise CheckpointMismatch(
                f"the adapter in {checkpoint} was trained on other weights than {self.config.policy} holds now"
            )
        weights = read_trained(checkpoint)
        if (name := first_not_finite(weights.items())) is not None:
            raise not_finite(checkpoint, name)
        try:
            odd = set(learner.load(weights, state["optimizer"]))
            if policy.model is not learner.model:
                take_over(policy.model, weights)
        except (RuntimeError, ValueError) as error:
            raise CheckpointMismatch(
                f"{checkpoint} is of another architecture than {self.config.policy}: {error}"
            ) from error
        tied = {"lm_head.weight"} if policy.model.config.tie_word_embeddings else set()
        if odd - tied:
            raise CheckpointMismatch(f"{checkpoint} is of another architecture than {self.config.policy}")
        return state

    def _cut_back(self, step: int) -> None:
        for name in ("metrics", "timings", "questions"):
            if name == "questions" and not self.history(name):
                continue  # no self-play: no such log
            kept = [line for line in self.history(name) if line["step"] <= step]
            path = self.path / f"{name}.jsonl"
            write_text(path, "".join(json.dumps(line) + "\n" for line in kept))
            self._lines[name] = kept
        for path in (self.path / "trajectories").glob("step-*"):
            if int(path.name[5:11]) > step:
                path.unlink()
        for path in (self.path / "league").glob("step-*"):
            if int(path.name[5:11]) > step:
                shutil.rmtree(path)


def _digests(checkpoint: Path) -> dict[str, str]:
    """SHA-256 of each file of ``checkpoint`` but their list."""
    held = file_digests(checkpoint, whole=sys.maxsize)
    return {name: digest for name, digest in held.items() if name != _DIGESTS}


def _intact(checkpoint: Path) -> bool:
    """Whether every file of ``checkpoint`` holds what was written."""
    try:
        wanted = json.loads((checkpoint / _DIGESTS).read_text(encoding="utf-8"))
        return bool(wanted == _digests(checkpoint))
    except (OSError, ValueError):
        return False
