"""The layout of a trust map. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sluice.runtime.ui.trust_map import Group, Link, Process, TrustMap

BOX_WIDTH, BOX_HEIGHT = 158, 66
GAP = 26
TIER_GAP = 104
ARC_DEPTH = 64
MARGIN, LABEL_WIDTH = 18, 104
DOT, DOTS_PER_ROW = 13, 40
PARALLEL, BEND = 26, 13
TAG_LETTER, TAG_PADDING, TAG_ROOM = 6.4, 14, 24
MIN_WIDTH = 860

_TIERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Ingress", ("gateway", "auth")),
    ("Control", ("jobmanager", "ca", "zookeeper", "shuffle-manager")),
    ("Workers", ("taskmanager",)),
    ("Shuffle", ("shuffle-worker",)),
    ("Drivers", ("driver",)),
    ("Executors", ("executor",)),
    ("Others", ("user", "unknown")),
    ("Outside", ("outside",)),
)
_JOB_TIERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Control", ("jobmanager", "gateway", "shuffle-manager", "driver")),
    ("Executors", ("executor",)),
    ("Others", ("taskmanager", "shuffle-worker", "auth", "ca", "zookeeper", "user", "unknown")),
    ("Outside", ("outside",)),
)


@dataclass(frozen=True, slots=True)
class Dot:
    """A process in a box with many processes."""

    process: Process
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Box:
    """A group in the picture."""

    group: Group
    x: float
    y: float
    width: float
    height: float
    dots: tuple[Dot, ...] = ()

    @property
    def middle(self) -> float:
        """The x coordinate of its center."""
        return self.x + self.width / 2

    @property
    def bottom(self) -> float:
        """The y coordinate of its lower edge."""
        return self.y + self.height

    @property
    def right(self) -> float:
        """The x coordinate of its right edge."""
        return self.x + self.width


@dataclass(frozen=True, slots=True)
class Line:
    """A link in the picture: its curve, the arrow at the listener, and the position of its label."""

    link: Link
    path: str
    arrow: str
    tag: str
    tag_x: float
    tag_y: float
    tag_width: float


@dataclass(frozen=True, slots=True)
class Tier:
    """A horizontal band of the picture."""

    title: str
    y: float
    height: float


@dataclass(frozen=True, slots=True)
class Picture:
    """The whole layout."""

    width: float
    height: float
    tiers: tuple[Tier, ...]
    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]


def draw(found: TrustMap, *, of_a_job: bool = False) -> Picture:
    """Place processes in bands by role, and draw each channel from the dialer to the listener."""
    rows = [
        (title, row)
        for title, roles in (_JOB_TIERS if of_a_job else _TIERS)
        if (row := [group for role in roles for group in found.groups.values() if group.role == role])
    ]
    sizes = {group.key: _size(group) for _, row in rows for group in row}
    inner = max((_row_width(row, sizes) for _, row in rows), default=0)
    width = max(MIN_WIDTH, LABEL_WIDTH + inner + 2 * MARGIN)
    boxes: dict[str, Box] = {}
    tiers: list[Tier] = []
    y: float = MARGIN
    for number, (title, row) in enumerate(rows):
        # Spread the boxes: lines of a job would cross a box in the middle.
        gap = GAP + (width - LABEL_WIDTH - inner) / max(1, len(row)) * (0.8 if of_a_job and len(row) > 1 else 0)
        total = sum(sizes[group.key][0] for group in row) + gap * (len(row) - 1)
        x = LABEL_WIDTH + (width - LABEL_WIDTH - total) / 2
        height = max(sizes[group.key][1] for group in row)
        for group in row:
            box_width, box_height = sizes[group.key]
            boxes[group.key] = Box(group, x, y, box_width, box_height, _dots(group, x, y))
            x += box_width + gap
        tiers.append(Tier(title, y - 10, height + 20))
        arcs = any(_needs_arc(link, row, gap) for link in found.links)
        last = number == len(rows) - 1
        y += height + (0 if last else TIER_GAP) + (ARC_DEPTH if arcs else 0)
    lines = _lines(found.links, boxes)
    return Picture(round(width), round(y + MARGIN + 4), tuple(tiers), tuple(boxes.values()), lines)


def _size(group: Group) -> tuple[float, float]:
    if len(group.members) == 1:
        return BOX_WIDTH, BOX_HEIGHT
    columns = min(DOTS_PER_ROW, len(group.members))
    rows = -(-len(group.members) // DOTS_PER_ROW)
    return max(BOX_WIDTH, columns * DOT + 28), 50 + rows * DOT


def _dots(group: Group, x: float, y: float) -> tuple[Dot, ...]:
    if len(group.members) == 1:
        return ()
    return tuple(
        Dot(each, x + 20 + number % DOTS_PER_ROW * DOT, y + 46 + number // DOTS_PER_ROW * DOT)
        for number, each in enumerate(group.members)
    )


def _row_width(row: Sequence[Group], sizes: Mapping[str, tuple[float, float]]) -> float:
    return sum(sizes[group.key][0] for group in row) + GAP * (len(row) - 1)


def _needs_arc(link: Link, row: Sequence[Group], gap: float) -> bool:
    """Whether ``link`` stays in this band and a straight line has no room for its label."""
    order = [group.key for group in row]
    if link.dialer not in order or link.listener not in order:
        return False
    return gap <= _tag_width(link) + TAG_ROOM or abs(order.index(link.dialer) - order.index(link.listener)) != 1


def _lines(links: Sequence[Link], boxes: Mapping[str, Box]) -> tuple[Line, ...]:
    drawn = [link for link in links if link.dialer in boxes and link.listener in boxes]
    between: dict[frozenset[str], list[Link]] = {}
    for link in drawn:
        between.setdefault(frozenset({link.dialer, link.listener}), []).append(link)
    lines = []
    for link in drawn:
        beside = between[frozenset({link.dialer, link.listener})]
        lines.append(_line(link, boxes, beside.index(link), len(beside)))
    return tuple(lines)


def _line(link: Link, boxes: Mapping[str, Box], position: int, of: int) -> Line:
    start, end = boxes[link.dialer], boxes[link.listener]
    shift = (position - (of - 1) / 2) * PARALLEL
    if start.y == end.y:
        return _sideways(link, start, end, boxes, shift)
    # The line connects the facing edges: the lower edge of the upper box and the upper edge of the lower box.
    down = start.y < end.y
    lean = max(-1.0, min(1.0, (end.middle - start.middle) / 400))
    x1 = start.middle + shift + lean * start.width * 0.12
    x2 = end.middle + shift - lean * end.width * 0.32
    y1, y2 = (start.bottom, end.y) if down else (start.y, end.bottom)
    tip = y2 - 7 if down else y2 + 7
    # Parallel lines bend at different heights, so that they do not meet in the middle.
    turn = (position - (of - 1) / 2) * BEND * (1 if (x2 < x1) == down else -1)
    bend = (y1 + tip) / 2 + turn
    # The label is nearer to the dialer, where lines are apart; labels of parallel lines are at different heights.
    # Between adjacent bands it is near the middle; across another band, the boxes of that band would hide it there.
    at = (0.38 if abs(y2 - y1) < TIER_GAP + BOX_HEIGHT else 0.14) + (position - (of - 1) / 2) * (
        0.34 if of == 2 else 0.22
    )
    tag_x, tag_y = _on_curve((x1, y1), (x1, bend), (x2, bend), (x2, tip), at)
    return Line(
        link,
        f"M{x1:.1f} {y1:.1f}C{x1:.1f} {bend:.1f} {x2:.1f} {bend:.1f} {x2:.1f} {tip:.1f}",
        f"M{x2:.1f} {y2:.1f}l-5 {-9 if down else 9}h10z",
        link.channel,
        round(tag_x, 1),
        round(tag_y, 1),
        _tag_width(link),
    )


def _tag_width(link: Link) -> float:
    return round(len(link.channel) * TAG_LETTER + TAG_PADDING, 1)


def _sideways(link: Link, start: Box, end: Box, boxes: Mapping[str, Box], shift: float) -> Line:
    tag, width = link.channel, _tag_width(link)
    to_right = start.x < end.x
    gap = end.x - start.right if to_right else start.x - end.right
    left, right = min(start.right, end.right), max(start.x, end.x)
    between = any(each.y == start.y and left < each.middle < right for each in boxes.values())
    if gap > width + TAG_ROOM and not between:
        y = start.y + BOX_HEIGHT / 2 + shift
        x1, x2 = (start.right, end.x) if to_right else (start.x, end.right)
        tip = x2 - 7 if to_right else x2 + 7
        arrow = f"M{x2:.1f} {y:.1f}l{-9 if to_right else 9} -5v10z"
        return Line(link, f"M{x1:.1f} {y:.1f}H{tip:.1f}", arrow, tag, (x1 + x2) / 2, y, width)
    depth = ARC_DEPTH + shift
    x1, x2 = start.middle + 12, end.middle - 12 if to_right else end.middle + 12
    y = max(start.bottom, end.bottom)
    path = (
        f"M{x1:.1f} {start.bottom:.1f}C{x1:.1f} {y + depth:.1f} {x2:.1f} {y + depth:.1f} {x2:.1f} {end.bottom + 7:.1f}"
    )
    arrow = f"M{x2:.1f} {end.bottom:.1f}l-5 9h10z"
    return Line(link, path, arrow, tag, (x1 + x2) / 2, y + depth * 0.75, width)


def _on_curve(
    a: tuple[float, float], b: tuple[float, float], c: tuple[float, float], d: tuple[float, float], t: float
) -> tuple[float, float]:
    """The point at ``t`` of a cubic Bézier curve."""
    s = 1 - t
    factors = (s * s * s, 3 * s * s * t, 3 * s * t * t, t * t * t)
    points = (a, b, c, d)
    return (
        sum(factor * point[0] for factor, point in zip(factors, points, strict=True)),
        sum(factor * point[1] for factor, point in zip(factors, points, strict=True)),
    )
