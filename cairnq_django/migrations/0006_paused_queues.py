from __future__ import annotations

from django.db import migrations, models

import cairnq_django.clock
import cairnq_django.columns


class Migration(migrations.Migration):
    dependencies = [
        ("cairnq_django", "0005_workers"),
    ]

    operations = [
        migrations.CreateModel(
            name="PausedQueue",
            fields=[
                (
                    "queue",
                    cairnq_django.columns.ExactCharField(
                        max_length=100, primary_key=True, serialize=False, verbose_name="queue"
                    ),
                ),
                (
                    "paused_at",
                    models.DateTimeField(db_default=cairnq_django.clock.Now(), verbose_name="paused since"),
                ),
                ("paused_by", models.CharField(blank=True, default="", max_length=200, verbose_name="paused by")),
                ("until", models.DateTimeField(blank=True, null=True, verbose_name="until")),
            ],
            options={
                "verbose_name": "queue",
                "verbose_name_plural": "queues",
                "permissions": [
                    ("pause_queue", "Can pause queues"),
                    ("resume_queue", "Can resume queues"),
                ],
                "default_permissions": ("view",),
            },
        ),
    ]
