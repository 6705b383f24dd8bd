from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_integer("epochs", 3, "How often.")


def main(_):
    print(FLAGS.epochs)


app.run(main)
