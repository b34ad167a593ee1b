"""Walks over finished pages: every link into the site leads somewhere, and nothing is fetched from outside."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

__all__ = ["Page", "problems", "read_page"]

_LOADS = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "object": "data"}
_NOT_LOADED = ("canonical", "next", "prev", "search", "index", "author", "copyright", "top", "up")  # <link rel=…>
_STYLE = re.compile(r"""(?:url\(|@import)\s*["']?\s*((?:https?:)?//[^"')\s]+)""")


class Page(HTMLParser):
    """What a page names.

    Attributes:
        anchors: ids. links: href of <a>. loads: addresses that a browser fetches by itself. figures: their labels.
    """

    def __init__(self) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.figures: list[str] = []
        self._style = False

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        has = {name: value or "" for name, value in attributes}
        self.anchors.update(filter(None, [has.get("id"), has.get("name") if tag == "a" else None]))
        self._style = tag == "style"
        if tag == "a" and "href" in has:
            self.links.append(has["href"])
        elif tag in _LOADS and _LOADS[tag] in has and has.get("rel") not in _NOT_LOADED:
            self.loads.append(has[_LOADS[tag]])
        if "paci-plot" in has.get("class", "").split():
            self.figures.append(has.get("aria-label", ""))
        self.loads += _STYLE.findall(has.get("style", ""))

    def handle_data(self, data: str) -> None:
        if self._style:
            self.loads += _STYLE.findall(data)


def read_page(path: Path) -> Page:
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def problems(site: Path) -> list[str]:
    """One sentence for each link into `site` that leads nowhere, each address outside that is no address, and each
    thing that a browser would fetch from outside."""
    pages = {path.resolve(): read_page(path) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        said = [_link(link, path, pages) for link in page.links]
        said += [
            f"fetches {load} from outside" if urlsplit(load).netloc else _link(load, path, pages)
            for load in page.loads
            if not load.startswith("data:")
        ]
        said += ["has a figure without words"] * sum(not label for label in page.figures)
        found += [f"{path.name} {sentence}" for sentence in dict.fromkeys(filter(None, said))]
    for sheet in sorted(site.rglob("*.css")):
        outside = _STYLE.findall(sheet.read_text(encoding="utf-8"))
        found += [f"{sheet.name} fetches {address} from outside" for address in outside]
    return found


def _link(link: str, path: Path, pages: dict[Path, Page]) -> str:
    """What is wrong with a link in the page `path`; "" when all is well."""
    parts = urlsplit(link)
    if parts.scheme in ("http", "https"):
        well = re.fullmatch(r"[a-z0-9-]+(\.[a-z0-9-]+)+(:\d+)?", parts.netloc) and not re.search(r"\s", link)
        return "" if well else f"links to {link}, which is no address"
    if parts.scheme:
        return "" if parts.scheme == "mailto" else f"links to {link}, of a kind that no reader expects"
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if not target.is_file():
        return f"links to {link}, which is not there"
    if parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
        return f"links to {link}, a place that its page has not"
    return ""
