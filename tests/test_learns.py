"""Trained about one axis, tested in any pose: the demonstration at its real size."""

import pytest

from locotrans.training.demo import run_demo


@pytest.mark.slow
def test_locotrans_learns_and_does_not_care_how_shapes_lie_but_dgcnn_does(tmp_path):
    networks = run_demo(tmp_path)["networks"]
    locotrans, dgcnn = networks["LocoTrans"], networks["DGCNN"]
    assert locotrans["accuracy_z_z"] >= 0.8
    assert locotrans["accuracy_z_so3"] >= locotrans["accuracy_z_z"] - 0.01
    assert dgcnn["accuracy_z_so3"] <= dgcnn["accuracy_z_z"] - 0.25
