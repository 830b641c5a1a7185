"""JSON columns as the text that the database holds: read as far as they are shown, handed out whole, never parsed.

So neither their size nor their depth can keep a page from being shown.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from django.db.models import TextField
from django.db.models.functions import Cast, Left
from django.template.defaultfilters import filesizeformat
from django.utils import formats
from django.utils.translation import gettext as _

from ..columns import JSONSize
from ..serialization import clean_text

COLUMNS: Final = ("payload", "result", "metadata", "error")

READ: Final = 200_000  # characters of one value
SHOWN: Final = 50_000  # characters of one value, laid out
DEEPEST: Final = 30  # levels that are indented

_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[{}\[\]:,]|[^\s{}\[\],:"]+', re.DOTALL)


@dataclass(frozen=True)
class LaidOut:
    """A JSON value laid out for reading; `cut` says how much of it is missing, if any is."""

    text: str
    size: int  # bytes, of the whole value
    cut: str = ""

    @property
    def shown_size(self) -> str:
        return filesizeformat(self.size)


def whole(column: str) -> Cast:
    return Cast(column, TextField())


def heads(*columns: str) -> dict[str, Any]:
    """What a query has to annotate for `lay_out_head()` and `parse_head()`."""
    beginnings = {f"{column}_head": Left(whole(column), READ) for column in columns}
    return {**beginnings, **{f"{column}_size": JSONSize(column) for column in columns}}


def head(row: Any, column: str) -> tuple[str | None, int]:
    return getattr(row, f"{column}_head"), getattr(row, f"{column}_size")


def is_empty(row: Any, column: str) -> bool:
    return getattr(row, f"{column}_head") in (None, "", "null", "{}")


def lay_out_head(row: Any, column: str) -> LaidOut:
    text, size = head(row, column)
    return lay_out_text("null" if text is None else text, size)


def parse_head(row: Any, column: str) -> Any:
    """The value of a column, or `LaidOut` in its place if it is too large or too deep."""
    text, size = head(row, column)
    if text is None:
        return None
    if len(text) < READ:
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            pass
    return lay_out_text(text, size)


def lay_out(value: Any) -> LaidOut:
    """Lay out a value that is JSON, or was found in some."""
    if isinstance(value, LaidOut):
        return value
    try:
        text = json.dumps(value, ensure_ascii=False)
    except RecursionError:
        return LaidOut("", 0, _("It is nested too deep to be shown."))
    return lay_out_text(text, len(text.encode(errors="replace")))


def lay_out_text(text: str, size: int) -> LaidOut:
    """Lay out JSON text, whole or as far as it goes, with two spaces for each level."""
    parts: list[str] = []
    room = SHOWN
    for part in _indented(text[:READ]):
        parts.append(part[: max(room, 0)])
        room -= len(part)
        if room < 0:
            break
    cut = ""
    if room < 0 or len(text) >= READ:
        cut = _("Cut after %(shown)s characters; the whole value takes %(size)s.") % {
            "shown": formats.number_format(min(SHOWN, SHOWN - room), force_grouping=True),
            "size": filesizeformat(size),
        }
    return LaidOut(clean_text("".join(parts)), size, cut)


def _indented(text: str) -> Iterator[str]:
    depth, opened = 0, False
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token in ("}", "]"):
            depth = max(0, depth - 1)
            if not opened:
                yield _new_line(depth, depth + 1)
            opened = False
            yield token
            continue
        if opened:
            yield _new_line(depth, depth)
        opened = token in ("{", "[")
        depth += opened
        if token == ",":
            yield "," + (_new_line(depth, depth) or " ")
        elif token == ":":
            yield ": "
        else:
            yield _readable(token) if token.startswith('"') else token


def _new_line(depth: int, of: int) -> str:
    # Deeper down, the indentation would be all that there is room for.
    return "\n" + "  " * depth if of <= DEEPEST else ""


def _readable(token: str) -> str:
    """A JSON string as people write it: some databases hold it in ASCII."""
    try:
        return json.dumps(json.loads(token), ensure_ascii=False)
    except ValueError:
        return token  # it was cut
