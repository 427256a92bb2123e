"""The sliders: pictures that are all computed beforehand, and switched in the browser."""

import base64
import contextlib
import itertools
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import replace
from typing import Any, NamedTuple

import ipywidgets as widgets
import torch
from matplotlib.figure import Figure as MatplotlibFigure
from torch import Tensor

from mha.attention import attention_weights, multi_head_attention, split_heads
from mha.diagrams import panels_of, stride_picture
from mha.examples import RecordedHeads
from mha.heatmaps import MOST, checked, heatmap_picture, in_words, words
from mha.layout import Layout
from mha.picture import Label, Picture, Still
from mha.steps import Steps
from mha.trace import trace

MOST_FRAMES, MOST_TOKENS, MOST_ELEMENTS = 8, 32, 24

# A stored figure works without a kernel, so it needs no mark that says it is disconnected.
QUIET = (
    "<style>.mha-figure::before, .mha-figure .jupyter-widgets-disconnected::before"
    "{content: none !important}"
    ".mha-figure .widget-readout {white-space: nowrap; max-width: none; overflow: visible}</style>"
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
    """Sliders, with one frame for each combination of their positions.

    The frames live in the browser and links there switch them, so that sliders work without a
    kernel; everything that depends on them is inside the frame.

    Args:
        controls: the positions of each slider, by its name.
        draw: the frame for one position of each slider, in this order.
        start: where a slider starts, if not at its first position.
    """

    def __init__(
        self, controls: Mapping[str, Sequence[Any]], draw: Callable[..., Frame], **start: Any
    ) -> None:
        for name, options in controls.items():
            found = list(options) if isinstance(options, Sized) else []
            if not 0 < len(found) <= MOST_FRAMES or max(map(found.count, found)) > 1:
                raise ValueError(
                    f"{name} must have 1 to {MOST_FRAMES} options that differ, but has {options}."
                )
        frames = {place: draw(*place) for place in itertools.product(*controls.values())}
        width = max(frame.picture.width for frame in frames.values())
        height = max(frame.picture.height for frame in frames.values())
        self._frames = {
            place: frame._replace(picture=replace(frame.picture, width=width, height=height))
            for place, frame in frames.items()
        }
        self.sliders = {
            name: widgets.SelectionSlider(
                options=[(str(option), option) for option in options],
                description=name,
                style={"description_width": "initial"},
                layout={"width": "min(100%, 520px)"},
            )
            for name, options in controls.items()
        }
        self._links: list[widgets.Widget] = []
        self.move(**start)
        stack = self._stacked(list(self.sliders.values()), list(self._frames.values()))
        super().__init__(self.frame, [*self.sliders.values(), stack])

    def _stacked(self, sliders: list[widgets.Widget], frames: list[Frame]) -> widgets.Widget:
        """The frames in a stack that the first slider switches, of stacks for the others."""
        if not sliders:
            return _html(frames[0])
        slider, *others = sliders
        size = len(frames) // len(slider.options)
        stack = widgets.Stack(
            [self._stacked(others, frames[i : i + size]) for i in range(0, len(frames), size)],
            selected_index=slider.index,
            layout={"width": "100%"},
        )
        self._links.append(widgets.jslink((slider, "index"), (stack, "selected_index")))
        return stack

    def move(self, **to: Any) -> None:
        """Move sliders, by their names; a ValueError, and no move, where one has no such option."""
        for name, value in to.items():
            options = [option for _, option in self.sliders[name].options]
            if value not in options:
                raise ValueError(f"{name} must be one of {options}, but is {value!r}.")
        for name, value in to.items():
            self.sliders[name].value = value

    @property
    def num_heads(self) -> int:
        """Where the slider over num_heads stands; set it to move the slider."""
        return int(self.sliders["num_heads"].value)

    @num_heads.setter
    def num_heads(self, value: int) -> None:
        self.move(num_heads=value)

    @property
    def frame(self) -> Frame:
        """What is on screen now."""
        return self._frames[tuple(slider.value for slider in self.sliders.values())]


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
        steps: what `trace` recorded; calls that view or copy `x` or what they made of it.
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


class Plot(Figure):
    """A matplotlib figure, with the words that stand for it where it cannot be seen.

    Args:
        figure: a `matplotlib.figure.Figure`, not one of pyplot's.
        text: what it shows, by numbers.
    """

    def __init__(self, figure: MatplotlibFigure, text: str) -> None:
        super().__init__(Frame(Still.of(figure, text), text))


class Heatmap(Figure):
    """Attention weights as maps, with no slider.

    The text has every weight; where there are many, the strongest of each head.

    Args:
        weights: (num_heads, seq_q, seq_k); rows are queries, columns are keys.
        queries: seq_q words or ids.
        keys: seq_k words or ids.
        titles: one a map; "head 0", "head 1" and so on if not given.
    """

    def __init__(
        self, weights: Any, queries: Any = None, keys: Any = None, titles: Any = None
    ) -> None:
        text = in_words(weights, queries, keys, titles)
        size = checked(weights, queries, keys, titles)[0].size
        if size > MOST:
            text = f"{size:,} weights; the strongest of each head past the first key\n{text}"
        height = 300 if size <= MOST else 600
        picture = heatmap_picture(weights, queries, keys, titles, height=height, alt=text)
        super().__init__(Frame(picture, text))


class DependencyMaps(Figure):
    """Which output token depends on which input token, for several functions side by side.

    Args:
        maps: boolean (seq_out, seq) by name, as `dependency_map` returns them.
    """

    def __init__(self, maps: Mapping[str, Any]) -> None:
        if not isinstance(maps, Mapping):
            raise TypeError(
                f"maps must be maps by name, as {{'mine': found}}, but is {maps!r:.60}."
            )
        shapes = {name: tuple(getattr(x, "shape", ())) for name, x in maps.items()}
        if len({*shapes.values()}) != 1 or any(len(shape) != 2 for shape in shapes.values()):
            raise ValueError(f"maps must each be (seq_out, seq), of one shape, but are {shapes}.")
        found, outputs, inputs, names = checked(list(maps.values()), titles=list(maps))
        if found.dtype != bool:
            raise TypeError(f"maps must be boolean, but are {found.dtype}: give x != 0.")
        say = str if found.size <= MOST else _runs
        text = "\n".join(
            f"{name}: output {i} depends on inputs {say(row.nonzero()[0].tolist())}"
            for name, rows in zip(names, found, strict=True)
            for i, row in enumerate(rows)
        )
        height, axes = 250 + 40 * len(names), ("output", "input")
        picture = heatmap_picture(found, outputs, inputs, names, height=height, alt=text, axes=axes)
        super().__init__(Frame(picture, text))


def _runs(places: list[int]) -> str:
    """[0, 1, 2, 5] as [0 to 2, 5]."""
    first = [i for i in places if i - 1 not in places]
    last = [i for i in places if i + 1 not in places]
    runs = (f"{i} to {j}" if i < j else str(i) for i, j in zip(first, last, strict=True))
    return f"[{', '.join(runs)}]"


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
        if seq * d_model > MOST_ELEMENTS:
            raise ValueError(
                f"seq*d_model must be at most {MOST_ELEMENTS}, but is {seq}*{d_model}."
            )
        x = torch.arange(seq * d_model).view(1, seq, d_model)
        controls = {"num_heads": divisors(d_model)}
        super().__init__(controls, lambda n: _split_frame(x, n, split), num_heads=num_heads)


class HeadExplorer(Explorer):
    """The attention weights of every head, as `num_heads` moves.

    Args:
        q: projected queries, (batch, seq_q, d_model); the first of the batch is shown.
        k: projected keys, (batch, seq_k, d_model).
        v: projected values, (batch, seq_k, d_value).
        mask: boolean (batch, seq_q, seq_k), True = may attend.
        tokens: the seq_k words or ids of the keys, and of the queries if they are as many.
        num_heads: where the slider starts, if not at the first option.
        options: the numbers of heads to choose from; by default up to 8 that divide both widths.
    """

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None = None,
        *,
        tokens: Any = None,
        num_heads: int | None = None,
        options: Sequence[int] | None = None,
    ) -> None:
        _check_projected(q=q, k=k, v=v)
        seq_q, seq_k = q.shape[1], k.shape[1]
        if max(seq_q, seq_k) > MOST_TOKENS:
            raise ValueError(f"seq must be at most {MOST_TOKENS} tokens, but is {seq_q}, {seq_k}.")
        keys = words("tokens", tokens, seq_k, "a key")
        queries = keys if seq_q == seq_k else None
        if num_heads is not None:
            multi_head_attention(q, k, v, num_heads, mask)  # which says why, where it cannot be
        if options is None:
            options = divisors(math.gcd(q.shape[-1], v.shape[-1]))[:MOST_FRAMES]
            if num_heads is not None and num_heads not in options:
                options = sorted([*options[: MOST_FRAMES - 1], num_heads])

        def draw(n: int) -> Frame:
            return _head_frame(q, k, v, n, mask, queries, keys)

        start = {} if num_heads is None else {"num_heads": num_heads}
        super().__init__({"num_heads": options}, draw, **start)

    @classmethod
    def of(cls, heads: RecordedHeads, **kwargs: Any) -> "HeadExplorer":
        """Explore a recorded example; the slider starts at the number it was trained with."""
        options = kwargs.get("options")
        start = heads.num_heads if options is None or heads.num_heads in options else None
        kwargs = {"tokens": heads.tokens, "num_heads": start, **kwargs}
        return cls(heads.q, heads.k, heads.v, **kwargs)


def _check_projected(**tensors: Any) -> None:
    kinds = {name: getattr(x, "dtype", type(x).__name__) for name, x in tensors.items()}
    floats = all(isinstance(x, Tensor) and x.is_floating_point() for x in tensors.values())
    if not floats or len({*kinds.values()}) > 1:
        raise TypeError(
            f"q, k, v must be tensors of one floating dtype, but are {kinds}: "
            "give torch.as_tensor(x).float()."
        )
    fixes = {2: " Of one sequence, give {0}[None].", 4: " Merge the heads first: merge_heads({0})."}
    for name, x in tensors.items():
        if x.ndim != 3 or not x.numel():
            raise ValueError(
                f"{name} must be (batch, seq, d_model), each at least 1, but is "
                f"{tuple(x.shape)}.{fixes.get(x.ndim, '').format(name)}"
            )


class ScaleExplorer(Explorer):
    """The same attention without and with its scale, as head_dim grows.

    Args:
        head_dims: the positions of the slider.
        seq: the number of tokens; queries and keys are unit normal numbers.
    """

    def __init__(self, head_dims: Sequence[int] = (1, 4, 16, 64, 256), seq: int = 8) -> None:
        _check_sizes(MOST_TOKENS, seq=[seq])
        _check_sizes(head_dims=head_dims)
        start = head_dims[len(head_dims) // 2]
        controls = {"head_dim": head_dims}
        super().__init__(controls, lambda n: _scale_frame(n, seq), head_dim=start)


class MaskExplorer(Explorer):
    """A mask, its broadcast over 3 heads, and what it leaves of their attention weights.

    Args:
        seq_q: the positions of the slider over seq_q.
        seq_k: the positions of the slider over seq_k.
    """

    def __init__(self, seq_q: Sequence[int] = (1, 2, 5), seq_k: Sequence[int] = (2, 5)) -> None:
        _check_sizes(5, seq_q=seq_q, seq_k=seq_k)
        controls = {"mask": list(MASKS), "seq_q": seq_q, "seq_k": seq_k}
        start = {"mask": "causal, lower-right", "seq_q": seq_q[-1], "seq_k": seq_k[-1]}
        super().__init__(controls, _mask_frame, **start)


def _check_sizes(most: float = math.inf, **sizes: Sequence[int]) -> None:
    for name, found in sizes.items():
        if not found or not all(isinstance(n, int) and 0 < n <= most for n in found):
            bound = f"from 1 to {most}" if most < math.inf else "of at least 1"
            raise ValueError(f"{name} must be whole numbers {bound}, but is {list(found)}.")


class MergeExplorer(Explorer):
    """Four ways to merge 3 heads of 4 tokens, and what each does to memory."""

    def __init__(self) -> None:
        start = "transpose, contiguous, view"
        super().__init__({"merge": list(MERGES)}, _merge_frame, merge=start)


def _diagram(x: Tensor, steps: Steps, num_heads: int, axes: Sequence[str]) -> Picture:
    if x.numel() > MOST_ELEMENTS:
        raise ValueError(f"x must have at most {MOST_ELEMENTS} elements, but has {x.numel()}.")
    index = {place: i for i, place in enumerate(Layout.of(x).elements())}
    if not x.numel() or not x.ndim:
        raise ValueError(f"x must have an axis and an element, but its shape is {tuple(x.shape)}.")
    if num_heads not in divisors(x.shape[-1], x.shape[-1]):
        raise ValueError(
            f"num_heads must be one of {divisors(x.shape[-1], x.shape[-1])}, which divide the last "
            f"axis of x, {x.shape[-1]}, but is {num_heads}."
        )
    if sorted(index) != list(range(x.numel())):
        raise ValueError("x must fill its storage from the start; trace its x.clone() instead.")
    heads = [index[place] * num_heads // x.shape[-1] % num_heads for place in range(x.numel())]
    return stride_picture(panels_of("x", x, axes, steps), heads)


def _split_frame(x: Tensor, num_heads: int, split: Callable[[Tensor, int], Tensor]) -> Frame:
    sizes = {"seq": x.shape[1], "num_heads": num_heads, "head_dim": x.shape[2] // num_heads}
    try:
        with trace(**{name: n for name, n in sizes.items() if n > 1}) as steps:
            split(x, num_heads)
        picture = _diagram(x, steps, num_heads, ("1", "seq", "d_model"))
    except Exception as error:
        text = f"num_heads = {num_heads}: {type(error).__name__}: {error}"
        lines = textwrap.wrap(text, 100)
        labels = [Label(8, 18 * i, line) for i, line in enumerate(lines, 1)]
        return Frame(Picture(760, 22 + 18 * len(lines), text, labels=labels), text)
    return Frame(picture, f"num_heads = {num_heads}\n{steps}")


def _head_frame(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    num_heads: int,
    mask: Tensor | None,
    queries: Sequence[str] | None,
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
    weights = seen["attn_weights"][0]
    text = "\n".join(
        [
            f"num_heads = {num_heads}",
            *("  ".join(row) for row in rows),
            "strongest link past the first key",
            in_words(weights, queries, keys, most=0),
        ]
    )
    return Frame(heatmap_picture(weights, queries, keys, header=rows, alt=text, largest=510), text)


def _scale_frame(head_dim: int, seq: int) -> Frame:
    generator = torch.Generator().manual_seed(head_dim)
    q, k = torch.randn(2, seq, head_dim, generator=generator)
    scores = q @ k.T
    titles = ("softmax(scores)", "softmax(scores / sqrt(head_dim))")
    weights = torch.stack([scores.softmax(dim=-1), attention_weights(q, k)])
    rows = [
        ("head_dim", str(head_dim), ""),
        *(
            (name, f"variance {s.var():.1f}", f"largest weight of a row {w.amax(-1).mean():.2f}")
            for name, s, w in zip(
                ("scores", "scaled"), (scores, scores / math.sqrt(head_dim)), weights, strict=True
            )
        ),
    ]
    text = "\n".join("  ".join(row).rstrip() for row in rows)
    tokens = list(map(str, range(seq)))
    return Frame(heatmap_picture(weights.numpy(), tokens, tokens, titles, rows, 420, text), text)


def _causal(seq_q: int, seq_k: int, diagonal: int) -> Tensor:
    return torch.ones(2, seq_q, seq_k, dtype=torch.bool).tril(diagonal)


def _padding(seq_q: int, seq_k: int) -> Tensor:
    """The second sequence of the batch has two tokens fewer, but at least one."""
    lengths = torch.tensor([seq_k, max(seq_k - 2, 1)])
    return (torch.arange(seq_k) < lengths[:, None])[:, None].expand(2, seq_q, seq_k)


MASKS: dict[str, Callable[[int, int], Tensor]] = {
    "all may attend": lambda q, k: torch.ones(2, q, k, dtype=torch.bool),
    "causal, upper-left": lambda q, k: _causal(q, k, 0),
    "causal, lower-right": lambda q, k: _causal(q, k, k - q),
    "padding": _padding,
    "causal and padding": lambda q, k: _causal(q, k, k - q) & _padding(q, k),
}


def _mask_frame(kind: str, seq_q: int, seq_k: int) -> Frame:
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 2, 5, 12, generator=generator)
    mask = MASKS[kind](seq_q, seq_k)
    with trace() as steps:
        mask.unsqueeze(1).expand(2, 3, seq_q, seq_k)
    qh, kh = split_heads(q[:, :seq_q], 3), split_heads(k[:, :seq_k], 3)
    attn_weights = attention_weights(qh, kh, mask.unsqueeze(1))
    rows = [
        (kind, f"seq_q {seq_q}, seq_k {seq_k}", "sequence 1 of the batch"),
        ("mask", str(tuple(mask.shape)), f"strides {mask.stride()}"),
        *(
            (step.call.partition("(")[0], str(step.shape), f"strides {step.strides}")
            for step in steps
        ),
        ("attn_weights", str(tuple(attn_weights.shape)), f"strides {attn_weights.stride()}"),
    ]
    empty = (~mask[1].any(dim=-1)).nonzero().flatten().tolist()
    lines = [
        f"mask = {kind}, seq_q = {seq_q}, seq_k = {seq_k}; sequence 1 of the batch",
        *("  ".join(row) for row in rows[1:]),
        *(
            f"query {i} may attend to {row.nonzero().flatten().tolist()}"
            for i, row in enumerate(mask[1])
        ),
        f"rows of zeros: {empty}",
    ]
    text = "\n".join(lines)
    maps = torch.cat([mask[1:].float(), attn_weights[1]]).numpy()
    titles = ("mask", "head 0", "head 1", "head 2")
    queries, keys = (list(map(str, range(seq))) for seq in (seq_q, seq_k))
    return Frame(heatmap_picture(maps, queries, keys, titles, rows, 300, text, 169), text)


MERGES: dict[str, Callable[[Tensor], Tensor]] = {
    "view": lambda x: x.view(1, 4, 6),
    "transpose, view": lambda x: x.transpose(1, 2).view(1, 4, 6),
    "transpose, contiguous, view": lambda x: x.transpose(1, 2).contiguous().view(1, 4, 6),
    "transpose, reshape": lambda x: x.transpose(1, 2).reshape(1, 4, 6),
}


def _merge_frame(name: str) -> Frame:
    out_h = torch.arange(24).view(1, 3, 4, 2)
    with (
        trace(seq=4, num_heads=3, head_dim=2, d_model=6) as steps,
        contextlib.suppress(RuntimeError),
    ):
        MERGES[name](out_h)
    *most, last = steps
    done = most if last.error else steps
    axes = ("1", "num_heads", "seq", "head_dim")
    picture = stride_picture(panels_of("out_h", out_h, axes, done), [i // 8 for i in range(24)])
    text = f"merge = {name}\n{steps}"
    if last.error:
        lines = [last.call, *textwrap.wrap(last.error, 100)]
        labels = [
            Label(8, picture.height + 18 * i, line, bold=i == 1) for i, line in enumerate(lines, 1)
        ]
        picture = replace(
            picture, height=picture.height + 80, labels=[*picture.labels, *labels], alt=text
        )
    return Frame(picture, text)
