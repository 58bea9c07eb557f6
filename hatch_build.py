"""Compiles the optional C kernels when the package is built or installed.

Without a C compiler, or on another processor, the package is built without them and computes the
same with PyTorch alone. `python hatch_build.py` compiles them in a checkout.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run as a script
    BuildHookInterface = object

FOLDER = Path("src/tp_transformer/ops/native")
FLAGS = ["-std=gnu11", "-O3", "-mavx2", "-mfma", "-fno-math-errno", "-fno-trapping-math"]
FLAGS += ["-fvisibility=hidden", "-Wall", "-Wextra", "-shared", "-fPIC"]


def compile_kernels(root: Path) -> Path | None:
    """Compile the kernels next to their sources; return the library, or None if that failed."""
    compiler = os.environ.get("CC") or shutil.which("cc")
    is_x86 = platform.machine().lower() in {"x86_64", "amd64"}
    if not compiler or not is_x86 or not sys.platform.startswith("linux"):
        return None
    folder = root / FOLDER
    sources = sorted((*folder.glob("*.c"), *folder.glob("*.h")))
    # The name tells whether a library belongs to the sources (`compiled_file` of the package).
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
    library = folder / f"kernels-{digest[:16]}.so"
    if library.exists() and library.stat().st_mtime >= Path(__file__).stat().st_mtime:
        return library
    unfinished = folder / f".{os.getpid()}.so"  # another process may compile at the same time
    units = [str(source) for source in sources if source.suffix == ".c"]
    command = [*compiler.split(), *FLAGS, *units, "-o", str(unfinished), "-lm", "-lpthread"]
    try:
        done = subprocess.run(command, check=False)  # noqa: S603
    except OSError as error:
        print(f"{compiler}: {error}", file=sys.stderr)
        return None
    if done.returncode:
        unfinished.unlink(missing_ok=True)
        return None
    unfinished.replace(library)
    for other in folder.glob("kernels-*.so"):
        if other != library:
            other.unlink(missing_ok=True)
    return library


class KernelHook(BuildHookInterface):  # type: ignore[misc, valid-type]
    """Adds the compiled kernels to wheels and to editable installations."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and mark a wheel with kernels as one for this platform."""
        library = compile_kernels(Path(self.root))
        if library is not None:
            build_data["artifacts"].append(str(library.relative_to(self.root)))
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{_platform_tag()}"


def _platform_tag() -> str:
    from packaging.tags import sys_tags

    return next(tag.platform for tag in sys_tags() if "manylinux" not in tag.platform)


if __name__ == "__main__":
    print(compile_kernels(Path(__file__).parent) or "no kernels: there is no C compiler for x86")
