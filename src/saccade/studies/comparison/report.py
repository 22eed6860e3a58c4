"""The report of a comparison: tables as CSV, Markdown and one self-contained HTML page, and plots."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import NamedTuple

import numpy as np

from saccade.folder import replace_file
from saccade.plots.attention_map import plot_models
from saccade.plots.heat_map_grid import HeatMap
from saccade.plots.model_comparison import plot_by_length, plot_by_minutes
from saccade.studies.comparison.request import Request
from saccade.studies.comparison.scores import Scores
from saccade.studies.comparison.tables import Table, csv_text, make_tables
from saccade.version import __version__

TITLE = "Models on the same data, with the same budget"
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


class Plot(NamedTuple):
    """A PNG file in the output folder, and its caption."""

    path: Path
    caption: str


@dataclass(frozen=True)
class Report:
    """The content of the report."""

    title: str
    summary: str
    tables: Sequence[Table]
    plots: Sequence[Plot]
    notes: Sequence[str]
    command: str
    signatures: Sequence[str]


def write_report(request: Request, scores: Scores, command: str) -> list[Plot]:
    """Write CSV, Markdown, HTML and plots; return the plots."""
    output = request.output
    plots = draw_plots(scores, output)
    summary = summarize(request, scores)
    report = Report(TITLE, summary, make_tables(scores), plots, scores.notes, command, scores.signatures)
    for name, text in (
        ("compare.csv", csv_text(scores)),
        ("compare.md", markdown_text(report)),
        ("compare.html", html_text(report)),
    ):
        replace_file(output / name, text)
    return plots


def summarize(request: Request, scores: Scores) -> str:
    """Summarize the comparison in three sentences."""
    beams = sorted({row.result.config["decoding"]["beam"] for row in scores.rows if row.result.config})
    beam = f"beam {' or '.join(map(str, beams))}" if beams else "beam search"
    return (
        f"Each model was trained with the settings of its family and a budget of {request.budget}, on the same pairs. "
        f"The {scores.sentences:,} test sentences were translated with {beam}. Intervals are from 1,000 bootstrap "
        "resamples."
    )


def draw_plots(scores: Scores, output: Path) -> list[Plot]:
    """Plot BLEU by length, BLEU by minutes and alignments, if there are any; remove plots of an earlier report."""
    by_length, by_minutes, alignments = (output / f"{name}.png" for name in ("by-length", "by-minutes", "alignments"))
    for path in (by_length, by_minutes, alignments):
        path.unlink(missing_ok=True)
    plots: list[Plot] = []
    models = [row.entry.name for row in scores.rows]  # a model has the same color in all plots
    intervals = {row.entry.name: row.by_length for row in scores.rows if row.bleu is not None}
    if intervals:
        counts = [len(bucket.indices) for bucket in scores.buckets]
        plot_by_length([str(bucket) for bucket in scores.buckets], counts, intervals, by_length, models=models)
        plots.append(Plot(by_length, "BLEU by the number of source words, with 95 % intervals."))
    curves = {row.entry.name: row.curve for row in scores.rows if row.curve}
    if curves:
        plot_by_minutes(curves, by_minutes, models=models)
        early = " A cross marks a run that ended early." if any(curve.early_end for curve in curves.values()) else ""
        caption = f"Validation BLEU (greedy search, part of the validation data) against minutes of training.{early}"
        plots.append(Plot(by_minutes, caption))
    panels = [
        HeatMap(
            alignment.source_pieces,
            alignment.target_pieces,
            np.array(alignment.weights),
            title=f"{row.entry.name}, BLEU {row.bleu.value:.1f}" if row.bleu else row.entry.name,
            caption=alignment.output,
        )
        for row in scores.rows
        if (alignment := row.alignment) is not None and alignment.fault is None
    ]
    if panels:
        sentence = next(row.alignment.sentence for row in scores.rows if row.alignment)
        plot_models(panels, alignments, title={"source": sentence})
        without = [row.entry.name for row in scores.rows if not row.entry.has_cross_attention]
        rest = f" Without cross-attention: {', '.join(without)}." if without else ""
        caption = f"Attention of each model while it translates “{sentence}”: mean over heads and layers.{rest}"
        plots.append(Plot(alignments, caption))
    return plots


def markdown_text(report: Report) -> str:
    """Format the report as Markdown; plots are files in the same folder."""
    parts = [f"# {report.title}", markdown_escape(report.summary)]
    for table in report.tables:
        parts += [f"## {table.caption}", markdown_table(table)]
    parts += [f"![{markdown_escape(plot.caption)}]({plot.path.name})" for plot in report.plots]
    if report.notes:
        parts += ["## Notes", "\n".join(f"- {markdown_escape(note)}" for note in report.notes)]
    parts += ["## To repeat this", "\n".join(f"    {line}" for line in report.command.splitlines())]
    parts += ["## Signatures", "\n".join(f"    {line}" for line in (*report.signatures, f"saccade {__version__}"))]
    return "\n\n".join(parts) + "\n"


def markdown_table(table: Table) -> str:
    """Format a Markdown table with right-aligned numbers."""
    header, *rows = table.cells
    rule = ["---:" if name in table.right else "---" for name in header]
    # The cells are names and figures: only a vertical bar could break the table.
    return "\n".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in row)} |" for row in (header, rule, *rows))


def markdown_escape(text: str) -> str:
    """Escape text, which may quote a test sentence or an error."""
    plain = " ".join(text.split())
    for character in ("\\", "`", "*", "_", "[", "]", "<", "|"):
        plain = plain.replace(character, f"\\{character}")
    return plain


def html_text(report: Report) -> str:
    """Format the report as one HTML page that contains its style and plots; every text is escaped."""
    parts = [f"<h1>{escape(report.title)}</h1>", f"<p>{escape(report.summary)}</p>"]
    for table in report.tables:
        parts += [f"<h2>{escape(table.caption)}</h2>", html_table(table)]
    for plot in report.plots:
        data = base64.b64encode(plot.path.read_bytes()).decode("ascii")
        image = f'<img src="data:image/png;base64,{data}" alt="{escape(plot.caption)}"/>'
        parts.append(f"<figure>{image}<figcaption>{escape(plot.caption)}</figcaption></figure>")
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
    """Format an HTML table that scrolls horizontally on a narrow page."""
    header, *rows = table.cells
    classes = [' class="number"' if name in table.right else "" for name in header]

    def line(tag: str, cells: Sequence[str]) -> str:
        inner = "".join(f"<{tag}{kind}>{escape(cell)}</{tag}>" for cell, kind in zip(cells, classes, strict=True))
        return f"<tr>{inner}</tr>"

    body = "\n".join(line("td", cells) for cells in rows)
    return f'<div class="wide"><table>\n<thead>{line("th", header)}</thead>\n<tbody>\n{body}\n</tbody>\n</table></div>'
