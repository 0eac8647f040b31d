"""Golden drawings of every schedule; a reader can check them by eye."""

import xml.etree.ElementTree as ET

import pytest

from jaxpar.schedule import Costs, build, from_csv, render_svg
from jaxpar.schedule.svg import COLOURS, shade
from tests.schedule.common import DATA, reference_files

DRAWINGS = {
    "naive": (
        lambda: build("naive", 3, 2).render(),
        """
naive: 3 ranks, 3 stages, 2 microbatches, 12 ticks
tick   0  1  2  3  4  5  6  7  8  9  10 11
rank 0 F0 .  .  .  .  B0 F1 .  .  .  .  B1
rank 1 .  F0 .  .  B0 .  .  F1 .  .  B1 .
rank 2 .  .  F0 B0 .  .  .  .  F1 B1 .  .
(F forward, B full backward; then the microbatch)""",
    ),
    "gpipe": (
        lambda: build("gpipe", 3, 4).render(),
        """
gpipe: 3 ranks, 3 stages, 4 microbatches, 12 ticks
tick   0  1  2  3  4  5  6  7  8  9  10 11
rank 0 F0 F1 F2 F3 .  .  .  .  B0 B1 B2 B3
rank 1 .  F0 F1 F2 F3 .  .  B0 B1 B2 B3 .
rank 2 .  .  F0 F1 F2 F3 B0 B1 B2 B3 .  .
(F forward, B full backward; then the microbatch)""",
    ),
    "1f1b": (
        lambda: build("1f1b", 4, 6).render(),
        """
1f1b: 4 ranks, 4 stages, 6 microbatches, 18 ticks
tick   0  1  2  3  4  5  6  7  8  9  10 11 12 13 14 15 16 17
rank 0 F0 F1 F2 F3 .  .  .  B0 F4 B1 F5 B2 .  B3 .  B4 .  B5
rank 1 .  F0 F1 F2 .  .  B0 F3 B1 F4 B2 F5 B3 .  B4 .  B5 .
rank 2 .  .  F0 F1 .  B0 F2 B1 F3 B2 F4 B3 F5 B4 .  B5 .  .
rank 3 .  .  .  F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 .  .  .
(F forward, B full backward; then the microbatch)""",
    ),
    "1f1b with its vocabulary on the ends": (
        lambda: build("1f1b", 3, 4).with_vocabulary("ends").render(),
        """
1f1b: 3 ranks, 3 stages, 4 microbatches, 12 ticks
tick   0   1   2   3   4   5   6   7   8   9   10  11
rank 0 EF0 EF1 EF2 .   .   BG0 EF3 BG1 .   BG2 .   BG3
rank 1 .   F0  F1  .   B0  F2  B1  F3  B2  .   B3  .
rank 2 .   .   FH0 B0  FH1 B1  FH2 B2  FH3 B3  .   .
(E embedding, F forward, H head and loss, B full backward, G embedding's gradient; then the microbatch)""",
    ),
    "1f1b with its vocabulary everywhere": (
        lambda: build("1f1b", 2, 3).with_vocabulary("pipe", head_lag=1).render(),
        """
1f1b: 2 ranks, 2 stages, 3 microbatches, 8 ticks
tick   0      1      2      3      4      5      6      7
rank 0 EF0    EF1    H0     BG0    EF2+H1 BG1    H2     BG2
rank 1 E0     E1+F0  HB0    F1+G0  E2+HB1 F2+G1  HB2    G2
(E embedding, F forward, H head and loss, B full backward, G embedding's gradient; then the microbatch)""",
    ),
    "interleaved 1f1b": (
        lambda: build("interleaved_1f1b", 2, 4, 2).render(),
        """
interleaved_1f1b: 2 ranks, 4 stages, 4 microbatches, 18 ticks
tick   0   1   2   3   4   5   6   7   8   9   10  11  12  13  14  15  16  17
rank 0 F0a F1a F0b F1b F2a B0b F3a B1b F2b B0a F3b B1a .   B2b .   B3b B2a B3a
rank 1 .   F0a F1a F0b B0b F1b B1b F2a B0a F3a B1a F2b B2b F3b B3b B2a B3a .
(F forward, B full backward; then the microbatch, then the chunk)""",
    ),
    "interleaved 1f1b in bands": (
        lambda: build("interleaved_1f1b", 2, 3, 2).render(width=60),
        """
interleaved_1f1b: 2 ranks, 4 stages, 3 microbatches, 14 ticks
tick   0   1   2   3   4   5   6   7   8   9   10  11  12
rank 0 F0a F1a F2a F0b F1b F2b B0b .   B1b .   B2b B0a B1a
rank 1 .   F0a F1a F2a F0b B0b F1b B1b F2b B2b B0a B1a B2a
tick   13
rank 0 B2a
rank 1 .
(F forward, B full backward; then the microbatch, then the chunk)""",
    ),
    "zero bubble": (
        lambda: from_csv(DATA / "torch_InterleavedZeroBubble_P2_V1_M4.csv", name="zero bubble").render(),
        """
zero bubble: 2 ranks, 2 stages, 4 microbatches, 13 ticks
tick   0  1  2  3  4  5  6  7  8  9  10 11 12
rank 0 F0 .  F1 I0 W0 F2 I1 W1 F3 I2 W2 I3 W3
rank 1 .  F0 I0 F1 I1 W0 F2 I2 W1 F3 I3 W2 W3
(F forward, I input gradient, W weight gradient; then the microbatch)""",
    ),
    "fused v": (
        lambda: from_csv(DATA / "lock_FB-v_P2_V2_M4.csv", name="fused v").render(),
        """
fused v: 2 ranks, 4 stages, 4 microbatches, 13 ticks
tick   0       1       2       3       4       5       6       7       8       9       10      11      12
rank 0 F0a     .       F1a     FB0b    F2a     FB1b    F3a+B0a FB2b    B1a     FB3b    B2a     .       B3a
rank 1 .       F0a     F0b     F1a     F1b+B0b F2a+B0a F2b+B1b F3a+B1a F3b+B2b B2a     B3b     B3a     .
(F forward, B full backward; then the microbatch, then the chunk)""",
    ),
    "1f1b to scale": (
        lambda: build("1f1b", 3, 3).simulate().render(),
        """
1f1b, simulated (free, gradient sent after I): makespan 13, bubble 30.8%, one column = 1
time   0  1  2  3  4  5  6  7  8  9  10 11 12
rank 0 F0 F1 F2 .  .  B0--- .  B1--- .  B2---
rank 1 .  F0 F1 .  B0--- F2 B1--- .  B2--- .
rank 2 .  .  F0 B0--- F1 B1--- F2 B2--- .  .
(F forward, B full backward; then the microbatch)""",
    ),
    "1f1b to scale, gradient after B": (
        lambda: build("1f1b", 3, 3).simulate(send="after_B").render(),
        """
1f1b, simulated (free, gradient sent after B): makespan 15, bubble 40.0%, one column = 1
time   0  1  2  3  4  5  6  7  8  9  10 11 12 13 14
rank 0 F0 F1 F2 .  .  .  .  B0--- .  B1--- .  B2---
rank 1 .  F0 F1 .  .  B0--- F2 B1--- .  B2--- .  .
rank 2 .  .  F0 B0--- F1 B1--- F2 B2--- .  .  .  .
(F forward, B full backward; then the microbatch)""",
    ),
    "gpipe in lockstep": (
        lambda: build("gpipe", 2, 2).simulate(Costs(F=1, I=1.5, W=0.5), mode="lockstep").render(unit=0.5),
        """
gpipe, simulated (lockstep, gradient sent after I): makespan 8.5, bubble 29.4%, one column = 0.5
time   0  1  2  3  4  5  6  7  8  9  10 11 12 13 14 15 16
rank 0 F0--- F1--- .  .  .  .  .  B0--------- B1---------
rank 1 .  .  F0--- F1--- B0--------- B1--------- .  .  .
(F forward, B full backward; then the microbatch)""",
    ),
}


@pytest.mark.parametrize("name", DRAWINGS)
def test_drawings(name):
    draw, golden = DRAWINGS[name]
    assert draw() == golden.strip("\n")


@pytest.mark.parametrize("width", [40, 79, 120])
def test_bands_fit_the_width_and_lose_nothing(width):
    schedule = build("interleaved_1f1b", 4, 12, 2).with_vocabulary("ends")
    for drawn in (schedule.render(width=width), schedule.simulate().render(width=width)):
        body = drawn.splitlines()[1:-1]
        assert max(map(len, body)) <= width
    whole, banded = schedule.render().splitlines(), schedule.render(width=width).splitlines()
    for rank in range(4):
        cells = [line.split()[2:] for line in banded if line.startswith(f"rank {rank}")]
        assert sum(cells, []) == whole[2 + rank].split()[2:]


def test_every_reference_can_be_drawn():
    for path in reference_files():
        schedule = from_csv(path).with_vocabulary("pipe")
        for drawn in (schedule.render(), schedule.simulate().render()):
            assert sum(line.startswith("rank ") for line in drawn.splitlines()) == schedule.num_ranks


@pytest.mark.parametrize("vocabulary", [None, "ends", "pipe"])
@pytest.mark.parametrize(("name", "num_chunks"), [("1f1b", 1), ("interleaved_1f1b", 3)])
def test_svg_has_a_bar_for_every_event(name, num_chunks, vocabulary):
    timeline = build(name, 4, 8, num_chunks).with_vocabulary(vocabulary).simulate(Costs(H=2, E=0.5, G=0.5))
    root = ET.fromstring(render_svg(timeline))
    space = "{http://www.w3.org/2000/svg}"
    bars = [rect for rect in root.iter(f"{space}rect") if rect.find(f"{space}title") is not None]
    drawn = sorted(bar.find(f"{space}title").text.split(":")[0] for bar in bars)
    assert drawn == sorted(str(event.action) for event in timeline.events)
    fills = {event.action.kind for event in timeline.events}
    assert {COLOURS[kind] for kind in fills} <= {bar.get("fill") for bar in bars}
    texts = [text.text for text in root.iter(f"{space}text")]
    assert any("simulated" in text and "bubble" in text for text in texts)
    assert {f"rank {rank}" for rank in range(4)} <= set(texts)
    assert all(any(text.startswith(f"{kind}: ") for text in texts) for kind in fills)
    width = float(root.get("width"))
    assert all(float(bar.get("x")) + float(bar.get("width")) <= width for bar in bars)
    assert "http" not in render_svg(timeline).replace("http://www.w3.org/2000/svg", "")


def test_colours_stay_apart():
    shades = {shade(colour, chunk, 2) for kind, colour in COLOURS.items() for chunk in range(2)}
    assert len(shades) == 2 * len(COLOURS)
    assert shade("#0072b2", 0, 1) == "#0072b2"


def test_an_empty_timeline_draws():
    timeline = build("1f1b", 2, 2).simulate(Costs(F=0, I=0, W=0))
    assert timeline.makespan == 0 and timeline.bubble == 0
    ET.fromstring(render_svg(timeline))
    timeline.render()
