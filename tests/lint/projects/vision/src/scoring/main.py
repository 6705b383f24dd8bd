from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()


@app.command()
def main(
    model: Annotated[Path, typer.Option()],
    pictures: Annotated[Path, typer.Option()],
    metrics: Annotated[Path, typer.Option("--metrics", "-m")],
    threshold: float = 0.5,
):
    print(model, pictures, threshold, metrics)


if __name__ == "__main__":
    app()
