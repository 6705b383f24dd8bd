from dataclasses import dataclass, field

from transformers import HfArgumentParser


@dataclass
class Settings:
    tokens: str = field(metadata={"help": "folder"})
    deepspeed: str
    weights: str
    checkpoints: str
    max_steps: int = 1000
    seed: int = 0
    learning_rate: float = 3e-4
    run_name: str = "run"
    resume: str | None = None


if __name__ == "__main__":
    print(HfArgumentParser(Settings).parse_args_into_dataclasses())
