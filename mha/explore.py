"""The sliders: pictures that are all computed beforehand, and switched in the browser."""

import base64
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import ipywidgets as widgets
import torch
from torch import Tensor

from mha.attention import attention_weights, multi_head_attention, split_heads
from mha.diagrams import panels_of, stride_picture
from mha.examples import RecordedHeads
from mha.heatmaps import heatmap_picture, strongest_links
from mha.layout import Layout
from mha.picture import Label, Picture
from mha.trace import Steps, trace

MOST_FRAMES, MOST_TOKENS, MOST_ELEMENTS = 8, 32, 24

# A stored figure works without a kernel, so it needs no mark that says it is disconnected.
QUIET = (
    "<style>.mha-figure::before, .mha-figure .jupyter-widgets-disconnected::before"
    "{content: none !important}</style>"
)


class Frame(NamedTuple):
    """What there is to see at one position of a slider: as a picture, and as text."""

    picture: Picture
    text: str


class Figure(widgets.VBox):
    """A picture in a notebook: alive in JupyterLab, a still PNG and its numbers elsewhere."""

    def __init__(self, frame: Frame, children: Sequence[widgets.Widget] | None = None) -> None:
        self._frame = frame
        super().__init__([*(children or [_html(frame)]), widgets.HTML(QUIET)])
        self.add_class("mha-figure")

    @property
    def frame(self) -> Frame:
        """What is on screen now."""
        return self._frame

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        bundle: dict[str, Any] = super()._repr_mimebundle_(**kwargs)
        still = base64.b64encode(self.frame.picture.png()).decode()
        return {**bundle, "image/png": still, "text/plain": self.frame.text}


class Explorer(Figure):
    """A slider over `num_heads`, with one frame for each of its positions.

    The frames live in the browser and a link there switches them, so that the slider works
    without a kernel; everything that depends on it is inside the frame. `num_heads` reads and
    moves the slider.
    """

    def __init__(self, frames: dict[int, Frame], num_heads: int) -> None:
        if not 0 < len(frames) <= MOST_FRAMES:
            raise ValueError(
                f"options must be 1 to {MOST_FRAMES} numbers of heads, but are {list(frames)}."
            )
        if num_heads not in frames:
            raise ValueError(f"num_heads must be one of {list(frames)}, but is {num_heads}.")
        width = max(frame.picture.width for frame in frames.values())
        height = max(frame.picture.height for frame in frames.values())
        self._frames = {
            n: frame._replace(picture=replace(frame.picture, width=width, height=height))
            for n, frame in frames.items()
        }
        self.slider = widgets.SelectionSlider(
            options=list(frames), value=num_heads, description="num_heads"
        )
        stack = widgets.Stack(
            [_html(frame) for frame in self._frames.values()],
            selected_index=self.slider.index,
            layout={"width": "100%"},
        )
        self._link = widgets.jslink((self.slider, "index"), (stack, "selected_index"))
        super().__init__(self._frames[num_heads], [self.slider, stack])

    @property
    def num_heads(self) -> int:
        """Where the slider stands."""
        return int(self.slider.value)

    @num_heads.setter
    def num_heads(self, value: int) -> None:
        if value not in self._frames:
            raise ValueError(f"num_heads must be one of {list(self._frames)}, but is {value}.")
        self.slider.value = value

    @property
    def frame(self) -> Frame:
        """What is on screen now."""
        return self._frames[self.num_heads]


def _html(frame: Frame) -> widgets.HTML:
    return widgets.HTML(frame.picture.svg(), layout={"width": "100%"})


def divisors(width: int, most: int = 12) -> list[int]:
    """The numbers of heads up to `most` that split a width evenly.

    >>> divisors(384)
    [1, 2, 3, 4, 6, 8, 12]
    """
    return [n for n in range(1, min(width, most) + 1) if width % n == 0]


class StrideDiagram(Figure):
    """What traced steps do to the memory of `x`, a tensor of at most 24 elements.

    Args:
        x: the tensor that the first step starts from.
        steps: what `trace` recorded; calls that view or copy, one after the other.
        num_heads: colours the elements by the head that they belong to.
        axes: names for the axes of `x`.
    """

    def __init__(
        self,
        x: Tensor,
        steps: Steps,
        num_heads: int = 1,
        axes: Sequence[str] = ("batch", "seq", "d_model"),
    ) -> None:
        super().__init__(Frame(_diagram(x, steps, num_heads, axes), repr(steps)))


class DependencyMaps(Figure):
    """Which output token depends on which input token, for several functions side by side.

    Args:
        maps: boolean (seq_out, seq) by name, as `dependency_map` returns them.
    """

    def __init__(self, maps: dict[str, Tensor]) -> None:
        found = torch.stack(list(maps.values()))
        outputs, inputs = (list(map(str, range(size))) for size in found.shape[1:])
        lines = [
            f"{name}: output {i} depends on inputs {row.nonzero().flatten().tolist()}"
            for name, rows in maps.items()
            for i, row in enumerate(rows)
        ]
        text = "\n".join(lines)
        picture = heatmap_picture(
            found.numpy(), outputs, inputs, titles=list(maps), height=270, alt=text
        )
        super().__init__(Frame(picture, text))


class SplitExplorer(Explorer):
    """How a split walks through memory, for every number of heads that divides d_model.

    Args:
        seq: the number of tokens.
        d_model: the width; seq * d_model is at most 24.
        num_heads: where the slider starts.
        split: any `(x, num_heads)` that views or copies; an error it raises shows in its frame.
    """

    def __init__(
        self,
        seq: int = 4,
        d_model: int = 6,
        num_heads: int = 3,
        split: Callable[[Tensor, int], Tensor] = split_heads,
    ) -> None:
        x = torch.arange(seq * d_model).view(1, seq, d_model)
        frames = {n: _split_frame(x, n, split) for n in divisors(d_model)}
        super().__init__(frames, num_heads)


class HeadExplorer(Explorer):
    """The attention weights of every head, as `num_heads` moves.

    Args:
        q: projected queries, (batch, seq_q, d_model); the first of the batch is shown.
        k: projected keys, (batch, seq_k, d_model).
        v: projected values, (batch, seq_k, d_value).
        mask: boolean (batch, seq_q, seq_k), True = may attend.
        tokens: the seq_k words of the keys, and of the queries if they are as many.
        num_heads: where the slider starts.
        options: the numbers of heads to choose from; by default the divisors of d_model up to 12.
    """

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None = None,
        *,
        tokens: Sequence[str] | None = None,
        num_heads: int = 1,
        options: Sequence[int] | None = None,
    ) -> None:
        seq_q, seq_k = q.shape[1], k.shape[1]
        if max(seq_q, seq_k) > MOST_TOKENS:
            raise ValueError(f"seq must be at most {MOST_TOKENS} tokens, but is {seq_q}, {seq_k}.")
        if tokens is not None and len(tokens) != seq_k:
            raise ValueError(f"tokens must be {seq_k} words, one a key, but are {len(tokens)}.")
        keys = list(tokens or map(str, range(seq_k)))
        queries = keys if seq_q == seq_k else list(map(str, range(seq_q)))
        options = divisors(q.shape[2]) if options is None else options
        frames = {n: _head_frame(q, k, v, n, mask, queries, keys) for n in options}
        super().__init__(frames, num_heads)

    @classmethod
    def of(cls, heads: RecordedHeads, **kwargs: Any) -> "HeadExplorer":
        """Explore a recorded example; the slider starts at the number it was trained with."""
        kwargs = {"tokens": heads.tokens, "num_heads": heads.num_heads, **kwargs}
        return cls(heads.q, heads.k, heads.v, **kwargs)


def _diagram(x: Tensor, steps: Steps, num_heads: int, axes: Sequence[str]) -> Picture:
    if x.numel() > MOST_ELEMENTS:
        raise ValueError(f"x must have at most {MOST_ELEMENTS} elements, but has {x.numel()}.")
    head_dim = x.shape[-1] // num_heads
    heads = [element % x.shape[-1] // head_dim for element in range(x.numel())]
    return stride_picture(panels_of("x", Layout.of(x), axes, steps), heads)


def _split_frame(x: Tensor, num_heads: int, split: Callable[[Tensor, int], Tensor]) -> Frame:
    sizes = {"seq": x.shape[1], "num_heads": num_heads, "head_dim": x.shape[2] // num_heads}
    try:
        with trace(**sizes) as steps:
            split(x, num_heads)
        picture = _diagram(x, steps, num_heads, ("1", "seq", "d_model"))
    except Exception as error:
        text = f"num_heads = {num_heads}: {type(error).__name__}: {error}"
        return Frame(Picture(760, 40, text, labels=[Label(8, 24, text)]), text)
    return Frame(picture, f"num_heads = {num_heads}\n{steps}")


def _head_frame(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    num_heads: int,
    mask: Tensor | None,
    queries: Sequence[str],
    keys: Sequence[str],
) -> Frame:
    seen: dict[str, Tensor] = {}

    def attend(qh: Tensor, kh: Tensor, vh: Tensor, mask: Tensor | None) -> Tensor:
        attn_weights = attention_weights(qh, kh, mask)
        out_h = attn_weights @ vh
        seen.update(qh=qh, attn_weights=attn_weights, out_h=out_h)
        return out_h

    seen["out"] = multi_head_attention(q, k, v, num_heads, mask, attend=attend)
    rows = [
        (name, str(tuple(seen[name].shape)), f"strides {seen[name].stride()}")
        for name in ("qh", "attn_weights", "out_h", "out")
    ]
    weights = seen["attn_weights"][0].detach().float().numpy()
    links = [
        f"head {head}: {query} -> {key} {weight:.2f}"
        for head, (query, key, weight) in enumerate(strongest_links(weights, queries, keys))
    ]
    text = "\n".join(
        [
            f"num_heads = {num_heads}",
            *("  ".join(row) for row in rows),
            "strongest link past the first key",
            *links,
        ]
    )
    return Frame(heatmap_picture(weights, queries, keys, header=rows, alt=text), text)
