import inspect

import pytest

import locotrans
from locotrans.models import (
    LIGHT,
    LocoTransConfig,
    create_model,
    list_models,
    model_config,
    model_task,
)

NAMES = [
    *("dgcnn", "locotrans_dgcnn", "locotrans_dgcnn_light"),
    *("locotrans_pct", "locotrans_pointmlp", "locotrans_pointnet2"),
    *("pct", "pointmlp", "pointnet", "pointnet2", "vn_dgcnn"),
]
SEGMENTERS = ["dgcnn_{}", "locotrans_dgcnn_{}", "locotrans_dgcnn_{}_light", "vn_dgcnn_{}"]


def test_names():
    assert list_models("classification") == NAMES
    assert list_models("parts") == [name.format("partseg") for name in SEGMENTERS]
    assert list_models("scenes") == [name.format("semseg") for name in SEGMENTERS]
    assert list_models() == locotrans.list_models()
    assert len(list_models()) == len(NAMES) + 2 * len(SEGMENTERS)
    assert {name: model_task(name) for name in list_models("parts")} == dict.fromkeys(
        list_models("parts"), "parts"
    )


def test_defaults_are_the_papers():
    assert model_config("locotrans_dgcnn") == LocoTransConfig()
    assert model_config("locotrans_dgcnn_light") == LIGHT
    assert LIGHT.frames == LocoTransConfig().frames == "symmetric"  # the closed form
    model = create_model("locotrans_dgcnn_light")
    assert model.num_classes == 40
    assert model.config == LIGHT


def test_options_replace_defaults():
    config = model_config("locotrans_dgcnn_light", k=7, frames="gram_schmidt")
    assert (config.k, config.frames, config.widths) == (7, "gram_schmidt", LIGHT.widths)


@pytest.mark.parametrize(
    ("typo", "meant"),
    [("locotrans", "locotrans_dgcnn"), ("DGCNN", None), ("pointnett", "pointnet"), ("", None)],
)
def test_unknown_model(typo, meant):
    with pytest.raises(ValueError, match=f"unknown model '{typo}'") as caught:
        create_model(typo)
    assert "Known: dgcnn, dgcnn_partseg, " in str(caught.value)
    assert (f"did you mean '{meant}'?" in str(caught.value)) == (meant is not None)


def test_unknown_option():
    with pytest.raises(ValueError, match="pointnet has no option 'k'; its options: head_widths"):
        create_model("pointnet", k=3)


@pytest.mark.parametrize("classes", [0, -3, True])
def test_impossible_number_of_classes(classes):
    with pytest.raises(
        ValueError, match=f"num_classes must be an integer of at least 1, got {classes}"
    ):
        create_model("pointnet", classes)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("model", "option", "value", "message"),
    [
        ("locotrans_dgcnn", "frames", "foo", "frames must be one of symmetric, .*, got 'foo'"),
        ("locotrans_dgcnn", "relative_pose", None, "relative_pose must be one of none"),
        ("locotrans_dgcnn", "k", 0, "k must be an integer of at least 1, got 0"),
        ("locotrans_dgcnn", "k", 2.5, "k must be an integer"),
        ("locotrans_dgcnn", "k", "20", "k must be an integer"),
        ("locotrans_dgcnn", "k", True, "k must be an integer"),
        ("locotrans_dgcnn", "dropout", 2, "dropout must be a number from 0 to below 1, got 2"),
        ("locotrans_dgcnn", "dropout", float("nan"), "dropout"),
        ("locotrans_dgcnn", "dropout", -0.1, "dropout"),
        ("locotrans_dgcnn", "fusion", "yes", "fusion must be True or False, got 'yes'"),
        ("locotrans_dgcnn", "embedding", -8, "embedding must be an integer of at least 4, got -8"),
        (
            "locotrans_dgcnn",
            "vector_embedding",
            3,
            "vector_embedding must be an integer of at least",
        ),
        (
            "locotrans_dgcnn",
            "widths",
            (64, -1, 8, 8),
            r"widths must be integers .*\(64, -1, 8, 8\)",
        ),
        ("locotrans_dgcnn", "widths", (64, 64), "as many layers"),
        ("locotrans_dgcnn", "widths", (), "widths must be a tuple of integers"),
        ("locotrans_dgcnn", "widths", 64, "widths must be a tuple of integers"),
        ("locotrans_dgcnn", "head_widths", (512,), "head_widths must hold at least 2 integers"),
        ("locotrans_dgcnn_light", "frames", "Symmetric", "frames must be one of"),
        (
            "locotrans_dgcnn_partseg",
            "categories",
            -1,
            "categories must be an integer of at least 0",
        ),
        ("vn_dgcnn", "embedding", 0, "embedding must be an integer of at least 4"),
        ("dgcnn", "k", -1, "k must be an integer of at least 1"),
        ("dgcnn", "widths", (0,), "widths must be integers of at least 1"),
        ("dgcnn", "center", 1, "center must be True or False"),
        ("pointnet", "head_widths", (1, 0), "head_widths must be integers of at least 1"),
        ("pointnet", "dropout", 1.0, "dropout"),
    ],
)
def test_impossible_option(model, option, value, message):
    with pytest.raises(ValueError, match=message):
        create_model(model, **{option: value})


def test_lists_of_widths_become_tuples():
    assert create_model("dgcnn", 3, k=2, widths=[8, 8]).config.widths == (8, 8)
    with pytest.raises(ValueError, match="widths must be a tuple of integers"):
        create_model("dgcnn", widths=[])


def test_the_signature_shows_the_default_classes():
    assert inspect.signature(create_model).parameters["num_classes"].default == 40
