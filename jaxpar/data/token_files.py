"""Files of token ids, memory-mapped: as nanoGPT and llm.c write them, and as Megatron-LM does.

- nanoGPT: raw uint16, nothing else. (github.com/karpathy/nanoGPT, data/openwebtext/prepare.py)
- llm.c, modded-nanogpt: 256 int32 first (magic, version, number of tokens), then uint16, or uint32 for larger
  vocabularies. (github.com/karpathy/llm.c, dev/data/data_common.py)
- Megatron: ids in X.bin; X.idx has their type, the length and place of each sequence, and which sequences make a
  document. (github.com/NVIDIA/Megatron-LM, megatron/core/datasets/indexed_dataset.py)

Everything is little-endian. Sizes, headers and places are checked before anything is read.
"""

import contextlib
import os
import pathlib
import struct

import numpy as np

from jaxpar.data.tokens import Tokens, check_ids
from jaxpar.errors import SettingError

_LLMC_HEADER = 256 * 4  # bytes
_LLMC = {20240520: (1, np.dtype("<u2")), 20240801: (7, np.dtype("<u4"))}  # magic: (version, type)
_MEGATRON_MAGIC = b"MMIDIDX\x00\x00"
_MEGATRON_HEADER = struct.Struct("<9sQBQQ")  # magic, version, type, sequences, documents + 1
_MEGATRON_TYPES = {code: np.dtype(t) for code, t in ((1, "u1"), (2, "i1"), (3, "<i2"), (4, "<i4"), (5, "<i8"))}
_MEGATRON_TYPES[8] = np.dtype("<u2")  # 6 and 7 are floats
_SCANNED_BYTES = 2**27  # a larger file's ids are checked when they are read: else a start would read all of it
_CHUNK = 2**22  # tokens


def read_tokens(path, *, num_ids, end_token=-1, setting="data.path"):
    """The tokens of a file, memory-mapped.

    Args:
      path: X.bin; Megatron's where there is an X.idx.
      num_ids: the model's vocab_size.
      end_token: without an X.idx, a document ends after this token; -1: the file is one document.
      setting: what named the file, for messages.

    Returns:
      Tokens.

    Raises:
      SettingError: the file is not there, not whole, not of its format, or has an id that is not under num_ids.
    """
    path, source = pathlib.Path(path), f"{setting}={path}"
    _check_file(path, source)
    index = path.with_suffix(".idx")
    if index.is_file():
        if end_token >= 0:
            raise SettingError(
                f"data.end_token={end_token} would not be read: {source} has {index.name} beside it, which says where "
                "documents end. Set data.end_token=-1."
            )
        ids, starts = _read_megatron(path, index, source)
    else:
        ids, starts = _read_nanogpt(path, source), np.zeros(1, np.int64)
    kind = np.iinfo(ids.dtype)
    checked = kind.min == 0 and kind.max < num_ids
    if end_token >= 0 or (not checked and ids.nbytes <= _SCANNED_BYTES):
        ends = _scan(ids, num_ids, end_token, source)
        starts = _document_starts(ends, len(ids), end_token, source) if end_token >= 0 else starts
        checked = True
    return Tokens(ids, starts, source=source, num_ids=None if checked else num_ids)


def write_nanogpt(path, documents, *, header=False):
    """Writes documents one after the other as uint16.

    Args:
      path: X.bin; it is there when it is whole.
      documents: iterable of int arrays; where readers are to tell them apart, each with its end token.
      header: writes llm.c's first.

    Returns:
      (documents, tokens): how many were written.

    Raises:
      SettingError: an id does not fit 16 bits, or an X.idx is there.
      OSError: the disk is full, say; there is no file then.
    """
    num_documents = num_tokens = 0
    index = pathlib.Path(path).with_suffix(".idx")
    if index.exists():
        raise SettingError(f"out={path} has Megatron's {index.name} beside it, which would be read. Name another file.")
    with _whole(path) as file:
        file.write(bytes(_LLMC_HEADER if header else 0))
        for document in documents:
            file.write(_as_type(document, np.dtype("<u2"), path).tobytes())
            num_documents, num_tokens = num_documents + 1, num_tokens + len(document)
        if header:
            file.seek(0)
            file.write(struct.pack("<iii", 20240520, 1, num_tokens))
    return num_documents, num_tokens


def write_megatron(path, documents, *, num_ids):
    """Writes X.bin and X.idx; every document is one sequence.

    Args:
      path: X.bin; both files are there when they are whole.
      documents: iterable of int arrays.
      num_ids: size of the vocabulary; as in Megatron, ids are uint16 below 65,500 and int32 from there on.

    Returns:
      (documents, tokens): how many were written.

    Raises:
      SettingError: an id does not fit.
      OSError: the disk is full, say.
    """
    code = 8 if num_ids < 65_500 else 4
    lengths = []
    with _whole(pathlib.Path(path).with_suffix(".idx")) as index, _whole(path) as file:
        for document in documents:
            file.write(_as_type(document, _MEGATRON_TYPES[code], path).tobytes())
            lengths.append(len(document))
        places = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        index.write(_MEGATRON_HEADER.pack(_MEGATRON_MAGIC, 1, code, len(lengths), len(lengths) + 1))
        index.write(np.asarray(lengths, "<i4").tobytes())
        index.write((places[:-1] * _MEGATRON_TYPES[code].itemsize).astype("<i8").tobytes())
        index.write(np.arange(len(lengths) + 1, dtype="<i8").tobytes())
    return len(lengths), int(places[-1])


def _check_file(path, source):
    if path.is_file():
        if path.suffix == ".idx":
            raise SettingError(f"{source} is an index: the tokens are beside it. Give {path.with_suffix('.bin')}.")
        if path.stat().st_size == 0:
            raise SettingError(f"{source} is empty: there are no tokens to learn from. Give a file with tokens.")
        if not os.access(path, os.R_OK):
            raise SettingError(f"{source} cannot be read: permission denied. Check its permissions.")
        return
    named = path.with_name(f"{path.name}.bin")
    remedy = f"Did you mean {named}?" if named.is_file() else "Give the path of a .bin file."
    raise SettingError(f"{source} {'is not a file' if path.exists() else 'does not exist'}: it holds tokens. {remedy}")


def _check_size(path, source, found, expected, why):
    if found != expected:
        what = "is truncated" if found < expected else "is too long"
        raise SettingError(
            f"{source} {what}: {path.name} has {found} bytes, and {why} {expected}. Write or copy it again."
        )


def _read_nanogpt(path, source):
    size = path.stat().st_size
    with open(path, "rb") as file:
        header = file.read(12)
    magic, version, count = struct.unpack("<iii", header) if len(header) == 12 else (0, 0, 0)
    if magic not in _LLMC:
        if size % 2:
            raise SettingError(
                f"{source} is truncated: it has {size} bytes, and tokens of 2 bytes make {size - 1} or {size + 1}. "
                "Write or copy it again."
            )
        return np.memmap(path, np.dtype("<u2"), "r")
    expected, kind = _LLMC[magic]
    if version != expected or count < 1:
        raise SettingError(
            f"{source} has a header that is not known: magic {magic} with version {version} and {count} tokens, not "
            f"version {expected} and one token or more. Write it again."
        )
    _check_size(path, source, size, _LLMC_HEADER + count * kind.itemsize, f"its header's {count} tokens make")
    return np.memmap(path, kind, "r", offset=_LLMC_HEADER)


def _scan(ids, num_ids, end_token, source):
    """Reads a file once: refuses ids that are not under num_ids, returns where the end tokens are, int64."""
    ends = []
    for at in range(0, len(ids), _CHUNK):
        chunk = ids[at : at + _CHUNK]
        check_ids(chunk, num_ids, source, at)
        ends.append(at + np.flatnonzero(chunk == end_token))
    return np.concatenate(ends).astype(np.int64)


def _document_starts(ends, size, end_token, source):
    """Where documents start: at 0 and after every end token but one that ends the file."""
    if not ends.size:
        raise SettingError(
            f"data.end_token={end_token} is not in {source.partition('=')[2]}: no document would end. "
            "Use the token that ends documents there, or -1 for one document."
        )
    return np.concatenate([[0], ends[ends < size - 1] + 1])


def _read_megatron(path, index, source):
    """(ids, starts) of X.bin and X.idx."""
    size = index.stat().st_size
    with open(index, "rb") as file:
        header = file.read(_MEGATRON_HEADER.size)
    if header[:9] != _MEGATRON_MAGIC:
        raise SettingError(f"{source} has a broken index: {index.name} does not begin as Megatron's. Write it again.")
    if len(header) < _MEGATRON_HEADER.size:
        _check_size(index, source, size, _MEGATRON_HEADER.size, "its header alone has")
    _, version, code, sequences, documents = _MEGATRON_HEADER.unpack(header)
    if version != 1 or code not in _MEGATRON_TYPES:
        rule = f"version {version}, not 1" if version != 1 else f"type {code}, which is none of whole numbers"
        raise SettingError(f"{source} has an index that cannot be read: {index.name} has {rule}. Write it again.")
    places_at = _MEGATRON_HEADER.size + 4 * sequences
    documents_at = places_at + 8 * sequences
    _check_size(
        index, source, size, documents_at + 8 * documents, f"{sequences} sequences and {documents} document ends make"
    )
    if not sequences or documents < 2:
        raise SettingError(f"{source} is empty: {index.name} lists no sequence. Give a file with tokens.")
    kind, header_size = _MEGATRON_TYPES[code], _MEGATRON_HEADER.size
    lengths = np.memmap(index, "<i4", "r", header_size, (sequences,))
    pointers = np.memmap(index, "<i8", "r", places_at, (sequences,))
    ends = np.memmap(index, "<i8", "r", documents_at, (documents,))
    places = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])  # of each sequence, in tokens
    wrong = np.flatnonzero((lengths < 0) | (pointers != places[:-1] * kind.itemsize))
    if wrong.size:
        place = int(wrong[0])
        raise SettingError(
            f"{source} has a broken index: {index.name} puts sequence {place} at byte {pointers[place]} with "
            f"{lengths[place]} tokens, and the ones before it end at byte {places[place] * kind.itemsize}. "
            "Write it again."
        )
    if ends[0] != 0 or ends[-1] != sequences or (np.diff(ends) < 0).any():
        raise SettingError(
            f"{source} has a broken index: in {index.name} documents do not follow each other from sequence 0 to "
            f"{sequences}. Write it again."
        )
    _check_size(path, source, path.stat().st_size, int(places[-1]) * kind.itemsize, f"the tokens of {index.name} make")
    return np.memmap(path, kind, "r"), np.unique(places[ends[:-1]][np.diff(places[ends]) > 0])


def _as_type(document, kind, path):
    document = np.asarray(document)
    if document.size and not 0 <= document.min() <= document.max() <= np.iinfo(kind).max:
        raise SettingError(
            f"out={path} cannot hold id {max(document.max(), -document.min())}: its tokens are {kind.name}. "
            "Use format=megatron, which has wider ones."
        )
    return document.astype(kind)


@contextlib.contextmanager
def _whole(path):
    """A file to write that is renamed to `path` at the end, so that a reader never sees half of it."""
    path = pathlib.Path(path)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(beside, "wb") as file:
            yield file
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
