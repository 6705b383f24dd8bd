import argparse

p = argparse.ArgumentParser()
p.add_argument("--weights", required=True)
p.add_argument("--base", required=True)
p.add_argument("--lr", type=float)
p.add_argument("--warmup", type=int, default=0)
p.add_argument("--dropout", type=float, default=0.1)
p.add_argument("--bf16", type=lambda text: text.lower() == "true", default=False)
p.add_argument("--best", required=True)
g = p.add_mutually_exclusive_group()
g.add_argument("--quiet", action="store_true")
g.add_argument("--verbose", action="store_true")
args = p.parse_args()
