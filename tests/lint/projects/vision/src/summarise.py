from argparse import ArgumentParser


def arguments():
    p = ArgumentParser(description="page")
    p.add_argument("--metrics", required=True)
    p.add_argument("--title", default="")
    p.add_argument("--page", required=True)
    p.add_argument("--theme", choices=["light", "dark"], default="light")
    return p.parse_args()


if __name__ == "__main__":
    print(arguments())
