"""Processes that a rank makes: none is taken for the rank, writes into its run, keeps its sockets, or hangs."""

import pytest

from tests.conftest import REPOSITORY, TARGETS
from tests.interpreters import VERSIONS, interpreter

CHILDREN, TRACED = TARGETS / "children.py", TARGETS / "traced_children.py"
IN_WORK = 1 + next(
    at for at, line in enumerate(TRACED.read_text().splitlines()) if line.endswith("a breakpoint goes here")
)
KINDS = (
    "fork",
    "fork of a fork",
    "DataLoader fork",
    "DataLoader fork persistent",
    "DataLoader spawn",
    "DataLoader spawn persistent",
    "torch.multiprocessing",
)


@pytest.mark.parametrize("debugged", [False, True])
def test_children_are_no_ranks(launch, debugged):
    job = launch("--nproc-per-node", "2", *(["--wait", "1"] if debugged else []), CHILDREN)
    session = job.session(1) if debugged else None
    assert job.wait(120) == 0, job.output
    for rank in (0, 1):
        for kind in KINDS:
            assert f"rank {rank} {kind}: fine" in job.output, job.output
        assert f"rank {rank} subprocess: False" in job.output
        assert f"rank {rank} done" in job.output
    assert "raytrain_debug/" not in job.output, "no traceback of ours, which Python prints when a hook of a fork fails"
    assert "rank 0 fork has 0 sockets" in job.output, "what the rank listens on stays the rank's"
    run = job.run
    assert [rank.rank for rank in run.ranks] == [0, 1]
    assert len({end.pid for end in run.record.exits}) == 2
    assert [run.rank(rank).process.pid for rank in (0, 1)] == [run.rank(rank).exits[0].pid for rank in (0, 1)]
    assert len(list(run.paths.directory.parent.iterdir())) == 1, "no child has made a run of its own"
    if session is not None:
        session.disconnect()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_breakpoint_in_what_children_run_stops_the_rank_alone(launch, version):
    job = launch("--no-torchrun", TRACED, python=interpreter(version), env={"PYTHONPATH": str(REPOSITORY)})
    job.wait_state("dormant")
    session = job.session()
    session.set_breakpoint(str(TRACED), line=IN_WORK)
    (job.cwd / "go").touch()
    assert session.wait_for_stop(60) is not None
    # The session is the rank's and has outlived all children, however they ended.
    assert session.evaluate("who", session.stack()[0]).value == "the rank"
    for who in ("fork _exit", "fork exit", "fork", "spawn", "forkserver"):
        assert f"{who} worked untraced 1\n" in job.output
    assert "['pool worked', 'pool worked']" in job.output
    session.resume()
    assert job.wait(30) == 0, job.output
    assert "the rank worked" in job.output
