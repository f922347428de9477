"""An SVG file as part of a page: no references to the outside, no scripts, identifiers of its own.

Several figures on one page share one space of identifiers, so those of each get a prefix. Of a file only
drawing survives: elements of SVG without scripts, foreign content, style sheets and metadata; references to
elements of the same file and to images that the file itself contains.

Cost: parses the file once.
"""

import html
import re
import xml.etree.ElementTree as ET
from pathlib import Path

_SVG, _XLINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}"
_LEFT_OUT = frozenset({"metadata", "style", "script", "foreignObject", "title", "desc"})
_PIXELS = {"pt": 96 / 72, "in": 96.0, "px": 1.0, "": 1.0}
_URL = re.compile(r"url\(\s*(['\"]?)(.*?)\1\s*\)", re.IGNORECASE)


def inline(file: Path, prefix: str, label: str) -> str:
    """The drawing as an ``<svg>`` element of an HTML page.

    Args:
        file: an SVG file.
        prefix: put before all identifiers, different for every figure of a page.
        label: what a screen reader says; any text.

    Returns:
        The element, with its natural width in CSS pixels as the property ``--natural``.
    """
    root = ET.parse(file).getroot()
    if root.tag != f"{_SVG}svg":
        raise ValueError(f"file must be an SVG drawing, got {str(file)!r}")
    width = _pixels(root.get("width", ""))
    natural = f"--natural: {width:.0f}px; " if width else ""
    # What matplotlib says in a style sheet, which would hold for the whole page.
    drawn = f"{natural}stroke-linejoin: round; stroke-linecap: butt"
    opening = {
        "viewBox": root.get("viewBox", ""),
        "role": "img",
        "aria-label": label,
        "style": drawn,
    }
    body = "".join(_element(child, prefix) for child in root)
    return f"<svg{_attributes(opening)}>{body}</svg>"


def _element(element: ET.Element, prefix: str) -> str:
    tag = element.tag.removeprefix(_SVG) if isinstance(element.tag, str) else ""
    if not tag or tag.startswith("{") or tag in _LEFT_OUT:
        return ""
    kept = {}
    for name, value in element.attrib.items():
        found = _attribute(name, value, prefix)
        if found is not None:
            kept[found[0]] = found[1]
    body = html.escape((element.text or "").strip(), quote=False)
    for child in element:
        body += _element(child, prefix) + html.escape((child.tail or "").strip(), quote=False)
    return f"<{tag}{_attributes(kept)}>{body}</{tag}>"


def _attribute(name: str, value: str, prefix: str) -> tuple[str, str] | None:
    """Name and value on the page; ``None`` for what would reach out of it."""
    name = name.removeprefix(_XLINK)
    if name.startswith("{") or name.lower().startswith("on"):
        return None
    if name == "id":
        return name, f"{prefix}-{value}"
    if name == "href":
        if value.startswith("#"):
            return name, f"#{prefix}-{value[1:]}"
        return (name, value) if value.startswith("data:image/") else None
    if all(target.startswith("#") for _, target in _URL.findall(value)):
        return name, _URL.sub(lambda match: f"url(#{prefix}-{match[2][1:]})", value)
    return None


def _attributes(values: dict[str, str]) -> str:
    return "".join(f' {name}="{html.escape(value)}"' for name, value in values.items())


def _pixels(length: str) -> float:
    found = re.fullmatch(r"([0-9.]+)([a-z]*)", length)
    return float(found[1]) * _PIXELS.get(found[2], 0.0) if found else 0.0
