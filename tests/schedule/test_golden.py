"""One whole table for each family with ticks of its own making: what a change of the builder changes is seen here."""

import pytest

from jaxpar.schedule import build

# Columns are ticks, "." is idle.
TABLES = {
    ("looped_bfs", 2, 3, 2): [
        "0F0 0F1 0F2 2F0 2F1 2F2  .   .  2B0 2B1 2B2 0B0 0B1 0B2",
        " .  1F0 1F1 1F2 3F0 3F1 3F2 3B0 3B1 3B2 1B0 1B1 1B2  . ",
    ],
    ("eager_1f1b", 3, 4, 1): [
        "0F0 0F1 0F2 0F3  .  0B0  .  0B1  .  0B2  .  0B3",
        " .  1F0 1F1 1F2 1B0 1F3 1B1  .  1B2  .  1B3  . ",
        " .   .  2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3  .   . ",
    ],
    ("fused_1f1b", 2, 3, 2): [
        "0F0 0F1 0F2 2F0 2F1 2F2;2B0 2B1     2B2     0B0 0B1 0B2",
        " .  1F0 1F1 1F2 3F0;3B0 3F1;3B1 3F2;3B2 1B0 1B1 1B2  . ",
    ],
    ("fused_zb", 2, 2, 2): [
        "0F0 0F1 2F0 2F1     2I0;2W0 2I1;2W1 0I0;0W0 0I1;0W1  . ",
        " .  1F0 1F1 3F0;3I0 3F1;3I1 1I0;3W0 1I1;3W1 1W0     1W1",
    ],
    ("zb_h1", 3, 4, 1): [
        "0F0 0F1 0F2  .   .  0I0 0W0 0F3 0I1 0W1 0I2 0W2 0I3 0W3",
        " .  1F0 1F1  .  1I0 1F2 1I1 1W0 1F3 1I2 1W1 1I3 1W2 1W3",
        " .   .  2F0 2I0 2F1 2I1 2F2 2I2 2W0 2F3 2I3 2W1 2W2 2W3",
    ],
    ("zb_h2", 3, 5, 1): [
        "0F0 0F1 0F2 0F3 0F4 0I0 0W0 0I1 0W1 0I2 0W2 0I3 0W3 0I4 0W4  .   . ",
        " .  1F0 1F1 1F2 1I0 1F3 1I1 1F4 1I2 1W0 1I3 1W1 1I4 1W2 1W3 1W4  . ",
        " .   .  2F0 2I0 2F1 2I1 2F2 2I2 2F3 2I3 2F4 2I4 2W0 2W1 2W2 2W3 2W4",
    ],
    ("interleaved_zb", 2, 2, 2): [
        "0F0 0F1 2F0 2F1  .  2I0 2W0 2I1 2W1 0I0 0W0 0I1 0W1",
        " .  1F0 1F1 3F0 3I0 3F1 3I1 3W0 1I0 1W0 1I1 1W1 3W1",
    ],
    ("zb_v", 2, 3, 2): [
        "0F0 0F1  .  3F0 3I0 0F2 3W0 3F1 3I1 0I0 0W0 3F2 3I2 3W1 0I1 0W1 3W2 0I2 0W2",
        " .  1F0 2F0 1F1 2F1 2I0 1I0 1W0 1F2 2W0 2F2 2I1 1I1 1W1 2I2 2W1 1I2 1W2 2W2",
    ],
    ("v_half", 3, 3, 2): [
        "0F0 0F1  .   .   .  5F0 5I0 0F2 5W0 5F1 5I1 5W1  .  0I0 5F2 5I2 0I1 0W0 0W1 5W2 0I2 0W2",
        " .  1F0 1F1  .  4F0  .   .  4I0 4F1 1F2 4W0 4I1 1I0 4F2 1W0 1I1 4I2 1W1 4W1 1I2 1W2 4W2",
        " .   .  2F0 3F0 2F1 3F1  .   .  3I0 3W0 2F2 2I0 3F2 3I1 2I1 2W0 2W1 3I2 2I2 2W2 3W1 3W2",
    ],
    ("v_min", 3, 3, 2): [
        "0F0 0F1  .   .   .  5F0 5I0 0F2 5W0 5F1 5I1 0I0 0W0 5W1  .  5F2 5I2 0I1 0W1 5W2  .  0I2 0W2",
        " .  1F0  .   .  4F0 1F1  .  4I0 4F1 4W0 1I0 1F2 4I1 1W0 4F2 4W1 1I1 4I2 1W1 4W2 1I2 1W2  . ",
        " .   .  2F0 3F0  .   .  2F1 3F1 3I0 2I0 2W0 3W0 2F2 3F2 3I1 2I1 2W1 3W1 3I2 2I2 2W2 3W2  . ",
    ],
    ("dualpipe_v", 2, 4, 2): [
        "0F0 0F1 0F2 3F0 3I0 3W0 3F1 0F3;3B1 3F2;0B0 3B2 3F3;0B1 3B3 0I2 0W2 0I3 0W3",
        " .  1F0 2F0 1F1 2F1 1F2 2B0 2F2;1B0 1F3;2B1 2F3;1B1 2B2 1B2 2I3 1I3 2W3 1W3",
    ],
}


@pytest.mark.parametrize("sizes", TABLES, ids=lambda sizes: "-".join(map(str, sizes)))
def test_whole_tables(sizes):
    schedule = build(*sizes)
    rows = [
        " ".join(";".join(map(str, row[rank])) or "." for row in schedule.ticks) for rank in range(schedule.num_ranks)
    ]
    assert rows == [" ".join(row.split()) for row in TABLES[sizes]]
