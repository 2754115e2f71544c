"""HTML and SVG as text that is safe by construction: what is not Markup is escaped, and only `tag` makes Markup.

A template language would do for the page's frame; most of the page is charts and nested values, which functions make.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

from raytrain_debug.run.words import visible


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Child = str | Markup | int | None | Iterable["Child"]
"""What may stand in an element: text, markup, or several of them; None is nothing."""

_VOID = frozenset({"br", "hr", "link", "meta", "wbr"})
_CLOSED = frozenset({"path", "line", "rect", "circle"})  # of SVG, where empty
_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9-]*")


def tag(element: str, /, *children: Child, **attributes: str | int | float | bool | None) -> Markup:
    """`<element attributes>children</element>`. Of attribute names a trailing `_` is dropped and `_` becomes `-`.

    An attribute that is None or False is left out, one that is True has no value.
    """
    if not _NAME.fullmatch(element):
        raise ValueError(f"{element!r} is no element")
    parts = [f"<{element}"]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        parts.append(f" {key.rstrip('_').replace('_', '-')}")
        if value is not True:
            parts.append(f'="{html.escape(visible(str(value)))}"')
    if element in _VOID:
        return Markup("".join([*parts, ">"]))
    inside = join(children)
    if not inside and element in _CLOSED:
        return Markup("".join([*parts, "/>"]))
    return Markup("".join([*parts, ">", inside, f"</{element}>"]))


def join(children: Iterable[Child]) -> Markup:
    """The children one after the other."""
    return Markup("".join(map(_markup, children)))


def _markup(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child
    if isinstance(child, (str, int)):
        return html.escape(visible(str(child)), quote=False)
    return join(child)
