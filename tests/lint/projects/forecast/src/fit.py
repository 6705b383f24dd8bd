import typer


def main(
    table: str = typer.Option(...),
    units: int = 64,
    dropout: float = 0.1,
    window: int = typer.Option(..., "--window", "-w"),
    model: str = typer.Option(...),
    logs: str = "logs",
    verbose: bool = False,
) -> None:
    print(table, units, dropout, window, model, logs, verbose)


if __name__ == "__main__":
    typer.run(main)
