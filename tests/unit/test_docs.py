"""The Markdown files: their links lead somewhere, and their pictures are small."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

PAGES = [REPOSITORY / "README.md", REPOSITORY / "vscode" / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_relative_links_lead_to_files(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    targets = [target.partition("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text)]
    assert [
        target for target in targets if target and "://" not in target and not (page.parent / target).exists()
    ] == []


def test_pictures_are_small_and_shown() -> None:
    pictures = sorted((REPOSITORY / "docs" / "images").iterdir())
    assert [picture.name for picture in pictures if picture.stat().st_size > 200 * 1024] == []
    text = "".join(page.read_text() for page in PAGES)
    assert [picture.name for picture in pictures if picture.name not in text] == []
