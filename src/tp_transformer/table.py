"""Tables: for terminals, notebooks and pages, as Markdown, as LaTeX and as pandas frames."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from tp_transformer.errors import UserError
from tp_transformer.html import Markup, element, paragraph

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table as RichTable
    from rich.text import Text

NOTEBOOK_ROWS = 20  # of a table in a notebook
LONGEST_CELL = 160  # characters of a cell of an HTML page
_NUMBER = re.compile(r"[+\-−±<>=~ ]*\d[\d,]*(\.\d+)?")  # noqa: RUF001  tables have a minus sign


@dataclass(frozen=True)
class NumberCell:
    """A cell with a number, by which a page sorts, and how it is printed."""

    value: float
    text: str


Cell = str | NumberCell


@dataclass(frozen=True, kw_only=True)
class Table:
    """Headings and rows of cells; a text may have several lines.

    Attributes:
        title: what the table shows
        heads: the headings
        rows: the cells, as many as headings
        notes: sentences below the table
        n_texts: number of columns with texts, which come first; the others have numbers
        groups: headings of groups of rows by the texts of the second column, which takes their
            place where a table cannot be sorted
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    title: str = ""
    notes: Sequence[str] = ()
    n_texts: int = 1
    groups: dict[str, str] | None = None

    def terminal(self, wrapped: bool = True) -> "RichTable":
        """Return the table for a terminal; the first column is wrapped if there is little room."""
        from rich.text import Text

        heads, rows = self._grouped()
        drawn = plain_table()
        rows_of_cells = [row for row in rows if not isinstance(row, str)]
        for column, head in enumerate(heads):
            # Headings are wrapped at words, cells are not.
            lines = [line for row in rows_of_cells for line in text_of(row[column]).split("\n")]
            drawn.add_column(
                Text(head),
                justify="left" if column < self._n_names else "right",
                no_wrap=not column and not wrapped,
                overflow="fold",
                min_width=max(map(len, [*head.split(), *lines]), default=0) if column else None,
            )
        for row in rows:
            if isinstance(row, str):
                drawn.add_row(Text(row, style="bold cyan"))
            else:
                name = f"  {text_of(row[0])}" if self.groups else text_of(row[0])
                drawn.add_row(Text(name), *map(_dim_below, row[1:]))
        return drawn

    def markdown(self) -> list[str]:
        """Return the lines of the table in Markdown."""
        lines = [self.heads, *(tuple(map(text_of, row)) for row in self.rows)]
        escaped = [[_in_line(cell).replace("|", "\\|") for cell in line] for line in lines]
        head, *body = (f"| {' | '.join(line)} |" for line in escaped)
        rule = "|---" * self.n_texts + "|---:" * (len(self.heads) - self.n_texts) + "|"
        return [head, rule, *body]

    def latex(self, kind: str = "tabular") -> list[str]:
        """Return the lines of the table in LaTeX, in an environment such as longtable."""
        heads, rows = self._grouped()
        columns = "l" + "r" * (len(heads) - 1)
        lines = [rf"\begin{{{kind}}}{{{columns}}}", r"\toprule", _latex_row(heads)]
        if not isinstance(next(iter(rows), ""), str):
            lines.append(r"\midrule")
        for row in rows:
            if isinstance(row, str):
                title = latex_escaped(row)
                lines += [r"\midrule", rf"\multicolumn{{{len(heads)}}}{{l}}{{\emph{{{title}}}}} \\"]
            else:
                lines.append(_latex_row([text_of(cell) for cell in row]))
        return [*lines, r"\bottomrule", rf"\end{{{kind}}}"]

    def html(self) -> Markup:
        """Return the table as HTML; cells have the numbers by which a page sorts its rows."""
        kinds = [None if n < self.n_texts else "number" for n in range(len(self.heads))]
        heads = (
            element("th", head, class_=kind, scope="col")
            for head, kind in zip(self.heads, kinds, strict=True)
        )
        body = (
            element("tr", *(_html_cell(x, kind) for x, kind in zip(row, kinds, strict=True)))
            for row in self.rows
        )
        return element(
            "table",
            element("caption", self.title),
            element("thead", element("tr", *heads)),
            element("tbody", *body),
        )

    @property
    def _n_names(self) -> int:
        """The number of columns with texts in `_grouped`."""
        return self.n_texts - (self.groups is not None)

    def _grouped(self) -> tuple[Sequence[str], list[Sequence[Cell] | str]]:
        """Return headings and rows without the second column, whose texts precede their rows."""
        if self.groups is None:
            return self.heads, list(self.rows)
        rows: list[Sequence[Cell] | str] = []
        before = None
        for name, group, *others in self.rows:
            if group != before:
                before = group
                rows.append(self.groups[text_of(group)])
            rows.append([name, *others])
        return [self.heads[0], *self.heads[2:]], rows


def notebook_table(
    title: str, heads: Sequence[str], rows: Iterable[Sequence[object]], notes: Iterable[str] = ()
) -> str:
    """Return a table with notes below it as a notebook shows it; many rows are only counted."""
    texts = [list(map(text_of, row)) for row in rows]
    n_more = len(texts) - NOTEBOOK_ROWS
    lines = [f"and {n_more:,} more", *notes] if n_more > 0 else notes
    table = Table(title=title, heads=heads, rows=texts[:NOTEBOOK_ROWS], n_texts=len(heads))
    return element("div", table.html(), *(paragraph(line) for line in lines if line))


def frame(
    rows: Iterable[Mapping[str, Any]], columns: Sequence[str] | None = None
) -> "pd.DataFrame":
    """Return rows of named values as a frame, whose columns are by default those of the rows."""
    try:
        import pandas as pd
    except ImportError as error:
        message = "frames need pandas: pip install 'tp-transformer[pandas]'"
        raise UserError(message) from error
    return pd.DataFrame(list(rows), columns=None if columns is None else list(columns))


def markdown_table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], n_texts: int = 1
) -> list[str]:
    """Return the lines of a table in Markdown: columns of texts, then columns of numbers."""
    return Table(heads=heads, rows=rows, n_texts=n_texts).markdown()


def plain_table(show_header: bool = True) -> "RichTable":
    """Return an empty table for a terminal in the common style."""
    from rich.table import Table as RichTable

    return RichTable(
        box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold", show_header=show_header
    )


def text_of(cell: object) -> str:
    """Return a cell as it is printed."""
    return cell.text if isinstance(cell, NumberCell) else str(cell)


def latex_note(line: str) -> str:
    """Return a small paragraph of LaTeX."""
    return rf"\par\noindent{{\footnotesize {latex_escaped(line)}\par}}"


def latex_escaped(text: str) -> str:
    """Return a text with the special characters of LaTeX escaped."""
    special = {**{c: f"\\{c}" for c in "&%$#_{}"}, "\\": r"\textbackslash{}"}
    special |= {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"}
    special |= {"<": r"\textless{}", ">": r"\textgreater{}"}
    return "".join(special.get(character, character) for character in text)


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(latex_escaped(_in_line(cell)) for cell in cells) + r" \\"


def _in_line(text: str) -> str:
    return " ".join(text.split("\n"))


def _dim_below(cell: Cell) -> "Text":
    from rich.text import Text

    first, *others = text_of(cell).split("\n")
    text = Text(first)
    for line in others:
        text.append(f"\n{line}", style="dim")
    return text


def _html_cell(cell: Cell, kind: str | None) -> Markup:
    text, key = text_of(cell), None
    if isinstance(cell, NumberCell):
        key = repr(float(cell.value))
    elif kind == "number" and (number := _NUMBER.match(text)):
        key = re.sub(r"[^\d.\-]", "", number[0].replace("−", "-"))  # noqa: RUF001
    lines = Markup(escape(cut(text)).replace("\n", "<br>"))
    return element("td", lines, class_=kind, data_sort=key)


def cut(text: str, longest: int = LONGEST_CELL) -> str:
    """Shorten a text."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
