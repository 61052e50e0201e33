"""``agentenv eval``: one benchmark, or a suite of several."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console

from agentenv.cli.grid import print_table
from agentenv.cli.rescore import Rescore, left_out_note
from agentenv.core.grammar import shortened
from agentenv.core.values import read_options
from agentenv.errors import ConfigurationError
from agentenv.evaluation.diagnosis import fault_reasons
from agentenv.evaluation.endpoint_usage import describe_usage, sum_usage
from agentenv.evaluation.llm_judge import check_judge, open_judge
from agentenv.evaluation.records import EPISODES, read_records
from agentenv.evaluation.report.charts import value_text
from agentenv.evaluation.report.flat_tables import Column, FlatTable, interval_text
from agentenv.policies.compute import AUTOMATIC, ComputeSettings, use_compute
from agentenv.policies.policy_spec import check_reached

_REASONS = 3  # of faults that are shown
_NOTE_CHARS = 500  # of what there is to know about the questions


@dataclass(frozen=True)
class Eval:
    """Evaluates a policy on a question set, greedily, with intervals and bounds.

    The same command continues an evaluation that was stopped. A folder that contains another evaluation is refused.

    Example: agentenv eval --dataset hotpotqa --data DIR --policy tiny --limit 50 --out runs/hotpot
    """

    out: Path
    """Folder for results.json, episodes.jsonl and report.html."""
    dataset: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Name of the question set, or a file of questions and answers (JSONL, JSON, CSV, TSV, parquet); may be repeated, for
    several sets over their corpora together. ``fictional`` reads the folder of a world, ``env`` takes the environment's
    own tasks."""
    env: str = ""
    """A registered id, module:Class (the module may stand in this folder) or remote:URL. Without --dataset its own tasks are
    posed. Default: that of a code set is agentenv/Code-v0, of spider and bird agentenv/SQL-v0, of any other set
    agentenv/LocalSearch-v0."""
    option: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """KEY=VALUE for the environment's constructor, may be repeated; the value as in TOML, or a bare word."""
    data: Path | None = None
    """Folder or file of the set; default: the environment variable AGENTENV_DATA."""
    split: str | None = None
    """Split of the set; default: its first."""
    policy: str = "tiny"
    """A policy that `agentenv list` shows; ``scripted`` is the environment's own expert. A model behind an endpoint is
    'openai:MODEL@URL#option=value&option=value' (in quotes: the shell would read # and &), its key the environment
    variable OPENAI_API_KEY; 'anyllm:PROVIDER/MODEL#...' is one of Anthropic, Google, Bedrock or another service. Prices, for
    the cost of the run: prompt_price, reply_price (of a million tokens). What it may use: max_requests, max_total_tokens,
    max_cost. How hard it is asked: concurrency, per_minute, tokens_per_minute, retries, backoff_s, deadline_s. How: wire
    (chat or responses), stream, leave_out, effort, send_reasoning, images, turn_tokens, context_tokens, limit_field."""
    retriever: str = ""
    """``faiss:DIR``, ``bm25:DIR`` and so on; ``bm25`` and ``hybrid`` index the set's own corpus, as FAISS over MiniLM does
    by default."""
    corpus: str = ""
    """Corpus searched instead of the set's own: a file, or the name of the set that it belongs to."""
    scorer: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Scorer, may be repeated; the first is the headline. Default: em_squad, f1_squad, em_cover; ``reward`` where nothing is
    searched."""
    judge: str = ""
    """'openai:MODEL@URL#options' says of every answer whether it is right, once all are played; its grades stand beside the
    scores under ``judged``, as those of `agentenv rescore --judge`. Default: nobody is asked."""
    rubric: str = "equivalence"
    """What the judge is told: simpleqa, browsecomp or equivalence."""
    limit: int | None = None
    """Number of questions drawn; default: all, of an environment's own tasks 200."""
    seed: int = 0
    """Seeds the draw and the episodes."""
    k: int | None = None
    """Passages that a search returns; default: what the policy was trained with, otherwise 3."""
    max_turns: int | None = None
    """Turns before the last one, in which only an answer counts; default: as trained, otherwise 4."""
    bounds: bool | None = None
    """Whether to play the questions again without search and with gold passages. Default: yes, but not by a policy behind
    an endpoint, where each of these bounds asks every question again and a request may cost money."""
    format: Literal["", "inline", "template", "native"] = ""
    """The chat format: ``native`` declares and reads tools in the form that the model was trained in. Default: what the
    policy was trained with, otherwise inline."""
    family: str = ""
    """The model family, for --format native; default: read from its chat template."""
    template_option: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """KEY=VALUE for the chat template under --format native, such as enable_thinking=false; may be repeated."""
    temperature: float = 0.0
    """Temperature of the policy; 0 is greedy."""
    samples: int = 1
    """Episodes of each question, at --temperature. With several, --out has a folder for each sample, and the table says how
    often one of k is right (pass@k) or all of them are."""
    strategy: str = ""
    """Rollout strategy that plays the episodes: rollback, judge, self_search, tree_decode, vm_mcts or module:Class. Default:
    as trained, otherwise ``plain``, which is none."""
    strategy_option: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """KEY=VALUE for --strategy, may be repeated."""
    task_option: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """KEY=VALUE of the environment's own tasks, such as steps=3 of agentenv/Code-v0, may be repeated."""
    token_ids: bool = False
    """Whether episodes.jsonl holds the token ids too, of a policy that shows them: `agentenv warmstart --episodes` then
    learns exactly what was sampled, where the learner has the same tokens."""
    concurrency: int = 64
    """Number of episodes that run at the same time. If the command is killed, at most so many are lost."""
    compute: ComputeSettings = AUTOMATIC
    """Where models compute that run in this process, and how: the policy, the encoder, a reranker."""
    retry_faults: bool = False
    """Whether to play episodes again that an infrastructure failure ended."""
    trust_config: bool = False
    """Whether the file of --suite may run code without a sandbox or contact hosts; otherwise the terminal asks."""
    suite: Path | None = None
    """TOML file with one table a benchmark, each with flags of this command; results go to subfolders of --out."""

    def run(self) -> dict[str, Any]:
        """Runs the benchmark, or every benchmark of the suite."""
        if bool(self.dataset) if self.suite else not (self.dataset or self.env):
            raise ConfigurationError(
                "give --dataset NAME, --env ID for the environment's own tasks, or --suite FILE; `agentenv list` shows the "
                "names"
            )
        fields: dict[str, Any] = {
            "data": self.data,
            "split": self.split,
            "policy": self.policy,
            "env": self.env,
            "options": read_options(self.option),
            "token_ids": self.token_ids,
            "strategy": self.strategy,
            "strategy_options": read_options(self.strategy_option, "--strategy-option"),
            "task_options": read_options(self.task_option, "--task-option"),
            "retriever": self.retriever,
            "corpus": self.corpus,
            "scorers": self.scorer,
            "limit": self.limit,
            "seed": self.seed,
            "k": self.k,
            "max_turns": self.max_turns,
            "bounds": self.bounds,
            "format": self.format,
            "family": self.family,
            "template_options": read_options(self.template_option, "--template-option"),
            "concurrency": self.concurrency,
            "temperature": self.temperature,
        }
        self._check_samples()
        if self.judge:
            check_judge(self.judge, self.rubric)  # refused before anything is played
            if self.retry_faults or any(one.needs_judge() for one in self._rescores()):
                check_reached(self.judge)
        with use_compute(self.compute):
            found = self._run(fields)
        if not self.judge:
            return found
        judged = self._judged()
        return found | judged | {"ok": found.get("ok", True) and judged["ok"]}

    def _judged(self) -> dict[str, Any]:
        """What a judge adds to the results; of several samples it stands in their folders, and what all cost here."""
        chat = open_judge(self.judge, self.rubric)
        judged = [one.run_with(chat) for one in self._rescores()]
        if self.samples == 1:
            return judged[0]
        return {"judge_usage": chat.usage_report(), "ok": all(one["ok"] for one in judged)}

    def _rescores(self) -> list[Rescore]:
        folders = [self.out] if self.samples == 1 else self._sample_folders()
        return [Rescore(folder, judge=self.judge, rubric=self.rubric) for folder in folders]

    def _sample_folders(self) -> list[Path]:
        return [self.out / f"sample-{number}" for number in range(self.samples)]

    def _run(self, fields: dict[str, Any]) -> dict[str, Any]:
        from agentenv.api import evaluate

        if self.suite:
            return self._run_suite(self.suite, fields)
        if self.samples > 1:
            return self._run_samples(fields)
        found = evaluate(dataset=self.dataset, out=self.out, retry_faults=self.retry_faults, **fields).results
        ended = {"seconds": _seconds(self.out, found), "ok": "incomplete" not in found}
        if found["faults"]:
            ended["fault_reasons"] = fault_reasons(read_records(self.out / EPISODES))
        return {**found, **ended, "out": str(self.out)}

    def _check_samples(self) -> None:
        from agentenv.evaluation.runner import SAMPLES

        if not 1 <= self.samples <= SAMPLES or self.temperature < 0:
            raise ConfigurationError(
                f"--samples must be 1 to {SAMPLES} and is {self.samples}; --temperature must be at least 0 and is "
                f"{self.temperature}"
            )
        if self.samples > 1 and (self.suite or not self.temperature):
            raise ConfigurationError(
                "--samples needs a --temperature above 0, since greedy samples are equal, and does not go with --suite"
            )

    def _run_samples(self, fields: dict[str, Any]) -> dict[str, Any]:
        from agentenv.api import evaluate
        from agentenv.evaluation.repeats import write_samples

        folders = self._sample_folders()
        bounds = fields.pop("bounds") or False  # greedy bounds are the same for every sample
        parts = [
            evaluate(
                dataset=self.dataset,
                out=folder,
                retry_faults=self.retry_faults,
                sample=number,
                bounds=bounds,
                **fields,
            ).results
            for number, folder in enumerate(folders)
        ]
        incomplete = {
            folder.name: part["incomplete"]
            for folder, part in zip(folders, parts, strict=True)
            if "incomplete" in part
        }
        ended = {"out": str(self.out), "ok": not incomplete, "incomplete": incomplete}
        return {**write_samples(folders, self.out), **ended}

    def _run_suite(self, file: Path, fields: dict[str, Any]) -> dict[str, Any]:
        from agentenv.api import evaluate_suite

        found = evaluate_suite(
            suite=file, out=self.out, retry_faults=self.retry_faults, trust_config=self.trust_config, **fields
        )
        parts = {name: dict(part.results) for name, part in found.sets.items()}
        whole = not any("incomplete" in part for part in parts.values())
        return {"suite": parts, **found.results, "out": str(self.out), "ok": whole}

    def show(self, result: dict[str, Any], console: Console) -> None:
        """Scores with n and interval, retrieval, bounds, errors, costs; of a suite one line a set."""
        if "samples" in result:
            _show_samples(result, console)
        elif "suite" in result:
            _show_suite(result, console)
        else:
            _show(result, console)
        for what, value in describe_usage(result.get("judge_usage", {})).items():
            console.print(f"  judge: {what:<24}{value}", markup=False)
        if "samples" not in result:
            console.print(f"  {result['out']}/report.html")


def _show_samples(result: dict[str, Any], console: Console) -> None:
    for name, reason in result["incomplete"].items():
        console.print(f"{name} is INCOMPLETE: {reason}", markup=False)
    for scorer, table in result["samples"].items():
        console.print(f"{scorer}, {table['n']} questions, {table['seeds']} samples", style="bold")
        if table["left_out"]:
            console.print(
                f"  {table['left_out']} further questions met an infrastructure failure in a sample and are in no score; "
                "the same command with --retry-faults plays them again"
            )
        for name, value in table.items():
            if "@" in name:
                console.print(f"  {name:<8}{_score(value)}")
    console.print(f"  {result['out']}/samples.json")


def _seconds(out: Path, results: Mapping[str, Any]) -> dict[str, float]:
    from agentenv.evaluation.journal import read_seconds

    return read_seconds(out, results["errors"]["correct"])


def _show_suite(result: dict[str, Any], console: Console) -> None:
    """A table of the sets under the first scorer with their bounds, and the means over sets of every scorer."""
    scorer = next(iter(result["scores"]), "")
    kinds = list(dict.fromkeys(kind for part in result["suite"].values() for kind in part["bounds"]))
    rows = []
    for name, part in result["suite"].items():
        score = part["scores"][scorer or next(iter(part["scores"]))]
        bounds = [part["bounds"].get(kind, {}).get("mean") for kind in kinds]
        ci95 = score["ci95"] and tuple(score["ci95"])
        faults = part["faults"] or None
        recall = part["index_recall"].get("recall@5")
        rows.append((name, part["n"], faults, score["mean"], ci95, *bounds, recall))
    columns = (
        Column("set"),
        Column("n", "count"),
        Column("faults", "count"),
        Column("score", "share", scorer or "first scorer"),
        Column("ci95", "interval", "95 % interval"),
        *(Column(kind, "share") for kind in (*kinds, "index recall@5")),
    )
    print_table(console, FlatTable(f"{len(rows)} sets", columns, tuple(rows)))
    for name, part in result["suite"].items():
        if "incomplete" in part:
            console.print(f"  {name} is INCOMPLETE: {part['incomplete']}", markup=False)
    if result["faults"]:
        console.print(
            f"  Infrastructure failures took {result['faults']} episode{'s' * (result['faults'] > 1)} out of every score; "
            "the same command with --retry-faults plays again what failed",
            markup=False,
        )
    for what, value in describe_usage(sum_usage(result["suite"].values())).items():
        console.print(f"  {what:<24}{value}", markup=False)
    for name, part in result["suite"].items():
        for judge, score in part.get("judged", {}).items():
            said = f"  {name} {judge}  {_score(score)}{left_out_note(score)}"
            console.print(said, markup=False)
    for scorer, means in result["scores"].items():
        for kind, n in (("macro", "sets"), ("micro", "n")):
            console.print(f"  {scorer} {kind:<8}{_score(means[kind])}  {n} {means[kind][n]}")


def _score(score: dict[str, Any]) -> str:
    if score["mean"] is None:
        return "no score"
    return f"{score['mean']:.3f}  {interval_text(score['ci95'])}"


def set_lines(scores: Mapping[str, dict[str, Any]]) -> list[str]:
    """The score of each of several sets with its interval and number of questions, one line a set."""
    return [f"{name:<15} {_score(score)}  n {score['n']}" for name, score in scores.items()]


def played_of(result: Mapping[str, Any]) -> str:
    """How many questions the scores are of, and of how many where some failed."""
    whole = result["n"] + result["faults"]
    return f"{result['n']} of {whole} questions" if result["faults"] else f"{whole} questions"


def bound_lines(bounds: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What a score is held against, one line a bound: its mean, or why there is none."""
    lines = []
    for kind, bound in bounds.items():
        mean, note = bound.get("mean"), bound.get("note")
        found = f"not measured: {note}" if mean is None else "  ".join(filter(None, (f"{mean:.3f}", note)))
        lines.append(f"bound {kind:<14}{found}")
    return lines


def _show(result: dict[str, Any], console: Console) -> None:
    def line(text: str) -> None:
        console.print(f"  {text}", markup=False)

    console.print(
        f"{result['dataset']}{f' ({split})' if (split := result['split']) else ''}, {result['policy']}, "
        f"{played_of(result)}, {result['faults']} faults",
        style="bold",
    )
    if "incomplete" in result:
        line(
            f"INCOMPLETE: {result['incomplete']} The scores are of the questions that were played; the same command with"
        )
        line("--retry-faults plays the others, and its budget counts anew.")
    if strategy := result["settings"].get("strategy"):
        line(f"played with the strategy {strategy}")
    if notes := result["settings"].get("notes"):
        line(f"note: {shortened(notes, _NOTE_CHARS)}")
    reasons = result.get("fault_reasons", {})
    for reason, count in [*reasons.items()][:_REASONS]:
        line(f"fault, {count} episode{'s' * (count > 1)}: {reason}")
    if reasons and "incomplete" not in result:
        line("The same command with --retry-faults plays these episodes again.")
    for scorer, score in (result["scores"] | result.get("judged", {})).items():
        line(f"{scorer:<17} {_score(score)}{left_out_note(score)}")
        groups = result.get("by_set", {}).items()
        for own in set_lines(
            {name: part["scores"][scorer] for name, part in groups if scorer in part["scores"]}
        ):
            line(f"  {own}")
    searches = result["searches_per_question"]
    if result["retrieval"]:
        for kind, value in (result["retrieval"] | {"searches": searches}).items():
            if isinstance(value, float):
                line(f"{kind:<24}{value:.3f}")
    if result["retriever"] is not None and searches is None and result["n"]:
        line("searches and what they found: not measured, because nothing says which documents were found")
    for kind, value in result["index_recall"].items():
        line(f"index, bare question: {kind:<12}{value:.3f}")
    if (share := result["answer_in_corpus"]["share"]) is not None:
        line(f"{'answer in the corpus':<24}{share:.3f}  n {result['answer_in_corpus']['n']}")
    for bound in bound_lines(result["bounds"]):
        line(bound)
    errors = {cause: n for cause, n in result["errors"].items() if isinstance(n, int) and n}
    if errors:
        line("  ".join(f"{cause.replace('_', ' ')} {n}" for cause, n in errors.items()))
    for what, value in describe_usage(result.get("usage", {})).items():
        line(f"{what:<24}{value}")
    for what, unit in (("tokens", result["tokens"].get("unit", "")), ("seconds", "seconds")):
        found = {k: v for k, v in result[what].items() if isinstance(v, float)}
        for kind, value in found.items():
            words = kind.replace("seconds", "").replace("_", " ").split()
            line(f"{unit} {' '.join(words):<24}{value_text(value)}")
