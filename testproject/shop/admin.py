"""The shop's orders in the admin."""

from __future__ import annotations

from django.contrib import admin

from testproject.shop.models import Order


@admin.register(Order)
class OrderAdmin(admin.ModelAdmin):
    list_display = ("id", "email", "placed_at", "receipt_sent_at")
