"""A training step: a batch normalised in parts, and where the network sees the clouds."""

import copy

import pytest
import torch

from locotrans import create_model
from locotrans.losses import classification_losses
from locotrans.models import ClassifierOutput
from locotrans.training import step as step_module
from locotrans.training.config import TrainConfig
from locotrans.training.step import Step

SMALL = {"k": 4, "vector_widths": (4, 5), "vector_embedding": 6, "widths": (8, 8)}
SMALL |= {"embedding": 8, "head_widths": (8, 8), "dropout": 0.0}


def test_parts_have_statistics_of_their_own_and_gradients_in_common(generator):
    torch.manual_seed(0)
    model = create_model("locotrans_dgcnn_light", 3, **SMALL).double()
    by_hand, whole = copy.deepcopy(model), copy.deepcopy(model)
    points = torch.randn(6, 12, 3, generator=generator, dtype=torch.float64)
    labels = torch.tensor([0, 1, 2, 2, 1, 0])
    config = TrainConfig(batch_size=6, norm_parts=2, momentum=0.0, weight_decay=0.0)
    figures = Step(model, config, torch.device("cpu"))(points, labels, 0.1)

    optimizer = torch.optim.SGD(by_hand.parameters(), lr=0.1)
    before = {name: x.clone() for name, x in by_hand.named_buffers()}
    losses, buffers = [], []
    for part in (slice(0, 3), slice(3, 6)):
        for name, x in by_hand.named_buffers():
            x.data = before[name].clone()
        output = by_hand(points[part], placed=True)
        losses.append(classification_losses(output, labels[part]).total)
        buffers.append({name: x.clone() for name, x in by_hand.named_buffers()})
    (sum(losses) / 2).backward()
    optimizer.step()
    torch.testing.assert_close(figures["total"], (sum(losses) / 2).float().detach())
    for name, p in by_hand.named_parameters():
        torch.testing.assert_close(model.get_parameter(name), p, msg=name)
    for name, x in model.named_buffers():
        torch.testing.assert_close(
            x, (buffers[0][name] + buffers[1][name]) / 2, msg=name, check_dtype=False
        )

    config = TrainConfig(batch_size=6, momentum=0.0, weight_decay=0.0)
    together = Step(whole, config, torch.device("cpu"))(points, labels, 0.1)
    assert abs(together["total"] - figures["total"]) > 1e-3  # the parts do matter


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


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "mixed"])
def test_parts_side_by_side_learn_as_parts_one_after_the_other(precision, generator, monkeypatch):
    labels = torch.arange(16).cuda() % 3
    stretch = torch.tensor([[1, 1, 1], [1, 1, 0.1], [1, 0.1, 0.1]]).cuda()  # balls, plates, sticks
    points = torch.randn(16, 64, 3, generator=generator).cuda() * stretch[labels][:, None]
    config = TrainConfig(batch_size=16, norm_parts=4, precision=precision)
    losses = []
    for streams in (step_module.side_streams, lambda *_: []):
        monkeypatch.setattr(step_module, "side_streams", streams)
        torch.manual_seed(0)
        model = create_model("locotrans_dgcnn_light", 3, k=8, dropout=0.0).cuda()
        step = Step(model, config, torch.device("cuda"))
        losses.append([step(points, labels, 0.01)["total"].item() for _ in range(20)])
    assert losses[0][0] == pytest.approx(losses[1][0], rel=1e-3)
    assert sum(losses[0][-5:]) == pytest.approx(sum(losses[1][-5:]), rel=0.1)
    assert sum(losses[0][-5:]) < 0.9 * sum(losses[0][:5])


@pytest.mark.gpu
def test_parts_side_by_side_are_those_one_after_the_other(generator):
    torch.manual_seed(0)
    model = create_model("locotrans_dgcnn_light", 3, **SMALL).double()
    models = {"cpu": model, "cuda": copy.deepcopy(model).cuda()}
    points = torch.randn(12, 32, 3, generator=generator, dtype=torch.float64)
    labels = torch.arange(12) % 3
    config = TrainConfig(batch_size=12, norm_parts=4)
    totals = {}
    for name, network in models.items():
        step = Step(network, config, torch.device(name))
        rates = (0.0, 1e-3, 1e-3)
        totals[name] = [step(points.to(name), labels.to(name), lr)["total"].item() for lr in rates]
    assert totals["cuda"] == pytest.approx(totals["cpu"], rel=1e-5)
    assert abs(totals["cpu"][2] - totals["cpu"][0]) > 1e-3
    for name, x in models["cpu"].state_dict().items():
        other = models["cuda"].state_dict()[name].cpu()
        torch.testing.assert_close(other, x, rtol=1e-5, atol=1e-6, msg=name)


class Stranger(torch.nn.Module):
    """A network that knows nothing of ours, and has no buffers."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, points):
        return ClassifierOutput(self.linear(points.mean(1)))


def test_a_network_that_cannot_be_told_is_given_the_clouds_alone(generator):
    step = Step(Stranger(), TrainConfig(batch_size=4), torch.device("cpu"))
    points = torch.randn(4, 5, 3, generator=generator)
    assert step(points, torch.tensor([0, 1, 2, 0]), 0.1)["total"] > 0


def test_parts_of_a_batch_need_no_statistics(generator):
    points, labels = torch.randn(4, 5, 3, generator=generator), torch.tensor([0, 1, 2, 0])
    torch.manual_seed(0)
    model = Stranger()
    whole = copy.deepcopy(model)
    for network, parts in ((model, 2), (whole, 1)):
        config = TrainConfig(batch_size=4, norm_parts=parts)
        Step(network, config, torch.device("cpu"))(points, labels, 0.1)
    torch.testing.assert_close(model.linear.weight, whole.linear.weight)


@pytest.mark.parametrize(("batch", "parts"), [(6, 4), (4, 4), (1, 1)])
def test_a_batch_must_have_two_shapes_a_part(batch, parts):
    with pytest.raises(ValueError, match="batch_size must be a multiple of norm_parts"):
        TrainConfig(batch_size=batch, norm_parts=parts)
