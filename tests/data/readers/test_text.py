"""Tables as text: separators, names, comments, and what columns without names are."""

import time

import numpy as np
import pytest

from data.readers import writers
from locotrans.data.readers import ReadError, read_cloud


@pytest.fixture
def read(tmp_path):
    def read(text, suffix="xyz"):
        path = tmp_path / f"cloud.{suffix}"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_cloud(path)

    return read


POINTS = [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    "text",
    [
        "0 1 2\n3 4 5\n",
        "0,1,2\r\n3,4,5",
        "0;1;2\r3;4;5\r",
        "  0\t1\t2  \n\n\n3\t4\t5",
        "0, 1, 2\n3 , 4 ,5\n",
        "# a comment\n0 1 2 # another\n// a third\n3 4 5",
        "0 1 2\r\n3 4 5\n\r",
        "0,0;1,0;2,0\n3,0;4,0;5,0\n",
        '"0","1","2"\n"3","4","5"',
        "2\n0 1 2\n3 4 5",
        "X Y Z\n0 1 2\n3 4 5",
        "z,y,x\n2,1,0\n5,4,3\n",
        '"Z";"X";"Y"\n2;0;1\n5;3;4\n',
        "//Z Y X\n2 1 0\n5 4 3\n",
        "\ufeff0 1 2\n3 4 5\n",
        "0 1 2\n3 4 5\n".encode("utf-16"),
        "0 1 2 9.5\n3 4 5 9.5\n",
        "x,y,z,time\n0,1,2,9\n3,4,5,9\n",
        "0,1,2,\n3,4,5,\n",
        "0,0 1,0 2,0\n3,0\t4,0\t5,0\n",
        "0,0 1 2,0\n3,0 4,0e0 5\n",
        "x y z\n0,0 1 2,0\n3,0 4,0 5\n",
        ",x,y,z\n0,0,1,2\n1,3,4,5\n",
        "\tx\ty\tz\n0\t0\t1\t2\n1\t3\t4\t5\n",
        "   x  y  z\n0  0  1  2\n1  3  4  5\n",
        "+0e0 1.E0 .2e1\n3. 4 5d0\n".replace("d", "e"),
    ],
)
def test_ways_to_write_two_points(read, text):
    cloud = read(text)
    assert cloud.points.tolist() == POINTS
    assert cloud.normals is None
    assert cloud.colors is None
    assert cloud.labels is None


def test_six_columns_of_unit_length_are_normals(read):
    assert read("0 1 2 0 0 -1\n3 4 5 0.6 0 0.8\n").normals.tolist()[0] == [0, 0, -1]
    assert read("0 1 2 0 0 0\n3 4 5 0.6 0 0.8\n").normals is not None  # one is unknown


def test_one_odd_normal_among_many_does_not_hide_the_rest(read):
    cloud = read("0 1 2 0 0 1\n" * 30 + "3 4 5 1 1 1\n")  # as in files of ShapeNetPart
    assert cloud.normals[-1].tolist() == [1, 1, 1]
    assert cloud.colors is None


def test_six_columns_of_other_positive_values_are_colours(read):
    cloud = read("0 1 2 255 0 51\n3 4 5 0 0 1\n")
    np.testing.assert_allclose(cloud.colors[0], [1, 0, 0.2])
    assert cloud.normals is None
    np.testing.assert_allclose(read("0 1 2 .5 0 .25\n3 4 5 0 0 1\n").colors[0], [0.5, 0, 0.25])


def test_six_columns_of_anything_else_are_left_out(read):
    cloud = read("0 1 2 -7 300 4\n3 4 5 8 8 8\n")
    assert cloud.colors is None
    assert cloud.normals is None


def test_a_seventh_column_is_the_label(read):
    assert read("0 1 2 0 0 1 7\n3 4 5 0 1 0 8\n").labels.tolist() == [7, 8]
    assert read("0 1 2 0 0 1 7.5\n3 4 5 0 1 0 8\n").labels is None


def test_a_fourth_column_of_small_whole_numbers_is_the_label(read):
    assert read("0 1 2 7\n3 4 5 -1\n", "txt").labels.tolist() == [7, -1]
    assert read("0 1 2 7\n3 4 5 200\n", "txt").labels is None  # an intensity
    assert read("0 1 2 7\n3 4 5 8\n", "pts").labels is None


@pytest.mark.parametrize("fourth", ["0.25", "900", "17"])
def test_an_intensity_before_the_colours_is_no_red(read, fourth):
    cloud = read(f"0 1 2 {fourth} 255 0 51\n3 4 5 {fourth} 10 10 200\n", "txt")
    np.testing.assert_allclose(cloud.colors[0], [1, 0, 0.2])
    assert cloud.labels is None


def test_colours_before_a_label_stay_what_they_are(read):
    cloud = read("0 1 2 255 0 51 3\n3 4 5 10 10 10 12\n", "txt")
    np.testing.assert_allclose(cloud.colors[0], [1, 0, 0.2])
    assert cloud.labels.tolist() == [3, 12]


def test_commas_between_decimal_points_still_separate(read):
    cloud = read("0.5,1,2 255,0,51\n3,4,5 10,10,200\n")
    assert cloud.points.tolist() == [[0.5, 1, 2], [3, 4, 5]]
    assert cloud.colors is not None


def test_scanner_pts_have_an_intensity_before_the_colours(read):
    cloud = read("2\n0 1 2 -900 255 0 51\n3 4 5 20 10 10 10\n", "pts")
    np.testing.assert_allclose(cloud.colors[0], [1, 0, 0.2])
    assert cloud.labels is None


@pytest.mark.parametrize("name", ["label", "Class", "scalar_Label", "Classification"])
def test_labels_by_name(read, name):
    assert read(f"x,y,z,{name}\n0,1,2,4\n3,4,5,-1\n", "csv").labels.tolist() == [4, -1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0 1 2\n3 4\n", "line 2 has 2 columns, those before have 3"),
        ("# c\n\n0 1 2\n3 4 x5\n", "line 4 has 'x5' where a number belongs"),
        ("0 1 2\n\n0 nan 2\n0 inf 3\n", "2 of 3 points are nan or infinite, first at line 3"),
        ("x y z\n0 1 2\n0 nan 2\n", "first at line 3"),
        ("5\n0 1 2\n", "promises 5 points, 1 follow"),
        ("0 1\n2 3\n", "2 rows of 2 columns"),
        ("0,,2\n1,2,3\n", "a value is missing"),
        ("0,1,2\n,2,3\n", "a value is missing"),
        ("a b c\n1 2 3\n", "no columns x, y and z, but a, b, c"),
        ("x y z w\n1 2 3\n", "names 4 columns, the lines have 3"),
        ("x y z label\n1 2 3 0.5\n", "label 0.5 at line 2 is not a whole number"),
        ("x y z r g b\n1 2 3 -1 0 0\n", "colours span -1 to 0"),
        ("2\nmethane\nC 0.1 0.2 0.3\nH 1 2 3\n", "chemical xyz file"),
        ("# only a comment\n", "holds no points"),
        ("x y z\n", "holds no points"),
        (" \n\t\n", "holds no points"),
        ("1 2 1e39\n", "beyond single precision"),
        (b"1 2 3\n4 5 \x006\n", "is binary, not text"),
        (b"\xff\xfe1", "is damaged UTF-16 text"),
        ("1 2 3 " * 200, "1 rows of 600 columns"),
    ],
)
def test_errors_name_the_line_and_the_remedy(read, text, message):
    with pytest.raises(ReadError, match=message) as caught:
        read(text)
    assert "cloud.xyz: " in str(caught.value)
    assert str(caught.value).count(": ") >= 2


@pytest.mark.slow
def test_three_million_lines(tmp_path):
    points = np.random.default_rng(0).normal(size=(3_000_000, 3)).astype(np.float32)
    with (tmp_path / "big.xyz").open("w") as file:
        for start in range(0, len(points), 100_000):
            rows = points[start : start + 100_000].tolist()
            file.write("".join(f"{x:.6f} {y:.6f} {z:.6f}\n" for x, y, z in rows))
    start = time.perf_counter()
    cloud = read_cloud(tmp_path / "big.xyz")
    seconds = time.perf_counter() - start
    print(f"3,000,000 lines in {seconds:.2f} s")
    np.testing.assert_allclose(cloud.points.numpy(), points, atol=1e-6)
    assert seconds < 15


def test_writers_compress_what_the_reader_unpacks():
    from locotrans.data.readers.lzf import decompress

    rng = np.random.default_rng(0)
    for data in (b"", b"a" * 1000, rng.bytes(500), b"abcabcabcabd" * 50, bytes(range(256)) * 40):
        packed = writers.lzf_compress(data)
        assert decompress(packed, len(data)) == data
    assert len(writers.lzf_compress(b"a" * 1000)) < 30
