"""Every kind of data as a Corpus, and what is refused before anything compiles."""

import dataclasses

import numpy as np
import pytest

from jaxpar.config import resolve
from jaxpar.data.corpus import load
from jaxpar.data.token_files import write_megatron, write_nanogpt
from jaxpar.data.tokenizer import train_bpe
from jaxpar.errors import SettingError


def config(vocab_size=256, seed=0, **data):
    return resolve({"data": {"kind": "text", "seq_len": 4, **data}, "model": {"vocab_size": vocab_size}, "seed": seed})


def test_the_texts_of_python():
    corpus = load(resolve({"data": {"kind": "python_docs"}}))
    assert len(corpus.train) == 4_000_000 and corpus.train.ids.dtype == np.uint8
    assert 200_000 < len(corpus.held_out) < 4_000_000 and len(corpus.held_out.starts) > 20
    assert corpus.bytes_per_token == 1.0 and corpus.decode(corpus.encode("def ü")) == "def ü"
    assert "documents to train on" in corpus.about


def test_a_folder_is_split_by_files_and_a_lone_file_by_its_end(tmp_path):
    for name in "abcdefgh":
        (tmp_path / name).write_text(f"this is {name}. ")
    corpus = load(config(path=str(tmp_path)))
    both = corpus.train.ids.tobytes() + corpus.held_out.ids.tobytes()
    assert all(f"this is {name}. ".encode() in both for name in "abcdefgh")
    assert len(corpus.train.starts) + len(corpus.held_out.starts) == 8
    lone = load(config(path=str(tmp_path / "a"), seq_len=2, held_out_fraction=0.25))
    assert (lone.train.ids.tobytes(), lone.held_out.ids.tobytes()) == (b"this is ", b"a. ")


def test_a_separate_held_out_file(tmp_path):
    (tmp_path / "a").write_text("train " * 5)
    (tmp_path / "b").write_text("judge " * 5)
    corpus = load(config(path=str(tmp_path / "a"), held_out_path=str(tmp_path / "b")))
    assert corpus.train.ids.tobytes() == b"train " * 5 and corpus.held_out.ids.tobytes() == b"judge " * 5


def test_training_text_is_capped_and_held_out_text_only_where_there_is_plenty(tmp_path):
    (tmp_path / "a").write_text("x" * 1000)
    path = str(tmp_path / "a")
    corpus = load(config(path=path, max_bytes=100, held_out_fraction=0.25))
    assert (len(corpus.train), len(corpus.held_out)) == (100, 250)
    corpus = load(config(path=path, max_bytes=100, max_held_out_bytes=120, held_out_fraction=0.25))
    assert (len(corpus.train), len(corpus.held_out)) == (100, 120)


def test_a_tokenizer(tmp_path):
    text = "the theme then thawed; there, these thin things. " * 20
    for name in "abcdef":
        (tmp_path / name).write_text(text)
    tok = tmp_path / "tok" / "tok.json"
    tok.parent.mkdir()
    tok.write_text(train_bpe([text], 270))
    (tmp_path / "tok" / "text").write_text(text)
    made = load(config(270, path=str(tmp_path / "a"), tokenizer=str(tok), end_token=0))
    assert made.train.ids.max() < 270 and made.train.ids[-1] == made.held_out.ids[-1] == 0
    assert made.decode(made.train.ids[:-1]) + made.decode(made.held_out.ids[:-1]) == text
    assert 1.5 < made.bytes_per_token < 8
    with pytest.raises(SettingError, match="model.vocab_size=269 is under 270: data.tokenizer=.* Use 270 or more."):
        load(config(269, path=str(tmp_path / "a"), tokenizer=str(tok)))


@pytest.mark.parametrize("kind", ["nanogpt", "megatron"])
def test_token_files(tmp_path, kind):
    path, other = str(tmp_path / "x.bin"), str(tmp_path / "y.bin")
    documents = [[n] * 9 + [0] for n in range(1, 21)]
    for name in (path, other):
        write_megatron(name, documents, num_ids=50) if kind == "megatron" else write_nanogpt(name, documents)
    end = {"end_token": 0} if kind == "nanogpt" else {}
    corpus = load(config(50, kind="tokens", path=path, **end))
    assert (len(corpus.train.starts), len(corpus.held_out.starts)) == (18, 2)
    assert corpus.held_out.ids.tolist() == [19] * 9 + [0] + [20] * 9 + [0]
    assert isinstance(corpus.held_out.ids, np.memmap)
    assert corpus.bytes_per_token is None and corpus.encode is None and corpus.decode is None
    both = load(config(50, kind="tokens", path=path, held_out_path=other, **end))
    assert len(both.train) == len(both.held_out) == 200
    assert both.held_out.source == f"data.held_out_path={other}"


def test_synthetic_tokens_are_made_from_the_seed():
    first, again, other = (load(config(1000, seed=seed, kind="synthetic", seq_len=64)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.train.ids, again.train.ids)
    np.testing.assert_array_equal(first.train.starts, again.train.starts)
    assert not np.array_equal(first.train.ids, other.train.ids)
    assert not np.array_equal(first.train.ids, first.held_out.ids)
    counts = np.bincount(first.train.ids, minlength=1000)
    assert counts.min() > 0 and counts[0] > 5 * counts[9] > 25 * counts[99]
    assert len(first.train.starts) > 100 and first.bytes_per_token is None
    assert load(config(1, kind="synthetic")).train.ids.max() == 0
    assert len(load(config(kind="synthetic", seq_len=2**18)).train) == 2**21 + 1


@pytest.mark.parametrize(
    ("content", "changes", "part"),
    [
        (None, {}, "does not exist"),
        ("", {}, "is empty"),
        (" \n ", {}, "is empty"),
        ("short", {"seq_len": 100}, "data.seq_len=100 is too long: there are 4 bytes of training text"),
        ("long enough", {"held_out_path": "/nowhere/at/all"}, "data.held_out_path=/nowhere/at/all does not exist"),
        ("long enough", {"held_out_path": "/dev/null"}, "data.held_out_path=/dev/null is empty"),
        ("odd", {"kind": "tokens"}, "is truncated: it has 3 bytes"),
        ("even", {"kind": "tokens"}, "has id 30309 at token 0"),
        ("\0\1" * 9, {"kind": "tokens", "end_token": 2}, "has id 256"),
        ("\1\0" * 9, {"kind": "tokens", "end_token": 2}, "data.end_token=2 is not in"),
        ("\1\0" * 9, {"kind": "tokens", "held_out_fraction": 0.3}, "3 tokens of held-out text, and a row takes 5"),
        ("text" * 9, {"tokenizer": "/nowhere/tok.json"}, "data.tokenizer=/nowhere/tok.json cannot be read"),
    ],
)
def test_files_that_cannot_serve(tmp_path, content, changes, part):
    path = tmp_path / "text"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SettingError, match="data\\.") as caught:
        load(config(path=str(path), **changes))
    assert part in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("data", "part"),
    [
        ({"kind": "python_docs", "path": "x"}, "data.path=x would not be read: data.kind=python_docs"),
        ({"kind": "synthetic", "held_out_path": "x"}, "Set data.kind=text or tokens"),
        ({"kind": "tokens"}, "data.path='' names no file: data.kind=tokens reads a .bin file"),
        ({"kind": "tokens", "path": "x", "tokenizer": "t"}, "data.tokenizer=t would not be read"),
        ({"kind": "synthetic", "end_token": 3}, "data.end_token=3 would not be read"),
        ({"end_token": 256, "path": "x"}, "data.end_token=256 is not under model.vocab_size=256"),
        ({"end_token": -2, "path": "x"}, "data.end_token=-2 is under -1"),
        ({"prefetch": -1, "path": "x"}, "data.prefetch=-1 is negative"),
    ],
)
def test_settings_that_do_not_go_together(data, part):
    with pytest.raises(SettingError) as caught:
        config(**data)
    assert part in str(caught.value)


def test_bytes_need_256_ids_and_others_do_not():
    with pytest.raises(SettingError, match="model.vocab_size=255 is under 256: data.kind=text has bytes as tokens"):
        config(255, path="x")
    assert config(8, kind="synthetic").model.vocab_size == config(8, path="x", tokenizer="t").model.vocab_size == 8


def test_more_rows_than_the_shuffle_numbers(tmp_path):
    with open(tmp_path / "x.bin", "wb") as file:
        file.truncate(2**34)
    made = config(kind="tokens", path=str(tmp_path / "x.bin"), seq_len=1)
    with pytest.raises(SettingError, match="data.seq_len=1 is too short"):
        load(made)
    assert len(load(dataclasses.replace(made, data=dataclasses.replace(made.data, seq_len=4))).train) > 2**32
