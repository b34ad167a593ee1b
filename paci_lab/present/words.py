"""What a race says in words: a card for each side, and the verdict. Texts are escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from paci_lab.language import _
from paci_lab.present.race import Racer

__all__ = ["card_html", "text_html", "title_html", "verdict"]


def title_html(number: int, of: int, title: str, label: str) -> str:
    """The heading of a scene, and where its figures come from."""
    return (
        f'<h1><span class="number" aria-hidden="true">{number} / {of}</span> {escape(title)}</h1>'
        f'<p class="label">{escape(label)}</p>'
    )


def text_html(text: str) -> str:
    """A paragraph."""
    return f"<p>{escape(text)}</p>"


def card_html(racer: Racer, side: int, at_s: float, until_s: float, gaps: Sequence[int]) -> str:
    """The countdown of one side.

    Args:
        side: 0 above, 1 below. at_s: its training time. until_s: losses up to here count; gaps: version gap by stage.
    """
    seconds, losses = racer.points(until_s)
    there = racer.reached(until_s)
    failed = racer.failure()
    best = min(losses) if losses else None
    if failed:
        big, small, share = _("failed"), failed, 0.0
    elif there is not None:
        big = _("target after {seconds:.1f} s").format(seconds=there)
        small, share = _("validation loss {loss:.3f}").format(loss=losses[seconds.index(there)]), 1.0
    elif best is None:
        big, share = "–", 0.0
        small = _("no validation loss yet, target {target:g}").format(target=racer.target)
    else:
        big = _("{distance:.2f} to go").format(distance=max(losses[-1] - racer.target, 0.0))
        small = _("validation loss {loss:.2f}, target {target:g}").format(loss=losses[-1], target=racer.target)
        share = min(max((losses[0] - best) / max(losses[0] - racer.target, 1e-9), 0.0), 1.0)
    gap = _("version gap by stage: {gaps}").format(gaps=" ".join(map(str, gaps))) if len(gaps) else ""
    return (
        f'<div class="card side{side}{" failed" if failed else ""}"><p class="name">{escape(racer.name)}</p>'
        f'<p class="big">{escape(big)}</p>'
        f'<div class="way" role="progressbar" aria-valuemin="0" aria-valuemax="100" aria-valuenow="{100 * share:.0f}" '
        f'aria-label="{escape(_("way to the target"))}"><span style="width:{100 * share:.0f}%"></span></div>'
        f'<p>{escape(small)}</p><p class="quiet">{escape(_("training time {seconds:.1f} s").format(seconds=at_s))}'
        f"{' · ' + escape(gap) if gap else ''}</p></div>"
    )


def verdict(racers: Sequence[Racer], at_s: Sequence[float], until_s: Sequence[float]) -> str:
    """Who was there first, as far as it is decided; "" before.

    A side is first once the other one was there later, or has trained longer than it without being there, or is over.

    Args:
        at_s: training time of each side, or of its replay. until_s: losses up to here count.
    """
    found = [racer.reached(until) for racer, until in zip(racers, until_s, strict=True)]
    goes_on = [not racer.over or at < racer.end_ns / 1e9 for racer, at in zip(racers, at_s, strict=True)]
    if all(there is None for there in found):
        if any(goes_on):
            return ""
        if all(racer.failure() for racer in racers):
            return _("Both sides failed, so there is no winner.")
        return _("Neither side reached the target of {target:g}.").format(target=racers[0].target)
    first = min((side for side in (0, 1) if found[side] is not None), key=lambda side: found[side])
    winner, other = racers[first], racers[1 - first]
    words = {"winner": winner.name, "seconds": found[first]}
    if found[1 - first] is not None:
        if found[0] == found[1]:
            return _("Both reached the target after {seconds:.1f} s.").format(**words)
        return _(
            "{winner} was there first: {seconds:.1f} s against {others:.1f} s, {ratio:.2f} times as fast. "
            "One run each, one seed: another seed may say otherwise."
        ).format(others=found[1 - first], ratio=found[1 - first] / found[first], **words)
    if not goes_on[1 - first]:
        if other.failure():
            return _("{winner} reached the target after {seconds:.1f} s; the other side failed.").format(**words)
        return _("{winner} reached the target after {seconds:.1f} s; the other side never did.").format(**words)
    if at_s[1 - first] > found[first]:
        return _("{winner} is there after {seconds:.1f} s. The other side goes on.").format(**words)
    return ""
