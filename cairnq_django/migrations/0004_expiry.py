from __future__ import annotations

from django.db import migrations, models

import cairnq_django.columns


class Migration(migrations.Migration):
    dependencies = [("cairnq_django", "0003_claim_by_name")]

    operations = [
        migrations.AddField(
            model_name="task",
            name="expires_at",
            field=models.DateTimeField(db_default=None, null=True, verbose_name="expires"),
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
