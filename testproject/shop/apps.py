"""The shop's app configuration."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class ShopConfig(AppConfig):
    name = "testproject.shop"
    verbose_name = _("Shop")
