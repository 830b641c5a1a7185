"""Fixtures for pytest. Loaded in each run where the package is installed, so it imports nothing that needs settings."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .worker.worker import Worker


@pytest.fixture
def cairnq_worker_options() -> dict[str, Any]:
    """What `cairnq_worker` passes to `live_worker()`, to be overridden: options of `Worker`, and `registry`."""
    return {}


@pytest.fixture
def cairnq_worker(transactional_db: None, cairnq_worker_options: dict[str, Any]) -> Iterator[Worker]:
    """A worker that runs beside the test, as `cairnq_django.testing.live_worker()`."""
    with _testing().live_worker(**cairnq_worker_options) as worker:
        yield worker


@pytest.fixture
def cairnq_inline(db: None) -> Iterator[None]:
    """During the test, each submit runs its task, as `cairnq_django.testing.immediate()`."""
    with _testing().immediate():
        yield


def _testing() -> Any:
    # Only when a test asks for it: by then Django is set up.
    return import_module("cairnq_django.testing")
