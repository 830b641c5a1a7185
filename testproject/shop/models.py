"""The shop's orders."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


class Order(models.Model):
    email = models.EmailField(_("email"))
    placed_at = models.DateTimeField(_("placed at"), auto_now_add=True)
    receipt_sent_at = models.DateTimeField(_("receipt sent at"), null=True, editable=False)

    class Meta:
        verbose_name = _("order")
        verbose_name_plural = _("orders")

    def __str__(self) -> str:
        return f"#{self.pk} {self.email}"
