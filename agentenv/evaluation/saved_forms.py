"""Schemas of the files that evaluations and training runs write, to check them when they are read.

Files may have been edited, cut or made elsewhere, so they are checked before anything is computed. Unknown keys are kept.
"""

import json
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from agentenv.core.io.named_paths import is_folder_name
from agentenv.errors import DatasetError

AS_WRITTEN = ConfigDict(strict=True, allow_inf_nan=False, extra="allow")
"""The configuration of every schema: types as written, and only finite numbers."""


class _Form(BaseModel):
    """Base class of the schemas of whole files and of lines of logs."""

    model_config = AS_WRITTEN


class _Score(_Form):
    mean: float | None = None
    ci95: tuple[float, float] | None = Field(None, strict=False)
    n: int = 0
    version: int | str | None = None
    faults: dict[str, int] = {}
    judge: str = ""
    rubric: str = ""
    prompt_sha256: str = ""
    note: str = ""


class _Group(_Form):
    n: int
    scores: dict[str, _Score]


class _Skill(_Form):
    skill: str
    slice: str
    episodes: int
    shown_in_successes: float | None
    shown_in_failures: float | None
    missing: bool


class _Share(_Form):
    share: float | None
    n: int


class _Errors(_Form):
    __pydantic_extra__: dict[str, int]
    scorer: str = ""


class _Tokens(_Form):
    __pydantic_extra__: dict[str, float | None]
    unit: str = "tokens"


class _Results(_Form):
    dataset: str | None = None
    split: str | None = None
    policy: str | None = None
    retriever: str | None = None
    seed: int = 0
    n: int = 0
    faults: int = 0
    scores: dict[str, _Score] = {}
    judged: dict[str, _Score] = {}
    by_set: dict[str, _Group] = {}
    by_family: dict[str, _Group] = {}
    by_hops: dict[str, _Group] = {}
    retrieval: dict[str, float | None] = {}
    searches_per_question: float | None = None
    answer_rate: float | None = None
    reward_mean: float | None = None
    end_reasons: dict[str, int] = {}
    errors: _Errors = _Errors()
    capabilities: list[_Skill] = []
    tokens: _Tokens = _Tokens()
    bounds: dict[str, _Score] = {}
    settings: dict[str, Any] = {}
    index_recall: dict[str, float] = {}
    answer_in_corpus: _Share = _Share(share=None, n=0)
    usage: dict[str, float] = {}


class _Means(_Form):
    macro: _Score
    micro: _Score
    version: int | str | None = None


def _of_folder(name: str) -> str:
    # Otherwise the author of a suite could make evaluations anywhere on this machine be read, judged and written to.
    if not is_folder_name(name):
        raise ValueError(f"{name!r:.80} is no name of a folder within the suite")
    return name


class _Suite(_Form):
    sets: list[Annotated[str, AfterValidator(_of_folder)]] = Field(min_length=1)
    scores: dict[str, _Means]


class _League(_Form):
    versions: list[str]
    questions: list[int]
    solved: list[list[float | None]]


class _Training(_Form):
    before: _Score | float | None = None
    after: _Score | float | None = None
    bounds: dict[str, _Score | float | None] = {}
    seconds: dict[str, float] = {}
    league: _League | None = None


class _Step(_Form):
    model_config = ConfigDict(allow_inf_nan=True)

    step: int
    faults: int = 0
    warning: str = ""
    dev_score_ci95: list[float] | None = Field(None, min_length=2, max_length=2)


class _Question(_Form):
    step: int
    topic: str
    question: str
    answer: str
    searches: int
    outcome: str
    solve_rate: float | None = None


class _Change(_Form):
    after_step: int
    key: str
    old: Any
    new: Any


_FORMS: Mapping[str, type[_Form]] = {
    "results": _Results,
    "score": _Score,
    "suite": _Suite,
    "training": _Training,
    "step": _Step,
    "question": _Question,
    "change": _Change,
}
_MAY_DIVERGE = ("step", "change")
"""Kinds in which a number may be NaN or infinite: a log keeps what a diverged run had computed."""


def check_form(kind: str | type, value: Any, where: str) -> None:
    """Checks that ``value`` has the form of what an evaluation or a training run writes.

    Args:
        kind: ``results``, a ``score`` in them, or ``suite``; for a training run ``training`` (its results), and the lines of
            its logs: ``step``, ``question``, ``change``. For one episode `agentenv.evaluation.records.EpisodeRecord`.
        value: The parsed JSON value.
        where: The file, with the line number if it has several, for errors.

    Raises:
        DatasetError: an entry is missing or has another type, or a number is not finite; the message names the first one.
    """
    try:
        json.dumps(value, allow_nan=kind in _MAY_DIVERGE)
    except ValueError as error:
        raise DatasetError(
            f"{where} is not what a run writes: it holds a number that is not finite."
        ) from error
    try:
        _adapter(kind).validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "the whole"
        raise DatasetError(f"{where} is not what a run writes: {place}: {first['msg']}.") from None


@cache
def _adapter(kind: str | type) -> TypeAdapter[Any]:
    return TypeAdapter(_FORMS[kind] if isinstance(kind, str) else kind)
