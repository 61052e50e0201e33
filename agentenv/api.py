"""Training and evaluating from Python. The commands ``agentenv train`` and ``agentenv eval`` call these functions too."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

from agentenv.core.concurrency.background import without_running_loop
from agentenv.core.env import Env
from agentenv.core.io.temporary import temporary_folder
from agentenv.core.protocols import Policy, Retriever
from agentenv.core.trust import confirm_file
from agentenv.core.types import Task
from agentenv.data.sources import OWN
from agentenv.errors import ConfigurationError, UnknownName, needs_extra
from agentenv.evaluation.benchmark import Benchmark, BenchmarkParts, run_benchmark
from agentenv.evaluation.records import PAGE, EpisodeRecord, read_evaluation
from agentenv.evaluation.report.page import require_renderer
from agentenv.evaluation.report.report import write_report
from agentenv.evaluation.suite import make_suite, read_suite
from agentenv.evaluation.task_env import env_id_of
from agentenv.policies.agent import Agent, AgentPolicy
from agentenv.policies.compute import ComputeSettings, process_compute, use_compute
from agentenv.progress import Display, LiveDisplay, LiveDisplays
from agentenv.trainers.config.config_files import DEFAULT_PRESET, changed, load_confirmed, resume_confirmed
from agentenv.trainers.config.train_config import TrainConfig

_GIVEN_TASKS = "tasks"  # what results call tasks that were given as objects


@dataclass(frozen=True)
class Score:
    """A mean over questions with its uncertainty."""

    scorer: str
    """Name of the scorer; ``reward`` is what the environment itself gave."""
    mean: float | None
    """None where no episode could be played."""
    n: int
    """Questions that it is a mean of; infrastructure failures are left out."""
    ci95: tuple[float, float] | None
    """95 % interval of the mean; None where too few questions give none."""


@dataclass(frozen=True)
class TrainResult:
    """What a training run gave."""

    out: Path
    """Folder of the run."""
    before: Score
    """On the test questions, before the first step."""
    after: Score
    """On the same questions, after the last step."""
    policy: Path
    """Folder of the trained policy, for ``hf:PATH``."""
    report: Path
    """A self-contained HTML page."""
    results: Mapping[str, Any] = field(repr=False)
    """The content of ``results.json``."""


@dataclass(frozen=True)
class EvaluationResult:
    """What an evaluation gave."""

    scores: Mapping[str, Score]
    """By scorer, the headline first."""
    n: int
    """Questions that were answered."""
    faults: int
    """Questions whose episode an infrastructure failure or an exception of the agent ended; they are in no mean."""
    episodes: Sequence[EpisodeRecord] = field(repr=False)
    """One record for each question, in their order: turns, reward, how it ended, and of a failure what went wrong."""
    results: Mapping[str, Any] = field(repr=False)
    """The content of ``results.json``."""
    out: Path | None
    """The folder; None where none was asked for."""

    @property
    def score(self) -> Score:
        """The score by which results are compared first."""
        return next(iter(self.scores.values()))

    @property
    def report(self) -> Path | None:
        """A self-contained HTML page; None where no folder was asked for."""
        return None if self.out is None else self.out / PAGE


@dataclass(frozen=True)
class SuiteResult:
    """What the evaluation of a suite gave."""

    sets: Mapping[str, EvaluationResult]
    """The result of each benchmark by its name."""
    macro: Mapping[str, Score]
    """By scorer that all benchmarks have, the mean in which every set counts alike; ``n`` is the number of sets."""
    micro: Mapping[str, Score]
    """The mean in which every question counts alike."""
    results: Mapping[str, Any] = field(repr=False)
    """The content of ``suite.json``."""
    out: Path | None
    """The folder; None where none was asked for."""

    @property
    def report(self) -> Path | None:
        """A self-contained HTML page; None where no folder was asked for."""
        return None if self.out is None else self.out / PAGE


def train(
    config: str | Path | TrainConfig | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    overrides: Mapping[str, Any] | None = None,
    trust_config: bool = False,
    display: Display | None = None,
    **settings: Any,
) -> TrainResult:
    """Trains a policy and evaluates it before and after. It may be called from a script and from a notebook.

    Args:
        config: Name of a preset, path of a TOML file, or a configuration; None is the preset ``laptop-search``.
        out: Folder of the run; None is ``runs/NAME``.
        resume: Goes on with the run in ``out`` from its last checkpoint; ``config`` is then left out.
        overrides: Values that go before those of ``config``, by dotted key, such as ``{"optimizer.steps": 60}``.
        trust_config: Whether a TOML file may run code without a sandbox or contact hosts; otherwise that is asked at the
            terminal.
        display: Gets the progress of the run; None shows it on stderr and writes it to ``run.log``.
        **settings: As ``overrides``, with two underscores for each dot: ``optimizer__steps=60``. ``env__id`` may be
            a class.

    Raises:
        AgentEnvError: The configuration cannot be used.
        MissingExtra: torch, or jinja2 for the report, is not installed.
        Fault: Every episode of a step failed through an infrastructure failure; what was learned is kept.
        Diverged: The weights or the loss are not finite any more.

    Example:
        ```python
        result = agentenv.train("laptop-search", out="runs/first", optimizer__steps=20)
        print(result.before.mean, result.after.mean, result.report)
        ```
    """
    require_renderer()
    loaded = _configuration(config, out, resume=resume, trusted=trust_config)
    loaded = changed(loaded, _dotted(overrides or {}, settings))
    folder = Path(out) if out is not None else Path("runs") / loaded.name
    with without_running_loop():
        return _run_training(loaded, folder, resume, display)


def _configuration(
    config: str | Path | TrainConfig | None, out: str | Path | None, *, resume: bool, trusted: bool
) -> TrainConfig:
    if isinstance(config, TrainConfig):
        return config
    if resume:
        if config is not None or out is None:
            raise ConfigurationError(
                "resume=True takes the configuration of the run in `out`: give `out` and no other configuration"
            )
        return resume_confirmed(Path(out), trusted=trusted)
    return load_confirmed(DEFAULT_PRESET if config is None else str(config), trusted=trusted)


def _dotted(overrides: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Both kinds of overrides by dotted key.

    Raises:
        ConfigurationError: a key is given twice.
    """
    named = {key.replace("__", "."): value for key, value in settings.items()}
    if twice := sorted(named.keys() & overrides.keys()):
        raise ConfigurationError(f"{twice[0]} is given twice, in overrides and as a keyword argument")
    given = {**overrides, **named}
    return {key: env_id_of(value) if isinstance(value, type) else value for key, value in given.items()}


def _run_training(config: TrainConfig, out: Path, resume: bool, display: Display | None) -> TrainResult:
    with needs_extra("train"):
        from agentenv.trainers import grpo
        from agentenv.trainers.learner.sharded import is_main_process
        from agentenv.trainers.loop.run import run_follower
        from agentenv.trainers.run_folder.folder import RunFolder
    if not is_main_process():
        run_follower(config)
        raise SystemExit(0)  # the first process of torchrun has the results
    folder = (RunFolder.open if resume else RunFolder.create)(out, config)
    with ExitStack() as stack:
        shown = display or stack.enter_context(LiveDisplay(config.name, log=out / "run.log"))
        results = grpo.train(folder, shown)
    return TrainResult(
        out=out,
        before=_score(results["before"]["scorer"], results["before"]),
        after=_score(results["after"]["scorer"], results["after"]),
        policy=out / "policy",
        report=write_report(out),
        results=results,
    )


class EvaluationOptions(TypedDict, total=False):
    """What else `evaluate` takes by name; each is a field of `Benchmark`."""

    options: Mapping[str, Any]
    """Arguments of the environment's constructor."""
    data: str | Path | None
    """Folder or file of the set; None looks at the environment variable AGENTENV_DATA."""
    split: str | None
    """Split of the set; None takes its first, and ``test`` of an environment's own tasks."""
    retriever: str | Retriever
    """A spec such as ``faiss:DIR``, or an object with the methods of `Retriever`; empty builds an index of the set's own
    corpus, ``bm25`` one of words, ``hybrid`` both fused."""
    corpus: str | Path
    """A file, or the name of a set, whose corpus is searched in place of the set's own."""
    limit: int | None
    """Number of questions drawn; None takes all, and 200 of an environment's own."""
    seed: int
    """Seeds the draw and the episodes."""
    k: int | None
    """Passages a search; None takes what the policy was trained with."""
    max_turns: int | None
    """Turns before the last one, in which only an answer counts; None likewise."""
    format: str
    """The chat format: ``inline``, ``template`` or ``native``; empty takes that of the policy's card."""
    family: str
    """The model family for the format ``native``; empty reads it from the chat template."""
    template_options: Mapping[str, Any]
    """Arguments of the chat template, for the format ``native``."""
    temperature: float
    """Temperature of the policy; 0 is greedy."""
    sample: int
    """Which of several samples of the same questions it is; the episodes of each have seeds of their own."""
    strategy: str
    """The rollout strategy that plays the episodes, such as ``judge``; empty takes that of the policy's card, and ``plain``
    none."""
    strategy_options: Mapping[str, Any]
    """Options of the strategy by name."""
    task_options: Mapping[str, Any]
    """Dials of the environment's own tasks, by the names of its ``make_tasks``."""
    token_ids: bool
    """Whether the records hold the token ids of the episodes, for supervised learning from exactly what was sampled."""
    bounds: bool | None
    """Whether to play the questions again without search and with gold passages; None does so where the policy computes on
    this machine."""


def evaluate(
    policy: str | Policy | Agent = "tiny",
    *,
    env: str | type[Env[Any]] = "",
    dataset: str | Path | Sequence[str | Path] = "",
    tasks: Sequence[Task] | None = None,
    out: str | Path | None = None,
    scorers: str | Sequence[str] = (),
    concurrency: int | None = None,
    retry_faults: bool = False,
    display: Display | None = None,
    compute: ComputeSettings | None = None,
    **settings: Unpack[EvaluationOptions],
) -> EvaluationResult:
    """Answers every question once, greedily. It may be called from a script and from a notebook.

    Args:
        policy: A spec as of ``agentenv eval --policy``; an object with the methods of `Policy`; or your own agent: a
            function from the messages of an episode (dicts with ``role`` and ``content``) to the next action as text, plain
            or ``async``. An exception of the agent ends one episode as ``policy_fault``; what would need its tokens is not
            measured.
        env: Id of an environment, ``module:Class``, ``remote:URL`` or a class. Empty takes that of the question set.
        dataset: A question set, a file of questions, or several of them. Empty takes the environment's own tasks.
        tasks: Tasks in place of a question set. An environment that searches then needs a ``retriever`` or a ``corpus``.
        out: Folder of the evaluation, in which one that was stopped goes on; None keeps none.
        scorers: One scorer or several, of which the first is the headline; none named takes those that suit the environment.
        concurrency: Episodes at a time; None is 64, and 1 for an agent that is a plain function, which may not be safe to
            call from several threads.
        retry_faults: Whether episodes in ``out`` that an infrastructure failure ended are played again.
        display: Gets the progress of the evaluation; None shows it on stderr.
        compute: Where models compute that a spec names, and how; None takes a GPU where there is one.
        **settings: `EvaluationOptions`: ``limit``, ``seed``, ``options`` of the environment, ``split`` and the like.

    Raises:
        AgentEnvError: An unknown name, unreadable questions, a policy that cannot be loaded.
        Fault: Every episode fails.

    Example:
        ```python
        async def act(messages):
            return (await client.chat.completions.create(model="m", messages=messages)).choices[0].message.content


        result = agentenv.evaluate(act, env="agentenv/Calculator-v0", limit=50)
        ```
    """
    if tasks is not None and dataset:
        raise ConfigurationError(f"tasks and dataset={dataset!r} are given, and one of them is enough")
    fields, given = _fields(policy, env, scorers, concurrency, settings)
    names = [dataset] if isinstance(dataset, str | Path) else dataset
    benchmark = Benchmark(dataset=",".join(map(str, names)) if tasks is None else _GIVEN_TASKS, **fields)
    given = replace(given, tasks=tasks)
    with use_compute(compute or process_compute()), _open_folder(given, out) as folder:
        with LiveDisplays(folder) as displays:
            shown = display or displays(benchmark.env if benchmark.dataset == OWN else benchmark.dataset)
            run_benchmark(benchmark, folder, shown, given=given, retry_faults=retry_faults)
        return _read_result(folder, kept=out is not None)


def evaluate_suite(
    policy: str | Policy | Agent,
    suite: str | Path | Mapping[str, Any],
    *,
    env: str | type[Env[Any]] = "",
    out: str | Path | None = None,
    scorers: str | Sequence[str] = (),
    concurrency: int | None = None,
    retry_faults: bool = False,
    trust_config: bool = False,
    display: Callable[[str], Display] | None = None,
    compute: ComputeSettings | None = None,
    **settings: Unpack[EvaluationOptions],
) -> SuiteResult:
    """Evaluates a policy on several question sets, one after the other, and averages over them.

    Args:
        policy: As of `evaluate`.
        suite: A TOML file with one table for each benchmark, or a mapping of the same form, such as
            ``{"hotpotqa": {"limit": 100}, "nq": {}}``. Keys beside the tables hold for all of them.
        env: As of `evaluate`, for benchmarks that name none; so are the arguments below that are not explained here.
        out: Folder with one folder for each benchmark; None keeps none.
        scorers: One scorer or several, of which the first is the headline.
        concurrency: Episodes at a time.
        retry_faults: Whether episodes in ``out`` that an infrastructure failure ended are played again.
        trust_config: Whether a TOML file may run code without a jail or contact hosts; otherwise that is asked at the
            terminal.
        display: Makes the display that gets the progress of a benchmark, from its name; None shows the progress on stderr.
        compute: Where models compute that a spec names, and how; None takes a GPU where there is one.
        **settings: `EvaluationOptions`.

    Raises:
        AgentEnvError: An unknown name, unreadable questions, a policy that cannot be loaded.
        Fault: Every episode of a benchmark fails; what was finished is kept in ``out``.

    Example:
        ```python
        result = agentenv.evaluate_suite("hf:runs/first/policy", {"hotpotqa": {"limit": 100}, "nq": {"limit": 100}})
        print(result.macro["em_squad"].mean)
        ```
    """
    fields, given = _fields(policy, env, scorers, concurrency, settings)
    if isinstance(suite, Mapping):
        parts = make_suite(suite, fields, given)
    else:
        confirm_file(Path(suite), trusted=trust_config)
        parts = read_suite(Path(suite), fields, given)
    with use_compute(compute or process_compute()), _open_folder(given, out) as folder:
        with LiveDisplays(folder) as displays:
            found = parts.run(folder, display or displays, given=given, retry_faults=retry_faults)
        results = {name: value for name, value in found.items() if name != "suite"}
        return SuiteResult(
            sets={name: _read_result(folder / name, kept=out is not None) for name in parts.parts},
            macro={name: _mean_over_sets(name, means["macro"]) for name, means in found["scores"].items()},
            micro={name: _score(name, means["micro"]) for name, means in found["scores"].items()},
            results=results,
            out=None if out is None else folder,
        )


def _fields(
    policy: str | Policy | Agent,
    env: str | type[Env[Any]],
    scorers: str | Sequence[str],
    concurrency: int | None,
    settings: EvaluationOptions,
) -> tuple[dict[str, Any], BenchmarkParts]:
    """Arguments as fields of `Benchmark`, and the objects among them.

    An agent is not asked a question again for bounds unless that is wanted.
    """
    opened = None if isinstance(policy, str) else _open_agent(policy, concurrency)
    fields: dict[str, Any] = dict(settings)
    if unknown := sorted(fields.keys() - EvaluationOptions.__annotations__.keys()):
        raise UnknownName.among("argument of evaluate()", unknown[0], EvaluationOptions.__annotations__)
    if fields.get("data") is not None:
        fields["data"] = Path(fields["data"])
    fields["corpus"] = str(fields.get("corpus", ""))
    fields["options"] = dict(fields.get("options", {}))
    fields["strategy_options"] = dict(fields.get("strategy_options", {}))
    fields["task_options"] = dict(fields.get("task_options", {}))
    if isinstance(opened, AgentPolicy) and fields.get("bounds") is None:
        fields["bounds"] = False
    retriever = fields.get("retriever", "")
    if not isinstance(retriever, str):
        if not isinstance(retriever, Retriever):
            raise ConfigurationError(f"{retriever!r} has not the methods of agentenv.Retriever")
        fields["retriever"] = ""
    fields |= {
        "policy": policy if isinstance(policy, str) else getattr(opened, "name", type(policy).__qualname__),
        "scorers": (scorers,) if isinstance(scorers, str) else tuple(scorers),
        "env": env if isinstance(env, str) else env_id_of(env),
        "concurrency": _episodes_at_a_time(concurrency, opened),
    }
    return fields, BenchmarkParts(policy=opened, retriever=None if isinstance(retriever, str) else retriever)


def _open_agent(policy: Policy | Agent, concurrency: int | None) -> Policy:
    """A policy object as it is, and a function of the user as a policy."""
    return policy if isinstance(policy, Policy) else AgentPolicy(policy, threads=concurrency or 1)


def _episodes_at_a_time(asked: int | None, policy: Policy | None) -> int:
    if asked is not None and asked < 1:
        raise ConfigurationError(f"concurrency is {asked}; at least one episode must run")
    return asked or (1 if isinstance(policy, AgentPolicy) and not policy.is_async else 64)


@contextmanager
def _open_folder(given: BenchmarkParts, out: str | Path | None) -> Iterator[Path]:
    """The folder of an evaluation, a temporary one where none is asked for; an agent is closed at the end."""
    with ExitStack() as stack:
        if isinstance(given.policy, AgentPolicy):
            stack.callback(given.policy.close)
        folder = Path(out) if out is not None else stack.enter_context(temporary_folder("eval")) / "run"
        stack.enter_context(without_running_loop())
        yield folder


def _read_result(folder: Path, *, kept: bool) -> EvaluationResult:
    found = read_evaluation(folder)
    return EvaluationResult(
        scores={name: _score(name, score) for name, score in found.results["scores"].items()},
        n=found.results["n"],
        faults=found.results["faults"],
        episodes=found.records,
        results=found.results,
        out=folder if kept else None,
    )


def _mean_over_sets(scorer: str, found: Mapping[str, Any]) -> Score:
    return _score(scorer, {**found, "n": found["sets"]})


def _score(scorer: str, found: Mapping[str, Any]) -> Score:
    ci95 = found["ci95"]
    return Score(scorer, found["mean"], found["n"], None if ci95 is None else (ci95[0], ci95[1]))
