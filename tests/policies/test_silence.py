"""For how long a service may be silent, without a service."""

import time

from agentenv.policies.silence import Silence
from agentenv.web.retries import GaveUp


def test_patience_is_counted_from_the_last_answer() -> None:
    """Requests that began before it are given up after it."""
    silence = Silence(patience_s=1.0)
    requests = [silence.request() for _ in range(5)]
    for request in requests:
        request.__enter__().unanswered = True
    time.sleep(0.7)
    silence.end()
    for request in requests:
        gave_up = GaveUp("no answer yet", 1, 0.7, late=True)
        assert not request.__exit__(GaveUp, gave_up, None)
    assert silence.count == 5
    time.sleep(0.4)
    assert not silence.lasting
    time.sleep(0.7)
    assert silence.lasting
