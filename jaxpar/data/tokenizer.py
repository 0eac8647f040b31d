"""Text to ids and back: bytes, or a file of the tokenizers library (github.com/huggingface/tokenizers).

A trained tokenizer is byte-pair encoding over bytes: Sennrich et al. 2016, arXiv:1508.07909, in the form of Radford et
al. 2019 (GPT-2), so that every text has ids and ids give back the text.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxpar.errors import SettingError

END_OF_TEXT = "<|endoftext|>"  # id 0 of a tokenizer that is trained here
_EXTRA = "the package tokenizers is not installed. Run pip install 'jaxpar[text]'"


@dataclasses.dataclass(frozen=True)
class Codec:
    """How text becomes ids.

    Attributes:
      encode: (str) -> list of int; decode: (ids) -> str. Ids that stand for nothing are left out.
      encode_all: (list of bytes, measured) -> list of (ids int [N], bytes of text each id stands for int32 [N]); the
        latter None where it was not asked for, or where each id is one byte.
      dtype: that ids are kept in.
      num_ids: ids are under it.
    """

    encode: Callable
    decode: Callable
    encode_all: Callable
    dtype: Any
    num_ids: int


def byte_codec():
    """Each byte of UTF-8 is an id; decoding shows what is not UTF-8 as U+FFFD."""
    return Codec(
        encode=lambda text: list(text.encode()),
        decode=lambda ids: bytes(int(i) for i in ids if 0 <= i < 256).decode("utf-8", "replace"),
        encode_all=lambda texts, measured=False: [(np.frombuffer(text, np.uint8), None) for text in texts],
        dtype=np.dtype(np.uint8),
        num_ids=256,
    )


def load_codec(path, setting="data.tokenizer"):
    """The Codec of a tokenizer.json.

    Text is text: a special token's name inside it is encoded letter by letter, so that no document ends too early; no
    special token is added, and nothing is cut or padded, whatever the file says.

    Args:
      path: the file.
      setting: what named it, for messages.

    Raises:
      SettingError: no such file, not a tokenizer, or the tokenizers library is not installed.
    """
    tokenizers = _library(f"{setting}={path}")
    try:
        with open(path, encoding="utf-8") as file:
            tokenizer = tokenizers.Tokenizer.from_str(file.read())
    except OSError as error:
        raise SettingError(
            f"{setting}={path} cannot be read: {error.strerror}. Give a tokenizer.json, as experiments.tokenize writes."
        ) from error
    except Exception as error:  # the library raises bare Exceptions
        cause = " ".join(str(error).split())
        raise SettingError(
            f"{setting}={path} is not a tokenizer: {cause}. Give a tokenizer.json, as experiments.tokenize writes."
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    num_ids = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def encode_all(texts, measured=False):
        texts = [text.decode("utf-8", "replace") for text in texts]
        encode = tokenizer.encode_batch if measured else tokenizer.encode_batch_fast  # the latter knows no places
        found = encode(texts, add_special_tokens=False)
        sizes = [_sizes(text, one.offsets) if measured else None for text, one in zip(texts, found, strict=True)]
        return [(np.array(one.ids, np.int64), size) for one, size in zip(found, sizes, strict=True)]

    return Codec(
        encode=lambda text: tokenizer.encode(text, add_special_tokens=False).ids,
        decode=lambda ids: tokenizer.decode([int(i) for i in ids if 0 <= i < num_ids], skip_special_tokens=False),
        encode_all=encode_all,
        dtype=np.dtype(np.uint16 if num_ids <= 2**16 else np.int32),
        num_ids=num_ids,
    )


def train_bpe(texts, vocab_size):
    """A byte-pair tokenizer of the texts, as JSON.

    Args:
      texts: iterable of str.
      vocab_size: ids in all: END_OF_TEXT, 256 bytes and the pairs.

    Returns:
      str, what a tokenizer.json holds; it has fewer ids where the texts have too few pairs.

    Raises:
      SettingError: vocab_size is under 257, or the tokenizers library is not installed.
    """
    if vocab_size < 257:
        raise SettingError(
            f"vocab_size={vocab_size} is under 257: every byte has an id, and so has {END_OF_TEXT}. Use 257 or more."
        )
    tokenizers = _library(f"vocab_size={vocab_size}")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer.to_str(pretty=True)


def _library(asked):
    try:
        import tokenizers
        import tokenizers.decoders
        import tokenizers.models
        import tokenizers.pre_tokenizers
        import tokenizers.trainers
    except ImportError as error:
        raise SettingError(f"{asked} cannot be used: {_EXTRA}.") from error
    return tokenizers


def _sizes(text, offsets):
    """Bytes of UTF-8 that each token stands for, from where it ends in the text; they add up to the whole text's.

    Where tokens share a character, the first one has it; what no token covers (dropped spaces) is the next one's, at
    the end the last one's.
    """
    if not offsets:
        return np.zeros(0, np.int32)
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    widths = 1 + (points >= 0x80).astype(np.int64) + (points >= 0x800) + (points >= 0x10000)
    ends = np.maximum.accumulate(np.array(offsets, np.int64)[:, 1])
    ends[-1] = len(points)
    return np.diff(np.concatenate([[0], np.cumsum(widths)])[ends], prepend=0).astype(np.int32)
