"""Waiting times between retries of an HTTP request."""

import contextlib
import email.utils
import math
import random
import time


def backoff(tries: int, *, first_s: float, longest_s: float, rng: random.Random) -> float:
    """Returns the seconds to wait after ``tries`` failures: exponential backoff from ``first_s`` up to ``longest_s``.

    The time is multiplied by a random factor from 0.5 to 1.5, so that callers that failed together do not return together.
    """
    return min(longest_s, first_s * 2.0 ** (tries - 1)) * rng.uniform(0.5, 1.5)


def retry_after(header: str | None, sent: str | None = None) -> float | None:
    """Returns the seconds that a server's Retry-After header asks for, as a number or a date (RFC 9110, section 10.2.3).

    Args:
        header: The value of the Retry-After header.
        sent: The Date header of the same response. If it is given, a date in ``header`` is compared with it and not with
            this machine's clock, which may be wrong by hours.

    Returns:
        The seconds, at least 0; None if there is no header or it cannot be parsed (a negative number, for example).
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
    """Returns the Unix time of a date in a header; None if it is not a date."""
    with contextlib.suppress(ValueError, TypeError, OverflowError):  # OverflowError: a year out of range
        return email.utils.parsedate_to_datetime(date).timestamp()
    return None
