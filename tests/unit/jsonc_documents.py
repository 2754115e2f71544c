"""Random JSONC documents for tests of raytrain_debug.editor: values with comments, odd spacing and commas."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

# Examples are small; only the machine's load would make one miss a deadline.
unhurried = settings(deadline=None)

KEYS = st.sampled_from(["name", "label", "a", "b", "c d", 'q"uote', "ü", ""])
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.floats(allow_nan=False, allow_infinity=False, width=32).map(lambda number: number + 0.0)  # no -0.0
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
    | st.sampled_from(["// no comment", "/* none */", ",]}", "\\", "x"])
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12
)
COMMENTS = [
    "// #",
    '// "quoted", [brackets] } #',
    "// /* not opened #",
    "/* block # */",
    "/* // , ] # */",
    "/*#**/",
    "//#",
]


@st.composite
def documents(draw: st.DrawFn, values: st.SearchStrategy[Any] = VALUES) -> tuple[str, Any]:
    """A JSONC text and its value."""
    value = draw(values)
    return render(value, draw(st.randoms(use_true_random=False)), draw(st.sampled_from(["\n", "\r\n"]))), value


def render(value: Any, rng: random.Random, eol: str = "\n") -> str:
    """`value` as JSONC in a random style: one line, tidy, or with blanks and comments in every gap.

    Each comment holds a number of its own after a `#`.
    """
    style = rng.choice(["line", "tidy", "tidy", "wild", "wild"])
    trailing = rng.random() < 0.4
    unit = rng.choice(["  ", "    ", "\t"])
    bom = "\ufeff" if rng.random() < 0.1 else ""
    numbers = itertools.count()

    def comment() -> str:
        return rng.choice(COMMENTS).replace("#", f"#{next(numbers)}")

    def gap() -> str:
        if style != "wild" or rng.random() < 0.6:
            return ""
        parts = []
        for _ in range(rng.randint(1, 3)):
            parts.append(rng.choice([" ", "\t", eol, "  ", comment()]))
            if parts[-1].startswith("//"):
                parts.append(eol)
        return "".join(parts)

    def line_end() -> str:
        return " " + comment() if style == "tidy" and rng.random() < 0.2 else ""

    def written(part: Any, depth: int) -> str:
        if not isinstance(part, (dict, list)):
            return json.dumps(part, ensure_ascii=rng.random() < 0.5)
        opening, closing = "{}" if isinstance(part, dict) else "[]"
        if isinstance(part, dict):
            members = [
                f"{written(key, 0)}{gap()}:{gap() or rng.choice(['', ' '])}{written(item, depth + 1)}"
                for key, item in part.items()
            ]
        else:
            members = [written(item, depth + 1) for item in part]
        text = opening + (line_end() if members else "")
        for index, member in enumerate(members):
            comma = "," if index < len(members) - 1 or (trailing and rng.random() < 0.8) else ""
            start = eol + unit * (depth + 1) if style == "tidy" else rng.choice(["", " "])
            text += f"{start}{gap()}{member}{gap()}{comma}{line_end()}{gap()}"
        return text + (eol + unit * depth if style == "tidy" and members else gap()) + closing

    return bom + gap() + written(value, 0) + gap()
