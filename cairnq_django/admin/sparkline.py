"""Counts over time as a small drawing, with its gist in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from ..store.failures import Span
from . import display

_STEP: Final = 5  # from one bar to the next
_BAR: Final = 4
_HEIGHT: Final = 28
_LEAST: Final = 2  # what is not zero can be seen


def sparkline(counts: Sequence[int], span: Span) -> SafeString:
    """A bar for each of the counts, which divide the span evenly, the latest at the right."""
    most = max(counts)
    bars = [
        f"M{_STEP * index} {_HEIGHT}v-{height}h{_BAR}v{height}z"
        for index, count in enumerate(counts)
        if count and (height := max(_LEAST, round(_HEIGHT * count / most)))
    ]
    return format_html(
        '<svg class="cairnq-sparkline" viewBox="0 0 {0} {1}" width="{0}" height="{1}" role="img" focusable="false">'
        '<title>{2}</title><path class="cairnq-axis" d="M0 {3}H{0}"/><path d="{4}"/></svg>',
        _STEP * len(counts) - (_STEP - _BAR),
        _HEIGHT,
        _in_words(counts, span),
        _HEIGHT - 0.5,
        "".join(bars),
    )


def _in_words(counts: Sequence[int], span: Span) -> str:
    part = (span.until - span.since) / len(counts)
    most = max(counts)
    latest_peak = len(counts) - 1 - list(reversed(counts)).index(most)
    ago = (part * (len(counts) - latest_peak)).total_seconds()
    return _("At most %(most)s within %(part)s, about %(ago)s ago; %(latest)s within the latest %(part)s.") % {
        "most": display.number(most),
        "part": display.duration(part.total_seconds()),
        "ago": display.rough_duration(ago),
        "latest": display.number(counts[-1]),
    }
