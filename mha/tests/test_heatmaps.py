"""One map a head, with every word beside its row or under its column, always in one frame."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from mha.explore import MaskExplorer, ScaleExplorer
from mha.heatmaps import HEIGHT, LINE, WIDTH, heatmap_picture, strongest_links
from mha.picture import Label, Map, Picture

RNG = np.random.default_rng(0)
SIZES = [(1, 1), (1, 32), (32, 1), (32, 32), (5, 12), (12, 3), (17, 17)]


def words(letter: str, count: int) -> list[str]:
    return [f"{letter}{i}" for i in range(count)]


def example(num_heads: int, seq_q: int, seq_k: int) -> Picture:
    weights = RNG.random((num_heads, seq_q, seq_k))
    return heatmap_picture(weights, words("q", seq_q), words("k", seq_k))


def heads_of(picture: Picture) -> list[Map]:
    """The maps without the last one, which is the scale."""
    return picture.maps[:-1]


def ink(picture: Picture) -> list[tuple[str, float, float, float, float]]:
    """Every text with its left, right, top and bottom."""
    figure = picture.figure()
    renderer = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]
    boxes = [(t.get_text(), t.get_window_extent(renderer)) for t in figure.axes[0].texts]
    return [(t, b.x0, b.x1, picture.height - b.y1, picture.height - b.y0) for t, b in boxes]


def cut_off(picture: Picture) -> list[str]:
    return [
        text
        for text, left, right, top, bottom in ink(picture)
        if left < 0 or right > picture.width or top < 0 or bottom > picture.height
    ]


def test_every_map_holds_the_weights_of_its_head() -> None:
    weights = RNG.random((3, 5, 7))
    picture = heatmap_picture(weights, words("q", 5), words("k", 7))
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
    long = ["[CLS]", "understanding", "internationalization", "a"]
    picture = heatmap_picture(np.zeros((2, 4, 4)), long, long)
    assert not cut_off(picture)
    sizes = {label.text: label.size for label in picture.labels if label.text in long}
    assert sizes["internationalization"] < sizes["understanding"] < sizes["a"] == 12


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


@pytest.mark.parametrize("shape", [(3, 5), (2, 5, 3), (2, 3, 4), (1, 2, 3, 5)])
def test_weights_of_another_size_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"^weights must be \(num_heads, 3 queries, 5 keys\), but"):
        heatmap_picture(np.zeros(shape), "abc", "abcde")


@pytest.mark.parametrize(("seq_q", "seq_k"), [(5, 7), (7, 5), (1, 1), (4, 1), (1, 2)])
def test_strongest_links_are_what_a_loop_finds(seq_q: int, seq_k: int) -> None:
    weights = RNG.random((12, seq_q, seq_k))
    found = strongest_links(weights, words("q", seq_q), words("k", seq_k))
    for weight, (query, key, value) in zip(weights.tolist(), found, strict=True):
        best = max(max(row[1:] or row) for row in weight)
        assert value == round(best, 2)
        assert round(weight[int(query[1:])][int(key[1:])], 2) == value
        assert key != "k0" or seq_k == 1


def test_equal_links_give_the_first_so_that_texts_do_not_depend_on_the_last_bits() -> None:
    weights = np.full((1, 3, 4), 0.25)
    weights[0, 2, 3] += 1e-7
    assert strongest_links(weights, "abc", "wxyz") == [("a", "x", 0.25)]
