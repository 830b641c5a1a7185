"""Each catalog has every text that the package shows, with the same places to fill in, compiled as it is written."""

from __future__ import annotations

import re
from collections import Counter
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from babel.messages.extract import extract
from babel.messages.mofile import read_mo
from babel.messages.pofile import read_po
from django.utils import translation
from django.utils.translation import ngettext
from django.utils.translation.template import templatize

import cairnq_django

if TYPE_CHECKING:
    from collections.abc import Iterator

    from babel.messages.catalog import Catalog, Message

PACKAGE = Path(cairnq_django.__file__).parent
CATALOGS = sorted(PACKAGE.glob("locale/*/LC_MESSAGES/django.po"))

# The places that are marked for translation: which arguments are texts, and which one says in what sense.
PLAIN, MANY, IN_A_SENSE, MANY_IN_A_SENSE = (1,), (1, 2), ((1, "c"), 2), ((1, "c"), 2, 3)
KEYWORDS = {
    f"{name}{lazy}": places
    for name, places in {
        "_": PLAIN,
        "gettext": PLAIN,
        "ngettext": MANY,
        "pgettext": IN_A_SENSE,
        "npgettext": MANY_IN_A_SENSE,
    }.items()
    for lazy in ("", "_lazy")
}

# What a template's texts become, between what is no Python at all.
QUOTED = r"""u?(?:'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")"""
CALL = rf"\b(?:n?p?gettext|_)\((?:{QUOTED}|[, ]|count)*\)"

every_catalog = pytest.mark.parametrize("path", CATALOGS, ids=lambda path: path.parts[-3])


def catalog(path: Path) -> Catalog:
    with path.open("rb") as file:
        return read_po(file)


def texts(messages: Catalog) -> set[tuple[str | None, str]]:
    return {(message.context, singular(message)) for message in messages if message.id}


def singular(message: Message) -> str:
    return message.id if isinstance(message.id, str) else message.id[0]


def shown() -> Iterator[tuple[str | None, str]]:
    """Every text of the package's code and templates, in which sense."""
    for path in sorted(PACKAGE.rglob("*")):
        if path.suffix not in (".py", ".html"):
            continue
        source = path.read_text()
        code = source if path.suffix == ".py" else "\n".join(re.findall(CALL, templatize(source)))
        for _, message, _, context in extract("python", BytesIO(code.encode()), KEYWORDS):
            yield context, message if isinstance(message, str) else message[0]


def places(text: str) -> Counter[str]:
    """What is to be filled in."""
    return Counter(re.findall(r"%\(\w+\)[sd]|%[sd%]|\{\w*\}", text))


def test_there_are_catalogs() -> None:
    assert {path.parts[-3] for path in CATALOGS} >= {"de", "ja", "zh_Hans"}


@every_catalog
def test_a_catalog_has_all_texts_and_no_others(path: Path) -> None:
    # In cairnq_django/, `django-admin makemessages --all --no-location --no-obsolete`, and `compilemessages` after the
    # translation, bring them up to date.
    assert texts(catalog(path)) == set(shown())


@every_catalog
def test_every_text_is_translated_with_the_same_places(path: Path) -> None:
    for message in catalog(path):
        if not message.id:
            continue
        originals = [message.id] if isinstance(message.id, str) else list(message.id)
        translations = [message.string] if isinstance(message.string, str) else list(message.string)
        assert all(translations), f"{originals[0]!r} is not translated"
        assert not message.fuzzy, f"{originals[0]!r} is only guessed"
        # A singular may do without its number.
        for translated in translations:
            assert places(translated) in [places(original) for original in originals], translated


@every_catalog
def test_what_is_compiled_is_what_is_written(path: Path) -> None:
    written = {(message.context, singular(message)): message.string for message in catalog(path) if message.id}
    with path.with_suffix(".mo").open("rb") as file:
        compiled = {(message.context, singular(message)): message.string for message in read_mo(file) if message.id}
    assert {key: _forms(string) for key, string in compiled.items()} == {
        key: _forms(string) for key, string in written.items()
    }


def _forms(string: str | list[str] | tuple[str, ...]) -> tuple[str, ...]:
    return (string,) if isinstance(string, str) else tuple(string)


@pytest.mark.parametrize(
    ("language", "one", "many"),
    [
        ("de", "1 Aufgabe wurde abgebrochen.", "7 Aufgaben wurden abgebrochen."),
        ("ja", "1 件", "7 件"),
        ("zh-hans", "1 个任务", "7 个任务"),
    ],
)
def test_django_finds_them(language: str, one: str, many: str) -> None:
    with translation.override(language):
        for count, text in ((1, one), (7, many)):
            told = ngettext("%(count)s task was canceled.", "%(count)s tasks were canceled.", count) % {"count": count}
            assert text in told
