"""A timeline as a self-contained SVG drawing."""

from html import escape

from jaxpar.schedule.action import KINDS
from jaxpar.schedule.render import action_label

# Okabe and Ito's palette, told apart with any colour vision (but for its light blue: too near to a later chunk's F).
COLOURS = {
    "E": "#4d4d4d",
    "F": "#0072b2",
    "H": "#cc79a7",
    "B": "#d55e00",
    "R": "#999999",
    "I": "#009e73",
    "W": "#e69f00",
    "G": "#f0e442",
}
_ROW, _GAP, _LEFT, _TOP = 26, 4, 64, 34
_LABEL_CHARACTER = 7  # pixels a character of an 11 pixel label takes


def render_svg(timeline, width=None):
    """Draw the timeline to scale: one row a rank, colours for kinds, lighter shades for later chunks.

    Args:
      timeline: Timeline.
      width: int, pixels of the time axis; by default so many that a typical forward can be labelled, 1,000 to 6,000.

    Returns:
      str, an SVG document that needs no other file. Its title says "simulated"; each bar has a tooltip with its action
      and times.
    """
    width = width or _default_width(timeline)
    scale = width / timeline.makespan if timeline.makespan else 0.0
    bottom = _TOP + timeline.num_ranks * (_ROW + _GAP)
    title = (
        f"{timeline.name}, simulated ({timeline.mode}, gradient sent {timeline.send.replace('_', ' ')}): "
        f"makespan {timeline.makespan:.4g}, bubble {timeline.bubble:.1%}"
    )
    kinds = [kind for kind in KINDS if any(event.action.kind == kind for event in timeline.events)]
    total_width, height = _LEFT + width + 30, bottom + 70
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{total_width}" height="{height}" '
        f'viewBox="0 0 {total_width} {height}" font-family="sans-serif" font-size="11">',
        f'<rect width="{total_width}" height="{height}" fill="white"/>',
        f'<text x="{_LEFT}" y="18" font-size="14">{escape(title)}</text>',
    ]
    for rank in range(timeline.num_ranks):
        y = _TOP + rank * (_ROW + _GAP)
        lines.append(f'<text x="{_LEFT - 8}" y="{y + 17}" text-anchor="end">rank {rank}</text>')
        lines.append(f'<rect x="{_LEFT}" y="{y}" width="{width}" height="{_ROW}" fill="#f0f0f0"/>')
    # A G can run inside its B, between I and W, so it is drawn on top.
    events = sorted((e for e in timeline.events if e.end > e.start), key=lambda e: e.action.kind == "G")
    lines += [_bar(timeline, event, scale) for event in events]
    lines += _axis(timeline, bottom, width) + _legend(kinds, timeline.num_chunks, bottom + 38)
    return "\n".join([*lines, "</svg>", ""])


def _default_width(timeline):
    """Pixels that let the median forward show its label."""
    times = sorted(e.end - e.start for e in timeline.events if e.action.kind == "F" and e.end > e.start)
    longest = max((len(str(e.action)) for e in timeline.events), default=0)
    wanted = (longest + 1) * _LABEL_CHARACTER * timeline.makespan / times[len(times) // 2] if times else 0
    return round(min(max(wanted, 1000), 6000))


def shade(colour, chunk, num_chunks):
    """`colour` ("#rrggbb") mixed with white, more for later chunks; at most 60 %."""
    mix = 0.6 * chunk / max(1, num_chunks - 1)
    channels = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(c + (255 - c) * mix):02x}" for c in channels)


def _bar(timeline, event, scale):
    action = event.action
    chunk = action.stage // timeline.num_ranks
    x, wide = _LEFT + event.start * scale, (event.end - event.start) * scale
    y = _TOP + event.rank * (_ROW + _GAP)
    fill = shade(COLOURS[action.kind], 0 if action.kind in "EHG" else chunk, timeline.num_chunks)
    tooltip = f"{action}: {KINDS[action.kind]}, stage {action.stage}, {event.start:.4g} to {event.end:.4g}"
    label = action_label(action, timeline.num_ranks, timeline.num_chunks)
    text = ""
    if wide >= _LABEL_CHARACTER * len(label):
        text = (
            f'<text x="{x + wide / 2:.2f}" y="{y + 17}" text-anchor="middle" fill="{_ink(fill)}" '
            f'pointer-events="none">{label}</text>'
        )
    bar = f'<rect x="{x:.2f}" y="{y}" width="{wide:.2f}" height="{_ROW}" fill="{fill}" stroke="white">'
    return f"{bar}<title>{escape(tooltip)}</title></rect>{text}"


def _ink(fill):
    """Black or white, whichever reads better on `fill`."""
    red, green, blue = (int(fill[i : i + 2], 16) for i in (1, 3, 5))
    return "#000000" if 0.299 * red + 0.587 * green + 0.114 * blue > 120 else "#ffffff"


def _axis(timeline, y, width):
    ticks = [(i * width / 8, i * timeline.makespan / 8) for i in range(9)]
    return [f'<text x="{_LEFT + x:.1f}" y="{y + 12}" text-anchor="middle">{time:.4g}</text>' for x, time in ticks]


def _legend(kinds, num_chunks, y):
    lines, x = [], _LEFT
    for kind in kinds:
        text = f"{kind}: {KINDS[kind]}"
        lines.append(f'<rect x="{x}" y="{y - 10}" width="12" height="12" fill="{COLOURS[kind]}"/>')
        lines.append(f'<text x="{x + 16}" y="{y}">{escape(text)}</text>')
        x += 32 + round(_LABEL_CHARACTER * len(text))
    if num_chunks > 1:
        note = "numbers are microbatches, letters after them chunks; lighter: a later chunk"
        lines.append(f'<text x="{_LEFT}" y="{y + 20}">{note}</text>')
    return lines
