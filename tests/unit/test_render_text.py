"""Words and numbers in tables; text of the user's that tries to be more than text."""

import io
import math

import pytest
from rich.console import Console

from raytrain_debug.render import text
from raytrain_debug.run.words import visible


def printed(*renderables, width=80, **options):
    console = Console(width=width, file=io.StringIO(), emoji=False, highlight=False, **options)
    for renderable in renderables:
        console.print(renderable)
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (4 << 30, "4.0 GiB"), (5000 << 40, "5000.0 TiB")],
)
def test_sizes(count, words):
    assert text.size(count) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-3, "0.0 s"),
        (0.26, "0.3 s"),
        (42.4, "42 s"),
        (59.7, "1 min"),
        (185, "3 min 5 s"),
        (7800, "2 h 10 min"),
        (356400, "4 d 3 h"),
    ],
)
def test_durations(seconds, words):
    assert text.duration(seconds) == words


@pytest.mark.parametrize(
    ("value", "words"), [(None, "-"), (12345678, "12345678"), (-0.00012345, "-0.0001234"), (1e20, "1e+20"), (0.0, "0")]
)
def test_numbers(value, words):
    assert text.number(value) == words


def test_pairs_show_values_as_they_were_recorded():
    values = {
        "loss": 0.123456789,
        "bad": math.nan,
        "step": 12,
        "on": True,
        "name": "a b",
        "tag": "x",
        "empty": "",
        "getter": {"$error": "NotImplementedError"},
        "object": {"$type": "m.C", "repr": "<C\n  1>"},
        "nested": {"a": [1, 2]},
    }
    assert text.pairs(values).plain == (
        'loss=0.123457 bad=nan step=12 on=True name="a b" tag=x empty="" getter=<NotImplementedError> object=<C 1> '
        'nested={"a":[1,2]}'
    )


def test_of_very_many_pairs_the_first_are_shown_and_the_rest_counted():
    shown = text.pairs({f"m{number}": number for number in range(3000)}).plain
    assert shown.startswith("m0=0 m1=1 ")
    assert shown.endswith(" m49=49 … and 2950 more")


def test_a_long_value_is_bounded():
    assert len(text.pairs({"x": list(range(10_000))}).plain) < 250


@pytest.mark.parametrize(
    "hostile", ["[bold]x[/bold]", "[/]", "a\x1b[2Jb", ":smile:", "bell\x07", "back\x08", "\ud800", "\u202eabc", "c\rd"]
)
def test_user_text_is_shown_and_never_obeyed(hostile):
    out = printed(text.plain(hostile), text.pairs({hostile: hostile}), force_terminal=True)
    assert not set(out) & set("\x07\x08\r\u202e\ud800")
    assert "\x1b[2J" not in out
    assert visible(hostile) in out.replace("\x1b[2m", "").replace("\x1b[0m", "")


def test_fitting_takes_the_narrow_form_where_the_wide_one_would_fold():
    fitting = text.Fitting(text.table(("a", "b"), [(text.plain("x" * 20), text.plain("y" * 20))]), text.plain("narrow"))
    assert "narrow" not in printed(fitting, width=60)
    assert printed(fitting, width=30) == "narrow\n"


def test_bars_show_every_count_that_is_not_zero():
    assert text.bars([0, 1, 500, 1000]) == " ▁▄█"
    assert text.bars([]) == ""
    assert text.bars([0, 0]) == "  "
