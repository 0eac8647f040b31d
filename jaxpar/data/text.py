"""Documents of text as Tokens, and how many bytes of text a token stands for."""

import dataclasses

import numpy as np

from jaxpar.data.rows import held_out_rows
from jaxpar.data.tokens import Tokens

_AT_ONCE = 2**23  # bytes of text that are encoded together


def encode(documents, codec, *, end_token=-1, max_bytes=-1, measured=False):
    """The documents' ids, one document after the other, in blocks.

    Args:
      documents: Documents, read one block at a time.
      codec: Codec.
      end_token: appended to every document; -1: none.
      max_bytes: text stops here, in the middle of a document if need be; -1: nowhere.
      measured: whether to count bytes.

    Yields:
      (ids int [N], bytes of text of each int32 [N] or None) of one document with any text in it.
    """
    for block in _blocks(documents, max_bytes):
        for ids, sizes in codec.encode_all(block, measured):
            if end_token >= 0:
                if measured and sizes is None:
                    sizes = np.ones(len(ids), np.int32)
                # An end token among the bytes is a byte of the text; any other stands for none of it.
                width = int(end_token < 256 and codec.dtype == np.uint8)
                sizes = np.append(sizes, np.int32(width)) if measured else None
                ids = np.append(ids.astype(np.int64), end_token)
            if len(ids):
                yield ids, sizes


def text_tokens(documents, codec, *, end_token=-1, max_bytes=-1, measured=False):
    """The documents as Tokens in memory.

    Args:
      documents, codec, end_token, max_bytes, measured: as for `encode`.

    Returns:
      (Tokens, bytes each id stands for int32 [N], or None where each is one byte or it was not asked for).
    """
    found = list(encode(documents, codec, end_token=end_token, max_bytes=max_bytes, measured=measured))
    lengths = np.array([len(ids) for ids, _ in found], np.int64)
    dtype = np.promote_types(codec.dtype, np.min_scalar_type(max(end_token, 0)))
    ids = np.concatenate([np.zeros(0, dtype), *(ids.astype(dtype) for ids, _ in found)])
    starts = np.cumsum(lengths) - lengths if found else np.zeros(1, np.int64)
    known = found and all(sizes is not None for _, sizes in found)
    return Tokens(ids, starts), np.concatenate([sizes for _, sizes in found]) if known else None


def bytes_per_token(tokens, sizes, seq_len, max_bytes):
    """Mean bytes of text of the tokens that an evaluation counts.

    Args:
      tokens: the held-out Tokens.
      sizes: int32 [N], bytes each id stands for; None: one.
      seq_len, max_bytes: which rows are read, see `held_out_rows`.

    Returns:
      float; nats a token, divided by it, are nats a byte. None where no token that counts stands for any text.
    """
    if sizes is None:
        return 1.0
    counted = np.ones(len(tokens), bool)
    counted[tokens.starts] = False  # no document's first token is a label
    first = held_out_rows(tokens, seq_len, max_bytes) * seq_len
    place = (first[:, None] + 1 + np.arange(seq_len)).reshape(-1)
    place = place[counted[place]]
    return (float(sizes[place].mean()) or None) if place.size else None


def start_and_end(document, fraction):
    """(the document's start, its end) as two documents; the end has this share of the bytes."""
    border = int(document.num_bytes * (1 - fraction))
    sizes = (("start", 0, border), ("end", border, document.num_bytes - border))
    return tuple(
        dataclasses.replace(document, name=f"{document.name} ({part})", first=document.first + first, size=size)
        for part, first, size in sizes
    )


def _blocks(documents, max_bytes):
    """Lists of bytes, together about _AT_ONCE; a document is never split."""
    block, size, left = [], 0, max_bytes
    for document in documents:
        if left == 0:
            break
        text = document.read(left)
        left -= len(text) if left > 0 else 0
        if text.strip():
            block.append(text)
            size += len(text)
        if size >= _AT_ONCE:
            yield block
            block, size = [], 0
    if block:
        yield block
