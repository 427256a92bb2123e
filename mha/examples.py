"""Recorded q, k and v of a real trained model, to try multi-head attention on."""

import json
from dataclasses import dataclass, field
from pathlib import Path

from safetensors import safe_open
from torch import Tensor

FILE = Path(__file__).parent / "data" / "minilm_heads.safetensors"


@dataclass(frozen=True, eq=False)
class RecordedHeads:
    """What one layer of a trained model computed for one sentence, just before its split.

    Attributes:
        q, k, v: projected, float32 (1, seq, 384).
        tokens: the seq words and marks that the model read.
        sentence: the text.
        layer: which of the model's layers, counted from 0.
        num_heads: the number of heads that the model was trained with.
    """

    q: Tensor = field(repr=False)
    k: Tensor = field(repr=False)
    v: Tensor = field(repr=False)
    tokens: tuple[str, ...] = field(repr=False)
    sentence: str
    layer: int
    num_heads: int


def recorded_heads(layer: int = 0, sentence: int = 0) -> RecordedHeads:
    """Load what all-MiniLM-L6-v2 (6 layers, 12 heads of 32) computed; nothing is downloaded.

    Args:
        layer: 0, 1 or 4.
        sentence: 0 or 1.

    Returns:
        q, k, v (1, seq, 384) with tokens; new tensors at each call, so writing to them is safe.

    Raises:
        ValueError: that layer or sentence was not recorded.

    >>> heads = recorded_heads(layer=1, sentence=1)
    >>> heads
    RecordedHeads(sentence='She read the letters and then she put them in the drawer.', layer=1, \
num_heads=12)
    >>> heads.q.shape, heads.tokens[:4]
    (torch.Size([1, 15, 384]), ('[CLS]', 'she', 'read', 'the'))

    Source: huggingface.co/sentence-transformers/all-MiniLM-L6-v2, Apache-2.0.
    """
    with safe_open(FILE, framework="pt") as file:
        about = json.loads(file.metadata()["about"])
        for name, value, recorded in (
            ("layer", layer, about["layers"]),
            ("sentence", sentence, range(len(about["sentences"]))),
        ):
            if type(value) is not int or value not in recorded:
                *most, last = map(str, recorded)
                raise ValueError(
                    f"{name}={value!r} was not recorded; use {name}={', '.join(most)} or {last}."
                )
        # clone: what get_tensor returns is still the file's own pages, not memory of its own.
        q, k, v = (file.get_tensor(f"sentence{sentence}.layer{layer}.{x}").clone() for x in "qkv")
    tokens, text = tuple(about["tokens"][sentence]), about["sentences"][sentence]
    return RecordedHeads(q, k, v, tokens, text, layer, about["num_heads"])
