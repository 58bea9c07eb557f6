"""Seeded mutations of JSON documents and of bytes, for the fuzz tests of what the package reads.

A fuzz test loops over `trials`, damages a good file with `mutate_json`, `mutate_bytes` or
`mutate_file`, and reads it within `tolerated`: success and the package's own error pass, anything
else fails and names the trial, which `trial(seed, number)` repeats alone.
"""

import json
import random
import signal
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tp_transformer.errors import UserError

DEPTH = 50_000  # of nesting: Python's parsers stop at about a thousand
PATIENCE = 60  # seconds that one trial may take on a machine with other work

# Values that a field rarely expects, as JSON text: Python refuses to make some of them.
ODD_VALUES = (
    *("null", "true", "false", "NaN", "Infinity", "-Infinity", "1e999", "-0.0", "0.5", "1e-320"),
    *("0", "1", "-1", "255", "2147483648", "-2147483649", "4294967296", "9223372036854775808"),
    *("-9223372036854775809", "18446744073709551616", "1" + "0" * 30, "9" * 5000, "1e44"),
    *('""', '" "', '"\\u0000"', '"\\ud800"', '"a\\nb"', '"../../etc"', '"/"', '"nan"', '"1e9"'),
    *('"' + "x" * 100_000 + '"', "[]", "{}", "[null]", "[[]]", '{"": null}', "[1, 2, 3]"),
    *("[" * DEPTH + "]" * DEPTH, '{"a":' * DEPTH + "1" + "}" * DEPTH),
)


class TookTooLong(BaseException):
    """A trial exceeded its time; no handler of ordinary exceptions may take it for an error."""


def trial(seed: int, number: int) -> random.Random:
    """The random numbers of one trial, which depend on no other trial."""
    return random.Random(f"{seed}/{number}")


def trials(count: int, seed: int = 0) -> Iterator[tuple[str, random.Random]]:
    """As many trials as asked for: a name to report, and random numbers."""
    for number in range(count):
        yield f"trial({seed}, {number})", trial(seed, number)


@contextmanager
def tolerated(name: str, *, patience: int = PATIENCE) -> Iterator[None]:
    """Pass over success and the package's own error; fail on any other exception or delay.

    The message of an error must be one line. `SystemExit` with code 2, the end of a command that
    printed such a line, counts as the package's own error.
    """
    before = signal.signal(signal.SIGALRM, _stop)
    signal.alarm(patience)
    try:
        yield
    except UserError as error:
        if "\n" in str(error):
            raise AssertionError(f"{name}: the message has several lines: {error}") from error
    except SystemExit as stop:
        if stop.code not in (0, 2, None):
            raise AssertionError(f"{name}: exit with {stop.code}") from stop
    except TookTooLong:
        raise AssertionError(f"{name} took more than {patience} seconds") from None
    except Exception as error:
        raise AssertionError(f"{name}: {error!r:.500}") from error
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _stop(number: int, frame: types.FrameType | None) -> None:
    raise TookTooLong


def mutate_file(file: Path, chance: random.Random) -> None:
    """Damage a file in place; a JSON file as a document or as bytes."""
    data = file.read_bytes()
    if file.suffix == ".json" and chance.random() < 0.7:
        file.write_bytes(mutate_json(json.loads(data), chance))
    else:
        file.write_bytes(mutate_bytes(data, chance))


def mutate_bytes(data: bytes, chance: random.Random) -> bytes:
    """Bytes with one to three damages: flipped, zeroed, cut out, inserted, repeated, truncated."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        start = chance.randrange(len(changed) + 1)
        # Small damages hit single fields, large ones whole blocks.
        end = min(len(changed), start + 2 ** chance.randrange(13))
        kind = chance.choice(("flip", "flip", "random", "zero", "ones", "cut", "insert", "end"))
        if kind == "flip" and start < len(changed):
            changed[start] ^= 1 << chance.randrange(8)
        elif kind == "random":
            changed[start:end] = chance.randbytes(end - start)
        elif kind in ("zero", "ones"):
            changed[start:end] = (b"\0" if kind == "zero" else b"\xff") * (end - start)
        elif kind == "cut":
            del changed[start:end]
        elif kind == "insert":
            new = chance.randbytes(chance.randrange(1, 64))
            changed[start:start] = chance.choice((new, changed[start:end]))
        elif kind == "end":
            del changed[start:]
    return bytes(changed)


@dataclass(frozen=True)
class _Raw:
    """A part of a document that is JSON text already."""

    text: str


@dataclass(frozen=True)
class _Pairs:
    """An object whose keys may repeat."""

    pairs: tuple[tuple[str, Any], ...]


def mutate_json(document: Any, chance: random.Random) -> bytes:
    """The text of a JSON document with one to three damages, or with damaged text.

    Values get another type, size or sign; keys vanish, repeat, or are new; containers are emptied,
    nested or reordered.
    """
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        document = _replaced(document, _random_path(document, chance), chance)
    text = _text(document).encode("utf-8", "surrogatepass")
    return mutate_bytes(text, chance) if chance.random() < 0.1 else text


def _random_path(document: Any, chance: random.Random) -> tuple[Any, ...]:
    """Where to damage: one step down after the other, so that rare keys are as likely as lists."""
    path: list[Any] = []
    while isinstance(document, (dict, list)) and document and chance.random() < 0.85:
        step = chance.choice(list(document) if isinstance(document, dict) else range(len(document)))
        path.append(step)
        document = document[step]
    return tuple(path)


def _replaced(document: Any, path: tuple[Any, ...], chance: random.Random) -> Any:
    if not path:
        return _damaged(document, chance)
    step, rest = path[0], path[1:]
    changed = dict(document) if isinstance(document, dict) else list(document)
    if not rest and chance.random() < 0.25:
        if chance.random() < 0.5 or isinstance(changed, list):
            del changed[step]
            return changed
        twin = _damaged(document[step], chance)
        return _Pairs((*changed.items(), (step, twin)))
    changed[step] = _replaced(document[step], rest, chance)
    return changed


def _damaged(value: Any, chance: random.Random) -> Any:
    if chance.random() < 0.6:
        return _Raw(chance.choice(ODD_VALUES))
    near: list[Any] = [[value], {"value": value}, [value, value], _Raw(json.dumps(_text(value)))]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        near += [-value, value + 1, value - 1, value * 1_000_003, value / 7, str(value)] * 2
    elif isinstance(value, str):
        near += [value[:-1], value[1:], value * 2, value + "\0", value.swapcase(), value[::-1]] * 2
    elif isinstance(value, list):
        near += [value[:-1], value * 2, value[::-1], [*value, None]] * 2
    elif isinstance(value, dict):
        near += [{**value, "unknown": 1}, list(value.items()), list(value), dict.fromkeys(value)]
    return chance.choice(near)


def _text(value: Any) -> str:
    if isinstance(value, _Raw):
        return value.text
    if isinstance(value, (dict, _Pairs)):
        pairs = value.items() if isinstance(value, dict) else value.pairs
        return "{" + ", ".join(f"{json.dumps(key)}: {_text(one)}" for key, one in pairs) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_text, value)) + "]"
    return json.dumps(value)
