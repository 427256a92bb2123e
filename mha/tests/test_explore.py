"""What the sliders show: pictures and numbers as torch computes them, and never out of step."""

import base64
import itertools
import math
import re
import time
import tracemalloc
import xml.etree.ElementTree as ET
from collections.abc import Callable
from functools import cache
from typing import Any

import ipywidgets as widgets
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from matplotlib import pyplot
from matplotlib.figure import Figure as MatplotlibFigure
from torch import Tensor

from mha import explore, split_heads, trace
from mha.examples import recorded_heads
from mha.explore import Explorer, Figure, Frame, HeadExplorer, SplitExplorer

VIEW = "application/vnd.jupyter.widget-view+json"
Q, K, V = (torch.randn(2, seq, 12, generator=torch.manual_seed(0)) for seq in (5, 7, 7))
MASK = torch.ones(2, 5, 7, dtype=torch.bool).tril(1)
MASK[0, 3] = False
RECORDING = recorded_heads(layer=1, sentence=1)


def stride_diagram(x: Tensor, call: Callable[[Tensor], Tensor]) -> Figure:
    with trace() as steps:
        call(x)
    return explore.StrideDiagram(x, steps, num_heads=3)


def refuses(x: Tensor, num_heads: int) -> Tensor:
    return x.mT.view(x.numel())


EXPLORERS: dict[str, Callable[[], Explorer]] = {
    "SplitExplorer": SplitExplorer,
    "SplitExplorer of a split that raises": lambda: SplitExplorer(num_heads=2, split=refuses),
    "HeadExplorer": lambda: HeadExplorer(Q, K, V, MASK, num_heads=3),
    "HeadExplorer of a recording": lambda: HeadExplorer.of(RECORDING),
    "ScaleExplorer": explore.ScaleExplorer,
    "MaskExplorer": explore.MaskExplorer,
    "MergeExplorer": explore.MergeExplorer,
}
FIGURES: dict[str, Callable[[], Figure]] = {
    "StrideDiagram": lambda: stride_diagram(torch.arange(24).view(1, 4, 6), lambda x: x.mT),
    "Heatmap": lambda: explore.Heatmap(torch.eye(3)[None], "abc", "xyz", ["shape of <I>"]),
    "DependencyMaps": lambda: explore.DependencyMaps({"a": torch.ones(3, 5).tril() > 0}),
    **EXPLORERS,
}


@cache
def figure(name: str) -> Figure:
    return FIGURES[name]()


def walk(explorer: Explorer) -> dict[tuple[object, ...], Frame]:
    """Every frame by its place, reached as a reader does, by moving the sliders."""
    found = {}
    sliders = explorer.sliders.values()
    for place in itertools.product(*(range(len(slider.options)) for slider in sliders)):
        for slider, index in zip(sliders, place, strict=True):
            slider.index = index
        found[tuple(slider.value for slider in sliders)] = explorer.frame
    return found


def by_heads(explorer: Explorer) -> dict[int, Frame]:
    return {int(str(n)): frame for (n,), frame in walk(explorer).items()}


def follow_links(explorer: Explorer) -> None:
    """Do what the browser does when a slider moves."""
    for link in explorer._links:
        (slider, index), (stack, selected) = link.source, link.target
        setattr(stack, selected, getattr(slider, index))


def on_screen(explorer: Explorer) -> str:
    """The picture at the selected place of the stacks."""
    (shown,) = (child for child in explorer.children if isinstance(child, widgets.Stack))
    while isinstance(shown, widgets.Stack):
        shown = shown.children[shown.selected_index]
    return str(shown.value)


# ---- what a notebook stores


@pytest.mark.parametrize("name", FIGURES)
def test_the_output_is_a_view_a_still_and_its_numbers_and_never_html(name: str) -> None:
    bundle = figure(name)._repr_mimebundle_()
    assert set(bundle) == {VIEW, "image/png", "text/plain"}
    assert bundle[VIEW]["model_id"] == figure(name).model_id
    assert bundle["text/plain"] == figure(name).frame.text
    assert base64.b64decode(bundle["image/png"]) == figure(name).frame.picture.png()
    assert len(bundle["image/png"]) < 40_000
    assert pyplot.get_fignums() == []


@pytest.mark.parametrize("name", FIGURES)
def test_two_builds_give_the_same_text_and_pictures(name: str) -> None:
    one, two = figure(name).frame, FIGURES[name]().frame
    assert (one.text, one.picture.svg()) == (two.text, two.picture.svg())


@pytest.mark.parametrize("name", FIGURES)
def test_every_picture_is_small_and_says_in_words_what_it_shows(name: str) -> None:
    outer = FIGURES[name]()
    frames = list(walk(outer).values()) if isinstance(outer, Explorer) else [outer.frame]
    for frame in frames:
        svg = ET.fromstring(frame.picture.svg())[0]
        assert svg.get("role") == "img"
        assert re.search(r"shape|strides|depends|Error|variance", svg.get("aria-label", ""))
    sizes = [len(frame.picture.svg()) for frame in frames]
    assert max(sizes) < 28_000
    assert sum(sizes) < (90_000 if len(frames) < 10 else 160_000)


# ---- sliders


@pytest.mark.parametrize("name", EXPLORERS)
def test_picture_and_text_follow_the_sliders_without_a_kernel(name: str) -> None:
    explorer = EXPLORERS[name]()
    assert on_screen(explorer) == explorer.frame.picture.svg(), "before anything moves"
    frames = walk(explorer)
    assert len({frame.picture.svg() for frame in frames.values()}) == len(frames)
    assert len({(f.picture.width, f.picture.height) for f in frames.values()}) == 1
    for place, frame in frames.items():
        at = dict(zip(explorer.sliders, place, strict=True))
        explorer.move(**at)
        follow_links(explorer)
        assert explorer.frame is frame
        assert on_screen(explorer) == frame.picture.svg()
        for slider, value in at.items():
            assert re.search(rf"^.*\b{slider}( = |  ){re.escape(str(value))}\b", frame.text)
    assert explorer._repr_mimebundle_()["text/plain"] == frame.text


def test_the_links_are_the_browser_s_own() -> None:
    for link in SplitExplorer()._links:
        assert isinstance(link, widgets.widgets.widget_link.Link)


def test_num_heads_reads_and_moves_the_slider() -> None:
    explorer = SplitExplorer()
    assert explorer.num_heads == 3
    explorer.num_heads = 6
    assert explorer.sliders["num_heads"].value == 6
    with pytest.raises(ValueError, match=r"^num_heads must be one of \[1, 2, 3, 6\], but is 4\.$"):
        explorer.num_heads = 4
    assert explorer.num_heads == 6
    masks = explore.MaskExplorer()
    with pytest.raises(ValueError, match="seq_k must be one of"):
        masks.move(seq_q=1, seq_k=9)
    assert masks.sliders["seq_q"].value == 5, "a refused move moves nothing"


def test_divisors() -> None:
    for width in range(1, 50):
        assert explore.divisors(width, 50) == [n for n in range(1, 51) if width / n == width // n]
    assert explore.divisors(384) == [1, 2, 3, 4, 6, 8, 12]


# ---- splits


def test_a_split_prints_and_draws_what_torch_says() -> None:
    x = torch.arange(24).view(1, 4, 6)
    for n, frame in by_heads(SplitExplorer()).items():
        qh = x.view(1, 4, n, 6 // n).transpose(1, 2)
        row = re.split(r"  +", frame.text.splitlines()[-1])
        assert row[:3] == ["transpose(1, 2)", str(tuple(qh.shape)), str(qh.stride())]
        last = frame.picture.cells[-24:]
        assert [cell.element for cell in last] == qh.flatten().tolist()
        assert [cell.head for cell in last] == [h for h in range(n) for _ in range(24 // n)]


def test_a_split_that_raises_shows_its_error_in_its_frames_alone() -> None:
    for n, frame in by_heads(SplitExplorer(split=refuses)).items():
        assert frame.text.startswith(f"num_heads = {n}: RuntimeError: view size is not compatible")
        said = " ".join(label.text for label in frame.picture.labels)
        assert said == frame.picture.alt == frame.text
    fails_at_2 = SplitExplorer(split=lambda x, n: split_heads(x, n) if n != 2 else x[9])
    errors = [n for n, frame in by_heads(fails_at_2).items() if "Error: " in frame.text]
    assert errors == [2]
    computes = SplitExplorer(split=lambda x, n: split_heads(x, n) * 1).frame
    assert computes.text.startswith("num_heads = 3: ValueError: mul(1): it makes new numbers")


def test_colours_follow_the_features_also_of_a_transposed_tensor() -> None:
    x = torch.arange(24).view(1, 6, 4).transpose(1, 2)
    for cell in stride_diagram(x, lambda x: x.view(1, 4, 3, 2)).frame.picture.cells:
        feature = (x == cell.element).nonzero()[0, 2].item()
        assert cell.head == feature // 2


def test_a_tensor_that_does_not_fill_its_storage_is_refused() -> None:
    for x in (torch.arange(24).view(2, 2, 6)[1:], torch.arange(3).view(1, 1, 3).expand(1, 4, 3)):
        with pytest.raises(ValueError, match=r"^x must fill its storage from the start"):
            stride_diagram(x, lambda x: x.transpose(1, 2))
        assert stride_diagram(x.clone(), lambda x: x.transpose(1, 2)).frame.text


# ---- heads


@pytest.mark.parametrize("mask", [None, MASK], ids=["open", "masked"])
def test_maps_and_text_are_what_a_softmax_per_head_gives(mask: Tensor | None) -> None:
    for n, frame in by_heads(HeadExplorer(Q, K, V, mask)).items():
        lines = frame.text.splitlines()
        assert len(lines) == 6 + n
        for head, m in enumerate(frame.picture.maps[:-1]):
            part = slice(head * 12 // n, (head + 1) * 12 // n)
            scores = Q[0, :, part] @ K[0, :, part].T / math.sqrt(12 // n)
            if mask is not None:
                scores = scores.masked_fill(~mask[0], -math.inf)
            weights = F.softmax(scores, dim=-1).nan_to_num()
            assert torch.allclose(torch.tensor(m.weights), weights, atol=1e-6)
            query, key, link = re.findall(rf"head {head}: (\d) -> (\d) (\S+)", lines[6 + head])[0]
            assert float(link) == pytest.approx(weights[:, 1:].max().item(), abs=0.0051)
            assert float(link) == pytest.approx(weights[int(query), int(key)].item(), abs=0.0051)
        qh = Q.view(2, 5, n, 12 // n).transpose(1, 2)
        assert lines[1] == f"qh  {tuple(qh.shape)}  strides {qh.stride()}"
        assert lines[2].startswith(f"attn_weights  {(2, n, 5, 7)}  strides")
        assert lines[4] == "out  (2, 5, 12)  strides (60, 12, 1)"
        printed = [label.text for label in frame.picture.labels[:12]]
        assert ["  ".join(printed[i : i + 3]) for i in (0, 3, 6, 9)] == lines[1:5]
        assert len(frame.picture.maps) == n + 1


def test_a_recording_starts_where_it_was_trained_and_names_its_tokens() -> None:
    explorer = figure("HeadExplorer of a recording")
    assert isinstance(explorer, Explorer)
    assert explorer.num_heads == 12
    assert [n for _, n in explorer.sliders["num_heads"].options] == [1, 2, 3, 4, 6, 8, 12]
    assert "head 3: them -> letters 0.75" in explorer.frame.text
    assert set(RECORDING.tokens) <= {label.text for label in explorer.frame.picture.labels}
    assert HeadExplorer.of(RECORDING, num_heads=2, options=[1, 2]).num_heads == 2


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_inputs_may_need_gradients_and_stay_as_they_are(dtype: torch.dtype) -> None:
    q = Q.to(dtype).requires_grad_()
    before = q.detach().clone()
    assert "qh  (2, 3, 5, 4)" in HeadExplorer(q, q, q, num_heads=3).frame.text
    assert torch.equal(q, before)


@pytest.mark.parametrize(
    ("d_model", "d_value", "options"),
    [(12, 12, [1, 2, 3, 4, 6, 12]), (12, 6, [1, 2, 3, 6]), (120, 120, [1, 2, 3, 4, 5, 6, 8, 10])],
)
def test_the_default_options_always_work(d_model: int, d_value: int, options: list[int]) -> None:
    q, v = torch.randn(1, 3, d_model), torch.randn(1, 3, d_value)
    assert list(by_heads(HeadExplorer(q, q, v))) == options


def test_the_number_of_heads_asked_for_is_among_the_options() -> None:
    x = torch.randn(1, 3, 1024)
    explorer = HeadExplorer(x, x, x, num_heads=16)
    assert explorer.num_heads == 16
    assert [n for _, n in explorer.sliders["num_heads"].options] == [1, 2, 4, 8, 16]
    x = torch.randn(1, 3, 1680)
    options = [n for _, n in HeadExplorer(x, x, x, num_heads=16).sliders["num_heads"].options]
    assert options == [1, 2, 3, 4, 5, 6, 7, 16], "still at most 8"


def test_without_num_heads_the_slider_starts_at_the_first_option() -> None:
    assert HeadExplorer(Q, K, V, options=[3, 2]).num_heads == 3
    assert HeadExplorer(Q, K, V).num_heads == 1
    assert HeadExplorer.of(RECORDING, options=[32]).num_heads == 32


def test_tokens_may_be_ids_and_equal_ones_are_told_apart() -> None:
    ids = torch.tensor([101, 7, 9, 7, 102])
    text = HeadExplorer(Q, Q, Q, tokens=ids).frame.text
    assert text == HeadExplorer(Q, Q, Q, tokens=ids.tolist()).frame.text
    for n, frame in by_heads(HeadExplorer(Q, Q, Q, tokens=ids)).items():
        for line in frame.text.splitlines()[-n:]:
            assert re.fullmatch(r"head \d+: (101|7 \([13]\)|9|102) -> (7 \([13]\)|9|102) \S+", line)


def test_a_query_of_nan_is_said_and_never_linked() -> None:
    q = Q.clone()
    q[0, 2] = math.nan
    for n, frame in by_heads(HeadExplorer(q, K, V)).items():
        lines = frame.text.splitlines()
        for head, m in enumerate(frame.picture.maps[:n]):
            assert np.isnan(m.weights).all(axis=-1).tolist() == [False, False, True, False, False]
            assert f"head {head}: query 2 has no weights: NaN" in lines
        assert not any(re.match(r"head \d+: 2 -> ", line) for line in lines)
        assert len(lines) == 6 + 2 * n


@pytest.mark.parametrize(
    "wrong", [Q.numpy(), Q.long(), Q.double(), None], ids=["array", "integers", "double", "None"]
)
def test_tensors_of_another_kind_are_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"^q, k, v must be tensors of one floating dtype, but are"):
        HeadExplorer(wrong, K, V)


# ---- scale, mask, merge, dependencies


def test_the_scale_divides_the_logarithms_of_the_weights_by_the_root_of_head_dim() -> None:
    for (head_dim,), frame in walk(explore.ScaleExplorer((1, 4, 16))).items():
        plain, scaled = (torch.tensor(m.weights).log() for m in frame.picture.maps[:2])
        plain, scaled = (x - x[:, :1] for x in (plain, scaled))
        assert torch.allclose(plain, scaled * math.sqrt(int(str(head_dim))), atol=1e-3)
        largest = [m.weights.max(axis=1).mean() for m in frame.picture.maps[:2]]
        assert re.findall(r"row (\S+)", frame.text) == [f"{weight:.2f}" for weight in largest]
        variance, after = map(float, re.findall(r"variance (\S+)", frame.text))
        assert variance == pytest.approx(after * int(str(head_dim)), abs=0.06 * int(str(head_dim)))


ALLOWED: dict[str, Callable[[int, int, int, int], bool]] = {
    "all may attend": lambda i, j, seq_q, seq_k: True,
    "causal, upper-left": lambda i, j, seq_q, seq_k: j <= i,
    "causal, lower-right": lambda i, j, seq_q, seq_k: seq_k - j >= seq_q - i,
    "padding": lambda i, j, seq_q, seq_k: j < seq_k - 2 or j == 0,
    "causal and padding": lambda i, j, seq_q, seq_k: (
        seq_k - j >= seq_q - i and (j < seq_k - 2 or j == 0)
    ),
}


def test_masked_weights_are_zero_exactly_where_a_loop_says_so() -> None:
    for (kind, *sizes), frame in walk(explore.MaskExplorer()).items():
        seq_q, seq_k = (int(str(size)) for size in sizes)
        mask, *heads = (m.weights for m in frame.picture.maps[:-1])
        assert len(heads) == 3
        for i, j in itertools.product(range(seq_q), range(seq_k)):
            allowed = ALLOWED[str(kind)](i, j, seq_q, seq_k)
            assert mask[i, j] == allowed
            assert all((weights[i, j] > 0) == allowed for weights in heads)
        for i, row in enumerate(mask):
            assert f"query {i} may attend to {row.nonzero()[0].tolist()}" in frame.text
            assert all(weights[i].sum() == pytest.approx(float(row.any())) for weights in heads)
        empty = [i for i, row in enumerate(mask) if not row.any()]
        assert f"rows of zeros: {empty}" in frame.text
        assert re.search(rf"expand  \(2, 3, {seq_q}, {seq_k}\)  strides \(\d+, 0, ", frame.text)


def test_a_merge_draws_what_torch_makes_or_the_reason_why_it_fails() -> None:
    out_h = torch.arange(24).view(1, 3, 4, 2)
    for (name,), frame in walk(explore.MergeExplorer()).items():
        try:
            merged = explore.MERGES[str(name)](out_h).flatten().tolist()
            assert [cell.element for cell in frame.picture.cells[-24:]] == merged
        except RuntimeError:
            reason = "view: axes 2 and 3 cannot merge: stride[2] is 8, but size[3]*stride[3] is 2*1"
            assert reason in frame.text
            assert reason in " ".join(label.text for label in frame.picture.labels)
            assert reason in frame.picture.alt


def test_dependency_maps_draw_and_say_the_same() -> None:
    maps = {"right": torch.ones(3, 5).tril().bool(), "wrong": torch.zeros(3, 5).bool()}
    maps["wrong"][1, 4] = True
    frame = explore.DependencyMaps(maps).frame
    for m, (name, found) in zip(frame.picture.maps, maps.items(), strict=False):
        assert m.weights.tolist() == found.tolist()
        assert name in [label.text for label in frame.picture.labels]
        for i, row in enumerate(found.tolist()):
            inputs = [j for j, depends in enumerate(row) if depends]
            assert f"{name}: output {i} depends on inputs {inputs}" in frame.text.splitlines()


def test_a_heatmap_says_every_weight() -> None:
    weights = torch.rand(2, 3, 4, generator=torch.manual_seed(1)).requires_grad_()
    frame = explore.Heatmap(weights, "abc", "wxyz").frame
    lines = frame.text.splitlines()
    for line, (head, i) in zip(lines, itertools.product(range(2), range(3)), strict=True):
        said = ", ".join(f"{'wxyz'[j]} {weights[head, i, j].item():.2f}" for j in range(4))
        assert line == f"head {head}: {'abc'[i]} -> {said}"
        assert frame.picture.maps[head].weights[i].tolist() == weights[head, i].tolist()


def test_a_large_heatmap_is_fast_and_small_and_says_the_strongest_links() -> None:
    weights = torch.randn(12, 128, 128, generator=torch.manual_seed(0)).softmax(dim=-1)
    tokens = [f"word{i % 90}" for i in range(128)]
    start = time.process_time()
    heatmap = explore.Heatmap(weights, tokens, tokens)
    assert len(heatmap._repr_mimebundle_()["image/png"]) < 200_000
    assert time.process_time() - start < 5
    assert len(heatmap.frame.picture.svg()) < 100_000
    head, *lines = heatmap.frame.text.splitlines()
    assert head == "196,608 weights; the strongest of each head past the first key"
    for i, line in enumerate(lines):
        query, key = divmod(int(weights[i, :, 1:].round(decimals=2).argmax()), 127)
        link = f"{query % 90}( \\({query}\\))? -> word{(key + 1) % 90}( \\({key + 1}\\))?"
        assert re.fullmatch(rf"head {i}: word{link} {weights[i, query, key + 1]:.2f}", line)
    assert len(lines) == 12
    assert heatmap.frame.picture.alt == heatmap.frame.text


def test_a_heatmap_keeps_every_number_of_one_head_of_32_tokens() -> None:
    weights = torch.rand(1, 33, 32).softmax(dim=-1)
    assert len(explore.Heatmap(weights[:, 1:]).frame.text.splitlines()) == 32
    assert len(explore.Heatmap(weights).frame.text.splitlines()) == 2


def test_large_dependency_maps_say_runs() -> None:
    causal = torch.ones(40, 40).tril().bool()
    causal[39, 5] = False
    lines = explore.DependencyMaps({"causal": causal}).frame.text.splitlines()
    assert lines[0] == "causal: output 0 depends on inputs [0]"
    assert lines[39] == "causal: output 39 depends on inputs [0 to 4, 6 to 39]"


def test_dependency_maps_without_names_or_booleans_are_refused() -> None:
    for wrong, message in ((torch.eye(3) > 0, "by name"), ({"a": torch.eye(3)}, "boolean")):
        with pytest.raises(TypeError, match=f"^maps must be .*{message}"):
            explore.DependencyMaps(wrong)  # type: ignore[arg-type]


def test_a_plot_keeps_its_pixels_and_says_its_numbers() -> None:
    def plot() -> Figure:
        figure = MatplotlibFigure(figsize=(3, 2))
        figure.add_subplot().plot([1, 2, 4])
        return explore.Plot(figure, 'rises from 1 to 4, "fast" & <steep>')

    bundle = plot()._repr_mimebundle_()
    assert set(bundle) == {VIEW, "image/png", "text/plain"}
    assert bundle["text/plain"] == 'rises from 1 to 4, "fast" & <steep>'
    assert bundle["image/png"] == plot()._repr_mimebundle_()["image/png"], "the same each time"
    image = ET.fromstring(plot().children[0].value.replace(">", "/>"))
    assert image.tag == "img"
    assert image.get("alt") == bundle["text/plain"]
    assert image.get("src") == f"data:image/png;base64,{bundle['image/png']}"
    assert pyplot.get_fignums() == []


# ---- limits


def of_size(seq: int, d_model: int = 4, **kwargs: object) -> Explorer:
    q = torch.zeros(1, seq, d_model)
    return HeadExplorer(q, q, q, **kwargs)  # type: ignore[arg-type]


def test_everything_works_at_its_limit() -> None:
    assert len(by_heads(of_size(3, 840, options=[1, 2, 3, 4, 5, 6, 7, 8]))) == 8
    assert len(of_size(32).frame.picture.maps[0].weights) == 32
    assert len(SplitExplorer(4, 6).frame.picture.cells) == 24 * 4
    assert stride_diagram(torch.arange(24).view(1, 4, 6), lambda x: x.mT).frame.picture.cells


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: of_size(3, options=[1, 3]), "num_heads=3 must divide q's width 4:"),
        (
            lambda: of_size(3, 840, options=[1, 2, 3, 4, 5, 6, 7, 8, 10]),
            "num_heads must have 1 to 8 options that differ, but has [1, 2, 3, 4, 5, 6, 7, 8, 10].",
        ),
        (
            lambda: of_size(3, options=[]),
            "num_heads must have 1 to 8 options that differ, but has [",
        ),
        (lambda: of_size(3, options=[1, 1]), "num_heads must have 1 to 8 options that differ, but"),
        (
            lambda: of_size(3, options=4),
            "num_heads must have 1 to 8 options that differ, but has 4.",
        ),
        (
            lambda: of_size(3, options=[1, 2], num_heads=4),
            "num_heads must be one of [1, 2], but is 4.",
        ),
        (lambda: of_size(3, num_heads=0), "num_heads=0 must divide q's width 4: [1, 2, 4]."),
        (lambda: of_size(0), "q must be (batch, seq, d_model), each at least 1, but is (1, 0, 4)."),
        (
            lambda: of_size(3, tokens=[[1, 2, 3]]),
            "tokens must be 3 words, one a key, but are 1: cho",
        ),
        (
            lambda: HeadExplorer(split_heads(Q, 3), K, V),
            "q must be (batch, seq, d_model), each at least 1, but is (2, 3, 5, 4). "
            "Merge the heads first: merge_heads(q).",
        ),
        (
            lambda: HeadExplorer(Q[0], K, V),
            "q must be (batch, seq, d_model), each at least 1, but is (5, 12). "
            "Of one sequence, give q[None].",
        ),
        (
            lambda: explore.ScaleExplorer([]),
            "head_dims must be whole numbers of at least 1, but is [",
        ),
        (
            lambda: explore.ScaleExplorer(seq=33),
            "seq must be whole numbers from 1 to 32, but is [33]",
        ),
        (
            lambda: explore.MaskExplorer((1, 6)),
            "seq_q must be whole numbers from 1 to 5, but is [1, 6",
        ),
        (
            lambda: explore.DependencyMaps({}),
            "maps must each be (seq_out, seq), of one shape, but are",
        ),
        (
            lambda: explore.DependencyMaps({"a": torch.eye(3) > 0, "b": torch.ones(3, 5) > 0}),
            "maps must each be (seq_out, seq), of one shape, but are {'a': (3, 3), 'b'",
        ),
        (lambda: of_size(33), "seq must be at most 32 tokens, but is 33, 33."),
        (lambda: HeadExplorer(Q, K.repeat(1, 5, 1), V), "seq must be at most 32 tokens, but is 5,"),
        (lambda: of_size(3, tokens="ab"), "tokens must be 3 words, one a key, but are 2."),
        (lambda: of_size(3, num_heads=3), "num_heads=3 must divide q's width 4: [1, 2, 4]."),
        (lambda: SplitExplorer(d_model=5), "num_heads must be one of [1, 5], but is 3."),
        (lambda: SplitExplorer(5, 5, 1), "seq*d_model must be at most 24, but is 5*5."),
        (
            lambda: stride_diagram(torch.arange(25).view(1, 5, 5), lambda x: x.mT),
            "x must have at most 24 elements, but has 25.",
        ),
    ],
)
def test_one_more_is_refused_with_the_name_of_the_argument(
    wrong: Callable[[], Figure], message: str
) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        wrong()


def test_a_thousand_moves_keep_no_memory_and_open_no_figure() -> None:
    explorer = HeadExplorer.of(recorded_heads(layer=1))
    options = [n for _, n in explorer.sliders["num_heads"].options]
    tracemalloc.start()
    try:
        for i in range(1000):
            explorer.num_heads = options[i % len(options)]
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert grown < 5_000_000
    assert pyplot.get_fignums() == []
