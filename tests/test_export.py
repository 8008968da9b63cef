"""Exported files give the networks' answers, for other sizes than they were made with."""

import builtins
import copy
import json
import math

import jaxtyping
import numpy as np
import pytest
import torch
from torch import nn

from locotrans.certify.onnx_file import OnnxNetwork, open_session
from locotrans.certify.run import certify_exported, certify_target
from locotrans.certify.targets import Target
from locotrans.cli import main
from locotrans.data import load_dataset
from locotrans.export import (
    TOLERANCE,
    Comparison,
    compare,
    export_network,
    latency,
    load_exported,
    plain_code,
    with_category,
)
from locotrans.geometry.neighbors import gather, knn, knn_features
from locotrans.models import create_model
from locotrans.nn import EdgeConv, VNEdgeConv
from locotrans.training.report import writer_of

onnx = pytest.importorskip("onnx", reason="the extra export is not installed")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


@pytest.fixture(scope="module", autouse=True)
def no_checks_of_shapes():
    """While an export traces a network, sizes are symbols, which the checker does not know."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


class Graphs(nn.Module):
    """What blocks an export: neighbours, by coordinates and by features, and edge layers."""

    def __init__(self):
        super().__init__()
        self.edge, self.vectors = EdgeConv(3, 4), VNEdgeConv(1, 2)

    def forward(self, points):
        near, similar = knn(points, 6), knn_features(points.repeat(1, 1, 2), 6)
        layers = self.edge(points, near), self.vectors(points.unsqueeze(-1), near)
        return near, similar, gather(points, near), *layers


@pytest.fixture(scope="module")
def graphs(tmp_path_factory):
    path = tmp_path_factory.mktemp("export") / "graphs.onnx"
    batch, points = torch.export.Dim("batch", min=1), torch.export.Dim("points", min=6)
    shapes = ({0: batch, 1: points},)
    torch.manual_seed(0)
    module = Graphs().eval()
    with plain_code():
        program = torch.export.export(module, (torch.randn(2, 40, 3),), dynamic_shapes=shapes)
        torch.onnx.export(program, dynamo=True, verbose=False).save(str(path))
    return module, open_session(path)


def lattice(side):
    line = torch.arange(float(side))
    return torch.cartesian_prod(line, line, line)[None]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the exporter's own
def test_neighbours_of_every_size_from_k_on(graphs):
    generator = torch.Generator().manual_seed(1)
    sizes = ((1, 6), (3, 7), (2, 37), (2, 39), (4, 200), (1, 1100))  # k, about k + 32, a k-d tree
    clouds = [torch.randn(b, n, 3, generator=generator) for b, n in sizes]
    clouds += [lattice(3), lattice(5)]  # ties go to the lowest index there, too
    module, session = graphs
    for points in clouds:
        near, similar, places, *layers = session.run(None, {"points": points.numpy()})
        with torch.no_grad():
            expected = module(points)
        for found, right in zip(layers, expected[3:], strict=True):
            assert np.allclose(found, right.numpy(), rtol=1e-4, atol=1e-5)
        for found, right in zip((near, similar), expected[:2], strict=True):
            assert np.array_equal(np.sort(found), right.sort().values.numpy())
        assert np.array_equal(places, gather(points, torch.from_numpy(near)).numpy())


@pytest.fixture
def pointnet():
    torch.manual_seed(0)
    return create_model("pointnet", 4, head_widths=(8, 8))


@pytest.mark.slow
def test_a_network_as_pt2(pointnet, tmp_path):
    path = tmp_path / "network.pt2"
    export_network(pointnet, path, outputs=("logits", "embedding"), metadata={"model": "pointnet"})
    clouds = load_dataset("builtin", "test", points=16, shapes=3).points
    rows = compare(pointnet, path, ("logits", "embedding"), clouds)
    assert {(row.batch, row.points) for row in rows} >= {(1, 1), (5, 101), (3, 16), (1, 16)}
    assert max(row.error for row in rows) <= TOLERANCE
    with torch.no_grad():
        pointnet.head.logits.bias += 1e-2
    assert max(row.error for row in compare(pointnet, path, ("logits", "embedding"), clouds)) > 1e-3
    (row,) = latency(pointnet, path, [(2, 16)], rounds=1)
    assert row["ratio"] == pytest.approx(row["torch_ms"] / row["file_ms"])
    certificate = certify_exported(pointnet, path, clouds, radius=120.0, rotations=1)
    assert {row.name for row in certificate.failures} == {"rotation"}
    assert {row.output for row in certificate.rows} == {"logits", "embedding"}
    logits, _ = load_exported(path)(clouds)
    assert logits.shape == (3, 4)
    assert [file.name for file in tmp_path.iterdir()] == ["network.pt2"]


SMALL = {"k": 6, "widths": (8, 10), "embedding": 16}
SMALL |= {"vector_widths": (4, 5), "vector_embedding": 8}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "locotrans_dgcnn",
        "locotrans_dgcnn_light",
        "locotrans_dgcnn_partseg",
        "locotrans_dgcnn_partseg_light",
    ],
)
def test_networks_as_onnx(name, tmp_path, capsys):
    heads = "head_widths=16,16,8" if "partseg" in name else "head_widths=16,8"
    options = [f"{key}={value}".replace("(", "").replace(")", "") for key, value in SMALL.items()]
    options = [option.replace(" ", "") for option in options] + [heads]
    path, report = tmp_path / "network.onnx", tmp_path / "report.json"
    files = [tmp_path / f"{number}.npy" for number in range(3)]
    shapes = load_dataset("builtin", "train", points=80, shapes=3).points.numpy()
    for file, shape in zip(files, shapes, strict=True):
        np.save(file, shape)
    flags = ["--classes", "5", "--json", str(report), "--outputs", "logits", "frames"]
    main(["export", name, str(path), *map(str, files), *flags, "--options", *options])
    assert "passes" in capsys.readouterr().out
    assert writer_of(report) == "export"
    read = json.loads(report.read_text())
    logits, frames = (
        [row for row in read["comparison"] if row["output"] == output]
        for output in ("logits", "frames")
    )
    assert max(row["error"] for row in logits) <= TOLERANCE
    for row in frames:
        near = row["error"] <= TOLERANCE
        assert near or row["exact_error"] <= max(TOLERANCE, 3 * row["torch_error"])
    assert read["certificate"]["passed"] is True
    rows = read["certificate"]["rows"]
    assert {row["expected"] for row in rows if row["name"] == "reflection"} == {"reported"}
    given = [(row["batch"], row["points"]) for row in logits if row["clouds"] == "given"]
    assert given == [(3, 64), (1, 64)]
    assert "3 files" in read["certificate"]["clouds"]
    sizes = [(row["batch"], row["points"]) for row in read["latency"]]
    assert sizes == [(1, 64), (8, 64), (1, 1024)]
    properties = {x.key: x.value for x in onnx.load(path).metadata_props}
    assert json.loads(properties["locotrans"])["model"] == name


def test_a_file_may_be_as_far_from_float64_as_torch_is(tmp_path, monkeypatch):
    torch.manual_seed(0)
    network = create_model("locotrans_dgcnn_light", 4, **SMALL, head_widths=(16, 8)).eval()
    clouds = torch.randn(2, 20, 3)
    monkeypatch.setattr("locotrans.export.comparison.DRAWS", 1)

    def rows(answer):
        def file(points):
            found = answer(points)
            return found.logits.float(), found.frames.float()

        monkeypatch.setattr("locotrans.export.comparison.load_exported", lambda _: file)
        return compare(network, tmp_path / "network.onnx", ("logits", "frames"), clouds)

    assert all(row.passes and row.exact_error is None for row in rows(network))
    off = copy.deepcopy(network)
    with torch.no_grad():
        off.equivariant_head.logits.bias += 0.1
        off.equivariant_branch.lcrf.projection.linear.weight[0, 0] += 0.1
    assert not any(row.passes for row in rows(off))
    # torch that rounds much, against a file that does not
    exact = copy.deepcopy(network).double()

    def rounded(module, inputs):
        return tuple(x.bfloat16().float() if x.dtype == torch.float32 else x for x in inputs)

    network.register_forward_pre_hook(rounded)
    found = rows(lambda x: exact(x.double()))
    assert all(row.passes for row in found)
    assert max(row.error for row in found) > 1e-3
    facts = Comparison("given", 1, 20, "frames", error=4e-4, exact_error=3e-4, torch_error=1.5e-4)
    assert facts.passes
    assert not facts._replace(exact_error=5e-4).passes
    assert facts._replace(exact_error=9e-5, torch_error=0.0).passes
    assert not facts._replace(exact_error=None, torch_error=None).passes
    assert not facts._replace(exact_error=math.inf, torch_error=math.inf).passes


def test_a_file_is_given_the_category_of_each_cloud(tmp_path):
    helper, kinds = onnx.helper, onnx.TensorProto
    inputs = [
        helper.make_tensor_value_info("points", kinds.FLOAT, [2, "n", 3]),
        helper.make_tensor_value_info("category", kinds.INT64, [2]),
    ]
    answer = helper.make_tensor_value_info("category_back", kinds.FLOAT, [2])
    cast = helper.make_node("Cast", ["category"], ["category_back"], to=kinds.FLOAT)
    graph = helper.make_graph([cast], "category", inputs, [answer])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, tmp_path / "category.onnx")
    (back,) = load_exported(tmp_path / "category.onnx")(
        torch.randn(3, 5, 3), torch.tensor([4, 1, 7])
    )
    assert back.tolist() == [4, 1, 7]
    (back,) = load_exported(tmp_path / "category.onnx")(torch.randn(3, 5, 3))
    assert back.tolist() == [0, 0, 0]
    network = create_model("dgcnn_partseg", 4, k=4, categories=2)
    assert with_category(network, torch.randn(5, 6, 3))[1].tolist() == [0, 1, 0, 1, 0]


def simple_file(path, shape, kind=onnx.TensorProto.FLOAT):
    """Write a network that answers with the lengths of the first and second point."""
    helper = onnx.helper
    points = helper.make_tensor_value_info("points", kind, shape)
    answer = helper.make_tensor_value_info("lengths", kind, [shape[0], None])
    axes = helper.make_tensor("axes", onnx.TensorProto.INT64, [1], [2])
    norm = helper.make_node("ReduceL2", ["points", "axes"], ["lengths"], keepdims=0)
    graph = helper.make_graph([norm], "simple", [points], [answer], [axes])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, path)
    return path


def test_files_of_fixed_sizes(tmp_path):
    network = OnnxNetwork(simple_file(tmp_path / "fixed.onnx", [2, 12, 3]))
    assert (network.fixed_batch, network.fixed_points) == (2, 12)
    points = torch.randn(5, 12, 3)
    assert torch.allclose(network(points)["lengths"], points.norm(dim=-1))
    target = Target(network, "fixed.onnx", keeps=("rotation",))
    certificate = certify_target(target, points, radius=120.0, rotations=1)
    assert certificate.passed
    assert certificate.precision == "float32"
    skipped = [row for row in certificate.rows if "one number of points" in row.note]
    assert {row.name for row in skipped} == {"duplicates", "rotation", "ties"}
    with pytest.raises(ValueError, match="give --points 12"):
        certify_target(target, torch.randn(2, 9, 3))


def test_the_command_certifies_a_file(tmp_path, capsys):
    path = simple_file(tmp_path / "any.onnx", ["b", "n", 3])
    flags = ["--points", "10", "--shapes", "2", "--radius", "120", "--rotations", "1"]
    main(["certify", str(path), *flags, "--keeps", "rotation"])
    assert "any.onnx passes" in capsys.readouterr().out


def test_bad_files(tmp_path):
    (tmp_path / "text.onnx").write_text("not a graph")
    double = simple_file(tmp_path / "double.onnx", ["b", "n", 3], onnx.TensorProto.DOUBLE)
    flat = simple_file(tmp_path / "flat.onnx", ["b", "n", 4])
    for path, words in (
        (tmp_path / "none.onnx", "does not exist"),
        (tmp_path / "text.onnx", "cannot be read by onnxruntime"),
        (double, "must take float32"),
        (flat, "must take points"),
    ):
        with pytest.raises((ValueError, OSError), match=words):
            OnnxNetwork(path)


def test_what_cannot_be_exported_is_said_before(pointnet, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"must end in \.onnx or \.pt2"):
        export_network(pointnet, tmp_path / "network.txt")
    with pytest.raises(ValueError, match="gives no 'frames'; it gives logits, embedding"):
        export_network(pointnet, tmp_path / "network.pt2", outputs=["frames"])
    colored = create_model("dgcnn_semseg", 3, colors=True)
    with pytest.raises(ValueError, match="colours cannot be exported"):
        export_network(colored, tmp_path / "network.pt2")
    ordinary = builtins.__import__

    def without(name, *rest):
        if name == "onnxscript":
            raise ImportError("no", name=name)
        return ordinary(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ValueError, match=r"needs onnxscript: pip install .*\[export\]"):
        export_network(pointnet, tmp_path / "network.onnx")
    assert list(tmp_path.iterdir()) == []


def test_the_network_stays_as_it_is(pointnet, tmp_path):
    pointnet.double().train()
    before = copy.deepcopy(pointnet.state_dict())
    path = tmp_path / "network.pt2"
    export_network(pointnet, path)
    compare(pointnet, path, ("logits",), torch.randn(2, 8, 3))
    assert pointnet.training
    for name, value in pointnet.state_dict().items():
        assert value.dtype == before[name].dtype
        assert torch.equal(value, before[name])


@pytest.mark.slow
def test_weights_of_the_package_are_exported_by_name(tmp_path):
    out, said = tmp_path / "light.pt2", tmp_path / "said.json"
    words = ["export", "locotrans_dgcnn_light", str(out), "--pretrained", "--json", str(said)]
    assert not main([*words, "--radius", "120"])
    assert "airplane" in json.loads(said.read_text())["class_names"]
