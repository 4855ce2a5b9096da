"""What a command found, and how it is shown: a table as kubectl's, JSON or YAML. Pure."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

Row = Mapping[str, Any]

COLOURS: Final = {"ok": 32, "warn": 33, "fail": 31, "over": 33, "no": 31}
NONE: Final = "-"
GAP: Final = "   "


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its head, the value it shows and how; `wide`: with -o wide alone; `right`: a number.

    `units`: of values in different units, how each is shown; the unit stands at the end of the row's key.
    """

    head: str
    key: str
    show: Callable[[Any], str] = str
    wide: bool = False
    right: bool = False
    units: Mapping[str, Callable[[Any], str]] = field(default_factory=dict)

    def cell(self, row: Row) -> str:
        """Return what a row shows in this column."""
        unit = next((unit for unit in self.units if self.key + unit in row), "")
        value = row[self.key + unit]
        return NONE if value in (None, "", []) else self.units.get(unit, self.show)(value)


@dataclass(frozen=True, slots=True)
class Report:
    """Rows of plain values with their columns; `notes` are sentences below the table. `failed`: exit with 1."""

    columns: Sequence[Column]
    rows: Sequence[Row]
    notes: Sequence[str] = ()
    empty: str = "Nothing found."
    failed: bool = False
    extra: Row = field(default_factory=dict)  # shown by JSON and YAML beside the rows


def shown(report: Report, output: str, *, colours: bool = False) -> str:
    """Return a report as text. `output`: table, wide, json or yaml."""
    if output in ("json", "yaml"):
        said = {**report.extra, "items": list(report.rows)} | ({"notes": list(report.notes)} if report.notes else {})
        if output == "json":
            return json.dumps(said, indent=2, ensure_ascii=False)
        import yaml  # which costs a command a tenth of its time

        return str(yaml.safe_dump(said, sort_keys=False, allow_unicode=True)).rstrip()
    columns = [column for column in report.columns if output == "wide" or not column.wide]
    lines = _table(columns, report.rows, colours=colours) if report.rows else [report.empty] if report.empty else []
    return "\n".join([*lines, *([""] if lines and report.notes else []), *report.notes])


def _table(columns: Sequence[Column], rows: Sequence[Row], *, colours: bool) -> list[str]:
    cells = [[column.head for column in columns]]
    cells += [[column.cell(row) for column in columns] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    lines = []
    for line in cells:
        padded = [
            cell.rjust(width) if column.right else cell.ljust(width)
            for cell, width, column in zip(line, widths, columns, strict=True)
        ]
        if colours and line is not cells[0]:
            padded = [_coloured(cell) for cell in padded]
        lines.append(GAP.join(padded).rstrip())
    return lines


def _coloured(cell: str) -> str:
    colour = COLOURS.get(cell.strip())
    return f"\x1b[{colour}m{cell}\x1b[0m" if colour else cell
