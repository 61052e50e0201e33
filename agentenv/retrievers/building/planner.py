"""Advises which index fits a corpus and a machine before anything is loaded, by arithmetic and measurements.

Times are scaled from measurements: exhaustive search with vectors times dimensions, a graph with the logarithm of the
vectors times dimensions. Overlap is used as measured, because it depends on the vectors more than on their number.
"""

import math
import re
from dataclasses import dataclass
from typing import NamedTuple

from agentenv.errors import ConfigurationError
from agentenv.retrievers.indexes import default_spec, fast_codes, footprint, list_count

_ENCODER_BYTES = 1 << 30  # memory of a process with torch and an encoder of 100 M parameters
_ROW_BYTES = 24  # memory per row of a corpus's tables
MEASURED_ROWS, MEASURED_DIM = 1_000_000, 384
HOW = (
    "memory: arithmetic, checked against files in the tests; plus 1 GiB for the process with its encoder",
    "times: one thread of an AMD EPYC at 1,000,000 x 384 (in the repository: benchmarks/results/index_million.json), scaled "
    "by vectors x dimensions, a graph by log(vectors) x dimensions; caches that no longer suffice make large indexes slower",
    "overlap@10 with Flat: measured there on clustered vectors with queries near them; yours will differ",
)


class Measured(NamedTuple):
    """Measurements of one type of index at `MEASURED_ROWS` x `MEASURED_DIM` on one thread."""

    overlap: float
    """Share of the first ten results that Flat also finds."""
    alone_ms: float
    """Milliseconds of a single query."""
    batch_ms: float
    """Milliseconds per query in a batch of 64."""
    build_s: float


MEASURED = {
    "Flat": Measured(1.0000, 54.950, 56.472, 1.80),
    "PQx4fs,Refine(SQfp16)": Measured(0.9995, 2.142, 1.962, 7.56),
    "HNSW32_SQ8": Measured(0.7729, 0.370, 0.388, 187.58),
    "PQx4fs,Refine(SQ8)": Measured(0.9849, 2.250, 1.993, 6.47),
    "SQfp16": Measured(0.9995, 31.107, 30.325, 1.30),
    "SQ8": Measured(0.9849, 32.412, 32.259, 1.30),
    "IVF,Flat": Measured(1.0000, 7.450, 7.580, 40.42),
    "IVF,SQ8": Measured(0.9849, 4.303, 4.133, 42.73),
    "PQx4fs": Measured(0.4839, 2.541, 1.820, 5.54),
    "IVF,PQx4fs,Refine(SQ8)": Measured(0.9885, 0.989, 0.562, 45.19),
    "HNSW32": Measured(0.7943, 0.575, 0.565, 251.47),
}


@dataclass(frozen=True)
class Option:
    """One type of index for the given corpus."""

    index: str
    file_bytes: int
    memory_bytes: int
    """Memory for everything that searches read."""
    least_bytes: int
    """Memory for what every search reads, while the finer codes of a refined index stay on the disk."""
    fits: str
    """``yes``; ``mapped``, if the finer codes stay on the disk; or ``no``."""
    overlap: float
    alone_ms: float
    batch_ms: float
    build_hours: float


@dataclass(frozen=True)
class Advice:
    """All options and the recommended one."""

    options: tuple[Option, ...]
    best: Option | None
    """The default for the size, if necessary with its finer codes on the disk; None if nothing fits."""


def advise(passages: int, dim: int, memory: int) -> Advice:
    """Returns what fits for ``passages`` vectors of ``dim`` dimensions in ``memory`` bytes.

    Raises:
        ConfigurationError: a number is not positive.
    """
    if min(passages, dim, memory) < 1:
        raise ConfigurationError(f"passages={passages}, dim={dim} and memory={memory} must all be above 0.")
    options = tuple(_option(spec, passages, dim, memory) for spec in _candidates(passages, dim))
    usual = options[0]
    return Advice(options, usual if usual.fits != "no" else None)


def _candidates(rows: int, dim: int) -> list[str]:
    """Returns every measured type, the default first."""
    lists = list_count(rows)
    fine = ["Flat", "SQfp16", "SQ8", "HNSW32", "HNSW32_SQ8", f"IVF{lists},Flat", f"IVF{lists},SQ8"]
    codes = fast_codes(dim)
    refined = [f"{codes},Refine(SQfp16)", f"{codes},Refine(SQ8)", f"IVF{lists},{codes},Refine(SQ8)", codes]
    return list(dict.fromkeys([default_spec(rows, dim), *fine, *refined]))


def _option(spec: str, rows: int, dim: int, memory: int) -> Option:
    size = footprint(spec, rows, dim)
    extra = _ENCODER_BYTES + _ROW_BYTES * rows
    whole, least = round(size.total) + extra, round(size.hot) + extra
    known = MEASURED[kind(spec)]
    alone, batch = _milliseconds(spec, rows, dim)
    return Option(
        index=spec,
        file_bytes=round(size.total),
        memory_bytes=whole,
        least_bytes=least,
        fits="yes" if whole <= memory else "mapped" if least <= memory else "no",
        overlap=known.overlap,
        alone_ms=alone,
        batch_ms=batch,
        build_hours=known.build_s * dim / MEASURED_DIM * rows / MEASURED_ROWS / 3600,
    )


def _milliseconds(spec: str, rows: int, dim: int) -> tuple[float, float]:
    """Returns the times of a single query and of one in a batch. Rescoring takes constant time.

    If an index with rescoring was measured faster than its codes alone, by chance, its whole time counts as that of the
    codes.
    """
    known, wide = MEASURED[kind(spec)], dim / MEASURED_DIM
    codes = MEASURED.get(kind(spec).partition(",Refine")[0], known)
    growth = rows / MEASURED_ROWS
    if spec.startswith("HNSW"):
        growth = math.log(max(rows, 2)) / math.log(MEASURED_ROWS)
    alone, batch = (
        min(first, both) * growth + max(both - first, 0.0)
        for first, both in ((codes.alone_ms, known.alone_ms), (codes.batch_ms, known.batch_ms))
    )
    return alone * wide, batch * wide


def kind(spec: str) -> str:
    """Returns the row of `MEASURED` for a factory string, ignoring the numbers of lists and parts."""
    return re.sub(r"(IVF|PQ)\d+", r"\1", spec)


def parse_size(text: str) -> int:
    """Parses ``24GiB``, ``500 MB`` or ``1e9`` as bytes.

    Raises:
        ConfigurationError: it is not a size.
    """
    match = re.fullmatch(r"\s*([0-9.]+(?:e\d+)?)\s*([kmgt]?)(i?)b?\s*", text.lower())
    try:
        number = float(match[1]) if match else 0.0
    except ValueError:
        number = 0.0
    if not match or number <= 0:
        raise ConfigurationError(f"{text!r} is no size of memory; write for example 24GiB.")
    return int(number * (1024 if match[3] else 1000) ** " kmgt".index(match[2] or " "))
