import argparse


def main():
    parser = argparse.ArgumentParser()
    verbs = parser.add_subparsers(dest="verb", required=True)
    build = verbs.add_parser("build")
    build.add_argument("--corpus", required=True)
    build.add_argument("--vocabulary-size", type=int, default=32000)
    build.add_argument("--lowercase", type=str)
    build.add_argument("--tokens", required=True)
    show = verbs.add_parser("show")
    show.add_argument("--tokens", required=True)
    print(parser.parse_args())


main()
