from __future__ import annotations

from django.db import migrations, models

import cairnq_django.columns
import cairnq_django.serialization


class Migration(migrations.Migration):
    dependencies = [
        ("cairnq_django", "0009_kinds_of_old_failures"),
    ]

    operations = [
        migrations.CreateModel(
            name="Schedule",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", cairnq_django.columns.ExactCharField(max_length=200, verbose_name="name")),
                ("task_name", cairnq_django.columns.ExactCharField(max_length=200, verbose_name="task")),
                (
                    "payload",
                    models.JSONField(
                        blank=True,
                        encoder=cairnq_django.serialization.StrictJSONEncoder,
                        null=True,
                        verbose_name="payload",
                    ),
                ),
                (
                    "queue",
                    cairnq_django.columns.ExactCharField(blank=True, default="", max_length=100, verbose_name="queue"),
                ),
                ("priority", models.SmallIntegerField(blank=True, null=True, verbose_name="priority")),
                ("cron", models.CharField(blank=True, default="", max_length=200, verbose_name="cron expression")),
                ("timezone", models.CharField(blank=True, default="", max_length=64, verbose_name="time zone")),
                ("every", models.FloatField(blank=True, null=True, verbose_name="seconds")),
                (
                    "missed",
                    models.CharField(
                        choices=[
                            ("once", "run once, for all of them"),
                            ("none", "do not run"),
                            ("all", "run for each of them"),
                        ],
                        default="once",
                        max_length=10,
                        verbose_name="missed times",
                    ),
                ),
                (
                    "overlap",
                    models.CharField(
                        choices=[("skip", "skip that time"), ("allow", "run beside it")],
                        default="skip",
                        max_length=10,
                        verbose_name="overlap",
                    ),
                ),
                ("declared", models.BooleanField(default=False, verbose_name="declared in code")),
                ("retired", models.BooleanField(default=False, verbose_name="retired")),
                ("paused", models.BooleanField(default=False, verbose_name="paused")),
                ("next_run_at", models.DateTimeField(null=True, verbose_name="next run")),
                ("last_run_at", models.DateTimeField(null=True, verbose_name="last run")),
                ("last_task_id", models.UUIDField(null=True, verbose_name="last task")),
                (
                    "last_tick",
                    models.CharField(
                        choices=[
                            ("submitted", "submitted"),
                            ("skipped", "skipped"),
                            ("missed", "missed"),
                            ("held back", "held back"),
                            ("failed", "failed"),
                        ],
                        default="",
                        max_length=10,
                        verbose_name="what became of the latest time",
                    ),
                ),
                ("error", models.TextField(default="", verbose_name="error")),
            ],
            options={
                "verbose_name": "schedule",
                "verbose_name_plural": "schedules",
                "permissions": [
                    ("pause_schedule", "Can pause schedules"),
                    ("resume_schedule", "Can resume schedules"),
                    ("run_now_schedule", "Can run schedules now"),
                ],
                "default_permissions": ("view", "add", "change", "delete"),
                "indexes": [models.Index(fields=["next_run_at"], name="cairnq_schedule_next")],
                "constraints": [
                    models.UniqueConstraint(fields=("declared", "name"), name="cairnq_schedule_name"),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("every__isnull", True), models.Q(("cron", ""), _negated=True)),
                            models.Q(("cron", ""), ("every__gt", 0), ("every__isnull", False)),
                            _connector="OR",
                        ),
                        name="cairnq_schedule_timing",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("missed__in", ["once", "none", "all"]), ("overlap__in", ["skip", "allow"])),
                        name="cairnq_schedule_rules",
                    ),
                ],
            },
        ),
    ]
