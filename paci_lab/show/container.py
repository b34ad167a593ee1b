"""The box that every notebook view is in: a ring around what has the keyboard, and the direction of the language."""

from __future__ import annotations

from collections.abc import Sequence

import ipywidgets as widgets

from paci_lab.language import direction

__all__ = ["in_order_of_time", "view"]

_STYLE = """<style>
.paci-lab-view :is(button, select, input, summary, .noUi-handle, [tabindex], [contenteditable]):focus-visible {
  outline: 3px solid var(--jp-brand-color1, #1f6fb8) !important; outline-offset: 2px; }
.paci-lab-view .widget-inline-hbox > .widget-label { white-space: normal; line-height: 1.15; align-self: center; }
.paci-lab-rtl { direction: rtl; }
.paci-lab-rtl :is(.js-plotly-plot, .slider-container, .widget-readout, .paci-lab-time, .jp-OutputArea) {
  direction: ltr; }
.paci-lab-rtl .widget-checkbox input { margin-left: 8px; }
.paci-lab-rtl .widget-inline-hbox > .widget-label { text-align: left; margin: 0 0 0 4px; }
</style>"""


def view(children: Sequence[widgets.Widget]) -> widgets.VBox:
    """A box of a view's parts, one under the other."""
    whole = widgets.VBox([widgets.HTML(_STYLE, layout=widgets.Layout(display="none")), *children])
    whole.add_class("paci-lab-view")
    if direction() == "rtl":
        whole.add_class("paci-lab-rtl")
    return whole


def in_order_of_time(children: Sequence[widgets.Widget], **layout: str) -> widgets.HBox:
    """A row of buttons and sliders that go back and forward: from left to right in every language, as time axes do."""
    row = widgets.HBox(children, layout=widgets.Layout(flex_flow="row wrap", **layout))
    row.add_class("paci-lab-time")
    return row
