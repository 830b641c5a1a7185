from __future__ import annotations

from django.db import migrations, models

import cairnq_django.clock
import cairnq_django.columns
import cairnq_django.serialization


class Migration(migrations.Migration):
    dependencies = [
        ("cairnq_django", "0004_task_permissions"),
    ]

    operations = [
        migrations.CreateModel(
            name="WorkerProcess",
            fields=[
                (
                    "id",
                    cairnq_django.columns.ExactCharField(
                        max_length=200, primary_key=True, serialize=False, verbose_name="id"
                    ),
                ),
                ("host", models.CharField(max_length=255, verbose_name="host")),
                ("pid", models.BigIntegerField(verbose_name="process id")),
                ("version", models.CharField(max_length=50, verbose_name="version")),
                (
                    "queues",
                    models.JSONField(
                        default=list, encoder=cairnq_django.serialization.StrictJSONEncoder, verbose_name="queues"
                    ),
                ),
                (
                    "names",
                    models.JSONField(
                        default=list, encoder=cairnq_django.serialization.StrictJSONEncoder, verbose_name="handlers"
                    ),
                ),
                ("concurrency", models.IntegerField(verbose_name="concurrency")),
                ("busy", models.IntegerField(default=0, verbose_name="busy calls")),
                ("bytes_in_flight", models.BigIntegerField(null=True, verbose_name="bytes in flight")),
                ("abandoned", models.IntegerField(default=0, verbose_name="abandoned calls")),
                ("draining", models.BooleanField(default=False, verbose_name="draining")),
                ("started_at", models.DateTimeField(db_default=cairnq_django.clock.Now(), verbose_name="started")),
                ("seen_at", models.DateTimeField(db_default=cairnq_django.clock.Now(), verbose_name="last seen")),
            ],
            options={
                "verbose_name": "worker",
                "verbose_name_plural": "workers",
                "default_permissions": ("view",),
            },
        ),
    ]
