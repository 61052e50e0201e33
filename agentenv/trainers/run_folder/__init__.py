"""The folder of a training run: checkpoints, logs and results."""

from typing import TYPE_CHECKING

from agentenv.lazy import lazy_exports

if TYPE_CHECKING:
    from agentenv.trainers.run_folder.folder import RunFolder

__all__ = [
    "RunFolder",
]

__getattr__, __dir__ = lazy_exports(__name__)
