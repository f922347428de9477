"""The page of a report: whole, closed to the outside, readable on a phone, nothing unescaped."""

import dataclasses
import html.parser
import re
from typing import ClassVar

import pytest
from rich.console import Console

from dpsco_jax import sweeps
from dpsco_jax.sweeps.page import _inline as inline
from dpsco_jax.sweeps.report import report
from dpsco_jax.sweeps.store import Store

EVIL = "<script>alert('x')</script> & \"quoted\""
VOID = {"meta", "br", "hr", "img", "link", "input"}


@dataclasses.dataclass(frozen=True)
class Hostile:
    """Numbers <b>in bold</b> & more."""

    name: ClassVar[str] = "hostile"
    version: ClassVar[int] = 3
    words: tuple[str, ...] = sweeps.axis("word", ("good", EVIL), static=True)
    numbers: tuple[float, ...] = sweeps.axis("number", (1.0, 2.0, -1.0))
    seeds: int = sweeps.axis("seed", 20)
    remark: str = EVIL

    def cells(self):
        return [cell for cell in sweeps.product(self) if cell["seed"] < 2]

    def build(self, static):
        def inputs(settings):
            if settings["number"] < 0:
                raise ValueError(f"number must not be negative: {EVIL}")
            return settings["number"]

        return sweeps.Program(lambda shared, key, number: {"twice": 2 * number}, inputs=inputs)

    def report(self, frame, folder):
        sweeps.show(f"Title {EVIL}", {"word": frame["word"], f"twice {EVIL}": frame["twice"]})
        for name in ("one", "two"):
            with sweeps.panels(1, 1) as (figure, axes):
                axes[0, 0].plot([0, 1], label=EVIL)
                axes[0, 0].legend()
                sweeps.save(figure, folder / name)


class Page(html.parser.HTMLParser):
    """Reads a page: tags with their attributes and the tags around them; texts."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.texts = [], [], []
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs), [*self.open]))
        if tag not in VOID:
            self.open.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        self.texts.append(data)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    with Store(folder) as store:
        sweeps.run(Hostile(), store)
        report(Hostile(), store, folder, Console(quiet=True), html=True)
        first = (folder / "report.html").read_text()
        report(Hostile(), store, folder, Console(quiet=True), html=True)
    return first, (folder / "report.html").read_text()


@pytest.fixture(scope="module")
def page(written):
    return Page(written[0])


def test_equal_stores_give_equal_pages(written):
    assert written[0] == written[1]


def test_nothing_reaches_out_and_nothing_runs(written, page):
    names = {tag for tag, _, _ in page.tags}
    assert not names & {
        "script",
        "link",
        "iframe",
        "object",
        "embed",
        "img",
        "base",
        "form",
        "foreignobject",
    }
    for _, attributes, _ in page.tags:
        assert not [name for name in attributes if name.startswith("on")]
        for name in ("href", "src", "xlink:href", "action"):
            assert attributes.get(name, "#").startswith("#")
        for value in attributes.values():
            assert all(found.startswith("#") for found in re.findall(r"url\((.*?)\)", value or ""))
    (style,) = re.findall(r"<style>(.*?)</style>", written[0], flags=re.DOTALL)
    assert not re.search(r"@import|url\(|https?:", style)
    metas = {
        attributes.get("http-equiv"): attributes
        for tag, attributes, _ in page.tags
        if tag == "meta"
    }
    assert metas["Content-Security-Policy"]["content"].startswith("default-src 'none';")


def test_identifiers_are_unique_and_links_lead_to_them(page):
    ids = [attributes["id"] for _, attributes, _ in page.tags if "id" in attributes]
    assert len(set(ids)) == len(ids)
    links = {attributes["href"][1:] for _, attributes, _ in page.tags if "href" in attributes}
    assert links
    assert links <= set(ids)


def test_texts_of_the_experiment_are_escaped(written, page):
    assert EVIL not in written[0]
    assert "<b>" not in written[0]
    text = "".join(page.texts)
    for expected in (f"Title {EVIL}", f"twice {EVIL}", "Numbers <b>in bold</b> & more."):
        assert expected in text
    assert page.texts.count(EVIL) >= 3  # a setting in table and cells, and the constant


def test_it_fits_a_phone_and_both_schemes(written, page):
    (viewport,) = [a for tag, a, _ in page.tags if tag == "meta" and a.get("name") == "viewport"]
    assert "width=device-width" in viewport["content"]
    tables = [around for tag, _, around in page.tags if tag in ("table", "pre", "svg")]
    assert len(tables) >= 7
    for around in tables:
        assert any("scroll" in attributes.get("class", "").split() for _, attributes in around)
    assert "@media (prefers-color-scheme: dark)" in written[0]


def test_tables_settings_versions_and_failures_are_there(page):
    text = "\n".join(page.texts)
    for expected in (
        "8 of 12",
        "4 cells:",
        "optax",
        "constant",
        "remark",
        "version of the experiment",
    ):
        assert expected.lower() in text.lower()
    assert "0, 1, 2, ..., 19 (20 values)" in text
    assert sum(tag == "svg" for tag, _, _ in page.tags) == 2


SVG = """<?xml version="1.0"?>
<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" onload="bad()"
  width="72pt" height="36pt" viewBox="0 0 72 36">
 <metadata><x>http://example.org</x></metadata><style>* {fill: red}</style><script>bad()</script>
 <foreignObject><p>bad</p></foreignObject>
 <defs><path id="a" d="M 0 0"/></defs>
 <g clip-path="url(#a)" fill="url(http://example.org/#a)" onclick="bad()"><use xlink:href="#a"/>
 <use xlink:href="http://example.org/#a"/><image href="data:image/png;base64,AA"/><text>1 &lt; 2</text></g>
</svg>"""


def test_only_the_drawing_of_an_svg_survives(tmp_path):
    file = tmp_path / "figure.svg"
    file.write_text(SVG)
    drawing = inline(file, "figure-1", 'a "label"')
    for gone in (
        "bad",
        "example.org",
        "fill",
        "onload",
        "onclick",
        "style>",
        "metadata",
        "foreign",
    ):
        assert gone not in drawing
    assert '<path id="figure-1-a"' in drawing
    assert 'clip-path="url(#figure-1-a)"' in drawing
    assert '<use href="#figure-1-a"></use><use></use>' in drawing
    assert 'href="data:image/png;base64,AA"' in drawing
    assert "1 &lt; 2" in drawing
    assert 'aria-label="a &quot;label&quot;"' in drawing
    assert "--natural: 96px" in drawing


def test_what_is_no_drawing_is_refused(tmp_path):
    (tmp_path / "figure.svg").write_text("<html></html>")
    with pytest.raises(ValueError, match="file must be an SVG drawing"):
        inline(tmp_path / "figure.svg", "figure-1", "label")
