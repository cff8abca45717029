"""Items of one kind as CSV and back, safe to open in a spreadsheet."""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from control.domain.inventory import Item, item_facts
from control.domain.policy import FieldProblem

# A spreadsheet takes a cell that begins with one of these for a formula; behind an apostrophe it is text.
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "'")
_LABELS = "labels"
_LIST_SEPARATOR = ";"
_BYTE_ORDER_MARK = "\ufeff"


@dataclass(frozen=True, slots=True)
class CsvTable:
    """What stands in a table: its columns, each row's cells under the number of its line, and what is wrong with it."""

    columns: tuple[str, ...]
    rows: tuple[tuple[int, dict[str, Any]], ...]
    problems: tuple[FieldProblem, ...]


def columns_of(kind: type[Item]) -> tuple[str, ...]:
    """The columns of a kind, in the order of its fields."""
    return tuple(name for name in kind.__dataclass_fields__ if name != "streams_per_transfer")


def write_csv(kind: type[Item], items: Iterable[Item]) -> str:
    """Items as CSV with a header; `read_csv` gives the same back."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    columns = columns_of(kind)
    writer.writerow(columns)
    for item in items:
        facts = item_facts(item)
        writer.writerow(csv_cell(facts[column]) for column in columns)
    return text.getvalue()


def read_csv(kind: type[Item], text: str) -> CsvTable:
    """A table whose columns may stand in any order and be left out; cells that are empty say nothing."""
    reader = csv.reader(io.StringIO(text.removeprefix(_BYTE_ORDER_MARK), newline=""), strict=True)
    try:
        lines = [(reader.line_num, cells) for cells in reader if any(cells)]
    except csv.Error as error:
        return CsvTable((), (), (FieldProblem(f"line {reader.line_num}", f"Is no CSV: {error}."),))
    if not lines:
        return CsvTable((), (), (FieldProblem("line 1", "Must name the columns."),))
    header = tuple(name.strip() for name in lines[0][1])
    known = columns_of(kind)
    problems = [FieldProblem(f"line 1.{name}", "There is no such column.") for name in header if name not in known]
    problems += [FieldProblem(f"line 1.{name}", "Stands there twice.") for name in known if header.count(name) > 1]
    problems += [
        FieldProblem(f"line {number}", f"Has {len(cells)} cells, the header {len(header)}.")
        for number, cells in lines[1:]
        if len(cells) != len(header)
    ]
    if problems:
        return CsvTable(header, (), tuple(problems))
    return CsvTable(header, tuple((number, dict(_values(header, cells))) for number, cells in lines[1:]), ())


def csv_cell(value: Any) -> str:
    """A value as the text of a cell."""
    if value is None:
        return ""
    if isinstance(value, dict):
        text = _LIST_SEPARATOR.join(f"{key}={value[key]}" for key in sorted(value))
    elif isinstance(value, list):
        text = _LIST_SEPARATOR.join(value)
    elif isinstance(value, float):
        text = repr(value)
    else:
        text = str(value)
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text


def _values(header: Sequence[str], cells: Sequence[str]) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(header, cells, strict=True):
        text = cell.strip().removeprefix("'")
        if name == _LABELS:
            pairs = (pair.partition("=") for pair in text.split(_LIST_SEPARATOR) if pair)
            yield name, {key.strip(): value for key, _, value in pairs}
        elif text:
            yield name, text
