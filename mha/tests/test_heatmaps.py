"""One map a head, with every word beside its row or under its column, always in one frame."""

import itertools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from torch import Tensor

from mha.explore import MaskExplorer, ScaleExplorer
from mha.heatmaps import (
    HEIGHT,
    LINE,
    WIDTH,
    checked,
    heatmap_picture,
    in_words,
    strongest_links,
    told_apart,
    words,
)
from mha.picture import Label, Map, Picture

RNG = np.random.default_rng(0)
SIZES = [(1, 1), (1, 32), (32, 1), (32, 32), (5, 12), (12, 3), (17, 17)]


def numbered(letter: str, count: int) -> list[str]:
    return [f"{letter}{i}" for i in range(count)]


def example(num_heads: int, seq_q: int, seq_k: int) -> Picture:
    weights = RNG.random((num_heads, seq_q, seq_k))
    return heatmap_picture(weights, numbered("q", seq_q), numbered("k", seq_k))


def heads_of(picture: Picture) -> list[Map]:
    """The maps without the last one, which is the scale."""
    return picture.maps[:-1]


def ink(picture: Picture) -> list[tuple[str, float, float, float, float]]:
    """Every text with its left, right, top and bottom; not the note below on missing fonts."""
    figure = picture.figure()
    renderer = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]
    boxes = [(t.get_text(), t.get_window_extent(renderer)) for t in figure.axes[0].texts]
    height = figure.bbox.height
    return [(t, b.x0, b.x1, height - b.y1, height - b.y0) for t, b in boxes if t[:4] != "? is"]


def cut_off(picture: Picture) -> list[str]:
    return [
        text
        for text, left, right, top, bottom in ink(picture)
        if left < 0 or right > picture.width or top < 0 or bottom > picture.height
    ]


def test_every_map_holds_the_weights_of_its_head() -> None:
    weights = RNG.random((3, 5, 7))
    picture = heatmap_picture(weights, numbered("q", 5), numbered("k", 7))
    for m, weight in zip(heads_of(picture), weights, strict=True):
        assert np.array_equal(m.weights, weight)
    titles = [label.text for label in picture.labels if label.bold]
    assert titles == ["head 0", "head 1", "head 2"]


def test_the_scale_runs_from_0_to_1() -> None:
    picture = example(2, 3, 5)
    scale = picture.maps[-1]
    assert scale.weights.shape[0] == 1
    assert np.allclose(np.diff(scale.weights[0]), scale.weights[0, 1])
    zero, one = picture.labels[-2:]
    assert (zero.text, zero.x < scale.x, scale.weights[0, 0]) == ("0", True, 0)
    assert (one.text, one.x > scale.x + scale.width, scale.weights[0, -1]) == ("1", True, 1)


@pytest.mark.parametrize("num_heads", range(1, 13))
def test_the_width_stays_the_same_and_maps_keep_inside_it(num_heads: int) -> None:
    for seq_q, seq_k in SIZES:
        picture = example(num_heads, seq_q, seq_k)
        assert picture.width == WIDTH
        assert picture.height <= HEIGHT + 6
        assert len(heads_of(picture)) == num_heads
        for m in picture.maps:
            assert 0 <= m.x <= m.x + m.width <= picture.width
            assert 0 <= m.y <= m.y + m.height <= picture.height
        for a, b in itertools.combinations(picture.maps, 2):
            beside = a.x + a.width < b.x or b.x + b.width < a.x
            assert beside or a.y + a.height < b.y or b.y + b.height < a.y
        sides = {(round(m.width / seq_k, 6), round(m.height / seq_q, 6)) for m in heads_of(picture)}
        assert len(sides) == 1
        assert len(set(sides.pop())) == 1, "a weight is a square, the same in each head"
        assert max(max(m.width, m.height) for m in picture.maps) < 321, "few heads stay modest"


@pytest.mark.parametrize("num_heads", [1, 2, 12])
@pytest.mark.parametrize(("seq_q", "seq_k"), SIZES)
def test_no_word_is_cut_off_and_titles_do_not_overlap(
    num_heads: int, seq_q: int, seq_k: int
) -> None:
    picture = example(num_heads, seq_q, seq_k)
    assert not cut_off(picture)
    titles = [box for box in ink(picture) if box[0].startswith("head")]
    for a, b in itertools.combinations(titles, 2):
        assert a[2] <= b[1] or b[2] <= a[1] or a[4] <= b[3] or b[4] <= a[3], (a, b)


@pytest.mark.parametrize("explorer", [ScaleExplorer, MaskExplorer])
def test_no_word_of_a_slider_is_cut_off(explorer: type[ScaleExplorer | MaskExplorer]) -> None:
    figure = explorer()
    for name, slider in figure.sliders.items():
        for _, value in slider.options:
            figure.move(**{name: value})
            assert not cut_off(figure.frame.picture)


def test_long_words_shrink_instead_of_being_cut_off() -> None:
    long = ["[CLS]", "understanding", "unquestionably", "a"]
    picture = heatmap_picture(np.zeros((2, 4, 4)), long, long)
    assert not cut_off(picture)
    sizes = {label.text: label.size for label in picture.labels if label.text in long}
    assert sizes["unquestionably"] < sizes["understanding"] < sizes["a"] == 12
    assert sizes["unquestionably"] > 6.4


def test_words_too_long_to_be_read_lose_their_middle_and_the_text_keeps_it() -> None:
    long = ["internationalization", "a" * 20 + "b" * 20, "漢" * 30, "short"]
    picture = heatmap_picture(np.eye(4)[None], long, long, ["a title " * 9], largest=100)
    assert not cut_off(picture)
    texts = [label.text for label in picture.labels]
    for word in long[:3]:
        start, end = next(text for text in texts if text.startswith(word[:4])).split("…")
        assert word.startswith(start)
        assert word.endswith(end)
        assert len(start) == len(end) >= 4
        assert f"{word} -> " in in_words(np.eye(4)[None], long, long)
    assert min(label.size for label in picture.labels) > 6.4


@pytest.mark.parametrize("num_heads", [1, 3, 5, 8, 12])
@pytest.mark.parametrize(("seq_q", "seq_k"), [(1, 7), (7, 1), (5, 12), (12, 5)])
def test_words_stand_beside_their_row_and_under_their_column(
    num_heads: int, seq_q: int, seq_k: int
) -> None:
    picture = example(num_heads, seq_q, seq_k)
    words_beside = [label for label in picture.labels if label.text.startswith("q")]
    words_under = [label for label in picture.labels if label.text.startswith("k")]
    maps = heads_of(picture)
    first = [m for m in maps if m.x == min(other.x for other in maps)]
    for m, labels in zip(first, chunks(words_beside, seq_q), strict=True):
        for row, label in enumerate(labels):
            top, bottom = (m.y + (row + part) * m.height / seq_q for part in (0, 1))
            assert label.text == f"q{row}"
            assert (label.anchor, label.upright, label.x < m.x) == ("end", False, True)
            assert top < label.y - label.size * 0.34 < bottom
    lowest = {m.x: m for m in maps}
    by_column = sorted(chunks(words_under, seq_k), key=lambda labels: labels[0].x)
    for m, labels in zip(lowest.values(), by_column, strict=True):
        for column, label in enumerate(labels):
            left, right = (m.x + (column + part) * m.width / seq_k for part in (0, 1))
            assert label.text == f"k{column}"
            assert (label.anchor, label.upright, label.y > m.y + m.height) == ("end", True, True)
            assert left < label.x - label.size * 0.34 < right


def chunks(labels: Sequence[Label], size: int) -> list[Sequence[Label]]:
    return [labels[start : start + size] for start in range(0, len(labels), size)]


def test_titles_and_header_are_printed_as_given() -> None:
    header = [("qh", "(1, 3, 5, 4)", "strides (60, 4, 12, 1)"), ("out", "(1, 5, 12)", "strides")]
    picture = heatmap_picture(
        np.zeros((2, 3, 5)), "abc", "abcde", titles=["right", "wrong"], header=header, height=300
    )
    plain = heatmap_picture(np.zeros((2, 3, 5)), "abc", "abcde", height=300)
    texts = [label.text for label in picture.labels]
    assert texts[:6] == [*header[0], *header[1]]
    assert [label.text for label in picture.labels if label.bold] == ["qh", "out", "right", "wrong"]
    assert picture.height - plain.height == 2 * LINE
    below = max(label.y for label in picture.labels[:6])
    assert below < min(label.y - label.size for label in picture.labels[6:-2])
    assert not cut_off(picture)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((3, 5), "weights must be (num_heads, seq_q, seq_k), each at least 1, but is (3, 5). Of"),
        ((1, 2, 3, 5), "weights must be (num_heads, seq_q, seq_k), each at least 1, but is (1, 2,"),
        (
            (0, 3, 5),
            "weights must be (num_heads, seq_q, seq_k), each at least 1, but is (0, 3, 5).",
        ),
        (
            (2, 0, 5),
            "weights must be (num_heads, seq_q, seq_k), each at least 1, but is (2, 0, 5).",
        ),
        ((2, 5, 3), "queries must be 5 words, one a row of weights, but are 3."),
        ((2, 3, 4), "keys must be 4 words, one a column of weights, but are 5."),
    ],
)
def test_weights_of_another_size_are_refused(shape: tuple[int, ...], message: str) -> None:
    for draw in (heatmap_picture, in_words):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
            draw(np.zeros(shape), "abc", "abcde")


# ---- what may be given


NAN, INF = float("nan"), float("inf")
WEIGHTS = torch.rand(2, 3, 4, generator=torch.manual_seed(0)).softmax(dim=-1)


@pytest.mark.parametrize(
    "weights",
    [
        WEIGHTS.half(),
        WEIGHTS.bfloat16(),
        WEIGHTS.double().requires_grad_(),
        WEIGHTS.transpose(0, 2).contiguous().transpose(0, 2),
        WEIGHTS.numpy(),
        WEIGHTS.numpy().astype(np.float16),
        WEIGHTS.tolist(),
        list(WEIGHTS),
        WEIGHTS * 1.009,
        WEIGHTS - WEIGHTS.min() - 1e-7,
    ],
    ids=[
        "half",
        "bfloat16",
        "gradient",
        "strided",
        "array",
        "half array",
        "lists",
        "tensors",
        "above",
        "below",
    ],
)
def test_weights_of_any_kind_are_taken_with_what_rounding_did_to_them(weights: Any) -> None:
    found, *_ = checked(weights)
    in_a_list = isinstance(weights, list) and isinstance(weights[0], Tensor)
    numbers = torch.stack(weights) if in_a_list else torch.as_tensor(weights)
    assert np.abs(found - numbers.detach().float().clamp(0, 1).numpy()).max() < 1e-6


def test_booleans_stay_and_whole_numbers_become_weights() -> None:
    assert checked(WEIGHTS > 0.2)[0].dtype == bool
    assert checked(torch.eye(3, dtype=torch.long)[None])[0].tolist() == np.eye(3)[None].tolist()
    one = torch.full((1, 2, 3), 1.0078125, dtype=torch.bfloat16)
    assert one.max() > 1
    assert checked(one)[0].max() == 1


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            1.5,
            "from 0.1 to 1.5. They look like scores: mask them, and take scores.softmax(dim=-1). ",
        ),
        (
            -0.5,
            "from -0.5 to 0.1. They look like scores: mask them, and take scores.softmax(dim=-1).",
        ),
        (INF, "from 0.1 to inf. They look like scores"),
        (-INF, "from -inf to 0.1. They look like scores"),
    ],
)
@pytest.mark.parametrize("hole", [0.1, NAN])
def test_scores_are_no_weights(value: float, message: str, hole: float) -> None:
    weights = np.full((2, 3, 4), 0.1)
    weights[0, 1, 2], weights[1, 2] = value, hole
    for draw in (heatmap_picture, in_words):
        with pytest.raises(
            ValueError, match="^" + re.escape(f"weights must be from 0 to 1, but are {message}")
        ):
            draw(weights, "abc", "wxyz")


@pytest.mark.parametrize(
    "weights", [None, "abc", WEIGHTS + 0j, WEIGHTS.to("meta"), WEIGHTS.to_sparse(), [[[1], [1, 0]]]]
)
def test_what_is_no_array_of_numbers_is_refused(weights: object) -> None:
    with pytest.raises(TypeError, match=r"^weights must be a tensor, an array or lists of real"):
        checked(weights)


@pytest.mark.parametrize(
    ("tokens", "seen"),
    [
        ([101, 7, 102], ["101", "7", "102"]),
        (np.array([101, 7, 102]), ["101", "7", "102"]),
        (torch.tensor([101, 7, 102]), ["101", "7", "102"]),
        ([torch.tensor(101), np.int64(7), 102], ["101", "7", "102"]),
        (("the", "cat", "."), ["the", "cat", "."]),
        (np.array(["the", "cat", "."]), ["the", "cat", "."]),
        (range(3), ["0", "1", "2"]),
        (None, ["0", "1", "2"]),
        (["", " ", "\n"], ["''", "' '", r"'\n'"]),
        ([" the", "a\tb", "\ud800"], [" the", r"'a\tb'", r"'\ud800'"]),
        (["Ġthe", "▁keys", "👩\u200d🚀"], ["Ġthe", "▁keys", "👩\u200d🚀"]),
    ],
)
def test_tokens_of_any_kind_become_words_that_are_seen(tokens: Any, seen: list[str]) -> None:
    assert words("tokens", tokens, 3, "a key") == seen
    assert words("tokens", seen, 3, "a key") == seen, "checked twice is the same"


@pytest.mark.parametrize(
    ("tokens", "error", "message"),
    [
        ({"a", "b", "c"}, TypeError, "tokens must be a list of 3 words, but is {"),
        (iter("abc"), TypeError, "tokens must be a list of 3 words, but is <str_"),
        (3, TypeError, "tokens must be a list of 3 words, but is 3."),
        ("ab", ValueError, "tokens must be 3 words, one a key, but are 2."),
        (
            torch.arange(3)[None],
            ValueError,
            "tokens must be 3 words, one a key, but are 1: choose to",
        ),
        ([np.arange(3)] * 3, ValueError, "tokens must be 3 words, one a key, but are 3: choose to"),
    ],
)
def test_tokens_without_order_or_of_another_number_are_refused(
    tokens: object, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        words("tokens", tokens, 3, "a key")


def test_short_and_long_titles_are_refused() -> None:
    for titles in (["one"], ["one", "two", "three"]):
        with pytest.raises(ValueError, match=r"^titles must be 2 words, one a head, but are \d\.$"):
            heatmap_picture(WEIGHTS, "abc", "wxyz", titles)


# ---- NaN, equal tokens, many numbers


def test_nan_is_kept_and_named_and_has_a_legend() -> None:
    weights = WEIGHTS.clone()
    weights[0, 1] = weights[1, 0, 2] = NAN
    text = in_words(weights, "abc", "wxyz").splitlines()
    assert text[2] == "head 0: query b has no weights: NaN"
    assert text[-1] == "head 1: query a has weights that are NaN"
    assert len(text) == 2 + 1 + 3 + 1
    assert in_words(weights, "abc", "wxyz", most=0).splitlines()[1] == text[2]
    picture = heatmap_picture(weights, "abc", "wxyz")
    for m, weight in zip(picture.maps, weights, strict=False):
        assert np.array_equal(m.weights, weight, equal_nan=True)
    assert np.isnan(picture.maps[-2].weights).all()
    assert "NaN" in [label.text for label in picture.labels]
    without = heatmap_picture(WEIGHTS, "abc", "wxyz")
    assert "NaN" not in [label.text for label in without.labels]
    assert len(picture.maps) == len(without.maps) + 1
    boxes = [box for box in ink(picture) if box[0] in ("NaN", "head 1")]
    assert boxes[0][3] > boxes[1][4] or boxes[1][3] > boxes[0][4], "the legend is above the titles"


def test_many_rows_of_nan_take_one_line_a_head() -> None:
    weights = np.full((2, 30, 4), NAN)
    weights[0, 0] = 0.25
    lines = in_words(weights, most=0).splitlines()
    assert lines[0] == "head 0: 0 -> 1 0.25"
    assert lines[1].endswith("8, 21 more have no weights: NaN")
    assert len(lines) == 3


def test_no_link_is_made_up_where_there_are_no_weights() -> None:
    weights = np.full((3, 2, 3), 0.1)
    weights[0, 0], weights[1] = NAN, NAN
    weights[2, 1, 2] = NAN
    first, second, third = strongest_links(weights, "ab", "xyz")
    assert (first, second, third) == (("b", "y", 0.1), None, ("a", "y", 0.1))


def test_equal_tokens_have_their_position_in_every_text() -> None:
    tokens = ["the", "keys", "the"]
    weights = np.array([[[0, 0.25, 0.75], [0, 1, 0], [0.5, 0.5, 0]]])
    assert told_apart(tokens) == ["the (0)", "keys", "the (2)"]
    assert strongest_links(weights[:, :1], ["a"], tokens) == [("a", "the (2)", 0.75)]
    assert in_words(weights, tokens, tokens).splitlines() == [
        "head 0: the (0) -> the (0) 0.00, keys 0.25, the (2) 0.75",
        "head 0: keys -> the (0) 0.00, keys 1.00, the (2) 0.00",
        "head 0: the (2) -> the (0) 0.50, keys 0.50, the (2) 0.00",
    ]
    weights[0, 2] = NAN
    assert "query the (2) has no weights" in in_words(weights, tokens, tokens, most=0)
    assert in_words(weights, "abc", tokens, most=0).startswith("head 0: b -> keys 1.00")
    labels = [label.text for label in heatmap_picture(weights, tokens, tokens).labels]
    assert labels.count("the") == 4, "in the picture they have their place"


def test_of_many_rows_those_are_named_that_can_be_read() -> None:
    picture = example(12, 128, 100)
    assert not cut_off(picture)
    rows = [label for label in picture.labels if label.text.startswith("q")]
    assert min(label.size for label in picture.labels) > 6
    for above, below in itertools.pairwise(rows[: len(rows) // 3]):
        assert below.y - above.y >= above.size * 0.9
    m = picture.maps[0]
    for label in rows[:5]:
        row = int((label.y - label.size * 0.34 - m.y) / (m.height / 128))
        assert label.text == f"q{row}"


@pytest.mark.parametrize(("seq_q", "seq_k"), [(5, 7), (7, 5), (1, 1), (4, 1), (1, 2)])
def test_strongest_links_are_what_a_loop_finds(seq_q: int, seq_k: int) -> None:
    weights = RNG.random((12, seq_q, seq_k))
    found = strongest_links(weights, numbered("q", seq_q), numbered("k", seq_k))
    for weight, link in zip(weights.tolist(), found, strict=True):
        assert link
        query, key, value = link
        best = max(max(row[1:] or row) for row in weight)
        assert value == round(best, 2)
        assert round(weight[int(query[1:])][int(key[1:])], 2) == value
        assert key != "k0" or seq_k == 1


def test_equal_links_give_the_first_so_that_texts_do_not_depend_on_the_last_bits() -> None:
    weights = np.full((1, 3, 4), 0.25)
    weights[0, 2, 3] += 1e-7
    assert strongest_links(weights, "abc", "wxyz") == [("a", "x", 0.25)]
