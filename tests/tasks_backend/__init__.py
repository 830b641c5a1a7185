"""The backend for Django's tasks framework: under `django.tasks` and under its backport, the same tests."""

from __future__ import annotations
