"""Arrays to .npz or .safetensors, row after row, without ever holding them whole."""

import json
import math
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from locotrans.training.record import replacing

SUFFIXES = (".npz", ".safetensors")
_SAFETENSORS_NAMES = {"float16": "F16", "float32": "F32", "float64": "F64", "int64": "I64"}


class ArrayWriter:
    """Arrays that grow along their first axis, in temporary files beside where they will go."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._files: dict[str, IO[bytes]] = {}
        self._kinds: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
        self._rows: dict[str, int] = {}
        self.texts: dict[str, list[str]] = {}
        """Lists of strings that go along."""

    def append(self, rows: Mapping[str, np.ndarray]) -> None:
        """Add rows to each of the named arrays; all rows of an array have the same shape."""
        for name, values in rows.items():
            kind = (values.dtype, values.shape[1:])
            if name not in self._files:
                file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 (the stack closes it)
                self._files[name] = self._stack.enter_context(file)
                self._kinds[name], self._rows[name] = kind, 0
            if self._kinds[name] != kind:
                raise ValueError(f"rows of {name} were {self._kinds[name]}, now {kind}")
            self._files[name].write(np.ascontiguousarray(values).data)
            self._rows[name] += len(values)

    def _arrays(self) -> Iterator[tuple[str, np.dtype[Any], tuple[int, ...], IO[bytes]]]:
        for name, file in self._files.items():
            dtype, shape = self._kinds[name]
            file.seek(0)
            yield name, dtype, (self._rows[name], *shape), file

    def write_npz(self, out: IO[bytes]) -> None:
        """Write everything as an uncompressed .npz; the texts become arrays of strings."""
        with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
            for name, dtype, shape, file in self._arrays():
                header = {
                    "descr": np.lib.format.dtype_to_descr(dtype),
                    "fortran_order": False,
                    "shape": shape,
                }
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array_header_1_0(member, header)
                    shutil.copyfileobj(file, member)
            for name, texts in self.texts.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.array(texts, dtype=np.str_))

    def write_safetensors(self, out: IO[bytes]) -> None:
        """Write everything as .safetensors; the texts become JSON lists in the metadata."""
        texts = {name: json.dumps(texts) for name, texts in self.texts.items()}
        header: dict[str, Any] = {"__metadata__": texts}
        end = 0
        for name, dtype, shape, _ in self._arrays():
            start, end = end, end + dtype.itemsize * math.prod(shape)
            kind = _SAFETENSORS_NAMES[dtype.name]
            header[name] = {"dtype": kind, "shape": shape, "data_offsets": (start, end)}
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)  # the data are aligned
        out.write(len(text).to_bytes(8, "little") + text)
        for _, _, _, file in self._arrays():
            shutil.copyfileobj(file, out)


@contextmanager
def array_file(path: Path) -> Iterator[ArrayWriter]:
    """Collect arrays and write them to ``path`` when the block ends well.

    Raises:
        ValueError: if the suffix is neither of the two.
    """
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path} must end in {' or '.join(SUFFIXES)}")
    with ExitStack() as stack:
        writer = ArrayWriter(path.parent, stack)
        out = stack.enter_context(replacing(path))
        yield writer
        (writer.write_npz if path.suffix == ".npz" else writer.write_safetensors)(out)
