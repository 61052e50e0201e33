"""``agentenv warmstart``: a small policy from nothing."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import isnan
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from agentenv.cli.making import making
from agentenv.core.io.tables import UTF_8
from agentenv.errors import ConfigurationError, needs_extra
from agentenv.policies.compute import AUTOMATIC, ComputeSettings, use_compute
from agentenv.policies.tiny import shipped_weights

_OF_CODE = ("difficulty", "stateful")
_CARELESS = ("code", "sql")
_AFTER_READING = (
    "index_steps",
    "mixture_steps",
    "role_steps",
    "weak_proposer_steps",
    "advice_steps",
    "several_steps",
)
_OF_LEARNING = ("epochs", "batch", "rate")
_PHASES = ("copying_steps", "reading_steps", *_AFTER_READING)


@dataclass(frozen=True)
class Warmstart:
    """Makes a small policy by supervised learning, for search, programs, queries or a desktop, or one that imitates experts.

    Example: agentenv warmstart --out runs/tiny
    """

    out: Path
    """Folder for weights, tokenizer and model card. It must not exist."""
    env: Literal["search", "code", "sql", "desktop", "questions"] = "search"
    """What the policy learns: ``search`` in FictionalWorlds of the training split, or, where it still makes many errors,
    programming tasks (``code``), questions over databases (``sql``) or DomSim's tasks (``desktop``). With ``questions`` a
    reader over MiniLM learns from the question sets in the folder that AGENTENV_DATA names, which takes about an hour of
    one core."""
    seed: int = 0
    """Seeds weights and worlds."""
    copying_steps: int | None = None
    """For search, like the next two: optimiser steps on single pages. Default of all three: as for the shipped policy."""
    reading_steps: int | None = None
    """Optimiser steps on reading exercises and careful episodes."""
    index_steps: int | None = None
    """Optimiser steps on pages that the sentence encoder finds in larger worlds; after --init-from and --from-shipped none
    unless given."""
    mixture_steps: int | None = None
    """Optimiser steps on the mixture of demonstrators; 0 stops at the reader."""
    role_steps: int | None = None
    """Optimiser steps on the roles of self-play, after all others; none where not given."""
    weak_proposer_steps: int | None = None
    """Optimiser steps on the roles of self-play with a weak proposer, after all others; none where not given."""
    advice_steps: int | None = None
    """Optimiser steps on retries that are advised what to look up, after all others; none where not given."""
    several_steps: int | None = None
    """Optimiser steps on pages of several documents that state the same relation of different things, after all others; none
    where not given."""
    hops: int | None = None
    """Greatest number of hops of the questions that are demonstrated; default: 2."""
    from_shipped: bool = False
    """Starts from the shipped policy as it is: for search, steps on a mixture, on roles or on advice are made. With --env
    questions the folder is of the reader that comes with the package, and nothing is taught."""
    init_from: Path | None = None
    """Folder of what an earlier call made, such as a reader with --mixture-steps 0; only the phases after it are run."""
    imitate: tuple[str, ...] = ()
    """Presets or TOML files of runs: the policy of the first learns what the experts of all do on their training tasks."""
    advisor: str = ""
    """With --imitate: also shows failures of the first run's policy that the expert mends after the advice of this verifier
    (rule, evidence or process), so that the policy learns to read advice."""
    arena: int | None = None
    """Folds into which the tasks of --imitate, of one run, are cut (5 in DRIVE). All tasks of the first fold are shown, of
    every other one those that the policy fails by then; tasks that it still fails at the end are shown twice."""
    episodes: tuple[Path, ...] = ()
    """With --imitate of one run: in place of its expert a teacher is imitated, in the solved episodes of these folders of
    `agentenv eval`; a folder of several --samples has all of them."""
    context_tokens: int | None = None
    """Tokens of an episode that --imitate shows, in place of what the runs say: DRIVE's supervised stage reads more than its
    first run."""
    distil: str = ""
    """Preset or TOML file of a run: its policy learns from the best of its own episodes, which it plays after examples."""
    shots: Path | None = None
    """File with the examples of --distil, which may be empty; default: what the environment's expert does on the first three
    tasks."""
    samples: int = 8
    """Episodes of each task, of --distil."""
    tiers: tuple[int, ...] = ()
    """With --distil, in place of --samples: episodes that a task has had in all after each tier, such as 4 8 16. A task
    that is solved too rarely gets the next tier (EvoCUA)."""
    thresholds: tuple[float, ...] = ()
    """Shares of solved episodes, one for each tier but the last; a task that reaches the share gets no further tier."""
    least: float = 1.0
    """Least reward of an episode that --distil and --episodes imitate."""
    mask_redundant: bool = False
    """With --imitate and --distil: turns that lead back to where the episode has been before are not learned."""
    difficulty: int | None = None
    """With --env code: steps of a task before its last; default: 1."""
    stateful: bool | None = None
    """With --env code: programs are tried step by step in an interpreter that is kept."""
    careless: float | None = None
    """With --env code and --env sql: share of the first tries that fail; default: 0.75 and 0.6."""
    trust_config: bool = False
    """Whether these files may run code without a sandbox or contact hosts; otherwise that is asked at the terminal."""
    steps: int | None = None
    """Optimiser steps of --env code, --env sql, --env desktop, --env questions, --imitate and --distil; default of the last
    two: 100, on episodes drawn anew."""
    epochs: int | None = None
    """In place of --steps: passes of --imitate and --distil over the demonstrations; default with --arena: 3."""
    batch: int | None = None
    """Episodes of an optimiser step, of --imitate and --distil; default: 32. Forward passes are bounded by what the run says
    of memory."""
    rate: float | None = None
    """Peak step size of AdamW, of --imitate and --distil, with warm-up over a twentieth of the steps and a cosine after it;
    default: 1e-5, and for models of at most 33 million weights Muon and AdamW as the tiny policy was made."""
    compute: ComputeSettings = AUTOMATIC
    """Where the policy learns, and how; in float32 unless bfloat16 is named. With --imitate the section [compute] of a run
    is not read."""

    def run(self) -> dict[str, Any]:
        """Trains the policy and saves it."""
        with needs_extra("train"):
            import torch  # noqa: F401 (the extra is there)
        self._check()
        with making("warmstart", self.out) as display:
            kinds = {
                "search": self._search,
                "code": self._code,
                "sql": self._sql,
                "desktop": self._desktop,
                "questions": self._questions,
            }
            with use_compute(self.compute.precise()):
                if self.distil:
                    metrics = self._distilled(display)
                else:
                    metrics = self._expert(display) if self.imitate else kinds[self.env](display)
        return metrics | {"out": str(self.out)}

    def _check(self) -> None:
        if self.out.exists():
            raise ConfigurationError(f"{self.out} exists already; choose another --out")
        if self.from_shipped and self.env == "questions":
            if self.steps is not None:
                raise ConfigurationError(
                    "--from-shipped with --env questions teaches nothing: leave --steps out"
                )
        elif self.from_shipped:
            if self.env != "search" or self._given("copying_steps", "reading_steps", "init_from"):
                raise ConfigurationError(
                    f"--from-shipped goes with {_flags(_AFTER_READING)} and --hops alone"
                )
            if not any(self._given(*_AFTER_READING).values()):
                raise ConfigurationError(
                    f"--from-shipped needs one of {_flags(_AFTER_READING)}: nothing else is made"
                )
        if self.steps is not None and self.steps < 1:
            raise ConfigurationError(f"--steps must be at least 1, not {self.steps}")
        if isnan(self.least):
            raise ConfigurationError("--least must be a reward that an episode can earn, not nan")
        if self.hops is not None and not 1 <= self.hops <= 4:
            raise ConfigurationError(f"--hops must be 1 to 4, not {self.hops}")
        self._check_named()
        for name, count in self._given(*_PHASES).items():
            if count < 0:
                raise ConfigurationError(f"{_flags([name])} must be at least 0, not {count}")
        search = self._given(*_PHASES, "init_from", "hops")
        wrong = self._given("steps") if self.env == "search" and not self._named else search
        if self.env != "code" or self._named:
            wrong |= self._given(*_OF_CODE)
        if self.env not in _CARELESS or self._named:
            wrong |= self._given("careless")
        if wrong:
            chosen = f"--{self._named}" if self._named else f"--env {self.env}"
            raise ConfigurationError(f"{_flags(wrong)} does not go with {chosen}")

    def _check_named(self) -> None:
        """Refuses what does not go with, or without, a run that names policy and environment."""
        if self.imitate and self.distil:
            raise ConfigurationError("--imitate and --distil exclude each other")
        if self.arena is not None and (len(self.imitate) != 1 or self.steps):
            raise ConfigurationError("--arena goes with --imitate of one run and without --steps")
        if self.advisor and (not self.imitate or self.arena is not None):
            raise ConfigurationError("--advisor goes with --imitate and without --arena")
        if self.context_tokens is not None and not self.imitate:
            raise ConfigurationError(
                "--context-tokens goes with --imitate, whose runs give the number that it replaces: leave it out"
            )
        if self.episodes and (len(self.imitate) != 1 or self.arena is not None or self.advisor):
            raise ConfigurationError(
                "--episodes goes with --imitate of one run, which says who learns, and without --arena and --advisor"
            )
        if (self.tiers or self.thresholds) and not self.distil:
            raise ConfigurationError(
                "--tiers and --thresholds go with --distil: nothing else plays own episodes"
            )
        if self.episodes and self.mask_redundant:
            raise ConfigurationError(
                "--mask-redundant compares states of the environment, which the records of --episodes do not hold"
            )
        learning = self._given(*_OF_LEARNING)
        if (learning or self.mask_redundant) and not self._named:
            flags = _flags([*learning, *(["mask_redundant"] if self.mask_redundant else [])])
            raise ConfigurationError(f"{flags} goes with --imitate or --distil: nothing else plays episodes")
        if self._named and (self.env != "search" or self.from_shipped or self.seed):
            raise ConfigurationError(
                f"--{self._named} goes with --steps, --epochs, --batch and --rate alone: the run names policy, environment "
                "and seed"
            )
        if self._named:
            self._learning()

    def _learning(self) -> Any:
        """How what is shown is learned.

        Raises:
            ConfigurationError: a number is out of range, or --steps and --epochs are both given.
        """
        from agentenv.trainers.warmstart.learning import LearningSettings

        named = self._given("steps", *_OF_LEARNING)
        if self.arena is not None:
            named = {"epochs": 3} | named
        return LearningSettings(**named)

    @property
    def _named(self) -> str:
        """The flag by which a run names policy and environment; empty where none does."""
        return "imitate" if self.imitate else "distil" if self.distil else ""

    def _given(self, *names: str) -> dict[str, Any]:
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def _search(self, display: Any) -> dict[str, Any]:
        from agentenv.trainers.warmstart.search_warmstart import WarmstartConfig, warmstart

        steps = self._given(*_PHASES)
        init_from = self.init_from
        if init_from:
            steps = {"index_steps": 0} | steps
        if self.from_shipped:
            steps, init_from = {"index_steps": 0, "mixture_steps": 0} | steps, shipped_weights()
        config = WarmstartConfig(seed=self.seed, **steps)
        if self.hops:
            config = replace(
                config,
                world=replace(config.world, hops=(1, self.hops)),
                index_world=replace(config.index_world, hops=(1, self.hops)),
            )
        return warmstart(config, display, self.out, init_from=init_from)

    def _code(self, display: Any) -> dict[str, Any]:
        from agentenv.trainers.warmstart.code_warmstart import CodeWarmstartConfig, code_warmstart

        config = CodeWarmstartConfig(seed=self.seed, **self._given("steps", "careless", *_OF_CODE))
        return code_warmstart(config, display, self.out)

    def _sql(self, display: Any) -> dict[str, Any]:
        from agentenv.trainers.warmstart.sql_warmstart import SqlWarmstartConfig, sql_warmstart

        config = SqlWarmstartConfig(seed=self.seed, **self._given("steps", "careless"))
        return sql_warmstart(config, display, self.out)

    def _desktop(self, display: Any) -> dict[str, Any]:
        from agentenv.trainers.warmstart.desktop_warmstart import DesktopWarmstartConfig, desktop_warmstart

        config = DesktopWarmstartConfig(seed=self.seed, **self._given("steps"))
        return desktop_warmstart(config, display, self.out)

    def _questions(self, display: Any) -> dict[str, Any]:
        from agentenv.trainers.warmstart.reader_lessons import ReaderWarmstartConfig
        from agentenv.trainers.warmstart.reader_warmstart import reader_warmstart, shipped_reader

        config = ReaderWarmstartConfig(seed=self.seed)
        if self.from_shipped:
            return shipped_reader(config, self.out)
        if self.steps:
            config = replace(config, lessons=self.steps * config.batch)
        return reader_warmstart(config, display, self.out)

    def _expert(self, display: Any) -> dict[str, Any]:
        from agentenv.trainers.config.config_files import load_confirmed, override
        from agentenv.trainers.warmstart.expert_warmstart import expert_warmstart

        runs = [load_confirmed(name, trusted=self.trust_config) for name in self.imitate]
        if self.context_tokens is not None:
            said = ["--rollout.context_tokens", str(self.context_tokens)]
            runs = [override(run, said) for run in runs]
        runs = [run.model_copy(update={"compute": self.compute}) for run in runs]
        if self.arena is not None:
            return self._arena(runs[0], display)
        learning = self._learning()
        if self.episodes:
            from agentenv.trainers.warmstart.recorded_episodes import imitate_recorded

            return imitate_recorded(
                runs[0], self.episodes, display, self.out, least=self.least, learning=learning
            )
        return expert_warmstart(
            runs,
            display,
            self.out,
            learning=learning,
            mask_redundant=self.mask_redundant,
            advisor=self.advisor,
        )

    def _arena(self, run: Any, display: Any) -> dict[str, Any]:
        from agentenv.trainers.warmstart.arena import ArenaConfig, arena_warmstart

        assert self.arena is not None
        settings = ArenaConfig(self.arena, self.mask_redundant, self._learning())
        return arena_warmstart(run, settings, display, self.out)

    def _distilled(self, display: Any) -> dict[str, Any]:
        from agentenv.trainers.config.config_files import load_confirmed
        from agentenv.trainers.warmstart.self_distillation import DistillationConfig, self_distillation

        run = load_confirmed(self.distil, trusted=self.trust_config)
        shots = None if self.shots is None else self.shots.read_text(encoding=UTF_8)
        settings = DistillationConfig(
            samples=self.samples,
            least=self.least,
            shots=shots,
            mask_redundant=self.mask_redundant,
            learning=self._learning(),
            tiers=self.tiers,
            thresholds=self.thresholds,
        )
        run = run.model_copy(update={"compute": self.compute})
        return self_distillation(run, settings, display, self.out)

    def show(self, result: dict[str, Any], console: Console) -> None:
        """How well it does, cost, and where the policy is."""
        if self.distil:
            learned, tasks = result["demonstrations"], result["tasks"]
            head = f"Own episodes of {learned:,} in {tasks:,} tasks, with a mean reward of {result['reward']:.3f}"
        elif self.arena:
            counts = f"{result['kept']:,} of {result['demonstrations']:,}"
            head = f"Shown: {counts} episodes of the expert, {result['hard']:,} of them twice"
        elif self.episodes:
            counts = f"{result['demonstrations']:,} of {result['episodes']:,}"
            head = f"Shown: {counts} recorded episodes, of {result['tasks']:,} tasks"
        elif self.imitate:
            head = f"Shown: {result['demonstrations']:,} episodes of the expert"
        elif self.env == "questions" and self.from_shipped:
            head = "The reader that comes with the package, ready to be evaluated and trained"
        elif self.env == "questions":
            head = f"Lessons: {result['lessons']:,}, with a loss of {result['loss']:.2f} at the end"
        elif self.env == "search":
            head = f"Read and copied right on unseen worlds: {result['reading_accuracy']:.3f}"
        else:
            head = f"On unseen tasks: {result['greedy']:.3f} greedy, {result['sampled']:.3f} sampled"
            if "first_tries_failed" in result:
                head += f", {result['first_tries_failed']:.0%} of the first tries failed"
        read = f"{result['tokens']:,} tokens in " if "tokens" in result else ""
        spent = f"{read}{result['minutes']:.1f} minutes\n" if "minutes" in result else ""
        console.print(f"{head}\n{spent}Policy: {result['out']}")


def _flags(names: Iterable[str]) -> str:
    """Options as they are typed."""
    return ", ".join(f"--{name.replace('_', '-')}" for name in names)
