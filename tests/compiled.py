"""Compile kernels of the relative-pose convolution for a GPU that is not here.

    python compiled.py 86 101376         those that need most shared memory
    python compiled.py 86 101376 all     all that multiply matrices; others need less than 20 KiB

The compute capability comes first, then the bytes of shared memory that a program may have. How
many each kernel needs is printed as JSON. This is a process of its own: what the tests run in
Triton's interpreter cannot be compiled.
"""

import itertools
import json
import sys
from types import SimpleNamespace
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from locotrans.kernels import rpr
from locotrans.kernels.rpr_plan import layers_of
from locotrans.nn.rpr import RelativePoseConv

POINTS, NEIGHBORS, VECTORS, OUT = 8, 20, 64, 256  # as wide as is supported
Case = tuple[int, bool, str, bool]  # channels, refine, precision, training
ALL = tuple(itertools.product((64, 128), (True, False), ("tf32x3", "tf32", "bf16"), (True, False)))
LARGEST: dict[Case, tuple[str, ...]] = {
    (64, True, "tf32x3", False): ("last_kernel",),
    (128, True, "tf32x3", False): ("pose_kernel", "max_kernel"),
    (128, True, "bf16", False): ("last_kernel",),
    (64, True, "bf16", True): ("max_backward_kernel", "pose_backward_kernel"),
}


def convolve(channels: int, refine: bool, precision: str, training: bool) -> None:
    """Call the layer forward and, in training, backward."""
    conv = RelativePoseConv(3 * VECTORS, channels, OUT, refine=refine).train(training)
    store = torch.bfloat16 if precision == "bf16" else torch.float32
    x, z, v = (torch.zeros(POINTS, *shape) for shape in ((channels,), (OUT,), (3, VECTORS)))
    points = (t.requires_grad_(training) for t in (x.to(store), z.to(store), v))
    frames, index = torch.eye(3).expand(POINTS, 3, 3), torch.zeros(POINTS, NEIGHBORS).int()
    weight, options = conv.linear.weight[:, :channels], {"store": store, "precision": precision}
    with torch.set_grad_enabled(training):
        out = rpr.rpr_conv(*points, frames, index, weight, layers_of(conv), **options)
        if training:
            out.sum().backward()


def needed(capability: int, memory: float, largest: bool) -> dict[str, int]:
    """Return the bytes that kernels need, by name and precision; none of them is launched."""
    gpu = {
        "get_current_target": lambda: GPUTarget("cuda", capability, 32),
        "get_current_device": lambda: 0,
        "get_current_stream": lambda device: 0,
    }
    driver.set_active(SimpleNamespace(**gpu))
    rpr.shared_memory = lambda device: memory
    launch, found = JITFunction.run, {}

    def compiled(kernel: Any, *arguments: Any, **options: Any) -> None:
        name = kernel.fn.__name__
        if "PRECISION" in options and (not largest or name in LARGEST[case]):
            binary = launch(kernel, *arguments, **(options | {"warmup": True}))
            name = f"{name} {options['PRECISION']}"
            found[name] = max(found.get(name, 0), binary.metadata.shared)

    JITFunction.run = compiled
    for case in LARGEST if largest else ALL:
        convolve(*case)
    if largest:
        wanted = {f"{name} {case[2]}" for case, names in LARGEST.items() for name in names}
        assert found.keys() == wanted, f"compiled {sorted(found)}, not {sorted(wanted)}"
    return found


if __name__ == "__main__":
    print(json.dumps(needed(int(sys.argv[1]), float(sys.argv[2]), "all" not in sys.argv)))
