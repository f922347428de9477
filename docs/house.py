"""Draws the rooms of the package, floor by floor, as ``docs/figures/house.svg``.

    python docs/house.py

Floors are the layers of the import contracts in ``pyproject.toml``; what a room is for is the first sentence
of its docstring. Nothing is imported: names and sentences are read off the files.
"""

import ast
import html
import pathlib
import textwrap
import tomllib

ROOT = pathlib.Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "figures" / "house.svg"
WIDTH, PAD, LINE, CHARACTER = 960, 12, 15, 6.5
STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #1f2933 }
  .name { font-weight: 600; font-size: 13px }
  .head { font-weight: 600; font-size: 14px }
  rect { fill: #f5f7fa; stroke: #9aa5b1 }
  .ground { fill: #ffffff; stroke: none }
  @media (prefers-color-scheme: dark) {
    text { fill: #e4e7eb } rect { fill: #27313d; stroke: #616e7c } .ground { fill: #12181f }
  }
"""


def floors(name: str) -> list[list[str]]:
    """The layers of a contract, from the top, each a list of modules."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
    found = next(contract for contract in contracts if contract["name"] == name)
    prefix = found["containers"][0] + "." if "containers" in found else ""
    return [[prefix + room.strip() for room in layer.split("|")] for layer in found["layers"]]


def sentence(module: str) -> str:
    """The first sentence of a module's docstring, or of a package's."""
    path = ROOT / module.replace(".", "/")
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    said = ast.get_docstring(ast.parse(source.read_text())) or ""
    return " ".join(said.split("\n\n")[0].replace("``", "").split())


def drawn(title: str, contract: str, top: float) -> tuple[list[str], float]:
    """The picture of one contract from a height on, and the height where it ends."""
    parts = [f'<text class="head" x="{PAD}" y="{top + 16}">{html.escape(title)}</text>']
    y = top + 28
    for floor in floors(contract):
        width = (WIDTH - PAD * (len(floor) + 1)) / len(floor)
        wrapped = [textwrap.wrap(sentence(room), int((width - 20) / CHARACTER)) for room in floor]
        height = 26 + LINE * max(map(len, wrapped))
        for i, (room, lines) in enumerate(zip(floor, wrapped, strict=True)):
            x = PAD + i * (width + PAD)
            name = room.rsplit(".", 1)[1] if "." in room else room
            parts.append(
                f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{height}" rx="4"/>'
            )
            parts.append(
                f'<text class="name" x="{x + 10:.1f}" y="{y + 17}">{html.escape(name)}</text>'
            )
            parts += [
                f'<text x="{x + 10:.1f}" y="{y + 17 + LINE * (k + 1)}">{html.escape(line)}</text>'
                for k, line in enumerate(lines)
            ]
        y += height + 6
    return parts, y + PAD


def picture() -> str:
    """The whole picture: the rooms, then those inside of ``solvers`` and ``privacy``."""
    parts: list[str] = []
    y = float(PAD)
    for title, contract in (
        (
            "dpsco_jax: a room imports from the floors below it",
            "Rooms build only on the rooms below them",
        ),
        ("inside of solvers", "Rooms of the solvers build only on those below them"),
        ("inside of privacy", "Rooms of privacy build only on those below them"),
    ):
        found, y = drawn(title, contract, y)
        parts += found
    size = f'viewBox="0 0 {WIDTH} {y:.0f}" width="{WIDTH}" height="{y:.0f}"'
    ground = f'<rect class="ground" width="{WIDTH}" height="{y:.0f}"/>'
    body = "\n".join([f"<style>{STYLE}</style>", ground, *parts])
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">\n{body}\n</svg>\n'


if __name__ == "__main__":
    PICTURE.write_text(picture())
