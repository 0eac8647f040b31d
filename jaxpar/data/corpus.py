"""What a run reads: training and held-out tokens of any kind. What cannot serve is refused before anything compiles."""

import dataclasses
import functools
from collections.abc import Callable

from jaxpar.data import documents as docs
from jaxpar.data.held_out import split_documents, split_tokens
from jaxpar.data.rows import num_rows
from jaxpar.data.synthetic import synthetic_tokens
from jaxpar.data.text import bytes_per_token, start_and_end, text_tokens
from jaxpar.data.token_files import read_tokens
from jaxpar.data.tokenizer import byte_codec, load_codec
from jaxpar.data.tokens import Tokens
from jaxpar.errors import SettingError

_MOST_ROWS = 2**32  # in an epoch: Grain's index shuffle (stream.py) takes 32-bit indices


@dataclasses.dataclass(frozen=True, eq=False)
class Corpus:
    """Training and held-out tokens, and how they are to be understood.

    Attributes:
      train, held_out: Tokens.
      about: one line that says what they are.
      bytes_per_token: mean bytes of text of the held-out tokens that an evaluation counts; 1.0 where tokens are bytes,
        None where there is no text.
      encode: (str) -> list of int; decode: (ids) -> str; None where there is no text.
    """

    train: Tokens
    held_out: Tokens
    about: str
    bytes_per_token: float | None = None
    encode: Callable | None = None
    decode: Callable | None = None


def load(config):
    """The Corpus of a run.

    Args:
      config: Config; reads data, model.vocab_size and seed.

    Raises:
      SettingError: a file is missing, empty, not whole or not of its format; it has ids that the model has not; or
        there is less than one row. A large token file's ids are checked when they are read (see `Tokens`).
    """
    kinds = {"python_docs": _text, "text": _text, "tokens": _token_file, "synthetic": _synthetic}
    corpus = kinds[config.data.kind](config)
    seq_len, what = config.data.seq_len, "tokens" if corpus.bytes_per_token != 1.0 else "bytes"
    for part, tokens in (("training", corpus.train), ("held-out", corpus.held_out)):
        if num_rows(tokens, seq_len) < 1:
            raise SettingError(
                f"data.seq_len={seq_len} is too long: there are {len(tokens)} {what} of {part} text, and a row takes "
                f"{seq_len + 1}. Use a shorter row or more text."
            )
    if num_rows(corpus.train, seq_len) > _MOST_ROWS:
        raise SettingError(
            f"data.seq_len={seq_len} is too short: {len(corpus.train)} tokens are more than {_MOST_ROWS} rows, and "
            "rows are numbered in 32 bits. Use longer rows."
        )
    return corpus


def _text(config):
    data = config.data
    codec = load_codec(data.tokenizer) if data.tokenizer else byte_codec()
    if codec.num_ids > config.model.vocab_size:
        named = f"data.tokenizer={data.tokenizer}" if data.tokenizer else f"data.kind={data.kind}"
        raise SettingError(
            f"model.vocab_size={config.model.vocab_size} is under {codec.num_ids}: {named} has ids up to "
            f"{codec.num_ids - 1}. Use {codec.num_ids} or more."
        )
    train, held_out = _documents(data)
    make = functools.partial(text_tokens, codec=codec, end_token=data.end_token)
    train_tokens, _ = make(train, max_bytes=data.max_bytes)
    # Held-out rows are spread over all of the held-out text, of which no more is read than is trained on.
    held_out_tokens, sizes = make(held_out, max_bytes=max(data.max_bytes, data.max_held_out_bytes), measured=True)
    return Corpus(
        train_tokens,
        held_out_tokens,
        f"{data.kind}: {len(train)} documents to train on, {len(held_out)} held out",
        bytes_per_token(held_out_tokens, sizes, data.seq_len, data.max_held_out_bytes),
        codec.encode,
        codec.decode,
    )


def _documents(data):
    """(to train on, held out), tuples of Documents."""
    if data.kind == "python_docs":
        return split_documents(docs.python_documents(), data.held_out_fraction)
    found = docs.file_documents(data.path)
    if data.held_out_path:
        return found, docs.file_documents(data.held_out_path, "data.held_out_path")
    if len(found) > 1:
        return split_documents(found, data.held_out_fraction)
    # A lone file has no other document to hold out: its end serves, in one piece.
    start, end = start_and_end(found[0], data.held_out_fraction)
    return (start,), (end,)


def _token_file(config):
    data = config.data
    read = functools.partial(read_tokens, num_ids=config.model.vocab_size, end_token=data.end_token)
    train = read(data.path)
    if data.held_out_path:
        held_out = read(data.held_out_path, setting="data.held_out_path")
    else:
        train, held_out = split_tokens(train, data.held_out_fraction)
    return _without_text(data.kind, train, held_out)


def _synthetic(config):
    make = functools.partial(synthetic_tokens, config.seed, config.model.vocab_size, config.data.seq_len)
    return _without_text(config.data.kind, make(part=0), make(part=1))


def _without_text(kind, train, held_out):
    about = (
        f"{kind}: {len(train):,} tokens in {len(train.starts):,} documents to train on, {len(held_out):,} in "
        f"{len(held_out.starts):,} held out"
    )
    return Corpus(train, held_out, about)
