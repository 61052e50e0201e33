"""The files of a running evaluation, from which one that was killed at any moment continues where it stopped.

`Journal` is the file of finished episodes of one phase. `lock_folder` writes down what is being evaluated and refuses a
folder that holds something else. Wall-clock seconds go to a file of their own: everything else is the same in every run.
"""

import json
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from agentenv.core.io.claims import claim, require_place
from agentenv.core.io.files import append_lines, write_text
from agentenv.core.io.strict_json import read_json_text
from agentenv.core.types import Task
from agentenv.errors import ConfigurationError
from agentenv.evaluation.checksums import announce, forget, note, verify
from agentenv.evaluation.records import EPISODES, PAGE, RESULTS, USAGE, EpisodeRecord, lines_of, parse_record

CONFIG = "config.toml"
TIMINGS = "timings.jsonl"
_MOST_SECONDS = 1e12  # of a batch; anything else, NaN among it, is no measurement
CONTENTS = "contents"
"""The table of the configuration with the digests of what its names stand for."""
NAMED = "contents of "
"""What the keys of digests of files, models and policies that options name begin with."""


class Journal:
    """The finished episodes of one phase, appended as they come.

    A line that a killed process left unfinished is cut off when the file is opened again.

    Args:
        path: the file, made with the first episode.
        again: an episode of which this is true is forgotten, and so played again.

    Raises:
        DatasetError: a complete line is no record.
        ConfigurationError: the file was changed by somebody else.
    """

    def __init__(self, path: Path, again: Callable[[EpisodeRecord], bool] = lambda record: False) -> None:
        self.path = path
        self._records: dict[str, EpisodeRecord] = {}
        verify(path, growing=True)
        lines = path.read_bytes().split(b"\n")[:-1] if path.is_file() else []
        for number, line in enumerate(lines, start=1):
            record = parse_record(line, f"{path.name}, line {number}")
            if not again(record):
                self._records.setdefault(record["id"], record)
        if path.is_file():
            self._rewrite(self._records.values())

    def __contains__(self, task: Task) -> bool:
        return task.id in self._records

    def __len__(self) -> int:
        return len(self._records)

    def append(self, records: Iterable[EpisodeRecord]) -> None:
        """Adds those that are not there yet, and waits until they are on the disk."""
        new = [record for record in records if record["id"] not in self._records]
        require_place(self.path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lines = lines_of(new)
        announce(self.path, lines.encode())
        append_lines(self.path, lines.split("\n")[:-1])
        self._records |= {record["id"]: record for record in new}

    def finish(self, tasks: Sequence[Task]) -> list[EpisodeRecord]:
        """Brings the file into the order of the questions and returns its records."""
        ordered = [self._records[task.id] for task in tasks]
        self._rewrite(ordered)
        return ordered

    def _rewrite(self, records: Iterable[EpisodeRecord]) -> None:
        require_place(self.path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lines = lines_of(records)
        announce(self.path, lines.encode())
        write_text(self.path, lines)
        note(self.path)


def lock_folder(directory: Path, config: Mapping[str, Mapping[str, Any]], *, write: bool = False) -> None:
    """Checks that ``directory`` is free or holds an evaluation of the same configuration.

    Args:
        directory: the folder of the evaluation.
        config: tables of a TOML file; those that are not given yet are not compared.
        write: whether to write the configuration down where there is none.

    Raises:
        ConfigurationError: the folder holds another evaluation, or a run that is none.
    """
    path = directory / CONFIG
    plain = {name: _plain(table) for name, table in config.items()}
    if path.is_file():
        _refuse_another(directory, _held(path), plain)
    elif held := [name for name in (EPISODES, RESULTS, USAGE, TIMINGS, PAGE) if (directory / name).exists()]:
        raise ConfigurationError(
            f"{directory} holds {held[0]} and no {CONFIG} that says which evaluation it belongs to, so a new evaluation "
            "could overwrite it: choose another --out"
        )
    elif write:
        import tomli_w

        directory.mkdir(parents=True, exist_ok=True)
        write_text(path, tomli_w.dumps(plain))


@contextmanager
def evaluating(directory: Path) -> Iterator[None]:
    """The folder of an evaluation is this process's alone within the block; one that stays empty is removed again.

    Raises:
        ConfigurationError: another process evaluates there.
        OSError: it cannot be made.
    """
    made = not directory.exists()
    directory.mkdir(parents=True, exist_ok=True)
    with claim(directory, f"another process evaluates in {directory}: wait for it, or choose another --out"):
        try:
            yield
        finally:
            if made:
                with suppress(OSError):  # it holds something, or is gone
                    directory.rmdir()


def is_of(directory: Path, config: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether ``directory`` holds an evaluation of this configuration, begun or finished."""
    try:
        return _held(directory / CONFIG) == {name: _plain(table) for name, table in config.items()}
    except (ConfigurationError, OSError):
        return False


def holds_evaluation(directory: Path) -> bool:
    """Whether ``directory`` holds an evaluation of any configuration, begun or finished."""
    try:
        return "benchmark" in _held(directory / CONFIG)
    except (ConfigurationError, OSError):
        return False


def _held(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigurationError(f"{path} is damaged ({error}): choose another --out") from error


def _plain(table: Mapping[str, Any]) -> dict[str, Any]:
    """The table as TOML gives it back: no None, no tuples, no paths."""
    kept = {name: value for name, value in table.items() if value is not None}
    return {
        name: list(v) if isinstance(v, tuple) else str(v) if isinstance(v, Path) else v
        for name, v in kept.items()
    }


def _refuse_another(directory: Path, held: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    if "benchmark" not in held:
        raise ConfigurationError(f"{directory} holds another kind of run: choose another --out")
    for name, table in asked.items():
        for key in sorted({*held.get(name, {}), *table}):
            was, now = held.get(name, {}).get(key), table.get(key)
            if was is None and name == CONTENTS and key.startswith(NAMED):
                continue  # it was not there when the evaluation began, or was written by it
            if was != now and name == CONTENTS:
                raise ConfigurationError(_other_content(directory, key, was))
            if was != now:
                hint = " (agentenv rescore adds scorers to it)" if key == "scorers" else ""
                raise ConfigurationError(
                    f"{directory} holds an evaluation with {key.replace('_', ' ')} {was!r}, not {now!r}: "
                    f"choose another --out{hint}"
                )


def _other_content(directory: Path, key: str, was: str | None) -> str:
    reason = f"{key} that have changed since" if was is not None else f"{key} of which it keeps no digest"
    return f"{directory} holds an evaluation with {reason}: choose another --out"


def forget_contents(directory: Path, keys: Sequence[str]) -> None:
    """Takes digests of what options name out of the configuration: files that the evaluation itself has written."""
    path = directory / CONFIG
    if not keys or not path.is_file():
        return
    import tomli_w

    held = _held(path)
    held[CONTENTS] = {key: digest for key, digest in held.get(CONTENTS, {}).items() if key not in keys}
    write_text(path, tomli_w.dumps(held))


def release(directory: Path) -> None:
    """Takes the configuration back from a folder in which no episode was finished and no reply was paid.

    Nothing is taken from a folder that took its place.
    """
    with suppress(FileNotFoundError):
        require_place(directory)
        _release(directory)


def _release(directory: Path) -> None:
    finished = (directory / EPISODES).is_file() and (directory / EPISODES).stat().st_size
    if finished or (directory / USAGE).is_file():
        return
    forget(directory / EPISODES)
    for name in (CONFIG, EPISODES, TIMINGS):
        (directory / name).unlink(missing_ok=True)
    if directory.is_dir() and not any(directory.iterdir()):
        directory.rmdir()


def log_seconds(directory: Path, phase: str, seconds: float, waits: Sequence[float]) -> None:
    """Appends to ``timings.jsonl`` what a batch took on the clock, and how long each of its episodes was under way."""
    line = {"phase": phase, "episodes": len(waits), "seconds": round(seconds, 4)}
    line["waits"] = [round(wait, 4) for wait in waits]
    append_lines(directory / TIMINGS, [json.dumps(line)])


def _timing(line: str) -> dict[str, Any]:
    """One line of ``timings.jsonl``; empty where it is damaged, because seconds decide nothing."""
    try:
        values = read_json_text(line)
    except ValueError:
        return {}
    waits = values.get("waits") if isinstance(values, dict) else None
    numbers = [values.get("seconds"), *waits] if isinstance(waits, list) else [None]
    return values if all(isinstance(n, int | float) and abs(n) < _MOST_SECONDS for n in numbers) else {}


def read_seconds(directory: Path, correct: int | None = None) -> dict[str, float]:
    """What the run proper took, work that a killed process lost left out; empty where nothing was logged.

    Args:
        directory: the folder of the evaluation.
        correct: number of right answers; adds the seconds for each.
    """
    path = directory / TIMINGS
    whole = path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1] if path.is_file() else []
    lines = [line for line in map(_timing, whole) if line.get("phase") == "run"]
    waits = sorted(wait for line in lines for wait in line["waits"])
    if not waits:
        return {}
    total = sum(line["seconds"] for line in lines)
    found = {
        "seconds": total,
        "seconds_per_question": total / len(waits),
        "median_seconds_of_an_episode": waits[len(waits) // 2],
    }
    return found | ({"seconds_per_correct": total / correct} if correct else {})
