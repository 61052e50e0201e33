"""The policies that the experiments start from: the commands that make each, and whether one that lies there is that one.

A start keeps in ``start.json`` a digest of all that decides what it is: the commands, the runs whose experts it imitates,
the weights that it begins with, and the versions of the code. One whose digest is still right is not made again. The source
itself is no part of the digest, because any changed comment changes it; whether it differs is said. Beside ``digest``,
``source`` and ``commands`` the file has ``minutes``, and the processor time that they took as ``core_minutes``.
"""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any

from agentenv.core.concurrency.signals import Interrupted
from agentenv.core.io.claims import claim
from agentenv.core.io.digests import value_digest
from agentenv.core.io.files import new_folder, remove, write_text
from agentenv.errors import ConfigurationError
from agentenv.evaluation.records import read_json
from agentenv.policies.policy_spec import START_RECORD, policy_digest
from agentenv.trainers.config.config_files import load_config
from agentenv.trainers.lab.lab import Experiment
from agentenv.trainers.lab.provenance import SOURCE, source_digest, stands_on, versions

_SIGNALLED = 128  # a command that a signal ended leaves with this and the signal's number

STARTS: Mapping[str, tuple[str, ...]] = {
    "tiny-advice": ("warmstart --from-shipped --advice-steps 300 --hops 3",),
    "tiny-chains": ("warmstart --imitate lab-chains --steps 400",),
    "tiny-hybrid": ("warmstart --from-shipped --several-steps 500",),
    "tiny-ikea": ("warmstart --imitate lab-lookups lab-memory --steps 400",),
    "tiny-pages": ("warmstart --imitate lab-pages-lessons --steps 300",),
    "tiny-planner": ("warmstart --imitate lab-refined-lessons lab-everything-lessons --steps 300",),
    "tiny-rewriter": ("warmstart --imitate lab-rewrites --steps 100",),
    "tiny-self": ("warmstart --imitate lab-self --steps 300",),
    "tiny-steps": ("warmstart --env code --stateful --difficulty 3 --careless 0.8 --steps 400",),
    "tiny-verdicts": ("warmstart --imitate lab-verdicts --steps 150",),
    "simulator": (
        "simulator data --worlds 80 --out {out}.jsonl",
        "simulator train {out}.jsonl --steps 1500 --rate 0.5",
    ),
}
"""The commands that make each start, by the name of its folder. ``--out`` with that folder belongs to the last of them."""


def commands_of(name: str, folder: Path) -> list[list[str]]:
    """The commands of a start as lists of words."""
    lines = [[word.format(out=folder) for word in command.split()] for command in STARTS[name]]
    return [*lines[:-1], [*lines[-1], "--out", str(folder)]]


def digest_of(name: str) -> str:
    """A digest of all that decides what the start ``name`` is.

    Raises:
        ConfigurationError: a run that it imitates cannot be read, or a policy that it begins with is not there.
    """
    rests: list[Any] = [STARTS[name], versions()]
    for command in STARTS[name]:
        words = command.split()
        if "--from-shipped" in words or words[:2] == [
            "simulator",
            "train",
        ]:  # which fine-tunes it where no --base is named
            rests.append(policy_digest("tiny"))
        for run in _imitated(words):
            found = stands_on(run, load_config(run), {})
            rests.append({key: value for key, value in found.items() if key != SOURCE})
    return value_digest(rests)


def is_made(name: str, folder: Path) -> bool:
    """Whether ``folder`` holds the start ``name`` as it would be made now.

    Raises:
        ConfigurationError: it holds something that was not made as a start, or what it says of itself is damaged.
    """
    if not folder.exists():
        return False
    if not (folder / START_RECORD).is_file():
        raise ConfigurationError(
            f"{folder} was not made by agentenv lab starts: move it away, or give another --out"
        )
    return bool(_said(folder, "digest") == digest_of(name))


def has_other_source(folder: Path) -> bool:
    """Whether the start in ``folder`` was made by other source of agentenv, which may or may not make it otherwise."""
    return bool(_said(folder, "source") != source_digest())


def _said(folder: Path, key: str) -> Any:
    """What a start says of itself."""
    record = read_json(folder / START_RECORD)
    if key not in record:
        raise ConfigurationError(f"{folder / START_RECORD} is damaged, it has no {key!r}: move {folder} away")
    return record[key]


def make_start(name: str, folder: Path, run: Callable[[Sequence[str]], int]) -> float:
    """Makes the start ``name`` in ``folder``, in place of an older one; the minutes that it took.

    It is made beside ``folder``, so that an older one stays until all commands are through.

    Args:
        name: A key of ``STARTS``.
        folder: Where; what is there is known to be an older start.
        run: Runs a command of agentenv; its exit status.

    Raises:
        ConfigurationError: a command failed, or another process is making it.
        Interrupted: a command was.
    """
    began, busy = time.perf_counter(), _processor_s()
    digest, source = digest_of(name), source_digest()
    with _workplace(folder) as place:
        made = place / folder.name
        for words in commands_of(name, made):
            if (code := run(words)) > _SIGNALLED:
                raise Interrupted(code - _SIGNALLED)
            if code != 0:
                raise ConfigurationError(f"{folder} could not be made: agentenv {' '.join(words)} failed")
        minutes = (time.perf_counter() - began) / 60
        record = {
            "digest": digest,
            "source": source,
            "commands": list(STARTS[name]),
            "minutes": round(minutes, 1),
            "core_minutes": round((_processor_s() - busy) / 60, 1),
        }
        write_text(made / START_RECORD, json.dumps(record, indent=1) + "\n")
        with new_folder(folder, replace=True) as part:
            shutil.copytree(made, part, dirs_exist_ok=True)
    return minutes


def _processor_s() -> float:
    """Seconds of processor time of this process and of its children that have ended, such as programs in a sandbox."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


@contextmanager
def _workplace(folder: Path) -> Iterator[Path]:
    """An empty folder beside ``folder`` that no other process works in; it is removed in the end.

    Raises:
        ConfigurationError: another process works there.
    """
    place = folder.with_name(folder.name + ".making")
    place.mkdir(parents=True, exist_ok=True)
    with claim(place, f"{folder} is being made by another process: wait for it"):
        try:
            for left in place.iterdir():  # of a process that was killed
                remove(left)
            yield place
        finally:
            remove(place)


def refuse_missing_starts(experiment: Experiment) -> None:
    """Refuses an experiment whose start has not been made, and says how to make it.

    Raises:
        ConfigurationError: a folder of ``STARTS`` that an arm starts from does not exist.
    """
    folders = {
        Path(policy.removeprefix("hf:"))
        for arm in experiment.arms
        if (policy := experiment.run_of(arm, 0).policy).startswith("hf:")
    }
    missing = sorted(folder for folder in folders if folder.name in STARTS and not folder.exists())
    if missing:
        names = " ".join(folder.name for folder in missing)
        raise ConfigurationError(f"{missing[0]} is not there: make it with agentenv lab starts {names}")


def _imitated(words: Sequence[str]) -> list[str]:
    """The runs after ``--imitate``."""
    if "--imitate" not in words:
        return []
    return [*takewhile(lambda word: not word.startswith("--"), words[words.index("--imitate") + 1 :])]
