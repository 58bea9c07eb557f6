"""Ranks, collectives and devices; the only module that imports torch.distributed.

`torchrun` starts the ranks and gives each its number in environment variables. Without these there
is a single rank and no communication.
"""

import gc
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import PrefixStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from tp_transformer.errors import SettingsError, UserError
from tp_transformer.ranges import Precision

DEVICES = ("auto", "cpu", "cuda", "mps")
CPU_INFO = Path("/proc/cpuinfo")  # of Linux
# Its words for products in bfloat16: two on x86, one on ARM.
BFLOAT16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """The rank of this process, the number of ranks, and collective operations."""

    device: torch.device
    rank: int = 0
    n_ranks: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which writes files."""
        return self.rank == 0

    @property
    def wide(self) -> torch.dtype:
        """The data type of sums: float64, or float32 on Apple's GPUs."""
        return torch.float32 if self.device.type == "mps" else torch.float64

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over ranks, in place."""
        return self._reduced(tensor, dist.ReduceOp.SUM)

    def max(self, tensor: Tensor) -> Tensor:
        """Compute the elementwise maximum of a tensor over ranks, in place."""
        return self._reduced(tensor, dist.ReduceOp.MAX)

    def share(self, text: str, source: int = 0) -> str:
        """Broadcast a text as bytes, because torch would pickle an object."""
        if self.n_ranks == 1:
            return text
        data = text.encode("utf-8", "surrogateescape")  # a path need not be valid UTF-8
        n_bytes = torch.tensor([len(data)], device=self.device)
        dist.broadcast(n_bytes, source)
        content = torch.zeros(int(n_bytes), dtype=torch.uint8)
        if self.rank == source and data:
            content = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        content = content.to(self.device)
        if len(content):
            dist.broadcast(content, source)
        return bytes(content.tolist()).decode("utf-8", "surrogateescape")

    def share_tensor(self, tensor: Tensor) -> Tensor:
        """Broadcast a tensor of rank 0, in place."""
        if self.n_ranks > 1:
            dist.broadcast(tensor, 0)
        return tensor

    def each(self, work: Callable[[], T]) -> T:
        """Call a function on each rank; if it fails on one, raise on all, with the same message.

        Otherwise the other ranks would wait forever, or report a lost connection.
        """
        failure: Exception | None = None
        try:
            result = work()
        except (UserError, OSError) as error:
            failure = error
        if self.n_ranks > 1:
            urgency = self.n_ranks - self.rank if failure else 0
            first = int(self.max(torch.tensor([urgency], device=self.device)))
            if first:
                line = self.share(str(failure), source=self.n_ranks - first)
                failure = failure or UserError(line)
        if failure:
            raise failure
        return result

    def first(self, work: Callable[[], T]) -> T:
        """Call a function on rank 0 only; return its result, which is sent as JSON, on all."""
        result = self.each(lambda: work() if self.is_first else None)
        shared: T = json.loads(self.share(json.dumps(result)))
        return shared

    def share_tensors(self, tensors: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
        """Return the tensors of rank 0 on the device of each rank; other ranks give None."""
        described: list[Any] = self.first(
            lambda: [[name, str(t.dtype), list(t.shape)] for name, t in (tensors or {}).items()]
        )
        shared: dict[str, Tensor] = {}
        for name, dtype, shape in described:
            if tensors is None:
                kind = getattr(torch, dtype.removeprefix("torch."))
                shared[name] = self.share_tensor(torch.empty(shape, dtype=kind, device=self.device))
            else:
                shared[name] = self.share_tensor(tensors[name].to(self.device))
        return shared

    def wrap(self, module: nn.Module) -> nn.Module:
        """Wrap a module so that its gradients are averaged over ranks."""
        if self.n_ranks == 1:
            return module
        return DistributedDataParallel(module, gradient_as_bucket_view=True)

    def no_sync(self, module: nn.Module) -> AbstractContextManager[None]:
        """Return a context in which the gradients of a wrapped module are accumulated locally."""
        if isinstance(module, DistributedDataParallel):
            return module.no_sync()
        return nullcontext()

    def _reduced(self, tensor: Tensor, operation: dist.ReduceOp.RedOpType) -> Tensor:
        if self.n_ranks > 1:
            dist.all_reduce(tensor, operation)
        return tensor


def is_first_process() -> bool:
    """Whether this process is, or would be, rank 0."""
    return int(os.environ.get("RANK", 0)) == 0


@contextmanager
def unchanged_random_state(device: torch.device) -> Iterator[None]:
    """Restore the random state of torch for the CPU and for a device at the end."""
    devices = [] if device.type in {"cpu", "meta"} else [device]
    with torch.random.fork_rng(devices, device_type=device.type if devices else "cuda"):
        yield


@contextmanager
def open_ranks(device: str = "auto") -> Iterator[Ranks]:
    """Join the process group, if torchrun started several processes; leave it at the end.

    Inside of another call, the ranks that have joined are used.
    """
    rank, n_ranks, local = (
        int(os.environ.get(name, default))
        for name, default in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0))
    )
    chosen = choose_device(device, local, n_ranks)
    if n_ranks == 1 or dist.is_initialized():
        yield Ranks(chosen, rank, n_ranks)
        return
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    _join("nccl" if chosen.type == "cuda" else "gloo", rank, n_ranks)
    try:
        yield Ranks(chosen, rank, n_ranks)
    except (UserError, OSError, SystemExit):
        _part()  # all ranks get here
        raise
    # After any other exception, other ranks may hang in a collective: do not wait for them.
    _part()


def _join(backend: str, rank: int, n_ranks: int) -> None:
    """Join the process group.

    Torchrun keeps one store of addresses across restarts. Each attempt uses its own prefix;
    otherwise a rank may find the address of a dead process and fail (observed with Gloo).
    """
    store, _, _ = next(rendezvous("env://", rank, n_ranks))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    prefixed = PrefixStore(f"attempt-{attempt}", store)
    dist.init_process_group(backend, store=prefixed, rank=rank, world_size=n_ranks)


def _part() -> None:
    """Leave the process group.

    The threads of Gloo need the GIL to free the tensors of the last collective. The destruction of
    the group waits for these threads, possibly while holding the GIL (observed: one run in four
    hung at its end). Therefore references to the group are freed first, and the GIL is released
    for a moment.
    """
    gc.collect()
    time.sleep(0.1)
    dist.destroy_process_group()


def has_bfloat16(device: torch.device) -> bool:
    """Whether a device has native bfloat16; emulation is ten times slower than float32."""
    if device.type != "cpu":
        return True
    try:
        words = CPU_INFO.read_text("utf-8").split()
    except OSError:
        return False
    return not BFLOAT16_FLAGS.isdisjoint(words)


def native_precision(precision: Precision, device: torch.device) -> Precision:
    """Return a precision, or float32 instead of a bfloat16 that the device would emulate."""
    is_emulated = precision == "bfloat16" and not has_bfloat16(device)
    return "float32" if is_emulated else precision


def choose_device(name: str = "auto", local_rank: int = 0, n_ranks: int = 1) -> torch.device:
    """Return the named device, if available; with `auto`, the fastest available one."""
    there = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available() and n_ranks == 1,  # it has no collectives
        "cpu": True,
    }
    if name == "auto":
        name = next(kind for kind, is_there in there.items() if is_there)
    if name not in there:
        raise SettingsError(f"there is no device {name!r}; the devices are {', '.join(DEVICES)}")
    if not there[name]:
        usable = ", ".join(kind for kind, is_there in there.items() if is_there)
        raise SettingsError(f"the device {name} is not available here; available: {usable}")
    if name == "cuda" and n_ranks > 1:
        if local_rank >= torch.cuda.device_count():
            raise SettingsError(
                f"process {local_rank + 1} on this machine has no GPU of its own; there are "
                f"{torch.cuda.device_count()}, so start no more processes than that"
            )
        return torch.device("cuda", local_rank)
    return torch.device(name)
