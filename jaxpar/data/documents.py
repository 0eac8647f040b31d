"""Where text comes from: the Python installation itself, or a user's own files. Nothing is downloaded."""

import dataclasses
import hashlib
import os
import pathlib
import sysconfig

from jaxpar.errors import SettingError

# Generated tables, tests, other people's packages and this machine's build settings say nothing about prose or code.
_LEFT_OUT = {
    *("test", "tests", "idlelib", "idle_test", "site-packages", "dist-packages", "__pycache__", "encodings"),
    *("pydoc_data", "lib2to3", "turtledemo", "ensurepip", "distutils", "config"),
}
_SHARED_PARAGRAPH = 200  # characters; a paragraph this long in two topics is the same text, not a turn of phrase


@dataclasses.dataclass(frozen=True)
class Document:
    """A name, which alone decides whether the document is held out, and its bytes."""

    name: str
    text: bytes

    @property
    def position(self):
        """A number in [0, 1) made from the name alone: the order of documents, and which are held out."""
        digest = hashlib.sha256(self.name.encode()).digest()
        return int.from_bytes(digest[:8], "big") / 2**64


def python_documents():
    """The language reference's topics and the standard library's sources, as this Python has them.

    Raises:
      SettingError: this Python was installed without its sources.
    """
    documents = _topic_documents() + _source_documents(pathlib.Path(sysconfig.get_paths()["stdlib"]))
    if sum(len(document.text) for document in documents) < 1_000_000:
        raise SettingError(
            "data.kind=python_docs has too little text: this Python was installed without the standard library's "
            "sources. Use data.kind=text with data.path, or another Python."
        )
    return _in_order(documents)


def file_documents(path, setting="data.path"):
    """A text file as one document, or all files below a folder.

    Raises:
      SettingError: nothing is there, or nothing is in it.
    """
    root = pathlib.Path(path)
    if not root.exists():
        raise SettingError(f"{setting}={path} does not exist: it must be a text file or a folder of them. Check it.")
    files = sorted(file for file in root.rglob("*") if file.is_file()) if root.is_dir() else [root]
    files = [file for file in files if not any(part.startswith(".") for part in file.relative_to(root).parts)]
    documents = [_read(file, str(file.relative_to(root)) if root.is_dir() else file.name, setting) for file in files]
    documents = [document for document in documents if document.text.strip()]
    if not documents:
        raise SettingError(f"{setting}={path} is empty: there is no text to learn from. Give a file with text.")
    return _in_order(documents)


def _read(file, name, setting):
    try:
        return Document(name, file.read_bytes())
    except OSError as error:
        raise SettingError(f"{setting}={file} cannot be read: {error.strerror}. Check its permissions.") from error


def _in_order(documents):
    return tuple(sorted(documents, key=lambda document: (document.position, document.name)))


def _source_documents(root):
    documents = []
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = sorted(
            name for name in subfolders if name.split("-")[0] not in _LEFT_OUT and name not in _LEFT_OUT
        )
        for name in sorted(files):
            file = pathlib.Path(folder, name)
            if file.suffix == ".py" and not name.startswith("_sysconfigdata"):
                documents.append(_read(file, file.relative_to(root).as_posix(), "data.kind=python_docs:"))
    return documents


def _topic_documents():
    """Topics that share a paragraph are one document ("compound" contains "with"): else held-out text would leak."""
    try:
        from pydoc_data.topics import topics
    except ImportError:
        return []
    groups = {name: {name} for name in topics}
    first_with = {}
    for name in sorted(topics):
        for paragraph in topics[name].split("\n\n"):
            if len(paragraph.strip()) < _SHARED_PARAGRAPH:
                continue
            other = first_with.setdefault(paragraph.strip(), name)
            if groups[other] is not groups[name]:
                groups[other] |= groups[name]
                for member in groups[name]:
                    groups[member] = groups[other]
    distinct = {min(group): sorted(group) for group in groups.values()}
    return [
        Document(f"topics/{name}", "\n\n".join(topics[member].strip() for member in members).encode())
        for name, members in sorted(distinct.items())
    ]
