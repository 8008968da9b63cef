from locotrans.counting import counted


def test_one_is_counted_as_one():
    assert counted(1, "file") == "1 file"
    assert [counted(n, "file") for n in (0, 2, 2000)] == ["0 files", "2 files", "2,000 files"]
    assert counted(1, "class has", "classes have") == "1 class has"
    assert counted(2, "class has", "classes have") == "2 classes have"
