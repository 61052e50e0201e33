"""Authentication and the states of a server (starting, ready, draining), which all services of this package share."""

import hmac
import os
import re
import time
from typing import Any

from agentenv.errors import AgentEnvError, ConfigurationError

SERVE_TOKEN_VARIABLE = "AGENTENV_SERVE_TOKEN"
"""Environment variable with the bearer token that a server of environments or of a model shares with its callers."""
_TOKEN = re.compile(r"[!-~]+")
_MOST_ARRIVING = 256 * 2**20
STARTING, READY, STOPPING = "starting", "ready", "stopping"


def token_in(variable: str) -> str | None:
    """The bearer token in an environment variable, without the white space around it; None where it is not set.

    Raises:
        ConfigurationError: it is set to nothing, or to what no header can carry. A server must not start as if there were
            none.
    """
    token = os.environ.get(variable)
    if token is None:
        return None
    if not _TOKEN.fullmatch(token.strip()):
        raise ConfigurationError(
            f"The token in {variable} has {len(token)} characters and cannot be sent: a token consists of letters, digits "
            "and marks of ASCII without spaces. Unset the variable to have none."
        )
    return token.strip()


class Refusal(AgentEnvError):
    """A request that gets a status and a sentence instead of an answer."""

    def __init__(self, status: int, said: str, kind: str = "Refused", **more: Any) -> None:
        super().__init__(said)
        self.status = status
        self.kind = kind
        self.more = more


class Gate:
    """Starting, ready, then stopping; checks the token.

    Args:
        token: what callers must send as bearer token; None lets everybody in.
    """

    def __init__(self, token: str | None = None) -> None:
        self.state = STARTING
        self.active = 0
        """What was taken and is not yet done with."""
        self.answered = 0
        self.hurried = False
        """Whether it was told a second time to stop: nothing is waited for any more."""
        self.arriving = 0
        """Bytes of the large bodies that are arriving."""
        self.most_arriving = _MOST_ARRIVING
        self._token = token
        self._stopped_at = 0.0

    def ready(self) -> None:
        """Lets callers in, unless it was stopped meanwhile."""
        # A server may be stopped while it loads, and must not let anybody in after that.
        if self.state == STARTING:
            self.state = READY

    def stop(self) -> None:
        """Takes no more; what was taken is still answered."""
        self.state, self._stopped_at = STOPPING, time.monotonic()

    def drained(self, grace_s: float) -> bool:
        """Whether it was stopped and has answered what it took, or has had ``grace_s`` for that."""
        late = time.monotonic() - self._stopped_at > grace_s
        return self.state == STOPPING and (late or not self.active)

    def admit(self, authorization: str) -> None:
        """Lets a caller in.

        Raises:
            Refusal: without the token, or while the service is not ready.
        """
        if self._token is not None:
            scheme, _, given = authorization.strip(" \t").partition(" ")
            # In a time that does not tell where the two differ.
            right = hmac.compare_digest(given.lstrip(" ").encode(), self._token.encode())
            if scheme.lower() != "bearer" or not right:
                raise Refusal(
                    401, "This server wants a bearer token, and the one given is not it.", "Unauthorised"
                )
        if self.state != READY:
            raise Refusal(503, f"The server is {self.state}; try again later.", "NotReady")
