"""Data: deterministic by number, split by position, every refusal in words."""

from __future__ import annotations

import hashlib
import sys

import numpy as np
import pytest
import torch

from paci_lab.data import Data, open_data, stdlib
from paci_lab.errors import InputError

SIZES = {"context": 16, "microbatch_size": 3, "seed": 7}


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.bin"
    path.write_bytes(np.random.default_rng(0).bytes(4000))
    return path


def _starts(content: bytes, batch) -> list[int]:
    return [content.find(bytes(row.tolist())) for row in batch[0]]


def test_the_standard_library_is_a_corpus():
    data = open_data("stdlib", **SIZES)
    inputs, targets = data.train(0)
    assert isinstance(data, Data)
    assert data.vocabulary == 256 and inputs.shape == targets.shape == (3, 16) and inputs.dtype == torch.int64
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert data.sha256 == open_data("stdlib", context=8, microbatch_size=1, seed=0).sha256


def test_the_standard_library_is_chosen_by_pythons_own_list(tmp_path, monkeypatch):
    library = {"abc.py": b"one\r\n", "json/tool.py": b"three\n", "json/__init__.py": b"two\n" * 100}
    left_out = ["sitecustomize.py", "_sysconfigdata_x.py", "site-packages/torch.py", "test/x.py", "ctypes/test/x.py"]
    for name, content in {**library, **dict.fromkeys([*left_out, "idlelib/x.py"], b"no\n")}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    monkeypatch.setattr(stdlib.sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    content = open_data("stdlib", **SIZES)._tokens.tobytes()
    assert content == b"one\n\n" + b"two\n" * 100 + b"\nthree\n"


def test_batches_depend_on_seed_and_number_alone(corpus):
    first, second = open_data(str(corpus), **SIZES), open_data(str(corpus), **SIZES)
    late = second.train(5)
    for i in (0, 3):
        second.train(i)
    assert all(map(torch.equal, late, first.train(5)))
    assert not torch.equal(late[0], first.train(6)[0])
    other = open_data(str(corpus), **{**SIZES, "seed": 8})
    assert not torch.equal(late[0], other.train(5)[0])
    assert first.train_tokens(5) == int((late[1] != -100).sum()) == 48


def test_split_by_position_and_no_overlap(corpus):
    data, content = open_data(str(corpus), **SIZES), corpus.read_bytes()
    trained = [start for i in range(400) for start in _starts(content, data.train(i))]
    held_out = [start for batch in data.validation(2) for start in _starts(content, batch)]
    assert min(trained) >= 0 and max(trained) + 17 <= 3600 <= min(held_out)
    assert max(trained) > 3500 and min(trained) < 100  # the whole training part is used
    assert max(held_out) + 17 <= 4000 and len(set(held_out)) == 16
    assert data.sha256 == hashlib.sha256(content).hexdigest()


def test_validation_is_the_same_for_every_run(corpus):
    one = open_data(str(corpus), **SIZES).validation(3)
    two = open_data(str(corpus), context=16, microbatch_size=5, seed=99).validation(2)
    assert len(one) == 3
    for first, second in zip(one[:2], two, strict=True):
        assert all(map(torch.equal, first, second))


def test_shortest_possible_file(tmp_path):
    path = tmp_path / "short.txt"
    path.write_bytes(bytes(range(170)))
    data = open_data(str(path), **SIZES)
    assert data.validation(1)[0][0][0].tolist() == list(range(153, 169))
    assert max(int(data.train(i)[1].max()) for i in range(200)) == 152


def test_a_file_whose_name_has_a_colon(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes:today").write_bytes(b"x" * 200)
    assert open_data("notes:today", **SIZES).name == "notes:today"


OWN = """
import torch
class Counting:
    name, vocabulary, sha256 = "counting", 50, "none"
    def __init__(self, *, context, microbatch_size, seed):
        self.shape = (microbatch_size, context)
    def train(self, microbatch):
        return torch.full(self.shape, microbatch), torch.full(self.shape, microbatch)
    def train_tokens(self, microbatch):
        return self.shape[0] * self.shape[1]
    def validation(self, batches):
        return [self.train(0)] * batches
class Half:
    name, vocabulary = "half", 50
    def __init__(self, **sizes):
        pass
number = 3
"""


def test_own_data_from_file_and_module(tmp_path, monkeypatch):
    (tmp_path / "own_counting.py").write_text(OWN)
    data = open_data(f"{tmp_path}/own_counting.py:Counting", **SIZES)
    assert isinstance(data, Data) and data.train(4)[0].tolist() == [[4] * 16] * 3
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert open_data("own_counting:Counting", **SIZES).name == "counting"
    for name, words in {
        "Half": ["sha256, train, train_tokens, validation"],
        "number": ["function or a class"],
        "Missing": ["no Missing", "Define Missing"],
    }.items():
        _refused(f"own_counting:{name}", words)
    (tmp_path / "broken.py").write_text("1 / 0")
    _refused("broken.py:Data", ["ZeroDivisionError"])
    _refused("no_such_module_here:Data", ["ModuleNotFoundError"])
    _refused("no_such_file.py:Data", ["FileNotFoundError"])


def _refused(source, words, **changed):
    with pytest.raises(InputError) as refusal:
        open_data(source, **{**SIZES, **changed})
    assert all(word in str(refusal.value) for word in words), str(refusal.value)


def test_refusals_name_path_minimum_and_fix(tmp_path):
    (tmp_path / "empty.txt").write_bytes(b"")
    (tmp_path / "short.txt").write_bytes(b"x" * 169)
    _refused(str(tmp_path / "absent.txt"), ["absent.txt", "no such file", "170 bytes", "Check the path"])
    _refused(str(tmp_path), ["is a directory"])
    _refused(str(tmp_path / "empty.txt"), ["empty.txt", "(empty)", "170 bytes", "longer file"])
    _refused(str(tmp_path / "short.txt"), ["169 bytes", "170 bytes for context 16"])
    _refused("stdlib", ["bytes of source", "at least"], context=10_000_000)
    _refused("stdlib", ["context = 0"], context=0)
    _refused("stdlib", ["microbatch_size = 0"], microbatch_size=0)
    _refused("stdlib", ["seed = -1"], seed=-1)


def test_hub_says_what_it_needs(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)  # as if not installed
    _refused("hf:openwebtext", ["datasets and tokenizers", 'pip install "paci-lab[hf]"'])


def test_hub_rows(tmp_path):
    datasets = pytest.importorskip("datasets", reason="the optional extra hf is not installed")
    from paci_lab.data.hub import END_OF_TEXT, HubData, token_rows

    (tmp_path / "texts.txt").write_text("\n".join(["ab" * 20, "cde" * 30] * 20))
    texts = datasets.load_dataset(
        "text", data_files=str(tmp_path / "texts.txt"), split="train", cache_dir=str(tmp_path)
    )
    rows = token_rows(texts, lambda batch: [list(text.encode()) for text in batch], "bytes", context=16)
    stream = [t for text in texts["text"] for t in [*text.encode(), END_OF_TEXT]]
    assert len(rows) == len(stream) // 17
    assert [t for row in rows for t in row["tokens"]] == stream[: len(rows) * 17]
    data = HubData("test", rows, microbatch_size=3, seed=7)
    inputs, targets = data.train(0)
    assert inputs.shape == (3, 16) and torch.equal(inputs[:, 1:], targets[:, :-1])
    assert all(map(torch.equal, data.train(0), HubData("test", rows, microbatch_size=3, seed=7).train(0)))
    first_held_out = data._split * 17
    assert data.validation(1)[0][0][0].tolist() == stream[first_held_out : first_held_out + 16]
    assert data.sha256 == hashlib.sha256(np.array(stream[: len(rows) * 17], dtype="<u2")).hexdigest()
