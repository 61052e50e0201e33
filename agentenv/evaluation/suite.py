"""Suites: several benchmarks defined by one file, how they run, and their common summary.

A suite is a TOML file with one table for each benchmark. Keys above the first table apply to all benchmarks::

    policy = "tiny"
    limit = 500
    [hotpotqa]
    [nq]
    retriever = "faiss:/indexes/wiki18"

Its folder has one folder for each benchmark, ``suite.json``, and a report of all of them.
"""

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from agentenv.core.io.files import write_text
from agentenv.core.io.named_paths import is_folder_name
from agentenv.core.io.shipped_files import shipped_file
from agentenv.core.io.toml_files import read_toml
from agentenv.errors import AgentEnvError, ConfigurationError
from agentenv.evaluation.benchmark import BY_NAME, Benchmark, BenchmarkParts, check_names, run_benchmark
from agentenv.evaluation.journal import CONFIG
from agentenv.evaluation.records import PAGE, SUITE, read_evaluation, read_json
from agentenv.evaluation.report.report import write_report
from agentenv.evaluation.results import Json, clusters_of, measure_of, values_of
from agentenv.evaluation.statistics.macro import macro_mean
from agentenv.evaluation.statistics.significance import estimate
from agentenv.progress import Display

_KEYS = {"scorer": "scorers"}  # the name of the command's option


@dataclass(frozen=True)
class Suite:
    """Benchmarks by the name of their table, in the order of the file."""

    parts: Mapping[str, Benchmark]

    def run(
        self,
        out: Path | str,
        display: Callable[[str], Display],
        *,
        given: BenchmarkParts = BY_NAME,
        retry_faults: bool = False,
    ) -> dict[str, Any]:
        """Runs the benchmarks one after another. Those that are finished in ``out`` are not run again.

        Args:
            out: The folder.
            display: Makes the display of a benchmark from its name.
            given: Objects in place of names, for every benchmark.
            retry_faults: Whether episodes that ended by an infrastructure failure are played again.

        Returns:
            ``{"suite": {name: results}, "scores": ...}``; ``scores`` is the content of ``suite.json``.

        Raises:
            ConfigurationError: ``out`` contains another suite, or another evaluation in a folder of this suite.
            AgentEnvError: a benchmark cannot be run; finished ones are kept.
        """
        out = Path(out)
        _refuse_another(out, list(self.parts))
        results = {}
        for name, benchmark in self.parts.items():
            try:
                results[name] = run_benchmark(
                    benchmark, out / name, display(name), given=given, retry_faults=retry_faults
                )
            except AgentEnvError as error:
                raise type(error)(f"{name}: {error}") from error
        summary = summarize_suite(out, list(self.parts))
        write_report(out)
        return {"suite": results, **summary}


def read_suite(path: Path | str, defaults: Mapping[str, Any], given: BenchmarkParts = BY_NAME) -> Suite:
    """Reads the benchmarks that a file defines.

    Args:
        path: The TOML file. Its ``data`` and ``corpus`` are paths relative to the current folder, or names of sets.
        defaults: Fields of `Benchmark` used if the file does not set them.
        given: Objects in place of names, for every benchmark.

    Raises:
        ConfigurationError: the file is not TOML, has no table, or has a key or value that a benchmark does not accept.
        UnknownName: a set or a scorer does not exist.
    """
    path = Path(path)
    return make_suite(read_toml(shipped_file(path)), defaults, given, where=str(path))


def make_suite(
    tables: Mapping[str, Any],
    defaults: Mapping[str, Any],
    given: BenchmarkParts = BY_NAME,
    *,
    where: str = "the suite",
) -> Suite:
    """Makes the benchmarks of a suite.

    Args:
        tables: A mapping for each benchmark by its name, and besides them values that apply to all.
        defaults: Fields of `Benchmark` used if ``tables`` does not set them.
        given: Objects in place of names, for every benchmark.
        where: The name of the suite in errors.

    Raises:
        ConfigurationError: there is no table, or a key or value that a benchmark does not accept.
        UnknownName: a set or a scorer does not exist.
    """
    shared = {key: value for key, value in tables.items() if not isinstance(value, Mapping)}
    own = {key: value for key, value in tables.items() if isinstance(value, Mapping)}
    if not own:
        raise ConfigurationError(f"{where} holds no table: write one [NAME] for each benchmark")
    parts = {}
    for name, table in own.items():
        if not is_folder_name(name):
            raise ConfigurationError(
                f"{where}: the table {name!r} needs a name that a folder can have, as its results are written there"
            )
        values = {**defaults, "dataset": name, **_fields(where, name, shared), **_fields(where, name, table)}
        parts[name] = Benchmark(**values)
        for field in {"policy", "retriever"} & {*shared, *table}:
            if getattr(given, field) is not None:
                raise ConfigurationError(
                    f"{where}: {name} names a {field}, and one is given as an argument already: leave one of them out"
                )
        check_names(parts[name], given)
    return Suite(parts)


def _fields(where: str, name: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """Converts a table to fields of `Benchmark`."""
    types = get_type_hints(Benchmark)
    values: dict[str, Any] = {}
    for key, value in table.items():
        field = _KEYS.get(key, key)
        if field not in types:
            known = ", ".join(sorted({*types, *_KEYS} - {"scorers"}))
            raise ConfigurationError(f"{where}: {name} may hold {known}, and not {key!r}")
        if field == "scorers":
            fits = isinstance(value, list | tuple) and value and all(isinstance(one, str) for one in value)
            values[field] = tuple(value) if fits else value
        elif field in ("options", "template_options", "strategy_options", "task_options"):
            fits = isinstance(value, dict)
            values[field] = value
        elif field == "data":
            fits = isinstance(value, str | Path)
            values[field] = Path(value) if fits else value
        else:
            switch = types[field] in (bool, bool | None)
            fits = isinstance(value, types[field]) and isinstance(value, bool) == switch
            values[field] = value
        if not fits:
            raise ConfigurationError(
                f"{where}: {name}: {key} has the value {value!r}, which is of another type than it takes"
            )
    return values


def _refuse_another(out: Path, names: Sequence[str]) -> None:
    if (out / SUITE).is_file() and (held := read_json(out / SUITE).get("sets")) != list(names):
        raise ConfigurationError(f"{out} holds a suite of {held}, not {list(names)}: choose another --out")
    begun = (out / SUITE, *(out / name / CONFIG for name in names))
    if (out / PAGE).exists() and not any(path.is_file() for path in begun):
        raise ConfigurationError(
            f"{out} holds {PAGE}, which a suite would replace, and no evaluation of one: choose another --out"
        )


def summarize_suite(out: Path, names: Sequence[str]) -> Json:
    """Writes and returns ``suite.json``: each set's scores, and macro and micro means of the scorers that all sets have."""
    parts = {name: read_evaluation(out / name) for name in names}
    first, *others = (list(part.results["scores"]) for part in parts.values())
    common = [scorer for scorer in first if all(scorer in names for names in others)]
    scored = {name: [record for record in part.records if record["valid"]] for name, part in parts.items()}
    summary: Json = {
        "sets": list(names),
        "by_set": {name: part.results["scores"] for name, part in parts.items()},
        "scores": {
            scorer: combine(
                [values_of(records, scorer) for records in scored.values() if records],
                [clusters_of(records) for records in scored.values() if records],
            )
            | {"version": measure_of(scorer).version}
            for scorer in common
        },
        "faults": sum(part.results["faults"] for part in parts.values()),
    }
    write_text(out / SUITE, json.dumps(summary, indent=2, ensure_ascii=False) + "\n")
    return summary


def combine(sets: Sequence[Sequence[float]], clusters: Sequence[Sequence[Hashable]] | None = None) -> Json:
    """Returns the macro and micro means of the values of several sets.

    The macro mean gives equal weight to sets, as papers do (`macro_mean`). The micro mean gives equal weight to questions.
    Errors within a set are over its questions, or over ``clusters`` of them if they share a passage. The choice of the sets
    is not random, so neither interval says anything about other sets.
    """
    if not sets:
        return {
            "macro": {"mean": None, "ci95": None, "sets": 0},
            "micro": {"mean": None, "ci95": None, "n": 0},
        }
    clusters = [range(len(values)) for values in sets] if clusters is None else clusters
    mean, ends = macro_mean(sets, clusters)
    members = [(number, cluster) for number, several in enumerate(clusters) for cluster in several]
    pooled = estimate([value for values in sets for value in values], clusters=members)
    return {
        "macro": {"mean": mean, "ci95": ends, "sets": len(sets)},
        "micro": {"mean": pooled.mean, "ci95": pooled.ci95, "n": pooled.n},
    }
