"""A run folder on disk: configuration, metrics, timings, trajectories and checkpoints, and how a run resumes from it.

Whatever is written is complete or absent: files of a step come before its checkpoint, and a resumed run cuts the logs
back to its last checkpoint, so that the finished files equal those of a run that was never interrupted.
"""

import gzip
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import torch

from agentenv.core.images import keep_image
from agentenv.core.io.claims import claim, require_claimed_folder
from agentenv.core.io.digests import file_digests
from agentenv.core.io.files import (
    append_lines,
    discard_folder,
    new_folder,
    recover_folders,
    remove,
    write_bytes,
    write_text,
)
from agentenv.core.io.strict_json import read_json_text
from agentenv.core.io.weight_digests import DIGESTS, check_weight_digests, write_weight_digests
from agentenv.core.trajectory import Trajectory, to_record
from agentenv.errors import CheckpointMismatch, ConfigurationError
from agentenv.evaluation.journal import holds_evaluation
from agentenv.evaluation.records import PAGE, RESULTS, read_evaluation, read_json
from agentenv.evaluation.report.page import LOG
from agentenv.evaluation.report.report import CHANGES
from agentenv.evaluation.task_env import ENVIRONMENT_KEY
from agentenv.policies.card import EpisodeCard, write_card
from agentenv.policies.export import write_readers, write_weights
from agentenv.policies.hf import HFPolicy
from agentenv.policies.lora import load_weights, on_host, read_trained, weights_digest, write_trained
from agentenv.policies.policy_spec import policy_folder
from agentenv.policies.soundness import first_not_finite, not_finite, refuse_diverged
from agentenv.policies.vllm import VLLMPolicy
from agentenv.trainers.config.config_files import CONFIG, dump_config, resume_config
from agentenv.trainers.config.identity import (
    IDENTITY,
    Change,
    Identity,
    flatten_config,
    refuse_changes,
    refuse_other_contents,
)
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.learner.learner import Learner
from agentenv.trainers.run_folder.logs import LOGS, RunLogs

_FOLDERS = ("checkpoints", "best", "trajectories", "league", "evaluation", "policy", "policy-second")
_STEP = re.compile(r"step-\d{6,}(\.jsonl\.gz)?")
TrainedPolicy = HFPolicy | VLLMPolicy
"""What samples in training and holds the model that is trained."""


class Stateful(Protocol):
    """A part of a run that checkpoints hold."""

    def state_dict(self) -> dict[str, Any]:
        """All that decides what it does next, in plain values: lists, dictionaries, numbers, text."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up where ``state_dict`` stood; an empty mapping is the beginning."""


class RunFolder:
    """The files of one run."""

    def __init__(self, path: Path | str, config: TrainConfig, *, fresh: bool = False) -> None:
        path = Path(path)
        self.path = path
        self.config = config
        self.fresh = fresh
        """Whether this process has made it."""
        self._foreign_log = False
        self.logs = RunLogs(path)
        self._identity = Identity(flatten_config(config), {})
        self._changes: list[Change] = []
        self._newest: Path | None = None
        self._looked = False

    @classmethod
    def create(cls, path: Path | str, config: TrainConfig) -> "RunFolder":
        """Starts a folder.

        Raises:
            ConfigurationError: it holds a run already, or files of one.
        """
        path = Path(path)
        made, foreign_log = not path.exists(), (path / LOG).exists()
        path.mkdir(parents=True, exist_ok=True)
        try:
            with _alone(path):  # two processes may be told the same folder at once
                _refuse_run(path)
                write_text(path / CONFIG, dump_config(config))
        except OSError:
            if made:
                with suppress(OSError):  # the error that is raised is the first one
                    (path / CONFIG).unlink(missing_ok=True)
                    path.rmdir()
            raise
        folder = cls(path, config, fresh=True)
        folder._foreign_log = foreign_log
        return folder

    @classmethod
    def open(cls, path: Path | str, config: TrainConfig | None = None) -> "RunFolder":
        """Opens the folder of an earlier run.

        Args:
            path: The folder.
            config: What it is to go on with; None takes what stands there.

        Raises:
            ConfigurationError: it holds no run, or a configuration that is empty or incomplete.
        """
        return cls(path, resume_config(Path(path)) if config is None else config)

    @cached_property
    def _base(self) -> str | None:
        """Which weights the adapters of the run are added to; None where it trains them all."""
        if not self.config.lora.rank:
            return None
        first = self.config.policy
        specs = dict.fromkeys((first, self.config.second.policy or first))
        return " ".join(weights_digest(policy_folder(spec)) for spec in specs)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Claims the folder for this process within the block; the claim ends with the process, however it ends.

        Raises:
            ConfigurationError: another process runs in it.
        """
        with _alone(self.path):
            yield

    @property
    def begun(self) -> bool:
        """Whether anything is in it that a run goes on from."""
        return (self.path / "evaluation").exists() or (self.path / "metrics.jsonl").exists()

    def discard_unless_begun(self) -> None:
        """Removes the files of a run that failed before its first evaluation was written; the caller holds the claim."""
        with suppress(FileNotFoundError):  # somebody has removed the folder
            require_claimed_folder(self.path)
            if self.begun:
                return
            for name in (CONFIG, IDENTITY, *([] if self._foreign_log else [LOG])):
                (self.path / name).unlink(missing_ok=True)
            if not any(self.path.iterdir()):
                self.path.rmdir()

    def compare_config(self, warn: Callable[[str], None]) -> None:
        """Checks that the run may go on with its configuration.

        Raises:
            ConfigurationError: something has changed that may not change within a run, or lies where it does not belong.
            CheckpointMismatch: all checkpoints are damaged.
        """
        for name in _FOLDERS:
            if (self.path / name).exists() and not (self.path / name).is_dir():
                raise ConfigurationError(
                    f"{self.path / name} is no folder, and one of the run belongs there: move it away"
                )
        mine, checkpoint = Identity.read(self.path / IDENTITY), self._find(warn)
        kept = Identity.read(checkpoint / IDENTITY) if checkpoint else None
        held = mine or kept
        if held is None:
            if self.logs.lines("metrics"):
                warn(f"{self.path} has no {IDENTITY}: what has changed since the run began cannot be noticed")
            return
        if mine is None:
            warn(f"{self.path / IDENTITY} was missing or damaged; it is restored from {checkpoint}")
        if self._newest and _step_of(self._newest) > self.config.optimizer.steps:
            raise ConfigurationError(
                f"{self.path} has made {_step_of(self._newest)} steps already, and optimizer.steps = "
                f"{self.config.optimizer.steps} is below that: raise it"
            )
        self._changes = refuse_changes(held, self.config, self.path)
        if kept is not None:
            refuse_changes(kept, self.config, self.path)
        if not (self.path / CONFIG).exists():
            warn(f"{self.path / CONFIG} was missing; it is written again from {IDENTITY}")
        self._identity = replace(held, config=flatten_config(self.config))

    def compare_contents(self, contents: Mapping[str, str]) -> None:
        """Checks that the run's questions, corpora and starting policies are those that it began with.

        What the run is made of is then kept, and what has changed in its configuration is written down.

        Raises:
            ConfigurationError: one of them has another content.
        """
        held = self._identity.contents
        refuse_other_contents(held, contents, self.path)
        step = _step_of(self._newest) if self._newest else 0
        for change in self._changes:
            append_lines(self.path / CHANGES, [json.dumps({"after_step": step} | change._asdict())])
        if self._changes or not (self.path / CONFIG).exists():
            write_text(self.path / CONFIG, dump_config(self.config))
        self._identity = Identity(flatten_config(self.config), {**contents, **held})
        write_text(self.path / IDENTITY, self._identity.text())
        self._changes = []

    def log(
        self,
        metrics: Mapping[str, Any],
        seconds: Mapping[str, float],
        questions: Iterable[Mapping[str, Any]] = (),
    ) -> None:
        """Appends a line to ``metrics.jsonl`` and to ``timings.jsonl``, and one for each question to ``questions.jsonl``."""
        require_claimed_folder(self.path)
        step = {"step": metrics["step"]}
        self.logs.append("metrics", metrics)
        self.logs.append("timings", step | dict(seconds))
        for question in questions:
            self.logs.append("questions", step | dict(question))

    def history(self, name: str = "metrics") -> list[dict[str, Any]]:
        """The complete lines of a log so far."""
        return [*self.logs.lines(name)]

    def dump(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        """Writes all trajectories of a step, and beside them the images that they name; equal ones give equal bytes.

        Where there are several environments, each record names its own.
        """
        require_claimed_folder(self.path)
        folder = self.path / "trajectories"
        folder.mkdir(exist_ok=True)
        for image in (image for t in trajectories for row in t.row_images for image in row):
            keep_image(image, folder / "images")
        records = [to_record(trajectory) for trajectory in trajectories]
        if self.config.environments:
            named = [{"environment": t.task.data[ENVIRONMENT_KEY]} for t in trajectories]
            records = [name | record for name, record in zip(named, records, strict=True)]
        text = "".join(json.dumps(record) + "\n" for record in records)
        path = folder / f"step-{step:06d}.jsonl.gz"
        write_bytes(path, gzip.compress(text.encode(), compresslevel=3, mtime=0))

    def save_checkpoint(
        self, step: int, policy: TrainedPolicy, learner: Learner, parts: Mapping[str, Stateful]
    ) -> None:
        """Writes weights, tokenizer, optimiser and ``parts`` after ``step`` steps, then drops what it makes needless.

        Those are the oldest checkpoints beyond ``checkpoints_kept``, and every policy in ``best/`` but the last.

        Raises:
            Diverged: the weights, or the logits that they give, are not finite; nothing is written or dropped.
        """
        require_claimed_folder(self.path)
        refuse_diverged(policy.model, f"the weights after step {step}")
        folder = self.path / "checkpoints"
        state = {"step": step, "version": policy.version, "optimizer": on_host(learner.optimizer_state())}
        state |= {"base": self._base} | {name: held.state_dict() for name, held in parts.items()}
        with new_folder(folder / f"step-{step:06d}", replace=True) as part:
            write_trained(policy.model, part, shard_gib=self.config.checkpoint_shard_gib)
            write_readers(policy, part)
            _save(state, part / "trainer.pt")
            self.logs.keep(part)
            (part / IDENTITY).write_text(self._identity.text(), encoding="utf-8")
            (part / DIGESTS).write_text(json.dumps(_digests(part)), encoding="utf-8")
        self._newest = folder / f"step-{step:06d}"
        self._drop_needless()

    def _drop_needless(self) -> None:
        kept = self.config.checkpoints_kept
        for old in (*self._checkpoints()[:-kept], *_folders_in(self.path / "best")[:-1]):
            discard_folder(old)

    def keep_best(self, step: int, policy: TrainedPolicy, card: EpisodeCard) -> None:
        """Writes the policy after ``step`` steps to ``best/``; those before it stay until the next checkpoint, see `resume`.

        Raises:
            Diverged: the weights, or the logits that they give, are not finite; nothing is written.
        """
        self._keep("best", step, policy, card)

    def keep_version(self, step: int, policy: TrainedPolicy) -> None:
        """Writes the weights after ``step`` steps to ``league/``, where they stay.

        Raises:
            Diverged: the weights, or the logits that they give, are not finite; nothing is written.
        """
        self._keep("league", step, policy)

    def _keep(self, folder: str, step: int, policy: TrainedPolicy, card: EpisodeCard | None = None) -> None:
        require_claimed_folder(self.path)
        refuse_diverged(policy.model, f"the weights after step {step}")
        with new_folder(self.path / folder / f"step-{step:06d}", replace=True) as part:
            write_weights(policy.model, part)
            write_weight_digests(part)
            write_readers(policy, part)
            if card is not None:
                write_card(part, card)

    def results(self, warn: Callable[[str], None]) -> dict[str, Any] | None:
        """What the finished run has found; None where there is no such file, or it or the trained policy is damaged."""
        path = self.path / RESULTS
        if not path.exists():
            return None
        try:
            held = read_json(path)
            read_evaluation(self.path / "evaluation" / "after")
        except ConfigurationError as error:
            warn(f"{error} It is made again.")
            return None
        for policy in ("policy", "policy-second"):
            if flaw := self._flaw_of(self.path / policy):
                warn(f"{flaw}; it is written again from the last checkpoint")
                return None
        return held

    def _flaw_of(self, policy: Path) -> str:
        """What is wrong with the folder of a trained policy; empty where nothing is, or the run has no such policy."""
        if policy.name != "policy" and not policy.exists():
            return ""
        if not any(policy.glob("*.safetensors")):
            return f"{policy} holds no weights"
        try:
            check_weight_digests(policy)
        except CheckpointMismatch:
            return f"{policy} holds other weights than were written there"
        return ""

    def versions(self) -> list[Path]:
        """The folders of the kept versions, oldest first."""
        return _folders_in(self.path / "league")

    def last_checkpoint(self) -> Path | None:
        """The newest checkpoint; None where there is none."""
        return next(reversed(self._checkpoints()), None)

    def _checkpoints(self) -> list[Path]:
        return _folders_in(self.path / "checkpoints")

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
        checkpoint = self._find(warn)
        step = 0
        if checkpoint is not None:
            state = self._load(checkpoint, policy, learner)
            step = state["step"]
            policy.resumed(state["version"])
        self._cut_back(step, warn)
        if checkpoint is not None:
            # Otherwise those after it are damaged, and count for nothing.
            if checkpoint == self.last_checkpoint():
                self._drop_needless()  # where the process was killed before it could
            for name, part in parts.items():
                part.load_state_dict(state.get(name, {}))
        return step

    def _find(self, warn: Callable[[str], None]) -> Path | None:
        """The newest intact checkpoint; looked for once."""
        if not self._looked:
            self._newest, self._looked = self._newest_intact(warn), True
        return self._newest

    def _newest_intact(self, warn: Callable[[str], None]) -> Path | None:
        for name in ("checkpoints", "best", "league"):
            recover_folders(self.path / name, "step-*")  # killed while one was replaced or removed
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
                load_weights(policy.model, weights)
        except (RuntimeError, ValueError) as error:
            raise CheckpointMismatch(
                f"{checkpoint} does not fit {self.config.policy} as it is trained here: {error}"
            ) from error
        tied = {"lm_head.weight"} if policy.model.config.tie_word_embeddings else set()
        if odd - tied:
            raise CheckpointMismatch(f"{checkpoint} is of another architecture than {self.config.policy}")
        return state

    def _cut_back(self, step: int, warn: Callable[[str], None]) -> None:
        self.logs.restore(step, self._newest, warn)
        for name in ("trajectories", "league", "best"):
            for path in _of_steps(self.path / name):
                if _step_of(path) > step:
                    remove(path)


def _alone(path: Path) -> AbstractContextManager[None]:
    return claim(path, f"another process trains in {path}; wait for it, or choose another --out")


def _refuse_run(path: Path) -> None:
    if (path / CONFIG).exists():
        if holds_evaluation(path):
            raise ConfigurationError(
                f"{path} holds an evaluation, and a training run needs a folder of its own: choose another --out"
            )
        raise ConfigurationError(
            f"{path} holds a run already: continue it with --resume {path}, or choose another --out"
        )
    for name in (*_FOLDERS, IDENTITY, *(f"{log}.jsonl" for log in LOGS), CHANGES, RESULTS, PAGE):
        if (path / name).exists():
            raise ConfigurationError(
                f"{path} holds {name}, which a new run would replace, and no {CONFIG}: if it is of a run, continue that "
                f"with --resume {path}; otherwise choose another --out"
            )


def _of_steps(folder: Path) -> list[Path]:
    """What lies in ``folder`` under the name of a step, in the order of the steps; other names are somebody else's."""
    return sorted((path for path in folder.glob("step-*") if _STEP.fullmatch(path.name)), key=_step_of)


def _folders_in(folder: Path) -> list[Path]:
    """The folders of steps in ``folder``, oldest first."""
    return [path for path in _of_steps(folder) if path.is_dir()]


def _step_of(path: Path) -> int:
    return int(path.name.partition(".")[0].removeprefix("step-"))


def _save(state: dict[str, Any], path: Path) -> None:
    """Writes what ``torch.load`` reads. Given a path, torch reports a full disk as an error that does not say so."""
    with path.open("wb") as file:
        torch.save(state, file)


def _digests(checkpoint: Path) -> dict[str, str]:
    """SHA-256 of each file of ``checkpoint`` but their list."""
    held = file_digests(checkpoint, whole=sys.maxsize)
    return {name: digest for name, digest in held.items() if name != DIGESTS}


def _intact(checkpoint: Path) -> bool:
    """Whether every file of ``checkpoint`` holds what was written."""
    try:
        wanted = read_json_text((checkpoint / DIGESTS).read_text(encoding="utf-8"))
        return bool(wanted == _digests(checkpoint))
    except (OSError, ValueError):
        return False
