"""The limits of a service of environments."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ServerLimits:
    """Limits of a service of environments."""

    sessions: int = 128
    """How many environments run at a time, including forks that have no caller yet."""
    per_client: int | None = None
    """How many environments one client (one address) may have at a time; None means half of all, and at least two."""
    waiting: int = 128
    """How many callers may wait for a slot; half of them may be of one client. Further callers are refused at once."""
    wait_s: float = 10.0
    """How long a caller waits for a slot, in seconds."""
    call_s: float = 120.0
    """Deadline of one reset, step, snapshot or fork, in seconds."""
    idle_s: float = 900.0
    """How long a session may be idle between two messages, in seconds."""
    claim_s: float = 60.0
    """How long a fork may wait for a connection of its own, and an MCP session for its first call, in seconds."""
    unused: int = 256
    """How many MCP sessions may be unused; further ones end older ones. They do not keep slots from others."""
    yield_s: float = 30.0
    """How long an MCP session must be idle before another one may end it, once MCP holds half of all slots; in seconds."""
    send_s: float = 30.0
    """How long a caller may take to read an answer, in seconds."""
    message_bytes: int = 4 * 2**20
    """Largest size of a message to the server, in bytes."""
    making_tasks: int = 4
    """How many requests may make tasks at a time; further ones are refused."""
    snapshots: int = 256
    """How many snapshots a session may hold."""
    backlog: int = 16
    """How many unanswered messages a caller may have sent. All but the last may have the length of one message together."""

    @property
    def share(self) -> int:
        """How many environments one client may have at a time."""
        return _half(self.sessions) if self.per_client is None else self.per_client

    @property
    def mcp_sessions(self) -> int:
        """How many MCP sessions may hold a slot; they have no connection that shows when their caller leaves."""
        return max(1, self.sessions // 2)

    @property
    def mcp_share(self) -> int:
        """How many MCP sessions of one client may hold a slot."""
        return min(self.share, _half(self.mcp_sessions))


def _half(count: int) -> int:
    """Returns half of ``count``, and at least two if ``count`` allows it."""
    return min(count, max(2, count // 2))
