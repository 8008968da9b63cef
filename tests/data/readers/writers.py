"""Files written by other libraries or by hand, one cloud or mesh in every format."""

import json
import struct

import h5py
import laspy
import numpy as np
import trimesh


def lzf_compress(data: bytes) -> bytes:
    """Pack by the rules of LZF: literal runs, and copies found by the last three bytes."""
    output, literals, seen, place = bytearray(), bytearray(), {}, 0

    def flush():
        for start in range(0, len(literals), 32):
            run = literals[start : start + 32]
            output.append(len(run) - 1)
            output.extend(run)
        literals.clear()

    while place < len(data):
        key = data[place : place + 3]
        start = seen.get(key, -1) if len(key) == 3 else -1
        seen[key] = place
        back = place - start - 1
        if start < 0 or back >= 1 << 13:
            literals.append(data[place])
            place += 1
            continue
        length = 3
        while (
            length < 264
            and place + length < len(data)
            and data[start + length] == data[place + length]
        ):
            length += 1
        flush()
        code = length - 2
        output.append(min(code, 7) << 5 | back >> 8)
        if code >= 7:
            output.append(code - 7)
        output.append(back & 255)
        place += length
    flush()
    return bytes(output)


def cloud_arrays(n=50, seed=0):
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(n, 3)).astype(np.float32)
    normals = rng.normal(size=(n, 3))
    normals = (normals / np.linalg.norm(normals, axis=1, keepdims=True)).astype(np.float32)
    colors = rng.integers(0, 256, size=(n, 3), dtype=np.uint8)
    colors[0] = 255
    labels = rng.integers(0, 9, size=n)
    return points, normals, colors, labels


def ply_bytes(kind="ascii", n=50, seed=0, faces=None, color="uchar"):
    points, normals, colors, labels = cloud_arrays(n, seed)
    order = {"ascii": "<", "binary_little_endian": "<", "binary_big_endian": ">"}[kind]
    float_ = color == "float"
    types = [
        *[("label", "i4"), ("red", "f4" if float_ else "u1"), ("z", "f8"), ("nx", "f4")],
        *[("green", "f4" if float_ else "u1"), ("x", "f4"), ("ny", "f4"), ("y", "f4")],
        *[("nz", "f4"), ("blue", "f4" if float_ else "u1"), ("quality", "i2")],
    ]
    rows = np.zeros(n, [(name, order + t) for name, t in types])
    for i, (p, m, c) in enumerate(
        zip("xyz", ("nx", "ny", "nz"), ("red", "green", "blue"), strict=True)
    ):
        rows[p], rows[m] = points[:, i], normals[:, i]
        rows[c] = colors[:, i] / np.float32(255) if float_ else colors[:, i]
    rows["label"] = labels
    names = {"i4": "int", "u1": "uchar", "f4": "float", "f8": "double", "i2": "int16"}
    head = f"ply\nformat {kind} 1.0\ncomment made by hand\nelement camera 1\n"
    head += "property float view\nproperty list uchar int ids\n"
    head += f"element vertex {n}\n" + "".join(f"property {names[t]} {k}\n" for k, t in types)
    if faces is not None:
        head += f"element face {len(faces)}\nproperty uchar flag\n"
        head += "property list uchar int vertex_indices\n"
    data = (head + "end_header\n").encode()
    if kind == "ascii":
        data += b"0.5 2 7 8\n"
        data += "".join(" ".join(repr(v) for v in row) + "\n" for row in rows.tolist()).encode()
        for face in faces or []:
            data += f"1 {len(face)} {' '.join(map(str, face))}\n".encode()
        return data
    data += struct.pack(order + "fBii", 0.5, 2, 7, 8) + rows.tobytes()
    for face in faces or []:
        data += struct.pack(f"{order}BB{len(face)}i", 1, len(face), *face)
    return data


def pcd_bytes(kind="ascii", n=50, seed=0):
    points, normals, colors, labels = cloud_arrays(n, seed)
    rgb = (colors.astype(np.uint32) << np.array([16, 8, 0], np.uint32)).sum(1, dtype=np.uint32)
    rows = np.zeros(
        n,
        [
            *[("label", "<u4"), ("z", "<f4"), ("rgb", "<f4"), ("histogram", "<f4", 3)],
            *[("y", "<f8"), ("x", "<f4"), ("normal_x", "<f4"), ("normal_y", "<f4")],
            *[("normal_z", "<f4"), ("ring", "<u2")],
        ],
    )
    for i, axis in enumerate("xyz"):
        rows[axis], rows[f"normal_{axis}"] = points[:, i], normals[:, i]
    rows["label"], rows["rgb"] = labels, rgb.view(np.float32)
    head = "# .PCD v0.7 - Point Cloud Data file format\nVERSION 0.7\n"
    head += f"FIELDS {' '.join(rows.dtype.names)}\nSIZE 4 4 4 4 8 4 4 4 4 2\n"
    head += "TYPE U F F F F F F F F U\nCOUNT 1 1 1 3 1 1 1 1 1 1\n"
    head += f"WIDTH {n}\nHEIGHT 1\nVIEWPOINT 0 0 0 1 0 0 0\nPOINTS {n}\nDATA {kind}\n"
    if kind == "ascii":
        body = ""
        for row in rows:
            flat = [np.ravel(row[name]) for name in rows.dtype.names]
            body += " ".join(repr(v) for part in flat for v in part.tolist()) + "\n"
        return (head + body).encode()
    if kind == "binary":
        return head.encode() + rows.tobytes()
    raw = b"".join(np.ascontiguousarray(rows[name]).tobytes() for name in rows.dtype.names)
    packed = lzf_compress(raw)
    return head.encode() + struct.pack("<II", len(packed), len(raw)) + packed


NAMES = ("x", "y", "z", "nx", "ny", "nz", "red", "green", "blue", "label")


def text_bytes(separator=" ", header=True, end="\n", n=50, seed=0):
    points, normals, colors, labels = cloud_arrays(n, seed)
    rows = np.hstack([points.astype(object), normals, colors, labels[:, None]]).tolist()
    lines = [separator.join(repr(v) for v in row) for row in rows]
    if header:
        lines.insert(0, separator.join(NAMES))
    return (end.join(lines) + end).encode()


def las_file(path, n=50, seed=0, offset=(0.0, 0.0, 0.0), version="1.2", form=3):
    points, _, colors, labels = cloud_arrays(n, seed)
    header = laspy.LasHeader(point_format=form, version=version)
    header.offsets, header.scales = np.array(offset), np.full(3, 1e-4)
    data = laspy.LasData(header)
    data.x, data.y, data.z = (points.astype(np.float64) + offset).T
    data.red, data.green, data.blue = colors.T.astype(np.uint16) * 257
    data.classification = labels.astype(np.uint8)
    data.write(str(path))


def mesh(colored=True):
    box = trimesh.creation.box((1.0, 2.0, 3.0))
    if colored:
        shades = (np.arange(8)[:, None] * [30, 20, 10]).astype(np.uint8)
        box.visual.vertex_colors = np.hstack([shades, np.full((8, 1), 255, np.uint8)])
    return box


def gltf_text():
    """A triangle moved by its node, with the buffer inside the text."""
    import base64

    buffer = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0]], "<f4").tobytes()
    content = {
        "asset": {"version": "2.0"},
        "scene": 0,
        "scenes": [{"nodes": [0]}],
        "nodes": [{"mesh": 0, "translation": [0, 0, 5]}],
        "meshes": [{"primitives": [{"attributes": {"POSITION": 0}}]}],
        "accessors": [{"bufferView": 0, "componentType": 5126, "count": 3, "type": "VEC3"}],
        "bufferViews": [{"buffer": 0, "byteLength": 36}],
        "buffers": [
            {
                "byteLength": 36,
                "uri": "data:application/octet-stream;base64," + base64.b64encode(buffer).decode(),
            }
        ],
    }
    return json.dumps(content).encode()


def write_all(folder, n=50, seed=0):
    """Write one file of every kind; return {name: path}."""
    points, normals, colors, labels = cloud_arrays(n, seed)
    files = {
        "text.ply": ply_bytes("ascii", n, seed),
        "little.ply": ply_bytes("binary_little_endian", n, seed),
        "big.ply": ply_bytes("binary_big_endian", n, seed, color="float"),
        "mixed.ply": ply_bytes("ascii", n, seed, faces=[[0, 1, 2], [3, 4, 5, 6], [7, 8]]),
        "mixed_binary.ply": ply_bytes(
            "binary_big_endian", n, seed, faces=[[0, 1, 2], [3, 4, 5, 6], [7, 8]]
        ),
        "text.pcd": pcd_bytes("ascii", n, seed),
        "binary.pcd": pcd_bytes("binary", n, seed),
        "compressed.pcd": pcd_bytes("binary_compressed", n, seed),
        "plain.xyz": text_bytes(" ", False, "\n", n, seed),
        "tabs.txt": text_bytes("\t", True, "\r\n", n, seed),
        "commas.csv": text_bytes(",", True, "\n", n, seed),
        "count.pts": f"{n}\n".encode() + text_bytes(" ", False, "\r", n, seed),
        "scene.gltf": gltf_text(),
    }
    for suffix in ("ply", "off", "obj", "stl", "glb"):
        files[f"mesh.{suffix}"] = mesh().export(file_type=suffix)
    files["mesh_text.ply"] = mesh().export(file_type="ply", encoding="ascii")
    files["mesh_text.stl"] = mesh().export(file_type="stl_ascii")
    paths = {name: folder / name for name in files}
    for name, content in files.items():
        paths[name].write_bytes(content if isinstance(content, bytes) else content.encode())
    np.save(folder / "array.npy", np.hstack([points, normals, labels[:, None]]))
    arrays = {"points": points, "normals": normals, "colors": colors, "labels": labels}
    np.savez(folder / "stored.npz", **arrays)
    np.savez_compressed(folder / "packed.npz", **arrays)
    with h5py.File(folder / "one.h5", "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array, compression="gzip")
    las_file(folder / "scan.las", n, seed)
    las_file(folder / "scan14.laz", n, seed, version="1.4", form=7)
    las_file(folder / "scan.laz", n, seed)
    for name in ("array.npy", "stored.npz", "packed.npz", "one.h5", "scan.las", "scan.laz"):
        paths[name] = folder / name
    paths["scan14.laz"] = folder / "scan14.laz"
    return paths
