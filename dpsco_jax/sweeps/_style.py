"""The style sheet of a report's page: text of one column, tables and figures that scroll in themselves.

Light or dark by what the reader prefers. Figures stay on white, the ground that they were drawn for.
"""

CSS = """
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
