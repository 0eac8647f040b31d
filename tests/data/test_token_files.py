"""Token files: what is written is read, mapped and not loaded; what is broken is refused by name."""

import os
import resource
import struct
import time

import numpy as np
import pytest

from jaxpar.data import token_files
from jaxpar.data.rows import num_rows, rows
from jaxpar.data.token_files import read_tokens, write_megatron, write_nanogpt
from jaxpar.errors import SettingError

DOCUMENTS = ([5, 6, 7, 0], [8, 0], [9, 9, 9, 9, 0])
IDS = np.concatenate(DOCUMENTS)


def refused(path, *parts, num_ids=100, **options):
    with pytest.raises(SettingError) as caught:
        read_tokens(path, num_ids=num_ids, **options)
    message = str(caught.value)
    assert message.endswith((".", "?")) and "\n" not in message
    for part in (str(path), *map(str, parts)):
        assert part in message, message


@pytest.mark.parametrize("header", [False, True])
def test_nanogpts_files_go_round(tmp_path, header):
    path = tmp_path / "x.bin"
    assert write_nanogpt(path, iter(DOCUMENTS), header=header) == (3, 11)
    assert path.stat().st_size == 22 + 1024 * header and os.listdir(tmp_path) == ["x.bin"]
    tokens = read_tokens(path, num_ids=100)
    assert isinstance(tokens.ids, np.memmap) and tokens.starts.tolist() == [0]
    np.testing.assert_array_equal(tokens.ids, IDS)
    assert read_tokens(path, num_ids=100, end_token=0).starts.tolist() == [0, 4, 6]
    if not header:
        np.testing.assert_array_equal(np.fromfile(path, np.uint16), IDS)  # as nanoGPT itself reads it


def test_llmcs_wider_tokens(tmp_path):
    path = tmp_path / "x.bin"
    header = np.zeros(256, np.int32)
    header[:3] = 20240801, 7, 3
    path.write_bytes(header.tobytes() + np.array([1, 2, 128_000], np.uint32).tobytes())
    assert read_tokens(path, num_ids=128_256).ids.tolist() == [1, 2, 128_000]


@pytest.mark.parametrize(("num_ids", "dtype"), [(100, np.uint16), (65_499, np.uint16), (65_500, np.int32)])
def test_megatrons_files_go_round(tmp_path, num_ids, dtype):
    path = tmp_path / "x.bin"
    assert write_megatron(path, iter(DOCUMENTS), num_ids=num_ids) == (3, 11)
    assert sorted(os.listdir(tmp_path)) == ["x.bin", "x.idx"]
    tokens = read_tokens(path, num_ids=num_ids)
    assert isinstance(tokens.ids, np.memmap) and tokens.ids.dtype == dtype
    np.testing.assert_array_equal(tokens.ids, IDS)
    assert tokens.starts.tolist() == [0, 4, 6]


def index_bytes(lengths, pointers, ends, *, magic=b"MMIDIDX\x00\x00", version=1, code=8):
    """An index, spelled out."""
    head = magic + struct.pack("<QBQQ", version, code, len(lengths), len(ends))
    return head + struct.pack(f"<{len(lengths)}i{len(pointers)}q{len(ends)}q", *lengths, *pointers, *ends)


def test_a_megatron_document_is_several_sequences_and_an_empty_one_none(tmp_path):
    path = tmp_path / "x.bin"
    path.write_bytes(IDS.astype("<u2").tobytes())
    path.with_suffix(".idx").write_bytes(index_bytes([4, 2, 0, 5], [0, 8, 12, 12], [0, 2, 2, 3, 4, 4]))
    assert read_tokens(path, num_ids=100).starts.tolist() == [0, 6]


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"magic": b"MMIDIDY\x00\x00"}, ["x.idx does not begin as Megatron's"]),
        ({"version": 2}, ["x.idx has version 2, not 1"]),
        ({"code": 6}, ["x.idx has type 6"]),
        ({"code": 7}, ["x.idx has type 7"]),
        ({"code": 0}, ["x.idx has type 0"]),
        ({"code": 4}, ["puts sequence 1 at byte 8 with 2 tokens", "end at byte 16"]),
        ({"pointers": [0, 10, 12]}, ["puts sequence 1 at byte 10"]),
        ({"lengths": [4, -2, 9]}, ["puts sequence 1 at byte 8 with -2 tokens"]),
        ({"lengths": [4, 2, 6]}, ["is truncated: x.bin has 22 bytes", "the tokens of x.idx make 24"]),
        ({"lengths": [4, 2, 4]}, ["is too long: x.bin has 22 bytes", "make 20"]),
        ({"ends": [0, 2, 1, 3]}, ["documents do not follow each other"]),
        ({"ends": [0, 1, 2]}, ["documents do not follow each other"]),
        ({"ends": [1, 3]}, ["documents do not follow each other"]),
        ({"lengths": [], "pointers": [], "ends": [0]}, ["is empty"]),
    ],
)
def test_broken_indices(tmp_path, changes, parts):
    path = tmp_path / "x.bin"
    path.write_bytes(IDS.astype("<u2").tobytes())
    whole = {"lengths": [4, 2, 5], "pointers": [0, 8, 12], "ends": [0, 1, 2, 3]}
    path.with_suffix(".idx").write_bytes(index_bytes(**{**whole, **changes}))
    refused(path, *parts)


@pytest.mark.parametrize("left", [5, 20, 34, 60, -1])
def test_a_truncated_index_is_refused_with_both_sizes(tmp_path, left):
    path = tmp_path / "x.bin"
    write_megatron(path, DOCUMENTS, num_ids=100)
    index = path.with_suffix(".idx")
    whole = index.read_bytes()
    index.write_bytes(whole[:left])
    refused(path, "x.idx", *([] if left == 5 else [len(whole[:left]), len(whole) if left >= 34 or left < 0 else 34]))
    index.write_bytes(whole + b"\0")
    refused(path, f"is too long: x.idx has {len(whole) + 1} bytes", len(whole))


@pytest.mark.parametrize("name", ["plain", "headed", "megatron"])
def test_truncated_tokens_are_refused_with_both_sizes(tmp_path, name):
    path = tmp_path / "x.bin"
    if name == "megatron":
        write_megatron(path, DOCUMENTS, num_ids=100)
    else:
        write_nanogpt(path, DOCUMENTS, header=name == "headed")
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    refused(path, "truncated", len(whole) - 1, len(whole))


def test_broken_headers_and_paths(tmp_path):
    path = tmp_path / "x.bin"
    refused(path, "does not exist")
    path.write_bytes(b"")
    refused(path, "is empty")
    path.write_bytes(struct.pack("<iii", 20240520, 2, 4) + bytes(1020))
    refused(path, "magic 20240520 with version 2")
    refused(tmp_path, "is not a file")
    refused(tmp_path / "x", f"Did you mean {path}?")
    (tmp_path / "x.idx").write_bytes(b"")
    refused(tmp_path / "x.idx", f"Give {path}")
    refused(path, "x.idx does not begin")
    refused(path, "x.idx beside it, which says where documents end", end_token=3)


def test_end_tokens(tmp_path):
    path = tmp_path / "x.bin"
    write_nanogpt(path, DOCUMENTS)
    with pytest.raises(SettingError, match="data.end_token=77 is not in .*x.bin"):
        read_tokens(path, num_ids=100, end_token=77)
    assert read_tokens(path, num_ids=100, end_token=9).starts.tolist() == [0, 7, 8, 9, 10]


@pytest.mark.parametrize("scanned", [True, False])
def test_ids_beyond_the_vocabulary(tmp_path, scanned, monkeypatch):
    """A small file is scanned at once; of a large one each row is checked when it is read."""
    if not scanned:
        monkeypatch.setattr(token_files, "_SCANNED_BYTES", 0)
    path = tmp_path / "x.bin"
    write_nanogpt(path, [[0, 1] * 50, [64], [3] * 20])
    parts = ["has id 64 at token 100", "model.vocab_size=64", "model.vocab_size=65 or more"]
    if scanned:
        return refused(path, *parts, num_ids=64)
    tokens = read_tokens(path, num_ids=64)
    assert num_rows(tokens, 10) == 12 and rows(tokens, 10, [8, 10 + 1])["inputs"].max() == 3
    with pytest.raises(SettingError) as caught:
        rows(tokens, 10, [3, 9])  # token 100 is row 9's last label
    assert all(part in str(caught.value) for part in (*parts, str(path)))
    assert read_tokens(path, num_ids=2**16).num_ids is None, "16 bits cannot be wrong"
    return None


def test_ids_that_do_not_fit_are_not_written(tmp_path):
    path = tmp_path / "x.bin"
    for write in (write_nanogpt, lambda *args: write_megatron(*args, num_ids=100)):
        for wrong in (2**16, -1):
            with pytest.raises(SettingError, match="cannot hold id"):
                write(path, [[1], [wrong]])
    assert os.listdir(tmp_path) == []
    write_megatron(path, [[1]], num_ids=9)
    with pytest.raises(SettingError, match="has Megatron's x.idx beside it"):
        write_nanogpt(path, [[1]])


def test_a_file_of_two_gigabytes_is_mapped_and_not_read(tmp_path):
    path = tmp_path / "x.bin"
    with open(path, "wb") as file:
        file.truncate(2**31)
        file.seek(2**30)
        file.write(np.arange(1000, dtype="<u2").tobytes())
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    tokens = read_tokens(path, num_ids=2000)
    assert len(tokens) == 2**30
    part = tokens.part(2**29, 2**30)
    np.testing.assert_array_equal(rows(part, 999, [0])["inputs"][0], np.arange(999))
    assert time.process_time() - start < 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000, "kilobytes"
