"""Serves environments to other machines, and adapts them to the trainers of other libraries."""

from typing import TYPE_CHECKING

from agentenv.lazy import lazy_exports

if TYPE_CHECKING:
    from agentenv.serving.app import make_app
    from agentenv.serving.limits import ServerLimits
    from agentenv.serving.remote import RemoteEnv
    from agentenv.serving.rows import DatasetRow
    from agentenv.serving.service import EnvService

__all__ = [
    "DatasetRow",
    "EnvService",
    "RemoteEnv",
    "ServerLimits",
    "make_app",
]

__getattr__, __dir__ = lazy_exports(__name__)
