"""Bytes and byte-pair tokenizers: text goes round, and every token's bytes are counted."""

import builtins
import json

import numpy as np
import pytest

from jaxpar.data.tokenizer import END_OF_TEXT, byte_codec, load_codec, train_bpe
from jaxpar.errors import SettingError

TEXT = "the theme then thawed; there, these thin things.\n\tüber 数学 🎉 the the\n" * 5


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer") / "tok.json"
    path.write_text(train_bpe([TEXT], 280), encoding="utf-8")
    return path


def test_bytes_go_round():
    codec = byte_codec()
    assert codec.encode("aü") == [97, 195, 188] and codec.decode([97, 195, 188, 300, -1]) == "aü"
    assert codec.decode([97, 195]) == "a\N{REPLACEMENT CHARACTER}"
    ((ids, sizes),) = codec.encode_all([b"\xff\x00"])
    assert ids.tolist() == [255, 0] and sizes is None


def test_text_goes_round(path):
    codec = load_codec(path)
    assert codec.num_ids == 280 and codec.dtype == np.uint16
    for text in (TEXT, "a new text: ÿ, 数 and 🎈", "", " leading", f"with {END_OF_TEXT} inside"):
        ids = codec.encode(text)
        assert codec.decode(ids) == text
        assert 0 not in ids, "a special token's name in a text does not end the document"
        ((again, sizes),) = codec.encode_all([text.encode()])
        assert again.tolist() == ids and sizes is None
    assert len(codec.encode(TEXT)) < 0.6 * len(TEXT.encode())
    assert train_bpe([TEXT], 280) == path.read_text(encoding="utf-8"), "training depends on the text alone"


def test_bytes_of_tokens_add_up_to_the_text(path):
    codec = load_codec(path)
    texts = [TEXT.encode(), "a 数学é 🎈🎈 z".encode(), b"plain", b"bad \xff\xfe bytes", b""]
    for text, (ids, sizes) in zip(texts, codec.encode_all(texts, True), strict=True):
        assert len(ids) == len(sizes) and sizes.sum() == len(text.decode("utf-8", "replace").encode())
        assert (sizes >= 0).all()
    ids, sizes = codec.encode_all([b"the theme"], True)[0]
    assert [len(codec.decode([i])) for i in ids] == sizes.tolist()


def test_what_a_file_says_of_cutting_padding_and_special_tokens_is_not_done(path, tmp_path):
    changed = json.loads(path.read_text(encoding="utf-8"))
    changed["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    changed["padding"] = {
        "strategy": {"Fixed": 64},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": END_OF_TEXT,
    }
    changed["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": END_OF_TEXT, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {END_OF_TEXT: {"id": END_OF_TEXT, "ids": [0], "tokens": [END_OF_TEXT]}},
    }
    other = tmp_path / "tok.json"
    other.write_text(json.dumps(changed), encoding="utf-8")
    expected = load_codec(path).encode(TEXT)
    codec = load_codec(other)
    assert codec.encode(TEXT) == expected
    for measured in (False, True):
        found = [ids.tolist() for ids, _ in codec.encode_all([TEXT.encode(), b"x"], measured)]
        assert found == [expected, load_codec(path).encode("x")]


def test_files_that_are_no_tokenizer(tmp_path):
    (tmp_path / "tok.json").write_text('{"model": 3}')
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe")
    for name, part in (("nowhere.json", "cannot be read"), ("tok.json", "is not a"), ("binary.json", "is not a")):
        with pytest.raises(SettingError, match=f"data.tokenizer=.*{name} {part}"):
            load_codec(tmp_path / name)


def test_a_missing_library_is_named_with_its_extra(path, monkeypatch):
    real = builtins.__import__

    def fake(name, *args, **kwargs):
        if name.startswith("tokenizers"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", fake)
    with pytest.raises(SettingError, match=r"tok.json cannot be used: .* Run pip install 'jaxpar\[text\]'\."):
        load_codec(path)


def test_too_few_ids():
    with pytest.raises(SettingError, match="vocab_size=256 is under 257"):
        train_bpe([TEXT], 256)
