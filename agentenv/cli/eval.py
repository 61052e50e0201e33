"""``agentenv eval``: one benchmark, or a suite of several."""

import tomllib
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from agentenv.errors import AgentEnvError, ConfigurationError


@dataclass(frozen=True)
class Eval:
    """Evaluates a policy on a question set, greedily, with intervals and bounds.

    Example: agentenv eval --dataset hotpotqa --data DIR --policy tiny --limit 50 --out runs/hotpot
    """

    out: Path
    """Folder for results.json, episodes.jsonl and report.html."""
    dataset: str = ""
    """Name of the question set; ``fictional`` reads the folder of a world."""
    data: Path | None = None
    """Folder or file of the set; default: the environment variable AGENTENV_DATA."""
    split: str | None = None
    """Split of the set; default: its first."""
    policy: str = "tiny"
    """``tiny``, ``hf:PATH`` or ``scripted`` (the environment's own expert)."""
    retriever: str = ""
    """``faiss:DIR``, ``bm25:DIR``, ``hybrid:DIR``; default: FAISS over MiniLM, built over the set's own corpus."""
    scorer: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Scorer, may be repeated; the first is the headline. Default: em_squad, f1_squad, em_cover."""
    limit: int | None = None
    """Number of questions drawn; default: all."""
    seed: int = 0
    """Seeds the draw and the episodes."""
    k: int | None = None
    """Passages a search; default: what the policy was trained with, otherwise 3."""
    max_turns: int | None = None
    """Turns before the last one, in which only an answer counts; default: as trained, otherwise 4."""
    suite: Path | None = None
    """TOML file with one table a benchmark, each with flags of this command; results go to subfolders of --out."""

    def run(self) -> dict[str, Any]:
        """Runs the benchmark, or every benchmark of the suite."""
        if self.suite is None:
            return self._one()
        return {"suite": {name: part._one() for name, part in self._parts().items()}}

    def _one(self) -> dict[str, Any]:
        from agentenv.evaluation.benchmark import Benchmark, run_benchmark

        if not self.dataset:
            raise ConfigurationError("give --dataset NAME; `agentenv list` shows the names")
        benchmark = Benchmark(
            dataset=self.dataset,
            data=self.data,
            split=self.split,
            policy=self.policy,
            retriever=self.retriever,
            scorers=self.scorer or ("em_squad", "f1_squad", "em_cover"),
            limit=self.limit,
            seed=self.seed,
            k=self.k,
            max_turns=self.max_turns,
        )
        from agentenv.cli.progress import LiveDisplay

        self.out.mkdir(parents=True, exist_ok=True)
        try:
            with LiveDisplay(self.dataset, log=self.out / "run.log") as display:
                results = run_benchmark(benchmark, self.out, display)
        except (AgentEnvError, OSError):
            (self.out / "run.log").unlink(missing_ok=True)
            if not any(self.out.iterdir()):
                self.out.rmdir()
            raise
        return results | {"out": str(self.out)}

    def _parts(self) -> dict[str, "Eval"]:
        assert self.suite is not None
        known = {field.name for field in fields(self)} - {"out", "suite"}
        parts = {}
        try:
            tables = tomllib.loads(self.suite.read_text(encoding="utf-8"))
        except tomllib.TOMLDecodeError as error:
            raise ConfigurationError(f"{self.suite} is no TOML: {error}") from error
        for name, table in tables.items():
            if not isinstance(table, dict) or set(table) - known:
                raise ConfigurationError(
                    f"{self.suite}: {name} may hold {', '.join(sorted(known))} and nothing else"
                )
            values: dict[str, Any] = {
                "policy": self.policy,
                "limit": self.limit,
                "scorer": self.scorer,
            } | table
            values |= {"data": Path(table["data"])} if "data" in table else {}
            parts[name] = replace(Eval(out=self.out / name), **values | {"scorer": tuple(values["scorer"])})
        return parts

    def show(self, result: dict[str, Any], console: Console) -> None:
        """Scores with n and interval, retrieval, bounds."""
        for name, part in result.get("suite", {"": result}).items():
            _show(name, part, console)


def _show(name: str, result: dict[str, Any], console: Console) -> None:
    console.print(
        f"[bold]{name or result['dataset']}[/bold] ({result['split']}), {result['policy']}, "
        f"{result['n']} questions, {result['faults']} faults",
        highlight=False,
    )
    for scorer, score in result["scores"].items():
        low, high = score["ci95"] or (float("nan"), float("nan"))
        console.print(f"  {scorer:<12}{score['mean']:.3f}  [{low:.3f}, {high:.3f}]", highlight=False)
    for kind, value in (result["retrieval"] | {"searches": result["searches_per_question"]}).items():
        if isinstance(value, float):
            console.print(f"  {kind:<24}{value:.3f}", highlight=False)
    for kind, value in result["index_recall"].items():
        console.print(f"  index, bare question: {kind:<12}{value:.3f}", highlight=False)
    for kind, bound in result["bounds"].items():
        console.print(
            f"  bound {kind:<18}{bound.get('note') or format(bound['mean'], '.3f')}", highlight=False
        )
    console.print(f"  {result['out']}/results.json and report.html", highlight=False)
