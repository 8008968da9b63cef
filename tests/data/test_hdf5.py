"""A folder of one's own h5 files."""

import h5py
import numpy as np
import pytest
import torch

from locotrans.data import load_dataset


def test_clouds_far_from_the_origin_keep_their_points(tmp_path):
    points = np.random.default_rng(0).random((4, 500, 3))
    for number, shift in enumerate((0.0, 5e6, 1e8)):
        folder = tmp_path / str(number)
        folder.mkdir()
        with h5py.File(folder / "train.h5", "w") as file:
            file["data"], file["label"] = points + shift, np.arange(4)
    near, *far = (
        load_dataset("hdf5", "train", root=tmp_path / str(i), points=500).points for i in range(3)
    )
    for clouds, tolerance in zip(far, (1e-6, 1e-5), strict=True):
        torch.testing.assert_close(clouds, near, rtol=0, atol=tolerance)


def test_numbers_that_are_no_labels_are_refused(tmp_path):
    with h5py.File(tmp_path / "train.h5", "w") as file:
        file["data"] = np.random.default_rng(0).random((4, 50, 3))
        file["label"] = np.array([0, 1, 2, 2**31 - 1])
    with pytest.raises(ValueError, match="label reaches 2,147,483,647 in train"):
        load_dataset("hdf5", "train", root=tmp_path, points=10)
