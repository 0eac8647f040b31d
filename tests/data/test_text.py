"""Documents to tokens: end tokens, caps, and the bytes that an evaluation counts."""

import numpy as np
import pytest

from jaxpar.data.documents import Document
from jaxpar.data.rows import held_out_batches
from jaxpar.data.text import bytes_per_token, start_and_end, text_tokens
from jaxpar.data.tokenizer import byte_codec, load_codec, train_bpe

DOCUMENTS = [Document("a", b"first one"), Document("blank", b" \n"), Document("c", b"2nd"), Document("d", b"the third")]


def test_documents_follow_each_other():
    tokens, sizes = text_tokens(DOCUMENTS, byte_codec())
    assert tokens.ids.tobytes() == b"first one2ndthe third" and tokens.ids.dtype == np.uint8
    assert tokens.starts.tolist() == [0, 9, 12] and sizes is None
    assert len(text_tokens([], byte_codec())[0]) == 0


@pytest.mark.parametrize(("end", "dtype", "width"), [(10, np.uint8, 1), (256, np.uint16, 0), (70_000, np.uint32, 0)])
def test_end_tokens_come_after_every_document(end, dtype, width):
    tokens, sizes = text_tokens(DOCUMENTS, byte_codec(), end_token=end, measured=True)
    assert tokens.starts.tolist() == [0, 10, 14] and tokens.ids.dtype == dtype
    assert np.flatnonzero(tokens.ids == end).tolist() == [9, 13, 23]
    assert sizes[[9, 13, 23]].tolist() == [width] * 3 and sizes.sum() == 21 + 3 * width


@pytest.mark.parametrize("cap", [1, 9, 10, 13, 14, 1000])
def test_text_stops_at_the_cap(cap):
    tokens, _ = text_tokens(DOCUMENTS, byte_codec(), max_bytes=cap)
    read = b"".join(d.text for d in DOCUMENTS)[:cap].replace(b" \n", b"").rstrip()
    assert tokens.ids.tobytes() == read


def test_the_mean_is_of_the_tokens_that_an_evaluation_counts(tmp_path):
    """Against decoding every counted label by itself."""
    text = "the theme then thawed; there, these thin things. " * 20
    (tmp_path / "tok.json").write_text(train_bpe([text], 290))
    codec = load_codec(tmp_path / "tok.json")
    documents = [Document(str(n), text[n : 3 * n].encode()) for n in range(20, 200, 7)]
    for end_token in (-1, 0):
        tokens, sizes = text_tokens(documents, codec, end_token=end_token, measured=True)
        for cap in (40, 300, 10**9):
            batches = held_out_batches(tokens, 16, cap, 5)
            labels = np.concatenate([batch["labels"].ravel() for batch in batches])
            widths = [len(codec.decode([i])) if i != end_token else 0 for i in labels[labels >= 0].tolist()]
            assert bytes_per_token(tokens, sizes, 16, cap) == pytest.approx(np.mean(widths), rel=1e-12)
    assert bytes_per_token(tokens, None, 16, 40) == 1.0


def test_a_mean_of_nothing_is_none():
    """Every label is an end token: there is no byte to divide by."""
    tokens, sizes = text_tokens([Document(n, b"x") for n in "abcdef"], byte_codec(), end_token=256, measured=True)
    assert bytes_per_token(tokens, sizes, 3, 99) is None


def test_a_lone_document_is_cut_in_two():
    start, end = start_and_end(Document("x", b"this is a. "), 0.25)
    assert (start.text, end.text) == (b"this is ", b"a. ") and start.name != end.name
