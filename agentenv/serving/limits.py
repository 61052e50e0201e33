"""The bounds of a service of environments."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ServerLimits:
    """Bounds of a service of environments."""

    sessions: int = 128
    """Environments at a time; forks that nobody has taken yet count."""
    per_client: int | None = None
    """Environments at a time of one client, by its address; None is half of all, and at least two."""
    waiting: int = 128
    """Callers that may wait for a slot, half of them of one client; more are refused at once."""
    wait_s: float = 10.0
    """For a slot."""
    call_s: float = 120.0
    """For one reset, step, snapshot or fork."""
    idle_s: float = 900.0
    """Between two messages of a session."""
    claim_s: float = 60.0
    """For a fork to be taken by a connection of its own, and for an MCP session to be used for the first time."""
    unused: int = 256
    """MCP sessions that were begun and not used; beyond it the oldest ends. They keep nobody from a slot."""
    yield_s: float = 30.0
    """How long an MCP session must be idle to be ended for another one, where they hold half of all slots."""
    send_s: float = 30.0
    """For a caller to take an answer."""
    message_bytes: int = 4 * 2**20
    """Length of a message to the server."""
    making_tasks: int = 4
    """Requests for tasks that are made at a time; further ones are refused."""
    snapshots: int = 256
    """Snapshots that a session may hold."""
    backlog: int = 16
    """Messages that a caller may send ahead of the answers; of those before the last, no more than one message's length."""

    @property
    def share(self) -> int:
        """Environments at a time of one client."""
        return _half(self.sessions) if self.per_client is None else self.per_client

    @property
    def mcp_sessions(self) -> int:
        """MCP sessions that may hold a slot: they have no connection whose end would show that their caller has left."""
        return max(1, self.sessions // 2)

    @property
    def mcp_share(self) -> int:
        """MCP sessions of one client that may hold a slot."""
        return min(self.share, _half(self.mcp_sessions))


def _half(count: int) -> int:
    """Half of so many, and at least two where there are two."""
    return min(count, max(2, count // 2))
