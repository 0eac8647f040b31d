"""What is trained on and what is held out: whole documents, never blocks of one, chosen by their names alone."""

import dataclasses

import numpy as np

from jaxpar.data import documents
from jaxpar.errors import SettingError

_BETWEEN = b"\n\n"  # between documents


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Training text, held-out text (uint8 [N] each), and one line that says what they are."""

    train: np.ndarray
    held_out: np.ndarray
    about: str


def load(data):
    """The Corpus of a run.

    Args:
      data: the config's DataConfig.

    Raises:
      SettingError: a file is missing or empty, or there is less text than one row.
    """
    if data.kind == "python_docs":
        train, held_out = split(documents.python_documents(), data.held_out_fraction)
    else:
        train, held_out = _split_files(data)
    about = f"{data.kind}: {len(train)} documents to train on, {len(held_out)} held out"
    corpus = Corpus(_join(train, data.max_bytes), _join(held_out, None), about)
    for part, text in (("training", corpus.train), ("held-out", corpus.held_out)):
        if len(text) <= data.seq_len:
            raise SettingError(
                f"data.seq_len={data.seq_len} is too long: there are {len(text)} bytes of {part} text, and a row takes "
                f"{data.seq_len + 1}. Use a shorter row or more text."
            )
    return corpus


def split(docs, fraction):
    """(training, held-out) documents; a document's name decides, so that adding one moves no other.

    Where chance gives one side nothing, it gets the document nearest to the border.
    """
    cut = sum(document.position < fraction for document in docs)
    cut = min(max(cut, 1), len(docs) - 1)
    return docs[cut:], docs[:cut]


def _split_files(data):
    docs = documents.file_documents(data.path)
    if data.held_out_path:
        return docs, documents.file_documents(data.held_out_path, "data.held_out_path")
    if len(docs) > 1:
        return split(docs, data.held_out_fraction)
    # A lone file has no other document to hold out: its end serves, in one piece.
    lone, border = docs[0], int(len(docs[0].text) * (1 - data.held_out_fraction))
    return tuple(
        (documents.Document(f"{lone.name} ({part})", text),)
        for part, text in (("start", lone.text[:border]), ("end", lone.text[border:]))
    )


def _join(docs, max_bytes):
    return np.frombuffer(_BETWEEN.join(document.text for document in docs)[:max_bytes], np.uint8)
