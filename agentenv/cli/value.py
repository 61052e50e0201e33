"""The command ``agentenv value``."""

from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.console import Console

from agentenv.cli.making import making
from agentenv.errors import ConfigurationError, needs_extra
from agentenv.policies.compute import AUTOMATIC, ComputeSettings, use_compute

if TYPE_CHECKING:
    from agentenv.progress import Display
    from agentenv.trainers.learner.value_training import LabelledEpisode


STATES = ".states.jsonl"
"""Ending of the file of the states that were searched, after the name of the model's file."""
MODEL = ".model"
"""Ending of the folder of a language model that has learned with its head."""
SEARCHED = ".searched.jsonl"
"""Ending of the file of what was searched so far, which goes when the model is written."""


@dataclass(frozen=True)
class Value:
    """Trains a value model on the episodes that a run has recorded (trajectories_every), or on a search of its own.

    It predicts after each turn what reward the episode will earn. The strategy vm_mcts searches with it (ReST-RL), and the
    verifier process finds the first wrong step by it (SCOPE). With --search the policy of the run searches so many of its
    training questions, where a continuation is worth its reward, and the states are kept in OUT.states.jsonl. Until the
    model is written, OUT.searched.jsonl holds what was found so far: the same command goes on from there.

    Example: agentenv value runs/rest-rl --out runs/rest-rl.safetensors
    """

    run_folder: Annotated[Path, tyro.conf.Positional]
    """Folder of a training run."""
    out: Path
    """File to write; must not exist. It names the language model, which has to stay where it is."""
    policy: str = ""
    """The language model whose hidden states the head reads, ``tiny`` or ``hf:PATH``. Default: the policy that the run has
    trained."""
    search: int = 0
    """Training questions of the run that are searched for states of known value (the training phase of ReST-RL); 0 takes the
    recorded episodes."""
    iterations: int = 100
    """With --search, states from which the policy goes on, for each question."""
    samples: int = 5
    """With --search, complete continuations from each."""
    children: int = 3
    """With --search, how many of the states after a state, the best ones, are searched further."""
    ridge: float = 100.0
    """Ridge penalty on the weights of the head, above 0; it weighs about as much as that number of states."""
    epochs: int = 0
    """Passes over the states in which the whole language model learns with the head (2 in ReST-RL); it is written to the
    folder OUT.model. 0 fits the head alone."""
    rate: float = 1e-7
    """With --epochs, the step size (1e-7 in ReST-RL, for models of billions of weights)."""
    compute: ComputeSettings = AUTOMATIC
    """Where the language model computes, and how."""
    trust_config: bool = False
    """With --search, do not ask about settings of the run that execute code without a sandbox or contact a host."""

    def run(self) -> dict[str, Any]:
        """Trains the value model and saves it."""
        states, searched = (self.out.with_name(f"{self.out.name}{ending}") for ending in (STATES, SEARCHED))
        self._refuse(states, searched)
        with needs_extra("train"):
            import torch  # noqa: F401 (the extra is there)
        with use_compute(self.compute), making("value model", self.out) as display:
            found = self._trained(self._episodes(display), display)
        if not self.search:
            return found | {"out": str(self.out)}
        searched.unlink()
        return found | {"out": str(self.out), "searched": str(states)}

    def _refuse(self, states: Path, searched: Path) -> None:
        """Refuses files that are there, and numbers that are out of range."""
        # States beside what was searched so far are of a command that was ended before the model was written.
        beside = [states] if self.search and not searched.exists() else []
        model = [self.out.with_name(f"{self.out.name}{MODEL}")] if self.epochs else []
        for path in (self.out, *beside, *model):
            if path.exists():
                raise ConfigurationError(f"{path} exists already; choose another --out")
        for name, number in (("ridge", self.ridge), ("rate", self.rate)):
            if not (isfinite(number) and number > 0):
                raise ConfigurationError(f"--{name} must be finite and above 0, not {number}")
        if self.search < 0 or self.epochs < 0:
            raise ConfigurationError(
                f"--search and --epochs must be at least 0, not {self.search} and {self.epochs}"
            )
        of_a_search = ("iterations", "samples", "children")
        given = [name for name in of_a_search if getattr(self, name) != getattr(Value, name)]
        if given and not self.search:
            raise ConfigurationError(
                f"--{given[0]} has no effect without --search: give the number of questions to search as well"
            )

    def _trained(self, episodes: "list[LabelledEpisode]", display: "Display") -> dict[str, Any]:
        """Fits the head, or with ``--epochs`` trains the language model as well."""
        from agentenv.policies.policy_spec import make_policy
        from agentenv.trainers.learner.value_training import train_value_model
        from agentenv.trainers.warmstart.value_tuning import TuningSettings, tune_value_model

        spec = self.policy or f"hf:{self.run_folder / 'policy'}"
        policy = make_policy(spec, self.compute)
        if not self.epochs:
            return train_value_model(policy, spec, episodes, self.out, ridge=self.ridge, display=display)
        settings = TuningSettings(self.epochs, self.rate)
        model = self.out.with_name(f"{self.out.name}{MODEL}")
        return tune_value_model(
            policy,
            episodes,
            self.out,
            model,
            settings,
            ridge=self.ridge,
            compute=self.compute,
            display=display,
        )

    def _episodes(self, display: "Display") -> "list[LabelledEpisode]":
        """States of known value: recorded ones, or with ``--search`` those of a search, which are kept in a file as well."""
        from agentenv.trainers.config.config_files import resume_confirmed
        from agentenv.trainers.learner.value_training import recorded_episodes
        from agentenv.trainers.strategies.value_search import VERIFIER, ValueSearchStrategy
        from agentenv.trainers.value_states import search_states, write_states

        if not self.search:
            return recorded_episodes(self.run_folder)
        strategy = ValueSearchStrategy(
            value=VERIFIER, iterations=self.iterations, samples=self.samples, children=self.children
        )
        config = resume_confirmed(self.run_folder, trusted=self.trust_config)
        searched = self.out.with_name(f"{self.out.name}{SEARCHED}")
        display.note(
            f"States are written to {searched} as they are found; the same command goes on from there."
        )
        found = search_states(
            config, f"hf:{self.run_folder / 'policy'}", self.search, strategy, self.compute, display, searched
        )
        write_states(self.out.with_name(f"{self.out.name}{STATES}"), found)
        return found

    def show(self, result: dict[str, Any], console: Console) -> None:
        """How well it predicts, and where it is."""
        said = f"{result['states']:,} states of {result['episodes']:,} episodes in {result['tasks']:,} tasks"
        if result["squared_error"] is not None:
            # Every fifth task, from the second on.
            held = len(range(1, result["tasks"], 5))
            said += (
                f"\nMean squared error on the states of {held} held-out tasks: {result['squared_error']:.4f}; of a constant "
                f"{result['constant_error']:.4f}"
            )
        if "searched" in result:
            said += f"\nSearched states: {result['searched']}"
        if "model" in result:
            said += f"\nIts language model: {result['model']}"
        console.print(f"{said}\nValue model: {result['out']}")
