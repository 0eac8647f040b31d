"""The README is true: its snippet runs as printed, its drawing and figures are the code's, its map is the tree."""

import ast
import os
import pathlib
import re
import subprocess
import sys

from jaxpar.schedule import build

ROOT = pathlib.Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def _blocks(kind):
    return re.findall(rf"```{kind}\n(.*?)```", README, re.S)


def test_the_snippet_runs_as_printed():
    (snippet,) = _blocks("python")
    env = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    run = subprocess.run(
        [sys.executable, "-c", snippet], capture_output=True, text=True, env=env, timeout=300, cwd=ROOT
    )
    assert run.returncode == 0, run.stderr
    assert re.match(r"\d+\.\d+ ", run.stdout)


def test_the_drawing_is_the_codes():
    assert "\n".join(build("1f1b", 4, 8).render().splitlines()[1:6]) in README


def test_the_table_is_the_simulators():
    rows = re.findall(r"^\| `(\w+)`.*?\| ([\d.]+) \| (\d+) % \| ([\d.]+) \|$", README, re.M)
    assert len(rows) == 8
    for name, makespan, bubble, peak in rows:
        chunks = 1 if name in ("naive", "gpipe", "1f1b", "zb_h1") else 2
        timeline = build(name, 4, 8, chunks).simulate()
        assert timeline.makespan == float(makespan)
        assert round(100 * timeline.bubble) == int(bubble)
        assert max(timeline.peak_live) == float(peak)


def _rooms():
    """Rooms of jaxpar in the order of the README's map."""
    return re.findall(r"^jaxpar/(\w+)(?:\.py|/) ", README, re.M)


def test_the_map_is_the_tree():
    found = {
        path.stem for path in (ROOT / "jaxpar").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert set(_rooms()) == found - {"__init__"}


def test_files_import_only_from_rooms_above():
    order = {room: number for number, room in enumerate(_rooms())}
    wrong = []
    for path in (ROOT / "jaxpar").rglob("*.py"):
        room = path.relative_to(ROOT / "jaxpar").parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                other = name.split(".")[1] if name.startswith("jaxpar.") else room
                if name.startswith("experiments") or order.get(other, -1) > order.get(room, -1):
                    wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong, wrong


def test_two_commands_come_first():
    commands = [line for block in _blocks("sh") for line in block.splitlines() if line]
    assert commands[:2] == [
        "pip install -e . && python -m experiments.train --config=configs/quickstart.py",
        "pip install -e '.[test]' && python -m pytest",
    ]
