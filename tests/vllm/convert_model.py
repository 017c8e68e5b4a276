"""Make a model folder that vLLM reads of the demo model's weights: `python convert_model.py FOLDER`.

The weights are a GGUF file, which this vLLM does not load itself; transformers reads it, unpacks it and writes the
usual folder. The folder appears under its name only when it is whole.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from lotwise.models import model_path


def convert(target: Path) -> None:
    """Write the folder, 270 MB in bfloat16."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    weights = model_path()
    if weights is None:
        raise SystemExit("there are no weights: run lotwise fetch-model")
    begun = target.with_name(target.name + ".new")
    shutil.rmtree(begun, ignore_errors=True)
    # Left packed, the weights could not be saved again.
    model = AutoModelForCausalLM.from_pretrained(
        weights.parent,
        gguf_file=weights.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.bfloat16,
    )
    model.save_pretrained(begun)
    AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name).save_pretrained(begun)
    shutil.rmtree(target, ignore_errors=True)
    begun.rename(target)


if __name__ == "__main__":
    convert(Path(sys.argv[1]))
