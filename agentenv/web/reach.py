"""Whether anybody takes connections at an address, found out before work begins that needs it."""

import socket
import time

import httpx

from agentenv.errors import AgentEnvError, ConfigurationError
from agentenv.web.client import through_proxy

_CONNECT_S = 3.0
_PAUSES_S = (
    0.5,
    1.5,
    3.0,
    3.0,
)  # between the tries: a server that is started beside this process takes a moment
_PORTS = {"http": 80, "https": 443}


def refuse_unreachable(url: str, fault: type[AgentEnvError] = ConfigurationError) -> None:
    """Refuses an address at which nobody takes a connection, within seconds; nothing is sent.

    A call through a proxy is not tried, because the proxy always takes it.

    Args:
        url: http or https.
        fault: The kind of the error.

    Raises:
        AgentEnvError: of the kind ``fault``: no connection could be made.
    """
    parts = httpx.URL(url)
    if through_proxy(url):
        return
    for pause in (*_PAUSES_S, None):
        try:
            socket.create_connection((parts.host, parts.port or _PORTS[parts.scheme]), _CONNECT_S).close()
            return
        except (OSError, UnicodeError) as error:
            reason = error
        if pause is None:
            raise fault(
                f"nobody answers at {url}: {reason}; start the server, or write the address of one that runs"
            ) from reason
        time.sleep(pause)
