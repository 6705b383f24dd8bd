"""Making a dataset of images in every format, and the messages for invalid images."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from PIL import Image
from rank_processes import clean_environment

from trainyard.resources import schema_file
from trainyard.settings.files import describe_os_error
from trainyard.steps import prepare_images
from trainyard.steps.data.dataset.manifest import Manifest, read_manifest
from trainyard.steps.data.dataset.reader import SplitReader
from trainyard.steps.data.dataset.shards import require_digests
from trainyard.steps.runtime.files import write_json

RANDOM = np.random.default_rng(0)
ENDINGS = ".png .jpg .jpeg .webp .bmp .tif .tiff"


def prepare(out: Path, *arguments: object) -> int:
    return prepare_images.main(["--prepared", str(out), *[str(argument) for argument in arguments]])


def complaint(capsys: pytest.CaptureFixture[str], out: Path, *arguments: object) -> str:
    """The one line that a refused preparation says; it must leave no dataset behind."""
    assert prepare(out, *arguments) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert not (out / "manifest.json").exists()
    assert not list(out.glob("*.bin"))
    return line.removeprefix("trainyard.steps.prepare_images: error: ")


def everything(folder: Path, split: str) -> dict[str, np.ndarray]:
    manifest = read_manifest(folder)
    require_digests(folder, manifest.shards())
    reader = SplitReader(folder, manifest, split)
    return reader.gather(np.arange(reader.samples))


def write_images(folder: Path, per_class: int = 10, size: tuple[int, int] = (6, 6), mode: str = "RGB") -> None:
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(per_class):
            shape = size[::-1] if mode == "L" else (*size[::-1], 3)
            pixels = RANDOM.integers(0, 256, shape, dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number:03d}.png")


# --- what is prepared


def test_digits_are_split_by_class(digits: Path) -> None:
    manifest = read_manifest(digits)
    require_digests(digits, manifest.shards())
    assert {name: split.samples for name, split in manifest.splits.items()} == {
        "train": 1293,
        "validation": 145,
        "test": 359,
    }
    assert manifest.classes == tuple("0123456789")
    for split in ("train", "validation", "test"):
        labels = everything(digits, split)["labels"]
        counts = np.bincount(labels, minlength=10) / len(labels)
        assert counts.min() > 0.08
        assert counts.max() < 0.12


def test_every_digit_is_in_one_split(digits: Path) -> None:
    from sklearn.datasets import load_digits

    prepared = np.concatenate([everything(digits, split)["images"] for split in ("train", "validation", "test")])
    assert prepared.dtype == np.uint8
    assert prepared.shape == (1797, 1, 8, 8)
    source = np.rint(load_digits().images * (255 / 16)).astype(np.uint8)
    assert sorted(image.tobytes() for image in prepared) == sorted(image.tobytes() for image in source)


def test_another_seed_splits_differently_and_the_same_seed_does_not(tmp_path: Path) -> None:
    def shards(name: str, seed: int) -> dict[str, bytes]:
        assert prepare(tmp_path / name, "--seed", seed) == 0
        return {file.name: file.read_bytes() for file in (tmp_path / name).iterdir()}

    assert shards("a", 1) == shards("b", 1)
    assert shards("c", 2) != shards("a", 1)


def test_shards_hold_the_samples_in_order(tmp_path: Path) -> None:
    assert prepare(tmp_path / "one") == 0
    assert prepare(tmp_path / "many", "--shard-samples", 100) == 0
    assert len(read_manifest(tmp_path / "many").splits["train"].shards) == 2 * 13
    one, many = everything(tmp_path / "one", "train"), everything(tmp_path / "many", "train")
    assert np.array_equal(one["images"], many["images"])
    assert np.array_equal(one["labels"], many["labels"])


def test_manifests_follow_their_schema(digits: Path) -> None:
    schema = json.loads(schema_file("dataset_manifest").read_text())
    jsonschema.validate(json.loads((digits / "manifest.json").read_text()), schema)


def test_a_folder_of_images_per_class(tmp_path: Path) -> None:
    write_images(tmp_path / "pets")
    (tmp_path / "pets" / "cat" / "notes.txt").write_text("not an image")
    assert prepare(tmp_path / "out", "--format", "folder", "--source", tmp_path / "pets") == 0
    manifest = read_manifest(tmp_path / "out")
    assert manifest.classes == ("cat", "dog")
    assert {name: split.samples for name, split in manifest.splits.items()} == {"train": 14, "validation": 2, "test": 4}
    prepared = np.concatenate([everything(tmp_path / "out", split)["images"] for split in manifest.splits])
    source = [np.asarray(Image.open(file)).transpose(2, 0, 1) for file in (tmp_path / "pets").glob("*/*.png")]
    assert sorted(image.tobytes() for image in prepared) == sorted(image.tobytes() for image in source)


def test_images_of_a_single_class_are_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pets/cat").mkdir(parents=True)
    for number in range(10):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / f"pets/cat/{number}.png")
    assert prepare(tmp_path / "out", "--format", "folder", "--source", tmp_path / "pets") == 0
    assert "warning: all images are of one class, 'cat'" in capsys.readouterr().out


def test_the_parts_of_a_source_are_kept(tmp_path: Path) -> None:
    for part, count in (("train", 10), ("val", 3), ("test", 4)):
        write_images(tmp_path / "pets" / part, per_class=count)
    assert prepare(tmp_path / "out", "--format", "folder", "--source", tmp_path / "pets") == 0
    splits = read_manifest(tmp_path / "out").splits
    assert {name: split.samples for name, split in splits.items()} == {"train": 20, "validation": 6, "test": 8}


def test_grey_images_have_one_channel_and_are_scaled_on_request(tmp_path: Path) -> None:
    write_images(tmp_path / "pets", size=(9, 6), mode="L")
    assert prepare(tmp_path / "out", "--format", "folder", "--source", tmp_path / "pets", "--image-size", 4) == 0
    assert read_manifest(tmp_path / "out").arrays["images"].shape == (1, 4, 4)


def test_images_of_sixteen_bits_keep_their_shades(tmp_path: Path) -> None:
    shades = np.arange(0, 1 << 16, 1 << 10, dtype=np.uint16).reshape(8, 8)
    for name in ("scans/lung left/1.png", "scans/lung left/2.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(shades).save(tmp_path / name)
    flags = ("--format", "folder", "--source", tmp_path / "scans", "--validation-fraction", 0, "--test-fraction", 0)
    assert prepare(tmp_path / "out", *flags) == 0
    assert read_manifest(tmp_path / "out").classes == ("lung left",)
    assert (everything(tmp_path / "out", "train")["images"] == shades >> 8).all()


def test_photographs_are_turned_upright(tmp_path: Path) -> None:
    for name in ("up", "side"):
        (tmp_path / "in" / name).mkdir(parents=True)
        exif = Image.Exif()
        exif[0x0112] = 6
        for number in range(3):
            Image.new("RGB", (8, 4), (200, number, 0)).save(tmp_path / "in" / name / f"{number}.jpg", exif=exif)
    assert prepare(tmp_path / "out", "--format", "folder", "--source", tmp_path / "in") == 0
    assert read_manifest(tmp_path / "out").arrays["images"].shape == (3, 8, 4)


def test_the_number_of_processes_changes_nothing(tmp_path: Path) -> None:
    write_images(tmp_path / "pets", per_class=300, size=(3, 3))
    (tmp_path / "pets" / "dog" / "broken.png").write_bytes(b"not a png")
    for workers in (1, 2):
        flags = ("--format", "folder", "--source", tmp_path / "pets", "--workers", workers, "--skip-undecodable")
        assert prepare(tmp_path / f"out{workers}", *flags) == 0
    files = sorted(file.name for file in (tmp_path / "out1").iterdir())
    assert files == sorted(file.name for file in (tmp_path / "out2").iterdir())
    assert all((tmp_path / "out1" / name).read_bytes() == (tmp_path / "out2" / name).read_bytes() for name in files)


def test_an_older_dataset_is_replaced_whole(tmp_path: Path) -> None:
    assert prepare(tmp_path, "--shard-samples", 100) == 0
    for name in ("notes.txt", "train-notes.bin"):
        (tmp_path / name).write_text("mine")
    assert prepare(tmp_path) == 0
    manifest = read_manifest(tmp_path)
    require_digests(tmp_path, manifest.shards())
    named = {shard.file for split in manifest.splits.values() for shard in split.shards}
    assert {file.name for file in tmp_path.iterdir()} == {*named, "manifest.json", "notes.txt", "train-notes.bin"}


# --- what is refused


def test_an_unknown_format(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as end:
        prepare(tmp_path, "--format", "mnist")
    assert end.value.code == 2
    assert "'mnist' is not one of digits, folder, table" in capsys.readouterr().err


def test_a_format_without_its_source(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert complaint(capsys, tmp_path, "--format", "folder") == (
        "--format folder needs --source, the folder that holds the images"
    )
    assert complaint(capsys, tmp_path, "--format", "folder", "--source", tmp_path / "no") == (
        f"--source {tmp_path / 'no'}: no such folder"
    )


def test_images_that_cannot_be_decoded_are_named_and_counted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pets = tmp_path / "pets"
    write_images(pets, size=(40, 40))
    (pets / "cat" / "text.png").write_text("not an image")
    whole = (pets / "dog" / "003.png").read_bytes()
    flags = ("--format", "folder", "--source", pets)

    (pets / "dog" / "003.png").write_bytes(whole)
    said = complaint(capsys, tmp_path / "out", *flags)
    assert said == (
        f"1 of 21 images cannot be decoded: {pets}/cat/text.png (cannot identify image file); "
        "set --skip-undecodable true to leave them out"
    )
    (pets / "cat" / "text.png").unlink()
    (pets / "dog" / "003.png").write_bytes(whole[: len(whole) // 2])
    said = complaint(capsys, tmp_path / "out", *flags)
    assert "images cannot be decoded" in said
    assert f"{pets}/dog/003.png (" in said

    (pets / "cat" / "text.png").write_text("not an image")
    assert prepare(tmp_path / "out", *flags, "--skip-undecodable", "true") == 0
    said = capsys.readouterr().out
    assert f"skipped: 1 of 21 images cannot be decoded: {pets}/cat/text.png" in said
    assert f"{pets}/dog/003.png" in said
    assert sum(split.samples for split in read_manifest(tmp_path / "out").splits.values()) == 19


def test_images_of_mixed_sizes_are_scaled_to_the_median_of_their_shorter_sides(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    write_images(tmp_path / "pets", per_class=3)
    Image.new("RGB", (9, 7)).save(tmp_path / "pets" / "dog" / "big.png")
    flags = ("--format", "folder", "--source", tmp_path / "pets")
    assert prepare(tmp_path / "out", *flags) == 0
    assert read_manifest(tmp_path / "out").arrays["images"].shape == (3, 6, 6)
    assert (
        "the images differ in size, from 6x6 to 9x7 (width x height): scaling all to 6x6; set --image-size for "
        "another size"
    ) in capsys.readouterr().out
    assert prepare(tmp_path / "small", *flags, "--image-size", 5) == 0
    assert read_manifest(tmp_path / "small").arrays["images"].shape == (3, 5, 5)
    write_images(tmp_path / "large", per_class=3, size=(300, 280))
    write_images(tmp_path / "large", per_class=2, size=(300, 290))
    assert prepare(tmp_path / "capped", "--format", "folder", "--source", tmp_path / "large") == 0
    assert read_manifest(tmp_path / "capped").arrays["images"].shape == (3, 224, 224)


def write_table(folder: Path, header: str, rows: list[str], *, as_parquet: bool = False) -> None:
    if not as_parquet:
        (folder / "images.csv").write_text("\n".join([header, *rows]), encoding="utf-8-sig")
        return
    import pyarrow
    from pyarrow import parquet

    columns = zip(*(row.split(",") for row in rows), strict=True)
    parquet.write_table(pyarrow.table(dict(zip(header.split(","), map(list, columns), strict=True))),
                        folder / "images.parquet")  # fmt: skip


@pytest.mark.parametrize("as_parquet", [False, True])
def test_a_table_of_paths_and_labels(tmp_path: Path, as_parquet: bool) -> None:
    write_images(tmp_path / "pets")
    names = [f"{animal}/{number:03d}.png" for animal in ("cat", "dog") for number in range(10)]
    write_table(tmp_path / "pets", "path,label", [f"{name},{name[:3]}" for name in names], as_parquet=as_parquet)
    assert prepare(tmp_path / "table", "--format", "table", "--source", tmp_path / "pets") == 0
    (tmp_path / "pets" / ("images.parquet" if as_parquet else "images.csv")).unlink()
    assert prepare(tmp_path / "folder", "--format", "folder", "--source", tmp_path / "pets") == 0
    for split in ("train", "validation", "test"):
        from_table, from_folder = everything(tmp_path / "table", split), everything(tmp_path / "folder", split)
        assert all(np.array_equal(from_table[name], from_folder[name]) for name in ("images", "labels"))


def test_a_table_with_splits_and_columns_of_other_names(tmp_path: Path) -> None:
    write_images(tmp_path / "pets", per_class=3)
    rows = [
        f"{animal},{split},{animal}/{number:03d}.png"
        for animal in ("cat", "dog")
        for number, split in enumerate(("train", "val", "Test"))
    ]
    write_table(tmp_path / "pets", "animal,split,file", rows)
    columns = ("--path-column", "file", "--label-column", "animal")
    assert prepare(tmp_path / "out", "--format", "table", "--source", tmp_path / "pets", *columns) == 0
    manifest = read_manifest(tmp_path / "out")
    assert {name: split.samples for name, split in manifest.splits.items()} == {"train": 2, "validation": 2, "test": 2}
    assert manifest.classes == ("cat", "dog")


@pytest.mark.parametrize(
    ("header", "rows", "message"),
    [
        ("file,label", ["cat/000.png,cat"], "SOURCE/images.csv has no column 'path'; it has file, label: set "
         "--path-column and --label-column"),
        ("path,label", ["cat/000.png,cat", "cat/9.png,cat"], "SOURCE/images.csv:3: there is no file cat/9.png in "
         "SOURCE; paths are relative to the source"),
        ("path,label", ["cat/000.png,"], "SOURCE/images.csv:2: the label is empty"),
        ("path,label", ["cat/000.png,cat", "cat/000.png,dog"], "SOURCE/images.csv:3: cat/000.png is already listed at "
         "SOURCE/images.csv:2"),
        ("path,label,split", ["cat/000.png,cat,dev"], "SOURCE/images.csv:2: unknown split 'dev'; expected one of "
         "train, validation, val, test"),
        ("path,label,split", ["cat/000.png,cat,test"], "SOURCE/images.csv lists no image for training"),
        ("path,label,split", ["cat/000.png,cat,train", "dog/000.png,dog,test"], "SOURCE: the part test has "
         "classes that the training part lacks: dog"),
    ],
)  # fmt: skip
def test_tables_that_cannot_be_used(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, header: str, rows: list[str], message: str
) -> None:
    source = tmp_path / "pets"
    write_images(source, per_class=1)
    flags = ("--format", "table", "--source", source)
    assert complaint(capsys, tmp_path / "out", *flags) == (
        f"{source}: expected one .csv or .parquet file with paths and labels, found none"
    )
    write_table(source, header, rows)
    assert complaint(capsys, tmp_path / "out", *flags) == message.replace("SOURCE", str(source))


def test_folders_without_images(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pets = tmp_path / "pets"
    pets.mkdir()
    flags = ("--format", "folder", "--source", pets)
    assert complaint(capsys, tmp_path / "out", *flags) == (
        f"{pets} holds no images: expected one folder of images ({ENDINGS}) per class"
    )
    write_images(pets)
    (pets / "bird").mkdir()
    (pets / "dog" / "notes.txt").touch()
    for number in range(3, 10):
        (pets / "cat" / f"{number:03d}.png").unlink()
    assert prepare(tmp_path / "out", *flags) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning")] == [
        "warning: skipped 1 file, hidden or not images: dog/notes.txt",
        f"warning: {pets} has folders without images, which are not classes: bird",
        "warning: 1 of 2 classes have fewer than 5 images for training: cat (3)",
    ]
    assert read_manifest(tmp_path / "out").classes == ("cat", "dog")


@pytest.mark.parametrize("ending", ["webp", "bmp", "tif", "tiff"])
def test_images_of_other_formats(tmp_path: Path, ending: str) -> None:
    for file in write_images(tmp_path / "pets") or (tmp_path / "pets").rglob("*.png"):
        with Image.open(file) as image:
            image.save(file.with_suffix(f".{ending}"))
        file.unlink()
    assert prepare(tmp_path / "out", "--format", "folder", "--source", tmp_path / "pets") == 0
    assert sum(split.samples for split in read_manifest(tmp_path / "out").splits.values()) == 20


def test_a_test_class_missing_from_training(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write_images(tmp_path / "train")
    write_images(tmp_path / "test")
    (tmp_path / "test" / "dog").rename(tmp_path / "test" / "fox")
    said = complaint(capsys, tmp_path / "out", "--format", "folder", "--source", tmp_path)
    assert said == f"{tmp_path}: the part test has classes that the training part lacks: fox"


def test_a_full_disk_is_named_and_leaves_no_dataset(tmp_path: Path) -> None:
    """A limit on the size of files fails a write in its middle, as a full disk does."""
    limited = f"ulimit -f 8; exec {sys.executable} -m trainyard.steps.prepare_images --prepared {tmp_path}/out"
    result = subprocess.run(
        ["bash", "-c", limited], env=clean_environment(), capture_output=True, text=True, timeout=400
    )
    assert result.returncode == 1
    assert result.stderr == (
        f"trainyard.steps.prepare_images: error: {tmp_path}/out/train-00000.images.bin: file too large\n"
    )
    assert list((tmp_path / "out").iterdir()) == []


def test_a_full_disk_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left on device") as failure:
        write_json(Path("/dev/full"), {"a": 1})
    assert describe_os_error(failure.value) == "/dev/full: no space left on device"


def test_a_read_only_output_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert prepare(tmp_path / "file" / "out") == 1
    said = capsys.readouterr().err
    assert said == f"trainyard.steps.prepare_images: error: {tmp_path}/file/out: not a directory\n"


def test_nothing_left_for_training(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write_images(tmp_path / "pets", per_class=1)
    assert prepare(tmp_path / "out", "--format", "folder", "--source", tmp_path / "pets") == 0
    assert list(read_manifest(tmp_path / "out").splits) == ["train"]


def test_a_manifest_can_be_read_back(tmp_path: Path, digits: Path) -> None:
    manifest = read_manifest(digits)
    (tmp_path / "copy").mkdir()
    Manifest(manifest.content, manifest.arrays, {}, manifest.classes, manifest.source).write(tmp_path / "copy")
    assert read_manifest(tmp_path / "copy").arrays == manifest.arrays
