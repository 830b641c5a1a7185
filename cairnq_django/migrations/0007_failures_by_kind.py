"""Keep with each attempt what failures are grouped by, and find the latest of them by an index."""

from __future__ import annotations

from typing import Any

from django.db import migrations, models
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Coalesce, Left

import cairnq_django.columns


def fill(apps: Any, schema_editor: Any) -> None:
    using = schema_editor.connection.alias
    attempts = apps.get_model("cairnq_django", "TaskAttempt").objects.using(using)
    tasks = apps.get_model("cairnq_django", "Task").objects.using(using)
    task = tasks.filter(pk=models.OuterRef("task_id"))
    attempts.filter(name="").update(
        name=models.Subquery(task.values("name")[:1]),
        queue=models.Subquery(task.values("queue")[:1]),
        error_code=_said("code"),
        error_type=_said("type"),
    )


def _said(field: str) -> Coalesce:
    said = Left(KeyTextTransform(field, "error"), 200)
    return Coalesce(said, models.Value(""), output_field=models.CharField())


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
        migrations.RunPython(fill, migrations.RunPython.noop, hints={"model_name": "taskattempt"}),
    ]
