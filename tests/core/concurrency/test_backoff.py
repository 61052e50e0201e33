"""Pauses between tries: doubled, bounded and spread; Retry-After as seconds, as a date and as nonsense."""

import email.utils
import random
import time

import pytest

from agentenv.core.concurrency.backoff import backoff, retry_after


@pytest.mark.parametrize(("tries", "middle"), [(1, 0.2), (2, 0.4), (3, 0.8), (4, 1.0), (60, 1.0)])
def test_a_pause_doubles_up_to_its_bound_and_is_spread_by_half(tries: int, middle: float) -> None:
    rng = random.Random(0)
    drawn = [backoff(tries, first_s=0.2, longest_s=1.0, rng=rng) for _ in range(300)]
    assert middle / 2 <= min(drawn) < 0.6 * middle
    assert 1.4 * middle < max(drawn) <= 1.5 * middle


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("", None),
        ("soon", None),
        ("3", 3.0),
        ("0.5", 0.5),
        ("-2", None),
        ("Mon, 01 Jan 99999999999 00:00:00 GMT", None),
        ("nan", None),
        ("1e999", None),
    ],
)
def test_retry_after_is_seconds(header: str | None, seconds: float | None) -> None:
    assert retry_after(header) == seconds


def test_retry_after_may_be_a_date() -> None:
    later = retry_after(email.utils.formatdate(time.time() + 3600, usegmt=True))
    assert later is not None
    assert 3500 < later <= 3600
    assert retry_after(email.utils.formatdate(0, usegmt=True)) == 0.0


@pytest.mark.parametrize("skew_s", [-7200, 0, 7200])
def test_a_date_is_compared_with_the_clock_that_wrote_it(skew_s: int) -> None:
    theirs = time.time() + skew_s
    sent, until = (email.utils.formatdate(second, usegmt=True) for second in (theirs, theirs + 60))
    assert retry_after(until, sent) == pytest.approx(60, abs=1)
    assert retry_after("7", sent) == 7
    assert retry_after(email.utils.formatdate(time.time() + 60, usegmt=True), "soon") == pytest.approx(
        60, abs=30
    )
