"""Models of other people run under `trace` as they do without it, and every row is right."""

import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from mha.trace import VIEW_PROPERTIES, trace

pytestmark = [pytest.mark.outside, pytest.mark.filterwarnings("ignore")]
IDS = torch.tensor([[5, 3, 8, 1, 9], [2, 7, 4, 0, 0]])
PADDING = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
SMALL = {"vocab_size": 30, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}


class Witness(TorchFunctionMode):
    """Looks itself at every tensor that a call returns: shape, strides, and whose memory it is."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[Any, ...]] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func.__self__.__name__ if func.__name__ == "__get__" else func.__name__
        if func.__name__ == "__get__" and name not in VIEW_PROPERTIES:
            return func(*args, **kwargs)
        went_in = [x for x in torch.utils._pytree.tree_leaves((args, kwargs)) if is_tensor(x)]
        with torch._C.DisableTorchFunction():
            before = {x.untyped_storage().data_ptr() for x in went_in} - {0}
        result = func(*args, **kwargs)
        back = args[0] if name == "__setitem__" else result
        with torch._C.DisableTorchFunction():
            for x in filter(is_tensor, torch.utils._pytree.tree_leaves(back)):
                place = x.untyped_storage().data_ptr()
                shares = None if place == 0 else place in before
                self.seen.append((tuple(x.shape), x.stride(), x.storage_offset(), shares))
        return result


def is_tensor(x: object) -> bool:
    return isinstance(x, Tensor)


def hugging_face(name: str, attention: str) -> tuple[nn.Module, dict[str, Any]]:
    """A small model with random weights, and something to run it on."""
    transformers = pytest.importorskip("transformers")
    ids = {"input_ids": IDS, "attention_mask": PADDING}
    sizes: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
        "BERT": ("Bert", {**SMALL, "intermediate_size": 40}, ids),
        "GPT-2": ("GPT2", {"vocab_size": 30, "n_embd": 24, "n_layer": 2, "n_head": 4}, ids),
        "Llama": ("Llama", {**SMALL, "num_key_value_heads": 2, "intermediate_size": 40}, ids),
        "T5": (
            "T5",
            {"vocab_size": 30, "d_model": 24, "d_kv": 6, "num_heads": 4, "num_layers": 2},
            {**ids, "decoder_input_ids": IDS[:, :3]},
        ),
        "ViT": (
            "ViT",
            {**SMALL, "intermediate_size": 40, "image_size": 8, "patch_size": 4},
            {"pixel_values": torch.linspace(-1, 1, 2 * 3 * 8 * 8).view(2, 3, 8, 8)},
        ),
    }
    prefix, options, inputs = sizes[name]
    if prefix == "ViT":
        options.pop("vocab_size")
    config = getattr(transformers, f"{prefix}Config")(**options, attn_implementation=attention)
    return getattr(transformers, f"{prefix}Model")(config), inputs


class Name(type):
    """A class whose attributes are such classes again."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Name(name, (), {})


class Names(types.ModuleType):
    """Stands in for torchvision, of which timm's blocks use no more than names."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return sys.modules.get(f"{self.__name__}.{name}") or Name(name, (), {})


def vit_block(monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    """timm's block; the torchvision that belongs to this torch may not be there."""
    for name in (
        "", ".ops", ".ops.misc", ".transforms", ".transforms.functional", ".datasets", ".utils",
        ".models", ".models.feature_extraction",
    ):  # fmt: skip
        if f"torchvision{name}" not in sys.modules:
            module = Names(f"torchvision{name}")
            module.__path__ = []
            monkeypatch.setitem(sys.modules, module.__name__, module)
    block: nn.Module = pytest.importorskip("timm.models.vision_transformer").Block(24, 4)
    return block


def check(run: Callable[[], Any]) -> list[str]:
    """Run code plain, watched by the witness, and traced; the three must agree."""
    plain = run()
    with trace(batch=2, seq=5, num_heads=4, head_dim=6, d_model=24) as steps, Witness() as witness:
        found = run()
    with trace() as alone:
        again = run()
    for x, y, z in zip(*map(outputs, (plain, found, again)), strict=True):
        assert torch.equal(x, y)
        assert torch.equal(x, z)
    assert [step.call for step in alone] == [step.call for step in steps]
    assert len(witness.seen) == len(steps) > 20
    for step, (shape, strides, offset, shares) in zip(steps, witness.seen, strict=True):
        assert (step.shape, step.strides, step.offset) == (shape, strides, offset), step
        assert step.memory.startswith("same") if shares else step.memory[0] in "cn-", step
        assert (step.memory == "-") == (shares is None), step
    width = max(map(len, repr(alone).splitlines()))
    assert width <= 115, "the widest line of the table"
    return [step.call for step in steps]


def outputs(result: Any) -> list[Tensor]:
    return [result] if is_tensor(result) else [x for x in result.values() if is_tensor(x)]


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["BERT", "GPT-2", "Llama", "T5", "ViT"])
def test_a_model_of_hugging_face(name: str, attention: str, grad: bool) -> None:
    torch.manual_seed(0)
    model, inputs = hugging_face(name, attention)
    model.eval()
    with torch.set_grad_enabled(grad):
        calls = check(lambda: model(**inputs))
    fused = [call for call in calls if call.startswith("scaled_dot_product_attention")]
    assert bool(fused) == (attention == "sdpa")


@pytest.mark.parametrize("fused", [True, False])
def test_a_block_of_timm(fused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    block: Any = vit_block(monkeypatch).eval()
    block.attn.fused_attn = fused
    x = torch.randn(2, 5, 24)
    calls = check(lambda: block(x))
    assert any("scaled_dot_product" in call for call in calls) == fused
