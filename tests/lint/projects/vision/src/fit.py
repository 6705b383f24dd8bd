import click


@click.command()
@click.option("--pictures", required=True)
@click.option("--epochs", type=int, default=10)
@click.option("--learning-rate", "--lr", type=float, default=0.01)
@click.option("--backbone", type=click.Choice(["resnet18", "resnet50", "vit_b_16"]), default="resnet18")
@click.option("--precision", type=click.Choice(["fp32", "fp16"]), default="fp16")
@click.option("--momentum", type=float, default=0.9)
@click.option("--augment/--no-augment", default=True)
@click.option("--model", required=True)
@click.option("--checkpoints", required=True)
def main(**flags):
    print(flags)


if __name__ == "__main__":
    main()
