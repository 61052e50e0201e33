"""How long a caller over HTTP waits before it tries again."""

import contextlib
import email.utils
import math
import random
import time


def backoff(tries: int, *, first_s: float, longest_s: float, rng: random.Random) -> float:
    """Seconds to wait after ``tries`` failures: ``first_s`` doubled each time, bounded, spread by half either way.

    The spread keeps callers that failed together from coming back together.
    """
    return min(longest_s, first_s * 2.0 ** (tries - 1)) * rng.uniform(0.5, 1.5)


def retry_after(header: str | None, sent: str | None = None) -> float | None:
    """Seconds that a server's Retry-After header asks for: a number of them or a date (RFC 9110, 10.2.3).

    Args:
        header: The header.
        sent: The header Date of the same answer. A date is compared with it where there is one, because the clock of this
            machine may be hours ahead or behind.

    Returns:
        At least 0; None where there is no header or none that can be read, such as a number below 0.
    """
    if not header:
        return None
    with contextlib.suppress(ValueError):
        seconds = float(header)
        return seconds if math.isfinite(seconds) and seconds >= 0 else None
    if (until := _timestamp(header)) is None:
        return None
    now = _timestamp(sent) if sent else None
    return max(0.0, until - (time.time() if now is None else now))


def _timestamp(date: str) -> float | None:
    """Seconds since 1970 of a date in a header; None where it is none."""
    with contextlib.suppress(ValueError, TypeError, OverflowError):  # the last of a year that no calendar has
        return email.utils.parsedate_to_datetime(date).timestamp()
    return None
