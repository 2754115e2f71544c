"""The runs of a job's nodes read as one."""

import dataclasses
import json

import pytest

from raytrain_debug.cli import main
from raytrain_debug.errors import UsageError
from raytrain_debug.postmortem.verdict import verdict
from raytrain_debug.run import nodes, writer
from raytrain_debug.run.reader import load_run
from tests.unit.made_runs import START, MadeRun, exception


def node(root, ranks, job=None, failed=None, seconds=0.0):
    """One node's run of a job of four ranks; `failed` raised, the others were ended in consequence."""
    made = MadeRun(root, world_size=4)
    for rank in ranks:
        made.started(rank)
        made.reported(rank, 0, {"loss": float(rank)})
        if rank == failed:
            made.died(rank, exception(), time=seconds)
        made.ended(rank, 1 if rank == failed else None, None if rank == failed else "SIGTERM", caused=rank != failed)
    record = made.write(exit_code=1).record
    ends = tuple(dataclasses.replace(end, time=START + 20 + seconds + end.order / 10) for end in record.exits)
    record = dataclasses.replace(record, job=job or record.id, nnodes=2, nproc_per_node=2, exits=ends)
    writer.write_record(made.paths.record, record)
    return load_run(made.paths)


@pytest.fixture
def two_nodes(tmp_path):
    first = node(tmp_path / "a", (0, 1), seconds=2.0)
    return first, node(tmp_path / "b", (2, 3), job=first.record.id, failed=3, seconds=1.0)


@pytest.mark.parametrize("turned", [False, True])
def test_the_ranks_of_all_nodes_are_there_and_the_first_failure_is_found_on_any(two_nodes, turned):
    run = nodes.join(two_nodes[::-1] if turned else two_nodes)
    assert [rank.rank for rank in run.ranks] == [0, 1, 2, 3]
    assert run.record.id == two_nodes[0].record.id
    assert [rank.last_report.metrics["loss"] for rank in run.ranks] == [0.0, 1.0, 2.0, 3.0]
    assert [end.order for end in run.record.exits] == [0, 1, 2, 3]
    failure = verdict(run).first_failure
    assert (failure.rank, failure.exception) == (3, "ValueError: loss is nan")


def test_one_run_is_itself(two_nodes):
    assert nodes.join([two_nodes[1]]) == two_nodes[1]


def test_runs_of_different_jobs_are_refused_by_name(tmp_path, two_nodes):
    other = node(tmp_path / "c", (2, 3))
    with pytest.raises(UsageError, match=other.record.id):
        nodes.join([two_nodes[0], other])


def test_postmortem_takes_the_directories_of_all_nodes(two_nodes, capsys):
    assert main(["postmortem", "--json", *(str(run.paths.directory) for run in two_nodes)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [rank["rank"] for rank in told["ranks"]] == [0, 1, 2, 3]
    assert told["verdict"]["first_failure"]["rank"] == 3
