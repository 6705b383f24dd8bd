"""Evaluate a model on tokens."""

import click


@click.command()
@click.option("--model", required=True)
@click.option("--tokens", required=True)
@click.option("--batch-size", type=int, default=16)
@click.option("--threshold", type=float, default=0.5)
@click.option("--title", default="Evaluation")
@click.option("--verbose", type=bool, default=False)
@click.option("--report", required=True)
def main(**options):
    print(options)


if __name__ == "__main__":
    main()
