"""The command ``agentenv value``."""

from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from agentenv.errors import ConfigurationError, MissingExtra
from agentenv.policies.compute import AUTOMATIC, ComputeSettings, use_compute


@dataclass(frozen=True)
class Value:
    """Trains a value model on the episodes that a run has recorded (trajectories_every).

    It predicts after each turn what reward the episode will earn. The strategy vm_mcts searches with it (ReST-RL), and the
    verifier process finds the first wrong step by it (SCOPE).

    Example: agentenv value runs/rest-rl --out runs/rest-rl.safetensors
    """

    run_folder: Annotated[Path, tyro.conf.Positional]
    """Folder of a training run."""
    out: Path
    """File to write; must not exist. It names the language model, which has to stay where it is."""
    policy: str = ""
    """The language model whose hidden states the head reads, ``tiny`` or ``hf:PATH``. Default: the policy that the run has
    trained."""
    ridge: float = 100.0
    """How strongly the weights of the head are pulled towards 0, above 0; about as many states weigh as much."""
    compute: ComputeSettings = AUTOMATIC
    """Where the language model computes, and how."""

    def run(self) -> dict[str, Any]:
        """Trains and saves."""
        if self.out.exists():
            raise ConfigurationError(f"{self.out} exists already; choose another --out")
        if not (isfinite(self.ridge) and self.ridge > 0):
            raise ConfigurationError(f"--ridge must be finite and above 0, not {self.ridge}")
        try:
            import torch  # noqa: F401 (the extra is there)
        except ModuleNotFoundError as error:
            raise MissingExtra.of("torch", "train") from error
        from agentenv.policies.policy_spec import make_policy
        from agentenv.progress import LiveDisplay
        from agentenv.trainers.learner.value_training import train_value_model

        spec = self.policy or f"hf:{self.run_folder / 'policy'}"
        self.out.parent.mkdir(parents=True, exist_ok=True)
        with (
            use_compute(self.compute),
            LiveDisplay("value model", log=self.out.parent / f"{self.out.name}.log") as display,
        ):
            policy = make_policy(spec, self.compute)
            found = train_value_model(
                policy, spec, self.run_folder, self.out, ridge=self.ridge, display=display
            )
        return found | {"out": str(self.out)}

    def show(self, result: dict[str, Any], console: Console) -> None:
        """How well it predicts, and where it is."""
        said = f"{result['states']:,} states of {result['episodes']:,} episodes in {result['tasks']:,} tasks"
        if result["squared_error"] is not None:
            said += (
                f"\nMean squared error on tasks that were held out: {result['squared_error']:.4f}; of a constant "
                f"{result['constant_error']:.4f}"
            )
        console.print(f"{said}\nValue model: {result['out']}", highlight=False)
