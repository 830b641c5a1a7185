from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("email", models.EmailField(max_length=254, verbose_name="email")),
                ("placed_at", models.DateTimeField(auto_now_add=True, verbose_name="placed at")),
                (
                    "receipt_sent_at",
                    models.DateTimeField(editable=False, null=True, verbose_name="receipt sent at"),
                ),
            ],
            options={
                "verbose_name": "order",
                "verbose_name_plural": "orders",
            },
        ),
    ]
