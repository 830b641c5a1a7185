"""Keep with each attempt what failures are grouped by, and find the latest of them by an index."""

from __future__ import annotations

from django.db import migrations, models

import cairnq_django.columns


class Migration(migrations.Migration):
    dependencies = [
        ("cairnq_django", "0006_paused_queues"),
    ]

    operations = [
        migrations.AlterModelOptions(
            name="taskattempt",
            options={
                "default_permissions": (),
                "ordering": ["number", "id"],
                "verbose_name": "failure",
                "verbose_name_plural": "failures",
            },
        ),
        migrations.AddField(
            model_name="taskattempt",
            name="name",
            field=cairnq_django.columns.ExactCharField(db_default="", max_length=200, verbose_name="name"),
        ),
        migrations.AddField(
            model_name="taskattempt",
            name="queue",
            field=cairnq_django.columns.ExactCharField(db_default="", max_length=100, verbose_name="queue"),
        ),
        migrations.AddField(
            model_name="taskattempt",
            name="error_code",
            field=cairnq_django.columns.ExactCharField(db_default="", max_length=200, verbose_name="error code"),
        ),
        migrations.AddField(
            model_name="taskattempt",
            name="error_type",
            field=cairnq_django.columns.ExactCharField(db_default="", max_length=200, verbose_name="error type"),
        ),
        migrations.AddIndex(
            model_name="taskattempt",
            index=models.Index(fields=["ended_at"], name="cairnq_attempt_ended"),
        ),
    ]
