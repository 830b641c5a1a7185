"""Have PostgreSQL tidy up after tasks as often as a queue needs it, however many old ones are kept."""

from __future__ import annotations

from typing import Any

from django.db import migrations

PARAMETERS = {
    # Each task leaves two dead rows by the time it has ended, and a look for due tasks passes over their entries in the
    # claim index until they are vacuumed away. By default that is when a fifth of the table is dead, which takes ever
    # longer the more ended tasks are kept. Not for less than this: each round reads the other indexes as a whole.
    "autovacuum_vacuum_scale_factor": 0.02,
    # So that a table that is almost empty is not vacuumed every minute.
    "autovacuum_vacuum_threshold": 1000,
}


def set_parameters(apps: Any, schema_editor: Any) -> None:
    parameters = ", ".join(f"{name} = {value}" for name, value in PARAMETERS.items())
    alter(apps, schema_editor, f"SET ({parameters})")


def reset_parameters(apps: Any, schema_editor: Any) -> None:
    alter(apps, schema_editor, f"RESET ({', '.join(PARAMETERS)})")


def alter(apps: Any, schema_editor: Any, change: str) -> None:
    if schema_editor.connection.vendor == "postgresql":
        table = schema_editor.quote_name(apps.get_model("cairnq_django", "Task")._meta.db_table)
        schema_editor.execute(f"ALTER TABLE {table} {change}")


class Migration(migrations.Migration):
    dependencies = [
        ("cairnq_django", "0002_claim_by_name_expiry_and_duties"),
    ]

    operations = [
        migrations.RunPython(set_parameters, reset_parameters, hints={"model_name": "task"}),
    ]
