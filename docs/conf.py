"""How Sphinx builds the documentation."""

from __future__ import annotations

from typing import Any

import django
from django.conf import settings

from cairnq_django import __version__

# What the reference reads docstrings of has models in it.
settings.configure(
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    INSTALLED_APPS=["django.contrib.contenttypes", "cairnq_django"],
    USE_TZ=True,
)
django.setup()

project = "cairnq-django"
author = "cairnq-django contributors"
copyright = author
release = version = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"{project} {release}"

myst_heading_anchors = 3

# Docstrings are written as Markdown is: `name` is code.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
# Types of Python's, Django's and of the inside have no page here.
nitpick_ignore_regex = [("py:.*", ".*")]

# Made by Django and by workers: how is no concern of a reader's.
MADE_FOR_THEM = {"AsyncTaskContext", "PausedQueue", "Task", "TaskContext", "TaskStatus"}


def setup(app: Any) -> None:
    app.connect("autodoc-process-signature", hide_constructors)


def hide_constructors(app: Any, what: str, name: str, obj: Any, options: Any, signature: Any, returns: Any) -> Any:
    return ("", None) if what == "class" and name.rpartition(".")[2] in MADE_FOR_THEM else None
