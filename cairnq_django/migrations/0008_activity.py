from __future__ import annotations

from django.db import migrations, models

import cairnq_django.columns


class Migration(migrations.Migration):
    dependencies = [
        ("cairnq_django", "0007_failures_by_kind"),
    ]

    operations = [
        migrations.CreateModel(
            name="Activity",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("queue", cairnq_django.columns.ExactCharField(max_length=100, verbose_name="queue")),
                ("seconds", models.PositiveSmallIntegerField(verbose_name="length")),
                ("begins_at", models.DateTimeField(verbose_name="begins")),
                ("started", models.BigIntegerField(default=0, verbose_name="started")),
                ("succeeded", models.BigIntegerField(default=0, verbose_name="succeeded")),
                ("failed", models.BigIntegerField(default=0, verbose_name="failed for good")),
                ("retried", models.BigIntegerField(default=0, verbose_name="queued again")),
                ("canceled", models.BigIntegerField(default=0, verbose_name="canceled")),
                ("waited", models.FloatField(default=0, verbose_name="waited")),
                ("longest_wait", models.FloatField(default=0, verbose_name="longest wait")),
            ],
            options={
                "verbose_name": "activity",
                "verbose_name_plural": "activity",
                "default_permissions": (),
                "constraints": [
                    models.UniqueConstraint(fields=["seconds", "begins_at", "queue"], name="cairnq_activity_span")
                ],
            },
        ),
    ]
