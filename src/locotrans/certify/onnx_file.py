"""An ONNX file as a network: points in, named tensors out, by onnxruntime on the CPU."""

from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

INSTALL = 'pip install "locotrans[export]"'


def open_session(path: Path) -> Any:
    """Open an ONNX file with onnxruntime.

    Raises:
        ValueError: onnxruntime is not installed, or cannot read the file.
    """
    try:
        import onnxruntime
    except ImportError:
        raise ValueError(f"{path} needs onnxruntime: {INSTALL}") from None
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist or is not a file")
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = torch.get_num_threads()
    settings.log_severity_level = 3  # errors alone: warnings on graphs are not the user's business
    try:
        return onnxruntime.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own kinds, which have no common base
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} cannot be read by onnxruntime: {reason}") from None


class OnnxNetwork:
    """The network of an ONNX file, whose first input is points (b, n, 3) in float32.

    A second input, whole numbers (b), is taken for the category of each shape. Where the file fixes
    the batch, clouds are sent in batches of that size; where it fixes the number of
    points, ``fixed_points`` says so.
    """

    def __init__(self, path: Path) -> None:
        self.session = open_session(path)
        inputs = self.session.get_inputs()
        shape = inputs[0].shape
        categories = [x.name for x in inputs[1:] if x.type == "tensor(int64)" and len(x.shape) == 1]
        others = len(inputs) - 1 - len(categories)
        if len(shape) != 3 or shape[2] not in (3, None) or others or len(categories) > 1:
            found = ", ".join(f"{x.name} {x.shape}" for x in inputs)
            raise ValueError(
                f"{path} must take points (batch, points, 3), and at most a category of each cloud "
                f"beside them; it takes {found}"
            )
        if inputs[0].type != "tensor(float)":
            raise ValueError(f"{path} must take float32 points, it takes {inputs[0].type}")
        self.input = inputs[0].name
        self.categories = categories
        self.names = [x.name for x in self.session.get_outputs()]
        self.fixed_batch = shape[0] if isinstance(shape[0], int) else None
        self.fixed_points = shape[1] if isinstance(shape[1], int) else None

    def __call__(
        self, points: Float[Tensor, "b n 3"], category: Int[Tensor, "b"] | None = None
    ) -> dict[str, Tensor]:
        """Return the outputs by name; an input that is not float32 is refused.

        Args:
            points: the clouds.
            category: of each, where the file wants one; by default the first, 0.
        """
        if points.dtype != torch.float32:
            raise ValueError(f"an ONNX file takes float32, got {points.dtype}")
        if self.fixed_points is not None and points.shape[1] != self.fixed_points:
            raise ValueError(
                f"the file takes clouds of {self.fixed_points} points, got {points.shape[1]}"
            )
        size = self.fixed_batch or len(points)
        if category is None:
            category = torch.zeros(len(points), dtype=torch.long)
        parts = []
        for chunk, kinds in zip(points.split(size), category.split(size), strict=True):
            short = size - len(chunk)  # a fixed batch is filled up
            full = torch.cat([chunk, chunk[:1].expand(short, -1, -1)]) if short else chunk
            feed = {self.input: full.contiguous().numpy()}
            known = torch.cat([kinds, kinds[:1].expand(short)]).numpy()
            feed |= dict.fromkeys(self.categories, known)
            answer = self.session.run(self.names, feed)
            parts.append([torch.from_numpy(x)[: len(chunk)] for x in answer])
        return {
            name: torch.cat(values)
            for name, values in zip(self.names, zip(*parts, strict=True), strict=True)
        }
