"""A run folder on disk: configuration, metrics, timings, trajectories and checkpoints, and how a run resumes from it.

Whatever is written is complete or absent: files of a step come before its checkpoint, and a resumed run cuts the logs
back to its last checkpoint, so that the finished files equal those of a run that was never interrupted.
"""

import gzip
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from agentenv.core.trajectory import Trajectory, to_record
from agentenv.errors import CheckpointMismatch, ConfigurationError
from agentenv.policies.hf import HFPolicy
from agentenv.policies.vllm import VLLMPolicy
from agentenv.trainers.config import TrainConfig, dump_config, resume_config
from agentenv.trainers.learner import Learner
from agentenv.trainers.sampling import TaskSampler

TrainedPolicy = HFPolicy | VLLMPolicy
"""What samples in training and holds the model that is trained."""

_KEPT = 2  # checkpoints; the one before the last survives a crash while the last is written


class RunFolder:
    """The files of one run."""

    def __init__(self, path: Path, config: TrainConfig) -> None:
        self.path = path
        self.config = config

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
        (path / "config.toml").write_text(dump_config(config), encoding="utf-8")
        return cls(path, config)

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """Opens the folder of an earlier run.

        Raises:
            ConfigurationError: it holds no run.
        """
        return cls(path, resume_config(path))

    def discard_unless_begun(self) -> None:
        """Removes the files of a run that failed before its first evaluation was written."""
        if (self.path / "evaluation").exists() or (self.path / "metrics.jsonl").exists():
            return
        for name in ("config.toml", "run.log"):
            (self.path / name).unlink(missing_ok=True)
        if not any(self.path.iterdir()):
            self.path.rmdir()

    def log(self, metrics: Mapping[str, Any], seconds: Mapping[str, float]) -> None:
        """Appends one line to ``metrics.jsonl`` and one to ``timings.jsonl``."""
        for name, values in (("metrics", metrics), ("timings", {"step": metrics["step"], **seconds})):
            with (self.path / f"{name}.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(values) + "\n")

    def history(self, name: str = "metrics") -> list[dict[str, Any]]:
        """The complete lines of a log so far."""
        path = self.path / f"{name}.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def dump(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        """Writes all trajectories of a step; equal trajectories give equal bytes."""
        folder = self.path / "trajectories"
        folder.mkdir(exist_ok=True)
        text = "".join(json.dumps(to_record(trajectory)) + "\n" for trajectory in trajectories)
        path = folder / f"step-{step:06d}.jsonl.gz"
        part = path.with_suffix(".part")
        part.write_bytes(gzip.compress(text.encode(), compresslevel=3, mtime=0))
        part.replace(path)

    def save_checkpoint(
        self, step: int, policy: TrainedPolicy, learner: Learner, sampler: TaskSampler
    ) -> None:
        """Writes weights, tokenizer, optimiser and sampler after ``step`` steps, then drops all but the newest two."""
        folder = self.path / "checkpoints"
        part, final = folder / "part", folder / f"step-{step:06d}"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        policy.model.save_pretrained(part)
        policy.tokenizer.save_pretrained(part)
        state = {
            "step": step,
            "version": policy.version,
            "optimizer": learner.optimizer.state_dict(),
            "sampler": sampler.state_dict(),
        }
        torch.save(state, part / "trainer.pt")
        shutil.rmtree(final, ignore_errors=True)
        part.rename(final)
        for old in self._checkpoints()[:-_KEPT]:
            shutil.rmtree(old)

    def _checkpoints(self) -> list[Path]:
        return sorted((self.path / "checkpoints").glob("step-*"))

    def resume(self, policy: TrainedPolicy, learner: Learner, sampler: TaskSampler) -> int:
        """Loads the newest checkpoint into ``policy``, ``learner`` and ``sampler`` and cuts the logs back to it.

        Returns:
            The number of steps done; 0 where there is no checkpoint yet.

        Raises:
            CheckpointMismatch: the checkpoint is of another architecture.
        """
        checkpoints = self._checkpoints()
        step = 0
        if checkpoints:
            from safetensors.torch import load_file

            try:
                weights = load_file(checkpoints[-1] / "model.safetensors")
                missing, unexpected = policy.model.load_state_dict(weights, strict=False)
                state = torch.load(checkpoints[-1] / "trainer.pt", weights_only=True)
                learner.optimizer.load_state_dict(state["optimizer"])
            except (RuntimeError, ValueError) as error:
                raise CheckpointMismatch(
                    f"{checkpoints[-1]} is of another architecture than {self.config.policy}: {error}"
                ) from error
            tied = {"lm_head.weight"} if policy.model.config.tie_word_embeddings else set()
            if unexpected or set(missing) - tied:
                raise CheckpointMismatch(
                    f"{checkpoints[-1]} is of another architecture than {self.config.policy}"
                )
            step = state["step"]
            policy.resumed(state["version"])
            sampler.load_state_dict(state.get("sampler", {}))  # checkpoints of uniform draws may have none
        self._cut_back(step)
        return step

    def _cut_back(self, step: int) -> None:
        for name in ("metrics", "timings"):
            kept = [line for line in self.history(name) if line["step"] <= step]
            path = self.path / f"{name}.jsonl"
            part = path.with_suffix(".part")
            part.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
            part.replace(path)
        for path in (self.path / "trajectories").glob("step-*"):
            if int(path.name[5:11]) > step:
                path.unlink()
