"""Writes into a run directory so that a kill at any instant leaves it readable: one appended write, or a whole file.

Every file is made with mode 0600 under any umask. Nothing is fsynced: what is guarded against is a killed process,
not a lost machine, and a rank must not wait for a disk.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from typing import Any

from raytrain_debug.run import codec, records

_MODE = 0o600


def append_line(path: str | os.PathLike[str], text: str) -> None:
    """Append `text` and a newline to `path` (made if missing) in one write; raises OSError.

    When a killed writer, or a full disk, left the file's last line without its end, the new line starts on a line of
    its own.
    """
    data = text.encode("utf-8", "backslashreplace") + b"\n"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, _MODE)
    try:
        status = os.fstat(descriptor)
        if stat.S_IMODE(status.st_mode) != _MODE:
            os.fchmod(descriptor, _MODE)
        if status.st_size and os.pread(descriptor, 1, status.st_size - 1) != b"\n":
            data = b"\n" + data
        if os.write(descriptor, data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fspath(path))
    finally:
        os.close(descriptor)


def replace_file(path: str | os.PathLike[str], text: str) -> None:
    """Make `path` hold `text`, whole: a reader sees the old text or the new, never a part; raises OSError."""
    directory, name = os.path.split(os.fspath(path))
    temporary = os.path.join(directory, f".{name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE)
    try:
        with open(descriptor, "wb") as file:
            os.fchmod(descriptor, _MODE)
            file.write(text.encode("utf-8", "backslashreplace"))
        os.replace(temporary, path)
    except BaseException:
        try:
            os.unlink(temporary)
        except OSError:
            pass
        raise


def write_record(path: str | os.PathLike[str], record: Any) -> None:
    """Write a dataclass of `run.records` as the whole JSON file `path`; raises OSError."""
    replace_file(path, codec.dumps(records.to_dict(record), indent=2) + "\n")
