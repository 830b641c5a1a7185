"""How much memory a process holds, on Linux and elsewhere."""

from __future__ import annotations

import pytest

from cairnq_django.worker import memory
from cairnq_django.worker.memory import MIB, resident_mib


def test_what_is_taken_is_seen() -> None:
    before = resident_mib()
    held = b"x" * (64 * MIB)
    assert 50 < resident_mib() - before < 100
    del held


def test_without_proc_it_is_the_highest_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    now = resident_mib()
    monkeypatch.setattr(memory, "_has_statm", lambda: False)
    assert now * 0.9 < resident_mib() < now * 100


def test_where_it_cannot_be_measured_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_has_statm", lambda: False)
    monkeypatch.setattr(memory, "resource", None)
    with pytest.raises(ValueError, match="cannot be measured on this platform"):
        resident_mib()
