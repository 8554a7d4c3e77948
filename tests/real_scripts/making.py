"""Writes small data for foreign scripts: pictures, texts, tokens.

A row of the table says ``images data/train classes=2 each=8 size=32``.
Everything comes from a fixed seed. Not here: which row wants what (table.toml).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy

WORDS = ["the", "a", "cat", "dog", "sees", "runs", "jumps", "over", "small", "big", "red", "tree"]


def images(path: Path, classes: int = 2, each: int = 8, size: int = 32) -> None:
    """A directory of each class with JPEG pictures, as torchvision's ImageFolder reads it."""
    from PIL import Image

    rng = numpy.random.default_rng(0)
    for label in range(classes):
        directory = path / f"class{label}"
        directory.mkdir(parents=True, exist_ok=True)
        for number in range(each):
            pixels = rng.integers(0, 200, (size, size, 3)) + 55 * label // classes
            Image.fromarray(pixels.astype("uint8")).save(directory / f"{number:04}.jpg")


def text(path: Path, words: int = 2000) -> None:
    """A text of sentences."""
    rng = numpy.random.default_rng(0)
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [" ".join(rng.choice(WORDS, 9)) + "." for _ in range(words // 9)]
    path.write_text("\n".join(lines) + "\n")


def tokens(path: Path, count: int = 20000, vocabulary: int = 64, head: str = "") -> None:
    """A binary file of token numbers in which each depends on the one before.

    ``head``: the first of 256 numbers of 32 bits that stand before them.
    """
    rng = numpy.random.default_rng(0)
    path.parent.mkdir(parents=True, exist_ok=True)
    values = (numpy.cumsum(rng.integers(1, 4, count)) % vocabulary).astype("uint16")
    if path.suffix == ".npy":
        numpy.save(path, values)
        return
    known = [int(word) for word in head.split(",") if word]
    before = numpy.array([*known, *[0] * (256 - len(known))] if known else [], "int32").tobytes()
    path.write_bytes(before + values.tobytes())


def mnist(path: Path, count: int = 256) -> None:
    """MNIST's four files, of noise, below ``path``/MNIST/raw."""
    rng = numpy.random.default_rng(0)
    directory = path / "MNIST" / "raw"
    directory.mkdir(parents=True, exist_ok=True)
    for part in ("train", "t10k"):
        head = numpy.array([2051, count, 28, 28], ">i4").tobytes()
        pixels = rng.integers(0, 256, (count, 28, 28)).astype("uint8").tobytes()
        (directory / f"{part}-images-idx3-ubyte").write_bytes(head + pixels)
        head = numpy.array([2049, count], ">i4").tobytes()
        labels = rng.integers(0, 10, count).astype("uint8").tobytes()
        (directory / f"{part}-labels-idx1-ubyte").write_bytes(head + labels)


def write(path: Path, content: str) -> None:
    """A file with ``content=`` in it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content.encode().decode("unicode_escape") + "\n")


def jsonl(path: Path, rows: int = 64, as_list: str = "", **template: str) -> None:
    """Lines of JSON objects, or one list of them.

    ``%`` in a value stands for a sentence, ``#`` for 0 or 1. A value that begins with ``@`` is a
    conversation that ends with it.
    """
    rng = numpy.random.default_rng(0)
    path.parent.mkdir(parents=True, exist_ok=True)

    def filled(value: str) -> Any:
        if value == "#":
            return int(rng.integers(0, 2))
        if value.startswith("@"):
            asked = {"role": "user", "content": filled("%")}
            return [asked, {"role": "assistant", "content": filled(value[1:])}]
        return value.replace("%", " ".join(rng.choice(WORDS, 9)))

    found = [{key: filled(value) for key, value in template.items()} for _ in range(rows)]
    lines = [json.dumps(row) for row in found]
    path.write_text(f"[{', '.join(lines)}]" if as_list else "\n".join(lines) + "\n")


def csv(path: Path, rows: int = 64, **template: str) -> None:
    """The same as comma-separated values."""
    jsonl(path, rows, **template)
    found = [json.loads(line) for line in path.read_text().splitlines()]
    lines = [",".join(template), *(",".join(str(x) for x in row.values()) for row in found)]
    path.write_text("\n".join(lines) + "\n")


def boxes(path: Path, count: int = 8, size: int = 64) -> None:
    """Pictures with a rectangle each and its label beside, as YOLO's scripts read them."""
    from PIL import Image

    rng = numpy.random.default_rng(0)
    for kind in ("images", "labels"):
        (path / kind).mkdir(parents=True, exist_ok=True)
    for number in range(count):
        pixels = rng.integers(0, 60, (size, size, 3))
        x, y = rng.integers(size // 4, size // 2, 2)
        pixels[y - size // 8 : y + size // 4, x - size // 8 : x + size // 4] = 220
        Image.fromarray(pixels.astype("uint8")).save(path / "images" / f"{number:03}.jpg")
        place = f"{(x + size / 16) / size} {(y + size / 16) / size} 0.375 0.375"
        (path / "labels" / f"{number:03}.txt").write_text(f"{number % 2} {place}\n")


def coco(path: Path, count: int = 8, size: int = 64) -> None:
    """Pictures ``000.jpg`` … below ``path``, and ``path``.json with the boxes as COCO has them."""
    boxes(path, count, size)
    notes = []
    for number in range(count):
        label = (path / "labels" / f"{number:03}.txt").read_text().split()
        x, y, w, h = (float(word) * size for word in label[1:])
        box = [x - w / 2, y - h / 2, w, h]
        notes.append(
            {"id": number + 1, "image_id": number, "category_id": int(label[0]) + 1,
             "bbox": box, "area": w * h, "iscrowd": 0, "segmentation": []}
        )  # fmt: skip
        (path / "images" / f"{number:03}.jpg").rename(path / f"{number:03}.jpg")
    known = {
        "images": [
            {"id": n, "file_name": f"{n:03}.jpg", "width": size, "height": size}
            for n in range(count)
        ],
        "annotations": notes,
        "categories": [{"id": n, "name": f"kind{n}"} for n in (1, 2)],
    }
    path.with_suffix(".json").write_text(json.dumps(known))


def tokenizer(path: Path, **special: str) -> None:
    """A Hugging Face tokenizer of single words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = special or {"unk_token": "[UNK]", "pad_token": "[PAD]", "eos_token": "[EOS]"}
    known = {word: n for n, word in enumerate([*names.values(), ".", *WORDS])}
    made = Tokenizer(models.WordLevel(known, unk_token=names["unk_token"]))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=made, **names).save_pretrained(path)


def model(path: Path, kind: str = "gpt2", task: str = "CausalLM", **settings: str) -> None:
    """A tiny Hugging Face model with fresh weights, and a tokenizer for it."""
    import torch
    import transformers

    torch.manual_seed(0)
    special = {"unk_token": "[UNK]", "pad_token": "[PAD]", "eos_token": "[EOS]"}
    special |= {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    tokenizer(path, **special)
    numbers = {key: int(value) for key, value in settings.items()}
    config = transformers.AutoConfig.for_model(kind, vocab_size=64, pad_token_id=1, **numbers)
    maker = getattr(transformers, f"AutoModelFor{task}" if task != "base" else "AutoModel")
    maker.from_config(config).save_pretrained(path)


MAKERS: dict[str, Callable[..., None]] = {
    f.__name__: f
    for f in (images, text, tokens, mnist, write, jsonl, csv, boxes, coco, tokenizer, model)
}
NUMBERS = {"classes", "each", "size", "words", "count", "vocabulary", "rows"}


def main(words: list[str]) -> None:
    """One generator: its name, a path, and KEY=VALUE."""
    kind, path, *pairs = words
    settings: dict[str, Any] = dict(pair.split("=", 1) for pair in pairs)
    for key in NUMBERS & settings.keys():
        settings[key] = int(settings[key])
    MAKERS[kind](Path(path), **settings)
