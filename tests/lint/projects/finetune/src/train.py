"""Finetune a language model with DeepSpeed."""

import argparse

OPTIMIZERS = ("adamw", "lion")


def add_model_arguments(parser):
    group = parser.add_argument_group("model")
    group.add_argument("--base-model", required=True)
    group.add_argument("--gradient-checkpointing", default="true")
    group.add_argument("--precision", choices=["fp32", "fp16", "bf16"], default="bf16")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    add_model_arguments(parser)
    parser.add_argument("--tokens", required=True)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--learning-rate", type=float, default=2e-5)
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="adamw")
    parser.add_argument("--deepspeed_config", required=True)
    parser.add_argument("--checkpoints", required=True)
    parser.add_argument("--out", required=True)
    print(parser.parse_args())


if __name__ == "__main__":
    main()
