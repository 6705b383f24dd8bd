from skimage.util import view_as_windows


def cut(image, size, overlap, target, classes):
    return [(target, size, overlap, len(classes), window.shape) for window in view_as_windows(image, size)]
