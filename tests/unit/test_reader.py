"""Reading a run back: whole, damaged, half there, large, and while it is written."""

import dataclasses
import os
import threading
import time

import pytest

from raytrain_debug.run import codec, layout, reader, writer
from raytrain_debug.run.records import (
    CheckpointRecord,
    ExitRecord,
    LauncherRecord,
    ProcessRecord,
    ReportRecord,
    RunRecord,
    to_dict,
)

REPORT = ReportRecord(0, 1.0, 0, {"world_size": 2}, {"loss": 0.5}, None, None)
RUN = RunRecord("20260101-000000-aaaa", ("train.py",), "/", "torchrun", 1.0, 2)


@pytest.fixture
def run(tmp_path):
    run = layout.create_run(tmp_path / layout.ROOT_NAME, "20260101-000000-aaaa")
    layout.make_private(run.rank(0).directory)
    return run


def report(run, index, rank=0, **changes):
    record = dataclasses.replace(REPORT, index=index, **changes)
    writer.append_line(run.rank(rank).reports, codec.dumps(to_dict(record)))


def test_everything_that_was_written_is_there(run):
    writer.write_record(run.record, dataclasses.replace(RUN, exits=(ExitRecord(0, 0, 9, 1.0, 0, 1, None),)))
    writer.write_record(run.rank(0).process, ProcessRecord(0, 0, 2, 9, 1.0, "h", 0, "c", "train.py"))
    report(run, 0)
    report(run, 1, metrics={"loss": float("nan")})
    loaded = reader.load_run(run)
    assert loaded.record.world_size == 2
    (rank,) = loaded.ranks
    assert (rank.rank, rank.process.pid, rank.report_count, rank.damaged) == (0, 9, 2, 0)
    assert [each.index for each in rank.reports] == [0, 1]
    assert rank.last_report.metrics["loss"] != rank.last_report.metrics["loss"]
    assert rank.last_exit.exit_code == 1
    assert loaded.rank(0) is rank
    assert loaded.rank(1) is None


def test_ranks_that_left_nothing_yet_are_listed(run):
    ports = {"0": 5678, "1": 5679}
    exits = (ExitRecord(2, 0, 9, 1.0, 0, None, "SIGKILL"),)
    writer.write_record(
        run.record, dataclasses.replace(RUN, launcher=LauncherRecord(1, 1.0, "h", "s", ports), exits=exits)
    )
    assert [rank.rank for rank in reader.load_run(run).ranks] == [0, 1, 2]


def test_a_metrics_only_report_does_not_erase_the_last_checkpoint(run):
    (run.rank(0).checkpoints / "1").mkdir(parents=True)
    report(run, 0, checkpoint=CheckpointRecord("/a", "checkpoints/0"))
    report(run, 1, checkpoint=CheckpointRecord("/b", "checkpoints/1"))
    report(run, 2)
    for last in (None, 0, 1, 10):
        (rank,) = reader.load_run(run, last).ranks
        assert rank.checkpoint_report.index == 1
        assert rank.last_checkpoint.source == "/b"
        assert rank.snapshot == run.rank(0).checkpoints / "1"
        assert rank.snapshot.is_absolute()


def test_a_snapshot_that_retention_removed_is_no_path(run):
    report(run, 0, checkpoint=CheckpointRecord("/a", "checkpoints/0"))
    report(run, 1, checkpoint=CheckpointRecord("/b", None, kept="remote"))
    (rank,) = reader.load_run(run).ranks
    assert rank.snapshot is None
    assert rank.snapshot_of(rank.reports[0].checkpoint) is None


@pytest.mark.parametrize(
    "garbage",
    [b"not json\n", b"{}\n", b"\x00\xff\n", b"[]\n", b'{"index": "x"}\n', b'{"schema":1,"index":\n', b"NaN\n"],
)
def test_an_unreadable_line_is_skipped_and_counted(run, garbage):
    report(run, 0)
    with open(run.rank(0).reports, "ab") as file:
        file.write(garbage)
    report(run, 1)
    rank = reader.load_rank(run.rank(0), 0)
    assert [each.index for each in rank.reports] == [0, 1]
    assert (rank.damaged, rank.report_count) == (1, 2)
    assert [each.index for each in reader.tail_reports(run.rank(0), 5)[1]] == [0, 1]


def test_a_last_line_that_is_being_written_is_neither_record_nor_damage(run):
    report(run, 0)
    with open(run.rank(0).reports, "ab") as file:
        file.write(codec.dumps(to_dict(dataclasses.replace(REPORT, index=1))).encode())
    rank = reader.load_rank(run.rank(0), 0)
    assert ([each.index for each in rank.reports], rank.damaged) == ([0], 0)
    assert reader.tail_reports(run.rank(0), 9)[0] == 1


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"id": 3}', "\x00"])
def test_a_half_written_or_foreign_file_reads_as_missing(run, text):
    report(run, 0)
    for path in (run.record, run.rank(0).process, run.rank(0).core):
        path.write_text(text)
    loaded = reader.load_run(run)
    assert loaded.record is None
    assert (loaded.ranks[0].process, loaded.ranks[0].core, loaded.ranks[0].report_count) == (None, None, 1)


def test_a_missing_or_foreign_directory_reads_as_an_empty_run(tmp_path, run):
    assert reader.load_run(layout.RunPaths(tmp_path / "nowhere")).ranks == ()
    (run.ranks / "not a rank").mkdir()
    (run.ranks / "1").write_text("a file")
    assert [rank.rank for rank in reader.load_run(run).ranks] == [0, 1]


@pytest.mark.parametrize("size", [1, 1000, 70_000, 200_000])
def test_the_tail_is_right_whatever_the_lines_length(run, size):
    for index in range(12):
        report(run, index, metrics={"text": "é" * size})
    everything = reader.load_rank(run.rank(0), 0).reports
    for n in (0, 1, 3, 12, 50):
        count, reports = reader.tail_reports(run.rank(0), n)
        assert count == 12
        assert reports == everything[len(everything) - min(n, 12) :]


def test_reading_the_tail_does_not_grow_with_the_file(run):
    line = codec.dumps(to_dict(REPORT)) + "\n"
    with open(run.rank(0).reports, "w") as file:
        file.writelines(line.replace('"index":0', f'"index":{index}') for index in range(100_000))
    start = time.process_time()
    count, reports = reader.tail_reports(run.rank(0), 1)
    assert time.process_time() - start < 0.1  # parsing them all takes twenty times as long
    assert (count, reports[0].index) == (100_000, 99_999)


def test_reading_while_writing_sees_whole_records_only(run):
    stop = threading.Event()

    def write():
        index = 0
        while not stop.is_set():
            report(run, index, metrics={"text": "x" * (index * 37 % 5000)})
            index += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(100):
            rank = reader.load_rank(run.rank(0), 0, last=5)
            indices = [each.index for each in rank.reports]
            assert indices == list(range(indices[0], indices[0] + len(indices))) if indices else True
            assert rank.report_count == (indices[-1] + 1 if indices else 0)
    finally:
        stop.set()
        thread.join()
    assert reader.load_rank(run.rank(0), 0).damaged == 0


def test_temporary_files_of_a_killed_writer_are_not_read(run):
    (run.directory / ".run.json.1-ab.tmp").write_text("{")
    (run.rank(0).directory / ".process.json.1-ab.tmp").write_text("{")
    assert reader.load_run(run).record is None
    assert os.listdir(run.ranks) == ["0"]
