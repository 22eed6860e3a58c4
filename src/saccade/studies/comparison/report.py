"""The report of a comparison as Markdown and as one HTML page that needs nothing else."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from saccade.studies.comparison.pictures import Picture
from saccade.studies.comparison.tables import Table
from saccade.version import __version__

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1c1c1c; background: #fff; max-width: 72rem; margin: 2rem auto;
  padding: 0 1.2rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.05rem; margin: 2rem 0 .5rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { padding: .3rem .7rem; border-bottom: 1px solid #e2e2e2; text-align: left; white-space: nowrap; }
th { border-bottom: 2px solid #999; }
.number { text-align: right; }
img { max-width: 100%; height: auto; }
figure { margin: 1rem 0; } figcaption { color: #555; font-size: .9rem; }
pre { background: #f5f5f5; padding: .8rem; overflow-x: auto; font-size: .85rem; }
footer { color: #777; font-size: .8rem; margin-top: 2rem; }
"""


@dataclass(frozen=True)
class Report:
    """What is written about a comparison."""

    title: str
    summary: str
    tables: Sequence[Table]
    pictures: Sequence[Picture]
    notes: Sequence[str]
    command: str
    signatures: Sequence[str]


def markdown_text(report: Report) -> str:
    """The report in Markdown; pictures are files beside it."""
    parts = [f"# {report.title}", markdown_escape(report.summary)]
    for table in report.tables:
        parts += [f"## {table.caption}", markdown_table(table)]
    parts += [f"![{markdown_escape(one.caption)}]({one.path.name})" for one in report.pictures]
    if report.notes:
        parts += ["## Notes", "\n".join(f"- {markdown_escape(note)}" for note in report.notes)]
    parts += ["## To repeat this", "\n".join(f"    {line}" for line in report.command.splitlines())]
    parts += ["## Signatures", "\n".join(f"    {line}" for line in (*report.signatures, f"saccade {__version__}"))]
    return "\n\n".join(parts) + "\n"


def markdown_table(table: Table) -> str:
    """A table with its numbers to the right."""
    header, *rows = table.cells
    rule = ["---:" if name in table.right else "---" for name in header]
    # Names and figures of ours: only a bar could break them.
    return "\n".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in row)} |" for row in (header, rule, *rows))


def markdown_escape(text: str) -> str:
    """Text that stays text: it may quote a test sentence or an error."""
    plain = " ".join(text.split())
    for sign in ("\\", "`", "*", "_", "[", "]", "<", "|"):
        plain = plain.replace(sign, f"\\{sign}")
    return plain


def html_text(report: Report) -> str:
    """The report as one page: style and pictures are in it, and every text is escaped."""
    parts = [f"<h1>{escape(report.title)}</h1>", f"<p>{escape(report.summary)}</p>"]
    for table in report.tables:
        parts += [f"<h2>{escape(table.caption)}</h2>", html_table(table)]
    for one in report.pictures:
        data = base64.b64encode(one.path.read_bytes()).decode("ascii")
        image = f'<img src="data:image/png;base64,{data}" alt="{escape(one.caption)}"/>'
        parts.append(f"<figure>{image}<figcaption>{escape(one.caption)}</figcaption></figure>")
    if report.notes:
        parts += ["<h2>Notes</h2>", "<ul>", *(f"<li>{escape(note)}</li>" for note in report.notes), "</ul>"]
    parts += ["<h2>To repeat this</h2>", f"<pre>{escape(report.command)}</pre>"]
    parts.append(f"<footer>{'<br/>'.join(map(escape, (*report.signatures, f'saccade {__version__}')))}</footer>")
    head = f'<meta charset="utf-8"/><meta name="viewport" content="width=device-width"/><title>{escape(report.title)}'
    body = "\n".join(parts)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>{head}</title><style>{STYLE}</style></head>\n'
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def html_table(table: Table) -> str:
    """A table that scrolls by itself where the page is narrow."""
    header, *rows = table.cells
    classes = [' class="number"' if name in table.right else "" for name in header]

    def line(tag: str, cells: Sequence[str]) -> str:
        inner = "".join(f"<{tag}{kind}>{escape(cell)}</{tag}>" for cell, kind in zip(cells, classes, strict=True))
        return f"<tr>{inner}</tr>"

    body = "\n".join(line("td", cells) for cells in rows)
    return f'<div class="wide"><table>\n<thead>{line("th", header)}</thead>\n<tbody>\n{body}\n</tbody>\n</table></div>'
