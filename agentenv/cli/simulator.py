"""``agentenv simulator data``, ``train`` and ``serve``: a language model that plays the search engine."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from agentenv.cli.flag_checks import require_at_least_one, require_positive
from agentenv.cli.making import making
from agentenv.errors import ConfigurationError, needs_extra
from agentenv.policies.compute import AUTOMATIC, ComputeSettings, use_compute
from agentenv.streams import make_console


@dataclass(frozen=True)
class Data:
    """Searches for the questions of a training split and divides the results into useful and noisy ones.

    Example: agentenv simulator data --worlds 20 --out runs/simulator.jsonl
    """

    out: Path
    """File to write; must not exist."""
    dataset: str = "world"
    """A name that `agentenv list` shows, or ``world`` for FictionalWorlds made on the spot."""
    data: Path | None = None
    """Folder or file of a named set; default: the environment variable AGENTENV_DATA."""
    worlds: int = 20
    """Number of worlds that are made, with 200 documents and 150 questions each."""
    seed: int = 0
    """Seeds the draw of the questions of a named set. The worlds that are made have the seeds SEED + 1, SEED + 2, ..."""
    retriever: str = ""
    """Spec of the real retriever; default: a FAISS index over the corpus of the questions."""
    encoder: str = "minilm"
    """Encoder of an index that is built."""
    k: int = 2
    """Documents on one page."""
    limit: int | None = None
    """Largest number of questions of a set or of a world."""
    compute: ComputeSettings = AUTOMATIC
    """Where the encoder computes, and how."""

    def run(self) -> dict[str, Any]:
        """Writes the examples and returns how many there are."""
        from agentenv.retrievers.simulation.simulation_data import write_examples

        if self.out.exists():
            raise ConfigurationError(f"{self.out} exists already; choose another --out")
        require_at_least_one(k=self.k, worlds=self.worlds)
        with use_compute(self.compute):
            return {"examples": write_examples(self.out, self._examples()), "out": str(self.out)}

    def _examples(self) -> Iterator[Any]:
        from agentenv.data.sources import WORLD, SourceConfig
        from agentenv.data.world import WorldConfig
        from agentenv.evaluation.task_env import EnvConfig, SearchConfig, open_task_env
        from agentenv.retrievers.simulation.simulated import TRAINING
        from agentenv.retrievers.simulation.simulation_data import collect_examples

        numbers = range(1, self.worlds + 1) if self.dataset == WORLD else (0,)
        search = SearchConfig(retriever=self.retriever, encoder=self.encoder)
        for number in numbers:
            source = SourceConfig(
                dataset=self.dataset,
                data=self.data,
                split=None if self.dataset == WORLD else TRAINING,
                limit=self.limit,
                seed=self.seed,
                world=WorldConfig(
                    seed=self.seed + number,
                    documents=200,
                    questions=150,
                    families=("lookup", "bridge"),
                    split="train",
                ),
            )
            task_env = open_task_env(source, search, EnvConfig(), len)
            yield from collect_examples(task_env.source.tasks, task_env.searched, self.k)

    def show(self, result: dict[str, Any], console: Console) -> None:
        """How many examples there are, and where."""
        console.print(f"{result['examples']:,} examples in {result['out']}")


@dataclass(frozen=True)
class Train:
    """Fine-tunes a simulator on examples and says how well it does on some that it never saw.

    Example: agentenv simulator train runs/simulator.jsonl --out runs/simulator
    """

    examples: tyro.conf.Positional[Path]
    """File that `agentenv simulator data` wrote."""
    out: Path
    """Folder for weights, tokenizer and metrics; must not exist."""
    base: str = "tiny"
    """The model that is fine-tuned: ``tiny`` or ``hf:PATH``."""
    steps: int = 400
    """Optimiser steps."""
    seed: int = 0
    """Seeds the order of the examples."""
    rate: float | None = None
    """Factor on the step sizes of `agentenv warmstart`. Default: 0.25, for the tiny policy. Large models need 0.0025."""
    compute: ComputeSettings = AUTOMATIC
    """Where it learns, and how; in float32 unless bfloat16 is named."""

    def run(self) -> dict[str, Any]:
        """Trains the simulator and saves it."""
        from agentenv.policies.policy_spec import make_policy
        from agentenv.retrievers.simulation.simulation_data import read_examples

        with needs_extra("train"):
            from agentenv.trainers.warmstart import simulator as maker

        if self.out.exists():
            raise ConfigurationError(f"{self.out} exists already; choose another --out")
        require_at_least_one(steps=self.steps)
        if self.rate is not None:
            require_positive(rate=self.rate)
        examples = read_examples(self.examples)
        policy = make_policy(self.base, self.compute.precise())
        config = maker.SimulatorConfig(seed=self.seed, steps=self.steps)
        if self.rate is not None:
            config = replace(config, rate=self.rate)
        with making("simulator", self.out) as display:
            metrics = maker.train_simulator(policy, examples, config, display, self.out)
        return metrics | {"out": str(self.out)}

    def show(self, result: dict[str, Any], console: Console) -> None:
        """The quality report, cost, and where the simulator is."""
        for name in ("useful_contains", "noisy_contains", "unreadable", "copy_rate", "words", "real_words"):
            value = result[name]
            console.print(f"  {name:<18}{'-' if value is None else f'{value:.3f}'}")
        console.print(
            f"n {result['n']}; {result['tokens']:,} tokens in {result['steps']} steps\nSimulator: {result['out']}"
        )


@dataclass(frozen=True)
class Serve:
    """Answers chat requests with a local model, in OpenAI's format.

    Where the environment variable AGENTENV_SERVE_TOKEN is set, callers must send it as their API key.

    Example: agentenv simulator serve runs/simulator --port 6001
    """

    folder: tyro.conf.Positional[Path]
    """Folder of the model."""
    port: int = 6001
    """Port; 0 takes a free one."""
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 lets other machines in."""
    allow_host: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")] = ()
    """Names under which callers may reach this server, beside its addresses, localhost and the machine's name; * is any."""
    compute: ComputeSettings = AUTOMATIC
    """Where it computes, and how."""

    def run(self) -> dict[str, Any]:
        """Serves until it is told to stop."""
        from agentenv.policies.chat_server import make_chat_app
        from agentenv.policies.policy_spec import make_policy
        from agentenv.web.gate import SERVE_TOKEN_VARIABLE, Gate, token_in
        from agentenv.web.server import address_of, listen, run_app

        gate = Gate(token_in(SERVE_TOKEN_VARIABLE))
        app = make_chat_app(make_policy(f"hf:{self.folder}", self.compute), self.folder.name, gate)
        with listen(self.host, self.port) as listening:
            address = f"{address_of(listening)}/v1"
            console = make_console(stderr=True)
            console.print(f"{self.folder.name} answers at {address}")
            run_app(app, gate, gate.ready, listening, self.allow_host)
        return {"address": address}

    def show(self, result: dict[str, Any], console: Console) -> None:
        """Says that it has stopped."""
        console.print(f"{result['address']} has stopped")
