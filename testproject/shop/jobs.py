"""The jobs a visitor can start from the shop's page, each with a ready payload."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.utils.translation import gettext_lazy as _

from testproject.shop import tasks

if TYPE_CHECKING:
    from django.utils.functional import Promise

    from cairnq_django import TaskDef


@dataclass(frozen=True)
class Job:
    handler: TaskDef[Any, Any]
    label: Promise
    outcome: Promise
    payload: dict[str, Any]


JOBS = {
    "resize_photos": Job(
        tasks.resize_photos,
        _("Resize photos"),
        _("Reports progress photo by photo."),
        {"photos": [f"beach-{number}.jpg" for number in range(1, 9)]},
    ),
    "charge_card": Job(
        tasks.charge_card,
        _("Charge a card"),
        _("Fails for good: the bank declines."),
        {"card_ending": "0002", "amount": "49.90"},
    ),
    "fetch_rates": Job(
        tasks.fetch_rates,
        _("Fetch exchange rates"),
        _("An async handler."),
        {"currencies": ["USD", "GBP", "CHF", "JPY"]},
    ),
    "build_report": Job(
        tasks.build_report,
        _("Build a report"),
        _("Takes a minute: time enough to cancel it."),
        {"pages": 120},
    ),
    "average_basket": Job(
        tasks.average_basket,
        _("Average basket"),
        _("Has a bug: three attempts, three tracebacks."),
        {"amounts": []},
    ),
}
