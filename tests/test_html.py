"""HTML tables for notebooks: escaped, short."""

from tp_transformer.html import LONGEST, MOST, table


def test_texts_are_escaped():
    page = table("a <b>", ["<i>"], [["<script>alert('x')</script> & more"]])
    assert "<script>" not in page
    assert "<i>" not in page
    assert "a &lt;b&gt;" in page
    assert "&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt; &amp; more" in page


def test_tables_are_short():
    page = table("title", ["text"], [["x" * 1000]] * 100)
    assert page.count("<td>") == MOST
    assert f"and {100 - MOST} more" in page
    assert len(page) < 2 * MOST * LONGEST
    assert "more" not in table("title", ["text"], [["x"]] * MOST)
