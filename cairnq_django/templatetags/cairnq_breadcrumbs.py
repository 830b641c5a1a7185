"""How the admin of the installed Django writes its breadcrumbs."""

from __future__ import annotations

import django
from django import template

register = template.Library()


@register.simple_tag
def breadcrumbs_are_listed() -> bool:
    """Whether they are a list, and styled as one, which they are since Django 6.1."""
    return django.VERSION >= (6, 1)
