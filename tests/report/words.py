"""What a page says, without its tags."""

from __future__ import annotations

import re


def section(page: str, anchor: str) -> str:
    """The words of one section; | where tags were."""
    found = re.search(rf'<section id="{anchor}".*?</section>', page, re.S)
    assert found, anchor
    return re.sub(r"<[^>]+>", "|", found[0])
