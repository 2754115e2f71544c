"""What a file is that no reader of checkpoints opens: told by its first bytes, else by its name."""

from __future__ import annotations

from pathlib import Path

_BEGINNINGS = (
    (b"\x93NUMPY", "NumPy array"),
    (b"\x89HDF\r\n\x1a\n", "HDF5"),
    (b"SQLite format 3\0", "SQLite database"),
    (b"GGUF", "GGUF"),
    (b"PAR1", "Parquet"),
    (b"ARROW1", "Arrow"),
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ", "xz"),
    (b"\x89PNG", "image"),
    (b"\xff\xd8\xff", "image"),
    (b"\x7fELF", "native code"),
)
_NAMES = {
    ".distcp": "a part of what .metadata describes",
    ".onnx": "ONNX",
    ".tflite": "TensorFlow Lite",
    ".msgpack": "MessagePack",
    ".npz": "NumPy arrays",
}
_TEXTS = {
    ".json": "JSON",
    ".jsonl": "JSON lines",
    ".yaml": "YAML",
    ".yml": "YAML",
    ".toml": "TOML",
    ".csv": "CSV",
    ".py": "Python source",
    ".md": "Markdown",
}


def kind_of(path: Path, head: bytes) -> str | None:
    """A word or two for what `path` is, `head` being its first bytes; None when nothing tells."""
    if not head:
        return "empty"
    if path.name.startswith("events.out.tfevents"):
        return "TensorBoard events"
    for beginning, kind in _BEGINNINGS:
        if head.startswith(beginning):
            return kind
    if path.suffix in _NAMES:
        return _NAMES[path.suffix]
    if head.startswith(b"PK\x03\x04"):
        return "zip archive"
    if head[257:262] == b"ustar":
        return "tar archive"
    if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return "pickle, not opened: to load one is to run code from it"
    return _TEXTS.get(path.suffix, "text") if _is_text(head) else None


def _is_text(head: bytes) -> bool:
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < len(head) - 3:  # else a character that the head's end cuts
            return False
        text = head[: error.start].decode("utf-8")
    return not any(char < " " and char not in "\t\n\r\f\x1b" for char in text)
