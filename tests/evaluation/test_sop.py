"""The semi-online measure by hand: the share of the expert's steps before the first mismatch, and whole episodes."""

import asyncio
import dataclasses
from typing import Any

import pytest

from agentenv.core.rollout import RolloutConfig
from agentenv.errors import ConfigurationError
from agentenv.evaluation.sop import Sop, matched_steps, measure_sop, sop
