from __future__ import annotations

from django.db import migrations, models

import cairnq_django.clock
import cairnq_django.columns


class Migration(migrations.Migration):
    dependencies = [
        ("cairnq_django", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="Duty",
            fields=[
                (
                    "name",
                    cairnq_django.columns.ExactCharField(
                        max_length=200, primary_key=True, serialize=False, verbose_name="name"
                    ),
                ),
                ("worker_id", cairnq_django.columns.ExactCharField(default="", max_length=200, verbose_name="worker")),
                ("held_until", models.DateTimeField(db_default=cairnq_django.clock.Now(), verbose_name="held until")),
            ],
            options={
                "verbose_name": "duty",
                "verbose_name_plural": "duties",
                "default_permissions": (),
            },
        ),
        migrations.RemoveIndex(
            model_name="task",
            name="cairnq_task_claim",
        ),
        migrations.AddField(
            model_name="task",
            name="expires_at",
            field=models.DateTimeField(db_default=None, null=True, verbose_name="expires"),
        ),
        migrations.AddIndex(
            model_name="task",
            index=cairnq_django.columns.PartialIndex(
                fields=["queue", "name", "-priority", "run_at", "id", "expires_at"],
                name="cairnq_task_claim",
                otherwise=["status", "queue", "name", "-priority", "run_at", "id", "expires_at"],
                where=models.Q(("status", "queued")),
            ),
        ),
        migrations.AddIndex(
            model_name="task",
            index=cairnq_django.columns.PartialIndex(
                fields=["expires_at"],
                name="cairnq_task_expiry",
                otherwise=["expires_at"],
                where=models.Q(("expires_at__isnull", False)),
            ),
        ),
    ]
