"""Trains a tokenizer on text, or writes text as a file of token ids.

python -m experiments.tokenize --path=TEXT --vocab_size=8192 --out=tok.json
python -m experiments.tokenize --path=TEXT --tokenizer=tok.json --out=train.bin [--format=megatron] [--end_token=0]

TEXT is a file, or a folder of which every file is a document. A trained tokenizer is byte-level byte-pair encoding with
<|endoftext|> as id 0 (needs `pip install 'jaxpar[text]'`). Without --tokenizer ids are bytes.

Exit status: 0 done, 1 the disk failed, 2 a flag that cannot work (one message, nothing written), 130 interrupted.
"""

import os
import sys

from absl import flags

from experiments._app.flags import read
from jaxpar.data.documents import file_documents
from jaxpar.data.text import encode
from jaxpar.data.token_files import write_megatron, write_nanogpt
from jaxpar.data.tokenizer import END_OF_TEXT, byte_codec, load_codec, train_bpe
from jaxpar.errors import SettingError

INTERRUPTED = 130  # the shell's status for Ctrl-C
_WRITING = ("tokenizer", "format", "end_token")  # flags that a token file alone has


def main(argv):
    """Runs the program; returns its exit status."""
    try:
        values = _parse(argv)
        print(_train(values) if values.out.endswith(".json") else _write(values))
    except SettingError as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        print(f"out={values.out} could not be written: {error.strerror}.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    return 0


def _parse(argv):
    """The flags' values.

    Raises:
      SettingError: an unknown or missing flag, a value that cannot be read, flags that do not go together.
      SystemExit: `--help` was asked for (status 0).
    """
    values = flags.FlagValues()
    flags.DEFINE_string("path", "", "A text file, or a folder of them.", flag_values=values)
    flags.DEFINE_string("out", "", "What is written: tok.json (a tokenizer) or x.bin (token ids).", flag_values=values)
    flags.DEFINE_integer("vocab_size", 0, "For a tokenizer: how many ids it has.", flag_values=values)
    flags.DEFINE_string("tokenizer", "", "For token ids: a tokenizer.json. Empty: bytes.", flag_values=values)
    flags.DEFINE_enum(
        "format", "nanogpt", ["nanogpt", "megatron"], "For token ids: the file's format.", flag_values=values
    )
    flags.DEFINE_integer("end_token", -1, "For token ids: put after every document; -1: none.", flag_values=values)
    read(values, argv, __doc__)
    _check(values)
    return values


def _check(values):
    if not values.path:
        raise SettingError("path= names no file: it is the text. Give --path=FILE or a folder.")
    training = values.out.endswith(".json")
    if not training and not values.out.endswith(".bin"):
        raise SettingError(
            f"out={values.out} names no kind of file: .json is a tokenizer, .bin token ids. "
            "Give --out=tok.json or --out=x.bin."
        )
    folder = os.path.dirname(values.out) or "."
    if not os.path.isdir(folder):
        raise SettingError(f"out={values.out} cannot be written: {folder} is not a folder. Make it first.")
    for name in _WRITING if training else ("vocab_size",):
        if values[name].present:
            raise SettingError(
                f"{name}={values[name].value} would not be read: out={values.out} is "
                f"{'a tokenizer' if training else 'a file of token ids'}. Leave it out."
            )
    if values.end_token < -1:
        raise SettingError(f"end_token={values.end_token} is under -1: it is a token, or -1 for none. Use -1.")


def _train(values):
    """Trains and writes a tokenizer; returns what to say."""
    documents = file_documents(values.path, "path")
    tokenizer = train_bpe((document.text.decode("utf-8", "replace") for document in documents), values.vocab_size)
    with open(values.out, "w", encoding="utf-8") as file:
        file.write(tokenizer)
    num_ids = load_codec(values.out).num_ids
    return (
        f"wrote {values.out}: {num_ids} ids from {len(documents)} documents; {END_OF_TEXT} is 0\n"
        f"train with data.tokenizer={values.out} model.vocab_size={num_ids} data.end_token=0"
    )


def _write(values):
    """Writes token ids; returns what to say."""
    codec = load_codec(values.tokenizer, "tokenizer") if values.tokenizer else byte_codec()
    documents = file_documents(values.path, "path")
    num_bytes = sum(document.num_bytes for document in documents)
    num_ids = max(codec.num_ids, values.end_token + 1)
    if values.format == "nanogpt" and num_ids > 2**16:
        raise SettingError(f"format=nanogpt cannot hold {num_ids} ids: its tokens have 16 bits. Use --format=megatron.")
    ids = (ids for ids, _ in encode(documents, codec, end_token=values.end_token))
    if values.format == "megatron":
        count, num_tokens = write_megatron(values.out, ids, num_ids=num_ids)
    else:
        count, num_tokens = write_nanogpt(values.out, ids)
    known = f" data.end_token={values.end_token}" if values.end_token >= 0 and values.format == "nanogpt" else ""
    return (
        f"wrote {values.out}: {num_tokens:,} tokens in {count:,} documents, {num_bytes / num_tokens:.2f} bytes each\n"
        f"train with data.kind=tokens data.path={values.out} model.vocab_size={num_ids}{known}"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv))
