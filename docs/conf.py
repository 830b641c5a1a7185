"""How Sphinx builds the documentation."""

from __future__ import annotations

from importlib.metadata import version as version_of

project = "cairnq-django"
author = "cairnq-django contributors"
release = version = version_of("cairnq-django")
extensions = ["myst_parser"]
myst_heading_anchors = 3
html_title = f"{project} {release}"
