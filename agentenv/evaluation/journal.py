"""The files of a running evaluation. An evaluation that was killed at any moment resumes from them.

`Journal` is the file of the finished episodes of one phase. `lock_folder` records what is being evaluated, and refuses a
folder with another evaluation. Wall-clock times are in a file of their own, because everything else is the same in every
run.
"""

import json
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from agentenv.core.io.claims import claim, require_claimed_folder
from agentenv.core.io.files import append_lines, write_text
from agentenv.core.io.strict_json import read_json_text
from agentenv.core.types import Task
from agentenv.errors import ConfigurationError
from agentenv.evaluation.checksums import append_digests, remove_digests, verify_digests, write_digests
from agentenv.evaluation.records import EPISODES, PAGE, RESULTS, USAGE, EpisodeRecord, lines_of, parse_record

CONFIG = "config.toml"
TIMINGS = "timings.jsonl"
_MOST_SECONDS = 1e12  # a batch's largest valid duration; anything else, such as NaN, is ignored
CONTENTS = "contents"
"""The table of the configuration that holds the digests of the content it refers to by name."""
NAMED = "contents of "
"""The prefix of the keys of digests of files, models and policies that options name."""


class Journal:
    """The finished episodes of one phase, which are appended as they come.

    An incomplete line left by a killed process is removed when the file is opened again.

    Args:
        path: The file, which is created with the first episode.
        again: Episodes for which this returns True are dropped, and so played again.

    Raises:
        DatasetError: a complete line is not a valid record.
        ConfigurationError: the file was changed by another program.
    """

    def __init__(self, path: Path, again: Callable[[EpisodeRecord], bool] = lambda record: False) -> None:
        self.path = path
        self._records: dict[str, EpisodeRecord] = {}
        verify_digests(path, growing=True)
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
        """Appends the records that are not in the file yet, and waits until they are on the disk."""
        new = [record for record in records if record["id"] not in self._records]
        require_claimed_folder(self.path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lines = lines_of(new)
        append_digests(self.path, lines.encode())
        append_lines(self.path, lines.split("\n")[:-1])
        self._records |= {record["id"]: record for record in new}

    def finish(self, tasks: Sequence[Task]) -> list[EpisodeRecord]:
        """Sorts the file by the order of the questions, and returns its records."""
        ordered = [self._records[task.id] for task in tasks]
        self._rewrite(ordered)
        return ordered

    def _rewrite(self, records: Iterable[EpisodeRecord]) -> None:
        require_claimed_folder(self.path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lines = lines_of(records)
        append_digests(self.path, lines.encode())
        write_text(self.path, lines)
        write_digests(self.path)


def lock_folder(directory: Path, config: Mapping[str, Mapping[str, Any]], *, write: bool = False) -> None:
    """Checks that ``directory`` is unused or contains an evaluation with the same configuration.

    Args:
        directory: The folder of the evaluation.
        config: Tables of a TOML file. Tables that are missing here are not compared.
        write: Whether the configuration is written if the folder has none.

    Raises:
        ConfigurationError: the folder contains another evaluation, or a run that is not an evaluation.
    """
    path = directory / CONFIG
    plain = {name: _plain(table) for name, table in config.items()}
    if path.is_file():
        _refuse_another(directory, _read_config(path), plain)
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
    """Within the block, the folder of an evaluation belongs to this process; an empty one is removed at the end.

    Raises:
        ConfigurationError: another process is evaluating there.
        OSError: the folder cannot be created.
    """
    made = not directory.exists()
    directory.mkdir(parents=True, exist_ok=True)
    with claim(directory, f"another process evaluates in {directory}: wait for it, or choose another --out"):
        try:
            yield
        finally:
            if made:
                with suppress(OSError):  # it is not empty, or was removed
                    directory.rmdir()


def is_of(directory: Path, config: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether ``directory`` contains an evaluation with this configuration, started or finished."""
    try:
        return _read_config(directory / CONFIG) == {name: _plain(table) for name, table in config.items()}
    except (ConfigurationError, OSError):
        return False


def holds_evaluation(directory: Path) -> bool:
    """Whether ``directory`` contains an evaluation with any configuration, started or finished."""
    try:
        return "benchmark" in _read_config(directory / CONFIG)
    except (ConfigurationError, OSError):
        return False


def _read_config(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigurationError(f"{path} is damaged ({error}): choose another --out") from error


def _plain(table: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the table as TOML would return it: without None, tuples and paths."""
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
                continue  # missing when the evaluation began, or written by it
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
    """Removes digests of what options name from the configuration: the evaluation itself has written those files."""
    path = directory / CONFIG
    if not keys or not path.is_file():
        return
    import tomli_w

    held = _read_config(path)
    held[CONTENTS] = {key: digest for key, digest in held.get(CONTENTS, {}).items() if key not in keys}
    write_text(path, tomli_w.dumps(held))


def release(directory: Path) -> None:
    """Removes the configuration from a folder in which no episode was finished and no reply was paid for.

    A folder that has replaced the original one is left unchanged.
    """
    with suppress(FileNotFoundError):
        require_claimed_folder(directory)
        _release(directory)


def _release(directory: Path) -> None:
    finished = (directory / EPISODES).is_file() and (directory / EPISODES).stat().st_size
    if finished or (directory / USAGE).is_file():
        return
    remove_digests(directory / EPISODES)
    for name in (CONFIG, EPISODES, TIMINGS):
        (directory / name).unlink(missing_ok=True)
    if directory.is_dir() and not any(directory.iterdir()):
        directory.rmdir()


def log_seconds(directory: Path, phase: str, seconds: float, waits: Sequence[float]) -> None:
    """Appends to ``timings.jsonl`` the wall-clock duration of a batch, and that of each of its episodes."""
    line = {"phase": phase, "episodes": len(waits), "seconds": round(seconds, 4)}
    line["waits"] = [round(wait, 4) for wait in waits]
    append_lines(directory / TIMINGS, [json.dumps(line)])


def _timing(line: str) -> dict[str, Any]:
    """Parses one line of ``timings.jsonl``; empty if it is damaged, because results do not depend on times."""
    try:
        values = read_json_text(line)
    except ValueError:
        return {}
    waits = values.get("waits") if isinstance(values, dict) else None
    numbers = [values.get("seconds"), *waits] if isinstance(waits, list) else [None]
    return values if all(isinstance(n, int | float) and abs(n) < _MOST_SECONDS for n in numbers) else {}


def read_seconds(directory: Path, correct: int | None = None) -> dict[str, float]:
    """Returns the durations of the run itself, without work that a killed process lost; empty without a log.

    Args:
        directory: The folder of the evaluation.
        correct: The number of right answers; if given, seconds per right answer are included.
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
