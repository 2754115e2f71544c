"""Stacks of many ranks become one tree: nothing lost, nothing twice, and readable at any width."""

import io
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from raytrain_debug.across.hang import Ended
from raytrain_debug.across.stacks import (
    Frame,
    Group,
    Node,
    RankStacks,
    Sample,
    Stack,
    fold,
    merge,
    read_sample,
    short_ranks,
    stacks_of,
    to_json,
)
from raytrain_debug.errors import ControlError
from raytrain_debug.render.lines import plain
from raytrain_debug.render.stacks import Tree, View, render, tree_lines

MAIN = Frame("/job/train.py", 120, "<module>")
LOOP = Frame("/job/train.py", 80, "train_loop")
STEP = Frame("/job/train.py", 88, "step")
LOAD = Frame("/job/data.py", 12, "load_batch")
TORCH = Frame("/lib/torch/distributed/distributed_c10d.py", 3252, "all_reduce", library=True)

frames = st.builds(
    Frame, st.sampled_from(["/job/a.py", "/lib/b.py"]), st.integers(1, 3), st.sampled_from("fgh"), st.booleans()
)
stacks = st.lists(
    st.tuples(st.lists(frames, max_size=5).map(tuple), st.sampled_from([None, "all_reduce", "barrier"])), max_size=12
).map(lambda each: [Stack(rank, *rest) for rank, rest in enumerate(each)])


def sample_of(*each: Stack, silent: dict[int, str] | None = None) -> Sample:
    return Sample({stack.rank: RankStacks(stack.rank, "running", (stack,)) for stack in each}, silent or {})


FOUR = sample_of(
    *(Stack(rank, (MAIN, LOOP, STEP, TORCH), "all_reduce", True) for rank in (0, 2, 3)), Stack(1, (MAIN, LOOP, LOAD))
)


def leaves(nodes: list[Node], above: tuple[Frame, ...] = ()) -> list[tuple[Group, tuple[Frame, ...]]]:
    found = []
    for node in nodes:
        path = (*above, *node.frames)
        found += [(node.group, path)] if node.group else leaves(node.branches, path)
        assert node.group is None or not node.branches
    return found


@given(stacks, st.booleans())
def test_every_rank_is_in_one_leaf_whose_path_is_its_stack(each, library):
    groups = fold(each, library)
    found = leaves(merge(groups))
    assert sorted(rank for group, _ in found for rank in group.ranks) == [stack.rank for stack in each]
    by_rank = {rank: (group, path) for group, path in found for rank in group.ranks}
    for stack in each:
        own = tuple(frame for frame in stack.frames if library or not frame.library) or stack.frames
        group, path = by_rank[stack.rank]
        assert path == own == group.frames
        assert group.waiting_in == stack.waiting_in


@given(stacks)
def test_ranks_of_a_branch_are_those_below_it(each):
    def check(node: Node) -> None:
        if node.branches:
            assert len(node.branches) > 1
            assert sorted(node.ranks) == sorted(rank for branch in node.branches for rank in branch.ranks)
            for branch in node.branches:
                check(branch)

    for root in merge(fold(each)):
        check(root)


@given(stacks, st.integers(8, 90), st.booleans())
def test_lines_never_exceed_the_width_and_name_every_leaf(each, width, ascii_only):
    tree = Tree(merge(fold(each)), View("/job"))
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=False, legacy_windows=False)
    console.print(tree)
    lines = out.getvalue().splitlines()
    assert all(len(line) <= width for line in lines)
    if ascii_only:
        assert all("├" not in line for line in plain(tree_lines(tree.roots, tree.view, width, ascii_only=True)))


def test_common_frames_once_then_a_branch_for_each_place():
    lines = plain(tree_lines(merge(fold(stacks_of(FOUR))), View("/job")))
    assert lines == [
        "0-3  <module>  train.py:120",
        "     train_loop  train.py:80",
        "├─ 0,2-3  step  train.py:88",
        "│         waits in all_reduce",
        "└─ 1      load_batch  data.py:12",
    ]


def test_library_frames_on_request():
    lines = plain(tree_lines(merge(fold(stacks_of(FOUR), library=True)), View("/job", library=True)))
    assert any("all_reduce  /lib/torch" in line for line in lines)


def test_stack_without_a_frame_of_the_user_keeps_what_there_is():
    lines = plain(tree_lines(merge(fold([Stack(0, (TORCH,), "all_reduce")])), View()))
    assert lines[0].startswith("0  all_reduce  ")


def test_ranks_at_one_place_in_different_waits_are_apart():
    groups = fold([Stack(0, (MAIN, STEP), "all_reduce"), Stack(1, (MAIN, STEP), "barrier"), Stack(2, (MAIN, STEP))])
    assert [(group.ranks, group.waiting_in) for group in groups] == [
        ((0,), "all_reduce"),
        ((1,), "barrier"),
        ((2,), None),
    ]
    assert len(leaves(merge(groups))) == 3


def test_json_has_the_groups_and_who_is_silent():
    found = to_json(Sample(FOUR.ranks, {4: "no answer", 5: "no answer"}))
    assert found["groups"][0] == {
        "ranks": [0, 2, 3],
        "waiting_in": "all_reduce",
        "frames": [
            {"file": "/job/train.py", "line": 120, "function": "<module>"},
            {"file": "/job/train.py", "line": 80, "function": "train_loop"},
            {"file": "/job/train.py", "line": 88, "function": "step"},
        ],
    }
    assert found["groups"][1]["waiting_in"] is None
    assert found["errors"] == [{"ranks": [4, 5], "error": "no answer"}]


def test_json_has_the_merged_tree():
    (root,) = to_json(FOUR)["tree"]
    assert root["ranks"] == [0, 1, 2, 3]
    assert [frame["function"] for frame in root["frames"]] == ["<module>", "train_loop"]
    assert root["waits"] is None
    branches = [
        (each["ranks"], [frame["line"] for frame in each["frames"]], each["waits"]) for each in root["branches"]
    ]
    assert branches == [([0, 2, 3], [88], "waits in all_reduce"), ([1], [12], None)]
    assert all(each["branches"] == [] for each in root["branches"])


def test_answers_that_make_no_sense_are_silence_in_words():
    good = {
        "state": "running",
        "started": {"0": 3},
        "pending": [],
        "work": [0.5, 7],
        "threads": [
            {
                "name": "MainThread",
                "training": True,
                "waiting_in": None,
                "peers": False,
                "mark": 1,
                "frames": [["/job/train.py", 88, "step", 3], ["/lib/torch/x.py", 1, "f", 1]],
            }
        ],
    }
    found = read_sample({0: good, 1: {"threads": []}, 2: {**good, "threads": 7}, 3: ControlError("no answer")})
    assert found.ranks[0].training.place == STEP
    assert sorted(found.silent) == [1, 2, 3]
    assert found.silent[3] == "no answer"


def test_many_ranks_are_shortened_but_counted():
    assert short_ranks([0, 2, 3]) == "0,2-3"
    every_other = short_ranks(range(0, 200, 2), 16)
    assert every_other.endswith("(100)")
    assert len(every_other) <= 16


def test_ended_and_silent_ranks_are_named():
    out = io.StringIO()
    console = Console(file=out, width=80)
    sample = Sample(FOUR.ranks, {5: "no answer within 2 s"})
    for part in render(sample, View("/job"), [Ended(4, "has returned (exit code 0)")]):
        console.print(part)
    assert "rank 4 has returned (exit code 0)" in out.getvalue()
    assert "rank 5: no answer within 2 s" in out.getvalue()


def test_still_ranks_say_for_how_long():
    still = {0: 65, 2: 70, 3: 80, 1: 0.5}
    lines = plain(tree_lines(merge(fold(stacks_of(FOUR))), View("/job", still=still, moved={1})))
    assert any("here for 1 min 5 s" in line for line in lines)
    assert lines[-1].endswith("moves")


def test_a_rank_moves_only_if_it_was_elsewhere_at_the_last_look():
    lines = plain(tree_lines(merge(fold(stacks_of(FOUR))), View("/job", still=dict.fromkeys(range(4), 1.0))))
    assert not any("moves" in line or "here for" in line for line in lines)


def test_control_characters_in_names_reach_no_terminal():
    out = io.StringIO()
    Console(file=out, width=80).print(Tree(merge(fold([Stack(0, (Frame("/x\x1b[31m.py", 1, "f\x07"),))])), View()))
    assert "\x1b" not in out.getvalue()
    assert "\x07" not in out.getvalue()


@pytest.mark.parametrize("count", [4096])
def test_thousands_of_ranks_are_merged_and_shown(count):
    each = [Stack(rank, (MAIN, LOOP, STEP if rank % 100 else LOAD, TORCH), "all_reduce") for rank in range(count)]
    lines = plain(tree_lines(merge(fold(each)), View("/job")))
    assert len(lines) == 6
    assert sum(len(group.ranks) for group in fold(each)) == count
    assert os.path.basename(LOAD.file) in lines[-2]
