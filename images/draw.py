"""Draw every figure of this folder again: `python images/draw.py [folder]`."""

import sys
from pathlib import Path

from mha.examples import recorded_heads
from mha.explore import HeadExplorer, SplitExplorer
from mha.picture import Picture

HERE = Path(__file__).parent


def pictures() -> dict[str, Picture]:
    """Every figure by its file name."""
    return {
        "heads.png": HeadExplorer.of(recorded_heads(layer=1, sentence=1)).frame.picture,
        "split.png": SplitExplorer(seq=4, d_model=6, num_heads=3).frame.picture,
    }


def draw(folder: Path) -> None:
    """Write every figure into `folder`."""
    for name, picture in pictures().items():
        (folder / name).write_bytes(picture.png())


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
