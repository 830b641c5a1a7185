"""`runworker` under a name that no other app has."""

from __future__ import annotations

from .runworker import Command

__all__ = ["Command"]
