"""Text from the Python installation and from files."""

import pytest

from jaxpar.data.documents import Document, file_documents, python_documents
from jaxpar.errors import SettingError


def test_python_documents_are_plentiful_real_and_always_the_same():
    docs = python_documents()
    names = [document.name for document in docs]
    assert len(set(names)) == len(names)
    assert sum(document.num_bytes for document in docs) > 3_000_000
    assert "textwrap.py" in names and any(name.startswith("topics/") for name in names)
    assert not any(part in name.split("/") for name in names for part in ("site-packages", "test", "encodings"))
    assert python_documents() == docs


def test_no_topic_shares_a_long_paragraph_with_another_document():
    topics = [d for d in python_documents() if d.name.startswith("topics/")]
    owner = {}
    for document in topics:
        for paragraph in document.text.decode().split("\n\n"):
            if len(paragraph.strip()) >= 200:
                assert owner.setdefault(paragraph.strip(), document.name) == document.name
    from pydoc_data.topics import topics as everything

    assert 10 < len(topics) < len(everything), "some topics are one document"
    assert sum(len(d.text) for d in topics) > 0.9 * sum(len(text.encode()) for text in everything.values())


def test_a_document_is_read_in_parts(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"0123456789")
    for content in (path, b"0123456789"):
        whole, part = Document("x", content), Document("x", content, first=3, size=4)
        assert (whole.text, part.text) == (b"0123456789", b"3456")
        assert (whole.num_bytes, part.num_bytes) == (10, 4)
        assert (whole.read(2), part.read(2), part.read(9), part.read(0)) == (b"01", b"34", b"3456", b"")
        assert Document("x", content, first=8).text == b"89"


def test_files_of_a_folder_are_documents_but_hidden_and_blank_ones(tmp_path):
    for name, text in (("a", "A"), ("b/c", "C"), (".h", "H"), ("b/.g/i", "I"), ("blank", " \n"), ("late", " " * 9999)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    with open(tmp_path / "late", "a") as file:
        file.write("L")
    found = file_documents(tmp_path)
    assert sorted(document.text.strip() for document in found) == [b"A", b"C", b"L"]
    assert [d.name for d in found] == [d.name for d in sorted(found, key=lambda d: d.position)]


@pytest.mark.parametrize(("content", "part"), [(None, "does not exist"), ("", "is empty"), (" \n ", "is empty")])
def test_files_that_cannot_serve(tmp_path, content, part):
    path = tmp_path / "text"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SettingError, match=f"path={path} {part}"):
        file_documents(path, "path")


def test_a_folder_without_files_is_refused(tmp_path):
    with pytest.raises(SettingError, match="is empty"):
        file_documents(tmp_path)


def test_a_file_that_goes_away_is_named(tmp_path):
    document = Document("x", tmp_path / "x", setting="data.held_out_path")
    with pytest.raises(SettingError, match="data.held_out_path=.*x cannot be read: No such file"):
        document.read()
