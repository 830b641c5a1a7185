"""Who asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from django.test import Client

if TYPE_CHECKING:
    from pytest_django.fixtures import SettingsWrapper

TOKEN = "a-token-for-tests-only"


@pytest.fixture
def machine(settings: SettingsWrapper) -> Client:
    """Someone who sends the token."""
    settings.CAIRNQ = {"MONITOR_TOKEN": TOKEN}
    return Client(headers={"Authorization": f"Bearer {TOKEN}"})
