"""Reading and writing of YAML, imported only where a text is YAML."""

import re
from typing import Any

import yaml

# Errors of YAML itself, and for thousands of digits, impossible dates and deep nesting.
UNREADABLE = (yaml.YAMLError, ValueError, OverflowError, RecursionError)


def load(text: str) -> Any:
    """Read YAML without creating objects; raise one of `UNREADABLE` for anything else."""
    return yaml.load(text, _Loader)  # noqa: S506, a safe loader


def dump(values: dict[str, Any]) -> str:
    """Return values as YAML, in their order."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False)


class _Loader(yaml.SafeLoader):
    """Reads 1e-3 as a number; YAML 1.1 requires 1.0e-3."""


class _Dumper(yaml.SafeDumper):
    """Writes YAML for `_Loader`, with lists on one line."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write repeated values in full."""
        return True


for _kind in (_Loader, _Dumper):
    _kind.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
        list("-+.0123456789"),
    )
for _sequence in (list, tuple):
    _Dumper.add_representer(
        _sequence,
        lambda dumper, items: dumper.represent_sequence(
            "tag:yaml.org,2002:seq", items, flow_style=True
        ),
    )
