"""A Django project around the database of a contender."""

from __future__ import annotations

import os

import django
from django.core.management import call_command


def set_up(url: str, app: str) -> None:
    os.environ.update(
        BENCHMARK_URL=url, BENCHMARK_APP=app, DJANGO_SETTINGS_MODULE="benchmarks.contenders.django_settings"
    )
    django.setup()


def migrate() -> None:
    call_command("migrate", verbosity=0)
