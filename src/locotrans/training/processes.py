"""Training under torchrun: joining the other processes, and agreeing with them."""

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import distributed
from torch.distributed import PrefixStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from locotrans.distributed import processes
from locotrans.training.record import find_device

_groups = itertools.count()


@contextmanager
def joined_processes(device: str) -> Iterator[None]:
    """Join the processes that torchrun started, for a while; without torchrun, do nothing.

    Processes on the CPU speak by gloo; on GPUs by NCCL, each on the GPU of its local number.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or processes() > 1:
        yield
        return
    on_gpu = find_device(device).type == "cuda"
    if on_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    # torchrun's store keeps the addresses of groups that are gone: after a restart, after a run
    group = f"{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}-{next(_groups)}"
    store, rank, world_size = next(rendezvous("env://"))
    distributed.init_process_group(
        "nccl" if on_gpu else "gloo",
        store=PrefixStore(group, store),
        rank=rank,
        world_size=world_size,
    )
    try:
        yield
    finally:
        distributed.destroy_process_group()


def any_process(flag: bool, device: torch.device) -> bool:
    """Say whether the flag holds in any process; this waits for all of them."""
    if processes() == 1:
        return flag
    total = torch.tensor(float(flag), device=device)
    distributed.all_reduce(total)
    return total.item() > 0


def wait_for_processes() -> None:
    """Wait until all processes are here."""
    if processes() > 1:
        distributed.barrier()
