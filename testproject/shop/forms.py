"""What a visitor fills in."""

from __future__ import annotations

from django import forms

from testproject.shop.models import Order


class OrderForm(forms.ModelForm):
    class Meta:
        model = Order
        fields = ("email",)
