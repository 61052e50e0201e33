"""``agentenv train``: a training run from a preset or TOML file, with dotted overrides."""

import argparse
import json
import shlex
import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console

from agentenv.cli.descriptions import description, joined_field_docs
from agentenv.cli.eval import bound_lines, set_lines
from agentenv.cli.switches import plain_switches
from agentenv.data.sources import OWN, WORLD
from agentenv.errors import ConfigurationError, needs_extra
from agentenv.evaluation.report.flat_tables import interval_text
from agentenv.evaluation.task_env import EnvConfig
from agentenv.policies.card import EpisodeCard
from agentenv.trainers.config.config_files import (
    DEFAULT_PRESET,
    load_config,
    load_confirmed,
    override,
    presets,
    resume_confirmed,
)
from agentenv.trainers.config.train_config import TrainConfig


@dataclass(frozen=True)
class Train:
    """Trains a policy and evaluates it before and after.

    Usage: agentenv train [PRESET or FILE.toml] [--out DIR] [--plan] [--cluster ADDRESS] [--trust-config] [--key.path VALUE]
           agentenv train --resume DIR [--trust-config] [--key.path VALUE]

    A FILE.toml or a run that executes code without a sandbox (unsafe-local) or contacts hosts (http:, openai:, remote: ...)
    needs a confirmation at the terminal, or --trust-config; presets and keys of the command line do not.

    Steps, learning rates, intervals, workers and the like may change on --resume; anything else is refused.

    Examples:
        agentenv train laptop-search --out runs/first --optimizer.steps 60
        agentenv train --resume runs/first
        agentenv train --resume runs/first --optimizer.steps 120
        agentenv train laptop-search --cluster local --cluster.workers 2 --out runs/apart
    """

    config: TrainConfig
    out: Path
    resume: bool = False
    plan: bool = False

    @classmethod
    def parse(cls, argv: Sequence[str]) -> "Train":
        """Reads the command line.

        Raises:
            ConfigurationError: flags that do not go together, or a value that is wrong.
            UnknownName: no such preset or file.
        """
        if "--help" in argv or "-h" in argv:
            print(description(cls))
            print(textwrap.fill(f"Presets: {', '.join(presets())}.", shutil.get_terminal_size().columns))
            print("\nKeys and their defaults:\n")
            with joined_field_docs(TrainConfig):
                tyro.cli(
                    TrainConfig, default=load_config(DEFAULT_PRESET), args=["--help"], prog="agentenv train"
                )
        parser = argparse.ArgumentParser(prog="agentenv train", add_help=False, allow_abbrev=False)
        parser.add_argument("--out", type=Path)
        parser.add_argument("--resume", type=Path)
        parser.add_argument("--plan", action=argparse.BooleanOptionalAction, default=False)
        parser.add_argument("--cluster")
        parser.add_argument("--trust-config", action=argparse.BooleanOptionalAction, default=False)
        # argparse would take the value of an override for the preset: only a leading word can be it.
        argv = plain_switches(argv, ["plan", "trust-config"])
        named = bool(argv) and not argv[0].startswith("-")
        known, overrides = parser.parse_known_args(argv[named:])
        if known.cluster is not None:
            overrides += ["--cluster.address", known.cluster]
        if known.resume is not None:
            if named or known.out or known.plan:
                raise ConfigurationError(
                    "--resume reads config.toml of the run: leave out the preset, --out and --plan; keys to change may "
                    "follow"
                )
            held = resume_confirmed(known.resume, trusted=known.trust_config)
            return cls(override(held, overrides), known.resume, resume=True)
        base = load_confirmed(argv[0] if named else DEFAULT_PRESET, trusted=known.trust_config)
        config = override(base, overrides)
        return cls(config, known.out or Path("runs") / config.name, plan=known.plan)

    def run(self) -> dict[str, Any]:
        """Trains, or with ``--plan`` says what the run will need."""
        if self.plan:
            with needs_extra("train"):
                from agentenv.trainers.plan import plan_run
            return plan_run(self.config)
        from agentenv.api import train

        done = train(self.config, out=self.out, resume=self.resume)
        return {**done.results, "report": str(done.report), "policy": str(done.policy), "out": str(done.out)}

    def show(self, result: dict[str, Any], console: Console) -> None:
        """The headline, where everything is, and what to do next."""
        if self.plan:
            for name, value in result.items():
                console.print(f"{name}: {value}")
            return
        self._show_scores(result, "", console)
        for bound in bound_lines(result["bounds"]):
            console.print(f"  {bound}", markup=False)
        for name, value in result["index_recall"].items():
            console.print(f"  index, bare question: {name:<12}{value:.3f}")
        for name in self.config.environments:
            self._show_scores(result, name, console)
        out = result["out"]
        lines = [
            f"\nNumbers: {out}/results.json",
            f"Report:  {result['report']}",
            f"Policy:  {result['policy']}",
        ]
        for line in (*lines, "\nNext:", *(f"  {command}" for command in next_commands(self.config, out))):
            console.print(line, markup=False)

    @staticmethod
    def _show_scores(result: dict[str, Any], environment: str, console: Console) -> None:
        """The scores before and after in a further environment, or in the run's own where none is named."""
        end, where = (f"-{environment}", f" of {environment}") if environment else ("", "")
        sides = {moment: result[f"{moment}{end}"] for moment in ("before", "after")}
        after = sides["after"]
        console.print(f"\n{after['scorer']} on {after['n']} held-out questions{where}", style="bold")
        for name, score in sides.items():
            if score["mean"] is None:
                console.print(f"  {name:<7}no score: every episode met an infrastructure failure")
                continue
            console.print(f"  {name:<7}{score['mean']:.3f}  {interval_text(score['ci95'])}")
            for line in set_lines(score.get("by_set", {})):
                console.print(f"    {line}", markup=False)


def next_commands(config: TrainConfig, out: str) -> list[str]:
    """What to do with a finished run: compare before with after, then ask the policy about tasks like its test tasks.

    Args:
        config: of the run.
        out: its folder.
    """
    folder = shlex.quote(out)
    ends = ["", *(f"-{name}" for name in config.environments)]
    evaluation = f"{folder}/evaluation"
    commands = [f"agentenv compare {evaluation}/before{end} {evaluation}/after{end}" for end in ends]
    test, asked = config.test, f"--policy hf:{folder}/policy --out {folder}/eval"
    flags: dict[str, Any] = {
        "dataset": test.dataset,
        "data": test.data,
        "split": test.split,
        "env": "" if config.env.id == EnvConfig().id else config.env.id,
        "retriever": config.search.retriever,
        "corpus": config.search.corpus,
        "temperature": config.evaluation.temperature or "",
    }
    if test.dataset == WORLD:
        world = f"--documents {test.world.documents} --hops {test.world.hops[0]}-{test.world.hops[1]}"
        families = " ".join(("--families", *test.world.families)) if test.world.families else ""
        made = " ".join(filter(None, (f"--seed {test.world.seed + 1000} {world}", families)))
        commands.append(f"agentenv world {made} --out {folder}/world")
        flags |= {"dataset": "fictional", "data": "", "split": ""}
        asked = f"--data {folder}/world {asked}"
    given = " ".join(f"--{name} {shlex.quote(str(value))}" for name, value in flags.items() if value)
    options = "".join(f"--scorer {shlex.quote(name)} " for name in config.evaluation.scorers)
    options += _as_flags("--option", own_options(config))
    options += _as_flags("--task-option", list(test.options.items()) if test.dataset == OWN else [])
    return [*commands, f"agentenv eval {given} {options}{asked}"]


def _as_flags(flag: str, options: Sequence[tuple[str, Any]]) -> str:
    return "".join(f"{flag} {shlex.quote(f'{key}={json.dumps(value)}')} " for key, value in options)


def own_options(config: TrainConfig) -> list[tuple[str, Any]]:
    """The options of the environment that the `episode.json` of the policy does not keep, so that `--option` has to."""
    from agentenv.trainers.grpo import episode_card

    kept = {field.name for field in fields(EpisodeCard)} | episode_card(config).options.keys()
    return [(key, value) for key, value in config.env.options.items() if key not in kept]
