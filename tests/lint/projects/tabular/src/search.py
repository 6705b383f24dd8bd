import click


@click.command()
@click.option("--table", required=True)
@click.option("--trees", type=int)
@click.option("--depth", type=int)
@click.option("--rate", type=float)
def search(table, trees, depth, rate):
    pass


search()
