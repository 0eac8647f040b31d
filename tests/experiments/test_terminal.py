"""What the user reads, as plain text."""

import io

import pytest

from experiments._app import terminal
from jaxpar.config import base_config, fit, resolve
from jaxpar.pipeline import Layout
from jaxpar.schedule import build


@pytest.fixture
def console():
    return terminal.make_console(io.StringIO())


def test_bytes_as_people_say_them():
    sizes = [None, 0, 1023, 1536, 5 * 2**20, 2**40]
    assert [terminal.human_bytes(n) for n in sizes] == ["unknown", "0 B", "1023 B", "1.5 KiB", "5.0 MiB", "1024.0 GiB"]


def test_the_layout_names_every_stage_and_layer(console):
    tree = base_config()
    tree.mesh.pipe, tree.emulate_devices = 2, 2
    config = fit(resolve(tree), 2)
    terminal.show_layout(console, config, Layout(2, 2, "loop", (1, 2, 2, 1)), "cpu", [(30, 120), (30, 1200)])
    out = console.file.getvalue()
    assert "data 1 x pipe 2 x tensor 1 = 2 devices (cpu, emulated)" in out
    assert "0: 0, 2: 3-4" in out and "1: 1-2, 3: 5" in out
    assert "1.2 KiB" in out and "allocates what the largest needs" in out


def test_a_long_schedule_is_cut(console):
    terminal.show_schedule(console, build("gpipe", 16, 64), 0.25, 0.5)
    out = console.file.getvalue()
    assert "gpipe: 16 ranks" in out and "schedule.svg" in out and "25.0% simulated" in out
    assert len(out.splitlines()) < 40 and max(map(len, out.splitlines())) <= 110


def test_a_log_has_a_line_now_and_then_and_the_last_step(console):
    reporter = terminal.Reporter(console, 1000)
    with reporter.running():
        for step in range(1, 1001):
            reporter.step(step, 0.6931471805599453, 5000.0)
        reporter.held_out(1000, 0.6931471805599453)
    out = console.file.getvalue().splitlines()
    assert len(out) == 3 and "\x1b" not in "".join(out)
    assert out[-2].startswith("step   1000 / 1000  loss 1.000 bits/byte  5,000 tokens/s  0:00 left")
    assert "held out 1.000 bits/byte" in out[-1]


def test_results_name_the_files_and_an_interruption(console):
    report = {"interrupted": True, "step": 7, "num_skipped": 1, "held_out_loss": None, "sample": "a [bold] b"}
    report |= {"order2_bits_per_byte": 2.6, "saved_step": 7}
    terminal.show_results(console, report, "runs/x", ["a.json"])
    out = console.file.getvalue()
    assert (
        "interrupted after step 7" in out
        and "saved     step 7" in out
        and "skipped   1 batch" in out
        and "runs/x/a.json" in out
    )
    assert "| a [bold] b" in out, "a sample is text, not markup"
