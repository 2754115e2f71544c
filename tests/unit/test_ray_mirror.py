"""Records of a rank on another node, brought over piece by piece."""

from __future__ import annotations

import os

import pytest

from raytrain_debug.run import layout, writer
from raytrain_debug.shim import ray_mirror


@pytest.fixture
def there(tmp_path):
    directory = tmp_path / "there"
    (directory / "core" / "sources").mkdir(parents=True)
    (directory / "checkpoints" / "0").mkdir(parents=True)
    return directory


def bring(there, here, known):
    """Bring all that is new; how many pieces that were."""
    pieces = ray_mirror.news(str(there), known)
    ray_mirror.bring(pieces, here, known)
    return len(pieces)


def test_what_is_small_comes_over_and_only_what_is_new(there, tmp_path):
    here, known = tmp_path / "here", {}
    writer.replace_file(there / "process.json", "{}")
    writer.append_line(there / "reports.jsonl", "one")
    (there / "checkpoints" / "0" / "model.pt").write_bytes(b"big")
    assert bring(there, here, known) == 2
    assert bring(there, here, known) == 0
    writer.append_line(there / "reports.jsonl", "two")
    [piece] = ray_mirror.news(str(there), known)
    assert (piece.name, piece.offset, piece.data) == ("reports.jsonl", 4, b"two\n")
    ray_mirror.bring([piece], here, known)
    writer.replace_file(there / "process.json", '{"pid": 2}')
    (there / "core" / "sources" / "0.py").write_text("x = 1\n")
    (there / "core" / "tensors.safetensors").write_bytes(b"\x00\xff")
    assert bring(there, here, known) == 3
    files = {path.relative_to(here).as_posix() for path in here.rglob("*") if path.is_file()}
    assert files == {"process.json", "reports.jsonl", "core/sources/0.py", "core/tensors.safetensors"}
    for name in files:
        assert (here / name).read_bytes() == (there / name).read_bytes()
        assert os.stat(here / name).st_mode & 0o777 == 0o600


def test_a_file_that_grows_beyond_one_piece_comes_in_several(there, tmp_path, monkeypatch):
    monkeypatch.setattr(ray_mirror, "_AT_ONCE", 10)
    here, known = tmp_path / "here", {}
    (there / "reports.jsonl").write_text("0123456789" * 3 + "\n")
    assert [bring(there, here, known) for _ in range(5)] == [1, 1, 1, 1, 0]
    assert (here / "reports.jsonl").read_bytes() == (there / "reports.jsonl").read_bytes()


def test_a_file_that_has_become_shorter_comes_anew(there, tmp_path):
    here, known = tmp_path / "here", {}
    (there / "reports.jsonl").write_text("one\ntwo\n")
    bring(there, here, known)
    (there / "reports.jsonl").write_text("new\n")
    bring(there, here, known)
    assert (here / "reports.jsonl").read_text() == "new\n"


def test_what_is_too_big_or_gone_stays_away(there, tmp_path, monkeypatch):
    monkeypatch.setattr(ray_mirror, "_MOST", 10)
    (there / "core.json").write_text("x" * 11)
    assert bring(there, tmp_path / "here", {}) == 0
    assert ray_mirror.news(str(tmp_path / "nowhere"), {}) == []


def test_a_rank_that_is_started_elsewhere_takes_along_what_it_has_recorded(there, tmp_path):
    here, moved = tmp_path / "here", {}
    writer.append_line(there / "reports.jsonl", "of attempt 0")
    writer.replace_file(there / "core.json", "0")
    bring(there, here, {})
    elsewhere = tmp_path / "elsewhere"
    while pieces := ray_mirror.earlier(str(here), moved):
        ray_mirror.bring(pieces, elsewhere, {})
        moved |= {piece.name: piece.stamp for piece in pieces}
    writer.append_line(elsewhere / "reports.jsonl", "of attempt 1")
    os.replace(elsewhere / "core.json", elsewhere / "core-0.json")
    writer.replace_file(elsewhere / "core.json", "1")
    bring(elsewhere, here, ray_mirror.counted(moved))
    assert (here / "reports.jsonl").read_text() == "of attempt 0\nof attempt 1\n"
    assert [(here / name).read_text() for name in ("core-0.json", "core.json")] == ["0", "1"]


def test_a_node_that_sees_the_run_has_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr(layout, "runtime_directory", lambda: tmp_path / "own")
    run = layout.create_run(tmp_path / layout.ROOT_NAME)
    (tmp_path / "own").mkdir(mode=0o700)
    apart = ray_mirror.run_on_this_node(str(run.directory))
    assert apart == tmp_path / "own" / layout.ROOT_NAME / "runs" / run.id
    run.record.write_text("{}")
    assert ray_mirror.run_on_this_node(str(run.directory)) == run.directory
