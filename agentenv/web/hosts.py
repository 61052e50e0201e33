"""Which names a server answers to: what stands between it and a web page that somebody has open.

A page may send requests to any address that its browser reaches, this machine's included. Browsers mark those with the
page's ``Origin``, and those that carry none, such as the one for an image, with ``Sec-Fetch-Site``. Where a page has its own
name resolve to our address (DNS rebinding), ``Host`` holds that name. A number in ``Host`` cannot be rebound.
"""

import ipaddress
import json
import re
import socket
from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from typing import Any

ANY = "*"
# Values of Sec-Fetch-Site; the second is another port of this machine.
_OTHER_SITES = (b"cross-site", b"same-site")
_SCHEMES = ("http", "https")
_PORT = re.compile(r"(:[0-9]*)?")
Scope = MutableMapping[str, Any]
App = Callable[[Scope, Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]]


class HostCheck:
    """An ASGI application that passes on what was meant for this server and refuses the rest with status 403.

    Args:
        app: What is protected.
        allowed: Names of this server beside ``localhost``, the machine's own and every address; ``*`` takes any name.
    """

    def __init__(self, app: App, allowed: Iterable[str] = ()) -> None:
        self._app = app
        own = socket.gethostname()
        self._names = {name.lower() for name in ("localhost", own, f"{own}.local", *allowed)}

    async def __call__(
        self, scope: Scope, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
    ) -> None:
        """One request or WebSocket."""
        why = self._wrong(scope["headers"]) if scope["type"] in ("http", "websocket") else ""
        if not why:
            await self._app(scope, receive, send)
            return
        kind = scope["type"]
        if kind == "websocket" and "websocket.http.response" not in scope.get("extensions", {}):
            await send({"type": "websocket.close"})
            return
        head = "websocket.http.response" if kind == "websocket" else "http.response"
        headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
        await send({"type": f"{head}.start", "status": 403, "headers": headers})
        body = json.dumps({"error": why, "kind": "Browser"}).encode()
        await send({"type": f"{head}.body", "body": body})

    def _wrong(self, headers: Sequence[tuple[bytes, bytes]]) -> str:
        """Why a request with these headers is refused; empty where it is not."""
        hosts = [value.decode("latin-1") for name, value in headers if name == b"host"]
        origins = [value.decode("latin-1") for name, value in headers if name == b"origin"]
        # RFC 9112, section 3.2, refuses more than one: a proxy in between might have read another of them.
        if len(hosts) != 1:
            return f"A request names one Host; this one has {len(hosts)}."
        if not self._known(name_of(hosts[0])):
            return (
                f"This server does not answer to the Host {hosts[0][:100]!r}; "
                "name it with --allow-host where it is one of its own."
            )
        if strange := [origin for origin in origins if not _is_of(origin, hosts[0])]:
            return (
                f"Pages of other sites are not served, and this request has the Origin {strange[0][:100]!r}."
            )
        if any(name == b"sec-fetch-site" and value.lower() in _OTHER_SITES for name, value in headers):
            return "Pages of other sites are not served, and the browser says that this request is from one."
        return ""

    def _known(self, name: str) -> bool:
        return ANY in self._names or name in self._names or _is_address(name)


def name_of(host: str) -> str:
    """The name or address in a ``Host`` header, without its port, in lower case; empty where it is malformed."""
    if host.startswith("["):
        name, bracket, rest = host[1:].partition("]")
        well_formed = bool(bracket) and ":" in name
    else:
        name, rest = host.partition(":")[0].removesuffix("."), host[len(host.partition(":")[0]) :]
        well_formed = not name.endswith(".")
    return name.lower() if well_formed and _PORT.fullmatch(rest) else ""


def _is_of(origin: str, host: str) -> bool:
    """Whether a page with this ``Origin`` was served by this ``Host``."""
    scheme, _, rest = origin.lower().partition("://")
    return scheme in _SCHEMES and rest == host.lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
