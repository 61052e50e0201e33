"""One benchmark: a policy, a question set, a retriever, and the folder of its results.

The folder grows as episodes finish (see `agentenv.evaluation.journal`) and is complete once ``results.json`` exists. Running
the same benchmark on the same folder resumes it. All files but ``timings.jsonl`` are then as without the interruption.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

from agentenv.core.chat_formats import FormatName, check_chat_options
from agentenv.core.concurrency.signals import Interrupted
from agentenv.core.model_families import get_family
from agentenv.core.protocols import Policy, Retriever
from agentenv.core.registry import env_class
from agentenv.core.types import Task
from agentenv.data.sources import OWN, PROGRAM_SETS, Source, SourceConfig, check_source
from agentenv.data.sql_sets import SQL_SETS
from agentenv.errors import AgentEnvError, ConfigurationError, UnknownName
from agentenv.evaluation.checksums import verify_digests
from agentenv.evaluation.contents import content_digests, written_since
from agentenv.evaluation.endpoint_usage import EndpointUsage
from agentenv.evaluation.eval_agent import (
    EXPERT,
    EvalAgent,
    chat_format_of,
    make_eval_agent,
    open_eval_agent,
)
from agentenv.evaluation.journal import CONFIG, CONTENTS, evaluating, forget_contents, lock_folder, release
from agentenv.evaluation.pipeline import play_evaluation, summarize_evaluation
from agentenv.evaluation.records import EPISODES, PAGE, RESULTS, read_results, write_results
from agentenv.evaluation.report.page import require_renderer
from agentenv.evaluation.report.report import write_report
from agentenv.evaluation.results import RECORDED, load_measure
from agentenv.evaluation.runner import SAMPLES, first_seed, roll_of
from agentenv.evaluation.task_env import (
    EnvConfig,
    SearchConfig,
    TaskEnv,
    defaults_of,
    known_retriever,
    open_task_env,
    open_tasks,
    takes,
)
from agentenv.policies.agent import AGENT
from agentenv.policies.card import EpisodeCard
from agentenv.policies.openai import OpenAIPolicy
from agentenv.policies.policy_spec import check_policy, check_reached, is_endpoint, is_engine
from agentenv.progress import Display, indexing

SEARCH, CODE, SQL = EnvConfig().id, "agentenv/Code-v0", "agentenv/SQL-v0"
_FORMAT_FIELDS = ("format", "family", "template_options")
_SAMPLING_FIELDS = ("temperature", "sample")
_STRATEGY_FIELDS = ("strategy", "strategy_options")
_SCORERS = ("em_squad", "f1_squad", "em_cover")
_NOT_KEPT = (
    "the index of these passages is built for this command alone: `agentenv retriever build CORPUS --out DIR` makes one "
    "that is kept, for --retriever faiss:DIR"
)


@dataclass(frozen=True)
class Benchmark:
    """What is evaluated, and on what. The fields correspond to the options of ``agentenv eval``.

    Without a named environment, that of the question set is used. Without a named set, the environment's own tasks are used,
    and without named scorers, those of the environment.
    """

    dataset: str
    policy: str
    scorers: tuple[str, ...] = ()
    env: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    data: Path | None = None
    split: str | None = None
    retriever: str = ""
    corpus: str = ""
    limit: int | None = None
    seed: int = 0
    k: int | None = None
    max_turns: int | None = None
    bounds: bool | None = None
    """None measures the bounds unless the policy is behind an endpoint, where every request may cost money."""
    format: str = ""
    """The chat format; empty uses that of the policy's card."""
    family: str = ""
    template_options: Mapping[str, Any] = field(default_factory=dict)
    concurrency: int = 64
    temperature: float = 0.0
    """Sampling temperature; 0 is greedy."""
    sample: int = 0
    """The index of this sample, if the same questions are sampled several times. Each sample has its own episode seeds."""
    strategy: str = ""
    """The rollout strategy that plays the episodes; empty uses that of the policy's card, and ``plain`` uses none."""
    strategy_options: Mapping[str, Any] = field(default_factory=dict)
    task_options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the environment's ``make_tasks`` by name, for its own tasks; for example those with which the policy was
    trained."""
    token_ids: bool = False
    """Whether the records contain the episodes' token ids, for supervised learning from exactly the sampled tokens."""

    @property
    def episode_seed(self) -> int:
        """The seed of this sample's first episode. ``seed`` itself only draws the questions."""
        return first_seed(self.seed, self.sample)

    def __post_init__(self) -> None:
        if not (self.dataset or self.env):
            raise ConfigurationError("name a question set, or an environment that makes its own tasks")
        if self.concurrency < 1:
            raise ConfigurationError(f"concurrency is {self.concurrency}; at least one episode must run")
        if self.seed < 0:
            raise ConfigurationError(
                f"seed is {self.seed}; it must be 0 or more, as environments take no other"
            )
        if self.temperature < 0 or not 0 <= self.sample < SAMPLES:
            raise ConfigurationError(
                f"temperature is {self.temperature} and sample {self.sample}; both are at least 0, and a sample is below "
                f"{SAMPLES}"
            )
        if self.strategy_options and not self.strategy:
            raise ConfigurationError(
                f"strategy_options {dict(self.strategy_options)} are of no strategy: name the strategy as well"
            )
        object.__setattr__(self, "dataset", self.dataset or OWN)
        if self.task_options and self.dataset != OWN:
            raise ConfigurationError(
                f"task_options {dict(self.task_options)} are of the environment's own tasks, and the questions are those of "
                f"{self.dataset}: leave out the one or the other"
            )
        if self.bounds is None:
            object.__setattr__(self, "bounds", not is_endpoint(self.policy))
        if self.format and self.format not in get_args(FormatName):
            raise UnknownName.among("chat format", self.format, get_args(FormatName))
        if self.format or self.family or self.template_options:
            check_chat_options(self.format or "inline", self.family, self.template_options)
        if self.family:
            get_family(self.family)
        own_env = SQL if self.dataset in SQL_SETS else CODE if self.dataset in PROGRAM_SETS else SEARCH
        env = self.env or own_env
        object.__setattr__(self, "env", env)
        own = env_class(env).scorers
        if takes(env, "retriever") and not RECORDED.keys() & set(own):
            own = tuple(dict.fromkeys((*own, *_SCORERS)))
        object.__setattr__(self, "scorers", self.scorers or own)


@dataclass(frozen=True)
class BenchmarkParts:
    """Objects used in place of names in a `Benchmark`."""

    policy: Policy | None = None
    """The policy that answers; ``Benchmark.policy`` is then only its name in the results."""
    retriever: Retriever | None = None
    """The retriever to search; ``Benchmark.retriever`` is then empty."""
    tasks: Sequence[Task] | None = None
    """The questions; ``Benchmark.dataset`` is then only their name in the results."""


BY_NAME = BenchmarkParts()
"""No objects: everything is given by name."""


def check_names(benchmark: Benchmark, given: BenchmarkParts = BY_NAME) -> None:
    """Checks that all names exist, before any work begins (also before that of other benchmarks of a suite).

    Args:
        benchmark: What to evaluate.
        given: Objects in place of names. The names that they replace are not checked.

    Raises:
        UnknownName: there is no such set, split, scorer, retriever, strategy or policy; the error carries the nearest name.
        ConfigurationError: a policy or a corpus does not exist.
    """
    if given.tasks is None:
        check_source(benchmark.dataset, benchmark.split, benchmark.data)
    for scorer in benchmark.scorers:
        load_measure(scorer)
        if scorer in RECORDED and scorer not in env_class(benchmark.env).scorers:
            entry = RECORDED[scorer].entry
            raise ConfigurationError(
                f"{scorer} needs the entry {entry!r} that some environments add to the record of an episode, and "
                f"{benchmark.env} adds none; its own measures are {', '.join(env_class(benchmark.env).scorers)}"
            )
    known_retriever(benchmark.retriever)
    roll_of(benchmark.strategy, benchmark.strategy_options)
    if given.policy is None:
        check_policy(benchmark.policy)


def run_benchmark(
    benchmark: Benchmark,
    out: Path | str,
    display: Display,
    *,
    given: BenchmarkParts = BY_NAME,
    retry_faults: bool = False,
) -> dict[str, Any]:
    """Answers every question once, greedily, and writes ``results.json``, ``episodes.jsonl`` and ``report.html``.

    Episodes that ``out`` already contains for the same benchmark are not played again.

    Args:
        benchmark: What to evaluate.
        out: The folder of the results.
        display: Shows the progress.
        given: Objects in place of names.
        retry_faults: Whether episodes that ended by an infrastructure failure are played again.

    Returns:
        The content of ``results.json``.

    Raises:
        AgentEnvError: a name is unknown, the questions cannot be read, or the policy cannot be loaded.
        MissingExtra: the report cannot be written, because jinja2 is not installed.
        ConfigurationError: ``out`` contains another evaluation, or another process is evaluating there.
        Fault, Interrupted: all episodes fail, or SIGINT, SIGTERM or SIGHUP was received; finished episodes are kept.
    """
    require_renderer()
    check_names(benchmark, given)
    with evaluating(Path(out)):
        return _run(benchmark, Path(out), display, given, retry_faults)


def _run(
    benchmark: Benchmark, out: Path, display: Display, given: BenchmarkParts, retry_faults: bool
) -> dict[str, Any]:
    lock_folder(out, {"benchmark": _identity(benchmark)})
    display.phase("preparing questions and index", 0)
    source, search = _sources(benchmark)
    opened = open_tasks(source, search, EnvConfig(id=benchmark.env), given.tasks)
    contents = _contents(benchmark, opened, search, given)
    lock_folder(out, {"benchmark": _identity(benchmark), CONTENTS: contents})
    if (out / RESULTS).is_file() and not (retry_faults and read_results(out).get("faults")):
        return _finished(out)
    fresh = not (out / CONFIG).is_file()
    try:
        with _open_agent(benchmark, given.policy) as agent:
            if said := other_env_note(benchmark, agent.card):
                display.note(said)
            task_env = open_benchmark_env(benchmark, agent, display, given=given, opened=opened)
            try:
                return _play_episodes(benchmark, contents, agent, task_env, out, display, retry_faults)
            finally:
                forget_contents(out, written_since(contents, _named_options(benchmark)))
    except Interrupted as error:
        said = f"; what was finished is kept in {out}: the same command goes on from there"
        raise Interrupted(error.signal, said) from error
    except (AgentEnvError, OSError):
        if fresh:
            release(out)
        raise


@contextmanager
def _open_agent(benchmark: Benchmark, policy: Policy | None) -> Iterator[EvalAgent]:
    """Opens the agent that answers; what was opened for it is closed at the end of the block."""
    stop = env_class(benchmark.env).stop
    if policy is not None:
        yield _configured(benchmark, make_eval_agent(policy, benchmark.policy, benchmark.concurrency, stop))
        return
    check_reached(benchmark.policy)
    with closing(open_eval_agent(benchmark.policy, benchmark.concurrency, stop)) as agent:
        yield _configured(benchmark, agent)


def _configured(benchmark: Benchmark, agent: EvalAgent) -> EvalAgent:
    """Returns ``agent`` with the chat format, the temperature and the strategy of the benchmark."""
    agent = replace(agent, card=agent.card.of(benchmark.env))
    asked = _sampling(benchmark, _in_format(benchmark, agent))
    if benchmark.token_ids and agent.token_unit != "tokens":
        raise ConfigurationError(
            f"{benchmark.policy} shows no token ids that could be kept: leave token_ids out; its episodes can be learned "
            "from by their texts"
        )
    return replace(asked, roll=roll_of(*_strategy(benchmark, agent.card)), token_ids=benchmark.token_ids)


def _strategy(benchmark: Benchmark, card: EpisodeCard) -> tuple[str, Mapping[str, Any]]:
    """Returns the strategy and its options: the benchmark's, or else those of a card for the same environment."""
    if benchmark.strategy or card.env != benchmark.env:
        return benchmark.strategy, benchmark.strategy_options
    return card.strategy, card.strategy_options


def _sampling(benchmark: Benchmark, agent: EvalAgent) -> EvalAgent:
    """Returns ``agent`` with the temperature of the benchmark."""
    return replace(agent, config=agent.config.model_copy(update={"temperature": benchmark.temperature}))


def _in_format(benchmark: Benchmark, agent: EvalAgent) -> EvalAgent:
    """Returns ``agent`` with the benchmark's chat format, without the opening message of the card's own format."""
    if not benchmark.format:
        return agent
    card = agent.card if agent.card.format == benchmark.format else replace(agent.card, prompt=None)
    options = dict(benchmark.template_options)
    card = replace(card, format=benchmark.format, family=benchmark.family, template_options=options)
    if isinstance(agent.policy, OpenAIPolicy):
        policy = agent.policy.in_format(benchmark.format, benchmark.family, options)
        return replace(agent, card=card, policy=policy, chat=policy.chat)
    return replace(agent, card=card, chat=chat_format_of(card, agent.policy, agent.tokenizer))


def _finished(out: Path) -> dict[str, Any]:
    """Reads the results in ``out``, after checking that its episodes are those that they were computed from."""
    for path in (out / EPISODES, *sorted((out / "bounds").glob("*.jsonl"))):
        verify_digests(path)
    if not (out / PAGE).is_file():
        write_report(out)
    return read_results(out)


def _play_episodes(
    benchmark: Benchmark,
    contents: Mapping[str, str],
    agent: EvalAgent,
    task_env: TaskEnv,
    out: Path,
    display: Display,
    retry_faults: bool,
) -> dict[str, Any]:
    opened = {"retriever": "" if task_env.retriever is None else task_env.retriever.info().fingerprint}
    lock_folder(out, {"benchmark": _identity(benchmark), CONTENTS: contents, "opened": opened}, write=True)
    (out / RESULTS).unlink(missing_ok=True)
    usage = EndpointUsage(agent.policy, out) if isinstance(agent.policy, OpenAIPolicy) else None
    with nullcontext() if usage is None else usage.kept():
        records, bounds = play_evaluation(
            agent,
            task_env,
            out,
            display,
            title="episodes",
            scorer=benchmark.scorers[0],
            seed=benchmark.episode_seed,
            bounded=bool(benchmark.bounds) and benchmark.policy != EXPERT,
            retry_faults=retry_faults,
            usage=usage,
        )
    results = summarize_evaluation(
        agent,
        task_env,
        records,
        bounds,
        policy=benchmark.policy,
        scorers=benchmark.scorers,
        seed=benchmark.seed,
        settings={"options": dict(benchmark.options)}
        | ({"task_options": dict(benchmark.task_options)} if benchmark.task_options else {})
        | ({"trained_options": trained} if (trained := _card_options(benchmark, agent.card)) else {})
        | _strategy_settings(benchmark, agent.card),
        note=display.note,
        retriever=benchmark.retriever,
    )
    if usage is not None:
        results["usage"] = usage.save()
        if results["faults"] and isinstance(agent.policy, OpenAIPolicy) and agent.policy.client.spent:
            results["incomplete"] = agent.policy.client.spent
    write_results(out, results)
    write_report(out)
    return results


def _strategy_settings(benchmark: Benchmark, card: EpisodeCard) -> dict[str, Any]:
    """Returns the settings about the strategy for the results; empty without a strategy."""
    name, options = _strategy(benchmark, card)
    if name in ("", "plain"):
        return {}
    return {"strategy": name} | ({"strategy_options": dict(options)} if options else {})


def _sources(benchmark: Benchmark) -> tuple[SourceConfig, SearchConfig]:
    source = SourceConfig(
        dataset=benchmark.dataset,
        data=benchmark.data,
        split=benchmark.split or ("test" if benchmark.dataset == OWN else None),
        limit=benchmark.limit,
        seed=benchmark.seed,
        options={name: value for name, value in benchmark.options.items() if name == "executor"}
        if benchmark.dataset in PROGRAM_SETS
        else dict(benchmark.task_options),
    )
    return source, SearchConfig(retriever=benchmark.retriever, corpus=benchmark.corpus)


def open_benchmark_env(
    benchmark: Benchmark,
    agent: EvalAgent,
    display: Display,
    *,
    given: BenchmarkParts = BY_NAME,
    opened: Source | None = None,
) -> TaskEnv:
    """Opens the questions of ``benchmark`` (unless ``opened``) and the environment in which ``agent`` answers them.

    Raises:
        AgentEnvError: a name is unknown, the questions cannot be read, or the corpus does not exist.
    """
    source, search = _sources(benchmark)
    return open_task_env(
        source,
        search,
        EnvConfig(id=benchmark.env, options=_options(benchmark, agent.card)),
        agent.count,
        opened=opened,
        tasks=given.tasks,
        retriever=given.retriever,
        progress=indexing(display, _NOT_KEPT),
    )


def _options(benchmark: Benchmark, card: EpisodeCard) -> dict[str, Any]:
    """Returns the arguments of the environment: the benchmark's, or else those of the policy's card."""
    asked = {"k": benchmark.k, "max_turns": benchmark.max_turns}
    options = _card_options(benchmark, card) | {
        name: value for name, value in asked.items() if value is not None
    }
    options |= benchmark.options
    if card.env != benchmark.env and not takes(benchmark.env, "retriever"):
        return options
    known: dict[str, Any] = {
        "observation_tokens": card.observation_tokens or _bounded_observation(benchmark.env, card),
        "k": card.k,
        "max_turns": card.max_turns,
        "prompt": card.prompt or None,
    }
    stated = {name: value for name, value in known.items() if value is not None}
    return {name: value for name, value in stated.items() if takes(benchmark.env, name)} | options


def other_env_note(benchmark: Benchmark, card: EpisodeCard) -> str:
    """Returns a sentence if the policy was trained in another environment; empty if it was not or if this is unknown."""
    if card.env in (benchmark.env, EpisodeCard().env):
        return ""
    return (
        f"{benchmark.policy} was trained in {card.env} and is asked in {benchmark.env}, whose tags and turns may be others: "
        f"--env {card.env} asks it as it was trained"
    )


def _card_options(benchmark: Benchmark, card: EpisodeCard) -> dict[str, Any]:
    """Returns the card's options of the environment, except prompt and budgets, that the benchmark does not override."""
    if card.env != benchmark.env:
        return {}
    return {
        name: value
        for name, value in card.options.items()
        if name not in benchmark.options and takes(benchmark.env, name)
    }


def _bounded_observation(env: str, card: EpisodeCard) -> int | None:
    """Returns an eighth of the context (at least 500 tokens) if the environment's limit of a page is larger; else None.

    Pages of 8,192 tokens, as in `LongSearch-v0`, would otherwise fill the context of a policy without a card at once.
    """
    own: int = defaults_of(env, ("observation_tokens",)).get("observation_tokens", 0)
    most = max(500, card.context_tokens // 8)
    return most if own > most else None


def _named_options(benchmark: Benchmark) -> dict[str, Any]:
    return {name: getattr(benchmark, name) for name in ("options", "task_options", "strategy_options")}


def _contents(
    benchmark: Benchmark, opened: Source, search: SearchConfig, given: BenchmarkParts
) -> dict[str, str]:
    """Returns the digests of everything that ``benchmark`` refers to by name."""
    return content_digests(
        opened,
        search,
        benchmark.env,
        benchmark.policy,
        policy=given.policy,
        retriever=given.retriever,
        options=_named_options(benchmark),
    )


def _identity(benchmark: Benchmark) -> dict[str, Any]:
    """Returns the fields that a resumed run must have in common; at an endpoint, concurrency does not matter."""
    fields = asdict(benchmark)
    if not benchmark.format:  # folders of earlier versions lack these fields
        fields = {name: value for name, value in fields.items() if name not in _FORMAT_FIELDS}
    if not (benchmark.temperature or benchmark.sample):
        fields = {name: value for name, value in fields.items() if name not in _SAMPLING_FIELDS}
    if not benchmark.strategy:
        fields = {name: value for name, value in fields.items() if name not in _STRATEGY_FIELDS}
    for name in ("token_ids", "task_options"):  # earlier versions lack these too
        if not fields[name]:
            del fields[name]
    by_arrival = (
        is_endpoint(benchmark.policy) or is_engine(benchmark.policy) or benchmark.policy.startswith(AGENT)
    )
    return fields | {"concurrency": None} if by_arrival else fields
