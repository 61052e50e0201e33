"""The folder of an evaluation: ``episodes.jsonl`` with one question per line, and ``results.json`` with the summary.

A line of ``episodes.jsonl`` is a JSON object with the keys of `EpisodeRecord`. The summary can always be recomputed from it,
so scorers added later are applied to the same episodes.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Required

from pydantic import BeforeValidator, Field, with_config
from typing_extensions import TypedDict  # pydantic supports that of ``typing`` only from Python 3.12 on

from agentenv.core.io.claims import require_claimed_folder
from agentenv.core.io.files import write_text
from agentenv.core.io.strict_json import read_json_text
from agentenv.core.scoring.scorers import check_answers
from agentenv.data.sealed import seal, unseal
from agentenv.errors import ConfigurationError, DatasetError
from agentenv.evaluation.checksums import remove_digests, verify_digests, write_digests
from agentenv.evaluation.saved_forms import AS_WRITTEN, check_form

EPISODES = "episodes.jsonl"
RESULTS = "results.json"
USAGE = "usage.json"
SUITE = "suite.json"
PAGE = "report.html"
TOOL_CALL_FORM = "tool_call_form"
"""Setting in ``results.json`` of a native policy: the model family whose form its turns have, or ``ENDPOINT``."""
ENDPOINT = "endpoint"
"""Marks turns of a model whose service renders and parses them, written by `agentenv.core.action_turns`."""


@with_config(AS_WRITTEN)
class ToolRecord(TypedDict, total=False):
    """One tool call of a turn, with the values of `agentenv.core.types.ToolResult`."""

    name: str
    status: str
    text: str
    error_class: str
    ids: Sequence[Sequence[str]]
    """Ids of the returned passages: one ranked list for each query."""


@with_config(AS_WRITTEN)
class MarkRecord(TypedDict):
    """An action on a screen, with the values of `agentenv.core.scene.Mark`."""

    kind: str
    label: str
    at: Sequence[float] | None
    to: Sequence[float] | None
    box: Sequence[float] | None
    expert: bool


@with_config(AS_WRITTEN)
class SceneRecord(TypedDict, total=False):
    """The screen on which an action was chosen."""

    picture: Required[str]
    """The name of a file in the folder ``screens`` beside the episodes, derived from its content."""
    marks: Required[list[MarkRecord]]
    size: Sequence[int]
    """Width and height in pixels, to which the marks refer."""


@with_config(AS_WRITTEN)
class TurnRecord(TypedDict, total=False):
    """One turn: what the policy wrote, what it was shown next, and the reward."""

    action: str
    cut: bool
    """True if a token budget ended the action, and not the policy."""
    observation: str
    messages: list[str]
    """The texts of the observation's messages, if there are several."""
    images: int
    """Number of images in the observation, if there are any."""
    valid: bool
    reward: float
    tool_results: list[ToolRecord]
    policy_tokens: int
    """Number of tokens sampled in this turn."""
    observation_tokens: int
    """Number of tokens shown after the turn, unless the observation started a new row."""
    scene: SceneRecord
    """The screen on which the action was chosen, if there is one."""


@with_config(AS_WRITTEN)
class SegmentRecord(TypedDict, total=False):
    """A segment of an episode's token ids, with the values of `agentenv.core.trajectory.Segment`."""

    kind: Required[Annotated[str, Field(pattern="^(prompt|policy|env|format|injected)$")]]
    turn: Required[int]
    row: Required[int]
    ids: Required[Sequence[int]]
    trained: bool


@with_config(AS_WRITTEN)
class EpisodeRecord(TypedDict, total=False):
    """One question of an evaluation, with the whole episode."""

    id: Required[str]
    question: Required[str]
    answers: Required[Sequence[str]]
    prediction: Required[str | None]
    solved: bool
    """Whether the environment considers the task solved; if absent, the score decides."""
    # False after an infrastructure failure: the episode is excluded from every score and counted as a fault.
    valid: Required[bool]
    end_reason: Required[str]
    searches: Required[int | None]
    """Number of queries; None if it is unknown what was found."""
    reward: float
    rank: int | None
    """Best rank of a gold passage, in an environment with a single search; None if none was found."""
    # share of a recording that was followed before the first mismatch, in a semi-online environment
    followed_share: float
    supporting_ids: Sequence[str]
    canary: str
    """The canary of a set whose text may be stored only in encrypted form."""
    cluster: str
    """The passage that the question shares with others, so that they are not independent."""
    retrieved_ids: Sequence[Sequence[str]]
    """One ranked list of ids for each search."""
    set: str
    """In an evaluation of several sets: the set of the question."""
    family: str | None
    hops: int | None
    tokens: dict[str, int]
    """``policy``: sampled tokens; ``total``: also prompt and observations."""
    error: str
    """The message of an infrastructure failure."""
    prompt: str
    opening: list[str]
    """The texts of the opening messages, if there are several."""
    images: int
    """Number of images in the prompt, if there are any."""
    tools: list[dict[str, Any]]
    """The declared tools in OpenAI's form, if the policy used its native form and they did not change."""
    turns: Annotated[Sequence[TurnRecord], BeforeValidator(lambda turns: [] if turns is None else turns)]
    # The roles of the opening messages, then of those after each turn; only if they are unusual.
    roles: Sequence[Sequence[str]]
    segments: Sequence[SegmentRecord]
    """All token ids, if they were requested."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The content of one evaluation folder."""

    directory: Path
    results: dict[str, Any]
    records: list[EpisodeRecord]


def read_evaluation(directory: Path | str) -> Evaluation:
    """Reads a whole evaluation folder.

    Raises:
        ConfigurationError: the folder is no evaluation, or its episodes were changed.
        DatasetError: a line cannot be scored; the message names the line.
    """
    directory = Path(directory)
    results = read_results(directory)
    verify_digests(directory / EPISODES)
    return Evaluation(directory, results, read_records(directory / EPISODES))


def read_records(path: Path) -> list[EpisodeRecord]:
    """Reads and checks the lines of an ``episodes.jsonl``.

    Raises:
        ConfigurationError: the file does not exist.
        DatasetError: a line is not JSON, lacks a key, repeats an id, or has accepted answers that are not text.
    """
    if not path.is_file():
        raise ConfigurationError(_no_evaluation(path))
    records: dict[str, EpisodeRecord] = {}
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        if line.strip():
            record = parse_record(line, f"{path.name}, line {number}")
            if record["id"] in records:
                raise DatasetError(f"{path.name}, line {number}: the id {record['id']!r} occurs twice.")
            records[record["id"]] = record
    return list(records.values())


def _no_evaluation(path: Path) -> str:
    """Returns the message that the file ``path`` of an evaluation is missing, and which folder was probably meant."""
    within = path.parent / "evaluation" / "after"
    which = (
        f"such as that of this training run, {within}" if within.is_dir() else "as `agentenv eval` writes it"
    )
    return f"No {path.name} in {str(path.parent)!r}; give an evaluation folder, {which}."


def parse_record(line: bytes, where: str) -> EpisodeRecord:
    """Parses and checks one line of ``episodes.jsonl``; ``where`` names it in errors.

    Raises:
        DatasetError: the line is not JSON, lacks a key, or has accepted answers that are not text.
    """
    try:
        record = read_json_text(line)
    except ValueError as error:
        raise DatasetError(f"{where} is not JSON ({error}); was the run interrupted?") from None
    if isinstance(record, dict) and "sealed" in record:
        record |= _unsealed(record.pop("sealed"), record.get("canary", ""), where)
    missing = sorted(EpisodeRecord.__required_keys__ - set(record)) if isinstance(record, dict) else ["id"]
    if missing:
        raise DatasetError(f"{where}: the key {missing[0]!r} is missing.")
    try:
        if record["answers"] != []:  # an environment that scores episodes itself has none
            check_answers(record["answers"])
    except DatasetError as error:
        raise DatasetError(f"{where}: {error}") from None
    check_form(EpisodeRecord, record, where)
    result: EpisodeRecord = record
    return result


def _unsealed(cipher: Any, canary: Any, where: str) -> dict[str, Any]:
    try:
        texts: dict[str, Any] = dict(read_json_text(unseal(cipher, canary)))
    except (ValueError, TypeError, AttributeError):
        raise DatasetError(f"{where} cannot be decrypted with its canary.") from None
    return texts


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object from a file.

    Raises:
        ConfigurationError: the file does not exist or does not contain a JSON object.
    """
    if not path.is_file():
        raise ConfigurationError(
            f"No {path.name} in {str(path.parent)!r}; give the folder of a finished run."
        )
    try:
        value = read_json_text(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigurationError(f"{str(path)!r} is not JSON: {error}.") from None
    if not isinstance(value, dict):
        raise ConfigurationError(f"{str(path)!r} holds no JSON object.")
    return value


def read_results(directory: Path) -> dict[str, Any]:
    """Reads the ``results.json`` of an evaluation.

    Raises:
        ConfigurationError: there is none, or it does not have the form that an evaluation writes.
    """
    if (directory / EPISODES).is_file() and not (directory / RESULTS).is_file():
        raise ConfigurationError(
            f"The evaluation in {str(directory)!r} is not finished: it has no {RESULTS} yet. The same `agentenv eval` "
            "command goes on with it."
        )
    if not (directory / RESULTS).is_file():
        raise ConfigurationError(_no_evaluation(directory / RESULTS))
    return _read_checked("results", directory / RESULTS)


def read_suite_summary(directory: Path) -> dict[str, Any]:
    """Reads the ``suite.json`` of a suite.

    Raises:
        ConfigurationError: there is none, or it does not have the form that a suite writes.
    """
    return _read_checked("suite", directory / SUITE)


def _read_checked(kind: str, path: Path) -> dict[str, Any]:
    value = read_json(path)
    check_form(kind, value, str(path))
    return value


_UNENCRYPTED_KEYS = frozenset(
    {
        "id",
        "valid",
        "end_reason",
        "searches",
        "solved",
        "reward",
        "rank",
        "followed_share",
        "supporting_ids",
        "canary",
    }
    | {"cluster", "retrieved_ids", "set", "family", "hops", "tokens"}
)
"""Keys of a sealed set's record that contain none of its text. All other keys are encrypted, including future ones."""


def as_line(record: EpisodeRecord) -> str:
    """Writes one record as a line of ``episodes.jsonl``. The texts of a sealed set are encrypted with its canary."""
    row: dict[str, Any] = dict(record)
    if "canary" in record:
        texts = {name: row.pop(name) for name in list(row) if name not in _UNENCRYPTED_KEYS}
        row["sealed"] = seal(json.dumps(texts, ensure_ascii=False), record["canary"])
    return json.dumps(row, ensure_ascii=False) + "\n"


def redacted(record: EpisodeRecord) -> EpisodeRecord:
    """Returns ``record`` for a page that people may share: without the texts of a sealed set."""
    if "canary" not in record:
        return record
    hidden = "(not shown: this set must not be published in plain text)"
    shown: dict[str, Any] = {name: value for name, value in record.items() if name in _UNENCRYPTED_KEYS}
    shown |= {"question": hidden, "answers": [hidden], "prompt": hidden, "turns": []}
    shown["prediction"] = None if record["prediction"] is None else hidden
    if record.get("error"):  # a service that refuses a request may quote the question
        shown["error"] = hidden
    return shown  # type: ignore[return-value]


def write_evaluation(directory: Path, results: Mapping[str, Any], records: Iterable[EpisodeRecord]) -> None:
    """Writes both files. ``results.json`` is written last, so its presence means that the folder is complete."""
    require_claimed_folder(directory)
    directory.mkdir(parents=True, exist_ok=True)
    remove_digests(directory / EPISODES)
    write_text(directory / EPISODES, lines_of(records))
    write_digests(directory / EPISODES)
    write_results(directory, results)


def lines_of(records: Iterable[EpisodeRecord]) -> str:
    """Writes records as the lines of ``episodes.jsonl``."""
    return "".join(map(as_line, records))


def write_results(directory: Path, results: Mapping[str, Any]) -> None:
    """Writes or replaces ``results.json``."""
    write_text(directory / RESULTS, json.dumps(results, indent=2, ensure_ascii=False) + "\n")
