from __future__ import annotations

from django.db import migrations, models

import cairnq_django.columns


class Migration(migrations.Migration):
    dependencies = [
        ("cairnq_django", "0002_duty"),
    ]

    operations = [
        migrations.RemoveIndex(
            model_name="task",
            name="cairnq_task_claim",
        ),
        migrations.AddIndex(
            model_name="task",
            index=cairnq_django.columns.PartialIndex(
                fields=["queue", "name", "-priority", "run_at", "id"],
                name="cairnq_task_claim",
                otherwise=["status", "queue", "name", "-priority", "run_at", "id"],
                where=models.Q(("status", "queued")),
            ),
        ),
    ]
