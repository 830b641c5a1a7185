"""Fill in what old attempts are grouped by: apart from the change of their table, in batches, while workers run."""

from __future__ import annotations

from typing import Any

from django.db import migrations, models
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Coalesce, Left

BATCH = 5_000  # rows


def fill(apps: Any, schema_editor: Any) -> None:
    using = schema_editor.connection.alias
    attempts = apps.get_model("cairnq_django", "TaskAttempt").objects.using(using)
    task = apps.get_model("cairnq_django", "Task").objects.using(using).filter(pk=models.OuterRef("task_id"))
    kind = {
        "name": models.Subquery(task.values("name")[:1]),
        "queue": models.Subquery(task.values("queue")[:1]),
        "error_code": _said("code"),
        "error_type": _said("type"),
    }
    done = 0
    while ids := list(attempts.filter(pk__gt=done).order_by("pk").values_list("pk", flat=True)[:BATCH]):
        done = ids[-1]
        # Those that have a name were written by workers of this version, or in an earlier try.
        attempts.filter(pk__gte=ids[0], pk__lte=done, name="").update(**kind)


def _said(field: str) -> Coalesce:
    said = Left(KeyTextTransform(field, "error"), 200)
    return Coalesce(said, models.Value(""), output_field=models.CharField())


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("cairnq_django", "0008_activity"),
    ]

    operations = [
        migrations.RunPython(fill, migrations.RunPython.noop, hints={"model_name": "taskattempt"}),
    ]
