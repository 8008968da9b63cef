import dataclasses
import itertools
import json
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from locotrans.models import create_model, list_models, model_config
from locotrans.training.config import (
    TrainConfig,
    derive_seed,
    differing_keys,
    join_options,
    parse_options,
    to_json,
    typed_fields,
)
from locotrans.training.presets import preset_config, read_config

UNUSUAL = TrainConfig(
    model="dgcnn",
    options=("k=10",),
    root=Path("data folder"),
    shapes=7,
    rotation="so3",
    lr=0.1 + 0.2,
    shuffle=False,
    out=Path("somewhere"),
)


@pytest.mark.parametrize("config", [TrainConfig(), UNUSUAL])
def test_round_trip_through_json(tmp_path, config):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(to_json(config)))
    assert read_config(file) == config


def test_toml_may_leave_keys_out(tmp_path):
    file = tmp_path / "config.toml"
    file.write_text('model = "dgcnn"\nepochs = 3\nlr = 1\noptions = ["k=10"]\n')
    assert read_config(file) == TrainConfig(model="dgcnn", epochs=3, lr=1.0, options=("k=10",))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"epoch": 3}', "unknown key 'epoch'"),
        ('{"epochs": "many"}', "epochs must be int"),
        ('{"epochs": 2.5}', "epochs must be int"),
        ('{"epochs": true}', "epochs must be int"),
        ('{"epochs": 0}', "epochs must be at least 1"),
        ('{"batch_size": 1}', "batch_size must be at least 2"),
        ('{"lr": NaN}', "lr must be float"),
        ('{"resample": 511}', "resample must be 512 to 1023"),
        ('{"resample": 64, "points": 64}', "resample must be 32 to 63"),
        ('{"resample": 3, "points": 5}', "resample must be 4 to 4"),
        ('{"rotation": "y"}', "rotation must be"),
        ('{"shuffle": 2}', "shuffle must be bool"),
        ('{"options": 5}', "options must be tuple"),
        ('{"lr": -1}', "lr must be at least 0"),
        ("[1]", "one object"),
        ("{", "not a readable config"),
    ],
)
def test_bad_files_are_named_with_their_key(tmp_path, text, reason):
    file = tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=reason) as caught:
        read_config(file)
    assert str(file) in str(caught.value)


def test_options_are_read_by_the_types_of_the_model():
    options = ["k=10", "frames=gram_schmidt", "widths=8,16", "fusion=false", "dropout=0"]
    assert parse_options("locotrans_dgcnn", options) == {
        "k": 10,
        "frames": "gram_schmidt",
        "widths": (8, 16),
        "fusion": False,
        "dropout": 0.0,
    }


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("k", "KEY=VALUE"),
        ("depth=3", "unknown key 'depth'"),
        ("k=ten", "k must be int, got 'ten'"),
        ("frames=round", "frames must be"),
        ("widths=8,x", "widths must be"),
        ("head_widths=8,half", "head_widths must be"),
    ],
)
def test_bad_options_say_what_is_wrong(option, reason):
    with pytest.raises(ValueError, match=reason):
        parse_options("locotrans_dgcnn", [option])


@pytest.mark.parametrize("name", list_models())
def test_every_model_config_survives_json(name):
    config = model_config(name)
    values = typed_fields(type(config), json.loads(json.dumps(to_json(config))))
    assert create_model(name, 3, **values).config == config


def test_optional_fields():
    @dataclasses.dataclass
    class Sample:
        count: int | None = None
        name: str | None = None
        mode: Literal[1, 2] = 1

    assert typed_fields(Sample, {"count": "none", "name": None}) == {"count": None, "name": None}
    assert typed_fields(Sample, {"count": "3", "mode": "2"}) == {"count": 3, "mode": 2}


def test_where_a_run_lies_is_not_what_it_is():
    moved = dataclasses.replace(UNUSUAL, out=Path("b"), root=None, device="cpu")
    assert differing_keys(UNUSUAL, moved) == []
    assert differing_keys(UNUSUAL, dataclasses.replace(moved, lr=1.0, seed=5)) == ["lr", "seed"]


def test_derived_seeds_do_not_repeat():
    seeds = {derive_seed(*key) for key in itertools.product(range(3), range(3), range(50))}
    assert len(seeds) == 450
    assert max(seeds) <= np.iinfo(np.uint64).max


def test_a_config_file_with_another_model_has_the_recipe_of_that_model(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('preset = "modelnet40"\nmodel = "locotrans_dgcnn_light"\nseed = 3\n')
    assert read_config(path) == dataclasses.replace(preset_config("modelnet40"), seed=3)
    full = dataclasses.replace(preset_config("modelnet40", "locotrans_dgcnn"), seed=3)
    assert read_config(path, "locotrans_dgcnn") == full
    assert full.shift != read_config(path).shift
    with pytest.raises(ValueError, match=r"run\.toml.*modelnet40"):
        read_config(path, "dgcnn_partseg")


def test_a_negative_seed_is_named():
    with pytest.raises(ValueError, match="the seed must not be negative, got -1"):
        derive_seed(-1, 3)


def test_options_add_to_those_of_a_preset():
    assert join_options(("dropout=0.2", "k=10"), ("k=20",)) == ("dropout=0.2", "k=20")
    assert join_options(("dropout=0.2",), ("k=20", "dropout=0.2")) == ("dropout=0.2", "k=20")
    assert join_options((), ("k=20", "refine=true")) == ("k=20", "refine=true")


def test_options_of_a_file_count_beside_those_of_its_preset(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text('preset = "shapenetpart_adamw"\noptions = ["k=8"]\n')
    assert read_config(path).options == ("dropout=0.2", "k=8")
    path.write_text('preset = "shapenetpart_adamw"\n')
    assert read_config(path).options == ("dropout=0.2",)
