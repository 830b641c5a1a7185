"""Fills the database with a made-up day of the shop's queue, to look at in the admin without a worker."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command
from django.core.management.base import BaseCommand
from django.db import transaction
from django.utils import timezone

from cairnq_django import Task
from cairnq_django.models import PausedQueue
from testproject.demo.day import PAUSED, make_up_a_day
from testproject.demo.show import LOGIN, PASSWORD


class Command(BaseCommand):
    help = (
        "Migrates, creates the login admin/admin, and fills the database with a made-up day of the shop's queue: tasks "
        "in every state, none of which a worker has seen. For an empty database, never on a server."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        call_command("migrate", verbosity=0, interactive=False)
        if Task.objects.exists():
            raise CommandError("The database has tasks already; name another one in DATABASE_URL.")
        with transaction.atomic():
            get_user_model().objects.create_superuser(LOGIN, password=PASSWORD)
            make_up_a_day()
            an_hour_ago = timezone.now() - timedelta(hours=1)
            PausedQueue.objects.create(queue=PAUSED, paused_by="ada", paused_at=an_hour_ago)
