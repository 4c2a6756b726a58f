"""Merge a LoRA adapter into its base model: one folder that AutoModelForCausalLM, vLLM and llmgym load.

python examples/merge_adapter.py runs/my-run merged
python examples/merge_adapter.py runs/my-run/checkpoint-50 merged --dtype bfloat16

The merge is computed in fp32. The base model must still be where the run found it: adapter_config.json in the
checkpoint names it.
"""

import argparse

import torch

from llmgym_trainer.models.load import load_model, resolve_model


def main() -> None:
    parser = argparse.ArgumentParser(description="Merge a LoRA adapter into its base model.")
    parser.add_argument("adapter", help="a run folder (its last checkpoint) or a checkpoint")
    parser.add_argument("folder", help="where the merged model goes")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of the saved weights")
    arguments = parser.parse_args()
    model, tokenizer = load_model(resolve_model(arguments.adapter, seed=0), dtype=torch.float32)
    model.to(getattr(torch, arguments.dtype)).save_pretrained(arguments.folder)
    tokenizer.save_pretrained(arguments.folder)
    print("the merged model is in", arguments.folder)


if __name__ == "__main__":
    main()
