"""Environments on pages in a real Chromium."""

from typing import TYPE_CHECKING

from agentenv.lazy import lazy_exports

if TYPE_CHECKING:
    from agentenv.envs.browser.env import Browser
    from agentenv.envs.browser.sites import Site

__all__ = [
    "Browser",
    "Site",
]

__getattr__, __dir__ = lazy_exports(__name__)
