"""The figure of exchanged roles has each share where it belongs."""

import pytest

import tp_transformer as tpt
from tp_transformer import figures
from tp_transformer.interpret.core.nested import nested_fractions, nested_sample
from tp_transformer.interpret.core.result import Context
from tp_transformer.interpret.interchange import (
    CONTROL_DRAWS,
    EXCHANGES,
    AnswerCounts,
    InterchangeResult,
    LayerInterchange,
    RoleExchange,
    ShareTest,
)
from tp_transformer.scoring.statistics import wilson

UNCLEAR = ShareTest.of(0, 0, 3)


def answers(exchanged, otherwise, kept, n):
    interval = wilson(exchanged, n) if n else None
    return AnswerCounts(
        exchanged=exchanged, exchanged_interval=interval, otherwise=otherwise, kept=kept
    )


def interchange_of(layers, n_of):
    """By places, a quarter is answered as exchanged, a tenth otherwise, half as before."""
    exchanges = tuple(
        RoleExchange(
            letters=letters,
            n=n,
            places=answers(n // 4, 3 * n // 10, n // 2, n),
            moved=answers(CONTROL_DRAWS * n // 20, 0, 0, CONTROL_DRAWS * n),
            numbers=answers(3 * n // 4, 0, 0, n),
        )
        for letters, n in n_of.items()
    )
    return LayerInterchange(
        layers=layers,
        exchanges=exchanges,
        against_moved=UNCLEAR,
        against_others=UNCLEAR,
        sides=None,
    )


@pytest.fixture
def context():
    sample = nested_sample(nested_fractions(3), "three fractions")
    return Context.of(tpt.build("tp-transformer-tiny", d_model=32), sample, 5)


@pytest.mark.parametrize("every", [(), (0, 1, 2)])
def test_panels_name_their_layers_and_count_their_questions(every, context, tmp_path):
    n_of = dict(zip(EXCHANGES, (1000, 40, 0, 20), strict=True))
    found = tuple(interchange_of(layers, n_of) for layers in ((2,), every) if layers)
    files = InterchangeResult(context=context, interchanges=found).save(tmp_path)  # looked at
    kinds = ("json", *figures.FORMATS)
    assert [file.name for file in files] == [f"interchange.{kind}" for kind in kinds]
    drawn = files[1].read_text("utf-8")
    assert drawn.count("roles exchanged in layer 2") == 1
    assert drawn.count("roles exchanged in all layers at once") == len(found) - 1
    assert drawn.count("n = 1000") == drawn.count("n = 0") == len(found)
    assert " ".join(drawn.split()).count("three fractions; analysis seed 5") == 1


def test_marks_stand_at_their_shares(context):
    n_of = dict(zip(EXCHANGES, (40, 0, 40, 40), strict=True))
    result = InterchangeResult(context=context, interchanges=(interchange_of((0,), n_of),))
    (axes,) = result.plot()["interchange"].axes
    marks = [
        line for line in axes.lines if line.get_marker() in set("oxs^") and len(line.get_xdata())
    ]
    rows = {}
    for line in marks:
        rows.setdefault(round(float(line.get_ydata()[0])), []).append(float(line.get_xdata()[0]))
    assert sorted(rows) == [0, 2, 3]  # of the second two letters nothing is known
    for row in rows.values():
        assert row == pytest.approx([25, 10, 5, 50, 75])
    spans = [line.get_xdata() for line in axes.lines if line.get_linewidth() == 0.8]
    assert spans[0] == pytest.approx([100 * end for end in wilson(10, 40)])
    assert spans[1] == pytest.approx([100 * end for end in wilson(6, 120)])
    assert spans[2] == pytest.approx([100 * end for end in wilson(30, 40)])
    assert len(spans) == 9
