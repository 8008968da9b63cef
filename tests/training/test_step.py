"""A training step: dropout of a recorded one, and where the network sees the clouds."""

import pytest
import torch

from locotrans import create_model
from locotrans.models import ClassifierOutput
from locotrans.training.config import TrainConfig
from locotrans.training.step import Step, frequency_offsets

SMALL = {"k": 4, "vector_widths": (4, 5), "vector_embedding": 6, "widths": (8, 8)}
SMALL |= {"embedding": 8, "head_widths": (8, 8), "dropout": 0.0}


NETWORKS = {
    "locotrans_dgcnn": SMALL,
    "locotrans_dgcnn_partseg": SMALL | {"categories": 2},
    "dgcnn": {"k": 4, "dropout": 0.0},
    "vn_dgcnn": {"k": 4, "dropout": 0.0},
    "dgcnn_partseg": {"k": 4, "dropout": 0.0, "categories": 2},
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_shift_counts_in_training_and_not_in_evaluation(name, generator):
    points = torch.randn(4, 12, 3, generator=generator)
    moved = points + 0.2 * torch.randn(4, 1, 3, generator=generator)
    parts = "partseg" in name
    given = {"category": torch.tensor([0, 1, 0, 1])} if parts else {}
    labels = torch.arange(48).view(4, 12) % 3 if parts else torch.tensor([0, 1, 2, 0])
    losses = []
    for clouds in (points, moved):
        torch.manual_seed(0)
        model = create_model(name, 3, **NETWORKS[name])
        step = Step(model, TrainConfig(batch_size=4), torch.device("cpu"))
        losses.append(step(clouds, labels, 0.0, **given)["total"])
    assert abs(losses[0] - losses[1]) > 1e-3
    a, b = (model.eval()(clouds, **given).logits for clouds in (points, moved))
    torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.gpu
def test_dropout_of_a_recorded_step_follows_the_seed(generator):
    torch.manual_seed(0)
    model = create_model("locotrans_dgcnn_light", 3, k=4).cuda()
    points = torch.randn(8, 32, 3, generator=generator).cuda()
    labels = torch.arange(8).cuda() % 3
    step = Step(model, TrainConfig(batch_size=8), torch.device("cuda"))
    losses = []
    for seed in (1, 2, 1, 2, 3):
        torch.manual_seed(seed)
        losses.append(step(points, labels, 0.0)["total"].item())
    one, two, one_again, two_again, three = losses
    assert one_again == pytest.approx(one, abs=1e-4)
    assert two_again == pytest.approx(two, abs=1e-4)
    assert len({round(x, 3) for x in (one, two, three)}) == 3


class Stranger(torch.nn.Module):
    """A network that knows nothing of ours."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, points):
        return ClassifierOutput(self.linear(points.mean(1)))


def test_a_network_that_cannot_be_told_is_given_the_clouds_alone(generator):
    step = Step(Stranger(), TrainConfig(batch_size=4), torch.device("cpu"))
    points = torch.randn(4, 5, 3, generator=generator)
    assert step(points, torch.tensor([0, 1, 2, 0]), 0.1)["total"] > 0


@pytest.mark.parametrize("balance", [0.0, 0.5, 1.0])
def test_balanced_classes_are_answered_as_if_equally_frequent(balance):
    """Where clouds say nothing, logits are logarithms of the frequencies, less the offsets."""
    labels = torch.tensor([0] * 12 + [1] * 3 + [2])
    offsets = frequency_offsets(labels, 3, balance)
    step = Step(Stranger(), TrainConfig(smoothing=0.0), torch.device("cpu"), offsets)
    for _ in range(300):
        step(torch.zeros(16, 5, 3), labels, 0.3)
    logits = step.model(torch.zeros(1, 5, 3)).logits[0].detach()
    frequencies = torch.tensor([12.0, 3, 1]).log() - balance * torch.tensor([13.0, 4, 2]).log()
    torch.testing.assert_close(logits - logits[0], frequencies - frequencies[0], atol=0.02, rtol=0)


def test_a_class_without_labels_has_an_offset_and_points_without_labels_do_not_count():
    offsets = frequency_offsets(torch.tensor([[0, 0, -1], [0, 2, -1]]), 3, 2.0)
    torch.testing.assert_close(offsets, 2 * torch.tensor([4 / 7, 1 / 7, 2 / 7]).log())
