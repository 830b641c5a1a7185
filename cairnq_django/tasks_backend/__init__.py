"""Django's tasks framework on this queue: a backend for `TASKS`, for `django.tasks` and for its backport."""

from __future__ import annotations

from .backend import CairnQBackend
from .options import task_options

__all__ = ["CairnQBackend", "task_options"]
