"""The tokenizing program: a tokenizer and token files from text, and one message for each fault."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from experiments import tokenize
from jaxpar.config import resolve
from jaxpar.data.corpus import load
from jaxpar.data.token_files import read_tokens
from jaxpar.data.tokenizer import load_codec

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def text(tmp_path):
    folder = tmp_path / "text"
    folder.mkdir()
    for n in range(12):
        (folder / f"{n}.txt").write_text("".join(f"{k} squared is {k * k}.\n" for k in range(n, 10 * n + 40)))
    return str(folder)


def run(*args):
    return tokenize.main(["tokenize", *args])


def test_from_text_to_a_corpus(text, tmp_path, capsys):
    tok, out = str(tmp_path / "tok.json"), str(tmp_path / "x.bin")
    assert run(f"--path={text}", "--vocab_size=320", f"--out={tok}") == 0
    assert f"train with data.tokenizer={tok} model.vocab_size=320 data.end_token=0" in capsys.readouterr().out
    assert run(f"--path={text}", f"--tokenizer={tok}", f"--out={out}", "--end_token=0") == 0
    assert f"data.kind=tokens data.path={out} model.vocab_size=320 data.end_token=0" in capsys.readouterr().out
    data = {"kind": "tokens", "path": out, "end_token": 0, "seq_len": 16}
    corpus = load(resolve({"data": data, "model": {"vocab_size": 320}}))
    assert len(corpus.train.starts) + len(corpus.held_out.starts) == 12
    codec = load_codec(tok)
    documents = np.split(corpus.train.ids, corpus.train.starts[1:])
    texts = {path.read_text() for path in pathlib.Path(text).iterdir()}
    assert all(codec.decode(document[:-1]) in texts and document[-1] == 0 for document in documents)


def test_formats_hold_the_same(text, tmp_path, capsys):
    plain, megatron = str(tmp_path / "a.bin"), str(tmp_path / "b.bin")
    assert run(f"--path={text}", f"--out={plain}", "--end_token=256") == 0
    assert run(f"--path={text}", f"--out={megatron}", "--end_token=256", "--format=megatron") == 0
    assert "data.end_token" not in capsys.readouterr().out.splitlines()[-1], "the index knows where documents end"
    a, b = read_tokens(plain, num_ids=257, end_token=256), read_tokens(megatron, num_ids=257)
    np.testing.assert_array_equal(a.ids, b.ids)
    np.testing.assert_array_equal(a.starts, b.starts)
    assert sum(len(path.read_bytes()) + 1 for path in pathlib.Path(text).iterdir()) == len(a)


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        (["--path=", "--out=x.bin"], "path= names no file"),
        (["--path=/nowhere", "--out=x.bin"], "path=/nowhere does not exist"),
        (["--path=/dev/null", "--out=x.bin"], "path=/dev/null is empty"),
        (["--out=x"], "out=x names no kind of file"),
        (["--out=nowhere/x.bin"], "nowhere is not a folder"),
        (["--out=x.json"], "vocab_size=0 is under 257"),
        (["--out=x.json", "--vocab_size=300", "--end_token=0"], "end_token=0 would not be read"),
        (["--out=x.bin", "--vocab_size=300"], "vocab_size=300 would not be read"),
        (["--out=x.bin", "--end_token=-2"], "end_token=-2 is under -1"),
        (["--out=x.bin", "--end_token=65536"], "format=nanogpt cannot hold 65537 ids"),
        (["--out=x.bin", "--format=parquet"], "should be one of <nanogpt|megatron>"),
        (["--out=x.bin", "--tokenizer=nowhere.json"], "tokenizer=nowhere.json cannot be read"),
        (["--out=x.bin", "--end_tokn=1"], "end_tokn"),
        (["--out=x.bin", "--undefok=foo", "--foo=1"], "--undefok is not a flag"),
        (["--out=x.bin", "stray"], "stray is not a flag"),
    ],
)
def test_bad_flags_end_with_one_message_and_status_2(text, tmp_path, capsys, monkeypatch, flags, part):
    monkeypatch.chdir(tmp_path)
    assert run(f"--path={text}", *flags) == 2
    out, err = capsys.readouterr()
    assert part in err and err.count("\n") == 1 and out == ""
    assert os.listdir(tmp_path) == ["text"]


def test_a_full_disk_ends_with_one_message_and_status_1(text, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    assert run(f"--path={text}", f"--out={tmp_path}/x.bin") == 1
    assert capsys.readouterr().err == f"out={tmp_path}/x.bin could not be written: No space left on device.\n"
    assert os.listdir(tmp_path) == ["text"]


def test_as_a_program_without_jax(text, tmp_path):
    code = "import sys, runpy; sys.argv = ['x', '--help']\ntry: runpy.run_module('experiments.tokenize', run_name='__main__')\nfinally: assert 'jax' not in sys.modules and 'grain' not in sys.modules"  # noqa: E501
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "--end_token" in done.stdout and "python -m experiments.tokenize --path=TEXT" in done.stdout
