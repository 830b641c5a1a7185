from __future__ import annotations

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [
        ("cairnq_django", "0003_vacuum_more_often"),
    ]

    operations = [
        migrations.AlterModelOptions(
            name="task",
            options={
                "default_permissions": ("view",),
                "permissions": [
                    ("cancel_task", "Can cancel tasks"),
                    ("cancel_family_task", "Can cancel tasks with their descendants"),
                    ("retry_task", "Can retry tasks"),
                    ("reset_task", "Can retry tasks with their attempts reset"),
                    ("run_now_task", "Can make delayed tasks run now"),
                ],
                "verbose_name": "task",
                "verbose_name_plural": "tasks",
            },
        ),
    ]
