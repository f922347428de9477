"""A report as one page that needs nothing else: tables, figures, settings and software in one HTML file.

Everything that comes from an experiment is escaped, and figures are taken over as drawings only, so the page
runs nothing; its content policy allows no script and no request. Equal stores give equal pages.

Cost: reads the store once; the size is that of the figures.
"""

import html
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dpsco_jax._checks import require_instance
from dpsco_jax.sweeps import _failures
from dpsco_jax.sweeps._collect import Collected, Shown
from dpsco_jax.sweeps.cells import axes, cells_of, constants
from dpsco_jax.sweeps.experiment import Experiment
from dpsco_jax.sweeps.store import Store

FILE_NAME = "report.html"
"""What the page is called in the folder of its experiment."""
_MOST_ROWS = 500
_MOST_VALUES = 12
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def write(experiment: Experiment, store: Store, folder: Path, collected: Collected) -> Path:
    """Writes the page of an experiment into a folder.

    Args:
        experiment: an instance, its fields the configuration.
        store: where its cells are.
        folder: where the page goes.
        collected: the tables and figures of its report, as ``_collect.collecting`` notes them.

    Returns:
        The path of the page.
    """
    require_instance("store", store, Store)
    require_instance("folder", folder, str | Path)
    folder = Path(folder)
    require_instance("collected", collected, Collected)
    cells = cells_of(experiment)
    rows = store.rows(cells)
    sections = [
        ("results", "Results", _results(collected)),
        ("failures", "Failures", _failed(rows)),
        ("settings", "Settings", _settings(experiment)),
        ("software", "Software and runs", _software(rows)),
        ("cells", "Cells", _cells(rows)),
    ]
    filled = [section for section in sections if section[2]]
    links = "".join(f'<li><a href="#{name}">{title}</a></li>' for name, title, _ in filled)
    body = "".join(
        f'<section id="{name}"><h2>{title}</h2>{text}</section>' for name, title, text in filled
    )
    description = (experiment.__doc__ or "").partition("\n")[0]
    title = html.escape(experiment.name)
    path = folder / FILE_NAME
    path.write_text(
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{_CSS}</style></head><body>"
        f'<header><h1>{title}</h1><p class="lead">{html.escape(description)}</p>'
        f"{_tally(rows, len(cells))}<nav><ul>{links}</ul></nav></header>"
        f"<main>{body}</main></body></html>\n",
        encoding="utf-8",
    )
    return path


def _tally(rows: Sequence[Mapping[str, Any]], total: int) -> str:
    states = [row["status"] for row in rows]
    failed, nonfinite = states.count("failed"), states.count("nonfinite")
    seconds = sum(row["seconds"] or 0.0 for row in rows)
    counts = {
        "cells with a result": f"{len(rows) - failed} of {total}",
        "not finite": str(nonfinite),
        "failed": str(failed),
        "computing": f"{seconds:.1f} s",
        "last cell stored": max((row["finished"] for row in rows), default="never")[:10],
    }
    bad = {"failed"} if failed else set()
    return (
        '<dl class="tally">'
        + "".join(
            f"<div><dt>{name}</dt><dd{_classed('bad' if name in bad else '')}>{value}</dd></div>"
            for name, value in counts.items()
        )
        + "</dl>"
    )


def _results(collected: Collected) -> str:
    figures = []
    for number, path in enumerate(collected.figures, start=1):
        name = path.stem.replace("_", " ")
        drawing = _inline(path, f"figure-{number}", name)
        figures.append(
            f"<figure><figcaption>{html.escape(name)}</figcaption>"
            f"{_scrolling(drawing, name, 'drawing')}</figure>"
        )
    return "".join(figures) + "".join(_table(shown) for shown in collected.tables)


def _failed(rows: Iterable[Mapping[str, Any]]) -> str:
    counts: dict[str, int] = {}
    for row in rows:
        if row["status"] == "failed":
            counts[row["traceback"]] = counts.get(row["traceback"], 0) + 1
    return "".join(
        f'<details><summary><span class="bad">{count} cells:</span> '
        f"{html.escape(_failures.message(text))}</summary>"
        f"{_scrolling(f'<pre>{html.escape(text)}</pre>', 'traceback')}</details>"
        for text, count in counts.items()
    )


def _settings(experiment: Experiment) -> str:
    spanned = [(name, _values(values)) for name, values in axes(experiment).items()]
    fixed = [(name, _text(value)) for name, value in constants(experiment).items()]
    fixed.append(("version of the experiment", _text(experiment.version)))
    return _pairs("Axes", ("axis", "values"), spanned) + _pairs(
        "Constants", ("name", "value"), fixed
    )


def _software(rows: Sequence[Mapping[str, Any]]) -> str:
    runs = {row["run"]: row for row in rows}
    if not runs:
        return ""
    counts = {run: sum(row["run"] == run for row in rows) for run in runs}
    started = [
        (str(run), row["started"], row["device"], str(counts[run]))
        for run, row in sorted(runs.items())
    ]
    shown = Shown(
        "Runs", ("run", "started (UTC)", "device", "cells"), started, (True, False, False, True)
    )
    sets: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for run, row in sorted(runs.items()):
        sets.setdefault(tuple(sorted(row["versions"].items())), []).append(run)
    text = _table(shown)
    for versions, of_runs in sets.items():
        several = f", runs {', '.join(map(str, of_runs))}" if len(sets) > 1 else ""
        text += _pairs(f"Versions{several}", ("software", "version"), versions)
    return text


def _cells(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return ""
    shown = [
        row["settings"] | row["results"] | {"status": row["status"]} for row in rows[:_MOST_ROWS]
    ]
    headings = list(dict.fromkeys(name for row in shown for name in row))
    numeric = [any(_is_number(row.get(name)) for row in shown) for name in headings]
    table = Shown(
        "", headings, [[_text(row.get(name, "")) for name in headings] for row in shown], numeric
    )
    more = f"the first {_MOST_ROWS} of {len(rows)} cells; cells.csv has all"
    said = more if len(rows) > _MOST_ROWS else f"all {len(rows)} cells"
    return f"<details><summary>{said}</summary>{_table(table)}</details>"


def _pairs(title: str, headings: Sequence[str], pairs: Iterable[tuple[str, str]]) -> str:
    rows = list(pairs)
    return _table(Shown(title, headings, rows, (False, False)), long=True) if rows else ""


def _table(shown: Shown, long: bool = False) -> str:
    classes = ["number" if number else "" for number in shown.numeric]
    if long:
        classes[-1] = "long"
    heads = "".join(
        f'<th scope="col"{_classed(kind)}>{html.escape(str(heading))}</th>'
        for heading, kind in zip(shown.headings, classes, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{_classed(kind)}>{html.escape(text)}</td>"
            for text, kind in zip(row, classes, strict=True)
        )
        + "</tr>"
        for row in shown.rows
    )
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
    caption = f"<figcaption>{html.escape(shown.title)}</figcaption>" if shown.title else ""
    return f"<figure>{caption}{_scrolling(table, shown.title or 'table')}</figure>"


def _scrolling(content: str, label: str, more: str = "") -> str:
    """What is wider than the page scrolls in itself; the keyboard reaches it."""
    kind = f"scroll {more}".strip()
    return f'<div class="{kind}" role="region" tabindex="0" aria-label="{html.escape(label)}">{content}</div>'


def _classed(kind: str) -> str:
    return f' class="{kind}"' if kind else ""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return _values(value) if isinstance(value, list | tuple) else str(value)


def _values(values: Sequence[Any]) -> str:
    texts = [_text(value) for value in values]
    if len(texts) > _MOST_VALUES:
        return f"{', '.join(texts[:3])}, ..., {texts[-1]} ({len(texts)} values)"
    return ", ".join(texts)


_SVG, _XLINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}"
_LEFT_OUT = frozenset({"metadata", "style", "script", "foreignObject", "title", "desc"})
_PIXELS = {"pt": 96 / 72, "in": 96.0, "px": 1.0, "": 1.0}
_URL = re.compile(r"url\(\s*(['\"]?)(.*?)\1\s*\)", re.IGNORECASE)


def _inline(file: Path, prefix: str, label: str) -> str:
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


# Light or dark by what the reader prefers. Figures stay on white, the ground that they were drawn for.
_CSS = """
:root {
  color-scheme: light dark;
  --ground: #fcfcfb; --card: #ffffff; --ink: #1d2126; --soft: #5b636d; --line: #dfe2e6;
  --accent: #005a94; --stripe: #f4f6f8; --bad: #a32d10; --paper: #ffffff;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #14171a; --card: #1b1f23; --ink: #e4e7ea; --soft: #9ea7b1; --line: #343a41;
    --accent: #7cc0f0; --stripe: #20252a; --bad: #ff9b80; --paper: #ffffff;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0 auto; max-width: 68rem; padding: 2.5rem 1.5rem 4rem;
  background: var(--ground); color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}
header { border-bottom: 1px solid var(--line); padding-bottom: 1.25rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .5rem; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; line-height: 1.3; margin: 2.75rem 0 .75rem; }
h3 { font-size: 1rem; margin: 1.5rem 0 .5rem; }
p { margin: .5rem 0; max-width: 44rem; }
.lead { font-size: 1.1rem; color: var(--soft); }
.soft { color: var(--soft); font-size: .875rem; }
.bad { color: var(--bad); }
nav ul {
  display: flex; flex-wrap: wrap; gap: .25rem 1.25rem;
  list-style: none; margin: 1.25rem 0 0; padding: 0;
}
a { color: var(--accent); }
dl.tally {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(8rem, 1fr)); gap: .75rem;
  margin: 1.5rem 0 0;
}
dl.tally div {
  background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: .6rem .9rem;
}
dl.tally dt { color: var(--soft); font-size: .8rem; }
dl.tally dd { font-size: 1.35rem; font-variant-numeric: tabular-nums; margin: 0; }
figure { margin: 0 0 1.75rem; }
figcaption { font-weight: 600; margin-bottom: .5rem; overflow-wrap: anywhere; }
.scroll {
  background: var(--card); border: 1px solid var(--line); border-radius: .5rem;
  max-width: 100%; overflow-x: auto; width: fit-content;
}
.scroll:focus-visible, summary:focus-visible, a:focus-visible {
  outline: 2px solid var(--accent); outline-offset: 2px;
}
.drawing { background: var(--paper); padding: .75rem; width: auto; }
.drawing svg {
  display: block; height: auto; margin: 0 auto;
  width: clamp(var(--natural, 40rem), 100%, calc(1.5 * var(--natural, 40rem)));
}
table { border-collapse: collapse; font-size: .875rem; }
th, td { padding: .4rem .8rem; text-align: left; vertical-align: top; white-space: nowrap; }
th { border-bottom: 1px solid var(--line); color: var(--soft); font-weight: 600; }
thead tr, tbody tr { background: var(--card); }
tbody tr:nth-child(even) { background: var(--stripe); }
th:first-child, td:first-child { background: inherit; left: 0; position: sticky; }
td.number, th.number { font-variant-numeric: tabular-nums; text-align: right; }
td.long { min-width: 14rem; overflow-wrap: anywhere; white-space: normal; }
details { margin: .75rem 0; }
summary { cursor: pointer; padding: .25rem 0; overflow-wrap: anywhere; }
pre { font: .8rem/1.45 ui-monospace, "SF Mono", Menlo, Consolas, monospace; margin: 0; padding: .8rem; }
@media (max-width: 40rem) {
  body { padding: 1.5rem 1rem 3rem; }
  h1 { font-size: 1.5rem; }
  th, td { padding: .35rem .6rem; }
}
@media print {
  body { max-width: none; padding: 0; }
  .scroll { border: 0; overflow: visible; }
  nav { display: none; }
}
"""
