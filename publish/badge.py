"""Badge of a question: two words and a verdict as a small SVG."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from html import escape

from treehammer.analysis.comparison.conclusion import SCOPE_WORDS
from treehammer.analysis.statistics.verdict import Verdict

#: Verdicts by their colors on which white text is readable.
_COLORS = {Verdict.SLOWER: "#a8380b", Verdict.FASTER: "#0b6b4a", Verdict.SAME: "#0b5a94"}
_OPEN_COLOR = "#5a646e"
_LETTER_WIDTH, _PADDING, _HEIGHT = 6.6, 8, 20


def describe_verdicts(counts: Mapping[str, Mapping[str, Mapping[str, int]]]) -> tuple[str, str]:
    """Describe the verdicts on the first metric in a few words, with their color.

    Args:
        counts: metric -> scope -> verdict -> how many variants.
    """
    scopes = next(iter(counts.values()), {})
    # On one host, nothing is known over sites: the widest scope that has an answer counts.
    counted = [scopes[scope] for scope in SCOPE_WORDS if scope in scopes]
    answered = [verdicts for verdicts in counted if set(verdicts) != {Verdict.NOT_ENOUGH}]
    verdicts = Counter(next(iter(answered or counted), {}))
    total = verdicts.total()
    certain = [verdict for verdict in (Verdict.SLOWER, Verdict.FASTER) if verdicts[verdict]]
    if certain:
        words = ", ".join(f"{verdicts[verdict]} {verdict}" for verdict in certain)
        return (words if total == 1 else f"{words} of {total}"), _COLORS[certain[0]]
    (verdict, _), *_ = verdicts.most_common(1) or [(Verdict.NOT_ENOUGH, 0)]
    return str(verdict), _COLORS.get(Verdict(verdict), _OPEN_COLOR)


def draw_badge(subject: str, message: str, color: str) -> str:
    """Draw a badge."""
    left, right = (2 * _PADDING + _LETTER_WIDTH * len(text) for text in (subject, message))
    width = left + right
    texts = "".join(
        f'<text x="{place:.0f}" y="14">{escape(text)}</text>'
        for place, text in ((left / 2, subject), (left + right / 2, message))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{_HEIGHT}" role="img" '
        f'aria-label="{escape(subject)}: {escape(message)}">'
        f'<rect width="{left:.0f}" height="{_HEIGHT}" fill="#1d2329"/>'
        f'<rect x="{left:.0f}" width="{right:.0f}" height="{_HEIGHT}" fill="{color}"/>'
        '<g fill="#fff" text-anchor="middle" font-family="DejaVu Sans,Verdana,sans-serif" '
        f'font-size="11">{texts}</g></svg>\n'
    )
