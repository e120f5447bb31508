"""The page of an evaluation: the verdict and why, the model beside its baseline, curves, and where the two differ."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from spanwise.components.evaluation.curves import Curves
from spanwise.components.evaluation.metric import KNOWN
from spanwise.components.report.page import Cell, ReportPage, escaped
from spanwise.components.report.plot import Line, Series, histogram, lines

Report: TypeAlias = Mapping[str, object]

MAX_SLICES = 40
"""Most slices in the table; of more, only the worst and the best."""

_MAX_REASONS = 12
_PLOT_PX = 300  # width of the plot of a difference, px


def page(report: Report, curves: Mapping[str, Curves]) -> str:
    """The page as HTML; `report` is the content of `metrics.json`."""
    document = ReportPage(f"Evaluation of {report['model']}")
    document.plot("<style>.good { color: var(--c2); }</style>")
    _write_verdict(document, report)
    _write_metrics(document, report)
    if (mine := curves.get(str(report["model"]))) is not None:
        theirs = curves.get(str(report["baseline"])) if report["baseline"] != report["model"] else None
        _write_curves(document, [("model", mine), *([] if theirs is None else [("baseline", theirs)])])
        if mine.at:
            _write_decisions(document, mine)
    _write_confusion(document, report)
    _write_slices(document, report)
    return document.html()


def _write_verdict(document: ReportPage, report: Report) -> None:
    blessed, reasons = report["blessed"], _list(report["reasons"])
    says, tone = {True: ("Blessed", "--c2"), False: ("Not blessed", "--bad"), None: ("No verdict", "--faint")}[
        None if blessed is None else bool(blessed)
    ]
    why = [escaped(reason) for reason in reasons]
    if blessed is None:
        why = ["There are no thresholds, or none that could be applied, so the model was not judged."]
    elif not why:
        why = [f"All {len(_list_judged(report))} bounds are met."]
    unjudged = [t for t in _list(report["thresholds"]) if isinstance(t, Mapping) and t["passed"] is None]
    if unjudged:
        why.append(f"{len(unjudged)} bounds were not applied: no baseline, or a metric that is undefined in a slice.")
    if len(why) > _MAX_REASONS:
        why[_MAX_REASONS:] = [f"… {len(why) - _MAX_REASONS} more, in metrics.json"]
    items = "".join(f"<li>{line}</li>" for line in why)
    document.plot(
        f'<div style="border-left:6px solid var({tone});background:var(--band);padding:10px 16px;margin:12px 0;'
        f'border-radius:4px"><b style="font-size:18px;color:var({tone})">{says}</b>'
        f'<ul style="margin:4px 0 0;padding-left:18px">{items}</ul></div>'
    )
    document.paragraph("; ".join(_list_notes(report)) + ".")


def _list_notes(report: Report) -> list[str]:
    """What was measured, and what was left out."""
    first, last = _list(report["window"])
    window = f"span {first}" if first == last else f"{len(_list(report['spans']))} spans, {first} to {last}"
    notes = [f"{_number(report['rows']):,.0f} rows of split {report['split']}, {window}", f"label {report['label']}"]
    beside = report["baseline"]
    notes.append("no baseline" if beside is None else f"baseline {beside}")
    if report["baseline_error"] is not None:
        notes.append(f"the baseline was ignored, because it failed: {str(report['baseline_error']).splitlines()[0]}")
    if report["baseline_versions"] is not None:
        notes.append(
            f"the baseline learned from {report['baseline_versions']}, other versions of what is measured here: it may "
            "know rows that have moved between the splits since, and look better than it is (see split_key)"
        )
    if report["rows_without_label"]:
        notes.append(f"{_number(report['rows_without_label']):,.0f} rows without a label are left out")
    for model, count in _mapping(report["rows_without_score"]).items():
        if count:
            notes.append(f"{model} gave no finite score for {_number(count):,.0f} rows")
    if report["weight"] is not None:
        notes.append(f"rows are weighted by {report['weight']}")
    notes += [
        f"slices by {', '.join(map(str, _list(slicing['by'])))} are left out: there are too many"
        for slicing in map(_mapping, _list(report["slicings"]))
        if slicing["occurring"] is None
    ]
    return notes


def _list_judged(report: Report) -> list[object]:
    return [t for t in _list(report["thresholds"]) if isinstance(t, Mapping) and t["passed"] is not None]


def _write_metrics(document: ReportPage, report: Report) -> None:
    document.heading("Metrics")
    compared = report["baseline_overall"] is not None
    limits = _limits_by_metric(report)
    head: list[str | Cell] = ["", "model", Cell("95 %", "text")]
    head += ["baseline", Cell("95 %", "text"), "difference", Cell("95 %", "text"), Cell("", "text")] if compared else []
    head += [Cell("asked for", "text")] if limits else []
    rows: list[list[str | Cell]] = []
    for name, value in _mapping(report["overall"]).items():
        row: list[str | Cell] = [name, _format_number(value, name), _format_interval(report["intervals"], name)]
        if compared:
            change = _mapping(report["change"]).get(name)
            low, high = _interval_of(report["change_intervals"], name)
            row += [
                _format_number(_mapping(report["baseline_overall"])[name], name),
                _format_interval(report["baseline_intervals"], name),
            ]
            row += [
                _format_signed(change),
                _format_interval(report["change_intervals"], name, signed=True),
                _compare_intervals(_direction(report, name), low, high),
            ]
        row += [limits.get(name, Cell("", "text"))] if limits else []
        rows.append(row)
    document.table(head, rows, wide=True)
    if report["replicates"]:
        document.paragraph(
            f"Intervals cover 95 %, from {report['replicates']} replicates "
            f"({'Poisson bootstrap' if report['interval_method'] == 'bootstrap' else 'jackknife'} of the rows); "
            "that of a difference is narrower than those of its parts, since both models answer for the same rows."
        )


def _limits_by_metric(report: Report) -> dict[str, Cell]:
    """The thresholds of each metric over all rows."""
    said: dict[str, list[Mapping[str, object]]] = {}
    for finding in _list(report["thresholds"]):
        if isinstance(finding, Mapping) and finding["slice"] is None:
            said.setdefault(str(finding["metric"]), []).append(finding)
    return {
        metric: Cell(
            ", ".join(f"{str(f['bound']).replace('_', ' ')} {_number(f['limit']):g}" for f in findings),
            "text bad" if any(f["passed"] is False for f in findings) else "text",
        )
        for metric, findings in said.items()
    }


def _compare_intervals(direction: int, low: float, high: float) -> Cell:
    """Whether a difference is significant, and in whose favour."""
    if math.isnan(low) or not direction:
        return Cell("", "text")
    if low <= 0 <= high:
        return Cell("within chance", "text faint")
    return Cell("better", "text good") if (low > 0) == (direction > 0) else Cell("worse", "text bad")


def _direction(report: Report, name: str) -> int:
    """1 if more is better, -1 if less is, 0 if neither or unknown; of a user's metric, its bounds tell."""
    known = KNOWN.get(name.partition("@")[0])
    if known is not None:
        return {"more": 1, "less": -1, "neither": 0}[known.better]
    bounds = {str(t["bound"]) for t in map(_mapping, _list(report["thresholds"])) if t["metric"] == name}
    floors = bounds & {"at_least", "max_drop", "max_drop_ratio"}
    return 0 if not bounds or (floors and floors != bounds) else 1 if floors else -1


# --- plots --------------------------------------------------------------------------------------------------------


def _write_curves(document: ReportPage, drawn: Sequence[tuple[str, Curves]]) -> None:
    document.heading("Curves")
    document.legend([role for role, _ in drawn])
    first = drawn[0][1]
    figures = []
    if any(curves.roc for _, curves in drawn):
        unit = (0.0, 1.0, 0.0, 1.0)
        roc = [Line(role, curves.roc) for role, curves in drawn]
        figures.append(
            ("ROC", lines(roc, x_label="false positive rate", y_label="true positive rate", diagonal=True, limits=unit))
        )
        area = [Line(role, curves.precision_recall) for role, curves in drawn]
        figures.append(("Precision and recall", lines(area, x_label="recall", y_label="precision", limits=unit)))
    if first.calibration:
        figures.append(("Calibration", _draw_calibration(drawn)))
    if first.spread:
        names = ["rows"] if len(first.spread) == 1 else ["label 0", "label 1"]
        series = [Series(name, bars) for name, bars in zip(names, first.spread, strict=True)]
        ends = f"{first.edges[0]:.3g}", f"{first.edges[-1]:.3g}"
        title = "Scores of the model" + ("" if len(names) == 1 else ": label 0 filled, label 1 outlined")
        figures.append((title, histogram(first.edges, series, ends=ends, height=260)))
    grid = "".join(f"<figure style='margin:0'><h3>{escaped(title)}</h3>{plot}</figure>" for title, plot in figures)
    document.plot(
        f"<div style='display:grid;grid-template-columns:repeat(auto-fit,minmax(420px,1fr));gap:18px 32px'>{grid}</div>"
    )


def _draw_calibration(drawn: Sequence[tuple[str, Curves]]) -> str:
    """Mean label over mean score, in buckets of equally many rows."""
    points = [(x, y) for _, curves in drawn for x, y, _ in curves.calibration]
    least, most = min(min(p) for p in points), max(max(p) for p in points)
    if least >= 0 and most <= 1:
        least, most = 0.0, next(limit for limit in (0.05, 0.1, 0.2, 0.5, 1.0) if most <= limit)
    found = [Line(role, tuple((x, y) for x, y, _ in curves.calibration)) for role, curves in drawn]
    limits = (least, most, least, most) if most > least else None
    return lines(found, x_label="mean score", y_label="mean label", diagonal=True, limits=limits)


def _write_decisions(document: ReportPage, curves: Curves) -> None:
    document.heading("Decisions by score")
    rows = [
        (f"above {at:g}", f"{share:.1%}", f"{precision:.3f}", f"{recall:.3f}", f"{_f1(precision, recall):.3f}")
        for at, precision, recall, share in curves.at
    ]
    document.table(("score", "rows", "precision", "recall", "F1"), rows)


def _f1(precision: float, recall: float) -> float:
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def _write_confusion(document: ReportPage, report: Report) -> None:
    """The confusion matrix: rows, or their weight, by class and by predicted class."""
    counts = _mapping(report["confusion"] or {}).get(str(report["model"]))
    names = [str(name) for name in _list(report["classes"] or [])]
    if not isinstance(counts, list) or len(names) > MAX_SLICES:
        return
    document.heading("Classes")
    is_defined = not _mapping(report["rows_without_score"])[str(report["model"])]
    shown = "count" if report["weight"] is None else ""
    said = [sum(row[place] for row in counts) for place in range(len(names))]
    rows: list[list[str | Cell]] = []
    for place, (name, row) in enumerate(zip(names, counts, strict=True)):
        total, right = sum(row), row[place]
        recall = right / total if total and is_defined else math.nan
        precision = right / said[place] if said[place] and is_defined else math.nan
        cells = [Cell(_format_number(n, shown), "" if i == place else "faint") for i, n in enumerate(row)]
        figures = _format_number(total, shown), _format_number(precision), _format_number(recall)
        rows.append([name, *cells, *figures])
    sums = "rows" if report["weight"] is None else "weight"
    document.table(("label", *(f"said {name}" for name in names), sums, "precision", "recall"), rows)


# --- slices -------------------------------------------------------------------------------------------------------


def _write_slices(document: ReportPage, report: Report) -> None:
    slices = [s for s in _list(report["slices"]) if isinstance(s, Mapping)]
    if not slices:
        return
    metric = _leading_metric(report)
    compared = report["baseline_overall"] is not None and report["baseline"] != report["model"]
    known = [s for s in slices if not s["small"] and _figure(s, metric, compared=compared) is not None]
    direction = _direction(report, metric)
    known.sort(key=lambda s: (direction or 1) * (_figure(s, metric, compared=compared) or 0.0))
    first, last = ("worst", "best") if direction else ("least", "greatest")
    document.heading(f"Slices by {'difference in ' if compared else ''}{metric}, the {first} first")
    notes = [f"{len(known)} slices"]
    small = sum(bool(s["small"]) for s in slices)
    if small:
        notes.append(f"{small} small ones are not judged and not shown")
    undefined = len(slices) - small - len(known)
    if undefined:
        notes.append(f"{metric} is undefined in {undefined}")
    for slicing in _list(report["slicings"]):
        if isinstance(slicing, Mapping) and slicing["occurring"] not in (None, slicing["reported"]):
            by = ", ".join(map(str, _list(slicing["by"])))
            notes.append(f"{slicing['occurring']:,} slices by {by}, of which {slicing['reported']:,} were measured")
    shown = known if len(known) <= MAX_SLICES else [*known[: MAX_SLICES * 3 // 4], *known[-MAX_SLICES // 4 :]]
    if len(shown) < len(known):
        notes.append(f"the {MAX_SLICES * 3 // 4} {first} and the {MAX_SLICES // 4} {last} of them are shown")
    document.paragraph("; ".join(notes) + ".")
    if shown:
        document.plot(_draw_forest(shown, metric, _refused_slices(report), direction, compared=compared))


def _draw_forest(
    slices: Sequence[Mapping[str, object]], metric: str, refused: set[str], direction: int, *, compared: bool
) -> str:
    """A table of slices, each with its figure and interval drawn on one scale; coloured where it is better or worse."""
    ends = [_figure_ends(s, metric, compared=compared) for s in slices]
    every = [e for pair in ends for e in pair if not math.isnan(e)]
    every += [_figure(s, metric, compared=compared) or 0.0 for s in slices] + ([0.0] if compared else [])
    least, most = min(every), max(every)
    most += (least == most) * 1.0

    def x(value: float) -> float:
        return 6 + (value - least) / (most - least) * (_PLOT_PX - 12)

    rows = []
    for each, (low, high) in zip(slices, ends, strict=True):
        name = _slice_name(each["slice"])
        value = _figure(each, metric, compared=compared) or 0.0
        sure = compared and direction != 0 and not math.isnan(low) and not low <= 0 <= high
        worse = sure and (value < 0) == (direction > 0)
        colour = "var(--bad)" if worse else "var(--c2)" if sure else "var(--c0)"
        bar = (
            "" if math.isnan(low) else f'<path d="M{x(low):.1f},15H{x(high):.1f}" stroke="{colour}" stroke-width="2"/>'
        )
        zero = f'<path d="M{x(0):.1f},0V30" stroke="var(--faint)"/>' if compared else ""
        svg = (
            f'<svg viewBox="0 0 {_PLOT_PX} 30" width="{_PLOT_PX}" height="30" role="img">{zero}{bar}'
            f'<circle cx="{x(value):.1f}" cy="15" r="3.5" fill="{colour}"/></svg>'
        )
        figures = [
            f"{_number(_mapping(each['metrics'])['count']):,.0f}",
            _format_number(_mapping(each["metrics"])[metric]),
        ]
        if compared:
            figures += [_format_number(_mapping(each["baseline_metrics"])[metric]), _format_signed(value)]
        mark = ' <span class="bad">misses a threshold</span>' if name in refused else ""
        cells = "".join(f"<td>{escaped(figure)}</td>" for figure in figures)
        wrapped = 'style="max-width:360px;white-space:normal;overflow-wrap:anywhere"'
        rows.append(f'<tr><th {wrapped}>{escaped(name)}{mark}</th>{cells}<td style="padding:0">{svg}</td></tr>')
    show = _format_signed if compared else _format_number
    titles = ("", "rows", "model", *(("baseline", "difference") if compared else ()))
    head = "".join(f"<th>{escaped(title)}</th>" for title in titles)
    scale = f'<th style="text-align:center">{show(least)} … {show(most)}</th>'
    return f'<table class="wide"><thead><tr>{head}{scale}</tr></thead><tbody>{"".join(rows)}</tbody></table>'


def _slice_name(values: object) -> str:
    return ", ".join(f"{column}={'null' if value is None else value}" for column, value in _mapping(values).items())


def _leading_metric(report: Report) -> str:
    """The metric that orders the slices: the first with a threshold for slices, or else for all rows."""
    asked = [t for t in _list(report["thresholds"]) if isinstance(t, Mapping)]
    asked.sort(key=lambda t: t["slice"] is None)
    names = [str(t["metric"]) for t in asked] + list(_mapping(report["overall"]))
    return next((name for name in names if name != "count"), "count")


def _refused_slices(report: Report) -> set[str]:
    found = (t for t in _list(report["thresholds"]) if isinstance(t, Mapping) and t["passed"] is False and t["slice"])
    return {_slice_name(t["slice"]) for t in found}


def _figure(each: Mapping[str, object], metric: str, *, compared: bool) -> float | None:
    value = _mapping(each["change" if compared else "metrics"]).get(metric)
    return None if value is None else _number(value)


def _figure_ends(each: Mapping[str, object], metric: str, *, compared: bool) -> tuple[float, float]:
    return _interval_of(each["change_intervals" if compared else "intervals"], metric)


# --- numbers ------------------------------------------------------------------------------------------------------


def _format_number(value: object, name: str = "") -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "undefined"
    number = _number(value)
    return f"{number:,.0f}" if name == "count" else f"{number:.4f}" if abs(number) < 1000 else f"{number:,.4g}"  # noqa: PLR2004


def _format_signed(value: object) -> str:
    return "" if value is None else f"{_number(value):+.4f}"


def _format_interval(intervals: object, name: str, *, signed: bool = False) -> Cell:
    low, high = _interval_of(intervals, name)
    show = _format_signed if signed else _format_number
    return Cell("" if math.isnan(low) else f"{show(low)} … {show(high)}", "text faint")


def _interval_of(intervals: object, name: str) -> tuple[float, float]:
    found = _mapping(intervals or {}).get(name)
    ends = [math.nan if end is None else _number(end) for end in _list(found or [None, None])]
    return ends[0], ends[1]


def _number(value: object) -> float:
    assert isinstance(value, int | float), "as measured"
    return float(value)


def _mapping(value: object) -> Mapping[str, object]:
    assert isinstance(value, Mapping), "as judged"
    return value


def _list(value: object) -> list[object]:
    assert isinstance(value, Iterable), "as judged"
    return list(value)
