"""The results as a table on the terminal."""

from rich.table import Table
from rich.text import Text

from experiments._app.terminal import human_bytes


def results_table(rows, title):
    """A rich Table of the rows that `measure` gives, one number of microbatches."""
    table = Table(box=None, pad_edge=False, title=title, title_justify="left", title_style="bold")
    for name in ("program", "schedule", "vocab"):
        table.add_column(name, no_wrap=True)
    for name in ("CPU s", "wall s", "temp", "text"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("CPU / single", "CPU / autodiff", "temp / autodiff"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            *(row[key] or "-" for key in ("name", "schedule", "vocabulary")),
            _seconds(row["cpu_s"]),
            _seconds(row["wall_s"]),
            human_bytes(row["temp_bytes"]),
            f"{row['program_bytes'] / 1000:,.0f} kB",
            *(_ratio(row[key]) for key in ("cpu_vs_single", "cpu_vs_autodiff", "temp_vs_autodiff")),
            style="" if row["name"] == "jaxpar" else "dim",
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
