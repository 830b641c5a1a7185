"""The guide's examples under Django's own test runner; `test_docs.py` runs them under pytest."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.documents import DOCS, Page, Project
from tests.test_docs import SETTINGS, URLS

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.xdist_group("docs")
def test_its_examples_pass_under_manage_py_test(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.append("mysite/settings.py", f'{SETTINGS}INSTALLED_APPS += ["shop"]')
    project.append("mysite/urls.py", URLS)
    for block in Page(DOCS / "howto/testing.md").files:
        project.append(block.file, block.text.partition("\n")[2])

    assert "Ran 11 tests" in project.run(sys.executable, "manage.py", "test", "shop.tests")
