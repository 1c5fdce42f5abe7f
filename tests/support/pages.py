"""What pages of HTML are held to."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any


class Tags(HTMLParser):
    """Checks that tags are closed in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.seen.append(tag)
        assert not {"src", "href"} & {name for name, _ in attrs}  # self-contained
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def well_formed(page: str) -> list[str]:
    tags = Tags()
    tags.feed(page)
    tags.close()
    assert not tags.open
    assert 'name="viewport"' in page
    return tags.seen
