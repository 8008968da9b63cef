"""The page of `locotrans view`: its server, its saved form, and both in a real browser."""

import dataclasses
import http.client
import io
import json
import re
import shutil
import signal
import socket
import threading
import time
from functools import cache
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
import torch

from locotrans.cli import main
from locotrans.data import load_dataset
from locotrans.geometry import random_rotations
from locotrans.models import create_model
from locotrans.training.checkpoint import write_tensors
from locotrans.training.config import parse_options, to_json
from locotrans.training.view import Viewer, ViewServer, load_viewed, saved_page
from locotrans.training.view import server as view_server
from locotrans.training.view.networks import Reference, turn_between
from locotrans.training.view.scenes import KEPT, parse_rotation

CPU = torch.device("cpu")
POINTS = 96
OURS = ("k=4", "widths=8,8", "vector_widths=4,4", "embedding=16", "vector_embedding=8")
DGCNN = ("k=4", "widths=8,8", "embedding=16", "head_widths=16,8")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)


def write_network(path, model, options):
    """Write fresh weights: what the page must show does not depend on training."""
    torch.manual_seed(0)
    data = load_dataset("builtin", "test", points=8, shapes=20)
    parts = model.endswith("partseg_light")
    names = data.part_names if parts else data.class_names
    chosen = parse_options(model, (*options, *(["categories=20"] if parts else [])))
    network = create_model(model, len(names), **chosen)
    with torch.no_grad():  # a fresh network says nearly the same of everything
        for name, parameter in network.named_parameters():
            if "head" in name and parameter.ndim == 2:
                parameter.mul_(20)
    facts = {"model": model, "config": to_json(network.config), "num_classes": len(names)}
    known = {"class_names": data.class_names, "part_names": data.part_names, "radius": 1.0}
    write_tensors(path, network.state_dict(), {**facts, **known, "points": POINTS})
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Weights of three kinds, and a cloud."""
    folder = tmp_path_factory.mktemp("view")
    write_network(folder / "ours.safetensors", "locotrans_dgcnn_light", OURS)
    write_network(folder / "dgcnn.safetensors", "dgcnn", DGCNN)
    write_network(folder / "parts.safetensors", "locotrans_dgcnn_partseg_light", OURS)
    (folder / "chair").mkdir()
    cloud = load_dataset("builtin", "test", points=300, shapes=4).points[3]
    np.save(folder / "chair/cloud.npy", cloud.numpy())
    return folder


@cache
def network(path):
    return load_viewed(path, CPU)


def make_viewer(folder, *names):
    viewer = Viewer([network(folder / f"{name}.safetensors") for name in names])
    return viewer, viewer.open(folder / "chair/cloud.npy", "cloud.npy", "chair")


@pytest.fixture
def server(folder):
    """A server of LocoTrans beside DGCNN, in a thread."""
    viewer, number = make_viewer(folder, "ours", "dgcnn")
    with ViewServer(("127.0.0.1", 0), viewer, number) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(server, method="GET", path="/", body=None, **headers):
    """Return the status and the body of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, response.read(), response.headers
    finally:
        connection.close()


def question(server, R, **changes):
    asked = {"scene": 0, "rotation": R.flatten().tolist(), "category": 0, **changes}
    status, body, _ = ask(server, "POST", "/answer", json.dumps(asked))
    return status, json.loads(body)


def haar(seed):
    return random_rotations(1, generator=torch.Generator().manual_seed(seed), dtype=torch.double)[0]


def test_the_page_holds_everything_it_needs(server):
    status, body, headers = ask(server)
    text = body.decode()
    assert status == 200
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert "connect-src 'self'" in headers["Content-Security-Policy"]
    assert not re.search(r"(src|href)=\"(?!data:)", text)
    assert "http:" not in text
    assert "https:" not in text
    state = json.loads(re.search(r'id="state">(.*?)</script>', text, re.DOTALL)[1])
    assert state["live"]
    assert len(state["points"]) == 3 * POINTS
    assert [set(answer["frames"]) for answer in state["answers"]] == [
        {"LCRF", "Gram-Schmidt"},
        set(),
    ]


def test_answers_of_an_invariant_network_stay_and_those_of_dgcnn_do_not(server):
    moved = []
    for seed in range(3):
        status, answer = question(server, haar(seed))
        assert status == 200
        ours, dgcnn = answer["answers"]
        assert ours["stays"]["kept"] == 1
        assert ours["stays"]["logits"] < 1e-3
        assert max(ours["stays"]["frames"].values()) < 1
        assert len(ours["consistency"]["LCRF"]) == 3
        moved.append(dgcnn["stays"]["logits"])
    assert max(moved) > 0.01


def test_frames_come_in_the_objects_own_coordinates_and_colours_stay(folder):
    viewer, number = make_viewer(folder, "ours")
    own = viewer.answers(number, torch.eye(3), 0)[0]
    turned = viewer.answers(number, haar(5).float(), 0)[0]
    for kind in ("LCRF", "Gram-Schmidt"):
        a, b = (torch.tensor(x["frames"][kind]) for x in (own, turned))
        assert (a - b).abs().median() < 1e-3
        frames = a.reshape(-1, 3, 3)  # axis by axis
        assert (frames @ frames.mT - torch.eye(3)).abs().max() < 1e-2
    assert own["frames"]["LCRF"] != own["frames"]["Gram-Schmidt"]
    colors = [torch.tensor(x["features"]) for x in (own, turned)]
    assert (colors[0] - colors[1]).abs().float().quantile(0.95) <= 2
    assert len(set(colors[0].tolist())) > 20


def test_a_turn_is_measured_in_degrees():
    frames = random_rotations(50, generator=torch.Generator().manual_seed(0))
    turn = torch.deg2rad(torch.tensor(3.0))
    c, s = turn.cos(), turn.sin()
    R = torch.tensor([[c, -s, 0], [s, c, 0], [0, 0, 1]])
    assert turn_between(frames, R @ frames) == pytest.approx(3, abs=1e-3)
    assert turn_between(frames, frames) == 0


def test_parts_have_a_label_a_point_and_follow_the_category(folder):
    viewer, number = make_viewer(folder, "parts", "ours")
    state = viewer.state(number)
    names = state["networks"][0]["names"]
    assert state["categories"][state["category"]] == "chair"
    parts = viewer.answers(number, haar(1).float(), state["category"])[0]
    assert len(parts["labels"]) == len(parts["confidence"]) == POINTS
    assert {names[i].partition("/")[0] for i in parts["labels"]} == {"chair"}
    assert parts["stays"]["kept"] > 0.98
    other = viewer.answers(number, haar(1).float(), state["categories"].index("mug"))[0]
    assert {names[i].partition("/")[0] for i in other["labels"]} == {"mug"}
    with pytest.raises(ValueError, match="no category"):
        viewer.answers(number, torch.eye(3), 99)


def send(server, name, content):
    status, body, _ = ask(server, "POST", f"/file?name={quote(name)}", content)
    return status, json.loads(body)


def test_a_file_that_is_sent_is_read_and_removed(server, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    text = "\n".join(
        " ".join(map(str, row)) for row in np.random.default_rng(0).normal(size=(50, 3))
    )
    status, state = send(server, "../evil <b>.xyz", text.encode())
    assert status == 200
    assert state["name"] == "evil <b>.xyz"
    assert state["size"] == 50
    status, answer = question(server, haar(0), scene=state["scene"])
    assert status == 200
    assert answer["answers"][0]["stays"]["kept"] == 1
    assert list(tmp_path.iterdir()) == []


BROKEN = {
    "a.ply": (b"ply\nformat ascii 1.0\nelement vertex", "a.ply"),
    "b.npy": (b"", "is empty"),
    "c.doc": (b"what is this", "format is unknown (suffix '.doc')"),
    "d.npz": (b"PK\x03\x04" + bytes(100), "d.npz"),
    "e.xyz": (b"1 2 nan\n" * 9, "e.xyz"),
    "f.npy": (b"\x93NUMPY" + bytes(20), "f.npy"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_gives_an_error_that_names_it(server, name, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    content, words = BROKEN[name]
    status, answer = send(server, name, content)
    assert status == 400
    assert name in answer["error"]
    assert words in answer["error"]
    assert str(tmp_path) not in answer["error"]
    assert list(tmp_path.iterdir()) == []
    assert question(server, haar(0))[0] == 200  # and goes on


def test_objects_are_not_unpickled(server):
    file = io.BytesIO()
    np.save(file, np.array([print, {}], dtype=object), allow_pickle=True)
    status, answer = send(server, "a.npy", file.getvalue())
    assert status == 400
    assert "a.npy" in answer["error"]


def test_files_are_bounded(server, monkeypatch):
    monkeypatch.setattr(view_server, "LIMIT", 100)
    status, answer = send(server, "big.xyz", bytes(101))
    assert status == 400
    assert "the limit is 100" in answer["error"]
    monkeypatch.setattr("locotrans.training.view.scenes.UNPACKED", 50)
    status, answer = send(server, "small.xyz", b"1 2 3\n" * 12)
    assert status == 400
    assert "the limit is 50" in answer["error"]
    status, body, _ = ask(server, "POST", "/answer", bytes(5000))
    assert status == 400
    assert b"too many" in body
    with socket.create_connection(("127.0.0.1", server.server_port)) as line:
        line.sendall(b"POST /answer HTTP/1.0\r\nHost: localhost\r\n\r\n")
        assert b"does not say how long" in line.makefile("rb").read()


def test_old_clouds_are_forgotten(server):
    text = b"1 2 3\n2 3 4\n5 1 2\n0 0 1\n4 4 4\n"
    for _ in range(KEPT):
        assert send(server, "a.xyz", text)[0] == 200
    assert len(server.viewer.scenes) == KEPT
    status, answer = question(server, haar(0))
    assert status == 400
    assert "load the page" in answer["error"]
    assert ask(server)[0] == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example:80"}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Host": ""}, 403),
        ({"Host": "localhost:1", "Origin": "http://evil.example"}, 403),
        ({"Host": "localhost:1", "Origin": "null"}, 403),
        ({"Host": "localhost:1", "Origin": "http://localhost:1"}, 200),
        ({"Host": "[::1]:8000"}, 200),
        ({"Host": "127.0.0.1"}, 200),
    ],
)
def test_only_this_machine_and_this_page_are_answered(server, headers, status):
    assert ask(server, **headers)[0] == status
    posted = json.dumps({"scene": 0, "rotation": torch.eye(3).flatten().tolist(), "category": 0})
    assert ask(server, "POST", "/answer", posted, **headers)[0] == status


HUGE = json.dumps({"scene": 0, "category": 0, "rotation": [10**400] * 9})
BAD = ["", "{", "[]", "null", '{"scene": 0}', "9" * 4000, "[" * 4000, HUGE, '{"scene": 1e999}']


@pytest.mark.parametrize("body", BAD)
def test_questions_that_make_no_sense(server, body):
    assert ask(server, "POST", "/answer", body)[0] == 400
    assert ask(server, "POST", "/elsewhere", body)[0] == 404
    assert ask(server, "GET", "/../etc/passwd")[0] == 404


@pytest.mark.parametrize(
    "values", [None, [1] * 9, [1, 0, 0, 0, 1, 0, 0, 0, -1], [0] * 8, [float("nan")] * 9, ["a"] * 9]
)
def test_what_is_no_rotation(values):
    with pytest.raises(ValueError, match="nine numbers"):
        parse_rotation(values)


def test_a_saved_page_has_the_answers_for_its_poses(folder, tmp_path, capsys):
    out = tmp_path / "page.html"
    cloud = folder / "chair/cloud.npy"
    weights = [folder / "ours.safetensors", "--against", folder / "dgcnn.safetensors"]
    arguments = ["view", cloud, "--weights", *weights, "--save", out, "--poses", 2]
    main([str(argument) for argument in arguments])
    assert "in its own pose and in 2 random ones" in capsys.readouterr().out
    text = out.read_text()
    state = json.loads(re.search(r'id="state">(.*?)</script>', text, re.DOTALL)[1])
    assert not state["live"]
    assert len(state["poses"]) == 3
    assert all(pose["answers"][0]["stays"]["kept"] == 1 for pose in state["poses"])


def test_names_cannot_end_the_script(folder):
    viewer, _ = make_viewer(folder, "ours")
    number = viewer.open(folder / "chair/cloud.npy", "</script><script>alert(1)</script>")
    text = saved_page(viewer, number, poses=1)
    assert text.count("<script") == 2
    assert "alert(1)" in text


def error_of(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main([str(argument) for argument in arguments])
    assert caught.value.code == 2
    return capsys.readouterr().err


def test_a_saved_page_of_parts_has_the_category_of_a_folder_above(folder, tmp_path, capsys):
    cloud, page = tmp_path / "mug" / "test" / "a.npy", tmp_path / "page.html"
    cloud.parent.mkdir(parents=True)
    shutil.copy(folder / "chair/cloud.npy", cloud)
    flags = ["--weights", folder / "parts.safetensors", "--save", page, "--poses", 1]
    main([str(argument) for argument in ("view", cloud, *flags)])
    categories = load_dataset("builtin", "test", points=8, shapes=20).class_names
    assert f'"category":{categories.index("mug")},' in page.read_text()
    shutil.copy(cloud, tmp_path / "b.npy")
    error = error_of(["view", tmp_path / "b.npy", *flags], capsys)
    assert "its category is not known: name it (--category)" in error


def test_mistakes_are_named(folder, tmp_path, capsys):
    cloud, ours = folder / "chair/cloud.npy", folder / "ours.safetensors"
    shared = ["view", cloud, "--weights", ours]
    assert "no such file" in error_of(["view", tmp_path / "x.ply", "--weights", ours], capsys)
    assert "unknown category" in error_of([*shared, "--category", "chair"], capsys)
    parts = ["view", cloud, "--weights", folder / "parts.safetensors", "--category", "hat"]
    assert "known: table" in error_of(parts, capsys)
    assert "there is no folder" in error_of([*shared, "--save", tmp_path / "no/page.html"], capsys)
    save = [*shared, "--save", tmp_path / "page.html", "--poses", 0]
    assert "at least 1" in error_of(save, capsys)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"port {port} is in use" in error_of([*shared, "--port", port], capsys)
    assert "no port 99999" in error_of([*shared, "--port", 99999], capsys)
    assert "no address of this machine" in error_of([*shared, "--host", "192.0.2.1"], capsys)
    few = write_network(tmp_path / "few.safetensors", "dgcnn", ("k=97", *DGCNN[1:]))
    assert "too small for k = 97" in error_of([*shared, "--against", few, "--port", 0], capsys)
    semseg = folder / "scenes.safetensors"
    model = create_model("dgcnn_semseg", 3, k=4)
    facts = {"model": "dgcnn_semseg", "config": to_json(model.config), "num_classes": 3}
    write_tensors(semseg, model.state_dict(), facts)
    assert "is for scenes" in error_of(["view", cloud, "--weights", semseg], capsys)


@pytest.fixture
def heeds_ctrl_c():
    """A program started in the background of a script ignores SIGINT, and so do its tests."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
@pytest.mark.usefixtures("heeds_ctrl_c")
def test_ctrl_c_ends_it_cleanly(folder, capsys):
    viewer, number = make_viewer(folder, "ours")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    statuses = []

    def interrupt_once_it_answers():
        for _ in range(500):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            try:
                connection.request("GET", "/")
                statuses.append(connection.getresponse().status)
                break
            except ConnectionRefusedError:
                time.sleep(0.01)
            finally:
                connection.close()
        signal.raise_signal(signal.SIGINT)

    thread = threading.Thread(target=interrupt_once_it_answers)
    thread.start()
    view_server.serve(viewer, number, "127.0.0.1", port)
    thread.join()
    assert statuses == [200]
    url = f"http://127.0.0.1:{port}/"
    assert capsys.readouterr() == (f"{url} shows cloud.npy; Ctrl-C stops it\nstopped\n", "")
    with socket.create_server(("127.0.0.1", port)):
        pass  # the port is free again


def test_features_of_few_channels_have_colours(folder):
    viewer, number = make_viewer(folder, "ours")
    answer = viewer.networks[0].ask(viewer.scenes[number].points, 0)
    thin = answer._replace(features=answer.features[:, :2])
    assert len(Reference.of(thin).colors(thin)) == 3 * POINTS


@pytest.fixture(scope="module")
def browser():
    """A headless Chromium."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    with api.sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()


def open_page(browser, url, offline=False):
    """Open a page; what it asks for and errors of its script are collected."""
    page = browser.new_page(viewport={"width": 1100, "height": 700}, offline=offline)
    page.errors, page.asked = [], []
    page.on("request", lambda request: page.asked.append(request.url))
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.on("console", lambda note: note.type == "error" and page.errors.append(note.text))
    page.goto(url)
    page.wait_for_selector("body[data-ready]")
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return page


def drawn(page, network):
    """Return where in a canvas something is drawn: a boolean image."""
    from matplotlib.image import imread

    canvas = page.locator(f'article[data-network="{network}"] canvas').first
    image = imread(io.BytesIO(canvas.screenshot()), format="png")[..., :3]
    return np.abs(image - np.array([250, 251, 252]) / 255).max(-1) > 0.1


def drop(page, name, text):
    """Drop a file on the page."""
    script = """([text, name]) => {
        const data = new DataTransfer();
        data.items.add(new File([text], name));
        return data;
    }"""
    data = page.evaluate_handle(script, [text, name])
    page.dispatch_event("main", "drop", {"dataTransfer": data})


def drag(page):
    box = page.locator("canvas").first.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 60, y + 20, steps=3)
    page.mouse.up()
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def test_the_live_page_in_a_browser(browser, server, tmp_path):
    page = open_page(browser, server.url)
    answer = page.locator('article[data-network="0"]').get_attribute("data-answer")
    for network in (0, 1):
        image = drawn(page, network)
        rows, columns = image.shape
        middle = image[rows // 4 : 3 * rows // 4, columns // 4 : 3 * columns // 4]
        assert middle.mean() > 0.01
        assert not image[: rows // 20, : columns // 20].any()  # the corner is empty
        assert image.mean() < 0.5
    before = drawn(page, 0)
    for count in (1, 2, 3):
        page.click("#random")
        page.wait_for_selector(f'body[data-answered="{count}"]')
        ours = page.locator('article[data-network="0"]')
        assert ours.get_attribute("data-stays") == "true"
        assert ours.get_attribute("data-answer") == answer
        assert "the class stays" in ours.inner_text()
        assert "of the frames turned by less than" in ours.inner_text()
    assert (drawn(page, 0) != before).mean() > 0.01  # it did turn
    page.check("#back")
    assert (drawn(page, 0) != before).mean() < 0.002  # and in its own coordinates it did not
    page.check("#show-frames")
    captions = page.locator("figcaption").all_inner_texts()
    titles = [text.splitlines()[0] for text in captions if text]
    assert titles == ["LCRF, which the network uses", "Gram-Schmidt"]
    assert all(re.search(r"u1 -?\d\.\d+ u2 -?\d\.\d+ u3", text) for text in captions if text)
    assert page.locator("canvas").count() == 3

    drop(page, "broken.ply", "ply\nnot a ply at all\n")
    page.wait_for_selector("#error:visible")
    assert "broken.ply" in page.inner_text("#error")
    chosen = tmp_path / "chosen.npy"
    chosen.write_bytes(b"")
    page.set_input_files("#file", chosen)
    page.wait_for_selector("#error:has-text('chosen.npy')")
    assert page.inner_text("#name") == "cloud.npy"
    page.click("#random")  # it goes on
    page.wait_for_selector('body[data-answered="4"]')
    file = io.StringIO()
    np.savetxt(file, np.random.default_rng(0).normal(size=(60, 3)))
    drop(page, "other.xyz", file.getvalue())
    page.wait_for_selector("#name:text-is('other.xyz')")
    assert page.locator("#error").is_hidden()
    page.locator('[data-axis="1"]').fill("50")
    page.wait_for_selector('body[data-answered="5"]')
    assert page.locator('article[data-network="0"]').get_attribute("data-stays") == "true"
    before = drawn(page, 0)
    drag(page)  # looks at it from another side
    assert (drawn(page, 0) != before).mean() > 0.01
    assert page.locator("body").get_attribute("data-answered") == "5"
    page.keyboard.down("Shift")
    drag(page)  # turns it
    page.wait_for_selector('body:not([data-answered="5"])')
    assert page.locator('article[data-network="0"]').get_attribute("data-stays") == "true"
    assert [text for text in page.errors if "400" not in text] == []
    assert all(url.startswith(server.url) for url in page.asked)
    page.close()


def test_a_late_answer_is_not_shown_for_another_file(browser, server):
    page = open_page(browser, server.url)
    late = []
    page.route("**/answer", lambda route: late.append(route))  # kept back
    page.click("#random")
    page.wait_for_function("document.getElementById('status').textContent !== ''")
    drop(page, "other.xyz", "\n".join(f"{i} {i * i % 7} {i % 3}" for i in range(40)))
    page.wait_for_selector("#name:text-is('other.xyz')")
    (route,) = late
    route.continue_()
    page.wait_for_selector('body[data-answered="1"]')
    assert "own pose" in page.locator('article[data-network="0"]').inner_text()
    assert page.evaluate("answers === scene.answers")
    page.close()


def test_the_saved_page_in_a_browser(browser, folder, tmp_path):
    viewer, number = make_viewer(folder, "parts", "dgcnn")
    path = Path(tmp_path, "saved.html")
    path.write_text(saved_page(viewer, number, poses=3))
    page = open_page(browser, path.as_uri(), offline=True)
    assert drawn(page, 0).mean() > 0.005
    assert "4 poses: its own and 3 random ones" in page.inner_text("#status")
    assert page.locator("#choose").is_hidden()
    for _ in range(3):
        page.click("#random")
        card = page.locator('article[data-network="0"]')
        kept = re.search(r"([\d.]+)% of the points keep their part", card.inner_text())
        assert float(kept[1]) > 98
    assert page.errors == []
    assert page.asked == [path.as_uri()]
    page.close()


def test_each_network_is_told_the_category_by_its_own_number(folder):
    one = network(folder / "parts.safetensors")
    turned = dataclasses.replace(one, categories=one.categories[::-1])
    told = []

    class Spy(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model, self.config = one.model, one.model.config

        def forward(self, points, category):
            told.append(int(category))
            return self.model(points, category)

    viewer = Viewer([one, dataclasses.replace(turned, model=Spy())])
    number = viewer.open(folder / "chair/cloud.npy", "cloud.npy", "chair")
    viewer.answers(number, haar(1).float(), viewer.category("chair"))
    assert set(told) == {turned.categories.index("chair")}
    assert turned.categories.index("chair") != one.categories.index("chair")


def test_networks_that_one_cloud_cannot_be_shown_to_are_refused(folder):
    one = network(folder / "ours.safetensors")
    for change, said in (({"points": 32}, "32 .random."), ({"choice": "even"}, "96 .even.")):
        with pytest.raises(ValueError, match=f"takes 96 points .random.*{said}.* by itself"):
            Viewer([one, dataclasses.replace(one, **change)])
    parts = network(folder / "parts.safetensors")
    other = dataclasses.replace(parts, categories=("lamp", "chair"))
    with pytest.raises(ValueError, match="trained on other categories"):
        Viewer([parts, other])
