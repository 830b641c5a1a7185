"""The form of a schedule that people make: what it says is checked as its tasks will be."""

from __future__ import annotations

import json
from functools import lru_cache
from itertools import chain
from typing import Any
from zoneinfo import available_timezones

from django import forms
from django.conf import settings
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from .. import schedules
from ..limits import MAX_PRIORITY, MIN_PRIORITY, SHORTEST_INTERVAL
from ..models import Schedule, WorkerProcess
from ..registry import default_registry
from ..statuses import Missed, Overlap
from ..timing import timing


class _StrictDecoder(json.JSONDecoder):
    """Of JSON alone: Python's own takes NaN and Infinity, too."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "parse_constant": self._refuse})

    @staticmethod
    def _refuse(constant: str) -> None:
        raise json.JSONDecodeError(f"{constant} is no JSON", constant, 0)


class _Payload(forms.JSONField):
    def prepare_value(self, value: Any) -> Any:
        return "" if value is None else super().prepare_value(value)


class ScheduleForm(forms.ModelForm):  # type: ignore[type-arg]
    task_name = forms.ChoiceField(
        label=gettext_lazy("Task"),
        help_text=gettext_lazy("Of those that this project has handlers for, and those that running workers serve."),
    )
    timezone = forms.ChoiceField(
        label=gettext_lazy("Time zone"),
        required=False,
        help_text=gettext_lazy(
            "Of the cron expression. It follows the clock there, also when that is put forward or back."
        ),
    )
    payload = _Payload(
        label=gettext_lazy("Payload"),
        required=False,
        decoder=_StrictDecoder,
        widget=forms.Textarea(attrs={"rows": 4, "spellcheck": "false"}),
        help_text=gettext_lazy("JSON that the handler is given; empty for none."),
    )
    priority = forms.IntegerField(
        label=gettext_lazy("Priority"),
        required=False,
        min_value=MIN_PRIORITY,
        max_value=MAX_PRIORITY,
        help_text=gettext_lazy("Higher first; empty for that of the task."),
    )

    class Meta:
        model = Schedule
        fields = ("name", "task_name", "payload", "cron", "timezone", "every", "missed", "overlap", "queue", "priority")
        labels = {"every": gettext_lazy("Or every so many seconds")}
        help_texts = {
            "cron": gettext_lazy("Minute, hour, day of the month, month and day of the week, such as “*/5 * * * *”."),
            "missed": gettext_lazy("What to do about times that passed while no worker ran."),
            "overlap": gettext_lazy("What to do while its latest task has not ended."),
            "queue": gettext_lazy("Empty for that of the task."),
        }

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # Where the page is only looked at, it has no fields.
        fields: Any = self.fields
        if "task_name" in fields:
            fields["task_name"].choices = _choices(_known_tasks(), self.instance.task_name)
        if "timezone" in fields:
            fields["timezone"].choices = _choices(_zones(), self.instance.timezone)
            self.initial.setdefault("timezone", settings.TIME_ZONE)
            self.initial["timezone"] = self.initial["timezone"] or settings.TIME_ZONE

    def clean_name(self) -> str:
        name: str = self.cleaned_data["name"]
        others = Schedule.objects.filter(declared=False, name=name).exclude(pk=self.instance.pk)
        if others.exists():
            raise forms.ValidationError(_("There is a schedule of this name already."), code="unique")
        return name

    def clean(self) -> dict[str, Any]:
        data: dict[str, Any] = super().clean() or self.cleaned_data
        if {"cron", "every", "timezone"} <= data.keys():
            self._clean_timing(data)
        if (data.get("missed"), data.get("overlap")) == (Missed.ALL, Overlap.SKIP):
            said = _("To run for each missed time, it has to be allowed to run beside its latest task.")
            self.add_error("overlap", said)
        if not self.errors:
            self._clean_task(data)
        return data

    def _clean_timing(self, data: dict[str, Any]) -> None:
        cron, every = " ".join(data["cron"].split()), data["every"]
        if bool(cron) == (every is not None):
            self.add_error("cron", _("Give either a cron expression or a number of seconds."))
            return
        if every is not None and every < SHORTEST_INTERVAL:
            self.add_error("every", _("A second is the shortest."))
            return
        zone = data["timezone"] or settings.TIME_ZONE
        data["cron"], data["timezone"] = cron, zone if cron else ""
        try:
            timing(cron=cron or None, every=every, zone=zone if cron else None)
        except ValueError as error:
            said = _("These are no times: %(reason)s") % {"reason": error}
            self.add_error("cron" if cron else "every", said)

    def _clean_task(self, data: dict[str, Any]) -> None:
        row = Schedule(**{name: data[name] for name in ("name", "task_name", "payload", "queue", "priority")})
        try:
            schedules.check(row)
        except (TypeError, ValueError) as error:
            self.add_error("payload", str(error))


def _known_tasks() -> set[str]:
    served = WorkerProcess.objects.heard_of().values_list("names", flat=True)
    # By an earlier name it is only found.
    earlier = {alias for definition in default_registry for alias in definition.aliases}
    return {*default_registry.names, *chain.from_iterable(served)} - earlier


@lru_cache(maxsize=1)
def _zones() -> frozenset[str]:
    return frozenset(available_timezones())


def _choices(known: Any, present: str) -> list[tuple[str, str]]:
    """All that are known and, first of all, none; what the row has stays to be chosen, whatever else there is."""
    return [("", "---------"), *((each, each) for each in sorted({*known, *filter(None, [present])}))]
