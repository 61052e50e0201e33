"""The command ``agentenv trace``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from agentenv.core.io.files import new_folder
from agentenv.data.synthesis.records import refuse_used_folder
from agentenv.errors import ConfigurationError, needs_extra


@dataclass(frozen=True)
class Trace:
    """Finds the capabilities that an agent lacks, and makes an environment and a run for each (TRACE).

    Failures of an evaluation are contrasted with its successes. For each capability that is kept, its environments are tried
    from the easiest to the hardest until the policy succeeds in a fifth to three fifths of the episodes. The folder then
    holds a configuration for each, to be trained by `agentenv train FOLDER/NAME.toml --out FOLDER/NAME`, and a router among
    them, to be evaluated by `agentenv eval --policy router:FOLDER` once all are trained.

    Example: agentenv trace runs/before --config laptop-search --policy hf:runs/tiny --out runs/trace
    """

    evaluation: Annotated[Path, tyro.conf.Positional]
    """Folder of an evaluation of the policy."""
    out: Path
    """Folder for capabilities.json, the configurations and router.json; a new one."""
    config: str = "laptop-search"
    """Preset or TOML file of the run in which the policy is trained; says its worlds, tools and budgets."""
    policy: str = ""
    """The policy; default: that of the configuration."""
    capabilities: str = ""
    """Capabilities of an environment of your own, as module:NAME of a mapping of TrainableCapability by name; default: the
    six of a search agent."""
    model: str = ""
    """A model that proposes capabilities and labels the episodes, such as openai:MODEL@URL or hf:PATH; default: rules
    label them, and no model is asked."""
    passes: int = 10
    """Passes of the model over each episode."""
    tasks: int = 64
    """Episodes by which the success rate in an environment is measured."""
    band: tuple[float, float] = (0.2, 0.6)
    """Least and greatest success rate of the policy in an environment that is kept."""
    rank: int = 16
    """Rank of the adapters that the configurations train; 0 trains all weights."""
    exercise: float = 1.0
    """Reward of an episode of the runs for showing the capability (1 in the paper); what is left up to 1 is paid if the
    answer is right as well. For the six capabilities of a search agent alone."""
    keep_method: bool = False
    """Whether the configurations learn by the loss, the sampler and the strategy of ``config``; otherwise by GRPO, as in the
    paper."""
    replies: Path | None = None
    """Folder that keeps the replies of the model; the same command asks nothing twice after an interruption."""
    trust_config: bool = False
    """Whether the configuration may run code without a sandbox or contact hosts; otherwise the terminal asks."""

    def run(self) -> dict[str, Any]:
        """Labels, makes environments and writes them."""
        refuse_used_folder(self.out, self.replies)
        if self.replies and not self.model:
            raise ConfigurationError("--replies is without effect without --model: leave it out.")
        if min(self.passes, self.tasks) < 1 or self.rank < 0:
            raise ConfigurationError(
                f"passes={self.passes} and tasks={self.tasks} must be at least 1, rank={self.rank} at least 0"
            )
        if self.capabilities and self.exercise != 1.0:
            raise ConfigurationError(
                "--exercise applies to the six capabilities of a search agent alone: leave it out with --capabilities, "
                "where an episode shows a capability from the reward `success` of its TrainableCapability on"
            )
        if not 0 < self.exercise <= 1:
            raise ConfigurationError(f"exercise={self.exercise} must be above 0 and at most 1")
        with needs_extra("train"):
            import torch  # noqa: F401 (the extra is there)
        from agentenv.evaluation.records import read_evaluation
        from agentenv.policies.model_chat import ChatModels
        from agentenv.trainers.trace import (
            check_band,
            check_runs,
            open_once,
            own_capabilities,
            search_capabilities,
        )

        check_band(self.band)
        target = self._target()
        if self.capabilities:
            known = own_capabilities(self.capabilities)
        else:
            known = search_capabilities(target, exercise=self.exercise)
        check_runs(target, known, rank=self.rank, keep_method=self.keep_method)
        evaluation = read_evaluation(self.evaluation)
        chat = ChatModels(self.replies).open(self.model) if self.model else None
        with new_folder(self.out) as folder:
            if chat is not None:  # whatever fails later fails before the model is asked
                open_once(target, known)
            report = self._write(folder, target, known, evaluation, chat)
        return {**report, "out": str(self.out)}

    def _write(self, folder: Path, target: Any, known: Any, evaluation: Any, chat: Any) -> dict[str, Any]:
        """Which of the ``known`` capabilities is lacking, and the environments and runs for it, in ``folder``."""
        from agentenv.trainers.trace import environment_for, lacking, write_capabilities

        found, proposed = lacking(evaluation, known, chat, passes=self.passes)
        kept = [one.capability for one in found if one.kept and one.capability in known]
        made = [
            environment_for(
                target, name, known[name], tasks=self.tasks, band=self.band, keep_method=self.keep_method
            )
            for name in kept
        ]
        return write_capabilities(folder, target, known, found, proposed, made, rank=self.rank)

    def _target(self) -> Any:
        """The configuration of the run, with the policy that is looked at."""
        from agentenv.trainers.config.config_files import load_confirmed, override

        target = load_confirmed(self.config, trusted=self.trust_config)
        return override(target, ["--policy", self.policy] if self.policy else [])

    def show(self, result: dict[str, Any], console: Console) -> None:
        """One line for each capability, and the commands that come next."""
        for row in result["capabilities"]:
            shares = [row[key] for key in ("in_failures", "in_successes", "in_all")]
            said = "{:.2f} of failures, {:.2f} of successes, {:.2f} in all lack it".format(*shares)
            mark = "kept" if row["kept"] else ""
            console.print(f"  {row['capability']:<10}{said}  {mark}", markup=False)
        if not any(row["kept"] for row in result["capabilities"]):
            console.print(
                "  no capability is kept: none is lacking clearly more often in failures than in successes"
            )
        for row in result["environments"]:
            rates = ", ".join(f"{rate:.2f}" for rate in row["rates"])
            found = "kept" if row["kept"] else "no environment of it lies within the band"
            console.print(f"  {row['capability']}: success rates {rates}: {found}", markup=False)
            if row["kept"]:
                folder = f"{result['out']}/{row['capability']}"
                console.print(f"    agentenv train {folder}.toml --out {folder}", markup=False)
