"""The results as a table on the terminal."""

from rich.table import Table
from rich.text import Text

from experiments._app.terminal import human_bytes

_COLUMNS = ("CPU s", "/one", "/accum", "/GPipe", "wall s", "temp", "/GPipe", "text", "bubble", "peak")


def results_table(rows, title):
    """A rich Table of the rows that `measure` gives, one number of microbatches.

    Ratios stand right of what they divide: by one device (the whole batch), by one device that accumulates the same
    microbatches, by GPipe by autodiff.
    """
    table = Table(box=None, pad_edge=False, title=title, title_justify="left", title_style="bold")
    table.add_column("program", no_wrap=True)
    for name in _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        ours = row["name"] == "jaxpar"
        table.add_row(
            " ".join((row["name"], row["schedule"], row["vocabulary"])) if ours else row["name"],
            _seconds(row["cpu_s"]),
            *(_ratio(row[f"cpu_vs_{base}"]) for base in ("single", "single_accumulated", "autodiff")),
            _seconds(row["wall_s"]),
            human_bytes(row["temp_bytes"]),
            _ratio(row["temp_vs_autodiff"]),
            f"{row['program_bytes'] / 1000:,.0f} kB",
            *((f"{row['bubble']:.1%}", f"{row['peak_live']:g}") if ours else ("-", "-")),
            style="" if ours else "dim",
        )
    return table


def wall_table(rows, title):
    """A rich Table of the wall clock's rows: measured beside simulated."""
    table = Table(box=None, pad_edge=False, title=title, title_justify="left", title_style="bold")
    table.add_column("schedule", no_wrap=True)
    for name in ("threads", "measured s", "simulated s", "measured / simulated", "simulated bubble"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row["schedule"],
            str(row["threads"]),
            _seconds(row["wall_s"]),
            _seconds(row["simulated_s"]),
            _ratio(row["ratio"]),
            f"{row['bubble']:.1%}",
        )
    return table


def actions_line(actions, depth):
    """The action times of a stage of so many layers, as Text; the numbers are those of wall_child.action_times."""
    parts = [f"{kind} {1000 * seconds:.2f}" for kind, seconds in actions["action_s"].items()]
    return Text(
        f"one core  a stage of {depth} layers, ms an action: {', '.join(parts)}; "
        f"with {1000 * actions['idle_s']:.1f} a step they make {actions['explained']:.0%} of the whole step"
    )


def _seconds(value):
    return f"{value:.3f}"


def _ratio(value):
    return "-" if value is None else f"{value:.2f}"
