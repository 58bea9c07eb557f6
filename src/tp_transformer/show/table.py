"""Tables: the same one for a terminal, as Markdown, as LaTeX and, by `report.markup`, as HTML."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich import table as rich_table
from rich.console import Console
from rich.rule import Rule
from rich.text import Text


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

    def terminal(self, wrapped: bool = True) -> rich_table.Table:
        """Return the table for a terminal; the first column is wrapped if there is little room."""
        heads, rows = self._grouped()
        drawn = plain_table()
        cells = [row for row in rows if not isinstance(row, str)]
        for place, head in enumerate(heads):
            # Headings are wrapped at words, cells are not.
            texts = [
                *head.split(),
                *(line for row in cells for line in text_of(row[place]).split("\n")),
            ]
            is_text = place < self.n_texts - (self.groups is not None)
            drawn.add_column(
                Text(head),
                justify="left" if is_text else "right",
                no_wrap=not place and not wrapped,
                overflow="fold",
                min_width=max(map(len, texts), default=0) if place else None,
            )
        for row in rows:
            if isinstance(row, str):
                drawn.add_row(Text(row, style="bold cyan"))
                continue
            first, *others = row
            name = f"  {text_of(first)}" if self.groups else text_of(first)
            drawn.add_row(Text(name), *map(_dim_below, others))
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


def markdown_table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], n_texts: int = 1
) -> list[str]:
    """Return the lines of a table in Markdown: columns of texts, then columns of numbers."""
    return Table(heads=heads, rows=rows, n_texts=n_texts).markdown()


def plain_table(show_header: bool = True) -> rich_table.Table:
    """Return an empty table for a terminal in the common style."""
    return rich_table.Table(
        box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold", show_header=show_header
    )


def text_of(cell: Cell) -> str:
    """Return a cell as it is printed."""
    return cell.text if isinstance(cell, NumberCell) else cell


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


def _dim_below(cell: Cell) -> Text:
    first, *others = text_of(cell).split("\n")
    text = Text(first)
    for line in others:
        text.append(f"\n{line}", style="dim")
    return text


def heading(console: Console, text: str) -> None:
    """Print the heading of a part."""
    console.print()
    console.print(Rule(Text(text, style="bold"), characters="━", style="dim"))
