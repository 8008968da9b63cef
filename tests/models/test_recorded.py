"""Networks recorded as CUDA graphs."""

import pytest
import torch

from locotrans import Recorded, create_model
from locotrans.data import load_dataset


def small(name, **options):
    torch.manual_seed(0)
    return create_model(name, 5, k=4, **options)


def test_a_network_on_a_cpu_is_called():
    model, points = small("locotrans_dgcnn_light").eval(), torch.randn(2, 16, 3)
    with torch.inference_mode():
        expected = model(points)
    result = Recorded(model)(points)
    assert type(result) is type(expected)
    assert torch.equal(result.logits, expected.logits)


def test_a_network_in_training_is_refused():
    with pytest.raises(ValueError, match=r"eval\(\)"):
        Recorded(small("dgcnn").train())(torch.randn(2, 16, 3))


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["locotrans_dgcnn", "locotrans_dgcnn_partseg_light", "dgcnn"])
def test_a_replay_answers_as_the_network_does(name):
    parts = "partseg" in name
    model = small(name, **({"categories": 3} if parts else {})).cuda()
    clouds = load_dataset("builtin", "test", points=200, shapes=20).points.cuda()
    model(clouds[:8], **({"category": torch.zeros(8).long().cuda()} if parts else {}))  # statistics
    recorded = Recorded(model.eval())
    answers = []
    for first, size, points in [(0, 4, 200), (4, 4, 200), (8, 3, 150), (8, 4, 200)]:
        x = clouds[first : first + size, :points]
        given = {"category": torch.arange(size).cuda() % 3} if parts else {}
        with torch.inference_mode():
            expected = model(x, **given)
        answers.append((recorded(x, **given), expected))
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.1)
    with torch.inference_mode():
        answers.append((recorded(x, **given), model(x, **given)))
    assert len(recorded._calls) == 2  # sizes
    for result, expected in answers:  # later calls have not overwritten earlier results
        for ours, theirs in zip(result, expected, strict=True):
            assert (ours is None) == (theirs is None)
            if ours is not None:
                assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["locotrans_dgcnn_light", "dgcnn"])
def test_casts_of_autocast_are_made_in_every_replay(name):
    model = small(name).cuda()
    clouds = load_dataset("builtin", "test", points=200, shapes=20).points.cuda()
    model(clouds[:8])
    recorded = Recorded(model.eval())
    answers = []
    for factor in (1.0, 1.5, 0.7):
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(factor)
        with torch.inference_mode(), torch.autocast("cuda", torch.bfloat16):
            model(clouds[:4])  # a cast may be kept
            answers.append(recorded(clouds[:4]).logits)
        filler = [torch.randn(256, 256, device="cuda").bfloat16() for _ in range(64)]  # noqa: F841
        with torch.inference_mode(), torch.autocast("cuda", torch.bfloat16):
            answers.append(model(clouds[:4]).logits)
    assert len(recorded._calls) == 1
    for ours, theirs in zip(answers[::2], answers[1::2], strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.gpu
def test_recording_again_and_again_holds_no_more_memory():
    model, points = small("locotrans_dgcnn_light").cuda().eval(), torch.randn(2, 64, 3).cuda()
    held = []
    for _ in range(5):
        Recorded(model)(points)
        held.append(torch.cuda.memory_allocated())
    assert max(held[2:]) - held[1] < 2**20  # a workspace of cuBLAS has several times as many bytes
