"""Tables for notebooks and elements of HTML: escaped, short."""

from tp_transformer.html import Markup, element
from tp_transformer.table import LONGEST_CELL, NOTEBOOK_ROWS, notebook_table


def test_texts_are_escaped():
    page = notebook_table("a <b>", ["<i>"], [["<script>alert('x')</script> & more"]])
    assert "<script>" not in page
    assert "<i>" not in page
    assert "a &lt;b&gt;" in page
    assert "&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt; &amp; more" in page


def test_only_markup_is_not_escaped():
    inner = element("b", "<&>", title='"')
    assert inner == '<b title="&quot;">&lt;&amp;&gt;</b>'
    assert element("p", inner, "<b>") == f"<p>{inner}&lt;b&gt;</p>"
    assert isinstance(inner, Markup)


def test_tables_are_short():
    page = notebook_table("title", ["text"], [["x" * 1000]] * 100)
    assert page.count("<td>") == NOTEBOOK_ROWS
    assert f"and {100 - NOTEBOOK_ROWS} more" in page
    assert len(page) < 2 * NOTEBOOK_ROWS * LONGEST_CELL
    assert "more" not in notebook_table("title", ["text"], [["x"]] * NOTEBOOK_ROWS)
