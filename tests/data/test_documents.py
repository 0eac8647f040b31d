"""Text from the Python installation and from files; what is held out."""

import types

import numpy as np
import pytest

from jaxpar.data import documents, split
from jaxpar.errors import SettingError


def settings(**changes):
    defaults = {"kind": "text", "seq_len": 4, "path": "", "held_out_path": "", "held_out_fraction": 0.25}
    return types.SimpleNamespace(**{**defaults, "max_bytes": 10_000, **changes})


def test_python_documents_are_plentiful_real_and_always_the_same():
    docs = documents.python_documents()
    names = [document.name for document in docs]
    assert len(set(names)) == len(names)
    assert sum(len(document.text) for document in docs) > 3_000_000
    assert "textwrap.py" in names and any(name.startswith("topics/") for name in names)
    assert not any(part in name.split("/") for name in names for part in ("site-packages", "test", "encodings"))
    assert documents.python_documents() == docs


def test_no_topic_shares_a_long_paragraph_with_another_document():
    topics = [d for d in documents.python_documents() if d.name.startswith("topics/")]
    owner = {}
    for document in topics:
        for paragraph in document.text.decode().split("\n\n"):
            if len(paragraph.strip()) >= 200:
                assert owner.setdefault(paragraph.strip(), document.name) == document.name
    from pydoc_data.topics import topics as everything

    assert 10 < len(topics) < len(everything), "some topics are one document"
    assert sum(len(d.text) for d in topics) > 0.9 * sum(len(text.encode()) for text in everything.values())


def test_whole_documents_are_held_out_by_name_alone():
    docs = [documents.Document(f"file{i}", b"x" * i) for i in range(200)]
    docs = tuple(sorted(docs, key=lambda d: d.position))
    train, held_out = split.split(docs, 0.25)
    assert sorted(d.name for d in train + held_out) == sorted(d.name for d in docs)
    assert 30 < len(held_out) < 70
    fewer = tuple(d for d in docs if d.name != train[0].name)
    assert split.split(fewer, 0.25)[1] == held_out, "another document more or less moves none"
    assert all(split.split(docs[:2], fraction)[0] for fraction in (0.0001, 0.9999)), "neither side is empty"
    assert all(split.split(docs[:2], fraction)[1] for fraction in (0.0001, 0.9999))


def test_a_folder_is_split_by_files_and_a_lone_file_by_its_end(tmp_path):
    for name in "abcdefgh":
        (tmp_path / name).write_text(f"this is {name}. ")
    (tmp_path / ".hidden").write_text("never")
    corpus = split.load(settings(path=str(tmp_path)))
    both = corpus.train.tobytes() + corpus.held_out.tobytes()
    assert all(f"this is {name}. ".encode() in both for name in "abcdefgh") and b"never" not in both
    lone = split.load(settings(path=str(tmp_path / "a"), seq_len=2))
    assert (lone.train.tobytes(), lone.held_out.tobytes()) == (b"this is ", b"a. ")


def test_a_separate_held_out_file(tmp_path):
    (tmp_path / "a").write_text("train " * 5)
    (tmp_path / "b").write_text("judge " * 5)
    corpus = split.load(settings(path=str(tmp_path / "a"), held_out_path=str(tmp_path / "b")))
    assert corpus.train.tobytes() == b"train " * 5 and corpus.held_out.tobytes() == b"judge " * 5
    assert corpus.train.dtype == np.uint8


def test_training_text_is_capped_and_held_out_text_is_not(tmp_path):
    (tmp_path / "a").write_text("x" * 1000)
    corpus = split.load(settings(path=str(tmp_path / "a"), max_bytes=100))
    assert (len(corpus.train), len(corpus.held_out)) == (100, 250)


@pytest.mark.parametrize(
    ("content", "changes", "part"),
    [
        (None, {}, "does not exist"),
        ("", {}, "is empty"),
        (" \n ", {}, "is empty"),
        ("short", {"seq_len": 100}, "data.seq_len=100 is too long"),
        ("long enough", {"held_out_path": "/nowhere/at/all"}, "data.held_out_path=/nowhere/at/all does not exist"),
    ],
)
def test_files_that_cannot_serve(tmp_path, content, changes, part):
    path = tmp_path / "text"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SettingError, match="data\\.") as caught:
        split.load(settings(path=str(path), **changes))
    assert part in str(caught.value)


def test_a_folder_without_files_is_refused(tmp_path):
    with pytest.raises(SettingError, match="is empty"):
        split.load(settings(path=str(tmp_path)))
