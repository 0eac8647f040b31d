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
_PEEKED = 4096  # bytes
_SHARED_PARAGRAPH = 200  # characters; a paragraph this long in two topics is the same text, not a turn of phrase


@dataclasses.dataclass(frozen=True)
class Document:
    """A name, which alone decides whether the document is held out, and its bytes, read when they are needed.

    Attributes:
      name: str.
      content: bytes, or the path of a file.
      first, size: the part of the content that is the document, in bytes; size -1: up to the end.
      setting: what named the file, for messages.
    """

    name: str
    content: bytes | pathlib.Path
    first: int = 0
    size: int = -1
    setting: str = "data.path"

    @property
    def num_bytes(self):
        """Bytes of the document, without reading them."""
        if self.size >= 0:
            return self.size
        whole = len(self.content) if isinstance(self.content, bytes) else self.content.stat().st_size
        return max(whole - self.first, 0)

    @property
    def text(self):
        """All of its bytes."""
        return self.read()

    def read(self, most=-1):
        """Its bytes, `most` of them at most where that is not negative.

        Raises:
          SettingError: the file cannot be read.
        """
        size = min((size for size in (self.size, most) if size >= 0), default=-1)
        if isinstance(self.content, bytes):
            return self.content[self.first : self.first + size if size >= 0 else None]
        try:
            with open(self.content, "rb") as file:
                file.seek(self.first)
                return file.read(size)
        except OSError as error:
            raise SettingError(
                f"{self.setting}={self.content} cannot be read: {error.strerror}. Check its permissions."
            ) from error

    @property
    def position(self):
        """A number in [0, 1) made from the name alone: the order of documents, and which are held out."""
        digest = hashlib.sha256(os.fsencode(self.name)).digest()
        return int.from_bytes(digest[:8], "big") / 2**64


def python_documents():
    """The language reference's topics and the standard library's sources, as this Python has them.

    Raises:
      SettingError: this Python was installed without its sources.
    """
    documents = _topic_documents() + _source_documents(pathlib.Path(sysconfig.get_paths()["stdlib"]))
    if sum(document.num_bytes for document in documents) < 1_000_000:
        raise SettingError(
            "data.kind=python_docs has too little text: this Python was installed without the standard library's "
            "sources. Use data.kind=text with data.path, or another Python."
        )
    return _in_order(documents)


def file_documents(path, setting="data.path"):
    """A text file as one document, or all files below a folder but hidden ones and blank ones.

    Raises:
      SettingError: nothing is there, or nothing is in it.
    """
    root = pathlib.Path(path)
    if not root.exists():
        raise SettingError(f"{setting}={path} does not exist: it must be a text file or a folder of them. Check it.")
    files = sorted(file for file in root.rglob("*") if file.is_file()) if root.is_dir() else [root]
    files = [file for file in files if not any(part.startswith(".") for part in file.relative_to(root).parts)]
    names = [str(file.relative_to(root)) if root.is_dir() else file.name for file in files]
    documents = [Document(name, file, setting=setting) for name, file in zip(names, files, strict=True)]
    documents = [document for document in documents if not _is_blank(document)]
    if not documents:
        raise SettingError(f"{setting}={path} is empty: there is no text to learn from. Give a file with text.")
    return _in_order(documents)


def _is_blank(document):
    """Whether nothing but white space is in it; mostly its beginning tells, so that a folder is not read twice."""
    return not (document.num_bytes and (document.read(_PEEKED).strip() or document.text.strip()))


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
                documents.append(
                    Document(file.relative_to(root).as_posix(), file, setting="data.kind=python_docs: file")
                )
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
