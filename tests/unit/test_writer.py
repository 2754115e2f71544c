"""Appended lines and replaced files: modes, torn lines, full disks, kills."""

import os
import resource
import signal
import stat
import subprocess
import sys
import threading
import time

import pytest

from raytrain_debug.run import reader, writer
from raytrain_debug.run.records import ProcessRecord


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


@pytest.mark.parametrize("mask", [0o000, 0o777])
def test_files_are_0600_under_any_umask(tmp_path, mask):
    before = os.umask(mask)
    try:
        writer.append_line(tmp_path / "a", "x")
        writer.append_line(tmp_path / "a", "y")
        writer.replace_file(tmp_path / "b", "x")
    finally:
        os.umask(before)
    assert mode(tmp_path / "a") == mode(tmp_path / "b") == 0o600
    assert (tmp_path / "a").read_text() == "x\ny\n"


def test_an_appended_line_is_one_write(tmp_path, monkeypatch):
    writes = []
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: writes.append(bytes(data)) or real(fd, data))
    writer.append_line(tmp_path / "a", "x" * 100_000)
    assert writes == [b"x" * 100_000 + b"\n"]


def test_a_torn_last_line_does_not_swallow_the_next_record(tmp_path):
    path = tmp_path / "reports.jsonl"
    path.write_bytes(b'{"whole": 1}\n{"torn": ')
    writer.append_line(path, '{"next": 2}')
    assert path.read_bytes() == b'{"whole": 1}\n{"torn": \n{"next": 2}\n'


def test_a_symlink_in_the_place_of_the_file_is_not_followed(tmp_path):
    (tmp_path / "victim").write_text("")
    (tmp_path / "link").symlink_to("victim")
    with pytest.raises(OSError):  # noqa: PT011
        writer.append_line(tmp_path / "link", "x")
    writer.replace_file(tmp_path / "link", "x")
    assert (tmp_path / "victim").read_text() == ""


def test_text_that_is_not_utf8_is_written(tmp_path):
    writer.append_line(tmp_path / "a", "file \udcff")
    writer.replace_file(tmp_path / "b", "file \udcff")
    assert (tmp_path / "a").read_bytes() == b"file \\udcff\n"


def limited_to(size):
    """In a child: no file may grow beyond `size` bytes, as on a full disk, with an error in place of a signal."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def test_a_write_cut_short_is_an_error_and_the_next_line_stands_alone(tmp_path):
    path = tmp_path / "a"
    writer.append_line(path, "first")
    code = f"from raytrain_debug.run import writer; writer.append_line({str(path)!r}, 'x' * 100)"
    child = subprocess.run([sys.executable, "-c", code], preexec_fn=lambda: limited_to(50), capture_output=True)
    assert b"OSError" in child.stderr
    writer.append_line(path, "last")
    lines = path.read_text().splitlines()
    assert (lines[0], lines[-1], len(lines)) == ("first", "last", 3)


def test_a_file_that_cannot_be_written_whole_stays_as_it_was(tmp_path):
    path = tmp_path / "run.json"
    writer.replace_file(path, "old")
    code = f"from raytrain_debug.run import writer; writer.replace_file({str(path)!r}, 'x' * 100)"
    child = subprocess.run([sys.executable, "-c", code], preexec_fn=lambda: limited_to(50), capture_output=True)
    assert b"OSError" in child.stderr
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["run.json"]


def test_readers_see_a_whole_file_while_it_is_replaced(tmp_path):
    path = tmp_path / "a"
    texts = {letter * 200_000 for letter in "abc"}
    writer.replace_file(path, "a" * 200_000)
    stop = threading.Event()

    def replace():
        while not stop.is_set():
            for text in texts:
                writer.replace_file(path, text)

    thread = threading.Thread(target=replace)
    thread.start()
    try:
        seen = {path.read_text() for _ in range(200)}
    finally:
        stop.set()
        thread.join()
    assert seen <= texts


@pytest.mark.parametrize("delay", [0.0, 0.003, 0.011, 0.02, 0.037])
def test_a_kill_during_replacing_leaves_a_whole_record(tmp_path, delay):
    path = tmp_path / "process.json"
    code = f"""
from raytrain_debug.run import writer
from raytrain_debug.run.records import ProcessRecord
record = ProcessRecord(0, 0, 2, 1, 1.0, "h" * 100_000, 0, "c", "s")
writer.write_record({str(path)!r}, record)
print("ready", flush=True)
while True:
    writer.write_record({str(path)!r}, record)
"""
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"ready\n"
    time.sleep(delay)
    child.kill()
    child.wait()
    child.stdout.close()
    record = reader.read_record(path, ProcessRecord)
    assert record is not None
    assert record.host == "h" * 100_000
