"""Colours of every chart: a cycle of hues for micro-batches, and a light and a dark theme.

The hue tells the micro-batch and the lightness tells the kind of work. The cycle was searched so that neighbours stay
apart (at least 0.1 in OKLab) for normal sight and for protanopia, deuteranopia and tritanopia as simulated by Machado,
Oliveira and Fernandes (2009); `tests/test_show_gantt.py` holds it to that.
"""

from __future__ import annotations

import dataclasses

from paci_lab.errors import InputError

__all__ = ["DARK", "LIGHT", "SERIES", "Theme", "contrast", "ink_on", "swap", "theme_named"]

FORWARD = ("#a4cffd", "#feb993", "#c196e1", "#eb8d86", "#60e3db", "#f6c071", "#9da2f2", "#67dcfe", "#dccc70", "#de8dbb")
"""Fill of forwards, by micro-batch modulo the length of the cycle."""

BACKWARD = (
    "#2373bb",
    "#ac5414",
    "#6f3e8f",
    "#95312f",
    "#10817c",
    "#976500",
    "#4c4ba1",
    "#017d98",
    "#7f7108",
    "#893269",
)
"""Fill of backwards: the same hues, darker."""

SERIES = {
    "light": ("#1f6fb8", "#c2410c", "#6b3a8c", "#0f7d78", "#7a6c06", "#862f66"),
    "dark": ("#7ab8f5", "#ff9d66", "#c9a2ea", "#5fd8cf", "#d9ca6c", "#ee9fc9"),
}
"""Lines of a chart that compares runs, by theme."""

# Not quite black and white: a page that swaps its theme's colours must not take the ink of bars for its own.
_DARK_INK, _LIGHT_INK = "#14171d", "#fefefe"


@dataclasses.dataclass(frozen=True)
class Theme:
    """What a chart is drawn on and in: colours as #rrggbb."""

    name: str
    background: str
    ink: str
    muted: str
    grid: str
    waiting: str
    update: str
    strip: tuple[str, str]
    font: str = "Inter, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif"

    @property
    def series(self) -> tuple[str, ...]:
        """Line colours for several runs in one chart."""
        return SERIES[self.name]


LIGHT = Theme(
    "light",
    background="#ffffff",
    ink="#1b1f26",
    muted="#5b6370",
    grid="#e6e8ec",
    waiting="#9aa2ae",
    update="#1b1f26",
    strip=("#e3e6eb", "#c9cfd8"),
)
DARK = Theme(
    "dark",
    background="#14171c",
    ink="#eceff3",
    muted="#a3abb8",
    grid="#2a2f38",
    waiting="#6b7483",
    update="#eceff3",
    strip=("#2c323c", "#414956"),
)


def theme_named(name: str) -> Theme:
    """LIGHT or DARK; raises InputError for any other name."""
    if name not in ("light", "dark"):
        raise InputError("theme", name, "light | dark", "use theme='light'")
    return LIGHT if name == "light" else DARK


def swap() -> dict[str, str]:
    """Every colour of the light theme and its counterpart in the dark one.

    No other colour of a chart equals one of the keys, so a page can turn a light figure dark by replacing strings.
    """
    pairs = [
        (getattr(LIGHT, f.name), getattr(DARK, f.name))
        for f in dataclasses.fields(Theme)
        if f.name not in ("name", "font")
    ]
    flat = [(light, dark) for light, dark in pairs if isinstance(light, str)]
    return dict([*flat, *zip(LIGHT.strip, DARK.strip, strict=True), *zip(LIGHT.series, DARK.series, strict=True)])


def luminance(color: str) -> float:
    """Relative luminance of #rrggbb as WCAG 2 defines it, 0 (black) to 1 (white)."""
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """Contrast ratio of two colours as WCAG 2 defines it, 1 to 21; 4.5 is readable text."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def ink_on(color: str) -> str:
    """The ink, dark or light, that reads best on `color`."""
    return max((_DARK_INK, _LIGHT_INK), key=lambda ink: contrast(ink, color))
