"""Who does what one worker at a time has to do: held for a while, renewed in time, free again if its holder dies."""

from __future__ import annotations

from django.db.models import Q, QuerySet

from ..clock import Now, after
from ..models import Duty
from .engine import in_transaction


def hold(using: str, name: str, *, worker_id: str, seconds: float) -> bool:
    """Take the duty if it is free, or keep it, until `seconds` from now; return whether this worker has it.

    One short transaction, three where nobody ever had it. No lock outlives it, so a pooler may stand between.
    """
    mine = Q(worker_id=worker_id) | Q(held_until__lte=Now())

    def take() -> bool:
        return bool(_duty(using, name).filter(mine).update(worker_id=worker_id, held_until=after(seconds)))

    def make() -> None:
        Duty.objects.using(using).bulk_create([Duty(name=name)], ignore_conflicts=True)

    if in_transaction(using, take):
        return True
    if _duty(using, name).exists():
        return False
    in_transaction(using, make)
    return in_transaction(using, take)


def give_back(using: str, name: str, *, worker_id: str) -> None:
    """Let others take the duty at once, if this worker has it."""
    mine = _duty(using, name).filter(worker_id=worker_id)
    in_transaction(using, lambda: mine.update(worker_id="", held_until=Now()))


def _duty(using: str, name: str) -> QuerySet[Duty]:
    return Duty.objects.using(using).filter(pk=name)
